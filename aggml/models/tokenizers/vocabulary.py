"""Text to tokens and back, by the vocabulary in a GGUF file: SentencePiece or byte-level BPE.

The `tokenizers` library does byte-level BPE. SentencePiece joins pieces by score, not by a list of
merges; it is short, so it is written here. Not here: other kinds (pieces.py, longest.py), which
tokens are special (roles.py), the vocabulary of a tokenizer.json (json_vocabulary.py), templates
of chats (../chat/template.py).
"""

from __future__ import annotations

import codecs
import functools
import heapq
import itertools
import logging
import re
import unicodedata
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Final

from aggml import InvalidArgument
from aggml.models.arguments import flag, integer, iterate_ids, show
from aggml.models.errors import ModelError
from aggml.models.tokenizers.cuts import CUTS
from aggml.models.tokenizers.quotes import quotes_of
from aggml.models.tokenizers.roles import BYTE, UNUSED, USER_DEFINED, roles_of, special_id
from aggml.process.extras import install_command

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from tokenizers import Tokenizer

    from aggml.models.tokenizers.cuts import Cut
    from aggml.models.tokenizers.quotes import Quotes

__all__ = [
    "SPACE",
    "ByteLevel",
    "BytePairEncoder",
    "GGUFVocabulary",
    "SentencePiece",
    "Vocabulary",
    "VocabularyError",
    "bytes_of_letters",
    "is_byte",
    "is_utf8",
    "letters",
    "library",
    "pre_tokenizer_of",
    "utf8",
]

SPACE: Final = "\u2581"
#: White space that is removed beside a special token if its role says so.
BLANKS: Final = " \t\n\v\f\r"
#: Types of tokens that stand for no text.
SILENT: Final = (0, UNUSED)

#: Tokens that are never drawn (llama.cpp adds -inf to their logits before it draws).
SUPPRESSED: Final = "tokenizer.ggml.suppress_tokens"
_log = logging.getLogger("aggml")
_BYTE: Final = re.compile("<0x[0-9A-Fa-f]{2}>")


class VocabularyError(ModelError):
    """The file's vocabulary is missing, or of a kind that cannot be read here."""


