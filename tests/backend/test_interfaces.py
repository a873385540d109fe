"""The interfaces that a plug-in implements: what is needed, what has a default, what hooks receive.

A device that computes nothing and records what it is asked for. Not here: a whole device
(test_conformance.py runs three).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support import N, ramp, sum_graph, vector

import aggml
from aggml import Graph, ops

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

Array = np.ndarray[Any, Any]


class Memory(aggml.BufferType):
    """All that a buffer type must implement."""

    name = "BARE"

    def __init__(self, device: aggml.Device | None = None) -> None:
        self.device = device

    def alloc_buffer(self, size: int) -> aggml.Buffer:
        block = np.zeros(size + 64, np.uint8)
        start = -block.ctypes.data % 64
        return aggml.Buffer(self, size, block.ctypes.data + start if size else 0, block)


class Recorder(aggml.Backend):
    """Records each hook and its arguments; each hook returns a mark of the stream."""

    def __init__(self, device: aggml.Device) -> None:
        super().__init__(device, aggml.Stream(device.name))
        self.seen: list[tuple[Any, ...]] = []

    def _note(self, *what: Any) -> aggml.Future[None]:
        self.seen.append(what)
        return self.stream.mark(what[0])

    def _set(self, tensor: aggml.Tensor, array: Array) -> aggml.Future[None]:
        return self._note("set", tensor, array)

    def _get(self, tensor: aggml.Tensor, array: Array) -> aggml.Future[None]:
        return self._note("get", tensor, array)

    def _set_bytes(self, tensor: aggml.Tensor, data: Array, offset: int) -> aggml.Future[None]:
        return self._note("set_bytes", tensor, data, offset)

    def _get_bytes(self, tensor: aggml.Tensor, data: Array, offset: int) -> aggml.Future[None]:
        return self._note("get_bytes", tensor, data, offset)

    def _memset(
        self, tensor: aggml.Tensor, value: int, offset: int, size: int
    ) -> aggml.Future[None]:
        return self._note("memset", tensor, value, offset, size)

    def _copy(self, src: aggml.Tensor, dst: aggml.Tensor) -> aggml.Future[None]:
        return self._note("copy", src, dst)

    def _clear(self, buffer: aggml.Buffer, value: int) -> aggml.Future[None]:
        return self._note("clear", buffer, value)

    def _compile(
        self, graph: aggml.Graph, memory: aggml.GraphBuffer
    ) -> Generator[None, None, aggml.DevicePlan]:
        yield
        return aggml.DevicePlan(graph, arena_size=memory.scratch_size)

    def _compute(self, plan: Any, arena: aggml.Buffer | None) -> aggml.Future[None]:
        return self._note("compute", plan, arena)


class Bare(aggml.Device):
    """All that a device must implement."""

    name = "BARE"
    description = "records"
    type = aggml.DeviceType.ACCEL

    def __init__(self) -> None:
        self._memory = Memory(self)

    @property
    def buffer_type(self) -> aggml.BufferType:
        return self._memory

    def memory(self) -> tuple[int, int]:
        return 0, 0

    def backend(
        self, *, n_threads: int | None = None, use_ref: bool = False, max_queued: int | None = None
    ) -> Recorder:
        return Recorder(self)

    def supports_op(self, tensor: aggml.Tensor) -> bool:
        return True

    def supports_buffer_type(self, buffer_type: aggml.BufferType) -> bool:
        return buffer_type is self._memory


class BareFamily(aggml.Family):
    """All that a family must implement."""

    name = "BARE"
    api_version = 1

    def __init__(self) -> None:
        self._devices = (Bare(),)

    @property
    def devices(self) -> Sequence[aggml.Device]:
        return self._devices


@pytest.fixture
def bare() -> Iterator[Recorder]:
    be = Bare().backend()
    yield be
    be.close()
    assert be.synchronize().wait(60)


@pytest.mark.feature("IF-01")
def test_of_a_buffer_type_only_allocating_is_needed() -> None:
    kind = Memory()
    tensor = vector()
    assert kind.max_size == (1 << 63) - 1
    assert kind.alloc_size(tensor) == tensor.nbytes
    assert kind.is_host is False
    assert kind.alignment & (kind.alignment - 1) == 0
    incomplete: Any = type("Incomplete", (aggml.BufferType,), {"name": "X"})
    with pytest.raises(TypeError, match="alloc_buffer"):
        incomplete()


@pytest.mark.feature("IF-02")
def test_buffer_types_are_compared_by_identity(bare: Recorder) -> None:
    twin = Memory(bare.device)
    assert twin.name == bare.buffer_type.name
    assert twin != bare.buffer_type
    tensor = vector()
    twin.alloc_buffer(4 * N).place(tensor, 0)
    with pytest.raises(aggml.InvalidArgument, match="out of reach"):
        bare.get(tensor)
    assert bare.seen == []
    assert Memory().device is None


@pytest.mark.feature("IF-03")
@pytest.mark.feature("IF-12")
def test_hooks_of_a_buffer_around_a_placement(bare: Recorder) -> None:
    events: list[tuple[str, aggml.Tensor | None]] = []

    class Buffer(aggml.Buffer):
        def init_tensor(self, tensor: aggml.Tensor) -> None:
            assert tensor.placement is not None
            events.append(("init", tensor))

        def free_tensor(self, tensor: aggml.Tensor) -> None:
            events.append(("free", tensor))

        def reset(self) -> None:
            events.append(("reset", None))

    block = bare.buffer_type.alloc_buffer(256)
    buffer = Buffer(bare.buffer_type, 256, block.base, block)
    tensor = vector()
    buffer.place(tensor, 0)
    buffer.reset()
    buffer.close()
    assert events == [("init", tensor), ("reset", None), ("free", tensor)]


@pytest.mark.feature("IF-03")
@pytest.mark.feature("IF-05")
async def test_hooks_of_a_backend_receive_validated_arguments(bare: Recorder) -> None:
    t = aggml.new_tensor("f32", ne=(4, 3), name="t")
    buffer = bare.alloc([t])
    x = np.arange(12, dtype=np.float32)
    await bare.set(t, x)
    out = np.zeros((3, 4), np.float32)
    assert await bare.get(t, out) is out
    eight: Any = np.int64(8)
    await bare.set(t, x[:2], offset=eight)
    assert (await bare.get(t, offset=4, size=8)).shape == (8,)
    seven: Any = np.uint8(7)
    await bare.memset(t, seven, offset=4)
    await bare.copy(t, t)  # a copy onto itself: nothing to do, so the device is not asked
    u = aggml.new_tensor("f32", ne=(4, 3), name="u")
    bare.alloc([u])
    await bare.copy(t, u)
    await bare._clear(buffer, 3)
    names = [what[0] for what in bare.seen]
    assert names == ["set", "get", "set_bytes", "get_bytes", "memset", "copy", "clear"]
    _, target, array = bare.seen[0]
    assert target is t
    assert array.shape == (1, 1, 3, 4)  # the hook gets the tensor's axes, whatever shape was passed
    assert np.shares_memory(array, x)
    assert np.shares_memory(bare.seen[1][2], out)
    _, _, data, offset = bare.seen[2]
    assert (data.dtype, data.size, offset) == (np.uint8, 8, 8)
    assert type(offset) is int
    assert bare.seen[4][2:] == (7, 4, 44)
    assert all(type(number) is int for number in bare.seen[4][2:])


@pytest.mark.feature("IF-05")
def test_hooks_are_not_called_in_vain(bare: Recorder) -> None:
    """Misuse is found before a device hears of it."""
    t = vector()
    bare.alloc([t])
    for call in (
        lambda: bare.set(t, ramp(N - 1)),
        lambda: bare.set(vector(), ramp()),
        lambda: bare.get(t, offset=0, size=4 * N + 1),
        lambda: bare.memset(t, 300),
        lambda: bare.copy(t, vector()),
        lambda: bare.graph_compute(sum_graph().graph),
    ):
        with pytest.raises(aggml.AggmlError):
            call()
    bare.close()
    with pytest.raises(aggml.InvalidState):
        bare.set(t, ramp())
    assert bare.seen == []


@pytest.mark.feature("IF-05")
@pytest.mark.feature("BE-15")
async def test_plans_of_a_device_are_its_own(bare: Recorder) -> None:
    a, b = vector(name="a"), vector(name="b")
    cache = aggml.new_tensor("f32", ne=(N, 2), name="cache")
    y = ops.add(ops.mul(a, b), a)
    written = ops.cpy(y, ops.view_1d(cache, N, 0))
    graph = Graph(written, y)
    bare.alloc_graph(graph)
    plan = bare.graph_plan(graph)
    await plan.compute()
    await bare.run(graph, {a: ramp()}, y)
    assert [what[0] for what in bare.seen] == ["compute", "set", "compute", "get"]
    made = bare.seen[0][1]
    assert made is bare.seen[2][1] is plan.plan
    assert set(made.reads) == {a, b}
    assert made.writes == (y,)
    assert made.partial == (cache,)
    assert [step.op for step in made.steps] == ["mul", "add", "cpy"]
    assert made.arena_size > 0
    assert bare.seen[0][2].size >= made.arena_size


@pytest.mark.feature("IF-06")
def test_a_backend_knows_its_kind_device_and_stream(bare: Recorder) -> None:
    another = bare.device.backend()
    assert another.guid == bare.guid
    with aggml.get_device("CPU").backend() as cpu:
        assert cpu.guid != bare.guid
    assert bare.device.name == bare.name == "BARE"
    assert isinstance(bare.stream, aggml.Stream)
    another.close()
    incomplete: Any = type("Incomplete", (aggml.Backend,), {})
    with pytest.raises(TypeError, match="abstract"):
        incomplete(bare.device, bare.stream)


@pytest.mark.feature("IF-07")
async def test_an_event_knows_its_device(bare: Recorder) -> None:
    event = bare.device.event()
    assert event.device is bare.device
    await bare.record(event)
    assert event.done()


@pytest.mark.feature("IF-08")
@pytest.mark.feature("DV-13")
def test_what_a_device_may_leave_out() -> None:
    device = Bare()
    assert device.host_buffer_type is None
    assert device.offload_op(vector()) is False
    with pytest.raises(aggml.Unsupported, match="BARE"):
        device.buffer_from_host(bytearray(64))
    assert device.caps == aggml.DeviceCaps()
    assert device.props.memory_total == 0
    assert isinstance(device.event(), aggml.Event)
    incomplete: Any = type("Incomplete", (aggml.Device,), {"name": "X"})
    with pytest.raises(TypeError, match=r"backend.*buffer_type.*memory.*supports"):
        incomplete()


@pytest.mark.feature("IF-09")
def test_a_device_belongs_to_at_most_one_family() -> None:
    assert Bare().family is None
    family = BareFamily()
    assert family.device(0).family is None
    aggml.register_family(family)
    try:
        assert family.device(0).family is family
        assert aggml.get_device("bare") is family.device(0)
    finally:
        assert aggml.unload(family)
    assert family.device(0).family is None


@pytest.mark.feature("IF-10")
def test_what_a_family_may_leave_out() -> None:
    family = BareFamily()
    assert family.features() == {}
    assert family.extension("ggml_backend_set_n_threads") is None
    family.close()
    incomplete: Any = type("Incomplete", (aggml.Family,), {"name": "X", "api_version": 1})
    with pytest.raises(TypeError, match="devices"):
        incomplete()


@pytest.mark.feature("IF-11")
@pytest.mark.parametrize("version", [None, 0, aggml.API_VERSION + 1, "1"])
def test_a_family_of_another_version_is_refused(version: Any) -> None:
    family = BareFamily()
    family.api_version = version
    with pytest.raises(aggml.BackendLoadError, match=f"api_version {version}, but this aggml has"):
        aggml.register_family(family)
    assert "BARE" not in [f.name for f in aggml.list_families()]


@pytest.mark.feature("IF-11")
def test_a_family_has_to_say_its_version() -> None:
    """A version that was inherited from aggml would always match."""
    assert not hasattr(aggml.Family, "api_version")


@pytest.mark.feature("IF-13")
def test_blocking_twins_are_waits(bare: Recorder) -> None:
    """ggml's synchronous functions correspond to an asynchronous call and `wait`."""
    t = vector()
    bare.alloc([t])
    assert bare.set(t, ramp()).wait(60)
    assert bare.synchronize().wait(60)
    assert bare.pending == 0


