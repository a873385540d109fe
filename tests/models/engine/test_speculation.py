"""Speculation: steps that verify drafts, of which every answer is that of the request alone.

Drafts come from the sequence itself, from a draft model, and from scripts that are right and wrong
at given places. When drafts pay is tested with values alone. Not here: ``load(draft=)``
(tests/models/test_drafts.py).
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import anyio
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from models import random_models
from models.all_drafts import verify_all_drafts
from models.engine.test_random_requests import KINDS, OPTIONS, expected, kind, spoil, use
from models.engine.tiny import CTX, answer, engines, prompt, request, rest, settle

import aggml
from aggml.models.decoder.adjusting import Adjuster, Rules
from aggml.models.decoder.chain import Chain, ChainDraw
from aggml.models.decoder.sampling import Sampler
from aggml.models.engine import speculation
from aggml.models.engine.draft_model import DraftModel
from aggml.models.engine.lookup import Hits, Lookup
from aggml.models.engine.ngrams import PRIORS as NGRAM_PRIORS
from aggml.models.engine.ngrams import NgramLookup, NgramTable
from aggml.models.engine.requests import TextRequest
from aggml.models.engine.speculation import (
    WIDTHS,
    LookupDrafter,
    Speculation,
    StepCosts,
    best_width,
    is_worth_catching_up,
    speedup,
    width_beside,
)
from aggml.models.kv.paging import PagedDecoder
from aggml.models.kv.state_rows import Rewind
from aggml.models.loading import load_decoder
from aggml.models.weights import open_model

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence
    from pathlib import Path

    from aggml.models.engine.engine import Engine

#: States of all kinds, with attention beside them and without.
STATES = (
    "mamba2-groups", "rwkv6", "rwkv7-two-heads", "qwen35", "lfm2",
    *(pytest.param(x, marks=pytest.mark.slow)
      for x in ("mamba", "qwen3next", "falcon-h1", "nemotron_h", "granitehybrid", "kimi-linear",
                "jamba")),
)  # fmt: skip
REWIND = 7
#: Attention of all kinds: by groups, with windows, with latent keys, with experts, with biases.
LAYOUTS = ("llama", "gemma2", "deepseek2", "qwen3moe", "gptneox", "gpt-oss")


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the models of this file lie; each is written once."""
    return tmp_path_factory.getbasetemp()


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Verify all drafts, with so many tokens of each sequence in a step."""

    def set_width(width: int) -> None:
        verify_all_drafts(monkeypatch, width)

    return set_width


class Script:
    """Drafts of known answers, each of a length of its own, some of them wrong at some place.

    Attributes:
        answers: the tokens of a request after its prompt, by the prompt.
        lengths: how many tokens the drafts of a request have, in turn; 0: it gets none.
        verified: for each step, the lengths of its drafts.
    """

    at_once: ClassVar[bool] = True
    unbuilt = None
    seconds = 0.0
    pending = None

    def __init__(
        self, answers: Mapping[tuple[int, ...], list[int]], lengths: Sequence[Sequence[int]]
    ) -> None:
        self.answers = answers
        self.lengths = lengths
        self.verified: list[list[int]] = []
        self._random = random.Random(3)

    def chances(self, one: TextRequest, most: int) -> list[float]:
        lengths = self.lengths[one.number % len(self.lengths)]
        return [1.0] * min(most, lengths[one.made % len(lengths)])

    def lacking(self, one: TextRequest) -> int:
        return 0

    def catch_up(self, one: TextRequest) -> None: ...

    def draft(self, wanted: Mapping[TextRequest, int]) -> dict[TextRequest, list[int]]:
        found = {}
        for one, n in wanted.items():
            known = self.answers[tuple(one.tokens[: one.prompt])]
            draft = known[one.made : one.made + n]
            if draft and self._random.random() < 0.4:  # wrong from some place on
                at = self._random.randrange(len(draft))
                draft = [*draft[:at], *(x ^ 1 for x in draft[at:])]
            found[one] = draft
        self.verified.append(sorted(map(len, found.values())))
        return found

    async def prepare(self) -> None: ...

    def close(self) -> None: ...


@asynccontextmanager
async def speculating(
    folder: Path,
    layout: str = "llama",
    draft: str | None = None,
    goes_back: int = REWIND,
    **options: Any,
) -> AsyncIterator[Engine]:
    """An engine that looks drafts up, or has the model of the layout ``draft`` make them.

    With "ngram", drafts are also looked up in other sequences. States of a draft model can go back
    by so many tokens as ``goes_back`` says.
    """
    async with engines(folder, layout, **options) as engine:
        if draft in (None, "ngram"):
            drafts = LookupDrafter(NgramTable() if draft == "ngram" else None)
            engine.speculation = Speculation(drafts, CTX, engine.decoder.widest)
            yield engine
            return
        path = folder / f"{draft}.gguf"
        if not path.exists():
            random_models.write(path, draft)
        backend = engine.decoder.site.backends[0]
        with await open_model(path) as opened:
            decoder = await load_decoder(
                backend, opened, kind=PagedDecoder, ctx=CTX, sequences=engine.slots + 1,
                rewind=Rewind(engine.slots, goes_back),
            )  # fmt: skip
        drafter = DraftModel(decoder, engine.slots, engine.decoder.vocabulary)
        engine.speculation = Speculation(drafter, CTX, engine.decoder.widest)
        try:
            yield engine
        finally:
            drafter.close()


def loops(n: int, seed: int) -> list[int]:
    """A prompt in which some tokens come again and again."""
    return (prompt(12, seed) * n)[: 12 * n - 5]


def requests(n: int = 4, tokens: int = 40) -> list[TextRequest]:
    """Greedy and drawn requests, of different lengths."""
    return [request(loops(2 + i, i), tokens + 7 * i, seed=i if i % 2 else None) for i in range(n)]


def repeating(n: int = 4) -> list[TextRequest]:
    """Requests that have few tokens to choose from, so that what came before comes again."""
    found = []
    for one in requests(n):
        one.adjuster = Adjuster(Rules(bias=dict.fromkeys((3, 4, 5, 6), 60.0)), one.tokens, ())
        found.append(one)
    return found


async def together(engine: Engine, those: Sequence[TextRequest]) -> list[list[int]]:
    """The answers of requests that come at a time."""
    found: list[list[int]] = [[] for _ in those]

    async def one(i: int) -> None:
        found[i] = await answer(engine, those[i])

    async with anyio.create_task_group() as tasks:
        for i in range(len(those)):
            tasks.start_soon(one, i)
    await settle(engine)
    return found


@pytest.mark.long(cases=2)
@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize(
    ("layout", "draft"), [*((x, None) for x in LAYOUTS), *((x, "ngram") for x in LAYOUTS[:2])]
)
async def test_answers_with_drafts_from_what_came_before_are_the_same(
    layout: str, draft: str | None, folder: Path, always: Callable[[int], None]
) -> None:
    async with engines(folder, layout) as engine:
        wanted = await together(engine, repeating())
    always(8)
    async with speculating(folder, layout, draft) as engine:
        assert await together(engine, repeating()) == wanted
        counters = engine.counters
        assert counters.drafts > 10
        assert 0 <= counters.accepted_tokens <= counters.draft_tokens
        assert counters.tokens == sum(map(len, wanted))


@pytest.mark.long(cases=1)
@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("width", WIDTHS)
async def test_a_draft_model_that_is_the_model_itself_is_always_right(
    width: int, folder: Path, always: Callable[[int], None]
) -> None:
    async with engines(folder) as engine:
        wanted = await together(engine, requests())
    always(width)
    async with speculating(folder, draft="llama") as engine:
        assert await together(engine, requests()) == wanted
        counters = engine.counters
        assert engine.speculation is not None
        # Drawn tokens, too: both models draw with the same number.
        assert counters.accepted_tokens == counters.draft_tokens > 60


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_draft_model_whose_drafts_do_not_pay_computes_nothing(
    folder: Path,
    always: Callable[[int], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    always(4)
    async with speculating(folder, draft="llama") as engine:
        await together(engine, requests(1))  # so that times are measured
        assert engine.speculation is not None
        assert engine.speculation.drafter.seconds > 0
        drafts = engine.counters.drafts
        steps: list[object] = []
        drafter: Any = engine.speculation.drafter
        run_step = drafter.decoder.run_step

        def run_noted(*given: Any, **options: Any) -> Any:
            steps.append(given)
            return run_step(*given, **options)

        monkeypatch.setattr(drafter.decoder, "run_step", run_noted)
        await together(engine, requests(1))
        assert engine.counters.drafts > drafts
        assert steps
        steps.clear()
        monkeypatch.setattr(speculation, "best_width", lambda *_: 1)
        monkeypatch.setattr(speculation, "is_worth_catching_up", is_worth_catching_up)
        found = await together(engine, requests())
        assert not steps
    async with engines(folder) as engine:
        assert found == await together(engine, requests())


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_answers_with_a_draft_model_that_is_mostly_wrong_are_the_same(
    folder: Path, always: Callable[[int], None]
) -> None:
    async with engines(folder) as engine:
        wanted = await together(engine, requests())
    always(4)
    async with speculating(folder, draft="qwen2") as engine:
        assert await together(engine, requests()) == wanted
        counters = engine.counters
        assert engine.speculation is not None
        assert counters.draft_tokens > 4 * counters.accepted_tokens


@pytest.mark.long(cases=1)
@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize(
    ("layout", "goes_back"), [("lfm2", 3), *((x, REWIND) for x in STATES if isinstance(x, str))]
)
async def test_a_draft_model_with_states_that_is_the_model_itself_is_always_right(
    layout: str, goes_back: int, folder: Path, always: Callable[[int], None]
) -> None:
    async with engines(folder, layout) as engine:
        wanted = await together(engine, requests())
    always(1 + goes_back)
    async with speculating(
        folder, layout, draft=layout, goes_back=goes_back, rewind=goes_back
    ) as engine:
        assert await together(engine, requests()) == wanted
        counters = engine.counters
        assert engine.speculation is not None
        assert counters.accepted_tokens == counters.draft_tokens > 30


@pytest.mark.long(cases=1)
@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("draft", ["mamba2-groups", "qwen35", "rwkv7"])
async def test_a_draft_model_with_states_goes_back_to_where_it_was_wrong(
    draft: str, folder: Path, always: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model's answers are those of the draft model, but for some tokens that are forced."""
    async with engines(folder, draft) as engine:
        free = await together(engine, requests())

    def forced() -> list[TextRequest]:
        found = requests()
        for one, tokens in zip(found, free, strict=True):
            # Now and then another token: what follows is what the draft model expects behind it.
            seldom = Counter(tokens).most_common()[-1][0]
            one.adjuster = Adjuster(Rules(bias={seldom: -60.0}), one.tokens, ())
        return found

    async with engines(folder, draft) as engine:
        wanted = await together(engine, forced())
    always(8)

    class Unchanged(DraftModel):
        """Draws without the changes of logits, so that it is wrong where they count."""

        def chances(self, request: TextRequest, most: int) -> list[float]:
            adjuster, request.adjuster = request.adjuster, None
            try:
                return super().chances(request, most)
            finally:
                request.adjuster = adjuster

        def draft(self, wanted: Mapping[TextRequest, int]) -> dict[TextRequest, list[int]] | None:
            kept = {x: x.adjuster for x in wanted}
            for x in kept:
                x.adjuster = None
            try:
                return super().draft(wanted)
            finally:
                for x, adjuster in kept.items():
                    x.adjuster = adjuster

    monkeypatch.setattr(f"{__name__}.DraftModel", Unchanged)
    async with speculating(folder, draft, draft=draft, rewind=REWIND) as engine:
        assert await together(engine, forced()) == wanted
        counters = engine.counters
        assert engine.speculation is not None
        wrong = counters.draft_tokens - counters.accepted_tokens
        # A state that did not go back would be wrong after the first token that was.
        assert wrong > 5
        assert counters.accepted_tokens > 2 * wrong


