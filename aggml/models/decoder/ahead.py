"""The inputs of the steps that come next while sequences go on, made before they are asked for.

`Decoder.decode` uses them: its steps are short in a model of speech. Not here: which arrays they
are (batch.py, step.py), steps of the engine, which are queued before they are asked for.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final

from aggml.models.kv.rows import ROWS_STEP
from aggml.process.locks import new_lock

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aggml import Tensor
    from aggml.models.decoder.batch import Group
    from aggml.models.decoder.step import Step

    Inputs = dict[Tensor, Any]

__all__ = ["Ahead", "Kind"]

#: What the steps of a run of them have in common: the first sequence, and how many there are.
Kind = tuple[int, int]

MOST: Final = 32  # steps whose inputs are made together


class Ahead:
    """Steps and their inputs without tokens, by the kind of the steps.

    Inputs that are made between two steps take 35 us each, because reading the weights has evicted
    Python's code and objects from the CPU's caches. Those of 32 steps together take 5 us each.

    Args:
        most: how many kinds are kept.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._next: dict[Kind, tuple[Step, deque[tuple[list[int], Inputs]]]] = {}
        self._lock = new_lock()  # for `_next`; each kind belongs to one task at a time

    def take(self, kind: Kind, positions: Sequence[int]) -> tuple[Step, Inputs, bool] | None:
        """The step at these positions, its inputs, and whether more follow; None: none were made.

        Args:
            kind: of the step.
            positions: of one token of each sequence, a list.
        """
        with self._lock:
            found = self._next.get(kind)
        if found is None or not found[1] or found[1][0][0] != positions:
            return None
        _, inputs = found[1].popleft()
        return found[0], inputs, bool(found[1])

    def make(
        self,
        kind: Kind,
        step: Step,
        positions: Sequence[int],
        group_of: Callable[[Sequence[int], int, int], Group],
    ) -> None:
        """Make the inputs of steps after the one at ``positions``. Call it while that step runs.

        It makes one, and 32 of them if the last ones were all taken: sequences that go on usually
        go on for long.

        Args:
            kind: of these steps.
            step: the graph of the step at ``positions``.
            positions: of one token of each sequence.
            group_of: the given number of tokens of each sequence, from positions and a slot on.
        """
        with self._lock:
            before = self._next.pop(kind, None)
        n = MOST if before is not None and before[0] is step and not before[1] else 1
        n = min(n, -(max(positions) + 1) % ROWS_STEP)  # the next graph begins there
        inputs: deque[tuple[list[int], Inputs]] = deque()
        if n:
            group = group_of([position + 1 for position in positions], n, kind[0])
            inputs.extend(zip(group.positions.T.tolist(), step.inputs_in_turn(group), strict=True))
        with self._lock:
            self._next[kind] = step, inputs
            oldest = next(iter(self._next)) if len(self._next) > self._most else None
            dropped = None if oldest is None else self._next.pop(oldest)
        del dropped  # its arrays are freed here, without the lock

    def clear(self) -> None:
        """Forget all steps."""
        with self._lock:
            found, self._next = self._next, {}
        found.clear()
