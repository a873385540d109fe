"""Attention: queries, keys and values of a step, written to and read from caches.

Here: grouped queries, norms of queries and keys, sliding windows, sinks, soft caps. Not here:
rotary positions (rope.py), the choice of blocks of keys (indexer.py), which rows of a cache are
written and seen (../kv/rows.py).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeAlias

from aggml import DType, ops
from aggml.models.forms import FormContext, TensorForm, linear
from aggml.models.forms import norm as norm_form
from aggml.models.kv.room import Cached, Room

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from aggml import Tensor
    from aggml.models.blocks.indexer import Indexer, SeenKeys
    from aggml.models.blocks.rope import Rope, Temperature
    from aggml.models.blocks.scope import Places, Scope
    from aggml.models.decoder.batch import Part

__all__ = ["Attention", "heads_of", "queries_of"]

#: What is normalised in queries and keys: see `Attention.norm`.
QueryNorm: TypeAlias = Literal[
    "head", "own head", "turned head", "turned head alone", "width", "head of some files"
]


@dataclass(frozen=True, slots=True)
class Attention:
    """Attention over a cache of keys and values.

    Attributes:
        heads, kv_heads: heads of queries; heads of keys and values.
        key_length, value_length: elements of a head.
        rope: rotary positions; None: none.
        scale: of the products of queries and keys; None: 1 / sqrt(key_length).
        window: how many positions a token sees, its own included; None: all before it.
        chunked: whether it sees those of its own chunk of ``window`` positions instead.
        causal: whether no token sees a later one, also not within a picture whose positions see
            each other.
        soft_cap: c bounds the products by c * tanh(x / c); 0: no bound.
        norm: what is normalised in queries and keys: each "head"; each "own head", where each has
            weights of its own; each "turned head", which is a head after its rotary positions; each
            "turned head alone", which is that without weights; the whole "width"; each "head of
            some files"; None: nothing.
        sinks: whether the softmax of each head has one more logit, without a value
            (``attn_sinks``); None: if the file has it.
        joined: whether one matrix, ``attn_qkv``, has the rows of queries, keys and values; None:
            whether the file has it.
        gated: whether ``attn_q`` also gives a gate for each head; the head's output is multiplied
            by the sigmoid of the gate.
        gate: the name of a matrix that gives such gates, or one number for each head; None: there
            is none.
        softplus: whether the softplus of the gate is taken instead of its sigmoid.
        values_in_keys: values are the first elements of keys, so one cache holds both.
        temperature: by which queries are multiplied; None: by nothing.
        value_norm: whether each head of values is normalised, without weights. If the file has no
            ``attn_v``, values are the keys before their norm and rotary positions.
        lends: whether later layers use the keys and values of this one.
        borrows: the number of the layer whose keys and values are used; None: its own.
        indexer: chooses the blocks of keys that each token sees; None: it sees all.
        value_scale: values are multiplied by it.
        clamp: c bounds queries, keys and values at -c and c before all else; 0: nothing does.
        output_norm: the name of a norm of what all heads give, before ``attn_output``; None: there
            is none.
        slope: the largest bias of ALiBi, which lowers the logits of a head the more, the farther
            away a key is; 0: none.
    """

    heads: int
    kv_heads: int
    key_length: int
    value_length: int
    rope: Rope | None
    scale: float | None = None
    window: int | None = None
    chunked: bool = False
    causal: bool = False
    soft_cap: float = 0.0
    norm: QueryNorm | None = None
    sinks: bool | None = False
    joined: bool | None = False
    gated: bool = False
    gate: str | None = None
    softplus: bool = False
    values_in_keys: bool = False
    temperature: Temperature | None = None
    value_norm: bool = False
    lends: bool = False
    borrows: int | None = None
    indexer: Indexer | None = None
    value_scale: float = 1.0
    clamp: float = 0.0
    output_norm: str | None = None
    slope: float = 0.0

    @property
    def room(self) -> Room:
        """Which positions the caches keep."""
        return Room(self.window, self.chunked, self.causal)

    def needs(self) -> Iterable[str]:
        """Its matrices and norms."""
        parts = [] if self.joined is None else ["attn_q", "attn_k", "attn_v"]
        parts = ["attn_qkv"] if self.joined else parts
        some = self.norm in (None, "head of some files", "turned head alone")
        norms = [] if some else ["attn_q_norm", "attn_k_norm"]
        if self.value_norm:
            parts = parts[:-1]  # some files have no values
        if self.borrows is not None:
            parts, norms = parts[:1], norms[:1]
        others = [x for x in (self.gate, self.output_norm) if x is not None]
        names = [f"{part}.weight" for part in (*parts, *norms, *others, "attn_output")]
        names += [] if self.indexer is None else self.indexer.needs()
        return [*names, "attn_sinks.weight"] if self.sinks else names

    def forms(self, of: FormContext) -> dict[str, TensorForm]:
        """Its matrices, norms and sinks, and the factors of its frequencies."""
        q, k = self.heads * self.key_length, self.kv_heads * self.key_length
        v, rows = self.kv_heads * self.value_length, q * (2 if self.gated else 1)
        joined = self.joined
        if joined is None:
            joined = of.find("attn_qkv.weight") is not None
        if joined:
            found = linear("attn_qkv", of.width, rows + k + v)
        else:
            found = linear("attn_q", of.width, rows)
            found |= linear("attn_k", of.width, k) | linear("attn_v", of.width, v)
        for part, n, heads in (("q", q, self.heads), ("k", k, self.kv_heads)):
            if self.norm == "width":
                found |= norm_form(f"attn_{part}_norm", n, centred=of.centred)
            elif self.norm not in (None, "turned head alone"):
                found |= norm_form(
                    f"attn_{part}_norm", self.key_length, centred=of.centred,
                    optional=self.norm == "head of some files",
                    heads=heads if self.norm == "own head" else None,
                )  # fmt: skip
        if self.value_norm:
            found |= {
                x: replace(y, optional=True, uneven=True) for x, y in found.items() if "attn_v" in x
            }
        if self.borrows is not None:
            unused = ("attn_k", "attn_v")
            found |= {
                x: replace(y, optional=True, uneven=True)
                for x, y in found.items()
                if x[:6] in unused
            }
        if self.sinks is not False:
            found["attn_sinks.weight"] = TensorForm(
                (self.heads,), optional=self.sinks is None, vector=True
            )
        if self.gate is not None:
            matrix, rows = of.find(f"{self.gate}.weight"), self.heads * self.value_length
            of_heads = matrix is not None and matrix.ne[1] == self.heads
            found |= linear(self.gate, of.width, self.heads if of_heads else rows)
        if self.output_norm is not None:
            wide = self.heads * self.value_length
            found |= norm_form(self.output_norm, wide, centred=of.centred)
        if self.indexer is not None:
            found |= self.indexer.forms(of)
        return found | linear("attn_output", self.heads * self.value_length, of.width)

    def caches(self) -> Mapping[str, Cached]:
        """Descriptions of the caches of keys and values."""
        if self.borrows is not None:
            return {}
        whole = math.gcd(self.key_length, self.value_length if self.values_in_keys else 0)
        found = {"k": Cached(self.key_length * self.kv_heads, whole, self.room)}
        if not self.values_in_keys:
            width = self.value_length * self.kv_heads
            found["v"] = Cached(width, self.value_length, self.room)
        return found if self.indexer is None else found | dict(self.indexer.caches(self.room))

    def build(self, at: Scope, x: Tensor) -> Tensor:
        """[width, tokens] -> [value_length * heads, tokens]."""
        if self.borrows is not None:
            return self._attend(at, self._own_queries(at, x), *self._borrow(at))
        q, k, v, gate = self._products(at, x)
        index = None if self.indexer is None else self.indexer.build(at, x, self.rope)
        y = self.attend(at, q, k, v, index)
        y = y if self.value_scale == 1.0 else ops.scale(y, self.value_scale)
        return y if gate is None else self._apply_gate(y, gate)

    def _apply_gate(self, y: Tensor, gate: Tensor) -> Tensor:
        """``y`` [value_length * heads, tokens] times its gate, of elements or of heads."""
        gate = ops.softplus(gate) if self.softplus else ops.sigmoid(gate)
        if gate.ne[0] == y.ne[0]:
            return ops.mul(y, gate)
        tokens = y.ne[1]
        heads = ops.reshape_3d(y, self.value_length, self.heads, tokens)
        heads = ops.mul(heads, ops.reshape_3d(gate, 1, self.heads, tokens))
        return ops.reshape_2d(heads, self.value_length * self.heads, tokens)

    def attend(
        self,
        at: Scope,
        q: Tensor,
        k: Tensor,
        v: Tensor | None,
        index: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        """Write keys and values to the caches, and compute attention over the caches.

        Args:
            at: the layer.
            q: [key_length, heads, tokens].
            k: [key_length, kv_heads, tokens], contiguous.
            v: [value_length * kv_heads, tokens]; None if values lie in keys.
            index: queries and keys of the indexer; None: there is none.

        Returns:
            [value_length * heads, tokens].
        """
        places = at.places[self.room]
        # Attention reads the results of set_rows, the caches with the new rows: so it runs later.
        new_k = ops.reshape_2d(k, self.key_length * self.kv_heads, at.shape.tokens)
        keys = self._write_rows(at.caches["k"], new_k, places)
        values = keys if v is None else self._write_rows(at.caches["v"], v, places)
        if self.lends:
            at.passed[f"{at.prefix}keys"], at.passed[f"{at.prefix}values"] = keys, values
        if index is not None:
            index = index[0], self._write_rows(at.caches["index"], index[1], places)
        return self._attend(at, q, keys, values, index)

    def _borrow(self, at: Scope) -> tuple[Tensor, Tensor]:
        """Borrow the keys and values of another layer, with the rows of this step."""
        lender = f"blk.{self.borrows}."
        return at.passed[f"{lender}keys"], at.passed[f"{lender}values"]

    def _own_queries(self, at: Scope, x: Tensor) -> Tensor:
        """Queries [key_length, heads, tokens] of a layer that computes no keys."""
        q = ops.reshape_3d(at.linear("attn_q", x), self.key_length, self.heads, at.shape.tokens)
        q = at.norm("attn_q_norm", q) if self.norm == "head" else q
        return q if self.rope is None else self.rope.build(at, q)

    def _attend(
        self,
        at: Scope,
        q: Tensor,
        keys: Tensor,
        values: Tensor,
        index: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        """Attention of all tokens of the step over the caches: [value_length * heads, tokens]."""
        places = at.places[self.room]
        found, first = None, 0
        parts = zip(at.shape.parts, places.masks, places.seen, strict=True)
        for part, mask, seen in parts:
            own = queries_of(q, part, first)
            mask = _distances(at, mask, f"{first}") if self.slope else mask
            chosen = None
            if index is not None and self.indexer is not None:
                index_q, index_keys = index
                read = heads_of(index_keys, self.indexer.length, 1, part, seen, places.length)
                chosen = self.indexer.choose(at, index_q, read, part, first, mask)
            if chosen is None:
                y = self._attend_part(at, own, keys, values, part, mask, seen)
            else:
                y = self._attend_blocks(at, own, keys, values, part, chosen, seen)
            found = y if found is None else ops.concat(found, y, 1)
            first += part.sequences * part.tokens
        assert found is not None
        return found

    def output(self, at: Scope, y: Tensor) -> Tensor:
        """[value_length * heads, n] -> [width, n]."""
        y = y if self.output_norm is None else at.norm(self.output_norm, y)
        return at.linear("attn_output", y)

    def _products(self, at: Scope, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Queries, keys, values and the gate of the tokens of the step.

        Queries and keys are [head, heads, tokens], with rotary positions; values and gate are
        [head * heads, tokens].
        """
        tokens = at.shape.tokens
        wide = self.heads * self.key_length, self.kv_heads * self.key_length
        if self.joined or (self.joined is None and at.find("attn_qkv.weight") is not None):
            whole, rest = self._bound(at.linear("attn_qkv", x)), self.kv_heads * self.value_length
            q, k, v = (
                ops.cont(ops.view_2d(whole, n, tokens, whole.nb[1], first * whole.nb[0]))
                for n, first in ((wide[0], 0), (wide[1], wide[0]), (rest, sum(wide)))
            )
        else:
            q, k = self._bound(at.linear("attn_q", x)), self._bound(at.linear("attn_k", x))
            own = not self.value_norm or at.find("attn_v.weight") is not None
            v = self._bound(at.linear("attn_v", x)) if own else k
        if self.norm == "width":
            q, k = at.norm("attn_q_norm", q), at.norm("attn_k_norm", k)
        q, gate = self._split(q) if self.gated else (q, None)
        q = q if self.gated else ops.reshape_3d(q, self.key_length, self.heads, tokens)
        k = ops.reshape_3d(k, self.key_length, self.kv_heads, tokens)
        there = self.norm == "head of some files" and at.find("attn_q_norm.weight") is not None
        if there or self.norm in ("head", "own head"):
            q, k = at.norm("attn_q_norm", q), at.norm("attn_k_norm", k)
        if self.rope is not None:
            q, k = self.rope.build(at, q), self.rope.build(at, k)
        if self.norm == "turned head":
            q, k = at.norm("attn_q_norm", q), at.norm("attn_k_norm", k)
        if self.norm == "turned head alone":
            q, k = ops.rms_norm(q, at.eps), ops.rms_norm(k, at.eps)
        if self.value_norm:
            v = ops.reshape_3d(v, self.value_length, self.kv_heads, tokens)
            v = ops.rms_norm(v, at.eps)
            v = ops.reshape_2d(v, self.value_length * self.kv_heads, tokens)
        gate = at.linear(self.gate, x) if self.gate is not None else gate
        return q if self.temperature is None else self.temperature.build(at, q), k, v, gate

    def _bound(self, x: Tensor) -> Tensor:
        """Queries, keys or values within the bounds of ``clamp``."""
        return ops.clamp(x, -self.clamp, self.clamp) if self.clamp else x

    def _split(self, q: Tensor) -> tuple[Tensor, Tensor]:
        """Queries [head, heads, tokens] and gates [head * heads, tokens].

        In ``q`` each head's query is followed by its gate.
        """
        head, tokens = self.key_length, q.ne[1]
        size = head * q.nb[0]
        both = (q, head, self.heads, tokens, 2 * size, q.nb[1])
        gate = ops.cont_2d(ops.view_3d(*both, size), head * self.heads, tokens)
        return ops.view_3d(*both, 0), gate

    def _attend_part(
        self,
        at: Scope,
        q: Tensor,
        keys: Tensor,
        values: Tensor,
        part: Part,
        mask: Tensor,
        seen: int,
    ) -> Tensor:
        """Attention of one part's queries over the caches: [value_length * heads, tokens].

        It looks at the first ``seen`` rows of each sequence.
        """
        places = at.places[self.room]
        y = ops.flash_attn_ext(
            q,
            heads_of(keys, self.key_length, self.kv_heads, part, seen, places.length),
            heads_of(values, self.value_length, self.kv_heads, part, seen, places.length),
            mask,
            1 / math.sqrt(self.key_length) if self.scale is None else self.scale,
            self.slope,
            self.soft_cap,
        )
        if part.shared and self.room.window is None and not self.slope:
            ops.flash_attn_ext_set_shared(y, min(part.shared, seen), part.shared_from)
        sinks = at.find("attn_sinks.weight") if self.sinks is not False else None
        if sinks is not None:
            y = ops.flash_attn_ext_add_sinks(y, sinks)
        return ops.reshape_2d(y, self.value_length * self.heads, part.sequences * part.tokens)

    def _attend_blocks(
        self,
        at: Scope,
        q: Tensor,
        keys: Tensor,
        values: Tensor,
        part: Part,
        chosen: list[SeenKeys],
        seen: int,
    ) -> Tensor:
        """As `_attend_part`, where heads of keys differ in what is seen of them."""
        places, each = at.places[self.room], self.heads // self.kv_heads
        scale = 1 / math.sqrt(self.key_length) if self.scale is None else self.scale
        k = heads_of(keys, self.key_length, self.kv_heads, part, seen, places.length)
        v = heads_of(values, self.value_length, self.kv_heads, part, seen, places.length)
        found: Tensor | None = None
        for i, what in enumerate(chosen):
            own_q, own_k, own_v = (
                ops.view_4d(
                    x, x.ne[0], x.ne[1], n, x.ne[3], x.nb[1], x.nb[2], x.nb[3], i * n * x.nb[2]
                )
                for x, n in ((q, each), (k, 1), (v, 1))
            )
            if what.rows is not None:
                own_k, own_v = (_some_rows(x, what.rows) for x in (own_k, own_v))
            y = ops.flash_attn_ext(own_q, own_k, own_v, what.mask, scale, 0.0, self.soft_cap)
            found = y if found is None else ops.concat(found, y, 1)
        assert found is not None
        tokens = part.sequences * part.tokens
        return ops.reshape_2d(found, self.value_length * self.heads, tokens)

    @staticmethod
    def _write_rows(cache: Tensor, new: Tensor, places: Places) -> Tensor:
        """The cache after the rows ``new`` have been written to it."""
        cache = ops.set_rows(cache, new, places.rows)
        if places.staged is not None:
            n = places.staged.ne[0]
            last = ops.view_2d(new, new.ne[0], n, new.nb[1], (new.ne[1] - n) * new.nb[1])
            cache = ops.set_rows(cache, last, places.staged)
        return cache


