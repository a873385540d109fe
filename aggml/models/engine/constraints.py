"""Which tokens a request may get next: grammars by llguidance, and the end of a model's thinking.

A `Constraint` follows one answer. When a token is known, a worker thread reads it into the grammar
and computes the mask of the next one, while the device computes the step after it (docs/engine.md).
So a step is not lengthened; and if a mask takes longer than the step, that request alone waits.
Here: compiling and keeping grammars, masks, thinking. Not here: the arguments (grammars.py),
choosing among allowed tokens (requests.py).
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from aggml import InvalidArgument
from aggml.models.engine.gbnf import GbnfError, lark_of
from aggml.models.engine.grammars import JSON_FORM, Grammar, ascii_classes, plain_schema
from aggml.models.engine.workers import workers
from aggml.models.errors import ModelError
from aggml.process.extras import install_command
from aggml.process.locks import new_lock
from aggml.stream.parker import Parker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy.typing as npt

    from aggml.models.tokenizers import Vocabulary

__all__ = ["Constraint", "Grammars", "Mask", "NamedTokens", "Thinking", "TokenTexts"]

KEPT: Final = 64  # compiled grammars


class Mask:
    """The tokens that may come next.

    Args:
        bits: a bit for each token, the lowest first; None: all of them.
        only: the only one.
        without: tokens that may not come, whatever ``bits`` says.
    """

    __slots__ = ("_bits", "only", "without")

    def __init__(
        self,
        bits: npt.NDArray[np.uint8] | None = None,
        *,
        only: int | None = None,
        without: Sequence[int] = (),
    ) -> None:
        self._bits = bits
        self.only: int | None = only
        self.without: Sequence[int] = without

    def allows(self, ids: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        """Which of these tokens may come."""
        if self.only is not None:
            return np.asarray(ids == self.only)
        if self._bits is None:
            found = np.ones(len(ids), bool)
        else:
            at = ids >> 3
            known = at < len(self._bits)
            bytes_ = self._bits[np.where(known, at, 0)]
            found = known & ((bytes_ >> (ids & 7).astype(np.uint8)) & 1).astype(bool)
        if len(self.without):
            found &= ~np.isin(ids, self.without)
        return found

    def apply(self, row: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Return the logits with -inf for tokens that may not come."""
        n = len(row)
        if self.only is not None:
            found = np.full(n, -np.inf, np.float32)
            # The logit may be -inf by a bias, or NaN: the token is not the model's choice.
            found[self.only] = row[self.only] if row[self.only] > -np.inf else 0.0
            return found
        if self._bits is None:
            found = row.copy()
        else:
            bits = np.unpackbits(self._bits, count=min(n, 8 * len(self._bits)), bitorder="little")
            allowed = np.zeros(n, bool)
            allowed[: len(bits)] = bits
            found = np.where(allowed, row, np.float32(-np.inf))
        found[list(self.without)] = -np.inf
        return found

    def narrow(self, bits: npt.NDArray[np.uint8], without: Sequence[int]) -> Mask:
        """Keep the tokens that ``bits`` has, too, but for some; a forced one stays."""
        if self.only is not None:
            return self
        if self._bits is not None:
            n = min(len(bits), len(self._bits))
            bits = bits[:n] & self._bits[:n]
        return Mask(bits, without=[*self.without, *without])


class TokenTexts:
    """Finds tokens by their bytes.

    Args:
        vocabulary: has the tokens.
        size: how many tokens the model has.
    """

    def __init__(self, vocabulary: Vocabulary, size: int) -> None:
        texts = [vocabulary.bytes_of(i) for i in range(min(size, len(vocabulary.pieces)))]
        self.size: int = size
        self._order = sorted(range(len(texts)), key=texts.__getitem__)
        self._sorted = [texts[i] for i in self._order]
        # No text has the byte 0xFF, so none is found across the border of two tokens.
        self._joined = b"\xff".join(texts)
        self._begins = np.cumsum([0, *(len(x) + 1 for x in texts[:-1])])

    def find_beginning(self, text: bytes) -> list[int]:
        """Find the tokens that begin with a text."""
        first = bisect_left(self._sorted, text)
        end = bisect_left(self._sorted, text + b"\xff", first)
        return self._order[first:end]

    def find_containing(self, text: bytes) -> set[int]:
        """Find the tokens in which a text occurs."""
        found, at = set(), self._joined.find(text)
        while at >= 0:
            found.add(int(np.searchsorted(self._begins, at, "right")) - 1)
            at = self._joined.find(text, at + 1)
        return found


