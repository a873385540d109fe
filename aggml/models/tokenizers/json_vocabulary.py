"""JsonVocabulary: the vocabulary of a tokenizer.json, as the library `tokenizers` applies it.

Here: texts to tokens and back, token for token as that library does it. Not here: the settings that
such a file may have (settings.py), vocabularies by GGUF's own keys (vocabulary.py, pieces.py,
longest.py).
"""

from __future__ import annotations

import functools
import json
from typing import TYPE_CHECKING, Any, Final

from aggml.models.tokenizers.roles import BYTE, NORMAL, special_id
from aggml.models.tokenizers.settings import check_settings, parts_of, type_of_model
from aggml.models.tokenizers.vocabulary import (
    Vocabulary,
    VocabularyError,
    bytes_of_letters,
    is_byte,
    library,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["JSON_KEY", "JsonVocabulary", "call_library", "check_type", "open_tokenizer"]

#: GGUF's key for the text of a tokenizer.json.
JSON_KEY: Final = "tokenizer.huggingface.json"
NAME: Final = "tokenizer.json"


def call_library(call: Callable[..., Any], what: str, *values: object) -> Any:  # noqa: ANN401
    """Call the library `tokenizers` with these values.

    Its errors are plain exceptions. A panic of its Rust code is a BaseException, no Exception.

    Raises:
        VocabularyError: for any error of the library.
    """
    try:
        return call(*values)
    except BaseException as error:
        if isinstance(error, Exception) or type(error).__name__ == "PanicException":
            raise VocabularyError(f"{what}: {error}") from error
        raise


def open_tokenizer(text: str, name: str = NAME) -> Any:  # noqa: ANN401 a tokenizers.Tokenizer
    """The library's tokenizer for the text of a tokenizer.json.

    It neither truncates nor pads texts, whatever the file says.

    Raises:
        VocabularyError: the library is not installed.
        ModelError: a setting is not in settings.py, or the library refuses the file.
    """
    module = library()
    try:
        told = json.loads(text)
    except ValueError as error:
        raise VocabularyError(f"{name} is no JSON: {error}") from error
    if not isinstance(told, dict):
        raise VocabularyError(f"{name} is no JSON object")
    check_settings(told, name)
    try:
        found = call_library(module.Tokenizer.from_str, "tokenizers", text)
    except VocabularyError as error:
        part = _find_fault(told, module)
        raise VocabularyError(f"{name}: {part} is refused by {error}") from error
    check_type(told, found, name)
    _check_normalized(found, name)
    found.no_padding()
    found.no_truncation()
    return found


def _check_normalized(tokenizer: Any, name: str) -> None:  # noqa: ANN401
    """Check that no two added tokens become the same text.

    Of two such tokens the library takes either, in one process this one, in another that one.

    Raises:
        VocabularyError: two become the same text.
    """
    if tokenizer.normalizer is None:
        return
    seen: dict[str, str] = {}
    for token in tokenizer.get_added_tokens_decoder().values():
        if not token.normalized:
            continue
        text = call_library(
            tokenizer.normalizer.normalize_str,
            f"{name}: added_tokens: {token.content!r} cannot be normalized",
            token.content,
        )
        if text in seen:
            raise VocabularyError(
                f"{name}: added_tokens: {seen[text]!r} and {token.content!r} are normalized, and "
                f"become the same text, {text!r}"
            )
        seen[text] = token.content


def _find_fault(told: Mapping[str, Any], module: Any) -> str:  # noqa: ANN401 a module
    """The part of a file for which the library refuses it: without this part it is read.

    It is the model if the file is refused without any other part, too.
    """
    for part in told:
        if part not in ("version", "model") and told[part] is not None:
            without = json.dumps({**told, part: [] if part == "added_tokens" else None})
            try:
                call_library(module.Tokenizer.from_str, part, without)
            except VocabularyError:
                continue
            return part
    return "model"


def check_type(told: Mapping[str, Any], tokenizer: Any, name: str) -> None:  # noqa: ANN401
    """Check that the library took the model for the type that its settings fit.

    A file need not name the type; then the library guesses it.

    Raises:
        VocabularyError: it took the model for another type.
    """
    wanted, found = type_of_model(told["model"]), type(tokenizer.model).__name__
    if wanted != found:
        raise VocabularyError(
            f"{name}: the model has no type; its settings are those of {wanted}, but tokenizers "
            f'takes it for {found}: add "type"'
        )


class JsonVocabulary(Vocabulary):
    """The tokens that the library `tokenizers` gives for a tokenizer.json.

    Args:
        metadata: the file's text under `JSON_KEY`; GGUF's keys for tokens, their types, and the
            tokens that begin and end a text.
    """

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self._text = str(metadata[JSON_KEY])
        self._tokenizer = open_tokenizer(self._text)
        # A folder that lists several tokens as ends, so that "eot" is given, lists all of them.
        super().__init__(metadata, add_bos=False, by_text=special_id(metadata, "eot") is None)
        texts = {i: piece for piece, i in self._tokenizer.get_vocab(with_added_tokens=True).items()}
        self.pieces: Sequence[str] = [texts.get(i, piece) for i, piece in enumerate(self.pieces)]
        self.ids: dict[Any, Any] = {piece: i for i, piece in texts.items()}
        added = self._tokenizer.get_added_tokens_decoder()
        self._added = {token.content: i for i, token in added.items()}
        # The library leaves out of a text the tokens whose text is that of a special token. It does
        # not leave out a special token whose text its normalizer has changed, so texts decide.
        special = {token.content for token in added.values() if token.special}
        self._hidden = {i for i in added if self._tokenizer.id_to_token(i) in special}
        steps = [x["type"] for x in parts_of(json.loads(self._text).get("decoder"))]
        self._is_byte_level = steps == ["ByteLevel"]
        self._has_byte_fallback = "ByteFallback" in steps
        self.is_wordwise: bool = type(self._tokenizer.model).__name__ in ("WordPiece", "WordLevel")
        self._letters = bytes_of_letters()
        self._bytes_by_token: dict[int, bytes] = {}
        #: An ordinary token, behind which `_bytes_of` decodes others: many decoders treat the token
        #: at the beginning of a text differently. None: there is none.
        self._ordinary = next(
            (i for i in range(len(self.pieces)) if i in texts and i not in self._hidden
             and self.kinds[i] == NORMAL and not is_byte(texts[i])), None
        )  # fmt: skip

    @functools.cached_property
    def _literal(self) -> Any:  # noqa: ANN401 a tokenizers.Tokenizer
        """A second tokenizer, which takes names of special tokens as text.

        The library has a setting for that which counts for all calls of a tokenizer.
        """
        found = open_tokenizer(self._text)
        found.encode_special_tokens = True
        return found

    def _ids_of(self, text: str, *, special: bool, literal: bool) -> list[int]:
        own = self._literal if literal else self._tokenizer
        what = f"tokens of {text[:40]!r}"
        ids: list[int] = call_library(own.encode, what, text, None, False, special).ids
        return ids

    def _control_names(self) -> set[str]:
        return {x for x in self._added if self._added[x] in self._hidden}

    def encode_pair(self, first: str, second: str) -> list[int]:
        """Tokens of two texts together, as the file's post-processor joins them."""
        first, second = self._replace_surrogates(first), self._replace_surrogates(second)
        what = f"tokens of {first[:40]!r} and {second[:40]!r}"
        return list(call_library(lambda: self._tokenizer.encode(first, second), what).ids)

    @property
    def pair_separator(self) -> int | None:
        """The token before the first token of type 1; None: the post-processor gives all type 0."""
        pair = call_library(lambda: self._tokenizer.encode("a", "b"), "tokens of a pair")
        at = next((i for i, kind in enumerate(pair.type_ids) if kind == 1), 0)
        return pair.ids[at - 1] if at else None

    def special_token(self, text: str) -> int | None:
        """The special or added token with this text; None if there is none."""
        return self._added.get(text)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of tokens without the special ones, as the file's decoder makes it."""
        known = [self._index(x) for x in ids]
        if self._hidden.issuperset(known):  # some of the library's decoders panic without tokens
            return ""
        return str(call_library(lambda: self._tokenizer.decode(known), "the text of tokens"))

    def bytes_of(self, token: int) -> bytes:
        """The bytes for which a token stands in the middle of a text; none for a special token."""
        found = self._bytes_by_token.get(token)
        if found is None:
            found = self._bytes_by_token[token] = self._bytes_of(self._index(token))
        return found

    def _bytes_of(self, token: int) -> bytes:
        piece = self._tokenizer.id_to_token(token)
        if piece is None or token in self._hidden:
            return b""
        if self._is_byte_level:
            letters = [self._letters.get(x) for x in piece]
            whole = bytes(x for x in letters if x is not None)
            return whole if len(whole) == len(letters) else piece.encode()
        if self._has_byte_fallback and (self.kinds[token] == BYTE or is_byte(piece)):
            return bytes([int(piece[3:5], 16)])
        try:
            if self._ordinary is None:
                return self.decode([token]).encode()
            before = self.decode([self._ordinary])
            return self.decode([self._ordinary, token]).removeprefix(before).encode()
        except VocabularyError:  # a decoder panics if the one before it leaves no text
            return b""