class Vocabulary(ABC):
    """What all vocabularies have in common: special tokens, begin and end, incremental text.

    Attributes:
        pieces: the text of each token, as the file has it.
        kinds: the type of each token, as in ``tokenizer.ggml.token_type``.
        ids: token ids by text.
        bos, eos: the tokens that begin and end a text; None if there is none.
        add_bos, add_eos: whether `encode` puts them around a text.
        ends: the tokens that end an answer.
        suppressed: the tokens that are never drawn.

    Args:
        metadata: of a GGUF file.
        add_bos, add_eos: whether these tokens are put around a text if the file does not say.
        by_text: whether tokens whose text is usual for the end of an answer, such as
            ``<|im_end|>``, end it even if the file does not name them.
    """

    #: Whether texts are cut into words, so that tokens have no bytes of their own.
    is_wordwise: bool = False
    #: Ids of special tokens by their names, for files that do not give them.
    DEFAULT_IDS: ClassVar[Mapping[str, int]] = {}

    def __init__(
        self,
        metadata: Mapping[str, Any],
        *,
        add_bos: bool,
        add_eos: bool = False,
        by_text: bool = True,
    ) -> None:
        given: Sequence[str] = metadata["tokenizer.ggml.tokens"]
        self.pieces: Sequence[str] = [x or f"[EMPTY_{i}]" for i, x in enumerate(given)]
        self.ids: dict[str, int] = {piece: i for i, piece in enumerate(self.pieces)}
        self.bos: int | None = self._special_id(metadata, "bos")
        self.eos: int | None = self._special_id(metadata, "eos")
        self.unknown: int | None = self._special_id(metadata, "unknown")
        self.add_bos: bool = bool(metadata.get("tokenizer.ggml.add_bos_token", add_bos))
        self.add_eos: bool = bool(metadata.get("tokenizer.ggml.add_eos_token", add_eos))
        roles = roles_of(metadata, self.ids, self.eos, by_text=by_text)
        self.kinds: Sequence[int] = roles.kinds
        self.ends: frozenset[int] = roles.ends
        never = metadata.get(SUPPRESSED)
        self.suppressed: tuple[int, ...] = () if never is None else tuple(int(x) for x in never)
        self._roles = roles

    def _special_id(self, metadata: Mapping[str, Any], name: str) -> int | None:
        """The id of a special token: what the file says, or else its default."""
        found = special_id(metadata, name)
        default = self.DEFAULT_IDS.get(name)
        if found is None and default is not None and default < len(self.pieces):
            return default
        return found

    def encode(self, text: str, *, special: bool = True, literal: bool = False) -> list[int]:
        """Tokens of ``text``.

        If the text begins with the name of the BOS token and the model expects BOS, the result has
        two of them, and a warning is logged. `encode_prompt` adds no second one.

        Args:
            text: any text; names of special tokens in it become these tokens.
            special: put BOS before and EOS after the text, if the model expects them.
            literal: take names of control tokens in the text as text, so that somebody else's text
                cannot end a turn or begin another one. Names of user-defined tokens still become
                these tokens.

        Raises:
            InvalidArgument: ``text`` is not a str, ``special`` or ``literal`` not True or False.
            VocabularyError: the vocabulary has no token for a part of the text, and no token for
                unknown text.
        """
        special = flag("Vocabulary.encode", "special", special)
        literal = flag("Vocabulary.encode", "literal", literal)
        ids = self._ids_of(self._replace_surrogates(text), special=special, literal=literal)
        if special and self._begins_twice(ids):
            _log.warning(
                "[encode] the text begins with the name of the token %r, which is put before every "
                "text: now there are two of them", self.pieces[ids[0]],
            )  # fmt: skip
        return ids

    def encode_prompt(self, text: str) -> list[int]:
        """Tokens of a prompt, as of `encode`, but with one BOS even if the text begins with BOS."""
        ids = self._ids_of(self._replace_surrogates(text), special=True, literal=False)
        return ids[1:] if self._begins_twice(ids) else ids

    @property
    def fills(self) -> bool:
        """Whether the model can fill gaps: whether it has the tokens that `encode_gap` needs."""
        return {"fim_pre", "fim_suf", "fim_mid"} <= self._roles.filling.keys()

    def encode_gap(
        self,
        before: str,
        after: str,
        *,
        begun: str = "",
        files: Iterable[tuple[str, str]] = (),
    ) -> list[int]:
        """Tokens of a prompt whose answer fills the gap between two texts.

        The texts stay text: names of control tokens in them give no control token.

        Args:
            before: the text before the gap.
            after: the text after it.
            begun: the beginning of the answer, which the model continues.
            files: other files, each with its name and its text, which the model may look at.

        Raises:
            VocabularyError: the vocabulary has no tokens that mark a gap.
        """
        if not self.fills:
            raise VocabularyError(
                "the model has no tokens for filling a gap (tokenizer.ggml.fim_pre_token_id, "
                "fim_suf_token_id, fim_mid_token_id)"
            )
        marks = self._roles.filling

        def text(given: str) -> list[int]:
            return self._ids_of(self._replace_surrogates(given), special=False, literal=True)

        ids = [self.bos] if self.add_bos and self.bos is not None else []
        others = list(files)
        separator = marks.get("fim_sep")
        if others and separator is not None:
            if "fim_rep" in marks:
                ids += [marks["fim_rep"], *text("myproject\n")]
            for name, content in others:
                ids += [separator, *text(f"{name}\n{content}")]
            ids += [separator, *text("filename\n")]
        else:
            for _, content in others:
                ids += text(content)
        return [
            *ids, marks["fim_pre"], *text(before), marks["fim_suf"], *text(after),
            marks["fim_mid"], *text(begun),
        ]  # fmt: skip

    def control_names(self) -> list[str]:
        """Names of control tokens."""
        return self._controls[0]

    def control_parts(self, text: str) -> list[str | int]:
        """Split a text at the names of control tokens: their ids, and the texts between them."""
        return self._control_parts(text)

    def quotes(self, texts: Iterable[str]) -> Quotes | None:
        """What replaces names of control tokens in texts; None if no such name is in them.

        Texts of other people get into a prompt with replaced names, and `encode_quoted` takes the
        names for text.
        """
        return quotes_of(*self._controls, texts)

    @functools.cached_property
    def _controls(self) -> tuple[list[str], re.Pattern[str]]:
        """The names of control tokens, the longest first, and a pattern that finds them."""
        names = sorted(self._control_names(), key=lambda x: (-len(x), x))
        return names, re.compile("|".join(map(re.escape, names)) or "(?!)")

    def _control_names(self) -> set[str]:
        return {self.pieces[i] for i in self._roles.hidden}

    def encode_quoted(self, text: str, quotes: Quotes, *, special: bool = True) -> list[int]:
        """Tokens of a prompt in which some names of control tokens are replaced by quotes.

        A replaced name becomes text, every other name its control token.

        Args:
            text: the prompt.
            quotes: replaced the names.
            special: as of `encode`, but there is one BOS even if the text begins with BOS.
        """
        ids: list[int] = []
        for part in self._control_parts(self._replace_surrogates(text)):
            if isinstance(part, int):
                ids.append(part)
            else:
                ids += self._ids_of(quotes.unquote(part), special=False, literal=True)
        if not special:
            return ids
        around = self._ids_of("", special=True, literal=False)  # what is put around a text
        begins = bool(around) and around[0] == self.bos
        before = around[:1] if begins and ids[:1] != [self.bos] else []
        after = around[begins:] if around[-1:] == [self.eos] else []
        return [*before, *ids, *after]

    def _control_parts(self, text: str) -> list[str | int]:
        """As `control_parts`."""
        found: list[str | int] = []
        at = 0
        for name in self._controls[1].finditer(text):
            found += [text[at : name.start()], self.ids[name[0]]]
            at = name.end()
        return [x for x in (*found, text[at:]) if x != ""]

    def _begins_twice(self, ids: Sequence[int]) -> bool:
        """Whether there are two BOS, one of the text and one that was put before it."""
        return self.add_bos and len(ids) > 1 and ids[0] == ids[1] == self.bos

    @abstractmethod
    def encode_pair(self, first: str, second: str) -> list[int]:
        """Tokens of two texts together, with the special tokens before, between and after them."""

    @property
    def pair_separator(self) -> int | None:
        """The token of `encode_pair` after which tokens have type 1; None: all have type 0."""
        return None

    @abstractmethod
    def special_token(self, text: str) -> int | None:
        """The special token with this text; None if there is none."""

    def decode(self, ids: Sequence[int]) -> str:
        """The text of tokens; bytes that are no UTF-8 become U+FFFD.

        Raises:
            InvalidArgument: an id that is not in the vocabulary.
        """
        return "".join(self.stream(iter(iterate_ids("Vocabulary.decode", "ids", ids))))

    def stream(self, ids: Sequence[int] | Iterator[int]) -> Iterator[str]:
        """Yields the text of each token as far as its characters are complete; at the end the rest.

        Raises:
            InvalidArgument: an id that is not in the vocabulary.
        """
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        for token in ids:
            yield decoder.decode(self.bytes_of(self._index(token)))
        yield decoder.decode(b"", final=True)

    @abstractmethod
    def _ids_of(self, text: str, *, special: bool, literal: bool) -> list[int]:
        """Tokens of a text without surrogates; the arguments are those of `encode`."""

    @abstractmethod
    def bytes_of(self, token: int) -> bytes:
        """The bytes that a token stands for; none for a control token."""

    def _replace_surrogates(self, text: str) -> str:
        """Replace surrogates without their other half, which UTF-8 cannot encode, by U+FFFD.

        Raises:
            InvalidArgument: the text is not a str.
        """
        if not isinstance(text, str):
            raise InvalidArgument(
                f"[Vocabulary.encode] text is {show(text)}, must be a str: give each text by itself"
            )
        try:
            text.encode()
        except UnicodeEncodeError:
            return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return text

    def _index(self, token: int) -> int:
        """Check a token id, and return it as an int.

        Raises:
            InvalidArgument: it is not in the vocabulary, or no integer.
        """
        found = token
        if type(token) is not int:
            try:
                found = integer("Vocabulary.decode", "ids", token, -(1 << 63))
            except InvalidArgument:
                raise InvalidArgument(
                    f"[Vocabulary.decode] ids: {show(token)} is no token id"
                ) from None
        if not 0 <= found < len(self.pieces):
            raise InvalidArgument(
                f"[Vocabulary.decode] ids: there is no token {show(found)}, the vocabulary has 0 "
                f"to {len(self.pieces) - 1}"
            )
        return found


