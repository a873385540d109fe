"""The engine with recurrent states: each sequence gets the tokens that it gets alone.

Here: joining, leaving, moving to other slots, preemption, steps that fail, memory. Not here: states
themselves (../test_states.py), continuous batching as such (test_engine.py).
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel
import numpy as np
import pytest
from models import random_models
from models.engine.running import CTX, all_of, engine_of, running, until
from models.layout import VOCABULARY

import aggml
from aggml.models import ModelError
from aggml.models.engine.engine import STAGED
from aggml.models.engine.requests import TextRequest
from aggml.models.errors import EngineError, TooLongError
from aggml.models.kv.paging import PAGE, PagedDecoder, budget_of
from aggml.models.loading import load_decoder
from aggml.models.weights import open_model

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from aggml.devices.sim import SimDevice
    from aggml.models.decoder.batch import Shape
    from aggml.models.decoder.step import Step
    from aggml.models.text_model import TextModel

LAYOUTS = [
    "mamba2-groups", "rwkv7-two-heads", "qwen3next", "granitehybrid", "qwen35", "lfm2",
    "nemotron_h", "falcon-h1", "mamba", "jamba",
]  # fmt: skip


def written(folder: Path, layout: str) -> Path:
    return random_models.write(folder / f"{layout}.gguf", layout)


@asynccontextmanager
async def loaded(folder: Path, layout: str, slots: int) -> AsyncIterator[PagedDecoder]:
    async with aggml.get_device("CPU").backend(n_threads=2) as backend:
        with await open_model(written(folder, layout)) as file:
            yield await load_decoder(
                backend, file, kind=PagedDecoder, ctx=CTX, sequences=slots + STAGED, cache="f32"
            )


def prompts(lengths: Sequence[int]) -> list[list[int]]:
    random = np.random.default_rng(11)
    return [random.integers(3, VOCABULARY, n).tolist() for n in lengths]


async def alone(
    folder: Path, layout: str, asked: Sequence[tuple[list[int], int]]
) -> list[list[int]]:
    """The best tokens, one step after the other with a decoder of its own."""
    found = []
    async with aggml.get_device("CPU").backend(n_threads=2) as backend:
        with await open_model(written(folder, layout)) as file:
            decoder = await load_decoder(backend, file, ctx=CTX, cache="f32")
        for ids, n in asked:
            made = [int((await decoder.prefill(0, ids)).argmax())]
            while len(made) < n:
                (row,) = await decoder.decode([made[-1]], [len(ids) + len(made) - 1])
                made.append(int(row.argmax()))
            found.append(made)
        decoder.close()
    return found


@pytest.mark.long(cases=1)
@pytest.mark.parametrize("layout", LAYOUTS)
async def test_sequences_that_come_and_go_get_what_each_gets_alone(
    tmp_path: Path, layout: str
) -> None:
    given = prompts([1, 37, 5, 64, 20, 3, 150, 9])
    asked = [(ids, 4 + 7 * i % 19) for i, ids in enumerate(given)]
    found: list[list[int]] = [[] for _ in asked]

    async def one(model: TextModel, i: int) -> None:
        found[i] = await all_of(model, *asked[i])

    async with running(written(tmp_path, layout), slots=3, cache="f32") as model:
        async with anyio.create_task_group() as tasks:
            for i in range(len(asked)):
                tasks.start_soon(one, model, i)
                for _ in range(i % 5):
                    await anyio.lowlevel.checkpoint()
        engine = engine_of(model)
        engine.turn()
        assert (engine.pages.used, engine.active, engine.queued) == (0, 0, 0)
    assert found == await alone(tmp_path, layout, asked)


@pytest.mark.long(cases=1)
@pytest.mark.parametrize("layout", ["mamba2-groups", "granitehybrid"])
async def test_whoever_leaves_changes_nobody_s_answer(tmp_path: Path, layout: str) -> None:
    """Freed slots are given to new sequences, and the sequence in the highest slot moves down."""
    asked = [(ids, 40) for ids in prompts([30, 12, 45, 7])]
    wanted = await alone(tmp_path, layout, asked)
    found: dict[int, list[int]] = {}

    async with running(written(tmp_path, layout), cache="f32") as model:

        async def leaves(i: int, after: int) -> None:
            stream = model.generate(asked[i][0], max_tokens=40, stop_ids=())
            for _ in range(after):
                await anext(stream)
            await stream.aclose()

        async def stays(i: int) -> None:
            found[i] = await all_of(model, *asked[i])

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(leaves, 0, 2)
            tasks.start_soon(leaves, 1, 5)
            tasks.start_soon(leaves, 2, 1)
            tasks.start_soon(stays, 3)  # it begins in the highest slot
        async with anyio.create_task_group() as tasks:
            for i in range(3):
                tasks.start_soon(stays, i)
    assert [found[i] for i in range(4)] == wanted


@pytest.mark.long(cases=2)
@pytest.mark.parametrize("swap", [0, 1 << 30])
@pytest.mark.parametrize("layout", LAYOUTS)
async def test_a_preempted_sequence_goes_on_with_the_same_tokens(
    tmp_path: Path, layout: str, swap: int
) -> None:
    asked = [(ids, 25) for ids in prompts([40, 20, 9])]
    wanted = await alone(tmp_path, layout, asked)
    async with running(written(tmp_path, layout), slots=1, cache="f32", swap=swap) as model:
        engine = engine_of(model)
        stream = model.generate(asked[0][0], max_tokens=25, stop_ids=())
        found = [(await anext(stream)).id for _ in range(4)]
        for i in (1, 2):
            assert await all_of(model, *asked[i], priority=i) == wanted[i]
        found += [x.id async for x in stream]
        assert engine.counters.preemptions >= 1
        assert engine._swapped == 0
    assert found == wanted[0]


async def test_a_step_that_fails_fails_its_sequences_alone(
    tmp_path: Path, sim_device: SimDevice
) -> None:
    asked = [(ids, 12) for ids in prompts([20, 9])]
    (wanted,) = await alone(tmp_path, "rwkv7-two-heads", asked[1:])
    file = written(tmp_path, "rwkv7-two-heads")
    async with running(file, device=sim_device, cache="f32") as model:
        sim_device.fail_at(5, "compute")
        with pytest.raises(EngineError, match="injected fault"):
            await all_of(model, *asked[0])
        assert await all_of(model, *asked[1]) == wanted


@pytest.mark.long(cases=2)
@pytest.mark.parametrize("k", range(2, 8))
async def test_the_error_of_a_step_is_told_if_it_fails_while_the_next_one_is_planned(
    tmp_path: Path, sim_device: SimDevice, monkeypatch: pytest.MonkeyPatch, k: int
) -> None:
    """The state is lost between the look for ended steps and the launch of the step behind."""
    asked = [(ids, 12) for ids in prompts([20, 9])]
    (wanted,) = await alone(tmp_path, "rwkv7-two-heads", asked[1:])
    file = written(tmp_path, "rwkv7-two-heads")
    async with running(file, device=sim_device, cache="f32") as model:
        engine = engine_of(model)

        find_step = engine.decoder.find_step

        def find_after_all_have_ended(shape: Shape) -> Step | None:
            for flight in engine._flights:
                assert flight.future.wait(60)
            return find_step(shape)

        monkeypatch.setattr(engine.decoder, "find_step", find_after_all_have_ended)
        sim_device.fail_at(k, "compute")
        with pytest.raises(EngineError, match="injected fault"):
            await all_of(model, *asked[0])
        assert await all_of(model, *asked[1]) == wanted
        assert engine.counters.failed_steps == 1


async def test_a_step_that_is_aborted_leaves_no_state_behind(tmp_path: Path) -> None:
    """The state is lost with the step; the next sequence in that slot begins with a new one."""
    asked = [(ids, 12) for ids in prompts([20, 9])]
    first, wanted = await alone(tmp_path, "mamba2-groups", asked)
    async with running(written(tmp_path, "mamba2-groups"), slots=1, cache="f32") as model:
        engine = engine_of(model)
        assert await all_of(model, *asked[0]) == first  # its graphs are kept
        stream = engine.decoder.site.host.stream
        with stream.hold():
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(all_of, model, *asked[0])
                await until(lambda: engine._flights)
                tasks.cancel_scope.cancel()
        assert await all_of(model, *asked[1]) == wanted
        assert await all_of(model, *asked[0]) == first
        assert engine.counters.failed_steps == 0


async def test_states_count_as_memory(tmp_path: Path) -> None:
    async with loaded(tmp_path, "mamba2-groups", 4) as decoder:
        state = decoder.page_bytes()
        assert budget_of(3 * state, decoder) == 3
        pages = decoder.pages(3, 4)
        assert [pages.take(400) for _ in range(4)] == [0, 1, 2, None]
        assert (pages.need(1), pages.need(CTX)) == (1, 1)
        with pytest.raises(ModelError, match=f"less than one page needs: {state} bytes"):
            budget_of(state - 1, decoder)
    async with loaded(tmp_path, "granitehybrid", 4) as decoder:
        fixed = decoder.pages(0, 1).need(1) - 1
        assert fixed > 0
        with pytest.raises(
            ModelError, match="less than the state of a sequence and one page needs"
        ):
            budget_of(fixed * decoder.page_bytes(), decoder)
        assert decoder.pages(0, 1).need(3 * PAGE) == fixed + 3
    file = written(tmp_path, "granitehybrid")
    async with running(file, budget=fixed + 2, cache="f32") as model:
        engine_of(model).check([TextRequest([1] * PAGE, PAGE)])
        with pytest.raises(
            TooLongError, match=f"need {fixed + 3} pages of 64 positions, there are {fixed + 2}"
        ):
            engine_of(model).check([TextRequest([1] * PAGE, PAGE + 1)])
