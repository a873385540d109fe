"""Chains that one launch computes: a norm with its factors, a product with the sum that follows.

Here: which chains fit, and the words that are added to the launch of the first node. Not here:
finding chains (aggml/plan/fusion.py), two products or a rope with its rows (fusion_pair.py), the
kernels (norm.cu, mul_mat_*.cu).
"""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from aggml.dtype import DType
from aggml.ops.table import NUMBERS

if TYPE_CHECKING:
    from aggml.devices.cuda.launch import Address, Launch
    from aggml.plan import FusionChain
    from aggml.tensor import Tensor

__all__ = ["append_words", "begin_chain", "end_chain", "fits"]

_NORMS: Final = frozenset(("norm", "rms_norm", "l2_norm"))
_VEC_COLUMNS: Final = 8  # up to this many columns the product kernels take one more operand
_AUX: Final = 80 * 2 + 64  # offset of aux with one operand; each further operand adds 80
_OF_PRODUCT: Final = 3  # the first word of aux that a product does not use


def fits(chain: FusionChain) -> bool:
    """Whether one launch computes the chain."""
    lead, last = chain.nodes[0], chain.nodes[-1]
    if last.nb != lead.nb or not last.is_contiguous:
        return False
    if lead.op == "mul_mat":
        return len(chain.nodes) == 2 and _follows(lead, chain)
    ops = [node.op for node in chain.nodes]
    rows = [stage.other for stage in chain.stages[1:]]
    return (
        lead.op in _NORMS
        and ops[1:] in (["mul"], ["mul", "add"])
        and all(other is not None and _row(other, lead) for other in rows)
    )


def _follows(lead: Tensor, chain: FusionChain) -> bool:
    """Whether the product kernels for few columns can also compute the next stage."""
    (stage,) = chain.stages
    node, other = stage.node, stage.other
    if lead.ne[1] > _VEC_COLUMNS or lead.ne[2] * lead.ne[3] != 1:
        return False
    if other is None or other.dtype is not DType.F32 or other.ne != lead.ne or other.nb[0] != 4:
        return False
    return node.op == "add" or (node.op == "swiglu" and node.op_params[4:8] == bytes(4))


def _row(other: Tensor, lead: Tensor) -> bool:
    """Whether ``other`` is one row of the width of ``lead``."""
    wide = other.ne[0] == lead.ne[0] and other.nb[0] == 4
    return other.dtype is DType.F32 and wide and other.nrows == 1


def begin_chain(chain: FusionChain, address: Address) -> tuple[Tensor, Address]:
    """The first node, and an address function that makes its launches write the last node."""
    lead, last = chain.nodes[0], chain.nodes[-1]
    return lead, lambda tensor: address(last if tensor is lead else tensor)


def end_chain(chain: FusionChain, launches: list[Launch], address: Address) -> list[Launch]:
    """The launches of the first node; those that write it also get the words for what follows."""
    lead = chain.nodes[0]
    if lead.op in _NORMS:
        others = [address(stage.other) for stage in chain.stages[1:] if stage.other is not None]
        return [append_words(launch, 1, 0, *others) for launch in launches]
    (stage,) = chain.stages
    assert stage.other is not None
    words = NUMBERS[stage.node.op], address(stage.other), int(stage.first), stage.other.nb[1]
    return [
        append_words(launch, 2, _OF_PRODUCT, *words) if launch.kernel.startswith("vec_") else launch
        for launch in launches
    ]


def append_words(launch: Launch, n_src: int, first: int, *words: int) -> Launch:
    """A copy of a launch with ``words`` in its aux, from word ``first`` on."""
    at = _AUX + 80 * (n_src - 1) + 8 * first
    new = struct.pack(f"<{len(words)}Q", *words)
    args = launch.args[:at] + new + launch.args[at + len(new) :]
    return replace(launch, args=args)