class NamedTokens:
    """The tokens that an answer may have, if some are allowed or some words are not.

    Args:
        texts: of the tokens.
        bytes_of: the bytes of a token.
        allowed: the tokens that it may have; None: all.
        bad_words: texts that it may not have.
    """

    def __init__(
        self,
        texts: TokenTexts,
        bytes_of: Callable[[int], bytes],
        allowed: frozenset[int] | None,
        bad_words: Sequence[str],
    ) -> None:
        flags = np.full(texts.size, allowed is None)
        if allowed is not None:
            flags[list(allowed)] = True
        self._words = [x.encode() for x in bad_words]
        for word in self._words:
            flags[list(texts.find_containing(word))] = False
        self._bits = np.packbits(flags, bitorder="little")
        self._texts = texts
        self._bytes_of = bytes_of
        self._longest = max(map(len, self._words), default=1) - 1
        self._tail = b""

    def take(self, token: int) -> None:
        """Note a token of the answer."""
        if self._longest:
            self._tail = (self._tail + self._bytes_of(token))[-self._longest :]

    def narrow(self, mask: Mask | None) -> Mask:
        """Return a mask of those of its tokens that may come next."""
        rests = {
            word[n:] for word in self._words
            for n in range(1, min(len(word), len(self._tail) + 1))
            if self._tail.endswith(word[:n])
        }  # fmt: skip
        without = [x for rest in rests for x in self._texts.find_beginning(rest)]
        return (Mask() if mask is None else mask).narrow(self._bits, without)


@dataclass(frozen=True, slots=True)
class Thinking:
    """How an answer shows that the model thinks.

    Attributes:
        opener, closer: the texts around its thoughts.
        is_open: the prompt ends within them.
        budget: tokens after which ``closing`` is forced; None: never.
        closing: the tokens that end the thoughts.
        opening: the only token of ``opener``; None: it takes several.
    """

    opener: bytes
    closer: bytes
    is_open: bool
    budget: int | None
    closing: tuple[int, ...]
    opening: int | None


