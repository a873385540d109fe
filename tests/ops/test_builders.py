"""What all builders have in common: names and order of parameters, enums, checks, in place.

Not here: shapes and numbers of recorded calls (test_recorded.py).
"""

from __future__ import annotations

import inspect
import re
import struct
from typing import TYPE_CHECKING, Any

import pytest
from corpus_loader import op_cases
from ops.signatures import PARAMETERS

from aggml import (
    Graph,
    InvalidArgument,
    InvalidHandle,
    InvalidState,
    LayoutMismatch,
    Tensor,
    Unsupported,
    new_tensor,
    ops,
)
from aggml.ops.table import OPS

if TYPE_CHECKING:
    from collections.abc import Callable

_ALONE = ["hardswish", "hardsigmoid"]  # unary functions that have no in-place variant
_UNARY = [name for name, op in OPS.items() if op.stage == "UNARY" and name not in _ALONE]
_GATES = [name for name, op in OPS.items() if op.stage == "GATED"]
CASES = sorted(PARAMETERS)
_OURS = [  # functions that ggml does not have (test_sample.py, test_flash_decode.py)
    "flash_attn_ext_set_shared",
    "penalize",
    "sample",
]


def leaf(*ne: int, dtype: str = "f32", name: str = "x") -> Tensor:
    return new_tensor(dtype, ne=ne, name=name)


def builders() -> dict[str, Callable[..., Any]]:
    return {name: getattr(ops, name) for name in ops.__all__ if not name[0].isupper()}


# -- names


def test_the_vocabulary_is_complete() -> None:
    assert sorted(builders()) == sorted([*CASES, *_OURS])


def test_parameters_have_the_names_and_the_order_of_c() -> None:
    found = {name: [*inspect.signature(getattr(ops, name)).parameters] for name in CASES}
    assert found == {name: PARAMETERS[name].split() for name in CASES}


def test_every_builder_says_which_function_of_ggml_it_is() -> None:
    silent = [x for x in CASES if f"``ggml_{x}``" not in (getattr(ops, x).__doc__ or "")]
    assert silent == []


def call_with(name: str, thing: object) -> object:
    """The result of a builder, or its error, whose operands are ``thing``."""
    parameters = PARAMETERS[name].split()
    operands = {p for p in ("a", "b", "c", "q", "k", "v", "sinks", "af") if p in parameters}
    operands -= {"b", "c"} if name.startswith("scale") or "rope" in name else set()
    if name.startswith("unary"):
        arguments: dict[str, object] = {"op": "relu"}
    elif name.startswith("glu"):
        arguments = {"op": "reglu"}
    else:
        arguments = dict.fromkeys(parameters, 1)
    arguments |= dict.fromkeys(parameters[:1], thing)
    arguments |= dict.fromkeys(operands, thing)
    if "mode" in parameters:
        arguments |= {"mode": "normal"}
    arguments = {k: v for k, v in arguments.items() if k in parameters}
    try:
        return getattr(ops, name)(**arguments)
    except Exception as error:
        return error


@pytest.mark.parametrize("thing", [None, 3, [1.0, 2.0], "x"])
def test_an_operand_that_is_no_tensor_is_refused(thing: object) -> None:
    names = [name for name in CASES if name not in {"arange", "custom_4d"}]
    for name, found in ((name, call_with(name, thing)) for name in names):
        assert isinstance(found, InvalidHandle), (name, found)
        assert re.match(r"\[\w+\] \w+ is no tensor", str(found)), (name, found)


def test_every_node_is_in_the_native_vocabulary() -> None:
    """Kernels are found by Tensor.op, so each op has to be a name of the native table."""
    x = leaf(8, 8, 2)
    others = [
        *(x, ops.map_custom1(x, print), ops.map_custom2(x, x, print)),
        *(ops.map_custom3(x, x, x, print), ops.custom_inplace(x, [], 0, print)),
        ops.flash_attn_back(x, x, x, x, False),
        ops.sample(leaf(8, 2), leaf(4, 2, dtype="i32"), leaf(5, 2, dtype="f64")),
        ops.penalize(leaf(8, 2), leaf(4, 2, dtype="i32"), leaf(4, 5, 2)),
    ]
    # The other ops occur in recorded calls: test_recorded.py builds these and compares their ops.
    recorded = {case.node for case in op_cases() if hasattr(ops, case.op)}
    assert {node.op for node in others}.isdisjoint(recorded)
    # only quantize_async makes the op quantize
    assert {node.op for node in others} | recorded == OPS.keys() - {"quantize"}


# -- parameters of nodes


def floats(node: Tensor) -> tuple[float, ...]:
    return struct.unpack("<16f", node.op_params)


