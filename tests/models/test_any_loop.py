"""A model of each kind is used from several threads, each with an event loop of its own.

Synchronous endpoints of Flask and FastAPI do that: each request has a thread, and runs a loop for
the call. Not here: random programs of that sort (tests/fuzz/models.py).
"""

from __future__ import annotations

import os
import re
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import numpy as np
import pytest
from models import random_models, speech_file
from support import in_a_thread

import aggml
from aggml.devices.sim import SimDevice
from examples import llama_files

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

LOOPS = ("asyncio", "trio")


def in_threads(n: int, work: Callable[[int], Awaitable[Any]], times: int = 3) -> dict[int, Any]:
    """The results of ``work``, called by each of ``n`` threads in a new loop each time."""
    found: dict[int, Any] = {}
    failures: list[BaseException] = []

    def one(i: int) -> None:
        try:
            for k in range(times):
                found[i] = anyio.run(partial(work, i), backend=LOOPS[(i + k) % 2])
        except BaseException as error:
            failures.append(error)

    def run() -> None:
        threads = [threading.Thread(target=one, args=(i,), daemon=True) for i in range(n)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    in_a_thread(run)
    if failures:
        raise failures[0]
    return found


@pytest.mark.parametrize("slots", [1, 2])
def test_generations_of_many_threads(tmp_path: Path, slots: int) -> None:
    path = llama_files.write(tmp_path / "llama.gguf")

    async def opened() -> aggml.models.Model:
        return await aggml.models.load(path, ctx=256, slots=slots)

    model = anyio.run(opened)

    async def work(i: int) -> list[int]:
        return [t.id async for t in model.generate([1, 40 + i], max_tokens=6, stop_ids=[])]

    wanted = {i: anyio.run(work, i, backend="trio") for i in range(8)}
    assert in_threads(8, work) == wanted
    anyio.run(model.aclose, backend="trio")


def test_a_generation_goes_on_in_another_loop(tmp_path: Path) -> None:
    path = llama_files.write(tmp_path / "llama.gguf")
    model = anyio.run(partial(aggml.models.load, path, ctx=256))

    async def whole() -> list[int]:
        return [t.id async for t in model.generate([1, 40], max_tokens=8, stop_ids=[])]

    async def some(n: int) -> list[int]:
        return [(await anext(tokens)).id for _ in range(n)]

    wanted = anyio.run(whole)
    tokens = model.generate([1, 40], max_tokens=8, stop_ids=[])
    found = [anyio.run(some, n, backend=loop) for n, loop in ((3, "trio"), (5, "asyncio"))]
    assert found[0] + found[1] == wanted
    anyio.run(model.aclose)


def test_logits_and_vectors_of_many_threads(tmp_path: Path) -> None:
    path = random_models.write(tmp_path / "llama.gguf", "llama")
    model = anyio.run(partial(aggml.models.load, path, ctx=256, slots=1))

    async def work(i: int) -> list[Any]:
        return [await model.logits([1, 2 + i]), await model.embed_ids([[3 + i], [4, 5]])]

    wanted = {i: anyio.run(work, i) for i in range(4)}
    found = in_threads(4, work)
    # One sequence at a time: what shares a step decides the order of some sums.
    for i, arrays in wanted.items():
        for one, other in zip(arrays, found[i], strict=True):
            np.testing.assert_array_equal(one, other)
    anyio.run(model.aclose, backend="trio")


@pytest.mark.parametrize("scheduled", [False, True])
def test_vectors_of_an_encoder(tmp_path: Path, scheduled: bool) -> None:
    path = random_models.write(tmp_path / "bert.gguf", "bert")
    backends = [SimDevice("SIM").backend(), aggml.get_device("CPU").backend(n_threads=2)]
    on = aggml.Scheduler(backends, parallel=True) if scheduled else backends[1]
    model = anyio.run(partial(aggml.models.load, path, on))
    texts = random_models.texts()

    async def work(i: int) -> Any:
        return await model.embed_ids(texts[i % len(texts) :])

    wanted = {i: anyio.run(work, i) for i in range(4)}
    found = in_threads(4, work)
    for i in wanted:
        np.testing.assert_allclose(found[i], wanted[i], atol=2e-5)

    async def end() -> None:
        await model.aclose()
        if isinstance(on, aggml.Scheduler):
            await on.aclose()
        for backend in backends:
            await backend.aclose()

    anyio.run(end, backend="trio")


@pytest.mark.long
def test_recordings_of_many_threads(tmp_path: Path) -> None:
    speech_file.write_short(path := tmp_path / "random.bin")
    # One window at a time: what shares a batch decides the order of some sums.
    model = anyio.run(partial(aggml.models.load, path, slots=1))
    assert isinstance(model, aggml.models.SpeechModel)
    model._ready().most = 8  # with random weights no window ends by itself

    async def work(i: int) -> list[Any]:
        samples = speech_file.sound(1 + i)
        return [x async for x in model.transcribe(samples, language="en", temperature=0)]

    wanted = {i: anyio.run(work, i) for i in range(3)}
    assert in_threads(3, work, times=2) == wanted
    anyio.run(model.aclose, backend="trio")


def test_a_cancelled_wait_in_another_thread_frees_nothing_that_it_has_not(tmp_path: Path) -> None:
    path = llama_files.write(tmp_path / "llama.gguf")
    model = anyio.run(partial(aggml.models.load, path, ctx=256))

    async def impatient(i: int) -> None:
        with anyio.move_on_after(0.0001 * i):
            await model.logits([5, 6])

    async def patient() -> Any:
        return await model.logits([5, 6])

    wanted = anyio.run(patient)
    in_threads(6, impatient, times=10)
    np.testing.assert_array_equal(anyio.run(patient), wanted)
    assert re.search(r", 0 of \d+ slots>", repr(model))
    anyio.run(model.aclose)


def test_a_child_of_a_fork_is_told_to_load_the_model_itself(tmp_path: Path) -> None:
    path = random_models.write(tmp_path / "llama.gguf", "llama")
    model = anyio.run(aggml.models.load, path)
    child = os.fork()
    if not child:
        try:
            model.generate([1])
        except aggml.InvalidState as error:
            os._exit(17 if "parent process of a fork: load it" in str(error) else 2)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 17
    anyio.run(model.aclose)
