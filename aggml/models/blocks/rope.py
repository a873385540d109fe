"""Rope, rotary positions of queries and keys; Temperature, by which late queries are multiplied.

Not here: attention (attention.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from aggml import DType, ops

if TYPE_CHECKING:
    from aggml import Tensor
    from aggml.models.blocks.scope import Scope

__all__ = ["Rope", "Temperature"]


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary positions (RoPE): the arguments of `aggml.ops.rope_ext`.

    Attributes:
        dims: how many elements of each head are rotated.
        mode: "normal" rotates pairs of neighbours, "neox" pairs that are half of ``dims`` apart.
        base: of the frequencies.
        scale: positions are multiplied by it.
        original_context: positions that the model was trained for before its context was extended.
        extrapolation: YaRN's share of extrapolation; 0: none.
        attention_factor: sines and cosines are multiplied by it.
        beta_fast, beta_slow: YaRN's bounds.
        factors: the name in the file of the tensor by whose elements frequencies are divided; None:
            they are not divided.
        long_factors: used instead if sequences may be longer than ``original_context``.
        stretched: whether the file must have these factors.
        factor_count: how many there are, the first of which are used; None: one for each pair.
        sections: how many pairs turn with the time, row and column of a position of a picture; of
            text all of these are the position. None: pictures are counted on as text is.
        interleaved: whether these pairs take turns; else they follow each other.
    """

    dims: int
    mode: Literal["normal", "neox"] = "normal"
    base: float = 10000.0
    scale: float = 1.0
    original_context: int = 0
    extrapolation: float = 0.0
    attention_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    factors: str | None = "rope_freqs.weight"
    long_factors: str | None = None
    stretched: bool = False
    factor_count: int | None = None
    sections: tuple[int, ...] | None = None
    interleaved: bool = False

    def build(self, at: Scope, x: Tensor, offset: int = 0) -> Tensor:
        """``x`` [head, heads, tokens], rotated by its tokens' positions.

        The first ``offset`` elements of each head are not rotated.
        """
        long = self.long_factors is not None and at.ctx > self.original_context
        factors = self.long_factors if long and self.long_factors else self.factors
        if at.shape.placed and self.sections is not None:
            return ops.rope_multi(
                x, at.positions, None if factors is None else at.weights.get(factors), self.dims,
                self.sections, "imrope" if self.interleaved else "mrope", self.original_context,
                self.base, self.scale, self.extrapolation, self.attention_factor, self.beta_fast,
                self.beta_slow,
            )  # fmt: skip
        turned = ops.rope_ext(
            x,
            at.positions,
            None if factors is None else at.weights.get(factors),
            self.dims,
            mode=self.mode,
            n_ctx_orig=self.original_context,
            freq_base=self.base,
            freq_scale=self.scale,
            ext_factor=self.extrapolation,
            attn_factor=self.attention_factor,
            beta_fast=self.beta_fast,
            beta_slow=self.beta_slow,
        )
        return ops.rope_set_offset(turned, offset) if offset else turned


@dataclass(frozen=True, slots=True)
class Temperature:
    """Makes attention sharper at late positions.

    Queries are multiplied by 1 + share * log(1 + floor((position + offset) / length)).

    Attributes:
        share: of the logarithm.
        length: positions after which the factor grows.
        offset: added to positions.
    """

    share: float
    length: int
    offset: int = 0

    def build(self, at: Scope, q: Tensor) -> Tensor:
        """``q`` [head, heads, tokens], multiplied."""
        name = f"temperature {self}"
        factor = at.passed.get(name)
        if factor is None:
            # The half makes sure that no quotient of whole numbers is rounded down by mistake.
            x = ops.cast(at.positions, DType.F32)
            x = ops.scale_bias(x, 1 / self.length, (self.offset + 0.5) / self.length)
            x = ops.log(ops.scale_bias(ops.floor(x), 1.0, 1.0))
            x = ops.scale_bias(x, self.share, 1.0)
            factor = at.passed[name] = ops.reshape_3d(x, 1, 1, x.ne[0])
        return ops.mul(q, factor)
