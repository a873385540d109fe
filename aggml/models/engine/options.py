"""Options of a request for text: checked by name at the call, and turned into a `TextRequest`.

Here: the arguments that `generate` and `chat` share. Not here: what the engine does with them
(engine.py, requests.py), stop texts while tokens arrive (text.py).
"""
# ruff: noqa: ANN401 - arguments are whatever was given until they are checked

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from aggml import InvalidArgument
from aggml.models.adapters.stacks import NO_ADAPTER, AdapterChoice
from aggml.models.arguments import (
    flag,
    integer,
    number,
    show,
    stop_ids_of,
    text_list,
    token_ids,
    urgency_of,
)
from aggml.models.decoder.adjusting import Adjuster, Rules
from aggml.models.decoder.chain import BREAKERS, STEPS, Chain, ChainDraw
from aggml.models.decoder.sampling import Sampler
from aggml.models.engine.grammars import Grammar, grammar_of
from aggml.models.engine.requests import TextRequest, caller

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

__all__ = ["LOGPROBS", "RequestOptions", "options_of"]

LOGPROBS: Final = 64  # the most tokens that are named with their probabilities
STOPS: Final = 64  # the most stop texts
LONGEST_STOP: Final = 1000  # characters
BAD_WORDS: Final = 1024  # the most words that an answer may not have
GREATEST: Final = 1e30  # of a penalty or a bias; a million of them still fit into a float32
BREAKING: Final = 64  # the most texts that no repetition reaches over


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """The arguments of `TextModel.generate` but for the prompt, checked."""

    max_tokens: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int | None
    stop: tuple[str, ...]
    ends: frozenset[int]
    rules: Rules
    logprobs: int | None
    min_tokens: int
    priority: int
    deadline: float | None  # as `time.monotonic`
    chain: Chain | None  # None: the device draws with the five numbers above
    grammar: Grammar | None
    allowed: frozenset[int] | None = None  # the tokens that an answer may have
    bad_words: tuple[str, ...] = ()
    include_stop: bool = False
    truncate_prompt: int | None = None
    prompt_logprobs: int | None = None
    adapter: AdapterChoice = NO_ADAPTER
    progress: Callable[[int, int], object] | None = None

    @property
    def names_tokens(self) -> bool:
        """Whether some tokens are allowed, or some words are not."""
        return self.allowed is not None or bool(self.bad_words)

    def request(
        self,
        prompt: Sequence[int],
        before: Sequence[int],
        max_tokens: int,
        bytes_of: Callable[[int], bytes],
    ) -> TextRequest:
        """The request to continue a prompt.

        Args:
            prompt: its token ids.
            before: tokens of the answer that were made elsewhere.
            max_tokens: the most tokens that are still to be made.
            bytes_of: the bytes of a token.
        """
        said = [x for x in prompt if x >= 0]  # those below 0 stand for pictures
        adjuster = Adjuster(self.rules, said, self.ends) if self.rules else None
        if adjuster is not None:
            for token in before:
                adjuster.take(token)
        chain = None if self.chain is None else ChainDraw(self.chain, bytes_of)
        sampler = Sampler(self.temperature, self.top_k, self.top_p, self.seed, self.min_p, chain)
        return TextRequest(
            [*prompt, *before], max_tokens, sampler, self.ends, adjuster, self.logprobs,
            priority=self.priority, deadline=self.deadline, caller=caller.get(), drawn=len(before),
            adapter=self.adapter, progress=self.progress,
        )  # fmt: skip


