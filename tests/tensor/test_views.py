"""Views have the strides and spans of numpy's; views of views have one storage."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tensor.plain import axes, extents, leaf, strided

from aggml import (
    InvalidArgument,
    LayoutMismatch,
    Misaligned,
    OutOfBounds,
    ops,
)


@given(ne=extents, axes=axes)
def test_a_permuted_tensor_is_numpy_s_transposed(
    ne: tuple[int, ...], axes: tuple[int, ...]
) -> None:
    tensor = leaf(*ne)
    there = ops.permute(tensor, *axes)
    back = [axes.index(i) for i in range(4)]
    expected = strided(tensor).transpose([3 - back[3 - i] for i in range(4)])
    assert (strided(there) == expected).all()
    assert there.nbytes == tensor.nbytes
    assert there.root is tensor
    assert there.is_contiguous == (strided(there).ravel() == strided(tensor).ravel()).all()


@given(data=st.data(), ne=extents)
def test_the_span_of_a_view_ends_with_its_last_element(
    data: st.DataObject, ne: tuple[int, ...]
) -> None:
    tensor = leaf(*ne)
    part = [data.draw(st.integers(1, n)) for n in ne]
    first = [data.draw(st.integers(0, n - m)) for n, m in zip(ne, part, strict=True)]
    offset = sum(i * s for i, s in zip(first, tensor.nb, strict=True))
    n0, n1, n2, n3 = part
    view = ops.view_4d(tensor, n0, n1, n2, n3, *tensor.nb[1:], offset)
    assert strided(view).max() + 4 == view.view_offs + view.nbytes
    assert strided(view).max() + 4 <= tensor.nbytes
    permuted = ops.permute(view, 2, 0, 3, 1)
    assert permuted.nbytes == view.nbytes


def test_views_of_views_have_one_root_and_the_sum_of_offsets() -> None:
    tensor = leaf(16, 8)
    first = ops.view_2d(tensor, 8, 4, tensor.nb[1], offset=2 * tensor.nb[1])
    second = ops.view_1d(first, 4, offset=16)
    third = ops.reshape_2d(second, 2, 2)
    assert first.view_src is second.view_src is third.view_src is tensor
    assert (first.view_offs, second.view_offs, third.view_offs) == (128, 144, 144)
    assert third.src == (second,)
    assert third.is_view
    assert third.root is tensor


def test_a_view_may_end_where_its_storage_ends_and_no_later() -> None:
    tensor = leaf(4, 4)
    assert ops.view_1d(tensor, 16).nbytes == 64
    assert ops.view_1d(tensor, 0, offset=64).nbytes == 0
    with pytest.raises(OutOfBounds, match=r"^\[view\] .*64"):
        ops.view_1d(tensor, 16, offset=4)
    # ggml checks only the size without strides, and accepts this view.
    with pytest.raises(OutOfBounds):
        ops.view_2d(tensor, 4, 4, nb1=32)


@pytest.mark.parametrize(
    "arguments",
    [
        {"ne0": -1, "ne1": 1, "nb1": 16},
        {"ne0": 1, "ne1": 1, "nb1": -16},
        {"ne0": 1, "ne1": 1, "nb1": 16, "offset": -4},
        {"ne0": 1 << 60, "ne1": 1 << 60, "nb1": 0},
        {"ne0": 1, "ne1": 1, "nb1": 16, "offset": 1 << 70},
    ],
)
def test_views_with_impossible_numbers_are_refused(arguments: dict[str, int]) -> None:
    with pytest.raises(InvalidArgument):
        ops.view_2d(leaf(4, 4), **arguments)


@pytest.mark.parametrize(("nb1", "offset"), [(18, 0), (16, 2)])
def test_views_between_elements_are_refused(nb1: int, offset: int) -> None:
    with pytest.raises(Misaligned, match=r"^\[view\] "):
        ops.view_2d(leaf(4, 4), 1, 2, nb1, offset)


def test_views_of_blocks_keep_them_whole() -> None:
    tensor = leaf(64, 4, dtype="q8_0")
    row = ops.view_1d(tensor, 32, offset=tensor.nb[1] + 34)
    assert (row.nb[0], row.nb[1], row.nbytes, row.view_offs) == (34, 34, 34, 102)
    with pytest.raises(InvalidArgument):
        ops.view_1d(tensor, 16)
    with pytest.raises(Misaligned):
        ops.view_1d(tensor, 32, offset=17)
    permuted = ops.permute(tensor, 0, 2, 1, 3)
    assert (permuted.ne, permuted.nb) == ((64, 1, 4, 1), (34, 272, 68, 272))
    assert permuted.nbytes == tensor.nbytes
    # ggml accepts these, but nothing could read the result.
    with pytest.raises(LayoutMismatch, match="block"):
        ops.permute(tensor, 1, 0, 2, 3)
    with pytest.raises(LayoutMismatch, match="block"):
        ops.transpose(tensor)


def test_reshape_wants_contiguity_and_the_number_of_elements() -> None:
    tensor = leaf(4, 6)
    assert ops.reshape_3d(tensor, 2, 2, 6).nb == (4, 8, 16, 96)
    assert ops.reshape(tensor, leaf(6, 4, dtype="i32")).ne == (6, 4, 1, 1)
    for ne in ((23, 1), (-4, -6)):
        with pytest.raises(LayoutMismatch, match=r"f32 \[4, 6\]"):
            ops.reshape_2d(tensor, *ne)
    with pytest.raises(LayoutMismatch, match="cont first"):
        ops.reshape_1d(ops.transpose(tensor), 24)
    with pytest.raises(LayoutMismatch, match="blocks"):
        ops.reshape_2d(leaf(64, dtype="q4_0"), 16, 4)
