"""Pages are stored while the next step runs; slots and stored pages wait for the copy.

Here: copies that are held up. Not here: which pages are stored (test_prefixes.py).
"""

from __future__ import annotations

from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING

import anyio
import numpy as np
import pytest
from aggml.models.engine.jobs import Job
from anyio.lowlevel import checkpoint
from serve.support import until

import aggml
from aggml.models.decoder.sampling import Sampler
from aggml.models.engine.engine import STAGED, Engine
from aggml.models.kv.paging import PagedDecoder
from aggml.models.loading import load_decoder
from aggml.models.weights import open_model
from examples import llama_files

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from aggml.models.kv.copying import Run

PATIENCE = 60


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return llama_files.write(tmp_path_factory.mktemp("models") / "llama.gguf")


@asynccontextmanager
async def running(file: Path, *, slots: int) -> AsyncIterator[Engine]:
    with await open_model(file) as opened:
        async with aggml.get_device("CPU").backend() as backend:
            model = await load_decoder(
                backend, opened, kind=PagedDecoder, ctx=512, sequences=slots + STAGED + 4
            )
            async with Engine(model, slots=slots, budget=64, stored=32, chunk=32) as engine:
                with anyio.fail_after(PATIENCE):
                    yield engine


class Held:
    """Holds up the first copy of rows until ``go`` is set."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.begun, self.go = anyio.Event(), anyio.Event()
        copy = PagedDecoder.copy_rows

        async def held(model: PagedDecoder, runs: Sequence[Run]) -> None:
            if not self.begun.is_set():
                self.begun.set()
                await self.go.wait()
            await copy(model, runs)

        patch.setattr(PagedDecoder, "copy_rows", held)


def job_of(seed: int, n: int) -> Job:
    prompt = [1, *np.random.default_rng(seed).integers(3, 290, 99).tolist()]
    return Job(prompt, n, Sampler(temperature=0))


async def run(engine: Engine, job: Job) -> None:
    async with aclosing(engine.stream(job)) as stream:
        async for _ in stream:
            pass


async def alone(file: Path, seed: int, n: int) -> list[int]:
    job = job_of(seed, n)
    async with running(file, slots=1) as engine:
        await run(engine, job)
    return job.made


async def test_steps_go_on_while_a_page_is_copied(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = await alone(file, 1, 20)
    held = Held(monkeypatch)
    async with running(file, slots=1) as engine:
        job = job_of(1, 20)
        async with aclosing(engine.stream(job)) as stream:
            async for _ in stream:
                assert not held.go.is_set()
                if len(job.made) == 20:
                    break
        assert held.begun.is_set()
        held.go.set()
        again = job_of(1, 20)
        await run(engine, again)
    assert job.made == again.made == expected
    assert again.cached == 64


async def test_a_slot_is_free_once_its_page_is_copied(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = await alone(file, 3, 5)
    held = Held(monkeypatch)
    first, second = job_of(2, 3), job_of(3, 5)
    async with running(file, slots=1) as engine, anyio.create_task_group() as tasks:
        await run(engine, first)
        assert held.begun.is_set()
        tasks.start_soon(run, engine, second)
        for _ in range(100):
            await checkpoint()
        assert (first.slot, second.slot, engine.queued) == (0, None, 1)
        held.go.set()
    assert second.made == expected


async def test_a_prompt_waits_for_the_stored_page_that_it_reuses(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = await alone(file, 4, 8)
    held = Held(monkeypatch)
    first, second = job_of(4, 8), job_of(4, 8)
    async with running(file, slots=2) as engine, anyio.create_task_group() as tasks:
        tasks.start_soon(run, engine, first)
        await held.begun.wait()
        tasks.start_soon(run, engine, second)
        await until(lambda: second.staged is not None)  # which pages it takes is decided
        held.go.set()
    assert first.made == second.made == expected
    assert second.cached == 64


async def test_an_engine_that_is_closed_forgets_the_page_that_was_being_copied(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(monkeypatch)
    async with running(file, slots=1) as engine:
        await run(engine, job_of(5, 3))
        assert held.begun.is_set()
        assert len(engine.prefixes) == 1
    assert len(engine.prefixes) == 0