class GGUFVocabulary(Vocabulary):
    """A vocabulary by GGUF's own keys.

    The names of special tokens are looked for first; then the texts between them are encoded.
    """

    def __init__(
        self, metadata: Mapping[str, Any], *, add_bos: bool, add_eos: bool = False
    ) -> None:
        super().__init__(metadata, add_bos=add_bos, add_eos=add_eos)
        for i, kind in enumerate(self.kinds):
            if kind == BYTE and not is_byte(self.pieces[i]):
                raise VocabularyError(
                    f"tokenizer.ggml.tokens: token {i} is of the type byte, and its text is "
                    f"{self.pieces[i]!r}, expected <0x00> to <0xFF>"
                )
        hidden = self._roles.hidden
        found = [i for i, x in enumerate(self.kinds) if x == USER_DEFINED or i in hidden]
        found = [i for i in found if self.ids[self.pieces[i]] == i]
        found.sort(key=lambda i: (-len(self.pieces[i].encode("utf-8", "replace")), i))
        #: Ids of the tokens that a text between special tokens can have, by their texts.
        self._plain = {piece: i for piece, i in self.ids.items() if i not in hidden}
        self._special = found  # the longest name first
        self._literals = [i for i in found if i not in hidden]  # those that are special in any text
        self._finder = re.compile("|".join(re.escape(self.pieces[i]) for i in found) or "(?!)")

    def special_token(self, text: str) -> int | None:
        """The control, unknown or user-defined token with this text; None if there is none."""
        found = self.ids.get(text)
        special = found is not None and (
            found in self._roles.hidden or self.kinds[found] == USER_DEFINED
        )
        return found if special else None

    def _ids_of(self, text: str, *, special: bool, literal: bool) -> list[int]:
        ids = [self.bos] if special and self.add_bos and self.bos is not None else []
        for part in self._parts(text, literal=literal):
            if isinstance(part, int):
                ids.append(part)
            else:
                ids += self._encode(part)
        return [*ids, self.eos] if special and self.add_eos and self.eos is not None else ids

    def _parts(self, text: str, *, literal: bool) -> list[str | int]:
        """Split a text at the names of special tokens: their ids, and the texts between them.

        The longest name is looked for first, in the whole text, and the others in what is left.
        """
        if not text:
            return []
        if self._finder.search(text) is None:
            return [text]
        parts: list[str | int] = [text]
        for token in self._literals if literal else self._special:
            name = self.pieces[token]
            if name in text:
                parts = [x for part in parts for x in self._split(part, token, name)]
        return parts

    def _control_parts(self, text: str) -> list[str | int]:
        return self._parts(text, literal=False)

    def _split(self, part: str | int, token: int, name: str) -> list[str | int]:
        """Split a text at the name of a token; a part that is a token already stays."""
        if isinstance(part, int):
            return [part]
        found: list[str | int] = []
        while (at := part.find(name)) >= 0:
            before, part = part[:at], part[at + len(name) :]
            if token in self._roles.strips_before:
                before = before.rstrip(BLANKS)
            if token in self._roles.strips_after:
                part = part.lstrip(BLANKS)
            found += [before, token] if before else [token]
        return [*found, part] if part else found

    def encode_pair(self, first: str, second: str) -> list[int]:
        """Tokens of two texts together: BOS, the first, EOS, the second, EOS."""
        begin = [] if self.bos is None else [self.bos]
        end = [] if self.eos is None else [self.eos]
        one, two = (
            self._ids_of(self._replace_surrogates(x), special=False, literal=False)
            for x in (first, second)
        )
        return [*begin, *one, *end, *two, *end]

    @abstractmethod
    def _encode(self, text: str) -> list[int]:
        """Tokens of a text that has no names of special tokens."""


