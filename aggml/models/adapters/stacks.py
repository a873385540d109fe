"""Adapters on a device, and their part of a step's graph.

All adapters of a matrix lie in one stack, so that tokens with different adapters are computed
together: each token names the matrix of the stack that it is multiplied with. Number 0 is that of
tokens without an adapter; its matrices are zeros. Not here: reading adapters (reading.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

from aggml import InvalidArgument, Tensor, ops
from aggml.models.arguments import shown

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aggml.models.blocks.scope import Adapting

__all__ = [
    "NO_ADAPTER", "AdapterChoice", "Adapters", "GraphAdapters", "Stack", "StepAdapters",
    "choice_of",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class AdapterChoice:
    """The adapter of a request.

    Attributes:
        number: in the stacks; 0: none.
        about: tells its content from that of others, as keys and values depend on it; "": none.
    """

    number: int = 0
    about: str = ""


NO_ADAPTER = AdapterChoice()


class Stack(NamedTuple):
    """All adapters of one matrix.

    Attributes:
        a: f32 [columns, rank, adapters].
        b: f32 [rank, rows, adapters].
    """

    a: Tensor
    b: Tensor


class GraphAdapters(Protocol):
    """The adapters of which the graphs of a model's steps are built.

    Attributes:
        always: every token has the only adapter of each stack; else tokens have numbers.
        directions: what is added after layers, by their numbers in the file: f32 [width].
    """

    always: bool
    directions: Mapping[int, Tensor]

    def at(self, numbers: Tensor | None, /) -> Adapting:
        """What adds them to products of tokens with these numbers, i32 [1, tokens]."""
        ...


@dataclass(eq=False, slots=True)
class Adapters:
    """The adapters and control vectors of a model, in the memory of its devices.

    Attributes:
        choices: those that requests choose, by name.
        stacks: by the names of the matrices.
        always, directions: as of `GraphAdapters`.
    """

    choices: Mapping[str, AdapterChoice] = field(default_factory=dict)
    stacks: Mapping[str, Stack] = field(default_factory=dict)
    always: bool = False
    directions: Mapping[int, Tensor] = field(default_factory=dict)

    @property
    def tensors(self) -> list[Tensor]:
        """All tensors, which take memory."""
        return [*(x for stack in self.stacks.values() for x in stack), *self.directions.values()]

    def at(self, numbers: Tensor | None, /) -> StepAdapters:
        """See `GraphAdapters`."""
        return StepAdapters(self.stacks, numbers)


@dataclass(frozen=True, slots=True)
class StepAdapters:
    """The adapters of some tokens of a step.

    Attributes:
        stacks: by the names of the matrices.
        numbers: of the tokens, i32 [1, tokens]; None: all have the only adapter of each stack.
    """

    stacks: Mapping[str, Stack]
    numbers: Tensor | None

    def add(self, name: str, x: Tensor, y: Tensor, /) -> Tensor:
        """``y``, the product of a matrix and ``x``, with what the adapters add to it."""
        stack = self.stacks.get(name)
        if stack is None:
            return y
        if self.numbers is None:
            return ops.add(y, ops.mul_mat(stack.b, ops.mul_mat(stack.a, x)))
        tokens = self.numbers.ne[1]
        x = ops.cont_3d(x, x.ne[0], 1, tokens)
        change = ops.mul_mat_id(stack.b, ops.mul_mat_id(stack.a, x, self.numbers), self.numbers)
        return ops.add(y, ops.reshape(change, y))


def choice_of(place: str, adapters: Adapters | None, name: object) -> AdapterChoice:
    """The adapter of this name; None: no adapter.

    Raises:
        InvalidArgument: there is no adapter of this name.
    """
    if name is None:
        return NO_ADAPTER
    known = {} if adapters is None else adapters.choices
    found = known.get(name) if isinstance(name, str) else None
    if found is None:
        names = ", ".join(map(repr, known)) or "none: load it with adapters={name: path}"
        raise InvalidArgument(
            f"[{place}] adapter is {shown(name)}; the model has the adapters {names}"
        )
    return found
