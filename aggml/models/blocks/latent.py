"""LatentAttention: keys and values come from one short vector of each token (DeepSeek's MLA).

Here: both layouts of files. Unfolded (``attn_kv_b``): keys and values of all heads are computed and
kept. Folded (``attn_k_b``, ``attn_v_b``): queries are mapped to the space of the short vectors, and
only these are kept: 576 elements of each token instead of 40,960 in DeepSeek-V3. Not here: caches
and masks (attention.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aggml import ops
from aggml.models.blocks.attention import Attention
from aggml.models.forms import FormContext, TensorForm, linear, norm

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from aggml import Tensor
    from aggml.models.blocks.rope import Rope, Temperature
    from aggml.models.blocks.scope import Scope
    from aggml.models.kv.room import Cached

__all__ = ["LatentAttention"]


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Attention whose keys and values come from a vector of ``rank`` elements.

    Attributes:
        heads: of queries.
        rank: elements of the short vector.
        plain, turned: elements of a key's head without and with rotary positions. The latter are
            the same in all heads.
        value_length: elements of a head of values.
        rope: of the turned elements; None: they are not turned.
        scale: of the products of queries and keys.
        query_rank: elements of the short vector from which queries are computed; 0: queries are
            computed from the input.
        folded: whether the caches keep the short vectors; else they keep keys and values.
        temperature: by which queries are multiplied; None: by nothing.
    """

    heads: int
    rank: int
    plain: int
    turned: int
    value_length: int
    rope: Rope | None
    scale: float
    query_rank: int = 0
    folded: bool = True
    temperature: Temperature | None = None

    @property
    def _core(self) -> Attention:
        """Attention over the caches; if folded, with one head of keys that includes the values."""
        kv_heads = 1 if self.folded else self.heads
        key = (self.rank if self.folded else self.plain) + self.turned
        value = self.rank if self.folded else self.value_length
        return Attention(
            self.heads, kv_heads, key, value, None, self.scale, values_in_keys=self.folded
        )

    def _turn(self, at: Scope, x: Tensor, offset: int = 0) -> Tensor:
        """``x`` with rotary positions behind the first ``offset`` elements of each head."""
        return x if self.rope is None else self.rope.build(at, x, offset)

    def _sharpen(self, at: Scope, q: Tensor) -> Tensor:
        """Queries, multiplied by the temperature if there is one."""
        return q if self.temperature is None else self.temperature.build(at, q)

    def needs(self) -> Iterable[str]:
        """Its matrices and norms."""
        queries = ("attn_q_a", "attn_q_a_norm", "attn_q_b") if self.query_rank else ("attn_q",)
        unfolding = ("attn_k_b", "attn_v_b") if self.folded else ("attn_kv_b",)
        parts = (*queries, "attn_kv_a_mqa", "attn_kv_a_norm", *unfolding, "attn_output")
        return [f"{part}.weight" for part in parts]

    def forms(self, of: FormContext) -> dict[str, TensorForm]:
        """Its matrices and norms."""
        q, short = self.heads * (self.plain + self.turned), self.rank + self.turned
        found = linear("attn_kv_a_mqa", of.width, short)
        found |= norm("attn_kv_a_norm", self.rank, centred=False)
        if self.query_rank:
            found |= linear("attn_q_a", of.width, self.query_rank)
            found |= norm("attn_q_a_norm", self.query_rank, centred=False)
            found |= linear("attn_q_b", self.query_rank, q)
        else:
            found |= linear("attn_q", of.width, q)
        if self.folded:
            found["attn_k_b.weight"] = TensorForm((self.plain, self.rank, self.heads))
            found["attn_v_b.weight"] = TensorForm((self.rank, self.value_length, self.heads))
        else:
            found |= linear("attn_kv_b", self.rank, self.heads * (self.plain + self.value_length))
        return found | linear("attn_output", self.heads * self.value_length, of.width)

    def caches(self) -> Mapping[str, Cached]:
        """Descriptions of the caches: of keys and values, or of the short vectors."""
        return self._core.caches()

    def build(self, at: Scope, x: Tensor) -> Tensor:
        """[width, tokens] -> [rank or value_length, of each head, tokens]."""
        tokens = at.shape.tokens
        if self.query_rank:
            x_q = at.rms_norm("attn_q_a_norm", at.linear("attn_q_a", x))
            q = at.linear("attn_q_b", x_q)
        else:
            q = at.linear("attn_q", x)
        q = ops.reshape_3d(q, self.plain + self.turned, self.heads, tokens)
        both = at.linear("attn_kv_a_mqa", x)
        row, size = both.nb[1], both.nb[0]
        latent = ops.view_2d(both, self.rank, tokens, row, 0)
        latent = at.rms_norm("attn_kv_a_norm", latent)
        k_turned = ops.view_3d(both, self.turned, 1, tokens, row, row, self.rank * size)
        k_turned = self._turn(at, k_turned)
        if self.folded:
            latent = ops.reshape_3d(latent, self.rank, 1, tokens)
            k = ops.concat(latent, k_turned, 0)
            return self._core.attend(at, self._sharpen(at, self._fold_queries(at, q)), k, None)
        q = self._sharpen(at, self._turn(at, q, self.plain))
        k, v = self._unfold(at, latent, k_turned)
        return self._core.attend(at, q, k, v)

    def output(self, at: Scope, y: Tensor) -> Tensor:
        """[any, n] -> [width, n]."""
        if self.folded:
            n = y.ne[1]
            each = ops.permute(ops.reshape_3d(y, self.rank, self.heads, n), 0, 2, 1, 3)
            each = ops.mul_mat(at.weight("attn_v_b.weight"), each)
            y = ops.cont_2d(ops.permute(each, 0, 2, 1, 3), self.value_length * self.heads, n)
        return at.linear("attn_output", y)

    def _fold_queries(self, at: Scope, q: Tensor) -> Tensor:
        """Queries mapped to the space of the short vectors: [rank + turned, heads, tokens]."""
        heads, tokens = q.ne[1:3]
        plain = ops.view_3d(q, self.plain, heads, tokens, q.nb[1], q.nb[2], 0)
        turned = ops.view_3d(q, self.turned, heads, tokens, q.nb[1], q.nb[2], self.plain * q.nb[0])
        plain = ops.mul_mat(at.weight("attn_k_b.weight"), ops.permute(plain, 0, 2, 1, 3))
        return ops.concat(ops.permute(plain, 0, 2, 1, 3), self._turn(at, turned), 0)

    def _unfold(self, at: Scope, latent: Tensor, k_turned: Tensor) -> tuple[Tensor, Tensor]:
        """Keys [plain + turned, heads, tokens], values [value_length * heads, tokens]."""
        tokens = latent.ne[1]
        both = at.linear("attn_kv_b", latent)
        size, row = both.nb[0], both.nb[1]
        head = (self.plain + self.value_length) * size
        k = ops.view_3d(both, self.plain, self.heads, tokens, head, row, 0)
        v = ops.view_3d(both, self.value_length, self.heads, tokens, head, row, self.plain * size)
        shared = ops.repeat_4d(k_turned, self.turned, self.heads, tokens, 1)
        return ops.concat(k, shared, 0), ops.cont_2d(v, self.value_length * self.heads, tokens)
