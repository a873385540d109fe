"""The head of a model that predicts a further token: what it computes, and drafts made with it.

Its logits are compared with numpy; the drafts that the engine gets with a head that computes each
sequence from its beginning. Not here: ``load(draft="mtp")`` (tests/models/test_drafts.py), how
drafts are verified (test_speculation.py).
"""

from __future__ import annotations

import random
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
import numpy as np
import numpy.typing as npt
import pytest
from models import random_models
from models.all_drafts import verify_all_drafts
from models.engine.test_random_requests import KINDS, expected, kind, spoil, use
from models.engine.test_speculation import check_law, law_of, repeating, requests, together
from models.engine.tiny import CTX, answer, prompt, request, settle

import aggml
from aggml.models.decoder.batch import Batch, GivenEmbeddings, Group
from aggml.models.decoder.decoder import Decoder
from aggml.models.drafting import MTP, rewind_of, speculation_of
from aggml.models.engine.engine import Engine, staged_slots
from aggml.models.kv.paging import PagedDecoder
from aggml.models.loading import describe_file, load_decoder
from aggml.models.weights import open_model

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence
    from pathlib import Path

    from aggml.models.engine.requests import TextRequest

    F64 = npt.NDArray[np.float64]

LAYOUTS = (
    "qwen35-ahead", pytest.param("qwen35moe-ahead", marks=pytest.mark.slow), "glm4moe-normed",
    "hy_v3-ahead",
)  # fmt: skip


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the models of this file lie; each is written once."""
    return tmp_path_factory.getbasetemp()


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Verify all drafts, four tokens of each sequence in a step."""
    verify_all_drafts(monkeypatch)


@asynccontextmanager
async def engines(
    folder: Path, layout: str, *, heads: bool = True, slots: int = 4
) -> AsyncIterator[Engine]:
    """An engine whose drafts are made by the file's own head."""
    path = folder / f"{layout}.gguf"
    if not path.exists():
        random_models.write(path, layout)
    async with aggml.get_device("CPU").backend(n_threads=1) as backend:
        with await open_model(path) as file:
            model: Any = await describe_file(file)
            decoder = await load_decoder(
                backend, file, kind=PagedDecoder, ctx=CTX, sequences=slots + staged_slots(slots),
                rewind=rewind_of(model, slots), ahead=True,
            )  # fmt: skip
        pages = decoder.pages(0, slots)
        budget = slots * pages.need(CTX) + pages.of(2 * CTX)
        engine = Engine(decoder, slots=slots, budget=budget)
        found = await speculation_of(MTP, engine, None, backend, aggml.DType.F16)
        engine.speculation = found if heads else None
        try:
            yield engine
        finally:
            found.drafter.close()
            decoder.close()


def head_batch(tokens: Sequence[int], hidden: npt.NDArray[np.float32], ctx: int) -> Batch:
    """All places of a sequence of a head: a token each, and the hidden state before it."""
    n = len(tokens)
    positions = np.arange(n, dtype=np.int32)[None]
    given = GivenEmbeddings(np.ones((n, 1), np.float32), hidden)
    return Batch((Group(np.array([tokens], np.int32), positions, positions, 0, ctx, given=given),))


# -- against numpy


def rms(x: F64, weight: F64, eps: float) -> F64:
    scale: F64 = np.sqrt((x * x).mean(-1, keepdims=True) + eps)
    return x / scale * weight


