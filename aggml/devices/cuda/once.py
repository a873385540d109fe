"""Removes launches that would repeat the work of an earlier launch of the plan.

Here: range checks of indices that were checked before with the same bound, or that a sort in the
same plan produced; and conversions to int8 of columns that the previous product has converted (q, k
and v; gate and up). Not here: the launches themselves (kernels/), chains (fusion_chain.py).
"""

from __future__ import annotations

import struct
from collections import Counter
from typing import TYPE_CHECKING, Final

from aggml.devices.cuda.launch import ALWAYS
from aggml.ops.table import IDLE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aggml.devices.cuda.launch import Launch
    from aggml.graph import Graph
    from aggml.plan import Locate
    from aggml.tensor import Tensor

__all__ = ["Once", "are_sorted", "spans"]

#: A launch, its argument bytes, and the positions in them of addresses relative to scratch.
Lowered = tuple["Launch", bytes, list[int]]

_SOURCE: Final = slice(80, 160)  # bytes of the operand in the arguments of a one-operand launch
_AUX: Final = slice(224, 240)  # two words of its aux
_SORTS: Final = frozenset(("argsort", "top_k"))
_IDS: Final = {"mul_mat_id": 2, "add_id": 2}  # which source of a node has the indices; else 1


def spans(locate: Locate) -> Callable[[Tensor], tuple[bool, int, int]]:
    """A function that tells where the bytes of a tensor lie, for `aggml.plan.fusion`."""

    def span(tensor: Tensor) -> tuple[bool, int, int]:
        start, in_arena = locate(tensor.root)
        start += tensor.view_offs
        return in_arena, start, start + tensor.nbytes

    return span


def are_sorted(ids: Tensor, bound: int) -> bool:
    """Whether ``ids`` come from sorting rows of at most ``bound``: then all are in range."""
    made = ids.root
    if made.op not in _SORTS or ids.dtype is not made.dtype:
        return False
    row = made.src[0]
    return row is not None and row.ne[0] <= bound


class Once:
    """Remembers which checks and conversions the launches of a plan have done so far.

    Args:
        graph: the graph of the plan.
    """

    def __init__(self, graph: Graph) -> None:
        # Indices that are written only once do not change between two checks.
        self._writes = Counter(node.root for node in graph.nodes if node.op not in IDLE)
        self._looked: dict[object, int] = {}  # where the check of these indices reports a fault
        self._columns: tuple[Tensor, bytes] | None = None  # the columns that scratch holds as int8

    def fault(self, node: Tensor, launches: Sequence[Lowered]) -> int | None:
        """Where an earlier check of this node's indices reports; None if there was no check."""
        key = self._key(node, launches)
        return None if key is None else self._looked.get(key)

    def select(
        self, node: Tensor, launches: Sequence[Lowered], fault: int, *, shares: bool
    ) -> Sequence[Lowered]:
        """Select the launches that have to be carried out.

        Args:
            node: the node of these launches; of a chain the first.
            launches: in order.
            fault: where a check of its indices reports, if there was no earlier check.
            shares: whether the node uses the scratch that nodes share.
        """
        key = self._key(node, launches)
        if key is not None:
            before = self._looked.setdefault(key, fault)
            (bound,) = struct.unpack_from("<q", launches[0][1], _AUX.start)
            if before != fault or are_sorted(self._ids(node), bound):
                launches = launches[1:]
        kept = [each for each in launches if not self._repeats(node, each)]
        plain = all(each[0].when == ALWAYS and not each[0].gemm for each in launches)
        made = next((each for each in launches if each[0].kernel == "quantize_columns"), None)
        if made is not None and plain:
            self._columns = self._source(node), made[1][_SOURCE] + made[1][_AUX]
        elif shares:
            self._columns = None
        if self._columns is not None and node.root is self._columns[0].root:
            self._columns = None  # the scratch was overwritten meanwhile
        return kept

    def _key(self, node: Tensor, launches: Sequence[Lowered]) -> object:
        """The indices that the first launch checks, and their bound; None if it checks none."""
        if not launches or launches[0][0].kernel != "check_ids":
            return None
        ids = self._ids(node)
        if self._writes[ids.root] > 1:
            return None
        args = launches[0][1]
        return ids.root, args[_SOURCE], args[_AUX]

    @staticmethod
    def _ids(node: Tensor) -> Tensor:
        ids = node.src[_IDS.get(node.op, 1)]
        assert ids is not None
        return ids

    def _repeats(self, node: Tensor, lowered: Lowered) -> bool:
        launch, args, _ = lowered
        if launch.kernel != "quantize_columns" or launch.when != ALWAYS or self._columns is None:
            return False
        source, what = self._columns
        return source is self._source(node) and what == args[_SOURCE] + args[_AUX]

    @staticmethod
    def _source(node: Tensor) -> Tensor:
        b = node.src[1]
        assert b is not None
        return b