def options_of(
    place: str,
    vocabulary: int,
    ends: frozenset[int],
    suppressed: Iterable[int] = (),
    **options: Any,
) -> RequestOptions:
    """The options, each checked.

    Args:
        place: the call, for messages.
        vocabulary: how many tokens there are.
        ends: the tokens that end a text by the model's file.
        suppressed: the tokens that are never chosen by the model's file.
        options: as given to the call; see `TextModel.generate`.

    Raises:
        InvalidArgument: one of them has another type or is out of its range.
    """
    given = options
    named = ends if given["stop_ids"] is None else stop_ids_of(place, given["stop_ids"], vocabulary)
    if flag(place, "ignore_eos", given["ignore_eos"]):
        named = frozenset() if given["stop_ids"] is None else named - ends
    least = integer(place, "min_tokens", given["min_tokens"], 0)
    most = integer(place, "max_tokens", given["max_tokens"], 0)
    rules = Rules(
        presence=_in_f32(place, "presence_penalty", given["presence_penalty"]),
        frequency=_in_f32(place, "frequency_penalty", given["frequency_penalty"]),
        repetition=_in_f32(place, "repetition_penalty", given["repetition_penalty"], 0, above=True),
        bias=_biases(place, given["logit_bias"], vocabulary) | dict.fromkeys(suppressed, -math.inf),
        least=least,
    )
    priority, seconds = urgency_of(place, given["priority"], given["deadline"])
    return RequestOptions(
        max_tokens=most,
        temperature=number(place, "temperature", given["temperature"], 0),
        top_k=integer(place, "top_k", given["top_k"], 0),
        top_p=number(place, "top_p", given["top_p"], 0, 1, above=True),
        min_p=number(place, "min_p", given["min_p"], 0, 1),
        seed=None if given["seed"] is None else integer(place, "seed", given["seed"], 0),
        stop=_stops(place, given["stop"]),
        ends=named,
        rules=rules,
        logprobs=None if given["logprobs"] is None else integer(
            place, "logprobs", given["logprobs"], 0, min(LOGPROBS, vocabulary)
        ),
        min_tokens=least,
        priority=priority,
        deadline=None if seconds is None else time.monotonic() + seconds,
        chain=_chain_of(place, given),
        grammar=_grammar_of(place, given),
        allowed=_check_allowed(place, given["allowed_ids"], vocabulary),
        bad_words=_bad_words_of(place, given["bad_words"]),
        include_stop=flag(place, "include_stop", given["include_stop"]),
        truncate_prompt=None if given["truncate_prompt"] is None else integer(
            place, "truncate_prompt", given["truncate_prompt"], 1
        ),
        prompt_logprobs=None if given["prompt_logprobs"] is None else integer(
            place, "prompt_logprobs", given["prompt_logprobs"], 0, min(LOGPROBS, vocabulary)
        ),
    )  # fmt: skip


def _check_allowed(place: str, given: Any, vocabulary: int) -> frozenset[int] | None:
    """The tokens that an answer may have; None: all."""
    if given is None:
        return None
    found = frozenset(token_ids(place, "allowed_ids", given, vocabulary))
    if not found:
        raise InvalidArgument(f"[{place}] allowed_ids is empty, expected at least one token")
    return found


def _bad_words_of(place: str, given: Any) -> tuple[str, ...]:
    """Words that an answer may not have."""
    if given is None:
        return ()
    found = tuple(text_list(place, "bad_words", given))
    if len(found) > BAD_WORDS:
        raise InvalidArgument(
            f"[{place}] bad_words has {len(found)} words, at most {BAD_WORDS} are allowed"
        )
    for i, word in enumerate(found):
        if not 0 < len(word) <= LONGEST_STOP:
            raise InvalidArgument(
                f"[{place}] bad_words[{i}] has {len(word)} characters, must have 1 to "
                f"{LONGEST_STOP}"
            )
    return found


def _in_f32(
    place: str, name: str, value: Any, least: float = -math.inf, *, above: bool = False
) -> float:
    """A finite number for logits, which are float32: beyond `GREATEST` nothing changes any more."""
    found = number(place, name, value, least, above=above)
    low = 1 / GREATEST if above else -GREATEST
    return max(low, min(found, GREATEST))