class Constraint:
    """Which tokens one answer may have; made by `Grammars.constrain`.

    Attributes:
        ready: whether the mask of the next token is known.
        mask: that mask; None: any token.
        stopped: the answer is complete, and nothing can follow.
        error: why the grammar cannot go on; None: it can.
    """

    def __init__(
        self,
        matcher: Any,  # noqa: ANN401 an LLMatcher
        ends: frozenset[int],
        own_ends: Sequence[int],
        bytes_of: Callable[[int], bytes],
        thinking: Thinking | None,
        vocabulary: int,
        named: NamedTokens | None = None,
    ) -> None:
        self._matcher = matcher
        self._named = named
        self._ends = ends
        self._own_ends = own_ends  # those of the tokenizer, which masks allow where a text may end
        self._bytes_of = bytes_of
        self._thinking = thinking
        self._size = vocabulary
        self._thinks: bool | None = None if thinking is not None else False  # None: not known yet
        self._tail = b""
        self._left = None if thinking is None else thinking.budget
        self._forced: deque[int] = deque()
        self._wake: Callable[[], object] = _nobody
        self.ready: bool = False
        self.mask: Mask | None = None
        self.stopped: bool = False
        self.error: str | None = None
        if thinking is not None and thinking.is_open:
            self._thinks = True

    @property
    def is_idle(self) -> bool:
        """Whether all tokens that are still to come are free."""
        free = self._matcher is None and self._thinks is False and self._named is None
        return self.ready and free

    def begin(self, wake: Callable[[], object], tokens: Sequence[int] = ()) -> None:
        """Have the first mask computed.

        Args:
            wake: is called, in any thread, when a mask has become known.
            tokens: of the answer, made before.
        """
        self._wake = wake
        self._start(tokens)

    def take(self, token: int) -> None:
        """Note the next token of the answer; the mask after it is not known at once."""
        if self.is_idle:
            return
        self._start((token,))

    def _start(self, tokens: Sequence[int]) -> None:
        self.ready = False
        workers.submit(lambda: self._advance(tokens))

    async def wait_for_mask(self) -> None:
        """Wait until the mask is known."""
        while not self.ready:
            parker = Parker()
            wake, self._wake = self._wake, parker.unpark
            try:
                if not self.ready:
                    await parker.park()
            finally:
                self._wake = wake

    def _advance(self, tokens: Sequence[int]) -> None:
        """In a worker: read tokens, and compute the mask of the next one."""
        try:
            for token in tokens:
                self._read(token)
            self.mask = None if self.stopped or self.error else self._next_mask()
        except Exception as error:  # of any class: it is this request's alone
            self.error = f"{type(error).__name__}: {error}"
        self.ready = True
        self._wake()

    def _read(self, token: int) -> None:
        if self._named is not None:
            self._named.take(token)
        if self._forced and token == self._forced[0]:
            self._forced.popleft()
        if self._thinks is not False:
            rest = self._read_thought(token)
            if rest is not None:  # the answer begins within this token
                self._feed_bytes(rest)
            return
        self._feed([token])

    def _read_thought(self, token: int) -> bytes | None:
        """Read a token of thoughts, or of what may begin them; the bytes after them, if any.

        None: the answer has not begun, or begins with the next token.
        """
        about = self._thinking
        assert about is not None
        self._tail += self._bytes_of(token)
        if self._thinks is None:
            begun = self._tail.lstrip()
            if not begun and self._matcher is None:
                return None
            if begun.startswith(about.opener):
                self._thinks = True
                self._tail = begun[len(about.opener) :]
            elif about.opener.startswith(begun) and self._matcher is None:
                return None
            else:  # of an opener that takes several tokens the grammar allows none
                self._thinks = False
                return self._tail if self._matcher is not None else None
        if self._left is not None:
            self._left -= 1
        at = self._tail.find(about.closer)
        if at < 0:
            self._tail = self._tail[-len(about.closer) :]
            return None
        self._thinks = False
        self._forced.clear()
        return self._tail[at + len(about.closer) :].lstrip() or None

    def _feed_bytes(self, rest: bytes) -> None:
        if self._matcher is not None:
            self._feed(self._matcher_tokens(rest))

    def _matcher_tokens(self, rest: bytes) -> list[int]:
        return list(self._greedy(rest))

    _greedy: Callable[[bytes], Sequence[int]] = staticmethod(lambda rest: list(rest))

    def _feed(self, tokens: list[int]) -> None:
        matcher = self._matcher
        if matcher is None:
            return
        if not matcher.consume_tokens(tokens):
            self.error = _first_line(matcher.get_error())
        elif matcher.is_stopped():
            self.stopped = matcher.is_accepting()
            if not self.stopped:
                self.error = _first_line(matcher.get_error() or str(matcher.stop_reason()))

    def _next_mask(self) -> Mask | None:
        thinks = self._thinks is not False
        found = self._mask_of_thoughts() if thinks else self._mask_of_grammar()
        if self._named is None or self.stopped or self.error:
            return found
        return self._named.narrow(found)

    def _mask_of_thoughts(self) -> Mask | None:
        about = self._thinking
        assert about is not None
        if self._thinks and self._left is not None and self._left <= 0 and not self._forced:
            self._forced.extend(about.closing)
        if self._forced:
            return Mask(only=self._forced[0])
        ends = sorted(self._ends)
        if self._thinks:
            # Without a grammar the model may end its answer when it likes.
            return Mask(without=ends) if self._matcher is not None else None
        if self._matcher is None:
            return None
        bits = self._grammar_bits()
        if bits is not None and about.opening is not None and not self._tail:
            bits[about.opening >> 3] |= 1 << (about.opening & 7)
        return Mask(bits)

    def _mask_of_grammar(self) -> Mask | None:
        if self._matcher is None:
            return None
        bits = self._grammar_bits()
        return None if bits is None else Mask(bits)

    def _grammar_bits(self) -> npt.NDArray[np.uint8] | None:
        matcher = self._matcher
        found = np.frombuffer(matcher.compute_bitmask(), np.uint8).copy()
        if matcher.is_error():
            self.error = _first_line(matcher.get_error())
            return None
        for token in self._own_ends:
            found[token >> 3] &= 0xFF ^ (1 << (token & 7))
        if matcher.is_accepting():
            for token in self._ends:
                found[token >> 3] |= 1 << (token & 7)
            if not found.any():
                self.stopped = True
        return found