def is_byte(piece: str) -> bool:
    """Whether a token's text names a single byte, as ``<0x0A>`` does."""
    return len(piece) == 6 and _BYTE.fullmatch(piece) is not None


class SentencePiece(GGUFVocabulary):
    """Joins neighbouring pieces, best score first; text without a token is encoded as bytes."""

    DEFAULT_IDS: ClassVar[Mapping[str, int]] = {"bos": 1, "eos": 2, "unknown": 0}

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        super().__init__(metadata, add_bos=True)
        scores = metadata.get("tokenizer.ggml.scores")
        self.scores: list[float] = (
            [0.0] * len(self.pieces) if scores is None else [float(x) for x in scores]
        )
        self.prefix: bool = bool(metadata.get("tokenizer.ggml.add_space_prefix", True))
        #: The token of each byte; a file without ``<0x41>`` may have "A"; None: there is neither.
        self.byte_tokens: list[int | None] = [
            self._plain.get(f"<0x{i:02X}>", self._plain.get(chr(i)) if i < 128 else None)
            for i in range(256)
        ]

    def _encode(self, text: str) -> list[int]:
        if self.prefix:
            text = " " + text
        parts: list[str] = list(text.replace(" ", SPACE))
        # The numbers of the parts beside each part, -1 at the ends. When two parts are joined, the
        # left one becomes both, and the right one empty.
        after = [*range(1, len(parts)), -1]
        before = list(range(-1, len(parts) - 1))
        queue: list[tuple[float, int, int, str]] = []

        def offer(left: int, right: int) -> None:
            joined = parts[left] + parts[right]
            token = self._plain.get(joined)
            if token is not None:
                heapq.heappush(queue, (-self.scores[token], left, right, joined))

        for left, right in itertools.pairwise(range(len(parts))):
            offer(left, right)
        while queue:
            _, left, right, joined = heapq.heappop(queue)
            if not parts[left] or not parts[right] or parts[left] + parts[right] != joined:
                continue  # one of the two was joined with another part in the meantime
            parts[left], parts[right] = joined, ""
            after[left] = next_ = after[right]
            if next_ >= 0:
                before[next_] = left
                offer(left, next_)
            if before[left] >= 0:
                offer(before[left], left)
        ids: list[int] = []
        for part in parts:
            token = self._plain.get(part) if part else None
            if token is not None:
                ids.append(token)
            elif part:
                ids += self._tokens_of_bytes(part)
        return ids

    def _tokens_of_bytes(self, part: str) -> list[int]:
        """Tokens of the bytes of a character that is no token itself.

        If a byte has no token, the character becomes the token for unknown text.

        Raises:
            VocabularyError: the vocabulary has no such token, either.
        """
        ids = [self.byte_tokens[byte] for byte in part.encode()]
        found = [x for x in ids if x is not None]
        if len(found) == len(ids):
            return found
        if self.unknown is None:
            raise VocabularyError(
                f"the vocabulary has no token for {part!r} or its bytes, and none for unknown text"
            )
        return [self.unknown]

    def bytes_of(self, token: int) -> bytes:
        """The byte of a token for a byte, else its text in UTF-8; none for a control token."""
        kind, piece = self.kinds[token], self.pieces[token]
        if kind in SILENT or token in self._roles.hidden:
            return b""
        if kind == BYTE:
            return bytes([int(piece[3:5], 16)])
        return utf8(piece if kind == USER_DEFINED else piece.replace(SPACE, " "))

    def decode(self, ids: Sequence[int]) -> str:
        """The text of tokens, without the space that `encode` put at its beginning."""
        text = super().decode(ids)
        return text.removeprefix(" ") if self.prefix else text