def ints(node: Tensor) -> tuple[int, ...]:
    return struct.unpack("<16i", node.op_params)


def test_parameters_lie_where_the_kernels_look() -> None:
    x = leaf(8, 4, 2)
    assert floats(ops.scale_bias(x, 2.0, 3.0))[:2] == (2.0, 3.0)
    assert floats(ops.scale(x, 2.0))[:2] == (2.0, 0.0)
    assert floats(ops.rms_norm(x, 0.5))[0] == 0.5
    assert floats(ops.soft_max_ext(x, leaf(8, 4), 0.5, 8.0))[:2] == (0.5, 8.0)
    assert floats(ops.soft_max(x))[:2] == (1.0, 0.0)
    assert ints(ops.concat(x, x, 2))[0] == 2
    assert ints(ops.swiglu(x))[:2] == (2, 0)
    assert ints(ops.geglu_swapped(x))[:2] == (1, 1)
    assert ints(ops.swiglu_split(x, x))[:2] == (2, 0)
    assert ints(ops.mul_mat_set_prec(ops.mul_mat(x, x), "f32"))[0] == 10
    hinted = ops.mul_mat_set_hint(ops.mul_mat(x, x), "src0_is_hadamard")
    assert ints(ops.mul_mat_set_prec(hinted, "f32"))[:2] == (10, 1)
    assert struct.unpack("<4q32x", ops.set_2d(x, leaf(4, 2), 64, 8).op_params) == (64, 128, 256, 8)
    assert ints(ops.group_norm(x, 2, 0.5))[0] == 2
    assert floats(ops.group_norm(x, 2, 0.5))[1] == 0.5
    assert floats(ops.clamp(x, -1.0, 2.0))[:2] == (-1.0, 2.0)
    assert ints(ops.swiglu_clamp(x, x, 3.0))[:2] == (6, 0)
    assert floats(ops.swiglu_clamp(x, None, 3.0))[3] == 3.0
    assert (floats(ops.dsv4_hc_pre(x, leaf(4, 2)))[0], ops.dsv4_hc_pre(x, leaf(4, 2)).op) == (
        1.0,
        "dsv4_hc_pre",
    )
    gated = ops.dsv4_hc_pre_gated(x, x, 0.5)
    assert (gated.op, floats(gated)[0], ints(gated)[1]) == ("dsv4_hc_pre", 0.5, 1)
    rope = ops.rope_ext(
        x, leaf(2, dtype="i32"), None, 6, "neox", 99, 5e5, 0.25, 0.5, 1.5, 31.0, 2.0
    )
    assert ints(rope)[:5] == (0, 6, 2, 0, 99)
    assert floats(rope)[5:11] == (5e5, 0.25, 0.5, 1.5, 31.0, 2.0)
    attention = ops.flash_attn_ext(x, x, x, None, 0.5, 0.0, 30.0)
    ops.flash_attn_ext_set_prec(attention, ops.Prec.F32)
    assert floats(attention)[:3] == (0.5, 0.0, 30.0)
    assert ints(attention)[3] == 10
    assert ops.flash_attn_ext_get_prec(attention) is ops.Prec.F32
    ops.flash_attn_ext_set_n_kv_max(attention, 3)
    ops.flash_attn_ext_set_shared(attention, 2, 0)
    assert ints(attention)[3:7] == (10, 3, 2, 0)


@pytest.mark.parametrize("s", ["2", None, 1e39, [2.0]])
def test_numbers_that_f32_cannot_hold_are_refused(s: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"^\[scale\] "):
        ops.scale(leaf(4), s)


def test_infinity_is_a_number() -> None:
    assert floats(ops.scale(leaf(4), float("inf")))[0] == float("inf")


def test_enums_are_members_names_or_values() -> None:
    x, pos = leaf(8, 4, 2), leaf(2, dtype="i32")
    for mode in ("neox", ops.RopeMode.NEOX, 2):
        assert ints(ops.rope(x, pos, 8, mode))[2] == 2
    for op in ("swiglu", ops.GluOp.SWIGLU, 2):
        assert ops.glu(x, op).op == "swiglu"
    for op in ("gelu_erf", ops.UnaryOp.GELU_ERF, 16):
        assert ops.unary(x, op).op == "gelu_erf"


