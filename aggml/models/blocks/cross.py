"""CrossAttention: attention of tokens to another input than text, such as frames of audio.

The keys and values of that input are called its memory; another graph writes them (`write_memory`),
and with them a mask of the rows that the input has: it may be shorter than the memory. Not here:
the input itself (../speech/listening.py), attention among tokens (attention.py).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from aggml import ops
from aggml.models.blocks.attention import heads_of, queries_of
from aggml.models.forms import FormContext, TensorForm, linear
from aggml.models.kv.room import CrossMask, CrossMemory

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from aggml import Tensor
    from aggml.models.blocks.scope import Scope
    from aggml.models.decoder.batch import Part
    from aggml.models.kv.room import Kept

__all__ = ["CrossAttention", "MemoryRows"]


class MemoryRows(NamedTuple):
    """Inputs that tell where a memory is written.

    Attributes:
        rows: i32 [n], the row of each element of the input.
        mask: f32 [rows of a sequence, sequences], 0 for rows that are written, else -inf.
        sequences: i32 [sequences], whose masks these are.
    """

    rows: Tensor
    mask: Tensor
    sequences: Tensor


@dataclass(frozen=True, slots=True)
class CrossAttention:
    """Attention of tokens to a memory; every token sees all rows that its sequence has.

    Attributes:
        heads: of queries, keys and values.
        head: elements of each head.
        rows: the most rows of a sequence.
    """

    heads: int
    head: int
    rows: int

    def needs(self) -> Iterable[str]:
        """The matrices."""
        return [f"cross_attn_{part}.weight" for part in ("q", "k", "v", "output")]

    def forms(self, of: FormContext) -> dict[str, TensorForm]:
        """The matrices."""
        n = self.heads * self.head
        found = linear("cross_attn_output", n, of.width)
        for part in "qkv":
            found |= linear(f"cross_attn_{part}", of.width, n)
        return found

    def caches(self) -> Mapping[str, Kept]:
        """Descriptions of the memory's keys and values, and of its mask."""
        kept = CrossMemory(self.heads * self.head, self.head, self.rows)
        return {"cross_k": kept, "cross_v": kept, "cross_mask": CrossMask(self.rows)}

    def build(self, at: Scope, x: Tensor) -> Tensor:
        """[width, tokens] -> [head * heads, tokens]."""
        q = at.linear("cross_attn_q", x)
        q = ops.reshape_3d(q, self.head, self.heads, at.shape.tokens)
        found, first = None, 0
        for i, part in enumerate(at.shape.parts):
            keys, values = (
                heads_of(at.caches[name], self.head, self.heads, part, self.rows, self.rows)
                for name in ("cross_k", "cross_v")
            )
            y = ops.flash_attn_ext(
                queries_of(q, part, first), keys, values, self.mask_of(at, i, part),
                1 / math.sqrt(self.head),
            )  # fmt: skip
            y = ops.reshape_2d(y, self.head * self.heads, part.sequences * part.tokens)
            found = y if found is None else ops.concat(found, y, 1)
            first += part.sequences * part.tokens
        assert found is not None
        return found

    def mask_of(self, at: Scope, i: int, part: Part) -> Tensor:
        """The rows that the tokens of part ``i`` see: f16 [rows, tokens, 1, sequences]."""
        n, name = part.sequences, f"cross mask {i}"
        mask = at.passed.get(name)
        if mask is None:
            all_ = at.caches["cross_mask"]
            row = all_.nb[1]
            mask = ops.view_4d(all_, self.rows, 1, 1, n, row, row, row, part.slot * row)
            if part.tokens > 1:  # all tokens of a sequence see the same rows; all layers share it
                mask = ops.repeat_4d(mask, self.rows, part.tokens, 1, n)
                at.passed[name] = mask
        return mask

    def output(self, at: Scope, y: Tensor) -> Tensor:
        """[head * heads, n] -> [width, n]."""
        return at.linear("cross_attn_output", y)

    @staticmethod
    def write_memory(
        weights: Mapping[str, Tensor], prefix: str, caches: Mapping[str, Tensor], x: Tensor,
        at: MemoryRows,
    ) -> Iterator[Tensor]:  # fmt: skip
        """Make nodes that write one layer's memory of an input: keys and values, and the mask.

        Args:
            weights: of the whole model, by their names in the file.
            prefix: of the names of this layer's weights, such as "blk.3.".
            caches: of this layer, by name.
            x: the input, [width, n].
            at: the rows to write.
        """
        for part in "kv":
            name = f"{prefix}cross_attn_{part}"
            y = ops.mul_mat(weights[f"{name}.weight"], x)
            bias = weights.get(f"{name}.bias")
            y = y if bias is None else ops.add(y, bias)
            yield ops.set_rows(caches[f"cross_{part}"], y, at.rows)
        yield ops.set_rows(caches["cross_mask"], at.mask, at.sequences)
