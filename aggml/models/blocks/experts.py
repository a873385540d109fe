"""Experts: many feed-forward nets of which each token uses a few.

Here: choosing experts and weighing them, the chosen nets, a net shared by all tokens. A step reads
the weights of the chosen experts only. Not here: a single net for all tokens (feed_forward.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from aggml import ops
from aggml.models.blocks.feed_forward import ALONE, SPLIT, FeedForward, bounded_swiglu
from aggml.models.forms import FormContext, TensorForm, linear

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aggml import Tensor
    from aggml.models.blocks.scope import Scope

__all__ = ["LEAST_SUM", "Experts"]

#: Weights are divided by their sum, but by no less than this, the smallest normal number of f16.
LEAST_SUM: Final = 6.103515625e-5
#: Names of what is added to the shares of experts before they are compared.
MERITS: Final = ("exp_probs_b.bias", "exp_probs_b")
#: SparseMixer counts logits that are at most so much below the best one: twice 0.01.
NEAR: Final = 0.02


@dataclass(frozen=True, slots=True)
class Experts:
    """The weighted sum of the outputs of the chosen experts.

    Attributes:
        count, used: how many experts there are, and how many each token uses.
        activation: of the gate; "swiglu_oai" is gpt-oss's, bounded at 7; "relu_sqr" is for experts
            without a gate.
        weights: how the router's logits become weights: the "softmax" of all logits; the "sigmoid"
            of each; "chosen", the softmax of the chosen experts' logits; "sparse mixer", of each of
            two experts its share among those of nearly its logit, of which the better one is none.
        sum_to_one: whether the weights of the chosen experts are divided by their sum.
        scale: of the weights.
        weigh_input: whether the input of an expert is multiplied by its weight, not the output;
            then experts are chosen by the router's logits, which the weights may not tell apart.
        groups, groups_used: the experts come in ``groups`` groups. Each token uses experts of
            ``groups_used`` groups: those whose best experts have the greatest sum.
        group_best: how many of the best experts of a group are summed for that.
        shared: a net that every token uses, beside the experts.
        shared_gate: whether the shared net's output is multiplied by the sigmoid of a gate
            (``ffn_gate_inp_shexp``).
        gated: whether experts have a gate. The file has gate and up of all experts in two tensors
            or in one, ``ffn_gate_up_exps``.
        latent: experts work on fewer elements, to which ``ffn_latent_down`` maps a token and from
            which ``ffn_latent_up`` maps their sum, if the file has these.
        limit: as that of `FeedForward`.
        bounded_before: whether ``limit`` bounds the gate before its activation is taken.
        averaged: whether the sum of the experts and of the shared net is halved.
    """

    count: int
    used: int
    activation: Literal["silu", "gelu", "gelu_erf", "relu", "swiglu_oai", "relu_sqr"] = "silu"
    weights: Literal["softmax", "sigmoid", "chosen", "sparse mixer"] = "softmax"
    sum_to_one: bool = False
    scale: float = 1.0
    weigh_input: bool = False
    groups: int = 1
    groups_used: int = 1
    group_best: int = 2
    shared: FeedForward | None = None
    shared_gate: bool = False
    gated: bool = True
    latent: bool = False
    limit: float = 0.0
    bounded_before: bool = False
    averaged: bool = False

    def needs(self) -> Iterable[str]:
        """The router and the experts' matrices."""
        names = ["ffn_gate_inp", "ffn_down_exps"]  # the others have one of two names
        found = [f"{name}.weight" for name in names]
        if self.shared is not None:
            found += self.shared.needs()
        return [*found, "ffn_gate_inp_shexp.weight"] if self.shared_gate else found

    def forms(self, of: FormContext) -> dict[str, TensorForm]:
        """The router, the experts' matrices and biases, the shared net."""
        width, n, inner = of.width, self.count, "inner of experts"
        found = linear("ffn_gate_inp", width, n)
        for name in MERITS:
            found[name] = TensorForm((n,), optional=True, vector=True)
        entry: int | str = width  # elements of a vector that enters an expert
        if self.latent and of.find("ffn_latent_down.weight") is not None:
            entry = "latent of experts"
            found["ffn_latent_down.weight"] = TensorForm((width, entry))
            found["ffn_latent_up.weight"] = TensorForm((entry, width))
        down = of.find("ffn_down_exps.weight")
        sizes: dict[str, tuple[int | str, int | str]] = {"down": (inner, entry)}
        if self.gated and of.find("ffn_gate_up_exps.weight") is not None:
            sizes["gate_up"] = (entry, f"2 {inner}" if down is None else 2 * down.ne[0])
        else:
            sizes |= {"gate": (entry, inner)} if self.gated else {}
            sizes["up"] = (entry, inner)
        for part, (columns, rows) in sizes.items():
            found[f"ffn_{part}_exps.weight"] = TensorForm((columns, rows, n))
            found[f"ffn_{part}_exps.bias"] = TensorForm((rows, n), optional=True, vector=True)
        found["ffn_exps.bias"] = TensorForm((width,), optional=True, vector=True)
        found["ffn_down_exps.scale"] = TensorForm((n,), optional=True, vector=True)
        if self.shared is not None:
            found |= self.shared.forms(of)
        if self.shared_gate:
            found["ffn_gate_inp_shexp.weight"] = TensorForm((width,), flat=True)
        return found

    def build(self, at: Scope, x: Tensor, routed: Tensor | None = None) -> Tensor:
        """[width, tokens] -> [width, tokens]; experts are chosen by ``routed``, else by ``x``."""
        ids, weights = self._choose(at, x if routed is None else routed)
        tokens = x.ne[1]
        is_latent = self.latent and at.find("ffn_latent_down.weight") is not None
        into = ops.mul_mat(at.weight("ffn_latent_down.weight"), x) if is_latent else x
        into = ops.reshape_3d(into, into.ne[0], 1, tokens)
        if self.weigh_input:
            into = ops.mul(ops.repeat_4d(into, into.ne[0], self.used, tokens, 1), weights)
        inner = self._inner(at, into, ids)
        y = self._by_expert(at, "ffn_down_exps", inner, ids)
        factors = None if self.weigh_input else weights
        scales = at.find("ffn_down_exps.scale")
        if scales is not None:  # one of each expert
            flat = ops.reshape_1d(ops.cont(ids), self.used * tokens)
            each = ops.get_rows(ops.reshape_2d(scales, 1, self.count), flat)
            each = ops.reshape_3d(each, 1, self.used, tokens)
            factors = each if factors is None else ops.mul(factors, each)
        y = y if factors is None else ops.mul(y, factors)
        total = ops.view_2d(y, y.ne[0], tokens, y.nb[2], 0)
        for i in range(1, self.used):
            total = ops.add(total, ops.view_2d(y, y.ne[0], tokens, y.nb[2], i * y.nb[1]))
        if self.used == 1:
            total = ops.cont(total)
        bias = at.find("ffn_exps.bias")
        if bias is not None:  # of the sum
            total = ops.add(total, bias)
        if is_latent:
            total = ops.mul_mat(at.weight("ffn_latent_up.weight"), total)
        if self.shared is None:
            return total
        beside = self.shared.build(at, x)
        if self.shared_gate:
            gate_weight = at.weight("ffn_gate_inp_shexp.weight")
            gate_weight = ops.reshape_2d(gate_weight, gate_weight.ne[0], 1)
            beside = ops.mul(beside, ops.sigmoid(ops.mul_mat(gate_weight, x)))
        whole = ops.add(total, beside)
        return ops.scale(whole, 0.5) if self.averaged else whole

    def _inner(self, at: Scope, x: Tensor, ids: Tensor) -> Tensor:
        """What the chosen experts compute between their matrices: [inner, used, tokens]."""
        if not self.gated:
            assert self.activation != "swiglu_oai"
            return ALONE[self.activation](self._by_expert(at, "ffn_up_exps", x, ids))
        if at.find("ffn_gate_up_exps.weight") is not None:
            both = self._by_expert(at, "ffn_gate_up_exps", x, ids)
            n, row = both.ne[0] // 2, both.nb[1]
            gate, up = (
                ops.view_3d(both, n, *both.ne[1:3], row, both.nb[2], i * n * both.nb[0])
                for i in (0, 1)
            )
        else:
            up = self._by_expert(at, "ffn_up_exps", x, ids)
            gate = self._by_expert(at, "ffn_gate_exps", x, ids)
        if self.activation == "swiglu_oai":
            return ops.swiglu_oai(gate, up)
        assert self.activation != "relu_sqr"
        if self.limit:
            return bounded_swiglu(gate, up, self.limit, before=self.bounded_before)
        return SPLIT[self.activation](gate, up)

    def _by_expert(self, at: Scope, name: str, x: Tensor, ids: Tensor) -> Tensor:
        """A linear map of the chosen experts: [rows of the matrix, used, tokens]."""
        y = ops.mul_mat_id(at.weight(f"{name}.weight"), x, ids)
        bias = at.find(f"{name}.bias")
        return y if bias is None else ops.add_id(y, bias, ids)

    def _choose(self, at: Scope, x: Tensor) -> tuple[Tensor, Tensor]:
        """The chosen experts, i32 [used, tokens], and their weights, f32 [1, used, tokens]."""
        tokens = x.ne[1]
        logits = at.linear("ffn_gate_inp", x)
        if self.weights == "sparse mixer":
            return self._mix_sparsely(logits)
        if self.weights == "softmax":
            share = ops.soft_max(logits)
        else:
            share = ops.sigmoid(logits) if self.weights == "sigmoid" else logits
        # The bias takes part in the choice of experts, not in their weights (DeepSeek-V3).
        bias = at.find(MERITS[0])
        bias = at.find(MERITS[1]) if bias is None else bias
        merit = logits if self.weigh_input else share
        merit = merit if bias is None else ops.add(merit, bias)
        if self.groups > 1:
            merit = self._of_best_groups(merit)
        ids = ops.argsort_top_k(merit, self.used)
        each = ops.reshape_3d(share, 1, self.count, tokens)
        weights = ops.reshape_2d(ops.get_rows(each, ids), self.used, tokens)
        if self.weights == "chosen":
            weights = ops.soft_max(weights)
        if self.sum_to_one:
            whole = ops.clamp_inplace(ops.sum_rows(weights), LEAST_SUM, float("inf"))
            weights = ops.div(weights, whole)
        if self.scale != 1.0:
            weights = ops.scale(weights, self.scale)
        return ids, ops.reshape_3d(weights, 1, self.used, tokens)

    def _mix_sparsely(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """As `_choose`, of the two best experts (SparseMixer, Liu et al. 2024).

        The weight of an expert is its share in the softmax of those logits that are at most `NEAR`
        below its own, as a share of the larger of both; for the second one, without the best.
        """
        tokens = logits.ne[1]
        ids = ops.argsort_top_k(logits, self.used)
        best = ops.get_rows(ops.reshape_3d(logits, 1, self.count, tokens), ids)
        weights = None
        for i in range(self.used):
            own = ops.cont(ops.view_2d(best, 1, tokens, best.nb[2], i * best.nb[1]))
            above = ops.sub(logits, own)
            larger = ops.add(ops.relu(ops.sub(ops.abs(logits), own)), own)
            far = ops.step(ops.scale_bias(ops.div(above, larger), -1.0, -NEAR))
            left_out = ops.add(far, ops.step(above))  # of a better expert, 1 at most in the sum
            counted = ops.mul(ops.exp(above), ops.scale_bias(left_out, -1.0, 1.0))
            share = ops.div(ops.fill(own, 1.0), ops.sum_rows(counted))
            weights = share if weights is None else ops.concat(weights, share, 0)
        assert weights is not None
        return ids, ops.reshape_3d(weights, 1, self.used, tokens)

    def _of_best_groups(self, merit: Tensor) -> Tensor:
        """``merit`` [count, tokens], with -inf for experts outside the best groups."""
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