def _nobody() -> None:
    return None


class Grammars:
    """The grammars of a model: compiled once, and kept.

    Args:
        vocabulary: of the model.
        size: how many tokens the model has; the vocabulary may have fewer.
    """

    def __init__(self, vocabulary: Vocabulary, size: int) -> None:
        self._vocabulary = vocabulary
        self._size = size
        self._own_ends = sorted(x for x in vocabulary.ends if x < size) or [
            min(x for x in (vocabulary.eos, size - 1) if x is not None)
        ]
        self._lock = new_lock()
        self._tokenizer: Any = None
        self._texts: TokenTexts | None = None
        self._kept: OrderedDict[Grammar, Any] = OrderedDict()

    def check(self, place: str) -> None:
        """Check that the model's answers can be restricted.

        Raises:
            ModelError: the package llguidance is missing; tokens have no bytes of their own.
        """
        _library(place)
        if self._vocabulary.is_wordwise:
            raise ModelError(
                f"[{place}] the answers of this model cannot be restricted: its tokenizer cuts "
                "texts into words, and its tokens have no bytes of their own"
            )

    def compile(self, place: str, name: str, grammar: Grammar) -> None:
        """Compile a grammar, unless it is kept; takes up to some seconds.

        Raises:
            InvalidArgument: it cannot be served, with the reason.
            ModelError: as `check`.
        """
        self._matcher(place, name, grammar)

    def constrain(
        self,
        place: str,
        name: str,
        grammar: Grammar | None,
        ends: frozenset[int],
        thinking: Thinking | None = None,
        bytes_of: Callable[[int], bytes] | None = None,
        named: NamedTokens | None = None,
    ) -> Constraint:
        """The constraint of an answer; may take some seconds, if the grammar is new.

        Args:
            place: the call, for errors.
            name: of the argument, for errors.
            grammar: what the answer matches; None: anything.
            ends: the tokens that end it.
            thinking: how it shows that the model thinks before; None: it does not.
            bytes_of: the bytes of a token in which thoughts are looked for.
            named: the tokens to which it is restricted beside that; None: to none.

        Raises:
            InvalidArgument, ModelError: as `compile`.
        """
        matcher = None if grammar is None else self._matcher(place, name, grammar).deep_copy()
        found = Constraint(
            matcher, ends, self._own_ends, bytes_of or self._vocabulary.bytes_of, thinking,
            self._size, named,
        )  # fmt: skip
        if matcher is not None:
            found._greedy = lambda rest: self._tokenizer.greedy_tokenize(
                rest.decode("utf-8", "replace")
            )
        return found

    def named_tokens(self, allowed: frozenset[int] | None, bad_words: Sequence[str]) -> NamedTokens:
        """Return the restriction of an answer to some tokens, without some words.

        Args:
            allowed: the tokens; None: all.
            bad_words: the words.
        """
        with self._lock:
            if self._texts is None:
                self._texts = TokenTexts(self._vocabulary, self._size)
            texts = self._texts
        return NamedTokens(texts, self._vocabulary.bytes_of, allowed, bad_words)

    def _matcher(self, place: str, name: str, grammar: Grammar) -> Any:  # noqa: ANN401
        module = _library(place)
        with self._lock:
            found = self._kept.get(grammar)
            if found is not None:
                self._kept.move_to_end(grammar)
                return found
        self.check(place)
        tokenizer = self._trie(module)
        found, why = _compile(module, tokenizer, grammar)
        if why:
            where = ""
            if grammar.kind == "schema" and len(grammar.text) <= _LONGEST_TRIED:

                def why_not(schema: Any) -> str:  # noqa: ANN401 JSON
                    return _compile(module, tokenizer, Grammar("schema", json.dumps(schema)))[1]

                where = _place_at_fault(json.loads(grammar.text), why_not)
            raise InvalidArgument(f"[{place}] {name}{where} cannot be served: {why}")
        with self._lock:
            self._kept[grammar] = found
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return found

    def _trie(self, module: Any) -> Any:  # noqa: ANN401 a module
        """The tokens in the form of llguidance: made once, in up to a second."""
        with self._lock:
            if self._tokenizer is None:
                wrapped = module.TokenizerWrapper(_Tokens(self._vocabulary, self._own_ends))
                self._tokenizer = module.LLTokenizer(
                    wrapped, n_vocab=self._size, eos_token=list(self._own_ends),
                    slices=module.LLTokenizer.general_slices(),
                )  # fmt: skip
            return self._tokenizer


