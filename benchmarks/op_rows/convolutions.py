"""Rows of convolutions, pools and ops that resize pictures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.op_cases import given
from benchmarks.op_rows.row import both

if TYPE_CHECKING:
    from benchmarks.op_rows.row import Cases


def convolutions(found: Cases) -> None:
    """Convolutions of lines and images."""
    for name in ("f16", "f32"):
        both(
            found,
            f"conv_1d {name}",
            [given(name, 3, 256, 256), given("f32", 1500, 256)],
            lambda o, a, b: o.conv_1d(a, b, 1, 1, 1),
            small=False,
        )
        both(
            found,
            f"conv_2d {name}",
            [given(name, 3, 3, 64, 64), given("f32", 64, 64, 64)],
            lambda o, a, b: o.conv_2d(a, b, 1, 1, 1, 1, 1, 1),
            tiny=[given(name, 3, 3, 8, 8), given("f32", 8, 8, 8)],
        )
        both(
            found,
            f"conv_2d_direct {name}",
            [given(name, 3, 3, 64, 64), given("f32", 64, 64, 64)],
            lambda o, a, b: o.conv_2d_direct(a, b, 1, 1, 1, 1, 1, 1),
            tiny=[given(name, 3, 3, 8, 8), given("f32", 8, 8, 8)],
        )


def strided_and_deep(found: Cases) -> None:
    """Convolutions with strides, of channels one by one, of volumes."""
    both(
        found,
        "conv_2d_direct, every second",
        [given("f32", 3, 3, 32, 64), given("f32", 112, 112, 32)],
        lambda o, a, b: o.conv_2d_direct(a, b, 2, 2, 1, 1, 1, 1),
        small=False,
    )
    both(
        found,
        "conv_1d_dw",
        [given("f16", 3, 1, 256), given("f32", 1500, 256)],
        lambda o, a, b: o.conv_1d_dw(a, b, 1, 1, 1),
        small=False,
    )
    both(
        found,
        "conv_2d_dw",
        [given("f16", 3, 3, 1, 128), given("f32", 56, 56, 128)],
        lambda o, a, b: o.conv_2d_dw(a, b, 1, 1, 1, 1, 1, 1),
        small=False,
    )
    for step in (1, 2):
        both(
            found,
            f"conv_2d_dw_direct, stride {step}",
            [given("f32", 3, 3, 1, 128), given("f32", 56, 56, 128)],
            lambda o, a, b, s=step: o.conv_2d_dw_direct(a, b, s, s, 1, 1, 1, 1),
            small=False,
        )
    both(
        found,
        "conv_3d",
        [given("f32", 3, 3, 3, 16 * 16), given("f32", 24, 24, 24, 16)],
        lambda o, a, b: o.conv_3d(a, b, 16, 1, 1, 1, 1, 1, 1, 1, 1, 1),
        small=False,
    )
    both(
        found,
        "conv_3d_direct",
        [given("f32", 3, 3, 3, 16 * 16), given("f32", 24, 24, 24, 16)],
        lambda o, a, b: o.conv_3d_direct(a, b, 1, 1, 1, 1, 1, 1, 1, 1, 1, 16, 1, 16),
        small=False,
    )


def transposed(found: Cases) -> None:
    """Transposed convolutions."""
    for name in ("f16", "f32"):
        both(
            found,
            f"conv_transpose_1d {name}",
            [given(name, 8, 64, 128), given("f32", 256, 128)],
            lambda o, a, b: o.conv_transpose_1d(a, b, 4, 0, 1),
            small=False,
        )
        both(
            found,
            f"conv_transpose_2d {name}",
            [given(name, 2, 2, 64, 64), given("f32", 32, 32, 64)],
            lambda o, a, b: o.conv_transpose_2d_p0(a, b, 2),
            small=False,
        )
    both(
        found,
        "conv_transpose_2d, kernel 4",
        [given("f16", 4, 4, 32, 32), given("f32", 32, 32, 32)],
        lambda o, a, b: o.conv_transpose_2d_p0(a, b, 2),
        small=False,
    )


def im2col(found: Cases) -> None:
    """Windows laid out as rows."""
    for to in ("f16", "f32"):
        both(
            found,
            f"im2col {to}",
            [given(to, 3, 3, 64, 8), given("f32", 64, 64, 64)],
            lambda o, a, b, to=to: o.im2col(a, b, 1, 1, 1, 1, 1, 1, True, to),
            tiny=[given(to, 3, 3, 4, 1), given("f32", 12, 12, 4)],
        )
    both(
        found,
        "im2col, a line",
        [given("f16", 3, 256, 8), given("f32", 1500, 256)],
        lambda o, a, b: o.im2col(a, b, 1, 0, 1, 0, 1, 0, False, "f16"),
        small=False,
    )
    both(
        found,
        "im2col, patches of 14",
        [given("f16", 14, 14, 3, 8), given("f32", 448, 448, 3)],
        lambda o, a, b: o.im2col(a, b, 14, 14, 0, 0, 1, 1, True, "f16"),
        small=False,
    )
    both(
        found,
        "im2col_3d",
        [given("f16", 3, 3, 3, 16), given("f32", 24, 24, 24, 16)],
        lambda o, a, b: o.im2col_3d(a, b, 16, 1, 1, 1, 1, 1, 1, 1, 1, 1, "f16"),
        small=False,
    )


def pools_and_sizes(found: Cases) -> None:
    """Pools, and pictures at another size."""
    for op, kind in ((0, "max"), (1, "mean")):
        both(
            found,
            f"pool_1d {kind}",
            [given("f32", 2048, 512)],
            lambda o, x, op=op: o.pool_1d(x, op, 2, 2, 0),
            small=False,
        )
        both(
            found,
            f"pool_2d {kind}",
            [given("f32", 224, 224, 32)],
            lambda o, x, op=op: o.pool_2d(x, op, 2, 2, 2, 2, 0.0, 0.0),
            tiny=[given("f32", 16, 16, 8)],
        )
        both(
            found,
            f"pool_2d {kind}, 3 x 3",
            [given("f32", 112, 112, 64)],
            lambda o, x, op=op: o.pool_2d(x, op, 3, 3, 2, 2, 1.0, 1.0),
            small=False,
        )
    for mode, kind in (
        (0, "nearest"),
        (1, "bilinear"),
        (2, "bicubic"),
        (1 | 512, "bilinear, antialias"),
    ):
        both(
            found,
            f"upscale {kind}",
            [given("f32", 128, 128, 32)],
            lambda o, x, mode=mode: o.interpolate(x, 256, 256, 32, 1, mode),
            small=False,
        )
