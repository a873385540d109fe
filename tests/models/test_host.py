"""Several models in one process: loaded when used, unloaded for others, within the bound of memory.

Not here: how much memory a model takes (test_fit.py).
"""

from __future__ import annotations

import gc
import random
import subprocess
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from models import random_models, speech_file
from support import child, in_threads

import aggml
from aggml.models import Host, MemoryShortage, ModelError, fit, load
from aggml.models.host import Clearance, Neighbour, make_room

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from aggml.models import Model

NAMES = ("llama", "qwen2", "gemma2")
OPTIONS: dict[str, Any] = {"ctx": 256, "slots": 2}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    found = {name: random_models.write(folder / f"{name}.gguf", name) for name in NAMES}
    found["bert"] = random_models.write(folder / "bert.gguf", "bert")
    speech_file.write_short(folder / "speech.bin", 32)
    return found | {"speech": folder / "speech.bin"}


@pytest.fixture(scope="module")
def totals(files: dict[str, Path]) -> dict[str, int]:
    """Bytes that each model may take."""
    return {name: anyio.run(partial(fit, files[name], **OPTIONS)).total for name in NAMES}


@pytest.fixture(scope="module")
def answers(files: dict[str, Path]) -> dict[tuple[str, int], list[int]]:
    """What each model answers alone."""
    found = {}

    async def alone(name: str) -> None:
        async with load(files[name], **OPTIONS) as model:
            for first in range(4):
                found[name, first] = await answer(model, first)

    for name in NAMES:
        anyio.run(alone, name)
    return found


async def answer(model: Model, first: int) -> list[int]:
    return [t.id async for t in model.generate([first, 5], max_tokens=6, stop_ids=[])]


def host_of(files: dict[str, Path], memory: int | None = None, **options: Any) -> Host:
    host = Host(memory=memory, **options)
    for name in NAMES:
        host.add(name, files[name], **OPTIONS)
    return host


def loaded(host: Host) -> list[str]:
    return [name for name, x in host.models.items() if x.state == "loaded"]


def taken(host: Host) -> int:
    return sum(status.bytes for status in host.models.values())


# -- use


async def test_a_model_is_loaded_at_its_first_use_and_stays(
    files: dict[str, Path], answers: dict[tuple[str, int], list[int]]
) -> None:
    async with host_of(files) as host:
        assert {x.state for x in host.models.values()} == {"unloaded"}
        assert taken(host) == 0
        async with host.use("llama") as model:
            first = model
            assert loaded(host) == ["llama"]
            assert host.models["llama"].uses == 1
            assert await answer(model, 1) == answers["llama", 1]
        async with host.use("llama") as model:
            assert model is first
        status = host.models["llama"]
        assert status.state == "loaded"
        assert status.uses == 2
        assert status.bytes == first.memory.total > 0
        assert status.last_used is not None
        assert host.models["qwen2"].last_used is None
    assert first.closed
    assert loaded(host) == []


@pytest.mark.long
async def test_encoders_and_models_of_speech_are_models_too(files: dict[str, Path]) -> None:
    async with Host() as host:
        host.add("bert", files["bert"])
        host.add("speech", files["speech"])
        async with host.use("bert") as bert, host.use("speech") as speech:
            assert (await bert.embed_ids([[1, 2]])).shape == (1, bert.width)
            async for _ in speech.transcribe(np.zeros(1600, np.float32), temperature=0.0):
                pass
        assert loaded(host) == ["bert", "speech"]


async def test_all_who_come_while_it_is_loaded_share_it(files: dict[str, Path]) -> None:
    models: list[Model] = []

    async def one() -> None:
        async with host.use("llama") as model:
            models.append(model)

    async with host_of(files) as host:
        async with anyio.create_task_group() as tasks:
            for _ in range(8):
                tasks.start_soon(one)
        assert len(models) == 8
        assert len(set(map(id, models))) == 1
        assert host.models["llama"].uses == 8


async def test_the_least_recently_used_one_makes_room(
    files: dict[str, Path], totals: dict[str, int]
) -> None:
    two = max(totals.values()) * 2
    async with host_of(files, two) as host:
        for name in NAMES[:2]:
            async with host.use(name):
                pass
        async with host.use(NAMES[0]):
            pass
        # Idle models count with what they take, so here the third one may fit as well: bound it.
        host._given = taken(host) + totals[NAMES[2]] - 1
        async with host.use(NAMES[2]):
            assert loaded(host) == [NAMES[0], NAMES[2]]


