"""Rows of state space models and similar ops, and of training."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.op_cases import given
from benchmarks.op_rows.row import LARGE, both

if TYPE_CHECKING:
    from benchmarks.op_rows.row import Cases


def sequences(found: Cases) -> None:
    """Mamba, RWKV, gated and linear attention, solve_tri."""
    both(
        found,
        "ssm_conv",
        [given("f32", 515, 2048), given("f32", 4, 2048)],
        lambda o, x, c: o.ssm_conv(x, c),
        small=False,
    )
    scan = lambda o, *x: o.ssm_scan(*x, 1)  # noqa: E731
    ids = given("i32", 1, fill="ids:1")
    mamba1 = [
        given("f32", 16, 1, 1024, 1),
        given("f32", 1, 1024, 128),
        given("f32", 1024, 128, 1),
        given("f32", 16, 1024, fill="small"),
        given("f32", 16, 1, 128),
        given("f32", 16, 1, 128),
        ids,
    ]
    both(found, "ssm_scan, Mamba 1", mamba1, scan, small=False)
    mamba2 = [
        given("f32", 128, 64, 32, 1),
        given("f32", 64, 32, 64),
        given("f32", 32, 64, 1),
        given("f32", 1, 32, fill="small"),
        given("f32", 128, 1, 64),
        given("f32", 128, 1, 64),
        ids,
    ]
    both(found, "ssm_scan, Mamba 2", mamba2, scan, small=False)
    token, state = (
        given("f32", 64, 32, 128, fill="small"),
        given("f32", 64 * 64 * 32, 1, fill="small"),
    )
    both(
        found,
        "rwkv_wkv6",
        [token, token, token, given("f32", 64, 32, fill="small"), token, state],
        lambda o, *x: o.rwkv_wkv6(*x),
        small=False,
    )
    both(found, "rwkv_wkv7", [token] * 6 + [state], lambda o, *x: o.rwkv_wkv7(*x), small=False)
    both(
        found,
        "gated_linear_attn",
        [token] * 4 + [state],
        lambda o, *x: o.gated_linear_attn(*x, 0.125),
        small=False,
    )
    both(
        found,
        "gated_delta_net",
        [token] * 3
        + [
            given("f32", 1, 32, 128, fill="small"),
            given("f32", 1, 32, 128),
            given("f32", 64, 64, 32, 1, fill="small"),
        ],
        lambda o, *x: o.gated_delta_net(*x, 1),
        small=False,
    )
    both(
        found,
        "solve_tri",
        [given("f32", 128, 128, 4, fill="triangle"), given("f32", 128, 128, 4)],
        lambda o, a, b: o.solve_tri(a, b, True, True, False),
        small=False,
    )


def training(found: Cases) -> None:
    """Optimizer steps, outer products."""
    a = given("f32", *LARGE)
    adamw = [
        a,
        a,
        given("f32", *LARGE, fill="small"),
        given("f32", *LARGE, fill="positive"),
        given("f32", 7, fill="adamw"),
    ]
    both(
        found,
        "opt_step_adamw",
        adamw,
        lambda o, x, *rest: o.opt_step_adamw(o.param(x), *rest),
        small=False,
    )
    both(
        found,
        "opt_step_sgd",
        [a, a, given("f32", 2, fill="sgd")],
        lambda o, x, *rest: o.opt_step_sgd(o.param(x), *rest),
        small=False,
    )
    both(
        found,
        "out_prod",
        [given("f32", 512, 256), given("f32", 512, 256)],
        lambda o, x, y: o.out_prod(x, y),
        tiny=[given("f32", 32, 32)] * 2,
    )
    both(
        found,
        "out_prod q4_0",
        [given("q4_0", 512, 256), given("f32", 512, 256)],
        lambda o, x, y: o.out_prod(x, y),
        small=False,
    )
