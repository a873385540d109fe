"""Actions: the operations of a submission, each with what it reads and writes.

Here: one class for each kind. Not here: which there are (script.py), enqueuing them (running/).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from aggml.backend import Backend
    from aggml.native import _native
    from aggml.plan import DevicePlan
    from aggml.scheduler.layout.memory import Key
    from aggml.tensor import Tensor

__all__ = [
    "Action", "Bring", "ChooseExperts", "Compute", "GuessExperts", "Join", "Move", "NoteExperts",
    "Task",
]  # fmt: skip


class Bring(NamedTuple):
    """Write the value that a run brings for ``leaf`` to ``target``."""

    leaf: Tensor
    target: Tensor

    @property
    def reads(self) -> tuple[Tensor, ...]:
        """Nothing: the value is an array of the user."""
        return ()

    @property
    def writes(self) -> tuple[Tensor, ...]:
        """The target."""
        return (self.target,)

    def __str__(self) -> str:
        return f"set {self.target.name}"


class Move(NamedTuple):
    """Copy ``source`` to ``target``."""

    source: Tensor
    target: Tensor

    @property
    def reads(self) -> tuple[Tensor, ...]:
        """The source."""
        return (self.source,)

    @property
    def writes(self) -> tuple[Tensor, ...]:
        """The target."""
        return (self.target,)

    def __str__(self) -> str:
        return f"copy {self.source.name} to {self.target.name}"


class GuessExperts(NamedTuple):
    """Copy to ``target`` those matrices of ``source`` that the last run named."""

    source: Tensor
    target: Tensor
    history: _native.ExpertHistory

    @property
    def reads(self) -> tuple[Tensor, ...]:
        """The matrices."""
        return (self.source,)

    @property
    def writes(self) -> tuple[Tensor, ...]:
        """The target."""
        return (self.target,)

    def __str__(self) -> str:
        return f"copy experts of the last run of {self.source.name} to {self.target.name}"


class NoteExperts(NamedTuple):
    """Let what ``histories`` belong to guess no further: ``ids`` is known now."""

    ids: Tensor
    histories: tuple[_native.ExpertHistory, ...]

    @property
    def reads(self) -> tuple[Tensor, ...]:
        """The numbers of matrices."""
        return (self.ids,)

    @property
    def writes(self) -> tuple[Tensor, ...]:
        """No tensor."""
        return ()

    def __str__(self) -> str:
        return f"note that {self.ids.name} is known"


class ChooseExperts(NamedTuple):
    """Copy to ``target`` at least those matrices of ``source`` that ``ids`` names then.

    With a history, those that `GuessExperts` has copied in this submission are there already.
    """

    source: Tensor
    target: Tensor
    ids: Tensor
    history: _native.ExpertHistory | None

    @property
    def reads(self) -> tuple[Tensor, ...]:
        """The matrices, and their numbers; what was guessed."""
        return (self.ids, self.source, *(() if self.history is None else (self.target,)))

    @property
    def writes(self) -> tuple[Tensor, ...]:
        """The target."""
        return (self.target,)

    def __str__(self) -> str:
        return f"copy experts {self.ids.name} of {self.source.name} to {self.target.name}"


class Join(NamedTuple):
    """Declare ``target``, which was written in ``pieces``, good if all of the pieces are."""

    pieces: tuple[Tensor, ...]
    target: Tensor

    @property
    def reads(self) -> tuple[Tensor, ...]:
        """The pieces."""
        return self.pieces

    @property
    def writes(self) -> tuple[Tensor, ...]:
        """The tensor that the pieces make up."""
        return (self.target,)

    def __str__(self) -> str:
        return f"join {len(self.pieces)} pieces of {self.target.name}"


class Compute(NamedTuple):
    """Run the plan of a split.

    Attributes:
        plan: what is run.
        reads: storages with memory that other actions may touch.
        writes: likewise.
        scratch: the key of the memory that the split shares with others.
    """

    plan: DevicePlan
    reads: tuple[Tensor, ...]
    writes: tuple[Tensor, ...]
    scratch: Key

    def __str__(self) -> str:
        n = len(self.plan.nodes)
        return f"compute {n} {'node' if n == 1 else 'nodes'}"


#: The work of an action. Each class has the tensors that it ``reads`` and ``writes``.
Task: TypeAlias = Bring | Move | GuessExperts | NoteExperts | ChooseExperts | Join | Compute


class Action(NamedTuple):
    """One operation of a submission.

    Attributes:
        task: what it does.
        backend: whose stream it is on.
        split: index of the split that it belongs to.
        waits: streams that it comes after, with all that is queued there so far.
    """

    task: Task
    backend: Backend
    split: int
    waits: tuple[_native.Stream, ...] = ()
