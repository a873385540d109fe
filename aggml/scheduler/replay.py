"""Replay: a submission like an earlier one, enqueued again in one native call.

Here: what makes it the same, and which array goes where. The hooks of the devices are not called
again, so a run costs the same Python for any number of nodes, and 1 us of C for each operation.
Not here: the first time (run.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aggml.native import _native
from aggml.spans import bits_of
from aggml.transfer import outgoing

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    import numpy as np

    from aggml.backend import Backend
    from aggml.buffer import Buffer
    from aggml.scheduler.job import Job
    from aggml.scheduler.unit import Output, Unit
    from aggml.tensor import Tensor

    Array = np.ndarray[Any, Any]

__all__ = ["Recording", "record"]


class Recording:
    """The operations of a submission, without its arrays.

    Args:
        script: the operations.
        sources: for each array that they are from or to: a leaf that is brought, or ("placed", i),
            ("output", i).
        outputs: what is read; brought leafs that are read as well.
        used: backends, with the answers and the scratch that the operations rest on.
        homes: indexes of backends where inputs lie that the user placed.
    """

    def __init__(
        self,
        script: _native.Script,
        sources: Sequence[Any],
        outputs: list[tuple[Tensor, Tensor | None]],
        used: list[tuple[Backend, object, Buffer | None]],
        homes: set[int],
    ) -> None:
        self.script = script
        self.homes = homes
        self._sources = sources
        self._outputs = outputs
        self._used = used

    def holds(self) -> bool:
        """Whether hooks would enqueue the same again, and no batch is open on the streams."""
        for backend, token, arena in self._used:
            if (
                backend.stream._batches
                or backend.memory._arena is not arena
                or backend._repeats() != token
            ):
                return False
        return True

    def run(
        self, job: Job, before: list[tuple[_native.Stream, _native.Stream, int]]
    ) -> tuple[tuple[_native.Op, ...], list[Array]]:
        """Enqueue; the operations and the arrays of the outputs."""
        values = job.values
        results = []
        for tensor, brought in self._outputs:
            result = outgoing(tensor, None, None, "Scheduler.submit")[0]
            if brought is not None:
                result[...] = values[brought]
            results.append(result)
        arrays = []
        for source in self._sources:
            if type(source) is not tuple:
                array = values[source]
            elif source[0] == "output":
                array = results[source[1]]
            else:
                array = job.placed[source[1]][1]
            arrays.append(bits_of(array))
        return _native.submit_script(self.script, before, arrays), results


def record(unit: Unit, job: Job, outputs: Sequence[Output], homes: set[int]) -> Recording | None:
    """Keep what is about to be enqueued; None if it may be something else the next time.

    Args:
        unit: not sent yet.
        job: what it is for.
        outputs: of the job.
        homes: see `Recording`.
    """
    sources: list[Hashable] = unit.sources
    if unit.calls or None in sources:
        return None
    used = []
    for backend, token in unit.backends.items():
        if token is None or backend._repeats() != token:
            return None
        used.append((backend, token, backend.memory._arena))
    read = [
        (tensor, tensor if output.split == -2 else None)
        for tensor, output in zip(job.wanted, outputs, strict=True)
    ]
    return Recording(_native.Script(unit.groups), tuple(sources), read, used, homes)