@pytest.mark.parametrize(
    "call",
    [
        lambda x: ops.unary(x, "cube"),
        lambda x: ops.unary_inplace(x, 99),
        lambda x: ops.glu(x, "swiglu_oai"),
        lambda x: ops.glu_split(x, x, "NEOX"),
        lambda x: ops.rope(x, leaf(2, dtype="i32"), 8, "spiral"),
        lambda x: ops.mul_mat_set_prec(ops.mul_mat(x, x), "f64"),
        lambda x: ops.mul_mat_set_hint(ops.mul_mat(x, x), "src1"),
        lambda x: ops.glu(x, "swiglu_clamp"),
        lambda x: ops.prec_set_acc(ops.mul_mat(x, x), "q8"),  # sums are not of 8 bits
        lambda x: ops.prec_set_acc(ops.mul_mat(x, x), 40),
        lambda x: ops.mul_mat_set_prec(ops.mul_mat(x, x), "q4"),
        lambda x: ops.prec_set_src(ops.mul_mat(x, x), "q5", 1),
    ],
)
def test_unknown_members_are_refused_with_the_known_ones(call: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(InvalidArgument, match=r"is none of .*, "):
        call(leaf(8, 4, 2))


# -- sources and storage


# In place, these have other extents or parameters than the plain function.
_OTHERWISE = {"dup_inplace", "add_rel_pos_inplace", "rope_multi_inplace", "custom_inplace"}


@pytest.mark.parametrize(
    "name", [name for name in CASES if name.endswith("_inplace") and name not in _OTHERWISE]
)
def test_in_place_is_the_same_node_over_the_first_operand(name: str) -> None:
    x = leaf(8, 4, 2)
    arguments: dict[str, Any] = {"a": ops.view_3d(x, 8, 2, 2, x.nb[1], x.nb[2], x.nb[1])}
    if name.startswith(("soft_max", "scale", "set", "acc", "add1", "fill")):
        arguments = {"a": x}
    second: object = leaf(1) if "add1" in name else x if "back" in name else leaf(8)
    more = {
        "b": leaf(2, dtype="i32") if "rope" in name else 1.0 if "bias" in name else second,
        **dict.fromkeys(("nb1", "nb2", "nb3", "offset", "n_past", "n_groups"), 4),
        "c": 2.0 if "fill" in name else x if "custom" in name else None,
        "fun": print,
        **dict.fromkeys(("n_tasks", "userdata"), 4),
        "s": 2.0,
        **dict.fromkeys(("min", "max"), 0.5),
        "eps": 0.1,
        "op": "relu",
        "n_dims": 8,
        "mode": "neox",
    }
    arguments |= {k: v for k, v in more.items() if k in PARAMETERS[name].split()}
    node = getattr(ops, name)(**arguments)
    fresh = getattr(ops, name.removesuffix("_inplace"))(**arguments)
    assert node.view_src is x
    assert node.view_offs == arguments["a"].view_offs
    assert (node.ne, node.nb) == (arguments["a"].ne, arguments["a"].nb)
    assert fresh.view_src is None
    assert fresh.is_contiguous
    assert (node.op, node.op_params, node.src) == (fresh.op, fresh.op_params, fresh.src)


def test_sinks_come_and_go() -> None:
    x, mask, sinks = leaf(8, 4, 2), leaf(8, 4), leaf(2)
    soft = ops.soft_max_ext(x, mask)
    assert ops.soft_max_add_sinks(soft, sinks) is soft
    assert soft.src == (x, mask, sinks)
    with pytest.raises(InvalidState, match="already"):
        ops.soft_max_add_sinks(soft, sinks)
    assert ops.soft_max_add_sinks(soft, None).src == (x, mask)
    with pytest.raises(LayoutMismatch, match="one sink per head"):
        ops.soft_max_add_sinks(soft, leaf(3))
    q = leaf(8, 4, 2)
    attention = ops.flash_attn_ext(q, q, q)
    assert ops.flash_attn_ext_add_sinks(attention, sinks).src == (q, q, q, None, sinks)
    assert ops.flash_attn_ext_add_sinks(attention, None).src == (q, q, q)
    with pytest.raises(InvalidArgument, match="comes from"):
        ops.flash_attn_ext_add_sinks(soft, sinks)
    with pytest.raises(InvalidArgument, match="comes from"):
        ops.soft_max_add_sinks(x, sinks)


def test_set_rows_and_cpy_show_what_they_wrote() -> None:
    cache, new, ids = leaf(8, 16, name="cache"), leaf(8, 2), leaf(2, dtype="i64")
    written = ops.set_rows(cache, new, ids)
    assert written.src == (new, ids, cache)
    assert written.view_src is cache
    part = ops.view_2d(cache, 8, 2, cache.nb[1], 4 * cache.nb[1])
    copied = ops.cpy(new, part)
    assert copied.src == (new, part)
    assert (copied.view_src, copied.view_offs) == (cache, 4 * 32)


def test_builders_take_tensors_of_a_graph() -> None:
    x = leaf(8, 4)
    y = ops.relu(x)
    Graph(y)
    assert ops.neg(y).src == (y,)


# -- refusals without a recorded case


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: ops.mul_mat(leaf(8, 2, dtype="i32"), leaf(8, 2)), Unsupported),
        (lambda: ops.mul_mat(leaf(8, 2, dtype="bf16"), leaf(8, 2, dtype="f16")), Unsupported),
        (
            lambda: ops.add(leaf(32, 2, dtype="q8_0"), ops.transpose(leaf(2, 32))),
            LayoutMismatch,
        ),
        (lambda: ops.glu(ops.transpose(leaf(4, 8)), "reglu"), LayoutMismatch),
        (lambda: ops.glu_split(leaf(8, 2), leaf(8, 2, dtype="f16"), "reglu"), LayoutMismatch),
        (lambda: ops.rms_norm(leaf(8), -1.0), InvalidArgument),
        (lambda: ops.norm(leaf(8), float("nan")), InvalidArgument),
        (lambda: ops.rope(leaf(8, 2, 2), leaf(2, dtype="i32"), 0), InvalidArgument),
        (
            lambda: ops.rope_ext(leaf(8, 2, 2), leaf(2, dtype="i32"), leaf(3), 8),
            LayoutMismatch,
        ),
        (
            lambda: ops.flash_attn_ext(leaf(8, 2, 2), leaf(8, 4, 2), leaf(8, 3, 2)),
            LayoutMismatch,
        ),
        (
            lambda: ops.flash_attn_ext(
                leaf(8, 2, 2), leaf(8, 4, 2), leaf(8, 4, 2), leaf(3, 2, dtype="f16")
            ),
            LayoutMismatch,
        ),
        (lambda: ops.sum(leaf(8, dtype="i32")), Unsupported),
        (lambda: ops.add1(leaf(8), leaf(2)), LayoutMismatch),
        (lambda: ops.add1(leaf(8), leaf(1, dtype="f16")), Unsupported),
        (lambda: ops.add_id(leaf(8, 2), leaf(8, 3), leaf(3, dtype="i32")), LayoutMismatch),
        (lambda: ops.group_norm(leaf(8, 2, 3), 0, 0.1), InvalidArgument),
        (lambda: ops.diag_mask_zero(leaf(8, 2), -1), InvalidArgument),
        (lambda: ops.silu_back(leaf(8, dtype="bf16"), leaf(8, dtype="bf16")), Unsupported),
        (lambda: ops.soft_max_ext_back(leaf(8), leaf(8), 1.0, 2.0), Unsupported),
        (lambda: ops.rms_norm_back(leaf(8), leaf(4), 0.1), LayoutMismatch),
        (lambda: ops.argmax(leaf(8, 2, 2)), LayoutMismatch),
        (lambda: ops.count_equal(leaf(8), leaf(8)), Unsupported),
        (lambda: ops.cross_entropy_loss(leaf(8), leaf(7)), LayoutMismatch),
        (lambda: ops.argsort(leaf(8), "up"), InvalidArgument),
        (lambda: ops.get_rows(leaf(8, 2, dtype="i64"), leaf(1, dtype="i32")), Unsupported),
        (lambda: ops.cast(leaf(8, dtype="i32"), "f16"), Unsupported),
        (lambda: ops.cast(leaf(8), "q4_0"), InvalidArgument),
        (lambda: ops.cont_2d(leaf(8), 3, 3), LayoutMismatch),
        (lambda: ops.cont_1d(leaf(8), 8.0), InvalidHandle),  # type: ignore[arg-type]
        (lambda: ops.transpose(leaf(32, 2, dtype="q8_0")), LayoutMismatch),
        (lambda: ops.concat(leaf(8), leaf(8), -1), InvalidArgument),
        (lambda: ops.permute(leaf(8), 0, 1, 2, 4), InvalidArgument),
        (lambda: ops.mul_mat(leaf(0, 1 << 40), leaf(0, 1 << 40)), LayoutMismatch),
        (lambda: ops.mul_mat(leaf(1, 1 << 30), leaf(1, 1 << 30)), InvalidArgument),
    ],
)
def test_refused(call: Callable[[], Tensor], error: type[Exception]) -> None:
    with pytest.raises(error, match=r"^\[\w+( \w+)*\] "):
        call()


def test_a_message_names_tensors_types_and_extents() -> None:
    with pytest.raises(LayoutMismatch) as caught:
        ops.mul_mat(leaf(64, 2, dtype="q4_0", name="blk.0.attn_q"), leaf(32, 7, name="hidden"))
    assert str(caught.value) == (
        "[mul_mat] ne[0] of a and b differ, 64 and 32: a = blk.0.attn_q q4_0 [64, 2], "
        "b = hidden f32 [32, 7]"
    )
