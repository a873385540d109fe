"""Features that only the CPU has: threads, pools, reference mode, type traits, NUMA, allocators.

Not here: transfers and graphs, which all devices have (test_data.py, test_compute.py).
"""

from __future__ import annotations

import ctypes
import gc
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from corpus_loader import type_table
from support import N, holding, ramp, sum_on, vector

import aggml
from aggml import DType, NumaStrategy, ThreadPool, ops
from aggml.devices.cpu import CPUBackend, CPUDevice, type_traits
from aggml.memory.buffer_type import HostBufferType
from aggml.memory.numa import numa_mask

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.feature("CP-01", "CP-02", "CP-07", "CP-19")
def test_any_number_of_backends(cpu_device: CPUDevice, sim: aggml.Backend) -> None:
    one, two = cpu_device.backend(), cpu_device.backend(n_threads=3)
    assert isinstance(one, CPUBackend)
    assert not isinstance(sim, CPUBackend)
    assert one.guid == two.guid != sim.guid
    assert one.buffer_type is two.buffer_type is cpu_device.buffer_type
    assert (one.buffer_type.name, one.buffer_type.device) == ("CPU", None)
    assert two.n_threads == 3
    one.close()
    two.close()


@pytest.mark.feature("CP-03")
def test_threads_are_a_bound_that_may_move(cpu: CPUBackend) -> None:
    s = sum_on(cpu, 1 << 16)
    for n in (1, 3, 2):
        cpu.n_threads = n
        assert cpu.n_threads == n
        run = s.run(cpu, ramp(1 << 16), ramp(1 << 16))
        assert run.wait(60)
        assert np.array_equal(run.result(), 2 * ramp(1 << 16))
    for bad, error in (
        (0, aggml.InvalidArgument),
        (-1, aggml.InvalidArgument),
        (513, aggml.InvalidArgument),
        ("2", aggml.InvalidHandle),
        (1.5, aggml.InvalidHandle),
    ):
        with pytest.raises(error, match="n_threads"):
            cpu.n_threads = bad  # type: ignore[assignment]


@pytest.mark.feature("CP-04")
def test_backends_share_a_pool(cpu_device: CPUDevice) -> None:
    pool = ThreadPool(2)
    with cpu_device.backend(pool=pool) as one, cpu_device.backend(pool=pool) as two:
        assert one.pool is two.pool is pool
        sums = [sum_on(be, 1 << 14) for be in (one, two)]
        runs = [
            s.run(be, ramp(1 << 14), ramp(1 << 14)) for s, be in zip(sums, (one, two), strict=True)
        ]
        for run in runs:
            assert run.wait(60)
            assert np.array_equal(run.result(), 2 * ramp(1 << 14))


@pytest.mark.feature("CP-06")
def test_reference_mode_gives_the_exact_rules(cpu_device: CPUDevice) -> None:
    x = np.full(N, np.nan, np.float32)
    x.view(np.uint32)[:] = 0x7FC12345
    found = {}
    for use_ref in (True, False):
        with cpu_device.backend(use_ref=use_ref) as be:
            assert be.use_ref is use_ref
            a = vector(name="a")
            y = ops.cpy(a, vector(dtype="f16"))
            graph = aggml.Graph(y)
            be.alloc_graph(graph)
            run = be.run(graph, {a: x}, y)
            assert run.wait(60)
            found[use_ref] = run.result().view(np.uint16)
    assert (found[True] == 0x7E00).all()
    assert np.isnan(found[False].view(np.float16)).all()


@pytest.mark.feature("CP-15")
@pytest.mark.parametrize("row", type_table(), ids=lambda row: row["name"])
def test_type_traits_as_recorded(row: dict[str, Any]) -> None:
    traits = type_traits(row["name"])
    other = None if row["vec_dot_type"] is None else DType.parse(row["vec_dot_type"])
    assert traits.dtype is DType(row["id"])
    assert traits.n_rows == 1
    assert traits.vec_dot_type is other
    if traits.dtype.is_quantized:
        assert traits.needs_imatrix == row["requires_imatrix"]
        if traits.to_float:
            blocks = np.zeros(traits.dtype.type_size, np.uint8)
            assert aggml.dequantize(blocks, traits.dtype, (traits.dtype.blck_size,)).size


@pytest.mark.feature("CP-15")
def test_type_traits_of_no_type() -> None:
    with pytest.raises(aggml.InvalidArgument, match="f99"):
        type_traits("f99")
    with pytest.raises(aggml.InvalidHandle):
        type_traits(3)  # type: ignore[arg-type]


# -- plans that are made explicitly


