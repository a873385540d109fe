"""Scope: what a block sees while it builds its nodes: the weights of its layer, caches, inputs.

Here: linear maps and norms by name. Not here: the blocks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aggml import ops

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aggml import Tensor
    from aggml.models.cache.room import Room
    from aggml.models.decoding.batch import Shape

__all__ = ["Places", "Scope", "Turns", "normed"]


@dataclass(frozen=True, slots=True)
class Places:
    """Inputs that tell where the keys and values of a step lie in the caches of one room.

    Attributes:
        rows: i32 [tokens], where they are written.
        staged: i32 [tokens of the last part], where those of that part are written as well.
        masks: f16 [rows seen, tokens, 1, sequences] for each part, 0 or -inf.
        seen: for each part, how many rows of each sequence attention looks at.
        length: rows of each sequence.
    """

    rows: Tensor
    staged: Tensor | None
    masks: tuple[Tensor, ...]
    seen: tuple[int, ...]
    length: int


@dataclass(frozen=True, slots=True)
class Turns:
    """Inputs that tell which states a step goes on from, and which it leaves.

    Attributes:
        reads: i32 [sequences] for each part: rows of the states that its sequences begin with.
        writes: the same of those that they end with.
    """

    reads: tuple[Tensor, ...]
    writes: tuple[Tensor, ...]


def normed(
    weights: Mapping[str, Tensor], name: str, x: Tensor, eps: float, *, centred: bool
) -> Tensor:
    """The rows of ``x`` normalised, times ``NAME.weight``.

    If ``centred`` their mean is taken away before, and ``NAME.bias`` is added where there is one.
    """
    y = ops.norm(x, eps) if centred else ops.rms_norm(x, eps)
    y = ops.mul(y, weights[f"{name}.weight"])
    bias = weights.get(f"{name}.bias") if centred else None
    return y if bias is None else ops.add(y, bias)


@dataclass(frozen=True, slots=True)
class Scope:
    """One layer of one graph.

    Attributes:
        weights: of the whole model, by their names in the file.
        prefix: of this layer's weights, "blk.3.".
        eps: of norms.
        caches: and states, of this layer, by name.
        positions: i32 [tokens].
        places: by room.
        shape: of the step.
        ctx: positions that a sequence may have.
        turns: of states.
        centred: as `Description` has it.
        kept: nodes beside the result that the graph must compute: the states that a step leaves.
        kept_early: those of them that may come before the rest of their layer.
        passed: values that layers of one graph hand on beside their result, by name.
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

    def weight(self, name: str) -> Tensor:
        """A tensor of this layer: ``weight("attn_q.weight")``."""
        return self.weights[self.prefix + name]

    def find(self, name: str) -> Tensor | None:
        """A tensor of this layer, None if the file has none of that name."""
        return self.weights.get(self.prefix + name)

    def linear(self, name: str, x: Tensor) -> Tensor:
        """``NAME.weight`` times ``x``, plus ``NAME.bias`` where the file has one."""
        y = ops.mul_mat(self.weight(f"{name}.weight"), x)
        bias = self.find(f"{name}.bias")
        return y if bias is None else ops.add(y, bias)

    def rms_norm(self, name: str, x: Tensor) -> Tensor:
        """The rows of ``x`` normalised, times ``NAME.weight``."""
        return ops.mul(ops.rms_norm(x, self.eps), self.weight(f"{name}.weight"))

    def norm(self, name: str, x: Tensor) -> Tensor:
        """``x`` under the norm of this name, of the model's kind."""
        return normed(self.weights, self.prefix + name, x, self.eps, centred=self.centred)

    def recall(self, name: str, part: int) -> Tensor:
        """The states that the sequences of a part of the step go on from: [width, sequences]."""
        return ops.get_rows(self.caches[name], self.turns.reads[part])

    def keep(self, name: str, part: int, states: Tensor, *, read: bool = False) -> None:
        """Leave the sequences of a part of the step these states: width elements of each.

        Args:
            name: of the cache.
            part: of the step.
            states: what to leave.
            read: they were made of the states before, so nothing of this part reads these later.
                Where the step has no other part they are put away at once, and all layers can
                have the same scratch for them: 1 MB of a layer of mamba2-370m.
        """
        cache, to = self.caches[name], self.turns.writes[part]
        rows = ops.reshape_2d(states, cache.ne[0], to.ne[0])
        early = read and len(self.shape.parts) == 1
        (self.kept_early if early else self.kept).append(ops.set_rows(cache, rows, to))
