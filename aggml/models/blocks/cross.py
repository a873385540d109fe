"""CrossAttention: attention of tokens to another input than text, such as frames of audio.

The keys and values of that input are called its memory; another graph writes them (`write_memory`).
Not here: the input itself (../speech/listening.py), attention among tokens (attention.py).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aggml import ops
from aggml.models.blocks.attention import heads_of, queries_of
from aggml.models.forms import FormContext, TensorForm, linear
from aggml.models.kv.room import CrossMemory

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from aggml import Tensor
    from aggml.models.blocks.scope import Scope

__all__ = ["CrossAttention"]


@dataclass(frozen=True, slots=True)
class CrossAttention:
    """Attention of tokens to a memory; every token sees all of it.

    Attributes:
        heads: of queries, keys and values.
        head: elements of each head.
        rows: how many the memory has.
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

    def caches(self) -> Mapping[str, CrossMemory]:
        """Descriptions of the memory's keys and values."""
        kept = CrossMemory(self.heads * self.head, self.head, self.rows)
        return {"cross_k": kept, "cross_v": kept}

    def build(self, at: Scope, x: Tensor) -> Tensor:
        """[width, tokens] -> [head * heads, tokens]."""
        q = at.linear("cross_attn_q", x)
        q = ops.reshape_3d(q, self.head, self.heads, at.shape.tokens)
        found, first = None, 0
        for part in at.shape.parts:
            keys, values = (
                heads_of(at.caches[name], self.head, self.heads, part, self.rows, self.rows)
                for name in ("cross_k", "cross_v")
            )
            y = ops.flash_attn_ext(
                queries_of(q, part, first), keys, values, None, 1 / math.sqrt(self.head)
            )
            y = ops.reshape_2d(y, self.head * self.heads, part.sequences * part.tokens)
            found = y if found is None else ops.concat(found, y, 1)
            first += part.sequences * part.tokens
        assert found is not None
        return found

    def output(self, at: Scope, y: Tensor) -> Tensor:
        """[head * heads, n] -> [width, n]."""
        return at.linear("cross_attn_output", y)

    @staticmethod
    def write_memory(
        weights: Mapping[str, Tensor], prefix: str, caches: Mapping[str, Tensor], x: Tensor,
        rows: Sequence[Tensor],
    ) -> Iterator[Tensor]:  # fmt: skip
        """Make nodes that write the keys and values of an input to one layer's memory.

        Args:
            weights: of the whole model, by their names in the file.
            prefix: of the names of this layer's weights, such as "blk.3.".
            caches: of this layer, by name.
            x: the input, [width, n].
            rows: i32 [n] each, the rows to write; each of them gets the whole input.
        """
        for part in "kv":
            name = f"{prefix}cross_attn_{part}"
            y = ops.mul_mat(weights[f"{name}.weight"], x)
            bias = weights.get(f"{name}.bias")
            y = y if bias is None else ops.add(y, bias)
            for each in rows:
                yield ops.set_rows(caches[f"cross_{part}"], y, each)
