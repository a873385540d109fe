"""How precisely a product has to be computed: prec_set_acc and prec_set_src.

Here: checks; the precision becomes a parameter of the node. Not here: which kernels may compute a
product with such a parameter (native/lower/mul_mat/choice.c), the enum (_common.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aggml.errors import InvalidArgument
from aggml.ops._common import all_tensors, list_values, need_node, set_param, whole
from aggml.ops._precision import ACC_AT, precision, set_acc
from aggml.tensor import Tensor, describe

if TYPE_CHECKING:
    from aggml.ops._common import Prec

__all__ = ["prec_set_acc", "prec_set_src"]

_PRODUCTS = ("mul_mat", "mul_mat_id")
_SRC_AT = 2  # the slot of the precision of operand 0 among the parameters
_MOST_OPERANDS = 10  # GGML_MAX_SRC


def _need_one_of(op: str, a: Tensor, ops: tuple[str, ...]) -> None:
    if a.__class__ is not Tensor:
        all_tensors(op, a=a)
    if a.op not in ops:
        raise InvalidArgument(
            f"[{op}] {describe(a)} comes from {a.op}, not from {list_values(ops)}"
        )
    need_node(op, a, a.op)


def prec_set_acc(a: Tensor, prec: Prec | str | int) -> Tensor:
    """Set the least precision in which the sums of a product are kept (``ggml_prec_set_acc``).

    "f32" asks for sums in f32; "bf16" also allows bf16, and "f16" allows f16; "undefined" leaves it
    to the device. The CPU always sums in f32 or more precisely, so there it changes nothing.

    Args:
        a: the node that `mul_mat`, `mul_mat_id` or `flash_attn_ext` returned.
        prec: a member of `Prec`, its value or its lower-case name; not Q8 nor Q4.

    Returns:
        ``a``.

    Raises:
        InvalidArgument: ``a`` is another node (where ggml returns false); no precision of sums.
        InvalidState: ``a`` is in a Graph.
    """
    _need_one_of("prec_set_acc", a, tuple(ACC_AT))
    return set_acc("prec_set_acc", a, prec)


def prec_set_src(a: Tensor, prec: Prec | str | int, idx: int) -> Tensor:
    """Set to what types a device may convert an operand of a product (``ggml_prec_set_src``).

    "f32" keeps the elements of the operand as they are; "bf16" allows a conversion to bf16, "f16"
    also one to f16, "q8" also one to 8-bit and "q4" also one to 4-bit types. "undefined" leaves it
    to the device. The CPU then converts as ggml does: to 8 bits if the matrix is quantized, to bf16
    if the matrix is bf16. If that is not allowed, it multiplies in f32. A ggml device does with
    this what its library does; the CPU of ggml 0.25 ignores it.

    Args:
        a: the node that `mul_mat` or `mul_mat_id` returned.
        prec: a member of `Prec`, its value or its lower-case name.
        idx: the operand; only 1, the second, is ever converted.

    Returns:
        ``a``.

    Raises:
        InvalidArgument: ``a`` is another node or ``idx`` is not 1 (where ggml returns false or
            aborts); no such precision.
        InvalidHandle: ``idx`` is no integer.
        InvalidState: ``a`` is in a Graph.
    """
    op = "prec_set_src"
    _need_one_of(op, a, _PRODUCTS)
    (at,) = whole(op, idx)
    if not 0 <= at < _MOST_OPERANDS:
        raise InvalidArgument(f"[{op}] idx = {at}: expected an operand, 0 to {_MOST_OPERANDS - 1}")
    if at != 1:
        raise InvalidArgument(f"[{op}] idx = {at}: only operand 1, b, has a precision")
    return set_param(op, a, _SRC_AT + at, precision(op, prec))
