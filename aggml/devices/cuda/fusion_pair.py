"""Chains that only CUDA fuses: gate and up products with their gated unit, rope with its set_rows.

Here: finding such chains, and their launches. Not here: the nodes around experts
(fusion_experts.py), a node followed by element-wise nodes (fusion_chain.py), which chains are safe
(aggml/plan/fusion.py), the kernels (mul_mat_*.cu, rope.cu).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from aggml.devices.cuda import fusion_experts
from aggml.devices.cuda.fusion_chain import append_words
from aggml.devices.cuda.kernels import mul_mat, rope
from aggml.devices.cuda.kernels.rows import check_ids
from aggml.devices.cuda.pack import NodeSite
from aggml.dtype import DType
from aggml.ops.table import NUMBERS
from aggml.plan.fusion import ChainStage, FusionChain

if TYPE_CHECKING:
    from aggml.devices.cuda.launch import Address, Gpu, Launch
    from aggml.plan.fusion import Readers
    from aggml.tensor import Tensor

__all__ = ["find", "is_pair", "launches"]

_PRODUCTS: Final = frozenset(("mul_mat", "mul_mat_id"))
_CACHES: Final = frozenset((DType.F32, DType.F16, DType.BF16))


def find(node: Tensor, readers: Readers) -> FusionChain | None:
    """The chain of this kind that begins with ``node``, found by ops, types and shapes alone."""
    if node.dtype is not DType.F32 or 0 in node.ne:
        return None
    if node.op in _PRODUCTS:
        return _pair(node, readers)
    return _to_rows(node, readers) if node.op == "rope" else fusion_experts.find(node, readers)


def is_pair(chain: FusionChain) -> bool:
    """Whether a chain is one of `find`."""
    rope = chain.nodes[0].op == "rope"
    return rope or chain.nodes[1].op in _PRODUCTS or fusion_experts.is_of_experts(chain)


def _pair(node: Tensor, readers: Readers) -> FusionChain | None:
    """Two products of one column each, and their swiglu; ``node`` is the first product."""
    unit = readers.next_of(node)
    if unit is None or unit.op != "swiglu" or unit.op_params[4:8] != bytes(4):
        return None
    gate, up = unit.src[:2]
    other = up if gate is node else gate
    if other is None or other is node or readers.next_of(other) is not unit:
        return None
    a, b = node.src[0], other.src[0]
    if a is None or b is None or other.op != node.op or other.src[1:] != node.src[1:]:
        return None
    same = (a.dtype, a.ne, a.nb) == (b.dtype, b.ne, b.nb) and other.ne == node.ne == unit.ne
    if not same or not (node.nb == other.nb == unit.nb) or not unit.is_contiguous:
        return None
    if not mul_mat.pairs(node):
        return None
    stages = ChainStage(other, b, False), ChainStage(unit, None, other is gate)
    return FusionChain((node, other, unit), stages)


def _to_rows(node: Tensor, readers: Readers) -> FusionChain | None:
    """A rope of f32 whose heads, concatenated, are the rows of a set_rows."""
    last = readers.after_view(node)
    rows = None if last is None else last.src[0]
    if last is None or rows is None or last.op != "set_rows" or last.dtype not in _CACHES:
        return None
    head, heads, tokens, batches = node.ne
    ids = last.src[1]
    if ids is None or batches != 1 or rows.ne != (head * heads, tokens, 1, 1):
        return None
    whole = rows.view_src is node and rows.view_offs == 0 and rows.dtype is DType.F32
    if not whole or not node.is_contiguous or not rows.is_contiguous:
        return None
    return FusionChain((node, last), (ChainStage(last, ids, False),))


def launches(
    chain: FusionChain, address: Address, scratch: int, fault: int, gpu: Gpu
) -> list[Launch]:
    """The launches of a chain that `find` found; only its last node is written."""
    lead, last = chain.nodes[0], chain.nodes[-1]
    if fusion_experts.is_of_experts(chain):
        return fusion_experts.launches(chain, address, scratch, gpu)
    if lead.op == "rope":
        written = NodeSite(last, address, scratch, fault, gpu)
        check = check_ids(written, written.src(1), last.ne[1])
        turned = NodeSite(lead, address, scratch, fault, gpu)
        operands = [written.dst, *(turned.src(i) for i in range(3)), written.src(1)]
        return [check, rope.launch(turned, "rope_to_rows", operands)]

    def where(tensor: Tensor) -> int:
        return address(last if tensor is lead else tensor)

    matrix = chain.stages[0].other
    assert matrix is not None
    word = fault if lead.op == "mul_mat_id" else 0
    words = NUMBERS[last.op], address(matrix), int(chain.stages[1].first)
    return [
        append_words(
            replace(each, kernel=mul_mat.of_pair(each.kernel)), len(_operands(lead)), 3, *words
        )
        if each.kernel.startswith(("vec_1", "id_vec"))
        else each
        for each in mul_mat.launches(NodeSite(lead, where, scratch, word, gpu))
    ]


def _operands(node: Tensor) -> list[Tensor]:
    return [source for source in node.src if source is not None]