class _Tokens:
    """The tokens of a vocabulary, as llguidance wants them."""

    def __init__(self, vocabulary: Vocabulary, ends: Sequence[int]) -> None:
        hidden = b"\xff"  # by this first byte llguidance knows tokens that are no text
        self.tokens = [
            vocabulary.bytes_of(i) or hidden + f"<{i}>".encode()
            for i in range(len(vocabulary.pieces))
        ]
        self.special_token_ids = [i for i, x in enumerate(self.tokens) if x[:1] == hidden]
        for i in ends:  # an end that has a text is no part of it
            if i < len(self.tokens) and self.tokens[i][:1] != hidden:
                self.tokens[i] = hidden + self.tokens[i]
                self.special_token_ids.append(i)
        self.eos_token_id = ends[0]
        self.bos_token_id = None
        self._encode = vocabulary.encode
        self._by_bytes = {x: i for i, x in reversed(list(enumerate(self.tokens)))}
        self._longest = max((len(x) for x in self.tokens), default=1)

    def __call__(self, text: bytes | str) -> list[int]:
        """Tokens with exactly these bytes: where a grammar leaves no choice, they are taken."""
        data = text.encode() if isinstance(text, str) else text
        try:
            ids = self._encode(data.decode(), special=False, literal=True)
            found = b"".join(self.tokens[x] for x in ids)
            if found == data:
                return list(ids)
            if found == b" " + data and self.tokens[ids[0]] == b" ":  # the space before a text
                return list(ids[1:])
        except (UnicodeDecodeError, ModelError):
            pass
        return self._greedy(data)

    def _greedy(self, data: bytes) -> list[int]:
        """The longest tokens from left to right."""
        ids: list[int] = []
        at = 0
        while at < len(data):
            for n in range(min(self._longest, len(data) - at), 0, -1):
                token = self._by_bytes.get(data[at : at + n])
                if token is not None:
                    ids.append(token)
                    at += n
                    break
            else:
                break  # no token has this byte
        return ids


def _library(place: str) -> Any:  # noqa: ANN401 a module
    try:
        import llguidance
    except ImportError as error:
        raise ModelError(
            f"[{place}] schemas and grammars need llguidance; get it with: "
            f"{install_command('answers')}"
        ) from error
    return llguidance


def _compile(module: Any, tokenizer: Any, grammar: Grammar) -> tuple[Any, str]:  # noqa: ANN401
    """The LLMatcher of a grammar, and why it cannot be served; empty: it can."""
    try:
        text = _source(module, grammar)
    except (ValueError, GbnfError) as error:
        return None, _first_line(str(error))
    found = module.LLMatcher(tokenizer, text, log_level=0)
    if found.is_error():
        return found, _first_line(found.get_error())
    # A grammar without a finite sentence compiles, too, and shows it at the first token.
    begun = found.deep_copy()
    begun.compute_bitmask()
    if begun.is_error() or (begun.is_stopped() and not begun.is_accepting()):
        reason = _first_line(begun.get_error() or str(begun.stop_reason()))
        return found, f"no answer can begin ({reason})"
    return found, ""