@pytest.mark.long
@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("draft", ["mamba2-groups", "qwen35"])
async def test_a_draft_model_with_states_catches_up_with_prompts_of_any_length(
    draft: str, folder: Path, always: Callable[[int], None]
) -> None:
    for n in (1, 8, 9, 17, 301):
        those = [request(prompt(n, n), 30), request(prompt(n // 2 + 1, n), 30, seed=n)]
        async with engines(folder, draft) as engine:
            wanted = await together(engine, [*those])
        always(8)
        again = [request(prompt(n, n), 30), request(prompt(n // 2 + 1, n), 30, seed=n)]
        async with speculating(folder, draft, draft=draft, rewind=REWIND) as engine:
            assert await together(engine, again) == wanted
            counters = engine.counters
            assert counters.accepted_tokens == counters.draft_tokens > 20


@pytest.mark.long
@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_sequences_come_and_go_and_are_preempted_beside_a_draft_model_with_states(
    folder: Path, always: Callable[[int], None]
) -> None:
    wanted = await expected(folder, "qwen3next")
    always(4)
    async with speculating(
        folder, "qwen3next", draft="qwen3next", rewind=REWIND, pages=None
    ) as engine:
        engine.pages.budget = 2 * engine.pages.need(200)
        async with anyio.create_task_group() as tasks:
            for i in range(5):
                tasks.start_soon(partial(use, engine, wanted, i, 8, fails=False))
        await settle(engine)
        counters = engine.counters
        assert engine.speculation is not None
        assert counters.preemptions > 0
        assert counters.drafts > 5


@pytest.mark.anyio
async def test_drafts_of_different_lengths_share_a_step_with_sequences_that_have_none(
    folder: Path, always: Callable[[int], None]
) -> None:
    async with engines(folder) as engine:
        wanted = await together(engine, requests())
    always(8)
    answers = {tuple(x.tokens): y for x, y in zip(requests(), wanted, strict=True)}
    async with engines(folder) as engine:
        script = Script(answers, [[1, 7, 3], [2, 5], [0], [7, 0, 4]])
        engine.speculation = Speculation(script, CTX)
        assert await together(engine, requests()) == wanted
        assert any(len(set(x)) > 1 for x in script.verified)
        assert any(len(x) < 4 for x in script.verified)
        assert 0 < engine.counters.accepted_tokens < engine.counters.draft_tokens


@pytest.mark.long(cases=1)
@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("layout", STATES)
async def test_states_go_back_to_the_last_token_that_counts(
    layout: str, folder: Path, always: Callable[[int], None]
) -> None:
    async with engines(folder, layout) as engine:
        wanted = await together(engine, requests())
    answers = {tuple(x.tokens): y for x, y in zip(requests(), wanted, strict=True)}
    for width, lengths in ((8, [[1, 7, 3], [2, 5], [0], [7, 0, 4]]), (4, [[3], [2, 3, 1]])):
        always(width)
        async with engines(folder, layout, rewind=REWIND) as engine:
            script = Script(answers, lengths)
            engine.speculation = Speculation(script, CTX, engine.decoder.widest)
            assert await together(engine, requests()) == wanted
            assert any(len(set(x)) > 1 for x in script.verified)
            assert 0 < engine.counters.accepted_tokens < engine.counters.draft_tokens


@pytest.mark.anyio
async def test_a_step_verifies_drafts_beside_a_prompt(
    folder: Path, always: Callable[[int], None]
) -> None:
    first, second = request(prompt(20, 1), 60), request(prompt(300, 2), 10)
    async with engines(folder, chunk=64) as engine:
        wanted = [await answer(engine, first), await answer(engine, second)]
    always(4)
    one, another = request(prompt(20, 1), 60), request(prompt(300, 2), 10)
    answers = {tuple(one.tokens): wanted[0], tuple(another.tokens): wanted[1]}
    async with engines(folder, chunk=64) as engine:
        engine.speculation = Speculation(Script(answers, [[3]]), CTX)
        mixed, launch = [0], engine._launch

        def watch(plan: Any) -> bool:
            mixed[0] += bool(plan.chunk and plan.drafts)
            return launch(plan)

        setattr(engine, "_launch", watch)  # noqa: B010 a method of this object alone
        engine.submit(one)
        found = await engine.next(one)
        async with anyio.create_task_group() as tasks:

            async def late() -> None:
                assert await answer(engine, another) == wanted[1]

            tasks.start_soon(late)
            found += await rest(engine, one)
        assert found == wanted[0]
        assert mixed[0] > 1
        await settle(engine)


def adjusted(i: int, **rules: Any) -> TextRequest:
    """A request whose logits change with each token, drawn with a seed."""
    tokens = loops(2, i)
    adjuster = Adjuster(Rules(**rules), tokens, (5,))
    ends = frozenset((5,)) if rules.get("least") else frozenset()
    return TextRequest(tokens, 40, Sampler(0.9, 30, 0.95, i), ends, adjuster)


SETTINGS: dict[str, Callable[[int], TextRequest]] = {
    "penalties": lambda i: adjusted(i, presence=0.5, frequency=0.3, repetition=1.2),
    "biases": lambda i: adjusted(i, bias={7: 3.0, 9: -np.inf}),
    "min_tokens": lambda i: adjusted(i, least=20, bias={5: 8.0}),
    "logprobs": lambda i: request(loops(2, i), 30, seed=i, logprobs=3),
    "all tokens": lambda i: TextRequest(loops(2, i), 30, Sampler(1.0, 0, 1.0, i, 0.01)),
    "a chain": lambda i: TextRequest(
        loops(2, i), 30,
        Sampler(0.8, 40, 0.95, i, 0.0, ChainDraw(
            Chain(dry_multiplier=0.8, mirostat=0, xtc_probability=0.4), lambda _: b"x")),
    ),
    "mirostat": lambda i: TextRequest(
        loops(2, i), 30, Sampler(0.8, 40, 0.95, i, 0.0, ChainDraw(Chain(mirostat=2), lambda _: b""))
    ),
}  # fmt: skip


@pytest.mark.long(cases=2)
@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("name", SETTINGS)
async def test_settings_of_a_draw_hold_in_each_place_of_a_draft(
    name: str, folder: Path, always: Callable[[int], None]
) -> None:
    def those() -> list[TextRequest]:
        return [SETTINGS[name](1), request(loops(3, 8), 30), SETTINGS[name](2)]

    plain = those()
    async with engines(folder) as engine:
        wanted = await together(engine, plain)
    always(8)
    answers = {tuple(x.tokens): y for x, y in zip(those(), wanted, strict=True)}
    guessed = those()
    async with engines(folder) as engine:
        engine.speculation = Speculation(Script(answers, [[7, 3], [5], [7]]), CTX)
        assert await together(engine, guessed) == wanted
        assert engine.counters.accepted_tokens > 20
    for one, another in zip(plain, guessed, strict=True):
        assert [x.logprob for x in one.reports] == pytest.approx(
            [x.logprob for x in another.reports], abs=1e-4
        )


async def shares_after(engine: Engine, tokens: list[int], k: int) -> dict[int, float]:
    """The probability of each of the ``k`` best tokens, at a temperature of 1.5."""
    one = TextRequest(list(tokens), 1, result="logits")
    engine.submit(one)
    await engine.next(one)
    engine.cancel(one)
    logits = np.asarray(one.arrays[-1][-1], np.float64)
    kept = np.argsort(-logits)[:k]
    share = np.exp((logits[kept] - logits[kept].max()) / 1.5)
    return dict(zip(kept.tolist(), (share / share.sum()).tolist(), strict=True))


async def law_of(engine: Engine, start: list[int]) -> dict[tuple[int, ...], float]:
    """How probable each answer of three tokens is, with two to choose from at each place."""
    law: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(3):
        law = {
            (*before, token): p * share
            for before, p in law.items()
            for token, share in (await shares_after(engine, [*start, *before], 2)).items()
        }
    return law


async def check_law(
    engine: Engine, start: list[int], law: Mapping[tuple[int, ...], float], n: int, tasks: int = 16
) -> None:
    """Check that ``n`` answers, of some tasks at a time, come as often as they should."""
    got: Counter[tuple[int, ...]] = Counter()

    async def some(first: int) -> None:
        for seed in range(first, n, tasks):
            one = TextRequest(list(start), 3, Sampler(1.5, 2, 1.0, seed))
            got[tuple(await answer(engine, one))] += 1

    async with anyio.create_task_group() as group:
        for first in range(tasks):
            group.start_soon(some, first)
    assert set(got) <= set(law)
    chi = sum((got[x] - n * p) ** 2 / (n * p) for x, p in law.items())
    assert chi < 24.3  # 7 degrees of freedom: 0.1 % of fair draws are beyond


@pytest.mark.long
@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("layout", ["llama", "qwen3next"])
async def test_drafts_do_not_change_the_distribution(
    layout: str, folder: Path, always: Callable[[int], None]
) -> None:
    start, n = prompt(9, 4), 800 if layout == "llama" else 320
    async with engines(folder, layout) as engine:
        law = await law_of(engine, start)
    likely = max(law, key=lambda x: law[x])
    always(4)
    async with engines(folder, layout, slots=16, rewind=REWIND) as engine:

        class Fixed(Script):
            def draft(self, wanted: Mapping[TextRequest, int]) -> dict[TextRequest, list[int]]:
                return {x: list(likely[x.made :][:n]) for x, n in wanted.items()}

        engine.speculation = Speculation(Fixed({}, [[2]]), CTX, engine.decoder.widest)
        await check_law(engine, start, law, n)
        assert n > engine.counters.accepted_tokens > n // 8


@pytest.mark.long
@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_drafts_from_the_answers_of_others_do_not_change_the_distribution(
    folder: Path, always: Callable[[int], None]
) -> None:
    start, n = prompt(9, 4), 800
    async with engines(folder) as engine:
        law = await law_of(engine, start)
    always(4)
    async with speculating(folder, draft="ngram", slots=16) as engine:
        await check_law(engine, start, law, n)
        assert engine.counters.draft_tokens > engine.counters.accepted_tokens > n // 8


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_what_one_request_said_is_guessed_for_the_next_one(
    folder: Path, always: Callable[[int], None]
) -> None:
    always(8)
    accepted: dict[str | None, int] = {}
    for draft, least in ((None, 0), ("ngram", 40)):
        async with speculating(folder, draft=draft) as engine:
            first = await answer(engine, request(prompt(20, 1), 60))
            before = engine.counters.accepted_tokens
            assert await answer(engine, request(prompt(20, 1), 60)) == first
            found = engine.counters.accepted_tokens - before
            assert found >= least
            accepted[draft] = found
    assert accepted["ngram"] > accepted[None]


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_what_a_wrong_draft_wrote_is_not_reused_by_later_prompts(
    folder: Path, always: Callable[[int], None]
) -> None:
    those = requests(2, 50)
    async with engines(folder) as engine:
        wanted = [await answer(engine, x) for x in those]
        follow = [request([*x.tokens, 3, 4], 20) for x in those]
        then = [await answer(engine, x) for x in follow]
    always(8)
    answers = {tuple(x.tokens): y for x, y in zip(requests(2, 50), wanted, strict=True)}
    async with engines(folder) as engine:
        engine.speculation = Speculation(Script(answers, [[7, 3, 6]]), CTX)
        those = requests(2, 50)
        assert [await answer(engine, x) for x in those] == wanted
        answers |= {(*x.tokens, 3, 4): y for x, y in zip(those, then, strict=True)}
        follow = [request([*x.tokens, 3, 4], 20) for x in those]
        assert [await answer(engine, x) for x in follow] == then
        assert engine.counters.cached_tokens > 50


@pytest.mark.long(cases=2)
@pytest.mark.anyio
@pytest.mark.parametrize("drafts", ["script", "model", "ngram"])
@pytest.mark.parametrize("name", ["little memory", "much memory"])
async def test_random_requests_are_answered_as_alone(
    name: str, drafts: str, folder: Path, always: Callable[[int], None]
) -> None:
    wanted = await expected(folder, "llama")
    always(8)
    draft = {"model": "llama", "ngram": "ngram"}.get(drafts)
    async with speculating(folder, draft=draft, **OPTIONS[name]) as engine:
        if drafts == "script":
            answers = {tuple(kind(i).tokens): wanted[i] for i in range(KINDS)}
            engine.speculation = Speculation(Script(answers, [[7, 2, 4], [3, 0], [6]]), CTX)
        async with anyio.create_task_group() as tasks:
            for i in range(5):
                tasks.start_soon(partial(use, engine, wanted, i, 8, fails=False))
        await settle(engine)
        assert engine.speculation is not None
        assert engine.counters.drafts > 5


@pytest.mark.long(cases=1)
@pytest.mark.anyio
@pytest.mark.parametrize("layout", ["mamba2", "qwen3next"])
async def test_sequences_with_states_come_and_go_and_are_preempted_beside_drafts(
    layout: str, folder: Path, always: Callable[[int], None]
) -> None:
    wanted = await expected(folder, layout)
    always(8)
    async with engines(folder, layout, rewind=REWIND) as engine:
        engine.pages.budget = 2 * engine.pages.need(200)
        answers = {tuple(kind(i).tokens): wanted[i] for i in range(KINDS)}
        script = Script(answers, [[7, 2, 4], [3, 0], [6]])
        engine.speculation = Speculation(script, CTX, engine.decoder.widest)
        async with anyio.create_task_group() as tasks:
            for i in range(5):
                tasks.start_soon(partial(use, engine, wanted, i, 8, fails=False))
        await settle(engine)
        counters = engine.counters
        assert counters.drafts > 5
        assert counters.preemptions > 0


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("layout", ["mamba2", "qwen3next"])
async def test_a_later_prompt_goes_on_from_a_state_that_went_back(
    layout: str, folder: Path, always: Callable[[int], None]
) -> None:
    async with engines(folder, layout) as engine:
        wanted = await answer(engine, request(prompt(20, 1), 30))
        then = await answer(engine, request([*prompt(20, 1), *wanted, 3], 20))
    always(8)
    async with engines(folder, layout, rewind=REWIND) as engine:
        script = Script({tuple(prompt(20, 1)): wanted}, [[7, 3]])
        engine.speculation = Speculation(script, CTX, engine.decoder.widest)
        assert await answer(engine, request(prompt(20, 1), 30)) == wanted
        script.answers = {(*prompt(20, 1), *wanted, 3): then}
        assert await answer(engine, request([*prompt(20, 1), *wanted, 3], 20)) == then
        assert engine.counters.cached_tokens == 20 + 29


@pytest.mark.anyio
async def test_a_graph_that_cannot_be_built_ends_speculation_and_no_answer(
    folder: Path, always: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with engines(folder) as engine:
        wanted = await together(engine, requests())
    always(8)
    answers = {tuple(x.tokens): y for x, y in zip(requests(), wanted, strict=True)}
    async with engines(folder) as engine:
        engine.speculation = Speculation(Script(answers, [[3]]), CTX)
        prepare = engine.decoder.prepare_step

        async def fail(shape: Any) -> Any:
            if shape.parts[0].tokens == 8 and not shape.chained:
                raise aggml.Unsupported("no such operation here")
            return await prepare(shape)

        monkeypatch.setattr(engine.decoder, "prepare_step", fail)
        assert await together(engine, requests()) == wanted
        assert engine.speculation is None


@pytest.mark.long(cases=1)
@pytest.mark.anyio
@pytest.mark.parametrize("layout", ["llama", "qwen3next"])
async def test_a_step_that_fails_fails_only_its_requests(
    layout: str, folder: Path, always: Callable[[int], None]
) -> None:
    wanted = await expected(folder, layout)
    always(4)
    async with engines(folder, layout, rewind=REWIND) as engine:
        answers = {tuple(kind(i).tokens): wanted[i] for i in range(KINDS)}
        script = Script(answers, [[3, 2], [1, 0]])
        engine.speculation = Speculation(script, CTX, engine.decoder.widest)
        failed = spoil(engine, random.Random(5), 0.03)
        async with anyio.create_task_group() as tasks:
            for i in range(4):
                tasks.start_soon(partial(use, engine, wanted, i, 8, fails=True))
        await settle(engine)
        assert failed[0]


@pytest.mark.anyio
async def test_a_draft_model_that_fails_ends_speculation_and_no_answer(
    folder: Path, always: Callable[[int], None]
) -> None:
    async with engines(folder) as engine:
        wanted = await together(engine, requests())
    always(4)
    async with speculating(folder, draft="llama") as engine:
        those = requests()
        async with anyio.create_task_group() as tasks:
            for one, what in zip(those, wanted, strict=True):

                async def read(one: TextRequest = one, what: list[int] = what) -> None:
                    assert await answer(engine, one) == what

                tasks.start_soon(read)
            while engine.counters.drafts < 3:
                await anyio.lowlevel.checkpoint()
            assert engine.speculation is not None
            engine.speculation.drafter.close()
        assert engine.speculation is None
        await settle(engine)


@pytest.mark.anyio
async def test_a_draft_that_nobody_waits_for_any_more_holds_nobody_up(
    folder: Path, always: Callable[[int], None]
) -> None:
    async with engines(folder) as engine:
        wanted = await answer(engine, request(prompt(20, 6), 2))
    always(4)
    async with speculating(folder, draft="llama") as engine:
        assert engine.speculation is not None
        drafter = engine.speculation.drafter
        assert isinstance(drafter, DraftModel)
        one = request(prompt(30, 1), 60)
        engine.submit(one)
        async with anyio.create_task_group() as tasks:

            async def read() -> None:
                await rest(engine, one)

            tasks.start_soon(read)
            while drafter.pending is None:
                await anyio.lowlevel.checkpoint()
            tasks.cancel_scope.cancel()
        # Two tokens leave nothing to guess, so nobody asks for a draft.
        with anyio.fail_after(60):
            assert await answer(engine, request(prompt(20, 6), 2)) == wanted
        await settle(engine)


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_request_that_ends_within_a_draft_gets_no_token_more(
    folder: Path, always: Callable[[int], None]
) -> None:
    async with engines(folder) as engine:
        whole = await answer(engine, request(prompt(20, 6), 40))
    always(8)
    end = next(x for i, x in enumerate(whole) if i > 5 and x not in whole[:i])
    before = whole[: whole.index(end)]
    for n in range(1, 12):
        async with engines(folder) as engine:
            engine.speculation = Speculation(Script({tuple(prompt(20, 6)): whole}, [[7]]), CTX)
            assert await answer(engine, request(prompt(20, 6), n)) == whole[:n]
            if n > 1:
                continue
            one = request(prompt(20, 6), 40, ends=frozenset((end,)))
            assert await answer(engine, one) == before
            assert one.reason == "stop"
            assert one.fed == [*prompt(20, 6), *before][: one.computed]


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_the_last_positions_of_a_context_can_be_guessed(
    folder: Path, always: Callable[[int], None]
) -> None:
    start = prompt(CTX - 30, 3)
    for slots in (1, 2):
        async with engines(folder, slots=slots) as engine:
            wanted = await answer(engine, request(start, 31))
        always(8)
        async with engines(folder, slots=slots) as engine:
            engine.speculation = Speculation(Script({tuple(start): wanted}, [[7, 5]]), CTX)
            assert await answer(engine, request(start, 31)) == wanted
            assert engine.counters.accepted_tokens > 10


# -- with values alone


def known_costs() -> StepCosts:
    costs = StepCosts()
    for _ in range(5):
        costs.record_step(1, 1, 0.010)
        costs.record_step(1, 4, 0.012)
        costs.record_step(1, 8, 0.017)
        costs.record_step(1, 16, 0.030)
    return costs


@pytest.mark.parametrize(
    ("chance", "width"), [(0.05, 1), (0.5, 4), (0.85, 8), (0.97, 16)]
)  # fmt: skip
def test_the_width_of_a_step_is_that_with_the_most_tokens_a_second(
    chance: float, width: int
) -> None:
    chances = [chance ** (i + 1) for i in range(15)]
    assert best_width([chances], 1, 1, known_costs()) == width


def test_a_sequence_without_a_draft_does_not_wait_for_those_of_the_others() -> None:
    costs, chances = StepCosts(), [0.98 ** (i + 1) for i in range(15)]
    for _ in range(5):
        costs.record_step(4, 1, 0.010)
        costs.record_step(4, 4, 0.027)
        costs.record_step(4, 8, 0.060)
        costs.record_step(4, 16, 0.120)
    assert best_width([chances] * 4, 4, 4, costs) == 4
    assert best_width([chances] * 3, 4, 4, costs) == 1  # its pace would be a third of what it was
    assert best_width([chances] * 3, 3, 4, costs) == 4
    for _ in range(50):
        costs.record_step(4, 4, 0.015)
    assert best_width([chances] * 3, 4, 4, costs) == 4


def test_a_draft_model_that_takes_too_long_is_not_asked() -> None:
    chances = [0.9 ** (i + 1) for i in range(15)]
    assert best_width([chances], 1, 1, known_costs(), drafting=0.001) > 1
    assert best_width([chances], 1, 1, known_costs(), drafting=0.02) == 1


def test_what_a_width_gains_is_a_ratio_to_a_plain_step() -> None:
    # 1 + 0.9 + 0.81 + 0.729 tokens in 12 ms and three draft tokens of 2 ms, instead of 10 ms each
    chances = [0.9 ** (i + 1) for i in range(15)]
    assert speedup([chances], 1, 1, known_costs(), 0.002, 4) == pytest.approx(34.39 / 18, rel=1e-3)


def test_a_draft_model_reads_a_prompt_if_that_takes_less_than_drafts_save() -> None:
    costs, chances = known_costs(), [[0.9 ** (i + 1) for i in range(15)]]
    costs.prompt = 0.001
    # 100 steps of 10 ms take 1 s, with drafts 18 / 34.39 of it. A draft model that takes a fifth of
    # the time of the model reads some 2,380 tokens in the 0.477 s that are saved.
    assert is_worth_catching_up(chances, 1, 1, costs, 0.002, 2370, 100, WIDTHS[:1])
    assert not is_worth_catching_up(chances, 1, 1, costs, 0.002, 2395, 100, WIDTHS[:1])


def test_a_draft_model_reads_no_prompt_for_drafts_that_take_too_long() -> None:
    chances = [[0.9 ** (i + 1) for i in range(15)]]
    assert not is_worth_catching_up(chances, 1, 1, known_costs(), 0.02, 1, 1000)
    assert not is_worth_catching_up(chances, 1, 1, StepCosts(), 0.02, 1, 1000)
    assert is_worth_catching_up(chances, 1, 1, known_costs(), 0.0, 1000, 10)  # it was never tried


def test_nothing_is_guessed_before_a_step_was_measured() -> None:
    assert best_width([[1.0] * 15], 1, 1, StepCosts()) == 1


def test_a_time_that_was_measured_long_ago_is_tried_again() -> None:
    costs = known_costs()
    for _ in range(5):
        costs.record_step(1, 4, 1.0)
    before = costs.of(1, 4)
    for _ in range(3000):
        costs.record_step(1, 1, 0.010)
    after = costs.of(1, 4)
    assert before is not None
    assert after is not None
    assert after < before / 2


def test_a_step_that_was_not_measured_is_taken_to_be_no_faster_than_what_was() -> None:
    costs = StepCosts()
    costs.record_step(4, 1, 0.010)
    optimistic = costs.of(4, 8)
    costs.prompt = 0.002
    by_prompts = costs.of(4, 8)
    costs.record_step(4, 4, 0.060)
    by_others = costs.of(4, 8)
    assert optimistic is not None
    assert by_prompts is not None
    assert by_others is not None
    assert by_prompts == pytest.approx(4 * 8 * 0.002)
    assert by_others == pytest.approx(0.010 + 7 / 3 * 0.050)
    assert optimistic < by_prompts < by_others


def test_beside_a_prompt_drafts_pay_if_they_save_more_than_they_take() -> None:
    chances = [[0.9 ** (i + 1) for i in range(15)]]
    assert width_beside(chances, 1, 1, known_costs(), 0.001, 64) > 1
    assert width_beside(chances, 1, 1, known_costs(), 0.02, 64) == 1
    assert width_beside(chances, 1, 1, known_costs(), None, 64) == 1
    assert width_beside(chances, 1, 1, known_costs(), 0.0001, 3) == 1


def test_a_lookup_expects_what_came_before() -> None:
    lookup, tokens = Lookup(Hits()), [1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3]
    assert lookup.follow(tokens)
    assert lookup.draft(tokens, 4) == [4, 5, 6, 7]
    assert lookup.draft(tokens, 12) == [4, 5, 6, 7, 8, 1, 2, 3, 4, 5, 6, 7]
    chances = lookup.chances(3)
    assert 1 > chances[0] > chances[1] > chances[2] > 0
    tokens.append(9)
    assert lookup.follow(tokens)
    assert lookup.draft(tokens, 4) == []
    assert lookup.chances(4) == []


def ngrams(table: NgramTable) -> NgramLookup:
    return NgramLookup(table, Hits(priors=NGRAM_PRIORS), Lookup(Hits()))


def test_n_grams_expect_what_mostly_followed_in_other_sequences() -> None:
    table, tokens = NgramTable(), [9, 1, 2, 3, 4, 5, 6, 7, 8]
    for _ in range(3):
        assert ngrams(table).follow(tokens)
    other = ngrams(table)
    assert other.follow([1, 2, 3])
    assert other.draft([1, 2, 3], 3) == [4, 5, 6]
    chances = other.chances(3)
    assert 1 > chances[0] > chances[1] > chances[2] > 0
    assert other.draft([1, 2, 3], 9) == [4, 5, 6, 7, 8]  # then nothing ever followed
    assert other.follow([1, 2, 3, 30])
    assert other.draft([1, 2, 3, 30], 4) == other.chances(4) == []
    for _ in range(9):  # what is said now takes the place of what was said before
        ngrams(table).follow([1, 2, 3, 40])
    assert other.follow([1, 2, 3, 30, 1, 2, 3])
    assert table.predict([1, 2, 3]) is not None
    assert ngrams(table).draft([1, 2, 3], 1) == []  # it has not read them
    last = ngrams(table)
    last.follow([1, 2, 3])
    assert last.draft([1, 2, 3], 1) == [40]


def test_a_table_of_n_grams_forgets_and_does_not_grow() -> None:
    table, draws = NgramTable(contexts=50), random.Random(2)
    for _ in range(3000):
        table.learn([draws.randrange(100) for _ in range(4)], draws.randrange(100))
        table.learn([1, 2, 3, 4], 5)  # met all the time
        assert len(table) <= 2 * (50 + 3)
    assert table.predict([1, 2, 3, 4]) == (5, len(NGRAM_PRIORS) - 1)
    table.learn([1, 2, 3, 4], -7)  # a picture is no token of an answer
    assert table.predict([1, 2, 3, 4]) == (5, len(NGRAM_PRIORS) - 1)


@given(
    texts=st.lists(st.lists(st.integers(-1, 3), max_size=60), max_size=6),
    parts=st.lists(st.integers(1, 9), min_size=1, max_size=4),
)
@settings(deadline=None, derandomize=True, max_examples=100)
def test_n_grams_of_any_sequences_give_drafts_with_as_many_chances(
    texts: list[list[int]], parts: list[int]
) -> None:
    table = NgramTable(contexts=20)
    for text in texts:
        one, n = ngrams(table), 0
        for part in itertools.cycle(parts):
            n += part
            assert one.follow(text[:n])
            chances = one.chances(7)
            assert chances == sorted(chances, reverse=True)
            assert all(0 < x < 1 for x in chances)
            draft = one.draft(text[:n], len(chances))
            assert len(draft) <= len(chances)
            assert all(token >= 0 for token in draft)
            if n >= len(text):
                break


def test_a_long_prompt_is_read_in_parts_and_found_as_a_short_one() -> None:
    long = np.random.default_rng(0).integers(0, 50, 5000).tolist()
    whole = Lookup(Hits())
    turns = 1
    while not whole.follow(long):
        turns += 1
        assert whole.chances(4) == []
    assert turns > 3
    slow = Lookup(Hits())
    for n in range(0, 5001, 50):
        slow.follow(long[:n])
    assert slow.follow(long)
    last = {tuple(long[i - 3 : i]): i for i in range(3, 5000)}
    at = last.get(tuple(long[-3:]))
    if at is None:
        at = {tuple(long[i - 2 : i]): i for i in range(2, 5000)}[tuple(long[-2:])]
    assert whole.draft(long, 5) == long[at : at + 5]


def test_what_never_comes_as_expected_is_expected_less() -> None:
    right, wrong = Lookup(Hits()), Lookup(Hits())
    same: list[int] = []
    other: list[int] = []
    draws = random.Random(1)
    for i in range(120):
        same.append(i % 6)
        other += [7, 8, draws.randrange(100)]
        right.follow(same)
        wrong.follow(other)
    other += [7, 8]
    wrong.follow(other)
    assert right.chances(1)[0] > 0.9
    assert not wrong.chances(1) or wrong.chances(1)[0] < 0.2
