"""Actions: the operations of a submission as a layout lists them.

Here: kinds, and what each says. Not here: which there are (script.py), enqueuing (run.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from aggml.backend import Backend
    from aggml.native import _native
    from aggml.plan import DevicePlan
    from aggml.tensor import Tensor

__all__ = ["COPY", "EXPERTS", "PLAN", "SET", "WHOLE", "Action"]

#: What an action is: a value brought by the run, a copy, a plan, "all pieces are there", a copy of
#: some of the experts.
SET: Final = "set"
COPY: Final = "copy"
PLAN: Final = "plan"
WHOLE: Final = "whole"
EXPERTS: Final = "experts"


class Action(NamedTuple):
    """One operation of a submission.

    Attributes:
        kind: SET, COPY, PLAN, WHOLE or EXPERTS.
        backend: whose stream it is on.
        waits: streams that it comes after, with all that is queued there so far.
        source: the leaf of a SET, what a COPY reads.
        target: what is written.
        plan: of a PLAN.
        split: index of the split it belongs to.
        reads: of a WHOLE, what has to be good; of EXPERTS, who they are.
        placed: whether it touches memory that the user placed.
    """

    kind: str
    backend: Backend
    waits: tuple[_native.Stream, ...]
    source: Tensor | None
    target: Tensor | None
    plan: DevicePlan | None
    split: int
    reads: tuple[Tensor, ...]
    placed: bool
