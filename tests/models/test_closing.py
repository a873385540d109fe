"""Closing a model while other tasks use it: right results or "the model is closed", nothing else.

Not here: that memory is freed at all (test_freeing.py).
"""

from __future__ import annotations

import gc
import threading
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import numpy as np
import pytest
from anyio.lowlevel import checkpoint
from models import random_models, speech_file
from support import in_a_thread

import aggml
from aggml.devices.sim import SimDevice
from aggml.models.lifetime import Lifetime

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from aggml.models import Model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def llama(folder: Path) -> Path:
    return random_models.write(folder / "llama.gguf", "llama")


@pytest.fixture(scope="module")
def bert(folder: Path) -> Path:
    return random_models.write(folder / "bert.gguf", "bert")


async def logits(model: Model) -> Any:
    return await model.logits([1, 2, 3])


async def told(model: Model) -> Any:
    return [t.id async for t in model.generate([1, 2, 3], max_tokens=4)]


async def vectors(model: Model) -> Any:
    return await model.embed_ids([[1, 2], [3, 4, 5]])


async def closed_at(
    model: Model, use: Callable[[Model], Any], turns: int, found: list[Any]
) -> bool:
    """Close the model ``turns`` turns of the loop after ``use`` began; whether it was too late."""
    done = late = False

    async def run() -> None:
        nonlocal done
        try:
            found.append(await use(model))
        except aggml.InvalidState as error:
            if "the model is closed" not in str(error):
                raise
        done = True

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        for _ in range(turns):
            await checkpoint()
        late = done
        await model.aclose()
    return late


@pytest.mark.long(cases=1)
@pytest.mark.parametrize("place", ["own", "backend", "scheduler"])
@pytest.mark.parametrize("use", [logits, told, vectors])
async def test_a_model_that_is_closed_while_a_step_is_built(
    llama: Path, use: Callable[[Model], Any], place: str
) -> None:
    await _closed(partial(aggml.models.load, llama, ctx=256), use, place)


@pytest.mark.long(cases=1)
@pytest.mark.parametrize("place", ["own", "backend", "scheduler"])
async def test_an_encoder_that_is_closed_while_a_step_is_built(bert: Path, place: str) -> None:
    await _closed(partial(aggml.models.load, bert), vectors, place)


async def _closed(load: Any, use: Callable[[Model], Any], place: str) -> None:
    """Close models after more and more turns, until the call is done by then."""
    cpu = aggml.get_device("CPU")
    async with (
        cpu.backend(n_threads=1) as backend,
        SimDevice("SIM").backend() as sim,
        aggml.Scheduler([sim, backend], parallel=True) as scheduler,
    ):
        on = {"own": (), "backend": (backend,), "scheduler": (scheduler,)}[place]
        async with await load(*on) as model:
            wanted = await use(model)
        found: list[Any] = []
        turns, late = 0, False
        while not late and turns < 400:
            late = await closed_at(await load(*on), use, turns, found)
            turns += 1 if turns < 24 else turns // 4
        for result in found:
            np.testing.assert_allclose(result, wanted, atol=2e-5)


async def test_a_model_that_another_thread_closes(llama: Path) -> None:
    async with aggml.get_device("CPU").backend(n_threads=1) as backend:
        async with await aggml.models.load(llama, backend, ctx=256) as model:
            wanted = await logits(model)
        for _ in range(8):
            model = await aggml.models.load(llama, backend, ctx=256)
            begun, results = threading.Event(), list[Any]()

            async def work(model: Model = model, begun: Any = begun, to: Any = results) -> None:
                begun.set()
                try:
                    while True:
                        to.append(await logits(model))
                except aggml.InvalidState as error:
                    if "the model is closed" not in str(error):
                        raise

            async with anyio.create_task_group() as tasks:
                run = partial(in_a_thread, partial(anyio.run, work))
                tasks.start_soon(anyio.to_thread.run_sync, run)
                await anyio.to_thread.run_sync(begun.wait)
                await model.aclose()
            for result in results:
                np.testing.assert_array_equal(result, wanted)