def _some_rows(x: Tensor, rows: Tensor) -> Tensor:
    """Some rows of one head of a cache, [head, rows, 1, sequences], copied in another order."""
    line = ops.view_3d(x, x.ne[0], x.ne[1], x.ne[3], x.nb[1], x.nb[3], 0)
    found = ops.reshape_4d(ops.get_rows(line, rows), x.ne[0], rows.ne[0], 1, x.ne[3])
    dtype = DType.F16 if x.dtype.is_quantized else x.dtype
    return found if dtype is DType.F32 else ops.cast(found, dtype)


def _distances(at: Scope, mask: Tensor, name: str) -> Tensor:
    """A mask whose 0s are the negated numbers of positions between a token and a key.

    All layers of a step share it. The last row that a token sees is its own.
    """
    found = at.passed.get(f"distances {name}")
    if found is None:
        rows, tokens, _, sequences = mask.ne
        order = ops.reshape_2d(ops.cast(mask, DType.F32), rows, tokens * sequences)
        order = ops.add(order, ops.arange(0.0, float(rows), 1.0))
        own = ops.cast(ops.reshape_2d(ops.argmax(order), 1, tokens * sequences), DType.F32)
        order = ops.cast(ops.sub(order, own), DType.F16)
        found = at.passed[f"distances {name}"] = ops.reshape_4d(order, rows, tokens, 1, sequences)
    return found


def queries_of(q: Tensor, part: Part, first: int) -> Tensor:
    """A view of the queries of one part, [head, tokens, heads, sequences].

    ``first`` is the first token of the part.
    """
    view = ops.view_4d(
        q, q.ne[0], q.ne[1], part.tokens, part.sequences,
        q.nb[1], q.nb[2], part.tokens * q.nb[2], first * q.nb[2],
    )  # fmt: skip
    return ops.permute(view, 0, 2, 1, 3)


def heads_of(cache: Tensor, head: int, heads: int, part: Part, seen: int, length: int) -> Tensor:
    """A view of a cache: [head, rows seen, heads, sequences].

    Args:
        cache: keys or values.
        head: elements of a head.
        heads: of keys and values.
        part: the part of the step whose queries look.
        seen: how many rows of each sequence it looks at.
        length: how many rows each sequence has.
    """
    row, size = cache.nb[1], cache.dtype.row_size(head)
    view = ops.view_4d(
        cache, head, heads, seen, part.sequences,
        size, row, length * row, part.slot * length * row,
    )  # fmt: skip
    return ops.permute(view, 0, 2, 1, 3)