def rotated(x: F64, dims: int, base: float) -> F64:
    """Rotary positions of (tokens, heads, head): the first ``dims`` elements, halves as pairs."""
    angles = np.arange(len(x))[:, None] * base ** (-np.arange(0, dims, 2) / dims)
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    a, b, rest = x[..., : dims // 2], x[..., dims // 2 : dims], x[..., dims:]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin, rest], -1)


def of_numpy(
    w: Mapping[str, F64], metadata: Mapping[str, Any], tokens: Sequence[int], hidden: F64
) -> tuple[F64, F64]:
    """Logits and hidden states of the head of qwen35, for all places of a sequence."""
    blk, n = "blk.5.", len(tokens)
    eps = metadata["qwen35.attention.layer_norm_rms_epsilon"]
    heads = metadata["qwen35.attention.head_count"]
    groups = metadata["qwen35.attention.head_count_kv"]
    head, dims = metadata["qwen35.attention.key_length"], metadata["qwen35.rope.dimension_count"]
    base = metadata.get("qwen35.rope.freq_base", 10000.0)
    e = rms(w["token_embd.weight"][list(tokens)], w[f"{blk}nextn.enorm.weight"], eps)
    h = rms(hidden, w[f"{blk}nextn.hnorm.weight"], eps)
    x = np.concatenate([e, h], -1) @ w[f"{blk}nextn.eh_proj.weight"].T
    y = rms(x, w[f"{blk}attn_norm.weight"], eps)
    both = (y @ w[f"{blk}attn_q.weight"].T).reshape(n, heads, 2, head)
    q, gate = both[:, :, 0], both[:, :, 1].reshape(n, -1)
    k = (y @ w[f"{blk}attn_k.weight"].T).reshape(n, groups, head)
    v = (y @ w[f"{blk}attn_v.weight"].T).reshape(n, groups, head)
    q = rotated(rms(q, w[f"{blk}attn_q_norm.weight"], eps), dims, base)
    k = rotated(rms(k, w[f"{blk}attn_k_norm.weight"], eps), dims, base)
    k, v = (z.repeat(heads // groups, 1) for z in (k, v))
    scores = np.einsum("ihd,jhd->hij", q, k) / np.sqrt(head)
    scores = np.where(np.tri(n, dtype=bool), scores, -np.inf)
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    shares /= shares.sum(-1, keepdims=True)
    y = np.einsum("hij,jhd->ihd", shares, v).reshape(n, -1) / (1 + np.exp(-gate))
    x = x + y @ w[f"{blk}attn_output.weight"].T
    y = rms(x, w[f"{blk}post_attention_norm.weight"], eps)
    up, gate = y @ w[f"{blk}ffn_up.weight"].T, y @ w[f"{blk}ffn_gate.weight"].T
    x = x + (up * gate / (1 + np.exp(-gate))) @ w[f"{blk}ffn_down.weight"].T
    out = rms(x, w[f"{blk}nextn.shared_head_norm.weight"], eps)
    return out @ w["output.weight"].T, out


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_the_head_s_logits_are_those_of_numpy(folder: Path) -> None:
    path = folder / "qwen35-ahead.gguf"
    if not path.exists():
        random_models.write(path, "qwen35-ahead")
    async with aggml.get_device("CPU").backend(n_threads=1) as backend:
        with await open_model(path) as file:
            metadata = dict(file.metadata)
            decoder = await load_decoder(backend, file, ctx=CTX, cache="f32", ahead=True)
        arrays = {
            name: np.asarray(x, np.float64)
            for name, x in random_models.weights("qwen35-ahead").items()
        }
        tokens = prompt(40, 3)
        hidden = await decoder.hidden(tokens)
        head = decoder.model.ahead
        assert head is not None
        weights = dict(decoder.weights)
        weights["output_norm.weight"] = weights["blk.5.nextn.shared_head_norm.weight"]
        other = Decoder(backend, head, weights, ctx=CTX, cache="f32", owns_weights=False)
        batch = head_batch(tokens[1:], hidden[:-1], CTX)
        (logits,) = await (await other.queue(batch))
        (out,) = await (await other.queue(batch, hidden=True))
        wanted, states = of_numpy(arrays, metadata, tokens[1:], hidden[:-1].astype(np.float64))
        assert np.asarray(logits).reshape(wanted.shape) == pytest.approx(wanted, abs=2e-3)
        assert np.asarray(out).reshape(states.shape) == pytest.approx(states, abs=2e-3)
        assert np.abs(wanted).max() > 0.5
        other.close()
        decoder.close()


# -- in the engine


async def drafts_from_the_beginning(
    engine: Engine, cases: Sequence[tuple[list[int], list[int]]]
) -> list[list[int]]:
    """For each sequence the draft of the same length that a head makes from its beginning."""
    decoder: Any = engine.decoder
    assert engine.speculation is not None
    drafter: Any = engine.speculation.drafter
    backend = decoder.site.backends[0]
    whole = Decoder(backend, decoder.model, decoder.weights, ctx=CTX, owns_weights=False)
    head = Decoder(
        backend, decoder.model.ahead, drafter.decoder.weights, ctx=CTX, owns_weights=False
    )
    found = []
    for tokens, draft in cases:
        hidden = await whole.hidden(tokens[:-1])
        made: list[int] = []
        for _ in draft:
            batch = head_batch([*tokens[1:], *made], hidden, CTX)
            (logits,) = await (await head.queue(batch))
            rows = np.asarray(logits).reshape(len(tokens) - 1 + len(made), -1)
            made.append(int(rows[-1].argmax()))
            (out,) = await (await head.queue(batch, hidden=True))
            hidden = np.concatenate([hidden, np.asarray(out).reshape(len(rows), -1)[-1:]])
        found.append(made)
    whole.close()
    head.close()
    return found


@pytest.mark.long(cases=1)
@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("layout", LAYOUTS)
async def test_drafts_are_those_of_a_head_that_computes_all_of_the_sequence(
    layout: str, folder: Path, always: None
) -> None:
    async with engines(folder, layout, heads=False) as engine:
        wanted = await together(engine, requests(3))
        cases = [request(prompt(70, i), 30) for i in range(2)]
        then = await together(engine, cases)
    async with engines(folder, layout) as engine:
        assert engine.speculation is not None
        drafter: Any = engine.speculation.drafter
        make, seen = drafter.draft, []

        def watch(those: Mapping[TextRequest, int]) -> Any:
            found = make(those)
            for one, draft in (found or {}).items():
                if one.sampler.temperature == 0:
                    seen.append((list(one.tokens), list(draft)))
            return found

        drafter.draft = watch
        assert await together(engine, requests(3)) == wanted
        assert await together(engine, [request(prompt(70, i), 30) for i in range(2)]) == then
        some = seen[:: max(1, len(seen) // 8)]
        assert len(some) > 5
        assert len({len(draft) for _, draft in seen}) > 1
        assert [x for _, x in some] == await drafts_from_the_beginning(engine, some)


@pytest.mark.long(cases=1)
@pytest.mark.anyio
@pytest.mark.parametrize("layout", ["qwen35-ahead", "glm4moe-normed", "hy_v3-ahead"])
async def test_answers_with_drafts_of_the_head_are_the_same(
    layout: str, folder: Path, always: None
) -> None:
    async with engines(folder, layout, heads=False) as engine:
        wanted = await together(engine, repeating())
    async with engines(folder, layout) as engine:
        assert await together(engine, repeating()) == wanted
        counters = engine.counters
        assert counters.drafts > 10
        assert 0 < counters.accepted_tokens < counters.draft_tokens


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_hidden_states_of_a_long_prompt_are_used_up_while_it_is_processed(
    folder: Path, always: None
) -> None:
    layout = "glm4moe-normed"
    async with engines(folder, layout, heads=False) as engine:
        wanted = await answer(engine, request(prompt(450, 2), 40))
    async with engines(folder, layout) as engine:
        assert engine.speculation is not None
        drafter: Any = engine.speculation.drafter
        engine.chunk = 64
        other, most = request(prompt(5, 1), 200), 0
        engine.submit(other)
        await engine.next(other)  # beside it a step takes 64 tokens at most
        observe = drafter.observe

        def watch(one: TextRequest, first: int, hidden: Any) -> None:
            nonlocal most
            observe(one, first, hidden)
            most = max(most, *(len(x.hidden) for x in drafter._fed.values()), 0)

        drafter.observe = watch
        assert await answer(engine, request(prompt(450, 2), 40)) == wanted
        assert 0 < most < 450
        assert engine.counters.drafts > 5
        engine.cancel(other)


@pytest.mark.long(cases=1)
@pytest.mark.anyio
async def test_sequences_come_and_go_beside_drafts_of_the_head(folder: Path, always: None) -> None:
    layout = "qwen35-ahead"
    wanted = await expected(folder, layout)
    async with engines(folder, layout) as engine:
        engine.pages.budget = 2 * engine.pages.need(200)

        async def several(seed: int) -> None:
            await use(engine, wanted, seed, 6, fails=False)

        async with anyio.create_task_group() as tasks:
            for seed in range(4):
                tasks.start_soon(several, seed)
        await settle(engine)
        assert engine.speculation is not None
        assert engine.counters.drafts > 5
        drafter: Any = engine.speculation.drafter
        assert await answer(engine, kind(KINDS - 1)) == wanted[KINDS - 1]
        assert len(drafter._fed) <= engine.slots


@pytest.mark.long
@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_drafts_of_the_head_do_not_change_the_distribution(
    folder: Path, always: None
) -> None:
    start, layout = prompt(9, 4), "qwen35-ahead"
    async with engines(folder, layout, heads=False) as engine:
        law = await law_of(engine, start)
    async with engines(folder, layout) as engine:
        await check_law(engine, start, law, 200, tasks=1)  # none is made beside a prompt
        assert engine.counters.drafts == 200


@pytest.mark.long(cases=1)
@pytest.mark.anyio
async def test_a_step_that_fails_beside_drafts_of_the_head_fails_only_its_requests(
    folder: Path, always: None
) -> None:
    layout = "glm4moe-normed"
    wanted = await expected(folder, layout)
    async with engines(folder, layout) as engine:
        failed = spoil(engine, random.Random(5), 0.03)

        async def several(seed: int) -> None:
            await use(engine, wanted, seed, 6, fails=True)

        async with anyio.create_task_group() as tasks:
            for seed in range(4):
                tasks.start_soon(several, seed)
        await settle(engine)
        assert failed[0]
        assert engine.speculation is not None


@pytest.mark.anyio
async def test_a_head_that_fails_ends_speculation_and_no_answer(folder: Path, always: None) -> None:
    layout = "glm4moe-normed"
    async with engines(folder, layout, heads=False) as engine:
        wanted = await together(engine, requests())
    async with engines(folder, layout) as engine:
        assert engine.speculation is not None
        drafter: Any = engine.speculation.drafter
        run, left = drafter.decoder.run_step, [9]

        def fail(*args: Any, **named: Any) -> Any:
            left[0] -= 1
            if not left[0]:
                raise aggml.Unsupported("the head cannot be computed")
            return run(*args, **named)

        drafter.decoder.run_step = fail
        assert await together(engine, requests()) == wanted
        assert left[0] == 0
        assert engine.speculation is None
        assert engine.counters.drafts > 0
