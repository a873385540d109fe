"""Calls that ggml stops: each fails here too, with an exception that names the tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from ops.recorded import check_refused, refusals

import aggml
from aggml import Tensor, new_tensor, ops

if TYPE_CHECKING:
    from collections.abc import Callable

    from corpus_loader import Case


@pytest.mark.parametrize("case", refusals(stage_build=True))
def test_refused_when_built(case: Case) -> None:
    with pytest.raises(aggml.AggmlError, match=r"^\[\w+\] "):
        check_refused(case, None)


@pytest.mark.parametrize("case", refusals(stage_build=False))
def test_refused_before_there_is_a_result(case: Case, any_backend: aggml.Backend) -> None:
    with pytest.raises(aggml.AggmlError):
        check_refused(case, any_backend)


def _square(*ne: int) -> Tensor:
    return ops.transpose(new_tensor("f32", ne=ne))


def _gaps(*ne: int) -> Tensor:
    """A view with a gap after each row."""
    n0, n1, n2, n3 = (*ne, 1, 1)[:4]
    whole = new_tensor("f32", ne=(n0 + 3, n1, n2, n3))
    return ops.view_4d(whole, n0, n1, n2, n3, whole.nb[1], whole.nb[2], whole.nb[3], 0)


def _dense(*ne: int) -> Tensor:
    return new_tensor("f32", ne=ne)


_T, _STATE = _dense(4, 4, 6), _dense(16 * 4, 1)  # operands of the RWKV ops


@pytest.mark.parametrize(
    "call",
    [
        lambda: ops.tri(_square(4, 4), "lower"),
        lambda: ops.fill(_square(4, 4), 1.0),
        lambda: ops.fill_inplace(_square(4, 4), 1.0),
        lambda: ops.pad_reflect_1d(_square(4, 4), 1, 1),
        lambda: ops.roll(_square(4, 4), 1, 0, 0, 0),
        lambda: ops.solve_tri(_square(4, 4), _dense(4, 4)),
        lambda: ops.solve_tri(_dense(4, 4), _square(4, 4)),
        lambda: ops.col2im_1d(_square(4, 4), 1, 2),
        lambda: ops.add_rel_pos(_square(4, 4, 4), _dense(2, 2, 2, 4), _dense(2, 2, 2, 4)),
        lambda: ops.add_rel_pos(_dense(4, 4, 4), _square(2, 2, 2, 4), _dense(2, 2, 2, 4)),
        lambda: ops.add_rel_pos(_dense(4, 4, 4), _dense(2, 2, 2, 4), _square(2, 2, 2, 4)),
        lambda: ops.gated_delta_net(_T, _T, _T, _gaps(1, 4, 6), _dense(1, 4, 6), _STATE),
        lambda: ops.gated_delta_net(_T, _T, _T, _dense(1, 4, 6), _gaps(1, 4, 6), _STATE),
    ],
)
def test_layouts_that_the_builders_of_ggml_refuse(call: Callable[[], Tensor]) -> None:
    """If ggml's builder requires contiguous operands, so does ours, even if our kernels do not."""
    with pytest.raises(aggml.LayoutMismatch, match=r"contiguous|gaps"):
        call()


@pytest.mark.parametrize("gaps", range(6))
def test_recurrences_want_operands_without_gaps(gaps: int) -> None:
    operands = [_T] * 6
    operands[gaps] = _gaps(4, 4, 6)
    a, b, c, d, e, f = operands
    with pytest.raises(aggml.LayoutMismatch, match="is not contiguous"):
        ops.rwkv_wkv7(a, b, c, d, e, f, _STATE)
    if gaps < 4:
        with pytest.raises(aggml.LayoutMismatch, match="is not contiguous"):
            ops.gated_linear_attn(a, b, c, d, _STATE)
    if gaps < 3:
        with pytest.raises(aggml.LayoutMismatch, match="is not contiguous"):
            ops.rwkv_wkv6(a, b, c, _dense(4, 4), _T, _STATE)


@pytest.mark.parametrize("gaps", range(1, 6))
def test_ssm_scan_wants_tokens_without_gaps(gaps: int) -> None:
    # s, x, dt, A, B, C of 16 numbers, 4 rows, 3 heads, 5 tokens, 2 sequences
    extents = [(16, 4, 3, 2), (4, 3, 5, 2), (3, 5, 2), (1, 3), (16, 1, 5, 2), (16, 1, 5, 2)]
    ids = new_tensor("i32", ne=(2,))
    s, x, dt, a, b, c = (_dense(*ne) for ne in extents)
    assert ops.ssm_scan(s, x, dt, a, b, c, ids).ne[0] == 4 * 3 * 5 * 2 + 16 * 4 * 3 * 2
    s, x, dt, a, b, c = (_gaps(*ne) if i == gaps else _dense(*ne) for i, ne in enumerate(extents))
    with pytest.raises(aggml.LayoutMismatch, match=r"contiguous|gaps"):
        ops.ssm_scan(s, x, dt, a, b, c, ids)


def test_the_backend_goes_on_after_a_refusal(any_backend: aggml.Backend) -> None:
    a = new_tensor("f32", ne=(4, 3), name="table")
    ids = new_tensor("i32", ne=(1,), name="ids")
    rows = ops.get_rows(a, ids)
    graph = aggml.Graph(rows)
    memory = any_backend.alloc([a, ids])
    placed = any_backend.alloc_graph(graph)
    any_backend.set(a, np.arange(12, dtype=np.float32).reshape(3, 4))

    any_backend.set(ids, np.array([3], np.int32))
    failed = any_backend.graph_compute(graph)
    failed.wait(60)
    assert isinstance(failed.exception(), aggml.OutOfBounds)

    any_backend.set(ids, np.array([2], np.int32))
    any_backend.graph_compute(graph).wait(60)
    result = any_backend.get(rows)
    result.wait(60)
    assert result.result().tolist() == [[8, 9, 10, 11]]
    assert memory.size
    assert placed.size