@pytest.mark.long(cases=1)
async def test_a_recording_whose_model_is_closed(folder: Path) -> None:
    speech_file.write_short(path := folder / "random.bin")
    model = await aggml.models.load(path)
    assert isinstance(model, aggml.models.SpeechModel)
    model._ready().most = 40
    found: list[Any] = []
    use = partial(_heard, seconds=2)
    await closed_at(model, use, 40, found)


async def _heard(model: Model, seconds: int) -> Any:
    samples = speech_file.sound(seconds)
    return [x async for x in model.transcribe(samples, language="en", temperature=0)]


async def test_every_call_on_a_closed_model_says_so(llama: Path, bert: Path) -> None:
    model, encoder = await aggml.models.load(llama, ctx=256), await aggml.models.load(bert)
    tokens = model.generate([1, 2], max_tokens=9)
    await anext(tokens)
    await model.aclose()
    await encoder.aclose()
    said = r"^\[\w+\] the model is closed: load it again$"
    with pytest.raises(aggml.InvalidState, match=said):
        await anext(tokens)
    with pytest.raises(aggml.InvalidState, match=said):
        model.generate([1])
    for call in (model.logits([1]), model.embed_ids([[1]]), encoder.embed_ids([[1]]),
                 encoder.rerank("a", ["b"]), encoder.embed(["a"])):  # fmt: skip
        with pytest.raises(aggml.InvalidState, match=said):
            await call


async def test_a_call_that_comes_while_the_model_is_being_closed_hears_that(
    llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = await aggml.models.load(llama, ctx=256)
    assert isinstance(model, aggml.models.TextModel)
    begun, go = anyio.Event(), anyio.Event()

    async def flush() -> None:
        begun.set()
        await go.wait()

    monkeypatch.setattr(model.engine, "flush", flush)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(model.aclose)
        await begun.wait()
        try:
            with pytest.raises(aggml.InvalidState, match="the model is closed"):
                await told(model)
        finally:
            go.set()


@pytest.mark.parametrize("kind", ["llama", "bert"])
async def test_a_closed_model_keeps_no_tensor_while_it_is_referred_to(
    folder: Path, kind: str
) -> None:
    path = random_models.write(folder / f"{kind}.gguf", kind)
    async with aggml.get_device("CPU").backend(n_threads=1) as backend:
        model = await aggml.models.load(path, backend)
        await vectors(model)
        if kind == "llama":
            await told(model)
        computer: Any = model._computer
        weights = [weakref.ref(x.buffer) for x in computer.weights.values()]
        caches = [] if kind == "bert" else computer.caches.all
        arrays = [weakref.ref(x.buffer) for x in caches]
        graphs = (
            [weakref.ref(x.graph) for worker in computer._workers for x in worker.programs.values()]
            if kind == "bert"
            else [weakref.ref(x.graph) for x in computer._steps._kept.values()]
        )
        assert weights
        assert graphs
        del caches
        await model.aclose()
        await backend.synchronize()
        backend.stream.native.release_finished()  # a stream keeps what it read until it looks again
        gc.collect()
        left = [x for ref in weights + arrays + graphs if (x := ref()) is not None]
        assert left == []
        assert "closed" in repr(model)


def test_what_is_in_use_is_freed_by_its_last_user() -> None:
    class Owner:
        freed = 0

        def free(self) -> None:
            self.freed += 1

    owner = Owner()
    life = Lifetime(owner.free)
    one, two = life.use("one"), life.use("two")
    one.__enter__()
    two.__enter__()
    life.close()
    assert owner.freed == 0
    with pytest.raises(aggml.InvalidState, match=r"\[three\] the model is closed"):
        life.use("three").__enter__()
    one.__exit__(None, None, None)
    assert owner.freed == 0
    with pytest.raises(aggml.InvalidState, match=r"\[two\] the model is closed"):
        two.__exit__(None, aggml.DeviceError("gone"), None)
    life.close()
    assert owner.freed == 1


@pytest.mark.parametrize("kind", ["llama", "bert"])
async def test_a_closed_model_keeps_nothing_of_its_own_backend(folder: Path, kind: str) -> None:
    model = await aggml.models.load(random_models.write(folder / f"{kind}.gguf", kind))
    await vectors(model)
    backend = weakref.ref(model._owned)
    await model.aclose()
    gc.collect()
    assert backend() is None  # and with it its scratch memory
    assert model.vocabulary_size
    assert model.width
