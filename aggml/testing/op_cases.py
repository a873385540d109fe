"""The op corpus: small graphs for most ops, with inputs made from fixed seeds.

Here: each case's graph, its inputs, and how close its result must come to the reference kernels of
the CPU. Not here: running them (op_corpus.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import ml_dtypes
import numpy as np

import aggml
from aggml import Tensor, ops
from aggml.ops.table import OPS

if TYPE_CHECKING:
    from collections.abc import Callable

    from aggml.testing.fixtures import Array

__all__ = ["OP_CASES", "Leaves", "OpCase"]

_NUMPY: dict[str, Any] = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}


class Leaves:
    """Makes the leaves of a case, and remembers the values to set."""

    def __init__(self) -> None:
        self.values: dict[Tensor, Array] = {}

    def _add(self, dtype: str, ne: tuple[int, ...], value: Array) -> Tensor:
        tensor = aggml.new_tensor(dtype, ne=ne, name=f"x{len(self.values)}")
        self.values[tensor] = value
        return tensor

    def _rng(self) -> np.random.Generator:
        return np.random.default_rng(1000 + len(self.values))

    def f(self, *ne: int, dtype: str = "f32", low: float = -1, high: float = 1) -> Tensor:
        """Numbers of any type, also quantized, drawn evenly between ``low`` and ``high``."""
        x = self._rng().uniform(low, high, ne[::-1]).astype(np.float32)
        return self._add(
            dtype, ne, x.astype(_NUMPY[dtype]) if dtype in _NUMPY else aggml.quantize(x, dtype)
        )

    def i32(self, *ne: int, below: int) -> Tensor:
        """Integers from 0 to ``below`` - 1."""
        return self._add("i32", ne, self._rng().integers(0, below, ne[::-1]).astype(np.int32))

    def i64(self, *ne: int, below: int) -> Tensor:
        """Integers from 0 to ``below`` - 1, all different within a row."""
        rows = [self._rng().permutation(below)[: ne[0]] for _ in range(int(np.prod(ne[1:])))]
        return self._add("i64", ne, np.array(rows, np.int64).reshape(ne[::-1]))


class OpCase(NamedTuple):
    """One graph.

    Attributes:
        name: for people; begins with the op.
        build: makes the ends of the graph from leaves.
        nmse: the largest allowed normalised mean square error; 0: results must be equal bit for
            bit.
    """

    name: str
    build: Callable[[Leaves], list[Tensor]]
    nmse: float


def _case(name: str, build: Callable[[Leaves], Tensor], nmse: float = 1e-7) -> OpCase:
    return OpCase(name, lambda leaves: [build(leaves)], nmse)


def _binary() -> list[OpCase]:
    shapes: list[tuple[str, tuple[int, ...], tuple[int, ...]]] = [
        ("same", (10, 5, 4, 3), (10, 5, 4, 3)),
        ("row", (10, 5, 4, 3), (10,)),
        ("scalar", (10, 5), (1,)),
        ("repeated", (12, 6, 4), (4, 3, 2)),
        ("odd", (33, 7), (33, 1)),
    ]
    cases = []
    for op in (name for name, row in OPS.items() if row.stage == "BINARY"):
        for name, a, b in shapes:
            cases.append(
                _case(
                    f"{op}-{name}",
                    lambda t, op=op, a=a, b=b: getattr(ops, op)(t.f(*a), t.f(*b, low=0.5)),  # type: ignore[misc]
                )
            )
    cases += [
        _case("add-f16", lambda t: ops.add(t.f(16, 4, dtype="f16"), t.f(16, 4, dtype="f16")), 1e-6),
        _case("add-view", lambda t: ops.add(ops.permute(t.f(6, 4, 3), 0, 2, 1, 3), t.f(6, 3, 4))),
        _case("add_inplace", lambda t: ops.add_inplace(ops.scale(t.f(16), 2.0), t.f(16))),
        _case("scale", lambda t: ops.scale(t.f(33, 5), -2.5)),
        _case("scale_bias", lambda t: ops.scale_bias(t.f(33, 5), 0.5, 3.0)),
    ]
    return cases


def _unary() -> list[OpCase]:
    positive = {"sqrt", "log"}
    names = [name for name, op in OPS.items() if op.stage == "UNARY" and name not in positive]
    cases = [
        _case(name, lambda t, name=name: getattr(ops, name)(t.f(37, 5, low=-4, high=4)), 1e-6)  # type: ignore[misc]
        for name in names
    ]
    cases += [
        _case("sqrt", lambda t: ops.sqrt(t.f(37, 5, low=0))),
        _case("log", lambda t: ops.log(t.f(37, 5, low=0.1, high=9))),
        _case("clamp", lambda t: ops.clamp(t.f(37, 5), -0.5, 0.25)),
        _case("clamp_inplace", lambda t: ops.clamp_inplace(ops.scale(t.f(37, 5), 2.0), -0.5, 0.25)),
        _case("leaky_relu", lambda t: ops.leaky_relu(t.f(37, 5), 0.1)),
    ]
    for gate in ("reglu", "geglu", "swiglu"):
        cases.append(_case(gate, lambda t, gate=gate: getattr(ops, gate)(t.f(32, 5)), 1e-6))  # type: ignore[misc]
    cases.append(_case("swiglu_split", lambda t: ops.swiglu_split(t.f(16, 5), t.f(16, 5)), 1e-6))
    cases += [
        _case(
            f"swiglu_clamp-{dtype}",
            lambda t, dtype=dtype: ops.swiglu_clamp(  # type: ignore[misc]
                t.f(16, 5, low=-9, high=9, dtype=dtype),
                t.f(16, 5, low=-9, high=9, dtype=dtype),
                limit=3.0,
            ),
            1e-6,
        )
        for dtype in ("f32", "f16")
    ]
    return cases


def _products() -> list[OpCase]:
    cases = [
        _case("mul_mat-f32", lambda t: ops.mul_mat(t.f(64, 9), t.f(64, 5)), 1e-6),
        _case("mul_mat-vector", lambda t: ops.mul_mat(t.f(96, 33), t.f(96)), 1e-6),
        _case("mul_mat-large", lambda t: ops.mul_mat(t.f(256, 70), t.f(256, 65)), 1e-6),
        _case("mul_mat-odd", lambda t: ops.mul_mat(t.f(7, 3), t.f(7, 2)), 1e-6),
        _case("mul_mat-batches", lambda t: ops.mul_mat(t.f(32, 4, 2), t.f(32, 3, 6)), 1e-6),
        _case("mul_mat-4d", lambda t: ops.mul_mat(t.f(32, 4, 2, 2), t.f(32, 3, 4, 2)), 1e-6),
        _case(
            "mul_mat-permuted",
            lambda t: ops.mul_mat(ops.permute(t.f(32, 3, 5), 0, 2, 1, 3), t.f(32, 4, 3)),
            1e-6,
        ),
    ]
    for dtype in ("f16", "bf16", "q8_0", "q4_0", "q4_K"):
        cases += [
            _case(
                f"mul_mat-{dtype}",
                lambda t, dtype=dtype: ops.mul_mat(t.f(256, 16, dtype=dtype), t.f(256, 5)),  # type: ignore[misc]
                5e-4,
            ),
            _case(
                f"get_rows-{dtype}",
                lambda t, dtype=dtype: ops.get_rows(t.f(256, 9, dtype=dtype), t.i32(4, below=9)),  # type: ignore[misc]
            ),
        ]
    return cases


def _rows() -> list[OpCase]:
    return [
        _case("get_rows-f32", lambda t: ops.get_rows(t.f(16, 9), t.i32(4, below=9)), 0),
        _case("get_rows-3d", lambda t: ops.get_rows(t.f(16, 9, 2), t.i32(4, 2, below=9)), 0),
        _case("set_rows", lambda t: ops.set_rows(t.f(16, 9), t.f(16, 4), t.i64(4, below=9)), 0),
        _case("cpy", lambda t: ops.cpy(t.f(16, 4), t.f(16, 4)), 0),
        _case("cpy-f16", lambda t: ops.cpy(t.f(16, 4), t.f(16, 4, dtype="f16")), 0),
        _case("cpy-from-f16", lambda t: ops.cpy(t.f(16, 4, dtype="f16"), t.f(16, 4)), 0),
        _case("cpy-view", lambda t: ops.cpy(t.f(8), ops.view_1d(t.f(8, 4), 8, 64)), 0),
        _case("cont-transposed", lambda t: ops.cont(ops.transpose(t.f(6, 4))), 0),
        _case("cont-permuted", lambda t: ops.cont(ops.permute(t.f(6, 4, 3), 2, 0, 1, 3)), 0),
        _case("concat", lambda t: ops.concat(t.f(6, 4), t.f(6, 3), 1), 0),
        _case("argmax", lambda t: ops.argmax(t.f(33, 5)), 0),
        _case("argsort", lambda t: ops.argsort(t.f(33, 5)), 0),
        _case("sum_rows", lambda t: ops.sum_rows(t.f(33, 5, low=0)), 1e-6),
        _case("mean", lambda t: ops.mean(t.f(33, 5, low=0)), 1e-6),
        _case("cumsum", lambda t: ops.cumsum(t.f(33, 5, low=0)), 1e-6),
    ]


def _attention() -> list[OpCase]:
    def attention(t: Leaves) -> Tensor:
        q, k, v = t.f(64, 5, 4), t.f(64, 32, 2, dtype="f16"), t.f(64, 32, 2, dtype="f16")
        return ops.flash_attn_ext(q, k, v, t.f(32, 5, dtype="f16"), scale=0.125)

    def layer(t: Leaves) -> list[Tensor]:
        """A small layer: norm, product, silu, product, residual; and a second end."""
        x = t.f(32, 6)
        h = ops.mul(ops.rms_norm(x, 1e-5), t.f(32))
        up = ops.silu(ops.mul_mat(t.f(32, 48), h))
        y = ops.add(ops.mul_mat(t.f(48, 32), up), x)
        return [y, ops.soft_max(ops.scale(y, 2.0))]

    return [
        _case("norm", lambda t: ops.norm(t.f(33, 5), 1e-5), 1e-6),
        _case("rms_norm", lambda t: ops.rms_norm(t.f(33, 5, 2), 1e-5), 1e-6),
        _case("soft_max", lambda t: ops.soft_max(t.f(33, 5, 2, low=-4, high=4)), 1e-6),
        _case("soft_max-large-values", lambda t: ops.soft_max(t.f(16, high=500)), 1e-6),
        _case(
            "soft_max-mask",
            lambda t: ops.soft_max_ext(t.f(32, 6, 4), t.f(32, 6, dtype="f16"), scale=0.5),
            1e-6,
        ),
        _case("soft_max-scale", lambda t: ops.soft_max_ext(t.f(32, 6), None, scale=0.3), 1e-6),
        _case("diag_mask_inf", lambda t: ops.diag_mask_inf(t.f(6, 6), 1), 0),
        _case("rope-normal", lambda t: ops.rope(t.f(32, 4, 5), t.i32(5, below=99), 32), 1e-6),
        _case("rope-neox", lambda t: ops.rope(t.f(32, 4, 5), t.i32(5, below=99), 16, "neox"), 1e-6),
        _case("flash_attn_ext", attention, 5e-4),
        OpCase("layer", layer, 1e-6),
    ]


OP_CASES: list[OpCase] = [*_binary(), *_unary(), *_products(), *_rows(), *_attention()]
