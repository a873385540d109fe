"""prec_set_acc and prec_set_src: what they refuse, and how exactly the CPU then computes.

A product whose second operand may not be converted is as exact as one in f32: it is compared with
numpy in double. Not here: recorded calls of ggml (test_recorded.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from ops.computing import compute

import aggml
from aggml import Graph, Tensor, new_tensor, ops
from aggml.devices.cuda.lowering import CudaKernels

if TYPE_CHECKING:
    from typing import Any

    from numpy.typing import NDArray

TYPES = ["f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "q4_K", "q6_K", "iq4_xs", "mxfp4", "tq2_0"]
#: Types of matrices, and precisions that forbid what columns are converted to for them. Columns of
#: an f32 matrix are never converted.
FORBID = [(kind, "f32") for kind in TYPES]
FORBID += [(kind, "bf16") for kind in TYPES if kind != "bf16"]
FORBID += [(kind, "f16") for kind in TYPES if kind not in {"bf16", "f16"}]
K, M = 512, 70


def leaf(*ne: int, dtype: str = "f32") -> Tensor:
    return new_tensor(dtype, ne=ne, name="x")


def _matrix(kind: str, *shape: int) -> tuple[NDArray[Any], NDArray[np.float64]]:
    """The bytes of a random matrix of a type, and its numbers."""
    x = np.random.default_rng(len(kind)).normal(size=shape).astype(np.float32)
    dtype = aggml.DType.parse(kind)
    if not dtype.is_quantized:
        stored = x.astype(dtype.numpy)
        return stored, stored.astype(np.float64)
    stored = aggml.quantize(x, kind)
    return stored, aggml.dequantize(stored, kind).reshape(shape).astype(np.float64)


def _error(expected: NDArray[np.float64], found: NDArray[Any]) -> float:
    """The root of the mean squared error, as a part of the result."""
    difference = expected - found.reshape(expected.shape)
    return float(np.sqrt(np.square(difference).sum() / np.square(expected).sum()))


@pytest.mark.parametrize(("kind", "prec"), FORBID)
@pytest.mark.parametrize("columns", [1, 3, 8, 20, 40, 200])
def test_columns_that_may_not_be_converted_stay_floats(
    kind: str, prec: str, columns: int, any_backend: aggml.Backend
) -> None:
    stored, a = _matrix(kind, M, K)
    x = np.random.default_rng(columns).normal(size=(columns, K)).astype(np.float32)
    w, b = leaf(K, M, dtype=kind), leaf(K, columns)
    node = ops.prec_set_src(ops.mul_mat(w, b), prec, 1)
    assert _error(x @ a.T, compute(any_backend, node, {w: stored, b: x})) < 2e-6


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("tokens", [1, 2, 30])
def test_columns_of_experts_that_may_not_be_converted_stay_floats(
    kind: str, tokens: int, any_backend: aggml.Backend
) -> None:
    stored, a = _matrix(kind, 4, 48, K)
    rng = np.random.default_rng(tokens)
    x = rng.normal(size=(tokens, 2, K)).astype(np.float32)
    chosen = rng.integers(0, 4, (tokens, 2)).astype(np.int32)
    w, b, ids = leaf(K, 48, 4, dtype=kind), leaf(K, 2, tokens), leaf(2, tokens, dtype="i32")
    node = ops.prec_set_src(ops.mul_mat_id(w, b, ids), "f32", 1)
    found = compute(any_backend, node, {w: stored, b: x, ids: chosen})
    expected = np.einsum("tumk,tuk->tum", a[chosen], x)
    assert _error(expected, found) < 2e-6


def test_without_a_precision_a_quantized_matrix_is_multiplied_by_bytes(
    any_backend: aggml.Backend,
) -> None:
    """So the tests above would fail if the precision had no effect."""
    stored, a = _matrix("q8_0", M, K)
    x = np.random.default_rng(1).normal(size=(1, K)).astype(np.float32)
    for prec in ("undefined", "q8", "q4"):
        w, b = leaf(K, M, dtype="q8_0"), leaf(K, 1)
        node = ops.prec_set_src(ops.mul_mat(w, b), prec, 1)
        assert _error(x @ a.T, compute(any_backend, node, {w: stored, b: x})) > 1e-4


@pytest.mark.parametrize("prec", ["undefined", "default", "f32", "bf16", "f16"])
def test_the_cpu_sums_in_f32_whatever_the_precision_of_sums(
    prec: str, any_backend: aggml.Backend
) -> None:
    rng = np.random.default_rng(5)
    x, y = rng.normal(size=(2, 9, 4096)).astype(np.float32)
    a, b = leaf(4096, 9), leaf(4096, 9)
    found = compute(any_backend, ops.prec_set_acc(ops.mul_mat(a, b), prec), {a: x, b: y})
    assert _error(y.astype(np.float64) @ x.T, found) < 2e-6


def test_precisions_are_members_names_or_values() -> None:
    values = {name: int(prec) for name, prec in ops.Prec.__members__.items()}
    assert values == {
        "UNDEFINED": 0,
        "DEFAULT": 0,
        "F32": 10,
        "BF16": 15,
        "F16": 20,
        "Q8": 30,
        "Q4": 40,
    }
    for prec in ("bf16", 15, ops.Prec.BF16):
        attention = ops.flash_attn_ext(leaf(8, 2), leaf(8, 3), leaf(8, 3))
        assert ops.prec_set_acc(attention, prec) is attention
        assert ops.flash_attn_ext_get_prec(attention) is ops.Prec.BF16


def test_only_products_have_precisions() -> None:
    a = leaf(32, 4)
    product = ops.mul_mat(a, a)
    for node in (a, ops.add(a, a), ops.out_prod(a, a)):
        with pytest.raises(aggml.InvalidArgument, match=r"^\[prec_set_acc\] .* comes from "):
            ops.prec_set_acc(node, "f32")
    attention = ops.flash_attn_ext(leaf(8, 2), leaf(8, 3), leaf(8, 3))
    with pytest.raises(aggml.InvalidArgument, match=r"^\[prec_set_src\] .* comes from flash"):
        ops.prec_set_src(attention, "f32", 1)
    for idx in (-1, 0, 2, 9, 10, 1 << 40):
        with pytest.raises(aggml.InvalidArgument, match=rf"^\[prec_set_src\] idx = {idx}: "):
            ops.prec_set_src(product, "f32", idx)
    with pytest.raises(aggml.InvalidHandle, match="integers"):
        ops.prec_set_src(product, "f32", 1.0)  # type: ignore[arg-type]
    Graph(product)
    with pytest.raises(aggml.InvalidState, match="part of a Graph"):
        ops.prec_set_acc(product, "f32")
    with pytest.raises(aggml.InvalidState, match="part of a Graph"):
        ops.prec_set_src(product, "f32", 1)


def test_cuda_leaves_products_to_others_that_it_would_convert_to_less() -> None:
    kernels = CudaKernels()
    for kind, prec, able in (
        *(("q4_0", prec, False) for prec in ("f32", "bf16", "f16")),
        *(("q4_0", prec, True) for prec in ("undefined", "q8", "q4")),
        *(("f16", prec, prec == "f16") for prec in ("f32", "bf16", "f16")),
        *(("bf16", prec, prec != "f32") for prec in ("f32", "bf16", "f16")),
        *(("f32", prec, True) for prec in ("f32", "bf16", "f16", "q8")),
    ):
        product = ops.mul_mat(leaf(64, 8, dtype=kind), leaf(64, 3))
        assert kernels.supports(ops.prec_set_src(product, prec, 1)) is able
