"""Every kernel, run on the CPU under the shim, compared with the recorded cases."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any
from zlib import crc32

import numpy as np
import pytest
from corpus_loader import op_cases
from devices.cuda.host import USUAL, compute
from ops.recorded import build, check_values

from aggml import Graph
from aggml.devices.cuda.lowering import CudaKernels

if TYPE_CHECKING:
    from corpus_loader import Case

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")


def _cases() -> list[Any]:
    found = []
    kernels, usual = CudaKernels(), {name.lower() for name in USUAL}
    for case in op_cases():
        nodes = Graph(build(case).out).nodes
        if all(kernels.supports(node) for node in nodes):
            weights = nodes[-1].src[0] if case.id.startswith("mul_mat") else None
            rare = weights is not None and weights.dtype.name.lower() not in usual
            marks = [pytest.mark.slow] if rare else []
            found.append(pytest.param(case, id=f"{case.group}-{case.id}", marks=marks))
    return found


@pytest.mark.long(cases=600)
@pytest.mark.parametrize("case", _cases())
def test_numbers(case: Case) -> None:
    built = build(case)
    graph = Graph(built.out)
    values = {leaf: case.storage(name) for name, leaf in built.leafs.items() if leaf.nbytes}
    written = [built.leafs[name] for name in case.written]
    results, fault = compute(
        graph, values, [built.out, *written], order=crc32(case.id.encode()) % 5
    )
    assert fault[0] == 0
    expected, result = case.expected(), results[0]
    if case.row_order_free:
        expected, result = np.sort(expected, axis=-1), np.sort(result, axis=-1)
    check_values(expected, result, built.out.dtype, built.out.ne, case.nmse_max)
    for name, leaf, value in zip(case.written, written, results[1:], strict=True):
        check_values(case.after(name), value, leaf.dtype, leaf.ne, case.nmse_max)
