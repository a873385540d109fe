"""Tensors without memory: extents, strides, layout, flags, names.

Not here: views (test_views.py).
"""

from __future__ import annotations

import copy
import itertools
import math
import weakref
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from tensor.plain import axes, extents, leaf, strided

from aggml import (
    DType,
    Graph,
    InvalidArgument,
    InvalidHandle,
    InvalidState,
    Tensor,
    TensorFlag,
    new_tensor,
    ops,
)

# -- fresh tensors


@pytest.mark.parametrize(
    ("dtype", "ne", "nb", "nbytes"),
    [
        ("f32", (3,), (4, 12, 12, 12), 12),
        ("f16", (3, 5), (2, 6, 30, 30), 30),
        ("i64", (2, 3, 4, 5), (8, 16, 48, 192), 960),
        ("q4_0", (64, 3), (18, 36, 108, 108), 108),
        ("Q6_K", (512, 2, 1, 2), (210, 420, 840, 840), 1680),
        ("f32", (0, 3), (4, 0, 0, 0), 0),
        ("f32", (3, 0), (4, 12, 0, 0), 0),
    ],
)
def test_fresh_strides(dtype: str, ne: tuple[int, ...], nb: tuple[int, ...], nbytes: int) -> None:
    tensor = new_tensor(dtype, ne=ne)
    assert tensor.ne == (*ne, 1, 1, 1)[:4]
    assert tensor.nb == nb
    assert tensor.nbytes == nbytes
    assert tensor.is_contiguous
    assert tensor.root is tensor
    assert tensor.op == "none"
    assert tensor.src == ()
    assert tensor.op_params == bytes(64)


def test_extents_are_any_sequence_of_integers_or_one() -> None:
    assert new_tensor("f32", [np.int64(3), 2]).ne == (3, 2, 1, 1)
    assert new_tensor("f32", 7).ne == (7, 1, 1, 1)
    assert all(type(n) is int for n in new_tensor("f32", [np.int64(3), 2]).ne)


@pytest.mark.parametrize(
    ("dtype", "ne"),
    [
        ("f32", ()),
        ("f32", (1, 2, 3, 4, 5)),
        ("f32", (-1,)),
        ("f32", (4, -2)),
        ("q4_0", (33, 2)),
        ("q4_K", (128,)),
        ("f32", (1 << 62, 4)),
        ("f32", (0, 1 << 40, 1 << 40)),
        ("f99", (1,)),
    ],
)
def test_impossible_tensors_are_refused(dtype: str, ne: tuple[int, ...]) -> None:
    with pytest.raises(InvalidArgument, match=r"^\[(new_tensor|DType.parse)\] "):
        new_tensor(dtype, ne=ne)


@pytest.mark.parametrize("ne", ["ab", None, (1.5,), {1, 2}, object()])
def test_extents_that_are_no_integers_are_refused(ne: Any) -> None:
    with pytest.raises(InvalidHandle, match=r"^\[new_tensor\] "):
        new_tensor("f32", ne=ne)


def test_the_class_itself_makes_none() -> None:
    with pytest.raises(InvalidState, match="new_tensor"):
        Tensor()


@pytest.mark.parametrize(
    ("ne", "shape"),
    [
        ((3,), (3,)),
        ((3, 2), (2, 3)),
        ((3, 1, 2), (2, 1, 3)),
        ((1, 1, 1, 1), (1, 1, 1, 1)),
        ((4, 1), (1, 4)),
        ((5, 1, 1, 2), (2, 1, 1, 5)),
        ((3, 0), (0, 3)),
        ((0,), (0,)),
    ],
)
def test_shape_is_numpy_s(ne: tuple[int, ...], shape: tuple[int, ...]) -> None:
    assert new_tensor("f32", ne).shape == shape


def test_counts() -> None:
    tensor = leaf(4, 3, 2)
    assert (tensor.nelements, tensor.nrows, tensor.n_dims) == (24, 6, 3)
    assert leaf(1).is_scalar
    assert leaf(4).is_vector
    assert not leaf(4, 2).is_vector
    assert leaf(4, 2).is_matrix
    assert not leaf(4, 2, 3).is_matrix
    assert leaf(4, 0).is_empty