async def test_used_and_pinned_models_are_never_unloaded(
    files: dict[str, Path], totals: dict[str, int]
) -> None:
    host = Host(memory=totals["llama"] + totals["qwen2"])
    host.add("llama", files["llama"], pinned=True, **OPTIONS)
    host.add("qwen2", files["qwen2"], **OPTIONS)
    host.add("gemma2", files["gemma2"], **OPTIONS)
    order: list[str] = []

    async def third() -> None:
        async with host.use("gemma2"):
            order.append("third")

    async with host:
        async with host.use("llama") as pinned:
            pass
        async with anyio.create_task_group() as tasks, host.use("qwen2") as used:
            tasks.start_soon(third)
            await anyio.wait_all_tasks_blocked()
            for _ in range(5):
                await anyio.lowlevel.checkpoint()
            assert not used.closed
            order.append("second")
        assert order == ["second", "third"] or not used.closed
        assert not pinned.closed
        assert "llama" in loaded(host)
        await host.unload("llama")
        assert pinned.closed


async def test_a_use_that_begins_later_does_not_pass_one_that_waits(
    files: dict[str, Path], totals: dict[str, int]
) -> None:
    memory = max(totals.values()) + 1
    order: list[str] = []
    release = anyio.Event()
    began = anyio.Event()

    async def first() -> None:
        async with host.use("llama"):
            began.set()
            await release.wait()
            order.append("first")

    async def use(name: str, label: str) -> None:
        async with host.use(name):
            order.append(label)

    async with host_of(files, memory) as host, anyio.create_task_group() as tasks:
        tasks.start_soon(first)
        await began.wait()
        tasks.start_soon(use, "qwen2", "other")
        while not host._order or not host._entries["llama"].draining:  # looked at its file
            await anyio.lowlevel.checkpoint()
        tasks.start_soon(use, "llama", "later")
        await anyio.lowlevel.checkpoint()
        await anyio.lowlevel.checkpoint()
        release.set()
    assert order == ["first", "other", "later"]


async def test_a_task_may_use_a_model_twice_while_another_waits(
    files: dict[str, Path], totals: dict[str, int]
) -> None:
    async def other() -> None:
        async with host.use("qwen2"):
            pass

    memory = max(totals.values()) + 1
    async with host_of(files, memory) as host, anyio.create_task_group() as tasks:
        with anyio.fail_after(60):
            async with host.use("llama") as one:
                tasks.start_soon(other)
                while not host._entries["llama"].draining:
                    await anyio.lowlevel.checkpoint()
                async with host.use("llama") as two:
                    assert one is two


async def test_a_task_that_would_wait_for_itself_is_refused(
    files: dict[str, Path], totals: dict[str, int]
) -> None:
    least = await fit(files["qwen2"], **OPTIONS)
    memory = totals["llama"] + least.weights + least.pages - 1
    async with host_of(files, memory) as host, host.use("llama") as model:
        with pytest.raises(aggml.InvalidState, match="'qwen2' needs the memory of 'llama'"):
            async with host.use("qwen2"):
                pass
        assert not model.closed
        assert await answer(model, 0)


async def test_tasks_that_would_wait_for_each_other_are_refused(
    files: dict[str, Path], totals: dict[str, int]
) -> None:
    memory = totals["llama"] + totals["qwen2"]
    both = [anyio.Event(), anyio.Event()]
    failures: list[str] = []

    async def one(i: int, name: str) -> None:
        async with host.use(name):
            both[i].set()
            await both[1 - i].wait()
            try:
                async with host.use("gemma2"):
                    pass
            except aggml.InvalidState as error:
                failures.append(str(error))

    async with host_of(files, memory) as host:
        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(one, 0, "llama")
                tasks.start_soon(one, 1, "qwen2")
        assert failures
        async with host.use("gemma2") as model:
            assert await answer(model, 1)


# -- failures and cancellation


