"""Rows of ops that go along each row: norms, sums, softmax, rope, sorting."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.op_cases import given
from benchmarks.op_rows.row import LARGE, both

if TYPE_CHECKING:
    from benchmarks.op_rows.row import Cases


def norms(found: Cases) -> None:
    """Norms and gradients."""
    a = given("f32", *LARGE)
    for name in ("norm", "rms_norm", "l2_norm"):
        both(found, name, [a], lambda o, x, name=name: getattr(o, name)(x, 1e-5))
        both(
            found,
            f"{name}, rows of 64",
            [given("f32", 64, 32, 1024)],
            lambda o, x, name=name: getattr(o, name)(x, 1e-5),
            small=False,
        )
    both(
        found,
        "group_norm",
        [given("f32", 64, 64, 512)],
        lambda o, x: o.group_norm(x, 32, 1e-5),
        tiny=[given("f32", 16, 16, 16)],
    )
    both(found, "rms_norm_back", [a, a], lambda o, x, y: o.rms_norm_back(x, y, 1e-5))
    both(found, "silu_back", [a, a], lambda o, x, y: o.silu_back(x, y))


def reductions(found: Cases) -> None:
    """Sums, means, losses."""
    a = given("f32", *LARGE)
    for name in ("sum", "sum_rows", "mean", "argmax", "cumsum"):
        both(found, name, [a], lambda o, x, name=name: getattr(o, name)(x))
    both(found, "sum f16", [given("f16", *LARGE)], lambda o, x: o.sum(x))
    ids = given("i32", *LARGE, fill="ids:4")
    both(found, "count_equal", [ids, ids], lambda o, x, y: o.count_equal(x, y))
    both(
        found,
        "cross_entropy_loss",
        [a, given("f32", *LARGE, fill="positive")],
        lambda o, x, y: o.cross_entropy_loss(x, y),
    )
    both(
        found,
        "cross_entropy_loss_back",
        [given("f32", 1), a, given("f32", *LARGE, fill="positive")],
        lambda o, g, x, y: o.cross_entropy_loss_back(g, x, y),
        small=False,
    )


def softmax_and_rope(found: Cases) -> None:
    """Softmax with masks, rope of each kind."""
    logits = given("f32", 512, 512, 8)
    both(found, "soft_max", [logits], lambda o, x: o.soft_max(x), tiny=[given("f32", 256, 16)])
    for kind in ("f32", "f16"):
        both(
            found,
            f"soft_max, mask of {kind}",
            [logits, given(kind, 512, 512, fill="mask")],
            lambda o, x, m: o.soft_max_ext(x, m, 0.125, 0.0),
            tiny=[given("f32", 64, 64), given(kind, 64, 64, fill="mask")],
        )
    both(
        found,
        "soft_max, mask and ALiBi",
        [logits, given("f16", 512, 512, fill="small")],
        lambda o, x, m: o.soft_max_ext(x, m, 0.125, 8.0),
        small=False,
    )
    both(
        found,
        "soft_max_back",
        [logits, logits],
        lambda o, x, y: o.soft_max_ext_back(x, y, 0.125, 0.0),
        small=False,
    )
    x, at = given("f32", 128, 32, 512), given("i32", 512, fill="rows:512")
    for name, mode in (("normal", 0), ("neox", 2)):
        both(
            found,
            f"rope {name}",
            [x, at],
            lambda o, x, at, mode=mode: o.rope(x, at, 128, mode),
            tiny=[given("f32", 128, 8, 4), given("i32", 4, fill="rows:4")],
        )
        both(
            found,
            f"rope {name} f16",
            [given("f16", 128, 32, 512), at],
            lambda o, x, at, mode=mode: o.rope(x, at, 128, mode),
            small=False,
        )
    both(
        found,
        "rope neox, half of a row",
        [x, at],
        lambda o, x, at: o.rope(x, at, 64, 2),
        small=False,
    )
    both(
        found,
        "rope, frequency factors",
        [x, at, given("f32", 64, fill="positive")],
        lambda o, x, at, f: o.rope_ext(x, at, f, 128, 2, 4096, 10000.0, 1.0, 0.0, 1.0, 32.0, 1.0),
        small=False,
    )
    both(
        found,
        "rope, YaRN",
        [x, at],
        lambda o, x, at: o.rope_ext(x, at, None, 128, 2, 4096, 10000.0, 0.25, 1.0, 1.0, 32.0, 1.0),
        small=False,
    )
    for name, mode in (("mrope", 8), ("vision", 24), ("imrope", 40)):
        dims, sections = (64, [32, 32, 0, 0]) if name == "vision" else (128, [16, 24, 24, 0])
        both(
            found,
            f"rope {name}",
            [x, given("i32", 2048, fill="rows:2048")],
            lambda o, x, at, d=dims, s=sections, mode=mode: o.rope_multi(
                x, at, None, d, s, mode, 4096, 10000.0, 1.0, 0.0, 1.0, 32.0, 1.0
            ),
            small=False,
        )


def order(found: Cases) -> None:
    """argsort and top_k."""
    for n, rows in ((32000, 8), (1024, 256), (64, 4096)):
        both(
            found,
            f"argsort, rows of {n}",
            [given("f32", n, rows)],
            lambda o, x: o.argsort(x, 0),
            small=False,
        )
    for n, rows, k in ((32000, 8, 40), (128, 2048, 8)):
        both(
            found,
            f"top_k {k} of {n}",
            [given("f32", n, rows)],
            lambda o, x, k=k: o.top_k(x, k),
            small=False,
        )