@pytest.mark.feature("IF-14")
async def test_the_side_that_reaches_both_memories_copies() -> None:
    """A device copies from and to host memory itself. Two devices copy by way of host memory."""
    device = Bare()
    first, second = device.backend(), Bare().backend()
    host, mine, theirs = vector(), vector(), vector()
    first.alloc([mine])
    second.alloc([theirs])
    async with aggml.get_device("CPU").backend() as cpu:
        cpu.alloc([host])
        await first.copy(mine, host, to=cpu)
        assert first.seen.pop()[1:] == (mine, host)
        await cpu.copy(host, mine, to=first)
        assert first.seen.pop()[1:] == (host, mine)
    await first.copy(mine, theirs, to=second)
    (_, src, staging), (_, staged, dst) = first.seen.pop(), second.seen.pop()
    assert (src, dst) == (mine, theirs)
    assert staging is staged
    assert staging.buffer.is_host
    for be in (first, second):
        await be.aclose()


def test_the_guide_names_what_is_needed_and_what_may_be_added() -> None:
    """The table of docs/plugins.md against the abstract classes."""
    guide = Path(__file__).resolve().parents[2] / "docs" / "plugins.md"
    rows = re.findall(r"^\| `aggml\.(\w+)` \|(.*)\|(.*)\|$", guide.read_text(), re.MULTILINE)
    assert {name for name, _, _ in rows} >= {"Family", "Device", "BufferType", "Buffer", "Backend"}
    for name, needed, added in rows:
        cls = getattr(aggml, name)
        needs, adds = (set(re.findall(r"`(\w+)`", cell)) for cell in (needed, added))
        known = {
            *dir(cls),
            *(key for base in cls.__mro__ for key in vars(base).get("__annotations__", ())),
        }
        assert needs | adds <= known, name
        assert getattr(cls, "__abstractmethods__", frozenset()) <= needs, name
        assert not adds & getattr(cls, "__abstractmethods__", frozenset()), name