class ByteLevel(GGUFVocabulary):
    """BPE over bytes, after the text has been cut into pieces by the model's patterns (cuts.py)."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        pre = "gemma4" if metadata.get("tokenizer.ggml.model") == "gemma4" else None
        pre = pre or metadata.get("tokenizer.ggml.pre")
        if not pre:
            _log.warning(
                "[open_vocabulary] the file does not say how it cuts text into words "
                "(tokenizer.ggml.pre): 'default' is used, and the model may answer badly"
            )
            pre = "default"
        if pre not in CUTS:
            known = ", ".join(sorted(CUTS))
            raise VocabularyError(f"tokenizer.ggml.pre is {pre!r}, known are {known}")
        self._cut = CUTS[pre]
        super().__init__(metadata, add_bos=self._cut.add_bos)
        self.add_bos: bool = self.add_bos or self._cut.always_bos
        self._encoder = BytePairEncoder(metadata, self._plain, len(self.pieces), self._cut)
        self._bytes = bytes_of_letters()
        self._lowercase = bool(metadata.get("tokenizer.ggml.normalizer.lowercase", False))
        self._nfc = bool(metadata.get("tokenizer.ggml.normalizer.nfc", False))

    def _encode(self, text: str) -> list[int]:
        if self._nfc:
            text = unicodedata.normalize("NFC", text)
        if self._cut.words:
            if self._lowercase:  # one character for one: the capital I with a dot becomes i alone
                text = "".join(x.lower()[0] for x in text)
            words = _WHITE.split(text)
            return [x for word in words if word for x in self._encoder.ids_of(word)]
        if self._cut.bytes:
            return self._encoder.ids_of(text)
        text = text.replace(" ", SPACE)
        if not self._cut.lines:
            return self._encoder.ids_of(text)
        ids: list[int] = []
        for part in _LINES.split(text):
            whole = self._plain.get(part) if part.startswith("\n") else None
            ids += self._encoder.ids_of(part) if whole is None else [whole]
        return ids

    def bytes_of(self, token: int) -> bytes:
        """The bytes of a token, maybe part of a character; none for a control token."""
        kind, piece = self.kinds[token], self.pieces[token]
        if kind in SILENT or token in self._roles.hidden:
            return b""
        if kind == USER_DEFINED:
            return utf8(piece)
        if kind == BYTE:
            return bytes([int(piece[3:5], 16)])
        if not self._cut.bytes:
            return utf8(piece.replace(SPACE, " "))
        try:
            return bytes(map(self._bytes.__getitem__, piece))
        except KeyError:  # a letter that stands for no byte: the token's text is meant as it is
            return utf8(piece)


_LINES: Final = re.compile("(\n+)")
#: White space as Unicode defines it; Python's also has the four separators below the space.
_WHITE: Final = re.compile(r"[\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+")


def letters() -> list[str]:
    """The letter that stands for each byte in GPT-2's alphabet, by the byte."""
    return [letter for letter, _ in sorted(bytes_of_letters().items(), key=lambda x: x[1])]


