"""Indexer: chooses the blocks of keys that each token sees (MiniMax's sparse attention).

Products of short queries and keys of its own tell which blocks of positions matter to a token.
Here: the choice, as masks of attention or rows of caches. Not here: attention (attention.py), which
rows a token may see at all (../kv/rows.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from aggml import DType, ops
from aggml.models.forms import FormContext, TensorForm, linear, norm
from aggml.models.kv.room import Cached, Room
from aggml.models.kv.rows import LONG_STEP, SHORT_STEP

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from aggml import Tensor
    from aggml.models.blocks.rope import Rope
    from aggml.models.blocks.scope import Scope
    from aggml.models.decoder.batch import Part

__all__ = ["Indexer", "SeenKeys"]

FORCED: Final = 1e30  # more than any product
WORTH: Final = 4  # if there are so many times the blocks that a token sees, their rows are copied


@dataclass(frozen=True, slots=True)
class SeenKeys:
    """What the tokens of a part see of one head of keys.

    Attributes:
        mask: f16 [rows, tokens, 1, sequences].
        rows: which rows these are, i32 [rows, sequences]; None: all.
    """

    mask: Tensor
    rows: Tensor | None


@dataclass(frozen=True, slots=True)
class Indexer:
    """Which blocks of keys each token sees, one choice for each head of keys.

    The score of a block is the largest product of the indexer's query and its keys. The token's own
    block, and ``near`` - 1 blocks before it, are chosen in any case.

    Attributes:
        heads: of its queries, as many as attention has heads of keys; its keys have one.
        length: elements of a head.
        size: positions of a block.
        count: how many blocks a token sees; fewer, if there are fewer.
        near: how many of these are the last ones.
    """

    heads: int
    length: int
    size: int
    count: int
    near: int

    @property
    def fits(self) -> bool:
        """Whether the choice of blocks of rows is that of blocks of positions.

        Prompts that are computed together lie beside each other, from rows that a block of this
        size divides; or they are so short that a token sees all blocks in which they lie.
        """
        short = SHORT_STEP % self.size == 0 or self.count > LONG_STEP // self.size
        return LONG_STEP % self.size == 0 and short

    def needs(self) -> Iterable[str]:
        """Its matrices and norms."""
        return [f"indexer.{part}.weight" for part in ("q_proj", "k_proj", "q_norm", "k_norm")]

    def forms(self, of: FormContext) -> dict[str, TensorForm]:
        """Its matrices and norms."""
        found = linear("indexer.q_proj", of.width, self.heads * self.length)
        found |= linear("indexer.k_proj", of.width, self.length)
        for part in ("q", "k"):
            found |= norm(f"indexer.{part}_norm", self.length, centred=of.centred)
        return found

    def caches(self, room: Room) -> Mapping[str, Cached]:
        """The description of the cache of its keys."""
        return {"index": Cached(self.length, self.length, room)}

    def build(self, at: Scope, x: Tensor, rope: Rope | None) -> tuple[Tensor, Tensor]:
        """Queries [length, heads, tokens] and keys [length, tokens] of the tokens of the step."""
        tokens = at.shape.tokens
        found = []
        for part, heads in (("q", self.heads), ("k", 1)):
            y = ops.reshape_3d(at.linear(f"indexer.{part}_proj", x), self.length, heads, tokens)
            y = at.norm(f"indexer.{part}_norm", y)
            found.append(y if rope is None else rope.build(at, y))
        return found[0], ops.reshape_2d(found[1], self.length, tokens)

    def choose(
        self, at: Scope, q: Tensor, keys: Tensor, part: Part, first: int, mask: Tensor
    ) -> list[SeenKeys] | None:
        """What a part's tokens see, for each head of keys; None: what ``mask`` says.

        Args:
            at: the layer.
            q: its queries of all tokens of the step.
            keys: those that attention reads, [length, rows, 1, sequences].
            part: of the step.
            first: the first token of the part.
            mask: which rows a token may see, f16 [rows, tokens, 1, sequences].
        """
        rows, tokens, sequences = mask.ne[0], part.tokens, part.sequences
        rest = -rows % self.size
        blocks = (rows + rest) // self.size
        if blocks <= self.count:
            return None
        hidden, forced = self._hide(at, mask, f"{first}", blocks)
        each = self.heads * tokens
        own = ops.view_4d(
            q, self.length, each, 1, sequences,
            q.nb[1], tokens * q.nb[2], tokens * q.nb[2], first * q.nb[2],
        )  # fmt: skip
        scores = ops.reshape_4d(ops.mul_mat(keys, own), rows, self.heads, tokens, sequences)
        scores = ops.add(scores, hidden)
        if rest:
            end = ops.fill(ops.arange(0.0, float(rest), 1.0), float("-inf"))
            end = ops.repeat_4d(end, rest, self.heads, tokens, sequences)
            scores = ops.concat(scores, end, 0)
        best = ops.pool_2d(scores, "max", self.size, 1, self.size, 1)
        best = best if forced is None else ops.add(best, forced)
        ids = ops.top_k(best, self.count)
        if tokens == 1 and not rest and blocks >= WORTH * self.count:
            return self._rows_of(ids, hidden)
        none = ops.reshape_4d(ops.fill(best, float("-inf")), 1, blocks, each, sequences)
        zeros = ops.scale(ops.cast(ids, DType.F32), 0.0)
        chosen = ops.set_rows(
            none,
            ops.reshape_4d(zeros, 1, self.count, each, sequences),
            ops.reshape_3d(ids, self.count, each, sequences),
        )
        wide = ops.repeat_4d(chosen, self.size, blocks, each, sequences)
        wide = ops.reshape_4d(wide, rows + rest, self.heads, tokens, sequences)
        if rest:
            wide = ops.view_4d(
                wide, rows, self.heads, tokens, sequences, wide.nb[1], wide.nb[2], wide.nb[3], 0
            )
        seen = ops.add(wide, hidden)
        step = seen.nb
        parts = (
            ops.view_4d(seen, rows, tokens, 1, sequences, step[2], step[3], step[3], i * step[1])
            for i in range(self.heads)
        )
        return [SeenKeys(ops.cast(part, DType.F16), None) for part in parts]

    def _rows_of(self, ids: Tensor, hidden: Tensor) -> list[SeenKeys]:
        """The rows of the chosen blocks, which alone are read, of one token of each sequence.

        Args:
            ids: of the blocks, i32 [count, heads, 1, sequences].
            hidden: the mask, f32 [rows, 1, 1, sequences].
        """
        n, sequences = self.size * self.count, ids.ne[3]
        begins = ops.scale(ops.cast(ids, DType.F32), float(self.size))
        begins = ops.reshape_3d(begins, 1, self.count, self.heads * sequences)
        rows = ops.repeat_4d(begins, self.size, self.count, self.heads * sequences, 1)
        rows = ops.add(rows, ops.arange(0.0, float(self.size), 1.0))
        rows = ops.reshape_3d(ops.cast(rows, DType.I32), n, self.heads, sequences)
        line = ops.reshape_3d(hidden, 1, hidden.ne[0], sequences)
        found = []
        for i in range(self.heads):
            own = ops.cont(ops.view_2d(rows, n, sequences, rows.nb[2], i * rows.nb[1]))
            mask = ops.reshape_4d(ops.get_rows(line, own), n, 1, 1, sequences)
            found.append(SeenKeys(ops.cast(mask, DType.F16), own))
        return found

    def _hide(
        self, at: Scope, mask: Tensor, name: str, blocks: int
    ) -> tuple[Tensor, Tensor | None]:
        """The mask in f32, [rows, 1, tokens, sequences], and what is added to scores of blocks.

        The latter is [blocks, 1, tokens, sequences]: `FORCED` for the last block that a token may
        see and for those shortly before it, else 0. All layers of a step share both.
        """
        hidden = at.passed.get(f"indexer mask {name}")
        rows, tokens, _, sequences = mask.ne
        if hidden is None:
            hidden = ops.reshape_4d(ops.cast(mask, DType.F32), rows, 1, tokens, sequences)
            at.passed[f"indexer mask {name}"] = hidden
        if not self.near:
            return hidden, None
        forced = at.passed.get(f"indexer forced {name} {self.size} {self.near}")
        if forced is None:
            flat = ops.reshape_2d(hidden, rows, tokens * sequences)
            last = ops.argmax(ops.add(flat, ops.arange(0.0, float(rows), 1.0)))
            last = ops.reshape_2d(ops.cast(last, DType.F32), 1, tokens * sequences)
            # half a row more: the quotient of a block's first row must not be rounded down
            own = ops.floor(ops.scale_bias(last, 1.0 / self.size, 0.5 / self.size))
            own = ops.repeat_4d(own, self.near, tokens * sequences, 1, 1)
            back = ops.arange(0.0, float(self.near), 1.0)
            own = ops.cast(ops.relu(ops.sub(own, back)), DType.I32)
            zeros = ops.fill(ops.arange(0.0, float(blocks), 1.0), 0.0)
            zeros = ops.repeat_4d(
                ops.reshape_2d(zeros, 1, blocks), 1, blocks, tokens * sequences, 1
            )
            ones = ops.fill(ops.arange(0.0, float(self.near), 1.0), FORCED)
            ones = ops.repeat_4d(
                ops.reshape_2d(ones, 1, self.near), 1, self.near, tokens * sequences, 1
            )
            forced = ops.reshape_4d(ops.set_rows(zeros, ones, own), blocks, 1, tokens, sequences)
            at.passed[f"indexer forced {name} {self.size} {self.near}"] = forced
        return hidden, forced
