"""The rule of differentiation of each op (``ggml_compute_backward``).

A rule takes a step backwards through a node and adds the gradients in its sources. The ops are
those that ggml differentiates. Where ggml's formula holds for some shapes only (quotients and
differences of repeated operands, sums to one element, weights that are shared by batches, views of
permuted tensors), the formula here holds for all. Not here: the gradient through `view` (views.py).
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from aggml import ops
from aggml.dtype import DType
from aggml.gradients.step import shape_of, sum_to, value_of
from aggml.gradients.views import add_view
from aggml.tensor import new_node

if TYPE_CHECKING:
    from collections.abc import Callable

    from aggml.gradients.step import BackwardStep
    from aggml.tensor import Tensor

__all__ = ["DIFFERENTIABLE", "RULES", "UNMOVED", "WITHOUT_EFFECT"]

#: For some ops the sources in which the result is constant, almost everywhere: indices, positions,
#: a tensor that is overwritten, a kernel of which only the extents are read.
UNMOVED: Final = {
    "cpy": 1,
    "get_rows": 1,
    "get_rows_back": 1,
    "im2col": 0,
    "im2col_back": 0,
    "rope": 1,
    "sgn": 0,
    "step": 0,
}

_FLOAT = struct.Struct("<f")
_INT = struct.Struct("<i")
_PART = struct.Struct("<4q")
_SEVEN = struct.Struct("<7i")


def _dup(step: BackwardStep) -> None:
    if step.needs(0):
        step.add(0, step.grad)


def _add(step: BackwardStep) -> None:
    if step.needs(0):
        step.add(0, step.grad)
    if step.needs(1):
        step.add(1, sum_to(step.grad, step.source(1)))


def _acc(step: BackwardStep) -> None:
    if step.needs(0):
        step.add(0, step.grad)
    if step.needs(1):
        step.add(1, ops.cont(_part(step)))


def _part(step: BackwardStep) -> Tensor:
    """The part of the gradient at which `acc` and `set` put their second operand."""
    b = step.source(1)
    nb1, nb2, nb3, offset = _PART.unpack_from(step.node.op_params)
    return ops.view_4d(step.grad, *b.ne, nb1, nb2, nb3, offset)


def _sub(step: BackwardStep) -> None:
    if step.needs(0):
        step.add(0, step.grad)
    if step.needs(1):
        step.add(1, sum_to(ops.neg(step.grad), step.source(1)))


def _mul(step: BackwardStep) -> None:
    a, b = step.source(0), step.source(1)
    if step.needs(0):
        step.add(0, ops.mul(step.grad, value_of(b)))
    if step.needs(1):
        step.add(1, sum_to(ops.mul(value_of(a), step.grad), b))


def _div(step: BackwardStep) -> None:
    b = step.source(1)
    if step.needs(0):
        step.add(0, ops.div(step.grad, value_of(b)))
    if step.needs(1):
        quotient = ops.mul(step.grad, ops.div(value_of(step.node), value_of(b)))
        step.add(1, sum_to(ops.neg(quotient), b))


def _sqr(step: BackwardStep) -> None:
    if step.needs(0):
        step.add(0, ops.scale(ops.mul(value_of(step.source(0)), step.grad), 2.0))


def _sqrt(step: BackwardStep) -> None:
    if step.needs(0):
        step.add(0, ops.scale(ops.div(step.grad, value_of(step.node)), 0.5))


def _log(step: BackwardStep) -> None:
    if step.needs(0):
        step.add(0, ops.div(step.grad, value_of(step.source(0))))


def _sin(step: BackwardStep) -> None:
    if step.needs(0):
        step.add(0, ops.mul(step.grad, ops.cos(value_of(step.source(0)))))


def _cos(step: BackwardStep) -> None:
    if step.needs(0):
        step.add(0, ops.neg(ops.mul(step.grad, ops.sin(value_of(step.source(0))))))


def _sum(step: BackwardStep) -> None:
    if step.needs(0):
        step.add(0, ops.repeat(step.grad, step.source(0)))


def _mean(step: BackwardStep) -> None:
    if step.needs(0):
        a = step.source(0)
        step.add(0, ops.repeat(ops.scale(step.grad, 1.0 / max(a.ne[0], 1)), a))


def _repeat(step: BackwardStep) -> None:
    if step.needs(0):
        step.add(0, sum_to(step.grad, step.source(0)))


def _rms_norm(step: BackwardStep) -> None:
    if step.needs(0):
        (eps,) = _FLOAT.unpack_from(step.node.op_params)
        step.add(0, ops.rms_norm_back(step.grad, value_of(step.source(0)), eps))


def _mul_mat(step: BackwardStep) -> None:
    a, b = step.source(0), step.source(1)  # a [k, m, x, y], b [k, n, x * r, y * s]
    if step.needs(0):
        product = ops.out_prod(value_of(b), step.grad)  # [k, m, x * r, y * s]
        step.add(0, _sum_groups(product, a))
    if step.needs(1):
        shared = a.ne[2:] != b.ne[2:]
        known = a.dtype is DType.F32 or (
            not shared and (a.dtype is DType.F16 or a.dtype.is_quantized)
        )
        rows = a if known and a.nb[0] == a.dtype.type_size and a.nb[0] <= a.nb[1] else None
        step.add(1, ops.out_prod(rows or value_of(a), ops.transpose(step.grad)))


def _sum_groups(product: Tensor, a: Tensor) -> Tensor:
    """The sum of the planes of ``product`` that were computed with the same plane of ``a``."""
    k, m, x, y = a.ne
    r, s = product.ne[2] // max(x, 1), product.ne[3] // max(y, 1)
    if r > 1:
        groups = ops.reshape_4d(product, k * m, r, x, y * s)
        product = ops.repeat_back(groups, shape_of(k * m, 1, x, y * s))
    if s > 1:
        groups = ops.reshape_3d(product, k * m * x, s, y)
        product = ops.repeat_back(groups, shape_of(k * m * x, 1, y))
    return product if product.ne == a.ne else ops.reshape(product, a)


def _scale(step: BackwardStep) -> None:
    if step.needs(0):
        (factor,) = _FLOAT.unpack_from(step.node.op_params)
        step.add(0, ops.scale(step.grad, factor))


def _set(step: BackwardStep) -> None:
    if step.needs(0):
        nb1, nb2, nb3, offset = _PART.unpack_from(step.node.op_params)
        step.add(0, ops.acc(step.grad, ops.neg(ops.cont(_part(step))), nb1, nb2, nb3, offset))
    if step.needs(1):
        step.add(1, ops.cont(_part(step)))


def _reshape(step: BackwardStep) -> None:
    if step.needs(0):
        a = step.source(0)
        step.add(0, step.grad if step.grad.ne == a.ne else ops.reshape(step.grad, a))


def _view(step: BackwardStep) -> None:
    if step.needs(0):
        add_view(step)


def _permute(step: BackwardStep) -> None:
    if step.needs(0):
        axes = struct.unpack_from("<4i", step.node.op_params)
        back = [axes.index(i) for i in range(4)]
        step.add(0, ops.permute(step.grad, *back))


def _transpose(step: BackwardStep) -> None:
    if step.needs(0):
        step.add(0, ops.transpose(step.grad))


def _get_rows(step: BackwardStep) -> None:
    if step.needs(0):
        step.add(0, ops.get_rows_back(step.grad, step.source(1), step.source(0)))


def _get_rows_back(step: BackwardStep) -> None:
    if step.needs(0):
        step.add(0, ops.get_rows(step.grad, step.source(1)))


def _diag_mask(step: BackwardStep) -> None:
    if step.needs(0):
        (past,) = _INT.unpack_from(step.node.op_params)
        step.add(0, ops.diag_mask_zero(step.grad, past))


def _soft_max(step: BackwardStep) -> None:
    step.refuse_needed(1, "the mask")
    step.refuse_needed(2, "the sinks")
    if step.needs(0):
        # The slopes of ALiBi move the mask alone, so they are not in this formula.
        (factor,) = _FLOAT.unpack_from(step.node.op_params)
        step.add(0, ops.soft_max_ext_back(step.grad, step.node, factor))


def _rope(step: BackwardStep) -> None:
    step.refuse_needed(2, "the factors of the frequencies")
    if step.needs(0):
        src = (step.grad, *step.node.src[1:])
        step.add(0, new_node("rope_back", DType.F32, step.node.ne, src, step.node.op_params))


def _im2col(step: BackwardStep) -> None:
    if step.needs(1):
        s0, s1, p0, p1, d0, d1, _ = _SEVEN.unpack_from(step.node.op_params)
        plane = bool(step.node.op_params[24])
        kernel, image = step.source(0), step.source(1)
        grad = ops.im2col_back(step.grad, kernel, image.ne, s0, s1, p0, p1, d0, d1, plane)
        step.add(1, grad)


def _pool_2d(step: BackwardStep) -> None:
    if step.needs(0):
        kind, k0, k1, s0, s1, p0, p1 = _SEVEN.unpack_from(step.node.op_params)
        a = step.source(0)
        step.add(0, ops.pool_2d_back(step.grad, a, kind, k0, k1, s0, s1, p0, p1))


def _abs(step: BackwardStep) -> None:
    if step.needs(0):
        step.add(0, ops.mul(ops.sgn(value_of(step.source(0))), step.grad))


def _neg(step: BackwardStep) -> None:
    if step.needs(0):
        step.add(0, ops.neg(step.grad))


def _relu(step: BackwardStep) -> None:
    if step.needs(0):
        step.add(0, ops.mul(ops.step(value_of(step.source(0))), step.grad))


def _silu(step: BackwardStep) -> None:
    if step.needs(0):
        step.add(0, ops.silu_back(step.grad, value_of(step.source(0))))


def _exp(step: BackwardStep) -> None:
    if step.needs(0):
        step.add(0, ops.mul(value_of(step.node), step.grad))


def _expm1(step: BackwardStep) -> None:
    if step.needs(0):
        step.add(0, ops.mul(step.grad, ops.exp(value_of(step.source(0)))))


def _softplus(step: BackwardStep) -> None:
    if step.needs(0):
        step.add(0, ops.mul(step.grad, ops.sigmoid(value_of(step.source(0)))))


def _cross_entropy_loss(step: BackwardStep) -> None:
    step.refuse_needed(1, "the labels")
    if step.needs(0):
        logits, labels = value_of(step.source(0)), value_of(step.source(1))
        step.add(0, ops.cross_entropy_loss_back(step.grad, logits, labels))


def _swiglu(step: BackwardStep) -> None:
    if len(step.node.src) < 2 or step.node.src[1] is None:
        raise step.refuse("only the form of two operands has one: ops.swiglu_split")
    gate, value = value_of(step.source(0)), value_of(step.source(1))
    if step.needs(0):
        step.add(0, ops.silu_back(ops.mul(step.grad, value), gate))
    if step.needs(1):
        step.add(1, ops.mul(ops.silu(gate), step.grad))


def _nothing(step: BackwardStep) -> None:
    """The result does not change where the operand does."""


#: The rules by the name of the op.
RULES: Final[dict[str, Callable[[BackwardStep], None]]] = {
    "abs": _abs,
    "acc": _acc,
    "add": _add,
    "add1": _add,
    "cont": _reshape,
    "cos": _cos,
    "cpy": _reshape,
    "cross_entropy_loss": _cross_entropy_loss,
    "diag_mask_inf": _diag_mask,
    "diag_mask_zero": _diag_mask,
    "div": _div,
    "dup": _dup,
    "exp": _exp,
    "expm1": _expm1,
    "get_rows": _get_rows,
    "get_rows_back": _get_rows_back,
    "im2col": _im2col,
    "log": _log,
    "mean": _mean,
    "mul": _mul,
    "mul_mat": _mul_mat,
    "neg": _neg,
    "none": _nothing,
    "permute": _permute,
    "pool_2d": _pool_2d,
    "relu": _relu,
    "repeat": _repeat,
    "repeat_back": _sum,
    "reshape": _reshape,
    "rms_norm": _rms_norm,
    "rope": _rope,
    "scale": _scale,
    "set": _set,
    "sgn": _nothing,
    "silu": _silu,
    "sin": _sin,
    "soft_max": _soft_max,
    "softplus": _softplus,
    "sqr": _sqr,
    "sqrt": _sqrt,
    "step": _nothing,
    "sub": _sub,
    "sum": _sum,
    "sum_rows": _sum,
    "swiglu": _swiglu,
    "transpose": _transpose,
    "view": _view,
}
#: Ops whose gradients are 0 almost everywhere: nothing is computed for them.
WITHOUT_EFFECT: Final = frozenset({"sgn", "step"})
#: Ops through which `build_backward_expand` differentiates.
DIFFERENTIABLE: Final = frozenset(RULES) - WITHOUT_EFFECT - {"none"}