# -- layout


def test_predicates_of_layout() -> None:
    tensor = leaf(4, 3, 2, 2)
    rows = ops.view_4d(tensor, 2, 3, 2, 2, *tensor.nb[1:])
    swapped = ops.transpose(tensor)
    heads = ops.permute(tensor, 0, 2, 1, 3)
    table = {
        "is_contiguous": (True, False, False, False),
        "is_contiguous_rows": (True, True, False, True),
        "is_contiguously_allocated": (True, False, True, True),
        "is_padded_1d": (True, True, False, False),
        "is_transposed": (False, False, True, False),
        "is_permuted": (False, False, True, True),
    }
    for name, expected in table.items():
        found = tuple(getattr(t, name) for t in (tensor, rows, swapped, heads))
        assert found == expected, name
    assert [rows.is_contiguous_n(n) for n in range(4)] == [False, True, True, True]
    assert [heads.is_contiguous_n(n) for n in range(4)] == [False, False, False, True]
    assert [swapped.is_contiguous_n(n) for n in range(4)] == [False] * 4
    # Channels innermost: an image [channels, width, height] permuted to [width, height, channels].
    assert ops.permute(leaf(4, 3, 2), 2, 0, 1, 3).is_contiguous_channels
    assert not tensor.is_contiguous_channels


def test_strides_of_dimensions_of_one_do_not_matter() -> None:
    tensor = leaf(4, 1, 3)
    assert ops.permute(tensor, 0, 2, 1, 3).is_contiguous
    assert ops.transpose(leaf(1, 5)).is_contiguous


@given(ne=extents, axes=axes)
def test_contiguous_means_ascending_without_gaps(
    ne: tuple[int, ...], axes: tuple[int, ...]
) -> None:
    tensor = ops.permute(leaf(*ne), *axes)
    flat = strided(tensor).ravel()
    assert tensor.is_contiguous == (flat == np.arange(math.prod(ne)) * 4).all()
    assert ops.cont(tensor).is_contiguous


# -- names, flags, freezing


def test_names_have_63_bytes_and_are_not_cut_silently() -> None:
    assert leaf(1, name="x" * 63).name == "x" * 63
    assert leaf(1).set_name("ü" * 31).name == "ü" * 31
    with pytest.raises(InvalidArgument, match=r"^\[new_tensor\].*64.*63"):
        leaf(1, name="x" * 64)
    with pytest.raises(InvalidArgument, match=r"^\[Tensor.set_name\].*64.*63"):
        leaf(1).set_name("ü" * 32)
    with pytest.raises(InvalidHandle):
        leaf(1).set_name(b"x")  # type: ignore[arg-type]


def test_views_are_named_after_what_they_show() -> None:
    tensor = leaf(4, 4, name="kq")
    assert ops.transpose(tensor).name == "kq (transposed)"
    assert ops.view_1d(tensor, 4).name == "kq (view)"
    assert ops.cpy(tensor, leaf(16, name="cache")).name == "kq (copy of cache)"
    assert ops.cont(new_tensor("f32", 4)).name == ""
    deep = tensor
    for _ in range(40):
        deep = ops.transpose(deep)
    assert len(deep.name.encode()) <= 63


def test_flags_are_set_and_chained() -> None:
    tensor = leaf(4).set_input().set_output().set_param()
    assert tensor.flags == TensorFlag.INPUT | TensorFlag.OUTPUT | TensorFlag.PARAM
    assert leaf(1).set_loss().flags == TensorFlag.LOSS
    assert leaf(4).flags == TensorFlag.NONE


def test_an_output_that_is_a_view_makes_its_storage_one() -> None:
    node = ops.relu(leaf(4, 4))
    ops.transpose(node).set_output()
    assert node.flags == TensorFlag.OUTPUT