def _chain_of(place: str, given: Mapping[str, Any]) -> Chain | None:
    """The steps of drawing on the host; None: none of the options needs them."""
    limit = given["dry_range"]
    found = Chain(
        steps=_steps(place, given["samplers"]),
        typical_p=number(place, "typical_p", given["typical_p"], 0, 1, above=True),
        top_n_sigma=number(place, "top_n_sigma", given["top_n_sigma"], -math.inf),
        xtc_probability=number(place, "xtc_probability", given["xtc_probability"], 0, 1),
        xtc_threshold=number(place, "xtc_threshold", given["xtc_threshold"], 0, 1),
        dry_multiplier=number(place, "dry_multiplier", given["dry_multiplier"], 0),
        dry_base=number(place, "dry_base", given["dry_base"], 1),
        dry_allowed_length=integer(place, "dry_allowed_length", given["dry_allowed_length"], 1),
        dry_range=None if limit is None else integer(place, "dry_range", limit, -1),
        dry_breakers=BREAKERS if given["dry_breakers"] is None
        else tuple(text_list(place, "dry_breakers", given["dry_breakers"], ordered=False)),
        dynatemp_range=number(place, "dynatemp_range", given["dynatemp_range"], 0),
        dynatemp_exponent=number(place, "dynatemp_exponent", given["dynatemp_exponent"], 0),
        mirostat=integer(place, "mirostat", given["mirostat"], 0, 2),
        mirostat_tau=number(place, "mirostat_tau", given["mirostat_tau"], 0),
        mirostat_eta=number(place, "mirostat_eta", given["mirostat_eta"], 0),
        tells=flag(place, "post_sampling_probs", given["post_sampling_probs"])
        and given["logprobs"] is not None,
    )  # fmt: skip
    if len(found.dry_breakers) > BREAKING:
        raise InvalidArgument(
            f"[{place}] dry_breakers has {len(found.dry_breakers)} texts, at most {BREAKING} are "
            "allowed"
        )
    return found if found.changes_something else None


def _steps(place: str, given: Any) -> tuple[str, ...]:
    if given is None:
        return STEPS
    names = tuple({"typ_p": "typical_p"}.get(x, x) for x in text_list(place, "samplers", given))
    for i, name in enumerate(names):
        if name not in STEPS:
            raise InvalidArgument(
                f"[{place}] samplers[{i}] is {show(name)}, expected one of {', '.join(STEPS)}"
            )
        if name in names[:i]:
            raise InvalidArgument(f"[{place}] samplers has {name!r} twice")
    return names


def _grammar_of(place: str, given: Mapping[str, Any]) -> Grammar | None:
    """What the answer must match; None: anything."""
    named = [x for x in ("schema", "regex", "choices", "grammar") if given[x] is not None]
    if len(named) > 1:
        raise InvalidArgument(
            f"[{place}] {' and '.join(named)} are given: at most one of schema, regex, choices and "
            "grammar can restrict an answer"
        )
    return grammar_of(place, named[0], given[named[0]]) if named else None


def _stops(place: str, given: Any) -> tuple[str, ...]:
    """Texts that end the answer: one, or a list of them."""
    if given is None:
        return ()
    if isinstance(given, str):
        given = (given,)
    found = tuple(text_list(place, "stop", given, "a text or a list of them", ordered=False))
    if len(found) > STOPS:
        raise InvalidArgument(f"[{place}] stop has {len(found)} texts, at most {STOPS} are allowed")
    for i, x in enumerate(found):
        if not 0 < len(x) <= LONGEST_STOP:
            raise InvalidArgument(
                f"[{place}] stop[{i}] has {len(x)} characters, must have 1 to {LONGEST_STOP}"
            )
    return found


def _biases(place: str, given: Any, vocabulary: int) -> dict[int, float]:
    """Token ids, each with the number that is added to its logit."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise InvalidArgument(
            f"[{place}] logit_bias is {show(given)}, expected token ids with numbers: {{id: bias}}"
        )
    return {
        integer(place, "logit_bias: a token", token, 0, vocabulary - 1): _in_f32(
            place, f"logit_bias[{show(token)}]", bias
        )
        for token, bias in given.items()
    }
