"""Caches: the tensors in which all layers of a model keep what they need of every sequence.

Here: their shapes, copies from one sequence to another. Not here: allocating them
(../decoder/decoder.py, paging.py), which rows a step writes and sees (rows.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import aggml
from aggml import DType, Tensor, ops
from aggml.models.errors import ModelError
from aggml.models.kv.room import Cached, CrossMask, CrossMemory, Room, State
from aggml.models.kv.rows import length_of
from aggml.models.kv.state_rows import Rewind, StateRows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aggml.models.description import Description
    from aggml.models.kv.room import Kept

__all__ = ["CHUNK", "Caches", "sizes"]

CHUNK: Final = 512  # the most tokens of one sequence in a step


class Caches:
    """The caches of all layers of a model, for ``sequences`` sequences.

    Args:
        model: its description.
        dtype: of keys and values; states are f32.
        ctx: positions of a sequence.
        sequences: how many there are.
        ring: whether layers with a window keep only its rows, in a ring.
        rewind: how far states can go back.

    Attributes:
        layers: tensors of each layer by name. Keys and values: [width, rows * sequences]; states:
            [width, rows of ``state_rows``]; memories: [width, rows * sequences], and their masks:
            [rows, sequences].
        state_rows: which row of the states is whose.
        lengths: rows of each sequence, by room.
        rows: each tensor of keys or values, and how many of its rows a sequence has.
        states: each tensor of states.
        memories: each tensor of a memory or its mask, and how many of its rows a sequence has.

    Raises:
        ModelError: a head is no whole number of blocks of ``dtype``.
    """

    def __init__(
        self,
        model: Description,
        dtype: DType,
        ctx: int,
        sequences: int,
        *,
        ring: bool,
        rewind: Rewind = Rewind(),  # noqa: B008 it is frozen
    ) -> None:
        self.sequences = sequences
        self.state_rows: StateRows = StateRows(sequences, rewind)
        self.layers: list[dict[str, Tensor]] = []
        self.lengths: dict[Room, int] = {}
        self.rows: list[tuple[Tensor, int]] = []
        self.states: list[Tensor] = []
        self.memories: list[tuple[Tensor, int]] = []
        for i, layer in enumerate(model.layers):
            made = {}
            for name, kept in layer.caches().items():
                label = f"cache_{name}.{i}"
                if isinstance(kept, State):
                    made[name] = self._state(label, kept)
                elif isinstance(kept, CrossMemory):
                    made[name] = self._rows(label, dtype, kept, kept.rows)
                    self.memories.append((made[name], kept.rows))
                elif isinstance(kept, CrossMask):
                    ne = kept.rows, sequences
                    made[name] = aggml.new_tensor(DType.F16, ne=ne, name=label)
                    self.memories.append((made[name], 1))
                else:
                    length = self.lengths[kept.room] = _length(kept, ctx, ring)
                    made[name] = self._rows(label, dtype, kept, length)
                    self.rows.append((made[name], length))
            self.layers.append(made)

    def clear(self) -> None:
        """Forget all tensors, when the model is closed."""
        for kept in (self.layers, self.rows, self.states, self.memories):
            kept.clear()

    @property
    def all(self) -> list[Tensor]:
        """Every tensor."""
        return [*(cache for cache, _ in (*self.rows, *self.memories)), *self.states]

    def _state(self, label: str, kept: State) -> Tensor:
        made = aggml.new_tensor(DType.F32, ne=(kept.width, self.state_rows.total), name=label)
        self.states.append(made)
        return made

    def _rows(self, label: str, dtype: DType, kept: Cached | CrossMemory, length: int) -> Tensor:
        if kept.head % dtype.blck_size:
            raise ModelError(
                f"a cache of {dtype.name.lower()} needs heads whose length is a multiple of "
                f"{dtype.blck_size} elements, this model has heads of {kept.head}"
            )
        return aggml.new_tensor(dtype, ne=(kept.width, length * self.sequences), name=label)

    @property
    def state_bytes(self) -> int:
        """Bytes of the states of one sequence, of all layers."""
        return sum(state.nb[1] for state in self.states)

    def copies(self, source: int, target: int, n: int) -> Iterator[Tensor]:
        """Nodes that copy ``n`` positions, the state and the memory of a sequence to another."""
        kept = [(cache, length, min(n, length)) for cache, length in self.rows]
        kept += [(cache, length, length) for cache, length in self.memories]
        for cache, length, held in kept:
            row = cache.nb[1]
            old, new = (
                ops.view_2d(cache, cache.ne[0], held, row, slot * length * row)
                for slot in (source, target)
            )
            yield ops.cpy(old, new)
        for state in self.states:
            old, new = (
                ops.view_1d(state, state.ne[0], row * state.nb[1])
                for row in (self.state_rows.current(source), target)
            )
            yield ops.cpy(old, new)


def sizes(
    model: Description,
    dtype: DType,
    ctx: int,
    sequences: int,
    *,
    ring: bool,
    rewind: Rewind = Rewind(),  # noqa: B008 it is frozen
) -> list[int]:
    """Bytes of the caches and states of each layer, with these arguments of `Caches`."""
    rows = StateRows(sequences, rewind).total

    def size(kept: Kept) -> int:
        if isinstance(kept, State):
            return DType.F32.row_size(kept.width) * rows
        if isinstance(kept, CrossMask):
            return DType.F16.row_size(kept.rows) * sequences
        length = kept.rows if isinstance(kept, CrossMemory) else _length(kept, ctx, ring)
        return dtype.row_size(kept.width) * length * sequences

    return [sum(map(size, layer.caches().values())) for layer in model.layers]


def _length(kept: Cached, ctx: int, ring: bool) -> int:
    """How many rows each sequence has."""
    return length_of(kept.room, ctx, CHUNK) if ring else ctx
