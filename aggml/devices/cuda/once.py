"""Launches that would repeat what an earlier one of the plan did: they are left out.

Here: looks at the same indices with the same bound, or at indices that a sort has just made; and
columns that are made int8 once more for the next product (q, k and v; gate and up). Not here:
launches themselves (kernels/), chains (fused.py).
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

#: A launch, its argument bytes, where in them addresses count from scratch.
Lowered = tuple["Launch", bytes, list[int]]

_SOURCE: Final = slice(80, 160)  # the operand of a launch of one operand, in its arguments
_AUX: Final = slice(224, 240)  # two words of its aux
_SORTS: Final = frozenset(("argsort", "top_k"))
_IDS: Final = {"mul_mat_id": 2, "add_id": 2}  # where the indices of a node are; else 1


def spans(locate: Locate) -> Callable[[Tensor], tuple[bool, int, int]]:
    """Where the bytes of a tensor lie, as `aggml.plan.fusion` asks."""

    def span(tensor: Tensor) -> tuple[bool, int, int]:
        start, in_arena = locate(tensor.root)
        start += tensor.view_offs
        return in_arena, start, start + tensor.nbytes

    return span


def are_sorted(ids: Tensor, bound: int) -> bool:
    """Whether indices are those of a sorted row: whatever its values, none reaches ``bound``."""
    made = ids.root
    if made.op not in _SORTS or ids.dtype is not made.dtype:
        return False
    row = made.src[0]
    return row is not None and row.ne[0] <= bound


class Once:
    """What the launches of a plan have done so far.

    Args:
        graph: of the plan.
    """

    def __init__(self, graph: Graph) -> None:
        # Indices that are written once do not change between two looks at them.
        self._writes = Counter(node.root for node in graph.nodes if node.op not in IDLE)
        self._looked: dict[object, int] = {}  # where the word about these indices is left
        self._columns: tuple[Tensor, bytes] | None = None  # what scratch holds as int8

    def fault(self, node: Tensor, launches: Sequence[Lowered]) -> int | None:
        """Where an earlier node left word about the indices of this one; None: nobody looked."""
        key = self._key(node, launches)
        return None if key is None else self._looked.get(key)

    def needed(
        self, node: Tensor, launches: Sequence[Lowered], fault: int, *, shares: bool
    ) -> Sequence[Lowered]:
        """The launches that have to be carried out.

        Args:
            node: the one whose they are; of a chain the first.
            launches: in order.
            fault: where a look at its indices leaves word, if nobody has looked before.
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
            self._columns = None  # it was written meanwhile
        return kept

    def _key(self, node: Tensor, launches: Sequence[Lowered]) -> object:
        """The indices that the first launch looks at, and their bound; None: it looks at none."""
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
