"""The package's own kernels on a device: on the fake driver compiled for the host.

Graphs of several nodes are compared with the CPU, node by node. Not here: each kernel against the
corpus (test_kernels.py on the host; on a GPU test_conformance.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import numpy as np
import pytest
from devices.cuda.fake_driver import all_kernels

import aggml
from aggml import Graph, ops
from aggml.devices.cuda.lowering import CudaKernels
from aggml.errors import InvalidArgument, OutOfBounds

if TYPE_CHECKING:
    from aggml.devices.cuda import CUDADevice


kernels = pytest.fixture(all_kernels)


def _layer(width: int, tokens: int) -> tuple[Graph, dict[aggml.Tensor, Any]]:
    """A norm, rows written to a cache, soft_max, a gated unit: parts of a transformer's layer."""
    rng = np.random.default_rng(5)

    def leaf(name: str, *ne: int, dtype: str = "f32") -> aggml.Tensor:
        tensor = aggml.new_tensor(dtype, ne=ne, name=name)
        if dtype == "f32":
            values[tensor] = rng.standard_normal(tensor.shape).astype(np.float32)
        return tensor

    values: dict[aggml.Tensor, Any] = {}
    table, ids = leaf("table", width, 20), leaf("ids", tokens, dtype="i32")
    values[ids] = rng.integers(0, 20, tokens).astype(np.int32)
    x = ops.get_rows(table, ids)
    gain, bias = leaf("gain", width), leaf("bias", width)
    y = ops.add(ops.mul(ops.rms_norm(x, 1e-5), gain), bias)
    y = ops.soft_max(ops.scale(y, 0.5))
    gate, up = leaf("gate", width, tokens), leaf("up", width, tokens)
    z = ops.swiglu_split(ops.mul(y, gate), up)
    return Graph(ops.cont(ops.transpose(ops.add(z, x))).set_name("out")), values


async def test_a_layer_agrees_with_the_cpu(device: CUDADevice) -> None:
    width, tokens = 32, 5
    results = []
    cpu = aggml.get_device("CPU")
    for each in (cpu, device):
        graph, values = _layer(width, tokens)
        missing = [node.op for node in graph.nodes if not each.supports_op(node)]
        assert missing == []
        async with each.backend() as be:
            be.alloc_graph(graph)
            runs = [await be.run(graph, values, graph.ends[0]) for _ in range(3)]
            results.append(runs[-1])  # the first run was launched, the others were CUDA graphs
    np.testing.assert_allclose(results[1], results[0], rtol=1e-5, atol=1e-6)


async def test_a_row_out_of_range_is_found_by_the_kernel(device: CUDADevice) -> None:
    table = aggml.new_tensor("f32", ne=(8, 6), name="table")
    ids = aggml.new_tensor("i32", ne=(3,), name="ids")
    rows = ops.get_rows(table, ids).set_name("rows")
    values = np.arange(48, dtype=np.float32).reshape(6, 8)
    async with device.backend() as be:
        be.alloc_graph(graph := Graph(rows))
        good, bad = np.array([5, 0, 1], np.int32), np.array([5, 0, -1], np.int32)
        with pytest.raises(OutOfBounds, match=r"index -1 at position 2 is outside 0\.\.5"):
            await be.run(graph, {table: values, ids: bad}, rows)
        assert (await be.run(graph, {table: values, ids: good}, rows) == values[good]).all()


async def test_a_zero_on_a_diagonal_is_found_by_the_kernel(device: CUDADevice) -> None:
    a, b = aggml.new_tensor("f32", ne=(3, 3, 2)), aggml.new_tensor("f32", ne=(2, 3, 2))
    x = np.stack([np.eye(3, dtype=np.float32)] * 2)
    y = np.ones((2, 3, 2), np.float32)
    solved = ops.solve_tri(a, b).set_name("solved")
    async with device.backend() as be:
        be.alloc_graph(graph := Graph(solved))
        assert (await be.run(graph, {a: x, b: y}, solved) == 1).all()
        x[1, 2, 2] = 0
        with pytest.raises(InvalidArgument, match="element 2 of the diagonal of matrix 1 is 0"):
            await be.run(graph, {a: x, b: y}, solved)


def _split_products(kind: str) -> tuple[Graph, dict[aggml.Tensor, Any]]:
    """Two products whose depth is split over several blocks."""
    rng = np.random.default_rng(7)
    a, b = aggml.new_tensor(kind, ne=(1024, 33)), aggml.new_tensor("f32", ne=(1024, 9))
    c, d = aggml.new_tensor(kind, ne=(2048, 33)), aggml.new_tensor("f32", ne=(2048, 12))
    products = ops.mul_mat(a, b), ops.mul_mat(c, d)
    for node in products:
        launches = CudaKernels().launches(node, lambda _: 1 << 20, 1 << 21, 1 << 22)
        assert launches[-1].kernel == "add_parts"
    values: dict[aggml.Tensor, Any] = {}
    for leaf in (a, b, c, d):
        x = rng.standard_normal(leaf.shape).astype(np.float32)
        is_blocks = leaf.dtype.is_quantized
        values[leaf] = aggml.quantize(x, kind) if is_blocks else x.astype(leaf.dtype.numpy)
    return Graph(ops.concat(ops.scale(products[0], 2.0), products[1], 1).set_name("out")), values


@pytest.mark.parametrize("kind", ["f16", "q4_0"])
async def test_products_whose_depth_is_split(device: CUDADevice, kind: str) -> None:
    """The parts are added in scratch: launched, as a graph, after scratch moved, on two streams."""
    results = []

    async def runs(be: aggml.Backend, times: int) -> None:
        graph, values = _split_products(kind)
        await be.prepare(graph)
        for i in range(times):
            if i == 3:
                await be.reserve(16 << 20)
            results.append(await be.run(graph, values, graph.ends[0]))

    async with aggml.get_device("CPU").backend() as cpu:
        await runs(cpu, 1)
    async with (
        device.backend() as one,
        device.backend() as two,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(runs, one, 6)
        tasks.start_soon(runs, two, 6)
    expected, *others = results
    assert len(others) == 12
    for result in others:
        np.testing.assert_array_equal(result, others[0])
    np.testing.assert_allclose(others[0], expected, rtol=1e-2, atol=0.5)
