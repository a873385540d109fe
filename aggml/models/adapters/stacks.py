"""Adapters on a device, and their part of a step's graph.

All adapters of a matrix lie in one stack, so that tokens with different adapters are computed
together: each token names the matrices of the stack that it is multiplied with, and their scales.
Number 0 is that of tokens without an adapter; its matrices are zeros. Not here: reading adapters
(reading.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeAlias

from aggml import InvalidArgument, Tensor, ops
from aggml.models.arguments import number, show

if TYPE_CHECKING:
    from aggml.models.blocks.scope import Adapting

__all__ = [
    "NO_ADAPTER", "AdapterChoice", "AdapterNames", "Adapters", "GraphAdapters", "ScaledAdapter",
    "Stack", "StepAdapters", "choice_of",
]  # fmt: skip


class ScaledAdapter(NamedTuple):
    """An adapter of a request.

    Attributes:
        number: in the stacks, from 1 on.
        scale: what its effect is multiplied by.
    """

    number: int
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class AdapterChoice:
    """The adapters of a request, whose effects are added up.

    Attributes:
        parts: the adapters; (): none.
        about: tells their content from that of others, as keys and values depend on it; "": none.
    """

    parts: tuple[ScaledAdapter, ...] = ()
    about: str = ""

    def __bool__(self) -> bool:
        return bool(self.parts)


NO_ADAPTER = AdapterChoice()

#: The name of an adapter, names of several with their scales, or None: none.
AdapterNames: TypeAlias = str | Mapping[str, float] | None
SCALES: Final = 1e6  # no scale is greater


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

    def at(self, numbers: Tensor | None, scales: Tensor | None, /) -> Adapting:
        """What adds them to products of tokens.

        Args:
            numbers: of each token's adapters, i32 [most, tokens].
            scales: of each of these, f32 [1, most, tokens]; None: all are 1.
        """
        ...


@dataclass(eq=False, slots=True)
class Adapters:
    """The adapters and control vectors of a model, in the memory of its devices.

    Attributes:
        choices: those that requests choose, by name, each alone and with the scale 1.
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

    def at(self, numbers: Tensor | None, scales: Tensor | None, /) -> StepAdapters:
        """See `GraphAdapters`."""
        return StepAdapters(self.stacks, numbers, scales)


@dataclass(frozen=True, slots=True)
class StepAdapters:
    """The adapters of some tokens of a step.

    Attributes:
        stacks: by the names of the matrices.
        numbers: of the adapters of each token, i32 [most, tokens]; None: all have the only adapter
            of each stack.
        scales: of each of these, f32 [1, most, tokens]; None: all are 1.
    """

    stacks: Mapping[str, Stack]
    numbers: Tensor | None
    scales: Tensor | None = None

    def add(self, name: str, x: Tensor, y: Tensor, /) -> Tensor:
        """``y``, the product of a matrix and ``x``, with what the adapters add to it."""
        stack = self.stacks.get(name)
        if stack is None:
            return y
        if self.numbers is None:
            return ops.add(y, ops.mul_mat(stack.b, ops.mul_mat(stack.a, x)))
        most, tokens = self.numbers.ne[:2]
        x = ops.cont_3d(x, x.ne[0], 1, tokens)
        within = ops.mul_mat_id(stack.a, x, self.numbers)
        if self.scales is not None:
            within = ops.mul(within, self.scales)
        change = ops.mul_mat_id(stack.b, within, self.numbers)
        if most == 1:
            return ops.add(y, ops.reshape(change, y))
        for i in range(most):
            one = ops.view_2d(change, change.ne[0], tokens, change.nb[2], i * change.nb[1])
            y = ops.add(y, ops.reshape(ops.cont(one), y))
        return y


def choice_of(place: str, adapters: Adapters | None, given: object) -> AdapterChoice:
    """The adapter of a name, or those of names with their scales; None: no adapter.

    Raises:
        InvalidArgument: there is no adapter of a name; a scale is no number within -1e6 and 1e6.
    """
    if given is None:
        return NO_ADAPTER
    known = {} if adapters is None else adapters.choices
    if not isinstance(given, Mapping):
        return _adapter_of(place, known, given)
    found: dict[ScaledAdapter, str] = {}
    for name, value in given.items():
        one = _adapter_of(place, known, name)
        scale = number(place, f"adapter[{name!r}]", value, -SCALES, SCALES)
        if scale:
            part = one.parts[0]._replace(scale=scale)
            found[part] = one.about if scale == 1 else f"{one.about}*{scale!r}"
    parts = tuple(sorted(found))
    return AdapterChoice(parts, " ".join(found[x] for x in parts))


def _adapter_of(place: str, known: Mapping[str, AdapterChoice], name: object) -> AdapterChoice:
    """The adapter of a name.

    Raises:
        InvalidArgument: there is none.
    """
    found = known.get(name) if isinstance(name, str) else None
    if found is None:
        names = ", ".join(map(repr, known)) or "none: load it with adapters={name: path}"
        raise InvalidArgument(
            f"[{place}] adapter is {show(name)}; the model has the adapters {names}"
        )
    return found