def bytes_of_letters() -> dict[str, int]:
    """GPT-2's alphabet: the byte for which each letter stands.

    A printable byte has itself as its letter; the others have the letters from U+0100 on.
    """
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {chr(x): x for x in printable}
    others = (x for x in range(256) if x not in set(printable))
    return letters | {chr(256 + i): x for i, x in enumerate(others)}


def library() -> Any:  # noqa: ANN401 a module
    """The module `tokenizers`.

    Raises:
        VocabularyError: it is not installed.
    """
    try:
        import tokenizers
    except ImportError as error:
        raise VocabularyError(
            f"the tokenizers package is not installed; get it with: {install_command('models')}"
        ) from error
    return tokenizers


class BytePairEncoder:
    """Byte pair encoding: cuts a text into pieces, and joins parts of each by a list of merges.

    A merge may make a part for which the file has no token. Here such a part is a token, so that
    its neighbours stay apart. Then its bytes are looked up one by one, and left out if they are no
    tokens either.
    """

    def __init__(
        self, metadata: Mapping[str, Any], ids: Mapping[str, int], base: int, cut: Cut
    ) -> None:
        """Make it.

        Args:
            metadata: of the file, with its merges.
            ids: of the tokens that a text can have, by their texts.
            base: how many tokens the file has.
            cut: how a text is cut into pieces.
        """
        module = library()
        self._ids = ids
        self._cut = cut
        self._base = base
        merges: dict[tuple[str, str], None] = {}  # in order, each once: the first counts
        for merge in metadata["tokenizer.ggml.merges"]:
            at = merge.find(" ", 1)
            if 0 < at < len(merge) - 1:
                merges[merge[:at], merge[at + 1 :]] = None
        parts = (x for a, b in merges for x in (a, b, a + b))
        every = itertools.chain(letters() if cut.bytes else (), parts)
        self._without_token = [x for x in dict.fromkeys(every) if x not in ids]
        known = {**ids, **{part: base + i for i, part in enumerate(self._without_token)}}
        joined = list(merges)
        if not is_utf8(known):  # such tokens stand in no text, and the library refuses them
            known = {x: i for x, i in known.items() if is_utf8(x)}
            joined = [(a, b) for a, b in merges if a in known and b in known and a + b in known]
        model = module.models.BPE(
            vocab=known, merges=joined, ignore_merges=cut.whole, byte_fallback=not cut.bytes
        )
        self._tokenizer: Tokenizer = module.Tokenizer(model)
        self._tokenizer.pre_tokenizer = pre_tokenizer_of(module, cut)

    def ids_of(self, text: str) -> list[int]:
        """Token ids of a text."""
        ids: list[int] = list(self._tokenizer.encode(text).ids)
        if not self._without_token:
            return ids
        return [x for i in ids for x in ([i] if i < self._base else self._byte_tokens(i))]

    def _byte_tokens(self, token: int) -> list[int]:
        """Tokens of the bytes of a part that the file has no token for."""
        part = self._without_token[token - self._base]
        names = (chr(x) if self._cut.bytes else f"<0x{x:02X}>" for x in part.encode())
        return [self._ids[name] for name in names if name in self._ids and ord(name[0]) < 128]


def utf8(piece: str) -> bytes:
    """The bytes of a token's text; those that are no UTF-8 came as lone surrogates (PEP 383)."""
    return piece.encode("utf-8", "surrogateescape")


def is_utf8(texts: Iterable[str]) -> bool:
    """Whether texts can be encoded; bytes of a file that are no UTF-8 became lone surrogates."""
    try:
        "".join(texts).encode()
    except UnicodeEncodeError:
        return False
    return True


def pre_tokenizer_of(library: Any, cut: Cut) -> Any:  # noqa: ANN401 parts of the module tokenizers
    """The pre-tokenizer of the library `tokenizers` that makes these cuts."""
    of = library.pre_tokenizers
    steps: list[Any] = [of.Split(library.Regex(x), "isolated") for x in cut.patterns]
    if cut.bytes:
        steps.append(of.ByteLevel(add_prefix_space=False, use_regex=False))
    return of.Sequence(steps)
