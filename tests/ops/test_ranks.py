"""The rank of each builder's result depends on the ranks of its operands, never on the extents.

Here: every builder. Not here: extents (test_recorded.py), the arrays of `get` and `run`
(backend/test_shapes.py).
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from corpus_loader import op_cases
from ops.recorded import build, recorded_calls

from aggml import Tensor, new_tensor, ops
from aggml.ops.table import OPS

if TYPE_CHECKING:
    from collections.abc import Callable


def t(*ne: int, dtype: str = "f32") -> Tensor:
    return new_tensor(dtype, ne)


def many(count: int, *ne: int) -> Any:
    return [t(*ne) for _ in range(count)]


def call(name: str, operands: Callable[[int], tuple[Any, ...]]) -> Callable[[int], Tensor]:
    """Call the builder ``name`` with the operands for a batch of n."""
    return lambda n: getattr(ops, name)(*operands(n))


def ids(*ne: int) -> Tensor:
    return t(*ne, dtype="i32")


# -- builders whose result has the rank of their first operand: name -> further arguments

_ALONE = ["hardswish", "hardsigmoid"]  # no in-place variant
_UNARY = [name for name, op in OPS.items() if op.stage == "UNARY" and name not in _ALONE]
_GATES = [name for name, op in OPS.items() if op.stage == "GATED"]
LIKE_THE_FIRST: dict[str, tuple[Any, ...]] = {
    **{name + end: () for name in _UNARY for end in ("", "_inplace")},
    **{name + end: () for name in _GATES for end in ("", "_swapped")},
    **{"unary" + end: ("relu",) for end in ("", "_inplace")},
    **{
        name + end: (0,) for name in ("diag_mask_inf", "diag_mask_zero") for end in ("", "_inplace")
    },
    **{"scale" + end: (2.0,) for end in ("", "_inplace")},
    **{"scale_bias" + end: (2.0, 1.0) for end in ("", "_inplace")},
    **{name + end: (1e-5,) for name in ("norm", "rms_norm", "l2_norm") for end in ("", "_inplace")},
    **{"group_norm" + end: (1, 1e-5) for end in ("", "_inplace")},
    **{"soft_max" + end: () for end in ("", "_inplace")},
    **{"soft_max_ext" + end: (None, 1.0) for end in ("", "_inplace")},
    **{"fill" + end: (1.0,) for end in ("", "_inplace")},
    **dict.fromkeys((*_ALONE, "sum", "sum_rows", "mean", "cumsum"), ()),
    **dict.fromkeys(("cont", "dup", "dup_inplace", "view_tensor", "argsort"), ()),
    "xielu": (1.0, 1.0, 1.0, 1.0),
    **{"clamp" + end: (0.0, 1.0) for end in ("", "_inplace")},
    "leaky_relu": (0.1, False),
    "cast": ("f16",),
    "glu": ("reglu",),
    "argsort_top_k": (1,),
    "top_k": (1,),
    "pad": (1, 0, 0, 0),
    "pad_circular": (1, 0, 0, 0),
    "pad_ext": (1, 0, 0, 0, 0, 0, 0, 0),
    "pad_ext_circular": (1, 0, 0, 0, 0, 0, 0, 0),
    "pad_reflect_1d": (1, 1),
    "roll": (1, 0, 0, 0),
    "pool_1d": ("max", 2, 2, 0),
    "pool_2d": ("max", 2, 1, 2, 1, 0, 0),
    "interpolate": (8, 1, 1, 1),
    "upscale_ext": (8, 1, 1, 1),
    "map_custom1": (print,),
    "map_custom1_inplace": (print,),
}


@pytest.mark.parametrize("ndim", [1, 2, 3, 4])
def test_the_first_operand_decides(ndim: int) -> None:
    for name, arguments in LIKE_THE_FIRST.items():
        y = getattr(ops, name)(t(4, *(1,) * (ndim - 1)), *arguments)
        assert y.ndim == ndim, name
        assert y.shape == y.ne[:ndim][::-1], name


# -- two operands: the larger rank

WIDER = [
    *[n + e for n in ("add", "sub", "mul", "div", "add1") for e in ("", "_inplace")],
    *[f"{name}_split" for name in _GATES],
    *("concat", "repeat", "mul_mat", "out_prod"),
]


@pytest.mark.parametrize(("m", "n"), [(1, 1), (1, 3), (3, 1), (2, 4), (4, 4)])
@pytest.mark.parametrize("name", WIDER)
def test_the_larger_operand_decides(name: str, m: int, n: int) -> None:
    k = 1 if name.startswith("add1") else 4
    y = getattr(ops, name)(t(4, *(1,) * (m - 1)), t(k, *(1,) * (n - 1)))
    assert y.ndim == max(m, n, 2 if name in {"mul_mat", "out_prod"} else 1)
    assert np.prod(y.shape) == y.nelements


# -- all others: the result for a batch of n, and its rank, which is the same for every n

OTHERS: dict[str, list[tuple[Callable[[int], Tensor], int]]] = {
    "new_tensor": [
        (lambda n: t(n), 1),
        (lambda n: t(4, n), 2),
        (lambda n: t(4, n, 1), 3),
        (lambda n: t(1, 1, 1, n), 4),
        (lambda n: new_tensor("f32", n), 1),
    ],
    "reshape_1d": [(lambda n: ops.reshape_1d(t(4, n, 1), 4 * n), 1)],
    "reshape_2d": [(lambda n: ops.reshape_2d(t(4 * n), 4, n), 2)],
    "reshape_3d": [(lambda n: ops.reshape_3d(t(4 * n), 4, 1, n), 3)],
    "reshape_4d": [(lambda n: ops.reshape_4d(t(4 * n), 4, 1, 1, n), 4)],
    "reshape": [
        (lambda n: ops.reshape(t(4 * n), t(4, n)), 2),
        (lambda n: ops.reshape(t(4, n, 1), t(4 * n)), 1),
    ],
    "cont_1d": [(lambda n: ops.cont_1d(t(4, n, 1), 4 * n), 1)],
    "cont_2d": [(lambda n: ops.cont_2d(t(4 * n), 4, n), 2)],
    "cont_3d": [(lambda n: ops.cont_3d(t(4 * n), 4, 1, n), 3)],
    "cont_4d": [(lambda n: ops.cont_4d(t(4 * n), 4, 1, 1, n), 4)],
    "view_1d": [(lambda n: ops.view_1d(t(4, n, 1), 4, 0), 1)],
    "view_2d": [(lambda n: ops.view_2d(t(4 * n), 4, n, 16), 2)],
    "view_3d": [(lambda n: ops.view_3d(t(4 * n), 4, 1, n, 16, 16), 3)],
    "view_4d": [(lambda n: ops.view_4d(t(4 * n), 4, 1, 1, n, 16, 16, 16), 4)],
    "permute": [
        (lambda n: ops.permute(t(n), 0, 1, 2, 3), 1),
        (lambda n: ops.permute(t(4, n), 1, 0, 2, 3), 2),
        (lambda n: ops.permute(t(4, n), 0, 2, 1, 3), 3),
        (lambda n: ops.permute(t(4, n, 3), 0, 2, 1, 3), 3),
        (lambda n: ops.permute(t(4, n), 0, 3, 1, 2), 4),
        (lambda n: ops.permute(t(n), 3, 0, 1, 2), 4),
    ],
    "transpose": [
        (lambda n: ops.transpose(t(n)), 2),
        (lambda n: ops.transpose(t(4, n)), 2),
        (lambda n: ops.transpose(t(4, n, 1)), 3),
    ],
    "concat": [(lambda n: ops.concat(t(n), t(n), 1), 2)],
    "repeat_4d": [(lambda n: ops.repeat_4d(t(4), 4, n, 1, 1), 4)],
    "repeat_back": [(lambda n: ops.repeat_back(t(4, n), t(4, 1)), 2)],
    "mul_mat": [
        (lambda n: ops.mul_mat(t(4, 5), t(4, n)), 2),
        (lambda n: ops.mul_mat(t(4, 5), t(4, 7, n)), 3),
        (lambda n: ops.mul_mat(t(4, n), t(4)), 2),
    ],
    "mul_mat_id": [
        (lambda n: ops.mul_mat_id(t(4, 5, 3), t(4, 1, n), ids(2, n)), 3),
        (lambda n: ops.mul_mat_id(t(4, 5, 3), t(4, n), ids(n)), 3),
    ],
    "add_cast": [(lambda n: ops.add_cast(t(4, n, dtype="f16"), t(4), "f32"), 2)],
    "add_id": [(lambda n: ops.add_id(t(4, 2, n), t(4, 5), ids(2, n)), 3)],
    "cpy": [(lambda n: ops.cpy(t(4 * n), t(4, n)), 2)],
    "get_rows": [
        (lambda n: ops.get_rows(t(4, 5), ids(n)), 2),
        (lambda n: ops.get_rows(t(4, 5, n), ids(2, n)), 3),
    ],
    "get_rows_back": [(lambda n: ops.get_rows_back(t(4, 2), ids(2), t(4, n)), 2)],
    "set_rows": [(lambda n: ops.set_rows(t(4, 5, n), t(4, 2, n), ids(2, n)), 3)],
    **{
        f"{name}{end}": [(call(f"{name}{end}", lambda n: (t(4, n), t(2), 16, 16, 16, 0)), 2)]
        for name in ("set", "acc")
        for end in ("", "_inplace")
    },
    **{
        f"set_1d{end}": [(call(f"set_1d{end}", lambda n: (t(4, n), t(2), 0)), 2)]
        for end in ("", "_inplace")
    },
    **{
        f"set_2d{end}": [(call(f"set_2d{end}", lambda n: (t(4, n), t(2), 16, 0)), 2)]
        for end in ("", "_inplace")
    },
    "sample": [
        (lambda n: ops.sample(t(4, n), t(2, n, dtype="i32"), t(5, n, dtype="f64")), 1),
    ],
    "penalize": [
        (lambda n: ops.penalize(t(4, n), t(2, n, dtype="i32"), t(2, 5, n)), 2),
    ],
    "argmax": [(lambda n: ops.argmax(t(4, n)), 2)],
    "count_equal": [(lambda n: ops.count_equal(ids(4, n), ids(4, n)), 2)],
    "cross_entropy_loss": [(lambda n: ops.cross_entropy_loss(t(4, n), t(4, n)), 2)],
    "cross_entropy_loss_back": [(lambda n: ops.cross_entropy_loss_back(t(1), t(4, n), t(4, n)), 2)],
    "glu_split": [(lambda n: ops.glu_split(t(4, n), t(4, n), "reglu"), 2)],
    "swiglu_oai": [(lambda n: ops.swiglu_oai(t(4, n), t(4, n), 1.0, 1.0), 2)],
    "swiglu_clamp": [
        (lambda n: ops.swiglu_clamp(t(4, n), t(4, n), 1.0), 2),
        (lambda n: ops.swiglu_clamp(t(4, n), None, 1.0), 2),
    ],
    "silu_back": [(lambda n: ops.silu_back(t(4, n), t(4, n)), 2)],
    "rms_norm_back": [(lambda n: ops.rms_norm_back(t(4, n), t(4, n), 1e-5), 2)],
    **{
        f"soft_max_ext_back{end}": [
            (call(f"soft_max_ext_back{end}", lambda n: (t(4, n), t(4, n))), 2)
        ]
        for end in ("", "_inplace")
    },
    "soft_max_ext": [
        (lambda n: ops.soft_max_ext(t(4, 2, n), t(4, 2), 1.0), 3),
    ],
    # changes a node and makes none, as do all with set or get in their name
    "soft_max_add_sinks": [],
    "flash_attn_ext_set_prec": [],
    "flash_attn_ext_get_prec": [],
    "flash_attn_ext_add_sinks": [],
    "flash_attn_ext_set_n_kv_max": [],
    "flash_attn_ext_set_shared": [],
    "prec_set_acc": [],
    "prec_set_src": [],
    "mul_mat_set_prec": [],
    "mul_mat_set_hint": [],
    "rope_set_offset": [],
    **{
        f"{name}{end}": [(call(f"{name}{end}", lambda n: (t(4, 2, n), ids(n), 4, "neox")), 3)]
        for name in ("rope", "rope_custom")
        for end in ("", "_inplace")
    },
    **{
        name: [
            (call(name, lambda n: (t(4, 2, n), ids(n), None, 4, "neox")), 3),
            (call(name, lambda n: (t(4, 2, 3, n), ids(3), None, 4, "neox")), 4),
        ]
        for name in ("rope_ext", "rope_ext_inplace", "rope_ext_back")
    },
    **{
        name: [
            (
                call(name, lambda n: (t(8, 2, n), ids(4 * n), None, 8, (1, 1, 1, 1), "mrope")),
                3,
            )
        ]
        for name in ("rope_multi", "rope_multi_inplace", "rope_multi_back")
    },
    "flash_attn_ext": [
        (lambda n: ops.flash_attn_ext(t(4, n, 2), _kv(), _kv(), None, 1.0), 3),
        (lambda n: ops.flash_attn_ext(t(4, 3, 2, n), _kv(n), _kv(n), None, 1.0), 4),
        (lambda n: ops.flash_attn_ext(t(4, n), t(4, 6), t(4, 6), None, 1.0), 3),
    ],
    "flash_attn_back": [
        (lambda n: ops.flash_attn_back(t(4, n, 2), t(4, 6, 2), t(6, 4, 2), t(4, n, 2), False), 3)
    ],
    "conv_1d": [(lambda n: ops.conv_1d(t(3, 2, 5), t(8, 2, n)), 3)],
    "conv_1d_ph": [(lambda n: ops.conv_1d_ph(t(3, 2, 5), t(8, 2, n)), 3)],
    "conv_1d_dw": [(lambda n: ops.conv_1d_dw(t(3, 1, n), t(8, n)), 3)],
    "conv_1d_dw_ph": [(lambda n: ops.conv_1d_dw_ph(t(3, 1, n), t(8, n)), 3)],
    "conv_2d": [(lambda n: ops.conv_2d(t(3, 3, 2, 5), t(8, 8, 2, n)), 4)],
    "conv_2d_sk_p0": [(lambda n: ops.conv_2d_sk_p0(t(2, 2, 2, 5), t(8, 8, 2, n)), 4)],
    "conv_2d_s1_ph": [(lambda n: ops.conv_2d_s1_ph(t(3, 3, 2, 5), t(8, 8, 2, n)), 4)],
    "conv_2d_dw": [(lambda n: ops.conv_2d_dw(t(3, 3, 1, 2, dtype="f16"), t(8, 8, 2, n)), 4)],
    "conv_2d_direct": [
        (lambda n: ops.conv_2d_direct(t(3, 3, 2, 5), t(8, 8, 2, n)), 4),
        (lambda n: ops.conv_2d_direct(t(3, 3), t(8, 8, 1, n)), 4),
    ],
    "conv_2d_dw_direct": [(lambda n: ops.conv_2d_dw_direct(t(3, 3, 1, 2), t(8, 8, 2, n)), 4)],
    "conv_3d": [(lambda n: ops.conv_3d(t(3, 3, 3, 2), t(8, 8, 8, 2 * n), 2), 4)],
    "conv_3d_direct": [
        (
            lambda n: ops.conv_3d_direct(
                t(3, 3, 3, 2), t(8, 8, 8, 2 * n), 1, 1, 1, 0, 0, 0, 1, 1, 1, 2, n, 1
            ),
            4,
        )
    ],
    "conv_transpose_1d": [(lambda n: ops.conv_transpose_1d(t(3, n, 2), t(8, 2)), 3)],
    "conv_transpose_2d_p0": [(lambda n: ops.conv_transpose_2d_p0(t(3, 3, 5, 2), t(8, 8, 2, n)), 4)],
    "col2im_1d": [(lambda n: ops.col2im_1d(t(3 * n, 5), 1, n), 2)],
    "im2col": [
        (lambda n: ops.im2col(t(3, 3, 2), t(8, 8, 2, n)), 4),
        (lambda n: ops.im2col(t(3, 2), t(8, 2, n), is_2D=False), 3),
    ],
    "im2col_back": [(lambda n: ops.im2col_back(t(18, 6, 6, n), t(3, 3, 2), (8, 8, 2, n)), 4)],
    "im2col_3d": [(lambda n: ops.im2col_3d(t(3, 3, 3, 2), t(8, 8, 8, 2 * n), 2), 4)],
    "pool_2d_back": [
        (
            lambda n: ops.pool_2d_back(t(4, 4, n), t(8, 8, n), "max", 2, 2, 2, 2, 0, 0),
            3,
        )
    ],
    "upscale": [(lambda n: ops.upscale(t(4, 2, n), 2), 3)],
    "interpolate": [(lambda n: ops.interpolate(t(4, 2, n), 8, 4, n, 1), 3)],
    "arange": [(lambda n: ops.arange(0.0, float(n), 1.0), 1)],
    "tri": [(lambda n: ops.tri(t(4, 4, n), "lower"), 3)],
    "diag": [(lambda n: ops.diag(t(n)), 2), (lambda n: ops.diag(t(4, 1, n)), 3)],
    "timestep_embedding": [(lambda n: ops.timestep_embedding(t(n), 8, 100), 2)],
    "win_part": [(lambda n: ops.win_part(t(4, n, n), 4), 4)],
    "win_unpart": [(lambda n: ops.win_unpart(t(4, 2, 2, n), 2 * n, 2, 2), 4)],
    "get_rel_pos": [(lambda n: ops.get_rel_pos(t(4, 2 * n - 1, dtype="f16"), n, n), 3)],
    **{
        f"add_rel_pos{end}": [
            (
                call(f"add_rel_pos{end}", lambda n: (t(4, 6, n), t(2, 2, 3, n), t(2, 2, 3, n))),
                3,
            )
        ]
        for end in ("", "_inplace")
    },
    "solve_tri": [(lambda n: ops.solve_tri(t(4, 4, n), t(3, 4, n)), 3)],
    "opt_step_adamw": [
        (lambda n: ops.opt_step_adamw(t(4, n).set_param(), t(4, n), t(4, n), t(4, n), t(7)), 2)
    ],
    "opt_step_sgd": [(lambda n: ops.opt_step_sgd(t(4, n).set_param(), t(4, n), t(2)), 2)],
    "ssm_conv": [(lambda n: ops.ssm_conv(t(5, 4, n), t(3, 4)), 3)],
    "ssm_scan": [
        (
            lambda n: ops.ssm_scan(
                t(4, 2, 3, n),
                t(2, 3, 5, n),
                t(3, 5, n),
                t(1, 3),
                t(4, 1, 5, n),
                t(4, 1, 5, n),
                ids(n),
            ),
            4,
        )
    ],
    "rwkv_wkv6": [
        (call("rwkv_wkv6", lambda n: (*many(3, 4, 2, n), t(4, 2), t(4, 2, n), t(32, 1))), 3)
    ],
    "rwkv_wkv7": [(call("rwkv_wkv7", lambda n: (*many(6, 4, 2, n), t(32, 1))), 3)],
    "gated_linear_attn": [
        (call("gated_linear_attn", lambda n: (*many(4, 4, 2, n), t(32, 1), 1.0)), 3)
    ],
    "gated_delta_net": [
        (
            call(
                "gated_delta_net",
                lambda n: (*many(3, 4, 2, 3, n), t(1, 2, 3, n), t(1, 2, 3, n), t(4, 4, 2, n)),
            ),
            4,
        )
    ],
    "lightning_indexer": [
        (
            lambda n: ops.lightning_indexer(
                t(4, 2, 3, n), t(4, 1, 6, n), t(2, 3, 1, n), t(6, 3, dtype="f16")
            ),
            4,
        )
    ],
    "dsv4_hc_comb": [(lambda n: ops.dsv4_hc_comb(t(8, n), t(3), t(8)), 3)],
    "dsv4_hc_pre": [(lambda n: ops.dsv4_hc_pre(t(4, 2, n), t(2, n)), 3)],
    "dsv4_hc_pre_gated": [(lambda n: ops.dsv4_hc_pre_gated(t(4, 2, n), t(4, 2, n)), 3)],
    "dsv4_hc_post": [
        (lambda n: ops.dsv4_hc_post(t(4, n), t(4, 2, n), t(2, n), t(2, 2, n)), 3),
        (lambda n: ops.dsv4_hc_post(t(4, n), t(4, 2, n), t(2, n)), 3),
    ],
    "map_custom2": [(lambda n: ops.map_custom2(t(4, n), t(3), print), 2)],
    "map_custom2_inplace": [(lambda n: ops.map_custom2_inplace(t(4, n), t(3), print), 2)],
    "map_custom3": [(lambda n: ops.map_custom3(t(4, n), t(3), t(3), print), 2)],
    "map_custom3_inplace": [(lambda n: ops.map_custom3_inplace(t(4, n), t(3), t(3), print), 2)],
    "custom_4d": [(lambda n: ops.custom_4d("f32", 4, n, 1, 1, [], None, print), 4)],
    "custom_inplace": [(lambda n: ops.custom_inplace(t(4, n), [], None, print), 2)],
}


def _kv(n: int = 1) -> Tensor:
    return t(4, 6, 2, n, dtype="f16")


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("name", [name for name, cases in OTHERS.items() if cases])
def test_the_rank_does_not_depend_on_the_extents(name: str, n: int) -> None:
    for make, ndim in OTHERS[name]:
        y = make(n)
        assert y.ndim == ndim
        assert y.shape == y.ne[:ndim][::-1]
        assert np.prod(y.shape, dtype=np.int64) == y.nelements


def test_the_rank_follows_from_those_of_the_operands() -> None:
    """In all recorded calls the builder, the ranks of operands and the flags determine the rank."""
    found: dict[object, int] = {}
    for param in recorded_calls():
        case = param.values[0]
        built = build(case)
        ranks = tuple((name, x.ndim) for name, x in built.inputs.items())
        flags = tuple((name, x) for name, x in case.args.items() if isinstance(x, bool))
        assert found.setdefault((case.op, ranks, flags), built.out.ndim) == built.out.ndim


def test_every_builder_is_here_or_recorded() -> None:
    listed = {*LIKE_THE_FIRST, *WIDER, *OTHERS} - {"new_tensor"}
    builders = {name for name in ops.__all__ if inspect.isroutine(getattr(ops, name))}
    assert listed <= builders
    assert builders <= listed | {case.op for case in op_cases()}


def test_a_rank_is_never_less_than_the_extents_need() -> None:
    """pad and interpolate may add an axis that their operand did not have."""
    assert ops.pad(t(4), 0, 1, 0, 0).shape == (2, 4)
    assert ops.interpolate(t(4), 4, 2, 1, 1).shape == (2, 4)
