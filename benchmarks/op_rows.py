"""The rows of the part "ops". Not here: what a case is, its data (op_cases.py).

Products and attention of models' sizes have parts of their own (kernels.py).
"""

from __future__ import annotations

from typing import Final

from benchmarks.op_cases import Build, OpCase, Operand, given

LARGE: Final = (4096, 1024)  # 16 MB of f32
SMALL: Final = (1024, 4)
COPIES: Final = 16


def _unary(found: dict[str, OpCase]) -> None:
    names = (
        "abs",
        "sgn",
        "neg",
        "step",
        "tanh",
        "elu",
        "relu",
        "sigmoid",
        "gelu",
        "gelu_quick",
        "gelu_erf",
        "silu",
        "exp",
        "expm1",
        "softplus",
        "hardswish",
        "hardsigmoid",
        "floor",
        "ceil",
        "round",
        "trunc",
        "log",
        "sin",
        "cos",
        "sqr",
        "sqrt",
    )
    for name in names:
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


def _binary(found: dict[str, OpCase]) -> None:
    a = given("f32", *LARGE)
    for name in ("add", "sub", "mul", "div"):
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
        found[f"{name} {_shape(LARGE)}"] = OpCase(tuple(part), put)
    both(
        found,
        "add_id",
        [given("f32", 2048, 8, 256), given("f32", 2048, 32), given("i32", 8, 256, fill="ids:32")],
        lambda o, x, y, i: o.add_id(x, y, i),
        small=False,
    )


def _glu(found: dict[str, OpCase]) -> None:
    for name in ("reglu", "geglu", "swiglu", "geglu_erf", "geglu_quick"):
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


def _norms(found: dict[str, OpCase]) -> None:
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


def _reductions(found: dict[str, OpCase]) -> None:
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


def _copies(found: dict[str, OpCase]) -> None:
    for name, to in (
        ("f32", "f32"),
        ("f32", "f16"),
        ("f32", "bf16"),
        ("f16", "f32"),
        ("bf16", "f32"),
        ("f16", "f16"),
        ("f16", "bf16"),
        ("f32", "i32"),
        ("i32", "f32"),
    ):
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
    for name in (
        "q8_0",
        "q4_0",
        "q4_1",
        "q5_0",
        "q5_1",
        "iq4_nl",
        "mxfp4",
        "q2_K",
        "q3_K",
        "q4_K",
        "q5_K",
        "q6_K",
        "iq4_xs",
        "iq2_xxs",
        "tq2_0",
    ):
        both(
            found,
            f"cpy {name} to f32",
            [given(name, *LARGE)],
            lambda o, x: o.cast(x, "f32"),
            small=name in ("q8_0", "q4_0"),
        )
    both(
        found,
        "cont f32, heads and tokens swapped",
        [given("f32", 128, 32, 1024)],
        lambda o, x: o.cont(o.permute(x, 0, 2, 1, 3)),
        tiny=[given("f32", 64, 8, 8)],
    )
    both(
        found,
        "cont f16, heads and tokens swapped",
        [given("f16", 128, 32, 1024)],
        lambda o, x: o.cont(o.permute(x, 0, 2, 1, 3)),
        tiny=[given("f16", 64, 8, 8)],
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


def _shapes(found: dict[str, OpCase]) -> None:
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


def _rows(found: dict[str, OpCase]) -> None:
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


def _softmax_rope(found: dict[str, OpCase]) -> None:
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


def _convolutions(found: dict[str, OpCase]) -> None:
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


def _order(found: dict[str, OpCase]) -> None:
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


def _sequences(found: dict[str, OpCase]) -> None:
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


def _training(found: dict[str, OpCase]) -> None:
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


def _products(found: dict[str, OpCase]) -> None:
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


def both(
    found: dict[str, OpCase],
    name: str,
    inputs: list[Operand],
    build: Build,
    *,
    small: bool = True,
    tiny: list[Operand] | None = None,
) -> None:
    """A row as given, and one in cache: ``tiny``, or SMALL where inputs are LARGE."""
    found[f"{name} {_shape(inputs[0].ne)}"] = OpCase(tuple(inputs), build)
    if tiny is None and small:
        tiny = [Operand(x.dtype, _smaller(x.ne), x.fill) for x in inputs]
        if "repeat" in name and "rows repeated" not in name:
            return
    if tiny is not None:
        found[f"{name} {_shape(tiny[0].ne)}"] = OpCase(tuple(tiny), build, COPIES)


def _smaller(ne: tuple[int, ...]) -> tuple[int, ...]:
    table = {4096: 1024, 1024: 4, 1: 1}
    if ne == (1024, 1024):
        return (256, 4)
    return tuple(table[n] for n in ne)


def _shape(ne: tuple[int, ...]) -> str:
    return " x ".join(map(str, ne))


def all_cases() -> dict[str, OpCase]:
    """The name and the case of each row."""
    found: dict[str, OpCase] = {}
    for add in (
        _binary,
        _unary,
        _glu,
        _norms,
        _reductions,
        _copies,
        _shapes,
        _rows,
        _softmax_rope,
        _convolutions,
        _order,
        _sequences,
        _training,
        _products,
    ):
        add(found)
    return found
