"""Rows of small and odd products and attention; those of models are in kernels.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.op_cases import given
from benchmarks.op_rows.row import both

if TYPE_CHECKING:
    from benchmarks.op_rows.row import Cases


def products(found: Cases) -> None:
    """mul_mat."""
    product = lambda o, x, y: o.mul_mat(x, y)  # noqa: E731
    for name in ("f32", "f16", "bf16"):
        both(
            found,
            f"mul_mat {name}, heads permuted",
            [given(name, 64, 16, 256), given("f32", 64, 16, 256)],
            lambda o, x, y: o.mul_mat(o.permute(x, 0, 2, 1, 3), o.permute(y, 0, 2, 1, 3)),
            small=False,
        )
        both(
            found,
            f"mul_mat {name}, heads shared",
            [given(name, 64, 256, 4), given("f32", 64, 256, 16)],
            product,
            small=False,
        )
        both(
            found,
            f"mul_mat {name}, k of 8",
            [given(name, 8, 1024), given("f32", 8, 512)],
            product,
            small=False,
        )
        both(
            found,
            f"mul_mat {name}, 257 x 129 x 333",
            [given(name, 333, 257), given("f32", 333, 129)],
            product,
            small=False,
        )
        both(
            found,
            f"mul_mat {name}, 512 of 16 x 16 x 16",
            [given(name, 16, 16, 512), given("f32", 16, 16, 512)],
            product,
            small=False,
        )
        both(
            found,
            f"mul_mat {name}, column of 2048 x 1024",
            [given(name, 2048, 1024), given("f32", 2048)],
            product,
            small=False,
        )
        both(
            found,
            f"mul_mat {name}, column of 512 x 32 heads",
            [given(name, 128, 512, 32), given("f32", 128, 1, 32)],
            product,
            small=False,
        )
    for name in ("q8_0", "q4_0", "q4_K", "q6_K"):
        both(
            found,
            f"mul_mat {name}, 257 x 129 x 512",
            [given(name, 512, 257), given("f32", 512, 129)],
            product,
            small=False,
        )


def experts(found: Cases) -> None:
    """mul_mat_id."""
    for name in ("f32", "f16", "q8_0", "q4_0", "q4_K"):
        for tokens in (1, 64):
            both(
                found,
                f"mul_mat_id {name}, {tokens} tokens",
                [
                    given(name, 512, 256, 32),
                    given("f32", 512, 1, tokens),
                    given("i32", 4, tokens, fill="rows:32"),
                ],
                lambda o, x, y, i: o.mul_mat_id(x, y, i),
                small=False,
            )


def attention(found: Cases) -> None:
    """flash_attn_ext."""
    for name in ("f32", "f16", "q8_0", "q4_0"):
        for tokens in (1, 128):
            both(
                found,
                f"attention {name}, {tokens} x 512",
                [given("f32", 64, tokens, 16), given(name, 64, 512, 4), given(name, 64, 512, 4)],
                lambda o, q, k, v: o.flash_attn_ext(q, k, v, None, 0.125, 0.0, 0.0),
                small=False,
            )
    both(
        found,
        "attention f16, mask and sinks",
        [
            given("f32", 64, 128, 16),
            given("f16", 64, 512, 4),
            given("f16", 64, 512, 4),
            given("f16", 512, 128, fill="small"),
            given("f32", 16),
        ],
        lambda o, q, k, v, m, s: o.sinks(o.flash_attn_ext(q, k, v, m, 0.125, 0.0, 0.0), s),
        small=False,
    )
