"""Element types: ggml's table, names, numpy counterparts, sizes of rows."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from corpus_loader import type_table

import aggml
from aggml import DType, InvalidArgument, InvalidHandle, ops

PLAIN = {
    DType.F32: np.float32,
    DType.F16: np.float16,
    DType.BF16: ml_dtypes.bfloat16,
    DType.F64: np.float64,
    DType.I8: np.int8,
    DType.I16: np.int16,
    DType.I32: np.int32,
    DType.I64: np.int64,
}


@pytest.mark.parametrize("row", type_table(), ids=lambda row: row["name"])
def test_every_row_of_ggml_s_table(row: dict[str, object]) -> None:
    dtype = DType(row["id"])
    assert dtype.type_name == str(dtype) == row["name"]
    assert dtype.blck_size == row["blck_size"]
    assert dtype.type_size == row["type_size"]
    assert dtype.is_quantized == row["is_quantized"]


def test_there_are_no_types_that_ggml_does_not_have() -> None:
    assert {dtype.value for dtype in DType} == {row["id"] for row in type_table()}


@pytest.mark.parametrize("number", [4, 5, 31, 32, 33, 36, 37, 38, 43, -1])
def test_an_id_without_type_is_refused(number: int) -> None:
    with pytest.raises(InvalidArgument, match=str(number)):
        DType(number)


@pytest.mark.parametrize("dtype", DType)
def test_a_type_is_found_by_itself_and_by_its_name_in_any_case(dtype: DType) -> None:
    for x in (dtype, dtype.type_name, dtype.name, dtype.name.lower()):
        assert DType.parse(x) is dtype


@pytest.mark.parametrize(("dtype", "scalar"), PLAIN.items())
def test_plain_types_are_numpy_s(dtype: DType, scalar: type[np.generic]) -> None:
    assert dtype.numpy == np.dtype(scalar)
    assert dtype.numpy is not None
    assert dtype.numpy.itemsize == dtype.type_size
    assert DType.parse(np.dtype(scalar)) is dtype
    assert DType.parse(scalar) is dtype


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("float32", DType.F32),
        ("float16", DType.F16),
        ("bfloat16", DType.BF16),
        ("float64", DType.F64),
        ("int8", DType.I8),
        ("int16", DType.I16),
        ("int32", DType.I32),
        ("int64", DType.I64),
    ],
)
def test_numpy_s_names_name_the_plain_types_wherever_a_type_is_taken(
    name: str, dtype: DType
) -> None:
    for x in (name, name.upper(), np.dtype(dtype.numpy)):
        assert DType.parse(x) is dtype
        assert aggml.new_tensor(x, 4).dtype is dtype
    a = aggml.new_tensor("float32", (4, 4))
    if dtype in {DType.F32, DType.F16, DType.BF16, DType.I32}:
        assert ops.cast(a, name).dtype is dtype
        assert aggml.convert(np.ones(4, np.float32), name).dtype == dtype.numpy
    if dtype in {DType.F16, DType.BF16}:
        ones = np.ones((2, 4), np.float32)
        assert np.array_equal(aggml.dequantize(aggml.quantize(ones, name), name, ne=(4, 2)), ones)
        total = ops.add_cast(aggml.new_tensor(name, 4), aggml.new_tensor("f32", 4), "float32")
        assert total.dtype is DType.F32


def test_an_unknown_name_is_answered_with_those_that_are_near() -> None:
    with pytest.raises(InvalidArgument, match="q4_k"):
        DType.parse("q4_m")
    with pytest.raises(InvalidArgument, match="float32"):
        DType.parse("float33")


def test_quantized_types_have_no_numpy_counterpart() -> None:
    assert {dtype for dtype in DType if dtype.numpy is None} == set(DType) - set(PLAIN)


@pytest.mark.parametrize("x", ["f33", "", "q4", "DType.F32", np.dtype("u1"), np.dtype("c8")])
def test_what_names_no_type_is_refused(x: object) -> None:
    with pytest.raises(InvalidArgument, match=r"^\[DType.parse\] "):
        DType.parse(x)


@pytest.mark.parametrize("x", [None, 0, 1.5, b"f32", int])
def test_what_can_name_no_type_is_refused(x: object) -> None:
    with pytest.raises(InvalidHandle, match=r"^\[DType.parse\] "):
        DType.parse(x)


@pytest.mark.parametrize(
    ("dtype", "n", "size"),
    [(DType.F32, 3, 12), (DType.Q4_0, 64, 36), (DType.Q4_K, 512, 288), (DType.BF16, 0, 0)],
)
def test_row_size(dtype: DType, n: int, size: int) -> None:
    assert dtype.row_size(n) == size


@pytest.mark.parametrize(("dtype", "n"), [(DType.Q4_0, 33), (DType.F32, -1), (DType.Q6_K, 128)])
def test_a_row_is_a_whole_number_of_blocks(dtype: DType, n: int) -> None:
    with pytest.raises(InvalidArgument, match=str(n)):
        dtype.row_size(n)


def test_repr_is_what_one_types() -> None:
    assert repr(DType.Q4_K) == "DType.Q4_K"
    assert f"{DType.Q4_K}" == "q4_K"
