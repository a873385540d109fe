"""Element types: the bytes that quantizers write and the values of blocks, bit for bit as recorded.

Here: aggml.quantize and aggml.dequantize, and the conversions inside ops, tested through cpy. Not
here: more of iq1 to iq3 (test_types_iq.py), types as operands (test_type_operands.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from corpus_loader import type_table, vectors

import aggml
from aggml import DType, Graph, new_tensor, ops

if TYPE_CHECKING:
    from collections.abc import Callable

    from corpus_loader import Vector
    from numpy.typing import NDArray

# aggml.quantize of this type searches longer than the conversion inside ops. For all other types
# both give the same bytes.
_TWO_QUANTIZERS = "iq4_nl"
_QUANTIZE = {"quantize", "quantize_special", "quantize_imatrix"}
# Types into which nothing can be copied: ggml has no function that converts a row to them.
_READ_ONLY = {row["name"] for row in type_table() if not row["from_float"]}


def _vectors(wanted: Callable[[Vector], bool]) -> list[Any]:
    return [pytest.param(v, id=v.id.replace("/", "-")) for v in vectors() if wanted(v)]


def _copied(
    backend: aggml.Backend, data: NDArray[Any], source: DType, target: DType
) -> NDArray[Any]:
    """The bytes of ``data`` after a cpy into ``target``."""
    rows = data.view(np.uint8)
    a = new_tensor(source, ne=(rows.shape[1] // source.type_size * source.blck_size, len(rows)))
    out = ops.cast(a, target)
    out.set_output()
    memory = backend.alloc([a])
    backend.set(a, rows.reshape(-1), offset=0)
    graph = Graph(out)
    backend.alloc_graph(graph)
    backend.graph_compute(graph)
    result = backend.get(out, offset=0, size=out.nbytes)
    result.wait(60)
    assert memory is not None  # keeps the memory alive until here
    return result.result().reshape(len(rows), -1)


def test_every_vector_has_a_test() -> None:
    kinds = {v.kind for v in vectors()}
    assert kinds == _QUANTIZE | {
        "from_float",
        "from_float_ref",
        "dequantize",
        "dequantize_random",
        "convert",
    }
    assert {v.type for v in vectors()} >= {
        row["name"] for row in type_table() if row["is_quantized"]
    }


def test_table_is_that_of_ggml() -> None:
    for row in type_table():
        kind = DType.parse(row["name"])
        assert kind.value == row["id"]
        assert kind.type_name == row["name"]
        assert (kind.blck_size, kind.type_size) == (row["blck_size"], row["type_size"])
        assert kind.is_quantized == row["is_quantized"]
    assert {kind.value for kind in DType} == {row["id"] for row in type_table()}


@pytest.mark.parametrize("vector", _vectors(lambda v: v.kind in _QUANTIZE))
def test_quantize(vector: Vector) -> None:
    imatrix = vector.array("imatrix") if vector.kind == "quantize_imatrix" else None
    blocks = aggml.quantize(vector.array("src"), vector.type, imatrix)
    assert np.array_equal(blocks, vector.array("dst"))


@pytest.mark.parametrize(
    "vector", _vectors(lambda v: v.kind.startswith("from_float") and v.type != _TWO_QUANTIZERS)
)
def test_row_function_is_the_quantizer_without_matrix(vector: Vector) -> None:
    assert np.array_equal(aggml.quantize(vector.array("src"), vector.type), vector.array("dst"))


@pytest.mark.parametrize(
    "vector",
    _vectors(
        lambda v: (
            v.kind.startswith("from_float") and v.type not in _READ_ONLY | {"q8_1", "q8_K"}
        )  # q8_1 and q8_K exist only inside products
    ),
)
def test_row_function_in_an_op(vector: Vector, backend: aggml.Backend) -> None:
    blocks = _copied(backend, vector.array("src"), DType.F32, DType.parse(vector.type))
    assert np.array_equal(blocks, vector.array("dst"))


@pytest.mark.parametrize("vector", _vectors(lambda v: v.kind.startswith("dequantize")))
def test_dequantize(vector: Vector) -> None:
    expected = vector.array("dst")
    found = aggml.dequantize(vector.array("src"), vector.type, ne=expected.shape[::-1])
    assert np.array_equal(found.view(np.uint32), expected.view(np.uint32))


_READABLE = [row["name"] for row in type_table() if row["is_quantized"] and row["to_float"]]


@pytest.mark.parametrize("type_name", _READABLE)
def test_random_blocks_in_an_op(type_name: str, backend: aggml.Backend) -> None:
    """Every variant gives the values of the scalar conversion; the bits of a NaN may differ."""
    dtype = DType.parse(type_name)
    blocks = np.random.default_rng(dtype.value).integers(
        0, 256, (257, 3 * dtype.type_size), dtype=np.uint8
    )
    expected = aggml.dequantize(blocks, dtype, ne=(3 * dtype.blck_size, len(blocks)))
    found = _copied(backend, blocks, dtype, DType.F32).view(np.float32)
    same = found.view(np.uint32) == expected.view(np.uint32)
    assert (same | (np.isnan(found) & np.isnan(expected))).all()


@pytest.mark.parametrize("vector", _vectors(lambda v: v.kind.startswith("dequantize")))
def test_dequantize_in_an_op(vector: Vector, backend: aggml.Backend) -> None:
    found = _copied(backend, vector.array("src"), DType.parse(vector.type), DType.F32)
    assert np.array_equal(found, vector.array("dst").view(np.uint8).reshape(found.shape))


_HALVES = {"fp16": DType.F16, "bf16": DType.BF16, "f32": DType.F32}


def _halves(vector: Vector) -> tuple[DType, DType]:
    source, _, target = vector.id.split("_")[:3]
    return _HALVES[source], _HALVES[target]


def _converted(vector: Vector) -> bool:
    return vector.kind == "convert" and vector.id != "f32_to_fp16_cpu"


@pytest.mark.parametrize("vector", _vectors(_converted))
def test_half_precision(vector: Vector) -> None:
    source, target = _halves(vector)
    src, expected = vector.array("src"), vector.array("dst")
    found: NDArray[Any]
    if target is DType.F32:
        found = aggml.dequantize(src, source, ne=(src.size,))
    else:
        found = aggml.quantize(src.view(np.float32), target)
    assert np.array_equal(found.view(expected.dtype), expected)


@pytest.mark.parametrize("vector", _vectors(_converted))
def test_half_precision_in_an_op(vector: Vector, backend: aggml.Backend) -> None:
    source, target = _halves(vector)
    expected = vector.array("dst")
    found = _copied(backend, vector.array("src")[None], source, target).view(expected.dtype).ravel()
    if target is DType.F16:  # the CPU's conversion instruction keeps as many of a NaN's bits as fit
        (other,) = (v.array("dst") for v in vectors() if v.id == "f32_to_fp16_cpu")
        assert np.array_equal(found, expected) or np.array_equal(found, other)
    else:
        assert np.array_equal(found, expected)
