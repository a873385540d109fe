"""Experts: many feed-forward nets of which each token uses a few.

Here: the choice and its weights, the chosen nets, a shared one beside them. A step reads only the
experts that its tokens chose. Not here: one net for all (feed_forward.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from aggml import ops
from aggml.models.blocks.feed_forward import SPLIT, FeedForward

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aggml import Tensor
    from aggml.models.blocks.scope import Scope

__all__ = ["LEAST_SUM", "Experts"]

#: The least sum of weights that the weights are divided by: the smallest normal number of f16.
LEAST_SUM: Final = 6.103515625e-5


@dataclass(frozen=True, slots=True)
class Experts:
    """The weighted sum of what the chosen experts give.

    Attributes:
        count, used: experts in all; for each token.
        activation: of the gate; "swiglu_oai" is that of gpt-oss, bounded at 7.
        weights: "softmax" of all logits; "sigmoid" of each; "chosen" is the softmax of the chosen
            logits alone.
        sum_to_one: the weights of the chosen are divided by their sum.
        scale: of the weights.
        groups, groups_used: experts come in so many groups, of which each token uses so many: those
            with the greatest sum of their best.
        group_best: how many of a group's best are summed.
        shared: a net that every token uses, beside the experts.
        shared_gate: what the shared net gives is multiplied by a sigmoid (``ffn_gate_inp_shexp``).
    """

    count: int
    used: int
    activation: Literal["silu", "gelu", "swiglu_oai"] = "silu"
    weights: Literal["softmax", "sigmoid", "chosen"] = "softmax"
    sum_to_one: bool = False
    scale: float = 1.0
    groups: int = 1
    groups_used: int = 1
    group_best: int = 2
    shared: FeedForward | None = None
    shared_gate: bool = False

    def needs(self) -> Iterable[str]:
        """The router and the experts' matrices."""
        names = ["ffn_gate_inp", "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"]
        found = [f"{name}.weight" for name in names]
        if self.shared is not None:
            found += self.shared.needs()
        return [*found, "ffn_gate_inp_shexp.weight"] if self.shared_gate else found

    def build(self, at: Scope, x: Tensor) -> Tensor:
        """[width, tokens] -> [width, tokens]."""
        ids, weights = self._chosen(at, x)
        tokens = x.ne[1]
        x3 = ops.reshape_3d(x, x.ne[0], 1, tokens)
        up = self._by_expert(at, "ffn_up_exps", x3, ids)
        gate = self._by_expert(at, "ffn_gate_exps", x3, ids)
        if self.activation == "swiglu_oai":
            inner = ops.swiglu_oai(gate, up)
        else:
            inner = SPLIT[self.activation](gate, up)
        y = ops.mul(self._by_expert(at, "ffn_down_exps", inner, ids), weights)
        total = ops.view_2d(y, y.ne[0], tokens, y.nb[2], 0)
        for i in range(1, self.used):
            total = ops.add(total, ops.view_2d(y, y.ne[0], tokens, y.nb[2], i * y.nb[1]))
        if self.used == 1:
            total = ops.cont(total)
        if self.shared is None:
            return total
        beside = self.shared.build(at, x)
        if self.shared_gate:
            gate_weight = at.weight("ffn_gate_inp_shexp.weight")
            gate_weight = ops.reshape_2d(gate_weight, gate_weight.ne[0], 1)
            beside = ops.mul(beside, ops.sigmoid(ops.mul_mat(gate_weight, x)))
        return ops.add(total, beside)

    def _by_expert(self, at: Scope, name: str, x: Tensor, ids: Tensor) -> Tensor:
        """[columns, used, tokens] of the chosen experts."""
        y = ops.mul_mat_id(at.weight(f"{name}.weight"), x, ids)
        bias = at.find(f"{name}.bias")
        return y if bias is None else ops.add_id(y, bias, ids)

    def _chosen(self, at: Scope, x: Tensor) -> tuple[Tensor, Tensor]:
        """Ids i32 [used, tokens] and weights f32 [1, used, tokens]."""
        tokens = x.ne[1]
        logits = at.linear("ffn_gate_inp", x)
        if self.weights == "softmax":
            share = ops.soft_max(logits)
        else:
            share = ops.sigmoid(logits) if self.weights == "sigmoid" else logits
        # A bias decides who is chosen, and has no part in the weights (DeepSeek-V3).
        bias = at.find("exp_probs_b.bias")
        merit = share if bias is None else ops.add(share, bias)
        if self.groups > 1:
            merit = self._of_best_groups(merit)
        ids = ops.argsort_top_k(merit, self.used)
        each = ops.reshape_3d(share, 1, self.count, tokens)
        weights = ops.reshape_2d(ops.get_rows(each, ids), self.used, tokens)
        if self.weights == "chosen":
            weights = ops.soft_max(weights)
        if self.sum_to_one:
            whole = ops.clamp(ops.sum_rows(weights), LEAST_SUM, float("inf"))
            weights = ops.div(weights, whole)
        if self.scale != 1.0:
            weights = ops.scale(weights, self.scale)
        return ids, ops.reshape_3d(weights, 1, self.used, tokens)

    def _of_best_groups(self, merit: Tensor) -> Tensor:
        """[count, tokens]: -inf but for the experts of the best groups."""
        size, tokens = self.count // self.groups, merit.ne[1]
        grouped = ops.reshape_3d(merit, size, self.groups, tokens)
        n = self.group_best
        best = ops.argsort_top_k(grouped, n)
        each = ops.reshape_4d(grouped, 1, size, self.groups, tokens)
        score = ops.reshape_3d(ops.get_rows(each, best), n, self.groups, tokens)
        score = ops.reshape_2d(ops.sum_rows(score) if n > 1 else score, self.groups, tokens)
        groups = ops.argsort_top_k(score, self.groups_used)
        kept = ops.get_rows(grouped, groups)
        nothing = ops.fill(grouped, float("-inf"))
        return ops.reshape_2d(ops.set_rows(nothing, kept, groups), self.count, tokens)