async def test_an_error_of_a_load_reaches_all_who_wait_and_the_next_use_tries_again(
    tmp_path: Path, files: dict[str, Path]
) -> None:
    path = tmp_path / "later.gguf"
    errors: list[ModelError] = []

    async def one() -> None:
        try:
            async with host.use("later"):
                pass
        except ModelError as error:
            errors.append(error)

    async with host_of(files) as host:
        host.add("later", path, **OPTIONS)
        async with anyio.create_task_group() as tasks:
            for _ in range(4):
                tasks.start_soon(one)
        assert len(errors) == 4
        assert len(set(map(id, errors))) == 4
        assert host.models["later"].state == "unloaded"
        async with host.use("llama"):
            pass
        path.write_bytes(files["llama"].read_bytes())
        async with host.use("later") as model:
            assert await answer(model, 0)


async def test_a_damaged_file_is_an_error_of_the_use(tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(b"GGUF" + bytes(100))
    async with Host(memory=1 << 30) as host:
        host.add("bad", path)
        with pytest.raises(ModelError):
            async with host.use("bad"):
                pass


@pytest.mark.long(cases=6)
@pytest.mark.parametrize("after", range(12))
async def test_the_next_one_goes_on_if_the_one_who_loads_is_cancelled(
    files: dict[str, Path], answers: dict[tuple[str, int], list[int]], after: int
) -> None:
    found: list[list[int]] = []

    async def first(scope: anyio.CancelScope) -> None:
        with scope:
            async with host.use("llama"):
                await anyio.sleep_forever()

    async def second() -> None:
        async with host.use("llama") as model:
            found.append(await answer(model, 2))

    async with host_of(files) as host:
        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                scope = anyio.CancelScope()
                tasks.start_soon(first, scope)
                await anyio.lowlevel.checkpoint()
                tasks.start_soon(second)
                for _ in range(after * 3):
                    await anyio.lowlevel.checkpoint()
                scope.cancel()
        assert found == [answers["llama", 2]]
        await host.unload("llama")
        assert taken(host) == 0


async def test_what_cannot_fit_is_refused_at_once_and_by_bytes(
    files: dict[str, Path], totals: dict[str, int]
) -> None:
    async with host_of(files, 1000) as host:
        with pytest.raises(MemoryShortage, match="are missing") as e:
            async with host.use("llama"):
                pass
        assert e.value.missing > 0
    said = await fit(files["qwen2"], **OPTIONS)
    host = Host(memory=totals["llama"] + said.weights)
    host.add("llama", files["llama"], pinned=True, **OPTIONS)
    host.add("qwen2", files["qwen2"], **OPTIONS)
    async with host, host.use("llama"):

        async def other() -> None:
            with pytest.raises(MemoryShortage, match=r"'qwen2' does not fit beside 'llama'"):
                async with host.use("qwen2"):
                    pass

        if said.weights + said.pages > host._limit() - host._entries["llama"].measured:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(other)


@pytest.mark.long(cases=1)
async def test_a_model_larger_by_its_scratch_alone_is_used_alone(
    files: dict[str, Path], answers: dict[tuple[str, int], list[int]]
) -> None:
    most = 0
    for name in NAMES:
        said = await fit(files[name], **OPTIONS)
        most = max(most, said.weights + said.pages)
    async with host_of(files, most + 1) as host:
        for i in range(6):
            name = NAMES[i % 3]
            async with host.use(name) as model:
                assert await answer(model, i % 4) == answers[name, i % 4]


# -- unloading


async def test_unload_refuses_a_used_model_and_frees_an_idle_one(files: dict[str, Path]) -> None:
    async with host_of(files) as host:
        await host.unload("llama")
        async with host.use("llama") as model:
            with pytest.raises(aggml.InvalidState, match="'llama' is used by 1 tasks, and 0 wait"):
                await host.unload("llama")
            assert not model.closed
        await host.unload("llama")
        assert model.closed
        assert host.models["llama"].state == "unloaded"
        assert host.models["llama"].bytes == 0


async def test_models_are_unloaded_when_they_are_idle(files: dict[str, Path]) -> None:
    async with host_of(files, idle=0) as host:
        async with host.use("llama"):
            assert loaded(host) == ["llama"]
        assert loaded(host) == []
    async with host_of(files, idle=1000) as host:
        async with host.use("llama"):
            pass
        host._entries["llama"].last -= 999
        await host.tidy()
        assert loaded(host) == ["llama"]
        host._entries["llama"].last -= 2
        await host.tidy()
        assert loaded(host) == []
        async with host.use("llama"):
            pass
        host._entries["llama"].last -= 2000
        async with host.use("llama"):  # the one that is used is spared
            assert host._entries["llama"].uses == 3
        host._entries["llama"].last -= 2000
        async with host.use("qwen2"):
            assert loaded(host) == ["qwen2"]


async def test_a_pinned_model_is_never_idle(files: dict[str, Path]) -> None:
    async with Host(idle=0) as host:
        host.add("llama", files["llama"], pinned=True, **OPTIONS)
        async with host.use("llama"):
            pass
        await host.tidy()
        assert loaded(host) == ["llama"]


async def test_a_model_that_was_closed_by_its_user_is_loaded_again(files: dict[str, Path]) -> None:
    async with host_of(files) as host:
        async with host.use("llama") as model:
            await model.aclose()
        async with host.use("llama") as model:
            assert await answer(model, 0)


async def test_leaving_the_host_ends_uses_and_waits(
    files: dict[str, Path], totals: dict[str, int]
) -> None:
    errors: list[object] = []
    waits = anyio.Event()

    async def used() -> None:
        async with host.use("llama") as model:
            waits.set()
            try:
                async for _ in model.generate([1], max_tokens=200, stop_ids=[]):
                    await anyio.lowlevel.checkpoint()
                while True:
                    await model.embed_ids([[1, 2]])
            except aggml.InvalidState as error:
                errors.append(error)

    async def waiting() -> None:
        with pytest.raises(aggml.InvalidState, match="the host is closed"):
            async with host.use("qwen2"):
                pass
        errors.append("waited")

    host = host_of(files, max(totals.values()) + 1)
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks, host:
            tasks.start_soon(used)
            await waits.wait()
            tasks.start_soon(waiting)
            while not host._entries["llama"].draining:
                await anyio.lowlevel.checkpoint()
    assert len(errors) == 2
    with pytest.raises(aggml.InvalidState, match="the host is closed"):
        host.use("llama")
    with pytest.raises(aggml.InvalidState, match="the host is closed"):
        host.add("x", files["llama"])


# -- arguments


WRONG: list[tuple[Callable[[Host, Path], object], str]] = [
    (lambda h, p: h.add("llama", p), "there is a model 'llama'"),
    (lambda h, p: h.add(3, p), "name is 3"),  # type: ignore[arg-type]
    (lambda h, _: h.add("x", 3), "path is 3"),  # type: ignore[arg-type]
    (lambda h, p: h.add("x", p, pinned="yes"), "pinned is 'yes'"),  # type: ignore[arg-type]
    (lambda h, p: h.add("x", p, share=0), "share is 0"),
    (lambda h, p: h.add("x", p, share=float("nan")), "share is nan"),
    (lambda h, p: h.add("x", p, ctx=0), "ctx is 0"),
    (lambda h, p: h.add("x", p, cache="f8"), "cache is 'f8'"),
    (lambda h, p: h.add("x", p, threads=2), "'threads' is no option of aggml.models.load"),
    (lambda h, p: h.add("x", p, backend=None), "'backend' is no option"),
    (lambda h, _: h.use("nobody"), "there is no model 'nobody'; there are: llama, qwen2, gemma2"),
    (lambda h, _: h.use(None), "name is None"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("call", "message"), WRONG)
async def test_wrong_arguments_are_refused_by_name(
    files: dict[str, Path], call: Callable[[Host, Path], object], message: str
) -> None:
    async with host_of(files) as host:
        with pytest.raises(aggml.InvalidArgument, match=message):
            call(host, files["llama"])
        with pytest.raises(aggml.InvalidArgument, match="there is no model"):
            await host.unload("nobody")
        assert len(host.models) == 3


@pytest.mark.parametrize("options", [{"memory": 0}, {"memory": "1G"}, {"idle": -1}, {"idle": "x"}])
def test_wrong_arguments_of_a_host_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(aggml.InvalidArgument, match=next(iter(options))):
        Host(**options)
    with pytest.raises(aggml.InvalidHandle):
        Host("CPU")  # type: ignore[arg-type]


async def test_a_share_bounds_the_threads(files: dict[str, Path]) -> None:
    device = aggml.get_device("CPU")
    assert isinstance(device, aggml.devices.cpu.CPUDevice)
    async with device.backend(n_threads=2) as backend:
        async with Host(backend) as host:
            host.add("half", files["llama"], share=0.5, **OPTIONS)
            host.add("whole", files["llama"], **OPTIONS)
            async with host.use("half") as half, host.use("whole") as whole:
                (part,) = half._computer.site.backends  # type: ignore[attr-defined]
                assert part.n_threads == 1
                assert whole._computer.site.backends == (backend,)  # type: ignore[attr-defined]
                assert await answer(half, 1) == await answer(whole, 1)
        assert not backend.closed
        assert part.closed


# -- the decision alone


@st.composite
def situations(draw: st.DrawFn) -> tuple[int, int, int, list[Neighbour]]:
    size = st.integers(0, 100)
    others = []
    for i in range(draw(st.integers(0, 6))):
        idle = draw(size)
        used = draw(st.booleans())
        others.append(
            Neighbour(
                str(i), idle + (draw(size) if used else 0), idle, used=used,
                stays=draw(st.booleans()), held=used and draw(st.booleans()), last=draw(size),
            )
        )  # fmt: skip
    least = draw(st.integers(1, 100))
    return draw(st.integers(1, 400)), least + draw(size), least, others


@pytest.mark.long
@settings(max_examples=500, deadline=None)
@given(situations())
def test_room_is_made_within_the_limit_and_of_idle_models_alone(
    case: tuple[int, int, int, list[Neighbour]],
) -> None:
    limit, need, least, others = case
    found = make_room(limit, need, least, others)
    by_name = {x.name: x for x in others}
    rest = [x for x in others if x.name not in found.unload]
    for name in found.unload:
        one = by_name[name]
        assert (one.used, one.stays, one.held) == (False, False, False)
    if found.missing:
        fixed = sum(x.bytes if x.held else x.idle for x in others if x.held or x.stays)
        assert found == Clearance(missing=fixed + least - limit)
    elif found.bytes:
        assert least <= found.bytes <= need
        assert found.bytes + sum(x.bytes for x in rest) <= limit
        if found.unload:  # no more than needed
            spared = by_name[found.unload[-1]].bytes
            assert found.bytes + sum(x.bytes for x in rest) + spared > limit
    else:
        assert found.wait  # somebody else has to go, so there is something to wait for
        assert all(by_name[name].used and not by_name[name].held for name in found.wait)


@settings(max_examples=200, deadline=None)
@given(situations())
def test_there_is_room_once_all_other_uses_have_ended(
    case: tuple[int, int, int, list[Neighbour]],
) -> None:
    limit, need, least, others = case
    ended = [
        x if x.held else Neighbour(x.name, x.idle, x.idle, stays=x.stays, last=x.last)
        for x in others
    ]
    found = make_room(limit, need, least, ended)
    assert found.missing or found.bytes


# -- many tasks, at random


async def at_random(
    host: Host, answers: dict[tuple[str, int], list[int]], seed: int, tasks: int, uses: int
) -> None:
    """Uses by several tasks, some of which are cancelled at a random point."""
    limit = host._given
    assert limit is not None
    done = 0

    async def one(k: int) -> None:
        nonlocal done
        chance = random.Random(seed * 100 + k)
        for _ in range(uses // tasks):
            name, first = chance.choice(NAMES), chance.randrange(4)
            with anyio.CancelScope() as scope:
                cancelled = chance.random() < 0.3
                async with anyio.create_task_group() as inner:

                    async def cancel(after: int, scope: anyio.CancelScope = scope) -> None:
                        for _ in range(after):
                            await anyio.lowlevel.checkpoint()
                        scope.cancel()

                    if cancelled:
                        inner.start_soon(cancel, chance.randrange(60))
                    async with host.use(name) as model:
                        assert await answer(model, first) == answers[name, first]
                        assert taken(host) <= limit
                        assert not model.closed
                    inner.cancel_scope.cancel()
            done += 1

    async with anyio.create_task_group() as group:
        for k in range(tasks):
            group.start_soon(one, k)
    assert done == uses // tasks * tasks
    for entry in host._entries.values():
        assert not entry.holders
        assert not entry.waiting
        assert entry.driver is None
    assert not host._order
    assert taken(host) <= limit


@pytest.mark.long(cases=1)
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
async def test_two_hundred_uses_of_three_models_where_two_fit(
    files: dict[str, Path],
    totals: dict[str, int],
    answers: dict[tuple[str, int], list[int]],
    seed: int,
) -> None:
    with anyio.fail_after(100):
        async with host_of(files, sum(sorted(totals.values())[1:])) as host:
            await at_random(host, answers, seed, 8, 200)
            assert len(loaded(host)) >= 1
        gc.collect()


@pytest.mark.long
def test_uses_of_several_threads_and_loops(
    files: dict[str, Path],
    totals: dict[str, int],
    answers: dict[tuple[str, int], list[int]],
) -> None:
    host = host_of(files, sum(sorted(totals.values())[1:]))
    ready = threading.Barrier(3)

    async def one(seed: int) -> None:
        ready.wait()
        chance = random.Random(seed)
        for _ in range(25):
            name, first = chance.choice(NAMES), chance.randrange(4)
            async with host.use(name) as model:
                assert await answer(model, first) == answers[name, first]

    backends = enumerate(("asyncio", "trio", "asyncio"))
    in_threads([partial(anyio.run, one, i, backend=backend) for i, backend in backends])
    anyio.run(host.aclose)
    assert taken(host) == 0


def test_a_loop_that_ends_while_it_loads_hands_the_load_on(files: dict[str, Path]) -> None:
    host = host_of(files)

    async def given_up(host: Host) -> None:
        with anyio.move_on_after(0):
            async with host.use("llama"):
                pass

    async def use() -> list[int]:
        async with host.use("llama") as model:
            return await answer(model, 0)

    for backend in ("asyncio", "trio"):
        anyio.run(given_up, host, backend=backend)
        assert anyio.run(use, backend=backend)
    anyio.run(host.aclose)


@pytest.mark.long
def test_a_host_of_the_parent_of_a_fork_refuses(files: dict[str, Path]) -> None:
    code = (
        "import os, anyio, aggml\n"
        "host = aggml.models.Host()\n"
        f"host.add('a', {str(files['llama'])!r}, ctx=256)\n"
        "if os.fork() == 0:\n"
        "    try:\n"
        "        host.use('a')\n"
        "    except aggml.InvalidState as error:\n"
        "        print(error, flush=True)\n"
        "    os._exit(0)\n"
        "os.wait()\n"
    )
    told = subprocess.run(child(code), capture_output=True, text=True)
    assert "parent process of a fork" in told.stdout, told.stderr


class _Left(Exception):
    """Raised by a task of a test."""


@pytest.mark.parametrize("seed", range(8))
async def test_a_host_ends_in_the_middle_of_uses(
    files: dict[str, Path], totals: dict[str, int], seed: int
) -> None:
    chance = random.Random(seed)

    async def one() -> None:
        while True:
            async with host.use(chance.choice(NAMES)) as model:
                await answer(model, 0)

    async def leave() -> None:
        for _ in range(chance.randrange(300)):
            await anyio.lowlevel.checkpoint()
        raise _Left

    async def work() -> None:
        async with host, anyio.create_task_group() as tasks:
            for _ in range(6):
                tasks.start_soon(one)
            tasks.start_soon(leave)

    host = host_of(files, sum(sorted(totals.values())[1:]))
    with anyio.fail_after(60), pytest.raises(BaseExceptionGroup) as e:
        await work()
    assert e.value.split(_Left)[1] is None
    assert taken(host) == 0
    assert {x.state for x in host.models.values()} == {"unloaded"}


async def test_the_block_of_a_use_is_left_once(files: dict[str, Path]) -> None:
    async with Host() as host:
        host.add("llama", files["llama"], **OPTIONS)
        use = host.use("llama")
        with pytest.raises(aggml.InvalidState, match=r"^\[Host.use\] .* left"):
            await use.__aexit__(None, None, None)
        async with use:
            pass
        with pytest.raises(aggml.InvalidState, match=r"^\[Host.use\] .* left"):
            await use.__aexit__(None, None, None)
        with pytest.raises(aggml.InvalidState, match=r"^\[Host.use\] a use has one block"):
            await use.__aenter__()
        await host.unload("llama")  # nobody holds it
