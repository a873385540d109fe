"""Scope: what a block needs to build its nodes: the weights of its layer, caches, inputs.

Here: linear maps and norms by name. Not here: the blocks.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from aggml import ops
from aggml.models.forms import PLAIN_NORM

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aggml import Tensor
    from aggml.models.decoder.batch import Shape
    from aggml.models.kv.room import Room

__all__ = ["Adapting", "Places", "Scope", "Turns", "norm_rows"]


class Adapting(Protocol):
    """Changes the products of matrices and a step's tokens, as adapters do."""

    def add(self, name: str, x: Tensor, y: Tensor, /) -> Tensor:
        """``y``, the product of the matrix ``name`` and ``x``, with what adapters add to it."""
        ...


@dataclass(frozen=True, slots=True)
class Places:
    """Inputs that tell where the keys and values of a step lie in the caches of one room.

    Attributes:
        rows: i32 [tokens], the rows to write.
        staged: i32 [tokens of the last part], second rows to write for the tokens of that part.
        masks: f16 [rows seen, tokens, 1, sequences] for each part, 0 or -inf.
        seen: for each part, how many rows of each sequence attention reads.
        length: how many rows each sequence has.
    """

    rows: Tensor
    staged: Tensor | None
    masks: tuple[Tensor, ...]
    seen: tuple[int, ...]
    length: int


@dataclass(frozen=True, slots=True)
class Turns:
    """Inputs that tell which recurrent states a step reads and which it writes.

    Attributes:
        reads: i32 [sequences] for each part: rows of the states with which its sequences go on.
        writes: i32 [sequences * history] for each part: rows to which their new states are written,
            those of the oldest token first.
        latest: the same rows, those of the last token first; with one state of each sequence it is
            the tensor of ``writes``. None: no block asked for it.
    """

    reads: tuple[Tensor, ...]
    writes: tuple[Tensor | None, ...]
    latest: tuple[Tensor | None, ...]


def norm_rows(
    weights: Mapping[str, Tensor], name: str, x: Tensor, eps: float, *, centred: bool
) -> Tensor:
    """The rows of ``x`` normalised, times ``NAME.weight``.

    If ``centred``, their mean is subtracted before, and ``NAME.bias`` is added if there is one.
    `PLAIN_NORM` has neither.
    """
    y = ops.norm(x, eps) if centred else ops.rms_norm(x, eps)
    if name.endswith(PLAIN_NORM):
        return y
    weight = weights.get(f"{name}.weight")
    y = ops.mul(y, weights[name] if weight is None else weight)  # some names have no ending
    bias = weights.get(f"{name}.bias") if centred else None
    return y if bias is None else ops.add(y, bias)


@dataclass(frozen=True, slots=True)
class Scope:
    """One layer of one graph.

    Attributes:
        weights: of the whole model, by their names in the file.
        prefix: of the names of this layer's weights, such as "blk.3.".
        eps: of norms.
        caches: the caches and states of this layer by name.
        positions: i32 [tokens].
        places: inputs for keys and values, by room.
        shape: of the step.
        ctx: positions that a sequence may have.
        turns: inputs for states.
        centred: as in `Description`.
        kept: further nodes that the graph must compute: they write the new states.
        kept_early: further nodes of this sort that may run before the rest of their layer.
        passed: values that a layer passes to later layers beside its result, by name.
        adapting: the adapters of all tokens; None: nobody uses one.
        adapting_last: those of the tokens that go on after the last mixer.
    """

    weights: Mapping[str, Tensor]
    prefix: str
    eps: float
    caches: Mapping[str, Tensor]
    positions: Tensor
    places: Mapping[Room, Places]
    shape: Shape
    ctx: int
    turns: Turns
    centred: bool = False
    kept: list[Tensor] = field(default_factory=list)
    kept_early: list[Tensor] = field(default_factory=list)
    passed: dict[str, Tensor] = field(default_factory=dict)
    adapting: Adapting | None = None
    adapting_last: Adapting | None = None

    def weight(self, name: str) -> Tensor:
        """A tensor of this layer: ``weight("attn_q.weight")``."""
        return self.weights[self.prefix + name]

    def find(self, name: str) -> Tensor | None:
        """A tensor of this layer, None if the file has none of that name."""
        return self.weights.get(self.prefix + name)

    def linear(self, name: str, x: Tensor) -> Tensor:
        """``NAME.weight`` times ``x``, plus ``NAME.bias`` where the file has one."""
        y = ops.mul_mat(self.weight(f"{name}.weight"), x)
        if self.adapting is not None:
            y = self.adapting.add(f"{self.prefix}{name}.weight", x, y)
        bias = self.find(f"{name}.bias")
        return y if bias is None else ops.add(y, bias)

    def of_last(self) -> Scope:
        """The same layer for the tokens alone that go on after the last mixer."""
        return self if self.adapting is None else replace(self, adapting=self.adapting_last)

    def rms_norm(self, name: str, x: Tensor) -> Tensor:
        """The rows of ``x`` normalised, times ``NAME.weight``."""
        return ops.mul(ops.rms_norm(x, self.eps), self.weight(f"{name}.weight"))

    def norm(self, name: str, x: Tensor) -> Tensor:
        """The norm of this name of ``x``: LayerNorm if ``centred``, else RMS norm."""
        return norm_rows(self.weights, self.prefix + name, x, self.eps, centred=self.centred)

    def recall(self, name: str, part: int) -> Tensor:
        """The previous states of the sequences of a part of the step: [width, sequences]."""
        return ops.get_rows(self.caches[name], self.turns.reads[part])

    def history(self, part: int) -> int:
        """How many states of each sequence of a part are written: after its last so many tokens."""
        return self.shape.parts[part].history

    def keep(
        self,
        name: str,
        part: int,
        states: Tensor,
        *,
        read: bool = False,
        latest_first: bool = False,
        place: int | None = None,
    ) -> None:
        """Write the new states of the sequences of a part of the step.

        Args:
            name: of the cache.
            part: the number of the part.
            states: the new states, [width * sequences * history] elements in any shape, those of
                the oldest token first.
            read: the new states were computed from the previous ones, so this part does not read
                those any more. If the step has no other part, the states are then written early,
                and all layers can share scratch memory for them: 1 MB a layer of mamba2-370m.
            latest_first: the states of the last token come first.
            place: ``states`` are those after one token alone, [width * sequences]; 0 is the oldest
                one that is kept.
        """
        cache = self.caches[name]
        to = (self.turns.latest if latest_first else self.turns.writes)[part]
        assert to is not None
        if place is not None and self.history(part) > 1:
            n = self.shape.parts[part].sequences
            to = ops.view_1d(to, n, place * n * to.nb[0])
        rows = ops.reshape_2d(states, cache.ne[0], to.ne[0])
        early = read and len(self.shape.parts) == 1
        (self.kept_early if early else self.kept).append(ops.set_rows(cache, rows, to))
