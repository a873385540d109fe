"""OpTests: compare the ops that a device claims to run with the reference kernels of the CPU.

Not here: the cases (op_cases.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

import aggml
from aggml import Graph, Tensor
from aggml.testing.fixtures import Array, DeviceFixtures
from aggml.testing.op_cases import OP_CASES, Leaves, OpCase

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["OpTests"]


async def _on(be: aggml.Backend, graph: Graph, values: Mapping[Tensor, Array]) -> list[Array]:
    be.alloc([leaf for leaf in values if leaf.placement is None])
    be.alloc_graph(graph)
    return await be.run(graph, values, list(graph.ends))


def _distance(got: Array, wanted: Array) -> float:
    """The normalised mean square error of the finite elements; all others must be equal."""
    x, y = np.asarray(got, np.float64), np.asarray(wanted, np.float64)
    finite = np.isfinite(y)
    assert np.array_equal(x[~finite], y[~finite], equal_nan=True)
    scale = float(np.square(y[finite]).sum())
    error = float(np.square(x[finite] - y[finite]).sum())
    return error / scale if scale else error


class OpTests(DeviceFixtures):
    """A device computes each op that it claims to run, and refuses others with a reason."""

    @pytest.mark.parametrize("case", OP_CASES, ids=lambda case: case.name)
    async def test_an_op(self, be: aggml.Backend, case: OpCase) -> None:
        leaves = Leaves()
        graph = Graph(*case.build(leaves))
        supported = all(be.device.supports_op(node) for node in graph.nodes)
        if not supported:
            be.alloc_graph(graph)
            with pytest.raises(aggml.Unsupported):
                be.graph_compute(graph)
            assert be.pending == 0
            return
        got = await _on(be, graph, leaves.values)
        again = Leaves()
        reference = Graph(*case.build(again))
        async with aggml.get_device("CPU").backend(use_ref=True) as cpu:
            wanted = await _on(cpu, reference, again.values)
        for x, y in zip(got, wanted, strict=True):
            assert x.dtype == y.dtype
            assert x.shape == y.shape
            if case.nmse:
                assert _distance(x, y) <= case.nmse
            else:
                assert x.tobytes() == y.tobytes()

    async def test_the_same_inputs_give_the_same_bits(self, be: aggml.Backend) -> None:
        for case in OP_CASES[::5]:
            leaves = Leaves()
            graph = Graph(*case.build(leaves))
            if all(be.device.supports_op(node) for node in graph.nodes):
                first = await _on(be, graph, leaves.values)
                for _ in range(3):
                    again = await be.run(graph, leaves.values, list(graph.ends))
                    same = [x.tobytes() == y.tobytes() for x, y in zip(again, first, strict=True)]
                    assert all(same), case.name

    def test_it_runs_something(self, device: aggml.Device) -> None:
        graphs = [Graph(*case.build(Leaves())) for case in OP_CASES]
        assert any(all(device.supports_op(node) for node in graph.nodes) for graph in graphs)

    def test_asking_changes_nothing(self, device: aggml.Device) -> None:
        before = device.memory()[0] if device.type is not aggml.DeviceType.CPU else None
        for case in OP_CASES:
            graph = Graph(*case.build(Leaves()))
            for node in graph.nodes:
                assert device.supports_op(node) is device.supports_op(node)
                device.offload_op(node)
                assert node.placement is None
        if before is not None:
            assert device.memory()[0] >= before  # more: earlier work may have freed some
