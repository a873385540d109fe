"""Rows of element-wise ops: with two operands, with one operand, gated units."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aggml.ops.table import OPS
from benchmarks.op_cases import OpCase, given
from benchmarks.op_rows.row import LARGE, both, shape

if TYPE_CHECKING:
    from benchmarks.op_rows.row import Cases

UNARY: Final = tuple(name for name, op in OPS.items() if op.stage == "UNARY")
BINARY: Final = tuple(name for name, op in OPS.items() if op.stage == "BINARY")
GATED: Final = tuple(name for name, op in OPS.items() if op.stage == "GATED")


def binary(found: Cases) -> None:
    """Ops of two operands; the second one also repeated, permuted, or of other types."""
    a = given("f32", *LARGE)
    for name in BINARY:
        two = lambda o, x, y, name=name: getattr(o, name)(x, y)  # noqa: E731
        fill = "positive" if name == "div" else "normal"
        both(found, name, [a, given("f32", *LARGE, fill=fill)], two)
        both(found, f"{name} of a row", [a, given("f32", LARGE[0], fill=fill)], two)
        both(found, f"{name} of a column", [a, given("f32", 1, LARGE[1], fill=fill)], two)
    plus = lambda o, x, y: o.add(x, y)  # noqa: E731
    both(found, "add f16", [given("f16", *LARGE), given("f16", *LARGE)], plus)
    both(found, "add f16, f32", [given("f16", *LARGE), a], plus)
    both(found, "add bf16", [given("bf16", *LARGE), given("bf16", *LARGE)], plus)
    both(found, "mul f16", [given("f16", *LARGE)] * 2, lambda o, x, y: o.mul(x, y))
    both(found, "add q8_0, f32", [given("q8_0", *LARGE), a], plus)
    both(found, "add q4_0, f32", [given("q4_0", *LARGE), a], plus)
    both(found, "add, rows repeated in part", [a, given("f32", 1024, 1024)], plus)
    both(
        found,
        "add, permuted",
        [given("f32", 128, 32, 1024), given("f32", 128, 1024, 32)],
        lambda o, x, y: o.add(x, o.permute(y, 0, 2, 1, 3)),
        small=False,
    )
    both(
        found,
        "mul, transposed",
        [given("f32", 1024, 2048), given("f32", 2048, 1024)],
        lambda o, x, y: o.mul(x, o.transpose(y)),
        small=False,
    )
    both(found, "add1", [a, given("f32", 1)], lambda o, x, y: o.add1(x, y))
    part = [a, given("f32", 2048, 512)]
    size = 4 * LARGE[0]
    for name in ("acc", "set"):
        put = lambda o, x, y, name=name: getattr(o, name)(x, y, size, size * 512, size * 512, 4096)  # noqa: E731
        found[f"{name} {shape(LARGE)}"] = OpCase(tuple(part), put)
    both(
        found,
        "add_id",
        [given("f32", 2048, 8, 256), given("f32", 2048, 32), given("i32", 8, 256, fill="ids:32")],
        lambda o, x, y, i: o.add_id(x, y, i),
        small=False,
    )


def unary(found: Cases) -> None:
    """Ops of one operand."""
    for name in UNARY:
        fill = "positive" if name in ("log", "sqrt") else "normal"
        both(
            found,
            name,
            [given("f32", *LARGE, fill=fill)],
            lambda o, x, name=name: getattr(o, name)(x),
        )
    for name in ("silu", "gelu", "relu", "tanh", "exp", "neg"):
        both(
            found,
            f"{name} f16",
            [given("f16", *LARGE)],
            lambda o, x, name=name: getattr(o, name)(x),
        )
    for name in ("sigmoid", "neg", "exp"):
        both(
            found,
            f"{name} bf16",
            [given("bf16", *LARGE)],
            lambda o, x, name=name: getattr(o, name)(x),
        )
    both(found, "leaky_relu", [given("f32", *LARGE)], lambda o, x: o.leaky_relu(x, 0.1, False))
    both(found, "clamp", [given("f32", *LARGE)], lambda o, x: o.clamp(x, -0.5, 0.5))
    both(found, "xielu", [given("f32", *LARGE)], lambda o, x: o.xielu(x, 0.8, 0.8, 0.5, -1e-6))
    both(found, "scale", [given("f32", *LARGE)], lambda o, x: o.scale(x, 0.5))
    both(found, "scale_bias", [given("f32", *LARGE)], lambda o, x: o.scale_bias(x, 0.5, 0.25))
    both(
        found,
        "silu of every second row",
        [given("f32", 4096, 2, 512)],
        lambda o, x: o.silu(o.view_2d(x, 4096, 512, 2 * 4096 * 4, 0)),
        small=False,
    )


def glu(found: Cases) -> None:
    """Gated units of the halves of a row, or of two operands."""
    for name in GATED:
        both(found, name, [given("f32", *LARGE)], lambda o, x, name=name: getattr(o, name)(x))
        split = lambda o, x, y, name=name: getattr(o, f"{name}_split")(x, y)  # noqa: E731
        both(found, f"{name}_split", [given("f32", *LARGE)] * 2, split)
    both(found, "swiglu f16", [given("f16", *LARGE)], lambda o, x: o.swiglu(x))
    both(
        found,
        "swiglu_oai",
        [given("f32", *LARGE)] * 2,
        lambda o, x, y: o.swiglu_oai(x, y, 1.702, 7.0),
    )
    both(
        found,
        "swiglu_clamp",
        [given("f32", *LARGE)] * 2,
        lambda o, x, y: o.swiglu_clamp(x, y, 7.0),
    )