def _source(module: Any, grammar: Grammar) -> str:  # noqa: ANN401 a module
    """A grammar in the form of llguidance."""
    matcher = module.LLMatcher
    if grammar.kind == "schema":
        schema = json.loads(grammar.text)
        schema = {} if schema is True else plain_schema(schema)
        return str(matcher.grammar_from_json_schema(schema, overrides=JSON_FORM))
    if grammar.kind == "regex":
        return str(matcher.grammar_from_regex(ascii_classes(grammar.text)))
    if grammar.kind == "choices":
        texts = sorted(set(json.loads(grammar.text)))
        # As one terminal, which is an automaton; llguidance follows at most 2,000 rules at a time.
        lark = "start: CHOICE\nCHOICE: " + " | ".join(map(_quote, texts))
        return str(matcher.grammar_from_lark(lark))
    text = grammar.text if grammar.kind == "lark" else lark_of(grammar.text)
    return str(matcher.grammar_from_lark(text))


def _quote(text: str) -> str:
    """A text as a literal of Lark."""
    return json.dumps(text, ensure_ascii=False)


def _first_line(message: str) -> str:
    """The beginning of a message of llguidance, which may be a page."""
    lines = [x.strip() for x in message.split("<state>")[0].splitlines() if x.strip()]
    text = " ".join(lines)
    return text if len(text) <= 400 else text[:400] + " ..."


#: Keywords that are named as the fault only if no other one is, the likeliest first.
_STRUCTURE: Final = ("properties", "items", "required", "type")
_TRIED: Final = 64  # parts of a schema in which the fault is looked for
_LONGEST_TRIED: Final = 1 << 14  # characters of a schema in which it is looked for


def _place_at_fault(schema: Any, why_not: Callable[[Any], str]) -> str:  # noqa: ANN401 JSON
    """Where the keyword stands that cannot be served, as ``.properties.a.pattern``; or empty.

    Messages of llguidance do not tell the place. It is the deepest part that is refused by itself,
    and the keyword there without which it is not refused for the same reason.

    Args:
        schema: that cannot be served.
        why_not: tells why a schema cannot be served; empty: it can.
    """
    if not isinstance(schema, Mapping):
        return ""
    shared = {x: schema[x] for x in ("$defs", "definitions") if x in schema}
    where, part = "", schema
    for place, inner in islice(_parts(schema, ""), 1, _TRIED):
        within = place.startswith((f"{where}.", f"{where}["))
        if within and "$ref" not in inner and why_not({**shared, **inner}):
            where, part = place, inner
    why = why_not({**shared, **part})
    rank = {x: i for i, x in enumerate(_STRUCTURE, 1)}
    for key in sorted(part, key=lambda x: (rank.get(x, 0), x not in why))[:_TRIED]:
        rest = {**shared, **{k: v for k, v in part.items() if k != key}}
        if key not in shared and why_not(rest) != why:
            return f"{where}.{key}"
    return where


def _parts(schema: Any, where: str) -> Iterator[tuple[str, Mapping[str, Any]]]:  # noqa: ANN401
    """A schema and the schemas in it, each with its place."""
    if not isinstance(schema, Mapping):
        return
    yield where, schema
    for key, value in schema.items():
        if key in ("enum", "const", "default", "examples"):
            continue
        if key in ("properties", "patternProperties", "$defs", "definitions"):
            if isinstance(value, Mapping):
                for name, one in value.items():
                    yield from _parts(one, f"{where}.{key}.{name}")
        elif isinstance(value, Mapping):
            yield from _parts(value, f"{where}.{key}")
        elif isinstance(value, list):
            for i, one in enumerate(value):
                yield from _parts(one, f"{where}.{key}[{i}]")
