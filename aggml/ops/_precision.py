"""set_acc: the least precision of the sums of a node, for all builders that set it.

Not here: the builders (precision.py, mul_mat.py, flash_attn_ext.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aggml.ops._common import Prec, by_name, member, set_param

if TYPE_CHECKING:
    from aggml.tensor import Tensor

__all__ = ["ACC_AT", "precision", "set_acc"]

#: By op: the slot of the precision among the parameters of a node.
ACC_AT: Final = {"mul_mat": 0, "mul_mat_id": 0, "flash_attn_ext": 3}

_ALL = by_name(Prec)
_OF_SUMS = {key: prec for key, prec in _ALL.items() if prec not in (Prec.Q8, Prec.Q4)}


def precision(op: str, prec: Prec | str | int) -> Prec:
    """The member that ``prec`` names (InvalidArgument: none)."""
    return member(op, "prec", prec, _ALL)


def set_acc(op: str, a: Tensor, prec: Prec | str | int) -> Tensor:
    """Set the least precision of the sums of ``a``, a node of an op of `ACC_AT`; returns ``a``.

    Raises:
        InvalidArgument: no precision of sums.
    """
    return set_param(op, a, ACC_AT[a.op], member(op, "prec", prec, _OF_SUMS))
