"""One step of training: opt_step_adamw, opt_step_sgd.

Here: shapes, types, checks. Not here: kernels (native/*/optimizers.c).
"""

from __future__ import annotations

from aggml.errors import InvalidArgument
from aggml.ops._common import F32, all_tensors, mismatch, need_rows, refuse_type, suffix
from aggml.tensor import Tensor, TensorFlag, describe, new_view

__all__ = ["opt_step_adamw", "opt_step_sgd"]


def _check(op: str, params: Tensor, n: int, a: Tensor, **others: Tensor) -> None:
    for operand in (a, *others.values(), params):
        if operand.__class__ is not Tensor:
            all_tensors(op, a=a, **others, params=params)
        if operand.dtype is not F32:
            raise refuse_type(op, "f32", a=a, **others, params=params)
    if not a.flags & TensorFlag.PARAM:
        raise InvalidArgument(f"[{op}] {describe(a)} is no parameter: call set_param() on it first")
    for name, operand in {"a": a, **others}.items():
        need_rows(op, name, operand)
        if operand.ne != a.ne:
            raise mismatch(op, f"{name} must have the extents of a", a=a, **others)
    if params.ne != (n, 1, 1, 1):
        raise mismatch(op, f"params must be [{n}]", params=params)


def opt_step_adamw(a: Tensor, grad: Tensor, m: Tensor, v: Tensor, adamw_params: Tensor) -> Tensor:
    """One step of AdamW over ``a``, ``m`` and ``v`` themselves (``ggml_opt_step_adamw``).

    Args:
        a: f32, flagged as a parameter, rows without gaps, like all further arguments.
        grad: f32, the extents of ``a``.
        m: f32, likewise: the running mean of the gradients.
        v: f32, likewise: the running mean of their squares.
        adamw_params: f32 [7]: alpha, beta1, beta2, eps, weight decay, and the factors
            ``1 / (1 - beta1^t)`` and ``1 / (1 - beta2^t)`` of step t.

    Returns:
        A view of ``a``. Later nodes have to read this view to see the new values.

    Raises:
        InvalidArgument: ``a`` is not flagged as a parameter.
        LayoutMismatch: other extents, or gaps.
        Unsupported: other types.
    """
    op = "opt_step_adamw"
    _check(op, adamw_params, 7, a, grad=grad, m=m, v=v)
    src = (a, grad, m, v, adamw_params)
    return new_view(op, a, a.ne, a.nb, 0, src, name=suffix(a, "view"))


def opt_step_sgd(a: Tensor, grad: Tensor, sgd_params: Tensor) -> Tensor:
    """One step of gradient descent over ``a`` itself (``ggml_opt_step_sgd``).

    Args:
        a: f32, flagged as a parameter, rows without gaps.
        grad: f32, the extents of ``a``, rows without gaps.
        sgd_params: f32 [2]: alpha, weight decay.

    Returns:
        A view of ``a``. Later nodes have to read this view to see the new values.

    Raises:
        InvalidArgument: ``a`` is not flagged as a parameter.
        LayoutMismatch: other extents, or gaps.
        Unsupported: other types.
    """
    op = "opt_step_sgd"
    _check(op, sgd_params, 2, a, grad=grad)
    return new_view(op, a, a.ne, a.nb, 0, (a, grad, sgd_params), name=suffix(a, "view"))