@pytest.mark.feature("CP-11", "CP-12", "CP-14")
async def test_a_plan_over_memory_of_ones_own(cpu: CPUBackend) -> None:
    a = holding(cpu, ramp(), "a")
    y = ops.add(a, a)
    graph = aggml.Graph(y)
    out = np.zeros(N, np.float32)
    with pytest.raises(aggml.NotAllocated):
        aggml.compile_plan(graph)
    where = {a: a.address, y: out.ctypes.data}
    plan = aggml.compile_plan(graph, lambda t: where[t] or 0)
    assert plan.arena_size == 0
    assert [step.op for step in plan.steps] == ["add"]
    await aggml.Stream("mine", pool=cpu.pool).run_plan(plan)
    assert np.array_equal(out, 2 * ramp())


@pytest.mark.feature("CP-13", "CP-14")
async def test_scratch_is_the_backend_s_own(cpu: CPUBackend) -> None:
    w = aggml.new_tensor("q8_0", ne=(64, 8), name="w")
    x = aggml.new_tensor("f32", ne=(64, 3), name="x")
    y = ops.mul_mat(w, x)
    graph = aggml.Graph(y)
    cpu.alloc_graph(graph)
    plan = cpu.graph_plan(graph).plan
    assert isinstance(plan, aggml.Plan)
    if plan.arena_size:
        with pytest.raises(aggml.InvalidArgument, match="scratch"):
            cpu.stream.run_plan(plan)
    blocks = aggml.quantize(np.ones((8, 64), np.float32), "q8_0")
    got = await cpu.run(graph, {w: blocks, x: np.ones((3, 64), np.float32)}, y)
    assert np.allclose(got, 64, rtol=1e-3)


# -- NUMA


def nodes(root: Path, *lists: str) -> Path:
    for i, cpus in enumerate(lists):
        (root / f"node{i}").mkdir()
        (root / f"node{i}" / "cpulist").write_text(f"{cpus}\n")
    (root / "possible").write_text("0")
    return root


@pytest.mark.feature("CP-16", "CP-17", "CP-18")
def test_nodes_are_read_from_the_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aggml.memory.numa._allowed_nodes", lambda: {0, 1, 2, 3, 8})
    monkeypatch.setattr("aggml.memory.numa._current", lambda: 3)
    root = nodes(tmp_path, "0-1", "2-3,8")
    assert aggml.numa_nodes(root) == [(0, 1), (2, 3, 8)]
    assert aggml.is_numa(root)
    spread = [True] * 4 + [False] * 4 + [True]
    assert numa_mask(NumaStrategy.DISTRIBUTE, root) == spread
    assert numa_mask(NumaStrategy.ISOLATE, root) == [False, False, True, True, *spread[4:]]
    for same in (NumaStrategy.DISABLED, NumaStrategy.NUMACTL, NumaStrategy.MIRROR):
        assert numa_mask(same, root) == []
    assert not aggml.is_numa(tmp_path / "nothing")
    with pytest.raises(aggml.InvalidArgument, match="9"):
        numa_mask(9, root)  # type: ignore[arg-type]


@pytest.mark.feature("CP-16", "CP-17", "CP-18")
def test_a_pool_by_strategy_computes(cpu_device: CPUDevice) -> None:
    assert [s.value for s in NumaStrategy] == [0, 1, 2, 3, 4]
    assert aggml.is_numa() == (len(aggml.numa_nodes()) > 1)
    for strategy in NumaStrategy:
        with cpu_device.backend(pool=aggml.numa_pool(strategy, 2)) as be:
            s = sum_on(be)
            run = s.run(be, ramp(), ramp())
            assert run.wait(60)
            assert np.array_equal(run.result(), 2 * ramp())
    with pytest.raises(aggml.InvalidArgument):
        aggml.numa_pool(NumaStrategy.DISABLED, 0)


class OtherMemory(HostBufferType):
    """Host memory from an allocator of the caller's: here the C library's."""

    def __init__(self) -> None:
        super().__init__("OTHER")
        self.freed: list[int] = []
        self._libc = ctypes.CDLL(None)
        self._libc.aligned_alloc.restype = ctypes.c_void_p
        self._libc.aligned_alloc.argtypes = [ctypes.c_size_t, ctypes.c_size_t]
        self._libc.free.argtypes = [ctypes.c_void_p]

    def alloc_buffer(self, size: int) -> aggml.Buffer:
        address = self._libc.aligned_alloc(64, (size + 63) // 64 * 64)
        return self.adopt(size, address, self._free, address)

    def _free(self, address: int) -> None:
        self.freed.append(address)
        self._libc.free(address)


@pytest.mark.feature("CP-10")
async def test_memory_of_any_allocator_is_host_memory(cpu: CPUBackend) -> None:
    other = OtherMemory()
    assert other.is_host
    a = vector(name="a")
    buffer = other.alloc_tensors([a])
    address = buffer.base
    assert buffer.type is other
    await cpu.set(a, ramp())
    assert np.array_equal(await cpu.get(a), ramp())
    await cpu.synchronize()
    buffer.close()
    del a, buffer
    gc.collect()
    assert other.freed == [address]
