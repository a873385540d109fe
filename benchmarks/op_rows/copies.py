"""Rows of ops that move elements: to other types, orders and shapes, or rows by index."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from benchmarks.op_cases import OpCase, given
from benchmarks.op_rows.row import LARGE, both

if TYPE_CHECKING:
    from benchmarks.op_rows.row import Cases

PLAIN: Final = (
    ("f32", "f32"), ("f32", "f16"), ("f32", "bf16"), ("f16", "f32"), ("bf16", "f32"),
    ("f16", "f16"), ("f16", "bf16"), ("f32", "i32"), ("i32", "f32"),
)  # fmt: skip
QUANTIZED: Final = (
    "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl", "mxfp4", "q2_K", "q3_K", "q4_K", "q5_K",
    "q6_K", "iq4_xs", "iq2_xxs", "tq2_0",
)  # fmt: skip


def copies(found: Cases) -> None:
    """Copies from type to type, and to another order."""
    for name, to in PLAIN:
        fill = "ids:100" if name == "i32" else "normal"
        both(
            found,
            f"cpy {name} to {to}",
            [given(name, *LARGE, fill=fill), given(to, *LARGE, fill="ids:2")],
            lambda o, x, y: o.cpy(x, y),
        )
    for to in ("q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl", "mxfp4"):
        both(
            found,
            f"cpy f32 to {to}",
            [given("f32", 2048, 256)],
            lambda o, x, to=to: o.cast(x, to),
            small=False,
        )
    for name in QUANTIZED:
        both(
            found,
            f"cpy {name} to f32",
            [given(name, *LARGE)],
            lambda o, x: o.cast(x, "f32"),
            small=name in ("q8_0", "q4_0"),
        )
    for name in ("f32", "f16"):
        both(
            found,
            f"cont {name}, heads and tokens swapped",
            [given(name, 128, 32, 1024)],
            lambda o, x: o.cont(o.permute(x, 0, 2, 1, 3)),
            tiny=[given(name, 64, 8, 8)],
        )
    for name in ("f32", "f16"):
        both(
            found,
            f"cont {name}, transposed",
            [given(name, 2048, 2048)],
            lambda o, x: o.cont(o.transpose(x)),
            tiny=[given(name, 64, 64)],
        )
        both(
            found,
            f"cont {name}, channels first",
            [given(name, 64, 256, 256)],
            lambda o, x: o.cont(o.permute(x, 2, 0, 1, 3)),
            small=False,
        )
        both(
            found,
            f"cont {name}, channels last",
            [given(name, 256, 256, 64)],
            lambda o, x: o.cont(o.permute(x, 1, 2, 0, 3)),
            small=False,
        )
    both(
        found,
        "cpy f32 to f16, transposed",
        [given("f32", 2048, 2048)],
        lambda o, x: o.cast(o.transpose(x), "f16"),
        small=False,
    )
    both(
        found,
        "cpy f32 to f16, heads and tokens swapped",
        [given("f32", 128, 32, 1024)],
        lambda o, x: o.cast(o.permute(x, 0, 2, 1, 3), "f16"),
        small=False,
    )
    both(found, "dup", [given("f32", *LARGE)], lambda o, x: o.dup(x))
    both(
        found,
        "cpy into every second row",
        [given("f32", 4096, 512), given("f32", 4096, 2, 512)],
        lambda o, x, y: o.cpy(x, o.view_2d(y, 4096, 512, 2 * 4096 * 4, 0)),
        small=False,
    )


def shapes(found: Cases) -> None:
    """Ops that join and repeat tensors."""
    for dim in range(3):
        both(
            found,
            f"concat, dimension {dim}",
            [given("f32", 512, 64, 64)] * 2,
            lambda o, x, y, dim=dim: o.concat(x, y, dim),
            tiny=[given("f32", 32, 8, 8)] * 2,
        )
    both(
        found,
        "concat f16, dimension 0",
        [given("f16", 512, 64, 64)] * 2,
        lambda o, x, y: o.concat(x, y, 0),
        small=False,
    )
    both(
        found, "repeat of rows", [given("f32", 4096)], lambda o, x: o.repeat_4d(x, 4096, 1024, 1, 1)
    )
    both(
        found,
        "repeat of a column",
        [given("f32", 1, 1024)],
        lambda o, x: o.repeat_4d(x, 4096, 1024, 1, 1),
        small=False,
    )
    both(
        found,
        "repeat of heads",
        [given("f32", 128, 1024, 4)],
        lambda o, x: o.repeat_4d(x, 128, 1024, 32, 1),
        small=False,
    )
    both(
        found,
        "repeat_back",
        [given("f32", 4096, 1024), given("f32", 1024, 16)],
        lambda o, x, y: o.repeat_back(x, y),
        small=False,
    )


def padded_and_cut(found: Cases) -> None:
    """Ops that pad, roll, and cut into windows."""
    both(
        found,
        "pad",
        [given("f32", 1000, 1000)],
        lambda o, x: o.pad(x, 24, 24, 0, 0),
        tiny=[given("f32", 60, 60)],
    )
    both(
        found,
        "pad_ext, both ends",
        [given("f32", 1000, 1000)],
        lambda o, x: o.pad_ext(x, 12, 12, 12, 12, 0, 0, 0, 0),
        small=False,
    )
    both(
        found,
        "pad_circular",
        [given("f32", 1000, 1000)],
        lambda o, x: o.pad_ext_circular(x, 12, 12, 12, 12, 0, 0, 0, 0),
        small=False,
    )
    both(
        found,
        "pad_reflect_1d",
        [given("f32", 4000, 1000)],
        lambda o, x: o.pad_reflect_1d(x, 48, 48),
        tiny=[given("f32", 500, 8)],
    )
    both(
        found,
        "roll",
        [given("f32", 1024, 1024)],
        lambda o, x: o.roll(x, 100, 20, 0, 0),
        tiny=[given("f32", 128, 32)],
    )
    both(
        found,
        "win_part",
        [given("f32", 256, 64, 64)],
        lambda o, x: o.win_part(x, 14),
        tiny=[given("f32", 16, 20, 20)],
    )
    both(
        found,
        "win_unpart",
        [given("f32", 256, 14, 14, 25)],
        lambda o, x: o.win_unpart(x, 64, 64, 14),
        small=False,
    )


def positions_and_masks(found: Cases) -> None:
    """Positions, masks, constant values."""
    both(
        found,
        "get_rel_pos",
        [given("f16", 64, 127)],
        lambda o, x: o.get_rel_pos(x, 64, 64),
        small=False,
    )
    both(
        found,
        "add_rel_pos",
        [given("f32", 256, 256, 16), given("f32", 16, 16, 16, 16), given("f32", 16, 16, 16, 16)],
        lambda o, x, w, h: o.add_rel_pos(x, w, h),
        small=False,
    )
    both(
        found,
        "timestep_embedding",
        [given("f32", 1024, fill="ids:1000")],
        lambda o, x: o.timestep_embedding(x, 320, 10000),
        small=False,
    )
    both(
        found,
        "diag_mask_inf",
        [given("f32", 512, 512, 16)],
        lambda o, x: o.diag_mask_inf(x, 0),
        tiny=[given("f32", 64, 64)],
    )
    both(
        found,
        "tri",
        [given("f32", 1024, 1024)],
        lambda o, x: o.tri(x, 0),
        tiny=[given("f32", 64, 64)],
    )
    both(found, "diag", [given("f32", 1024, 1, 4)], lambda o, x: o.diag(x), small=False)
    both(found, "fill", [given("f32", *LARGE)], lambda o, x: o.fill(x, 2.0))
    found["arange 1 M"] = OpCase((given("f32", 1),), lambda o, _: o.arange(0.0, 1048576.0, 1.0))


def rows_by_number(found: Cases) -> None:
    """get_rows, set_rows, get_rows_back."""
    ids = given("i32", 1024, fill="ids:4096")
    for name in ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_K", "q6_K"):
        both(
            found,
            f"get_rows {name}",
            [given(name, 2048, 4096), ids],
            lambda o, x, i: o.get_rows(x, i),
            tiny=[given(name, 1024, 64), given("i32", 4, fill="ids:64")],
        )
    both(
        found,
        "get_rows f32, rows of 64",
        [given("f32", 64, 65536), given("i32", 16384, fill="ids:65536")],
        lambda o, x, i: o.get_rows(x, i),
        small=False,
    )
    for to in ("f32", "f16", "bf16", "q8_0", "q4_0"):
        both(
            found,
            f"set_rows {to}",
            [given(to, 1024, 4096), given("f32", 1024, 1024), given("i64", 1024, fill="rows:4096")],
            lambda o, y, x, i: o.set_rows(y, x, i),
            tiny=[given(to, 1024, 64), given("f32", 1024, 4), given("i64", 4, fill="rows:64")],
        )
    both(
        found,
        "get_rows_back",
        [given("f32", 1024, 1024), given("i32", 1024, fill="ids:4096"), given("f32", 1024, 4096)],
        lambda o, g, i, x: o.get_rows_back(g, i, x),
        small=False,
    )