def test_flags_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="leaf"):
        ops.relu(leaf(4)).set_param()
    with pytest.raises(InvalidArgument, match="a single f32"):
        leaf(2).set_loss()
    with pytest.raises(InvalidArgument, match="a single f32"):
        leaf(1, dtype="f16").set_loss()


def test_a_tensor_in_a_graph_is_frozen() -> None:
    x = leaf(4)
    y = ops.relu(x)
    Graph(y)
    for tensor, name in itertools.product((x, y), ("input", "output", "param", "loss")):
        with pytest.raises(InvalidState, match="Graph"):
            getattr(tensor, f"set_{name}")()
    with pytest.raises(InvalidState, match="Graph"):
        y.set_name("z")


def test_a_view_of_a_frozen_leaf_may_still_be_an_output() -> None:
    cache = leaf(4, 4, name="cache")
    node = ops.relu(cache)
    Graph(node)
    assert ops.transpose(cache).set_output().flags == TensorFlag.OUTPUT
    assert cache.flags == TensorFlag.NONE
    with pytest.raises(InvalidState):  # the graph that exists may have planned to overwrite it
        ops.transpose(node).set_output()


def test_tensors_compare_by_identity_and_hold_no_one() -> None:
    a, b = leaf(4), leaf(4)
    assert a != b
    assert len({a, b, a}) == 2
    reference = weakref.ref(b)
    del b
    assert reference() is None


def test_repr_shows_what_matters() -> None:
    w = leaf(64, 2, dtype="q4_0", name="w").set_output()
    assert repr(w) == "<Tensor w q4_0 [64, 2] output>"
    x = leaf(64, 3)
    assert repr(ops.mul_mat(w, x)) == "<Tensor f32 [2, 3] = mul_mat>"
    assert repr(ops.transpose(x)) == (
        "<Tensor x (transposed) f32 [3, 64] = transpose at x + 0 nb [256, 4, 768, 768]>"
    )


def test_an_unplaced_tensor_has_no_address() -> None:
    tensor = leaf(4)
    assert tensor.buffer is None
    assert tensor.address is None
    assert ops.view_1d(tensor, 2).address is None


def test_the_largest_extent_still_works() -> None:
    assert new_tensor(DType.I8, 1 << 48).nbytes == 1 << 48


FIELDS = {
    "dtype": DType.F16,
    "ne": (1 << 40, 1, 1, 1),
    "nb": (4, 1 << 40, 0, 0),
    "nbytes": 1 << 40,
    "op": "mul_mat",
    "op_params": bytes(64),
    "src": (None,),
    "view_src": None,
    "view_offs": 1 << 40,
    "name": "other",
    "placement": None,
    "shape": (3,),
    "flags": TensorFlag.OUTPUT,
    "address": 64,
    "colour": "red",
}


@pytest.mark.parametrize("field", FIELDS)
def test_fields_cannot_be_assigned(field: str) -> None:
    """Fields of leafs, nodes and views, before a graph has them and after."""
    x = leaf(4, name="x")
    tensors = [x, ops.neg(x), ops.view_1d(x, 2, 4)]
    for graph in (None, Graph(*tensors[1:])):
        for tensor in tensors:
            before = {name: getattr(tensor, name) for name in FIELDS if hasattr(tensor, name)}
            with pytest.raises(InvalidState, match=field) as caught:
                setattr(tensor, field, FIELDS[field])
            assert isinstance(caught.value, AttributeError)
            with pytest.raises(AttributeError, match=field):
                delattr(tensor, field)
            assert {name: getattr(tensor, name) for name in before} == before
        assert graph is None or graph.nodes


def test_a_copy_is_a_tensor_like_it() -> None:
    x = leaf(4, 2, name="x").set_input()
    twin = copy.copy(x)
    assert twin is not x
    assert (twin.ne, twin.name, twin.flags, twin.op) == (x.ne, "x", x.flags, "none")
    with pytest.raises(InvalidState):
        twin.ne = (1, 1, 1, 1)
