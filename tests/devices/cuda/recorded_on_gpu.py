"""Recorded cases on CUDA devices: a list of them, and a check of one, launched, then as a graph.

On the fake driver the package's own kernels are compiled for the host, group by group: there
AGGML_CORPUS_GROUPS names the few groups that are run. On a GPU all are run, unless it is set. Not
here: tests.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from corpus_loader import op_cases
from devices.cuda.fake_driver import ON_FAKE
from ops.recorded import build, check_values

from aggml import Graph
from aggml.devices.cuda.lowering import CudaKernels

if TYPE_CHECKING:
    from corpus_loader import Case

    import aggml

__all__ = ["ON_FAKE", "cases", "check"]

_GROUPS = os.environ.get("AGGML_CORPUS_GROUPS", "glu" if ON_FAKE else "")


def cases() -> list[Any]:
    """The cases that CUDA's kernels compute, as parameters of a test."""
    kernels = CudaKernels()
    found = []
    for case in op_cases():
        if _GROUPS and case.group not in _GROUPS.split(","):
            continue
        if all(kernels.supports(node) for node in Graph(build(case).out).nodes):
            found.append(pytest.param(case, id=f"{case.group}-{case.id}"))
    return found


def check(case: Case, backend: aggml.Backend) -> None:
    """Compute a case twice; compare the result and all storages that are written."""
    built = build(case)
    graph = Graph(built.out)
    memory = backend.alloc([leaf for leaf in built.leafs.values() if leaf.nbytes])
    placed = backend.alloc_graph(graph)
    for _ in range(2):  # first launched, then as a graph
        for name, leaf in built.leafs.items():
            if leaf.nbytes:
                assert backend.set(leaf, case.storage(name)).wait(30)
        computed = backend.graph_compute(graph)
        assert computed.wait(50), "the device hangs"
        computed.result()
        for tensor, expected in (
            (built.out, case.expected()),
            *((built.leafs[name], case.after(name)) for name in case.written),
        ):
            read = backend.get(tensor)
            assert read.wait(30)
            result = read.result()
            if tensor is built.out and case.row_order_free:
                expected, result = np.sort(expected, axis=-1), np.sort(result, axis=-1)
            check_values(expected, result, tensor.dtype, tensor.ne, case.nmse_max)
    placed.close()
    memory.close()
