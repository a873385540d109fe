"""CompiledGraphs: the plans that a backend keeps, and the runs that were prepared with each.

Here: finding them again, checking that no tensor has moved since, dropping them. Not here:
compiling (lowering.py), what a prepared run does (stream/prepared.py).
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Final

from aggml.process.locks import new_lock
from aggml.tensor.placement import PlacementEpoch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from aggml.graph import Graph
    from aggml.memory.graph_memory import PlaceRecord
    from aggml.plan.plan import DevicePlan
    from aggml.stream.prepared import PreparedRun
    from aggml.tensor import Tensor

__all__ = ["CompiledGraph", "CompiledGraphs"]

# Prepared runs of one graph. Each combination of outputs, and each order of the inputs, is one run.
_PREPARED: Final = 8

_keeping = new_lock()


class CompiledGraph:
    """A plan, and the runs that were prepared with it.

    After compiling again there is another object. So a run that a thread prepares with this plan
    is never taken for one of the new plan.

    Attributes:
        plan: as the device compiled it.
        epoch: epoch of the placements when plan and runs were last found to be valid.
        prepared: runs by the key of their request (backend/inputs.py).
        placed: the graph's `ScratchOffsets`, whose end is the end of the plan.
    """

    __slots__ = ("__weakref__", "epoch", "placed", "plan", "prepared")

    def __init__(
        self, plan: DevicePlan, epoch: int, placed: weakref.ref[Mapping[Tensor, int]]
    ) -> None:
        self.plan: DevicePlan = plan
        self.epoch: int = epoch
        self.placed: weakref.ref[Mapping[Tensor, int]] = placed
        self.prepared: dict[tuple[object, ...], PreparedRun] = {}

    def keep(self, key: tuple[object, ...], prepared: PreparedRun) -> None:
        """Keep a prepared run for calls with the same key. With an empty key nothing is kept."""
        if key:
            with _keeping:
                if key not in self.prepared and len(self.prepared) == _PREPARED:
                    del self.prepared[next(iter(self.prepared))]
                self.prepared[key] = prepared

    def is_valid(self) -> bool:
        """Whether no tensor has moved; prepared runs that are no longer valid are dropped."""
        # Read first, so that the next call notices tensors that move meanwhile.
        epoch = PlacementEpoch.value
        if self.epoch != epoch:
            plan = self.plan
            tensors = (*plan.leafs, *plan.nodes)
            if not plan.is_valid or any(
                t.placement is not then for t, then in zip(tensors, plan.keep, strict=True)
            ):
                return False
            with _keeping:
                self.prepared = {w: run for w, run in self.prepared.items() if run.is_valid()}
            self.epoch = epoch
        return True


class CompiledGraphs:
    """The plans of a backend, by graph.

    A plan refers to the tensors of its graph, and so to their memory. It is dropped when nothing
    refers to the graph any more, when the graph's memory is closed, and when the backend is closed
    or gone; each happens immediately, without Python's garbage collector. A plan that runs lives
    until its run is done: the stream keeps it.
    """

    __slots__ = ("__weakref__", "_by_uid")

    def __init__(self) -> None:
        self._by_uid: dict[int, CompiledGraph] = {}  # a uid is never used again

    def __len__(self) -> int:
        return len(self._by_uid)

    def find(self, graph: Graph) -> CompiledGraph | None:
        """The plan of a graph if no tensor has moved since it was compiled; else None."""
        found = self._by_uid.get(graph.uid)
        if found is None or (found.epoch != PlacementEpoch.value and not found.is_valid()):
            return None
        return found

    def find_run(self, graph: Graph, key: tuple[object, ...]) -> PreparedRun | None:
        """The run prepared for a graph under this key if it is still valid; else None.

        If there is one, nothing else has to be checked: the graph is placed, by this backend or by
        an allocator, it is compiled, and its memory is within reach.
        """
        found = self._by_uid.get(graph.uid)
        if found is None or (found.epoch != PlacementEpoch.value and not found.is_valid()):
            return None
        return found.prepared.get(key)

    def keep(self, graph: Graph, plan: DevicePlan, then: PlaceRecord) -> CompiledGraph | None:
        """Keep the plan of a graph: `find` finds it from now on.

        Args:
            graph: that was compiled.
            plan: of it.
            then: taken before the compiler began.

        Returns:
            None: a tensor has moved since then, so the plan has addresses that are no longer true.
        """
        scratch = graph.scratch
        # As long as the epoch is the same, no tensor has lost its place.
        if scratch is None or (
            then.epoch != PlacementEpoch.value and not (plan.is_valid and then.is_current())
        ):
            return None
        placed = weakref.ref(scratch, _make_forget(weakref.ref(self), graph.uid))
        found = self._by_uid[graph.uid] = CompiledGraph(plan, then.epoch, placed)
        return found

    def clear(self) -> None:
        """Drop all plans."""
        self._by_uid.clear()

    def forget(self, uid: int, placed: weakref.ref[Mapping[Tensor, int]]) -> None:
        """Drop the plan of a graph, if it was compiled for these places."""
        found = self._by_uid.get(uid)
        if found is not None and found.placed is placed:
            self._by_uid.pop(uid, None)


def _make_forget(
    plans: weakref.ref[CompiledGraphs], uid: int
) -> Callable[[weakref.ref[Mapping[Tensor, int]]], None]:
    """A callback that drops the plan of a graph that is no longer placed; it keeps no plan."""

    def forget(placed: weakref.ref[Mapping[Tensor, int]]) -> None:
        there = plans()
        if there is not None:
            there.forget(uid, placed)

    return forget
