"""The nodes that CUDA supports, the page that lists them, conditions that depend on the data."""

from __future__ import annotations

import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from devices.cuda.host import compute
from ops.recorded import build, refusals

import aggml
from aggml import Graph, new_tensor, ops
from aggml.devices.cuda.compile import source
from aggml.devices.cuda.lowering import CudaKernels, modules
from aggml.devices.cuda.pack import Operand, dense, merge
from aggml.models.decoder.drawing import can_draw

if TYPE_CHECKING:
    from corpus_loader import Case
    from numpy.typing import NDArray

    from aggml import Tensor

_TOOL = Path(__file__).resolve().parents[3] / "tools" / "cuda_table.py"


def test_the_page_is_up_to_date() -> None:
    tool: dict[str, Any] = runpy.run_path(str(_TOOL))
    assert tool["PAGE"].read_text() == tool["page"](), "run python tools/cuda_table.py"


@pytest.mark.parametrize("case", refusals(stage_build=False))
def test_what_the_cpu_refuses_is_refused(case: Case) -> None:
    try:
        node = build(case).out
    except aggml.AggmlError:
        return
    if case.stage == "unsupported":
        assert not CudaKernels().supports(node)


def test_every_module_has_a_text() -> None:
    assert len(set(modules())) == len(modules())
    for module in modules():
        assert "KERNEL(" in source(module)[0]


def test_an_index_out_of_range_is_a_fault_and_nothing_is_written() -> None:
    a = new_tensor("f32", ne=(8, 4), name="a")
    ids = new_tensor("i32", ne=(3,), name="ids")
    rows = ops.get_rows(a, ids)
    values: dict[Tensor, NDArray[Any]] = {
        a: np.ones((4, 8), np.float32),
        ids: np.array([0, 4, -1], np.int32),
    }
    (result,), fault = compute(Graph(rows), values, [rows])
    assert fault == [1, 4, 1, 4]
    assert np.isnan(result).all()


def test_of_rows_that_go_to_one_place_the_last_one_wins() -> None:
    a = new_tensor("f32", ne=(8, 4), name="a")
    b = new_tensor("f32", ne=(8, 3), name="b")
    ids = new_tensor("i64", ne=(3,), name="ids")
    node = ops.set_rows(a, b, ids)
    rows = np.arange(24, dtype=np.float32).reshape(3, 8)
    values: dict[Tensor, NDArray[Any]] = {
        a: np.zeros((4, 8), np.float32),
        b: rows,
        ids: np.array([2, 1, 2], np.int64),
    }
    (result,), fault = compute(Graph(node), values, [node])
    assert fault[0] == 0
    assert (result.reshape(4, 8)[[1, 2]] == rows[[1, 2]]).all()
    assert not result.reshape(4, 8)[[0, 3]].any()


def test_dimensions_are_merged_where_all_operands_go_on() -> None:
    full = Operand(0, (4, 3, 2, 1), (4, 16, 48, 96), 0)
    row = Operand(0, (4, 1, 1, 1), (4, 16, 16, 16), 0)
    one = Operand(0, (1, 1, 1, 1), (4, 4, 4, 4), 0)
    gaps = Operand(0, (4, 3, 2, 1), (4, 16, 64, 128), 0)
    assert dense(full, 4)
    assert not dense(gaps, 4)
    assert [o.ne for o in merge([full, full])] == [(24, 1, 1, 1)] * 2
    assert [o.ne for o in merge([full, row])] == [(4, 6, 1, 1), (4, 1, 1, 1)]
    assert [o.ne for o in merge([full, one])] == [(24, 1, 1, 1), (1, 1, 1, 1)]
    assert [o.ne for o in merge([full, gaps])] == [(12, 2, 1, 1)] * 2


def test_tokens_are_drawn_on_the_gpu() -> None:
    """Else the engine would bring the logits of each step to the host."""
    device = SimpleNamespace(supports_op=CudaKernels().supports)
    site: Any = SimpleNamespace(backends=[SimpleNamespace(device=device)])
    assert can_draw(site)
