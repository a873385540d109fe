"""Blocks of gemma3n: several streams of each token (AltUp), and a thin map beside attention.

A layer computes one stream. From it and a router's weights it corrects the others, which it had
predicted before. Not here: embeddings of layers (../decoder/step.py), the net (feed_forward.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from aggml import ops
from aggml.models.forms import FormContext, TensorForm, linear, norm

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from aggml import Tensor
    from aggml.models.blocks.attention import Attention
    from aggml.models.blocks.scope import Scope
    from aggml.models.kv.room import Cached

__all__ = ["AltUp", "BesideLaurel", "StreamCorrection", "StreamPrediction"]

LEAST: Final = 1e-5  # of the mean square by which a stream is divided
PREDICTED: Final = "predicted streams"


@dataclass(frozen=True, slots=True)
class AltUp:
    """The streams of a model: alternating updates.

    Between layers a token has [width * count] elements, those of one stream after the other.

    Attributes:
        count: of the streams.
        active: the number of the one that layers compute.
    """

    count: int
    active: int = 0

    def needs(self) -> Iterable[str]:
        """The matrices of all further streams."""
        return ("altup_proj.weight", "altup_unembd_proj.weight")

    def forms(self, width: int) -> Mapping[str, TensorForm]:
        """The matrices of all further streams."""
        return dict.fromkeys(self.needs(), TensorForm((width, width, self.count - 1)))

    def begin(self, weights: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """[width, n] -> [width * count, n]: embeddings as the first stream, and maps of them."""
        width, n, more = x.ne[0], x.ne[1], self.count - 1
        rows = ops.reshape_2d(weights["altup_proj.weight"], width, width * more)
        y = ops.reshape_3d(ops.mul_mat(rows, x), width, more, n)
        x = ops.reshape_3d(x, width, 1, n)
        return ops.reshape_2d(ops.concat(x, _as_long_as(y, x), 1), width * self.count, n)

    def end(self, weights: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """[width * count, n] -> [width, n]: the mean of the first stream and of maps of others."""
        width, n, size = x.ne[0] // self.count, x.ne[1], x.nb[0]
        first = ops.cont(ops.view_2d(x, width, n, x.nb[1], 0))
        others = ops.view_3d(
            x, width, n, self.count - 1, x.nb[1], width * size, width * size
        )  # of each stream all tokens
        y = ops.mul_mat(weights["altup_unembd_proj.weight"], ops.cont(others))
        y = _as_long_as(y, first)
        found = first
        for i in range(self.count - 1):
            found = ops.add(found, ops.view_2d(y, width, n, y.nb[1], i * y.nb[2]))
        return ops.scale(found, 1 / self.count)

    def of_active(self, x: Tensor) -> Tensor:
        """[width * count, n] -> [width, n]."""
        width = x.ne[0] // self.count
        return ops.cont(ops.view_2d(x, width, x.ne[1], x.nb[1], self.active * width * x.nb[0]))


def _as_long_as(y: Tensor, x: Tensor) -> Tensor:
    """``y`` with the root mean squares of the rows of ``x``."""
    own = ops.sqrt(ops.clamp(ops.mean(ops.sqr(y)), LEAST, float("inf")))
    return ops.div(ops.mul(y, ops.sqrt(ops.mean(ops.sqr(x)))), own)


def _route(at: Scope, x: Tensor) -> Tensor:
    """[width, n] -> [count, n]: weights of streams, from -1 to 1."""
    x = ops.scale(at.norm("altup_router_norm", x), 1 / x.ne[0])
    return ops.tanh(at.linear("altup_router", x))


@dataclass(frozen=True, slots=True)
class StreamPrediction:
    """The beginning of a layer: predicts every stream, and gives it the active one."""

    streams: AltUp

    def needs(self) -> Iterable[str]:
        """The router and the matrix of weights."""
        names = ("altup_router", "altup_router_norm", "altup_predict_coef")
        return [f"{name}.weight" for name in names]

    def forms(self, of: FormContext) -> dict[str, TensorForm]:
        """The router and the matrix of weights."""
        count = self.streams.count
        found = linear("altup_router", of.width, count)
        found |= norm("altup_router_norm", of.width, centred=of.centred)
        return found | linear("altup_predict_coef", count, count * count)

    def build(self, at: Scope, x: Tensor) -> Tensor:
        """[width * count, n] -> [width, n]."""
        count, n = self.streams.count, x.ne[1]
        weights = at.linear("altup_predict_coef", _route(at, self.streams.of_active(x)))
        weights = ops.reshape_3d(weights, count, count, n)
        each = ops.reshape_3d(x, x.ne[0] // count, count, n)
        y = ops.mul_mat(ops.cont(ops.permute(each, 1, 0, 2, 3)), weights)
        y = at.passed[PREDICTED] = ops.reshape_2d(ops.add(y, each), x.ne[0], n)
        return self.streams.of_active(y)


@dataclass(frozen=True, slots=True)
class StreamCorrection:
    """The end of a layer: corrects the predicted streams, and adds the token's own embedding.

    Attributes:
        streams: of the model.
        layer: its number.
        size: elements of the embedding that each token has for this layer.
    """

    streams: AltUp
    layer: int
    size: int

    def needs(self) -> Iterable[str]:
        """The matrices, the norm and the scale."""
        names = ("altup_correct_coef", "altup_correct_scale", "inp_gate", "proj", "post_norm")
        return [f"{name}.weight" for name in names]

    def forms(self, of: FormContext) -> dict[str, TensorForm]:
        """The matrices, the norm and the scale."""
        found = linear("altup_correct_coef", self.streams.count, self.streams.count)
        found["altup_correct_scale.weight"] = TensorForm((of.width,), vector=True)
        found |= linear("inp_gate", of.width, self.size) | linear("proj", self.size, of.width)
        return found | norm("post_norm", of.width, centred=of.centred)

    def build(self, at: Scope, x: Tensor, last: Tensor | None) -> Tensor:
        """[width, n] -> [width * count, n]; ``last`` as for `aggml.models.description.Ending`."""
        width, n, count = x.ne[0], x.ne[1], self.streams.count
        predicted = at.passed.pop(PREDICTED)
        every = at.passed["embeddings of layers"]
        own = ops.view_2d(every, self.size, every.ne[1], every.nb[1], self.layer * every.nb[2])
        if last is not None:
            predicted, own = ops.get_rows(predicted, last), ops.get_rows(own, last)
        new = ops.reshape_3d(ops.sub(x, self.streams.of_active(predicted)), width, 1, n)
        weights = ops.scale_bias(at.linear("altup_correct_coef", _route(at, x)), 1.0, 1.0)
        y = ops.mul(ops.repeat_4d(new, width, count, n, 1), ops.reshape_3d(weights, 1, count, n))
        y = ops.reshape_2d(ops.add(y, ops.reshape_3d(predicted, width, count, n)), width * count, n)
        z = ops.mul(self.streams.of_active(y), at.weight("altup_correct_scale.weight"))
        z = at.linear("proj", ops.mul(ops.gelu(at.linear("inp_gate", z)), own))
        z = ops.reshape_3d(at.norm("post_norm", z), width, 1, n)
        row = width * y.nb[0]
        first = ops.cont(ops.view_3d(y, width, 1, n, row, y.nb[1], 0))
        others = ops.cont(ops.view_3d(y, width, count - 1, n, row, y.nb[1], row))
        return ops.reshape_2d(ops.concat(first, ops.add(others, z), 1), width * count, n)


@dataclass(frozen=True, slots=True)
class BesideLaurel:
    """Attention with a norm after it, beside a learned augmented residual (Laurel).

    The latter is the input of attention itself, and a norm of a map of it of low rank.

    Attributes:
        attention: the mixer.
    """

    attention: Attention

    def needs(self) -> Iterable[str]:
        """The tensors of attention, the thin matrices and both norms."""
        names = ("laurel_l", "laurel_r", "laurel_post_norm", "post_attention_norm")
        return [*self.attention.needs(), *(f"{name}.weight" for name in names)]

    def forms(self, of: FormContext) -> Mapping[str, TensorForm]:
        """The tensors of attention, the thin matrices and both norms."""
        found = {**self.attention.forms(of)}
        found |= linear("laurel_l", of.width, "laurel") | linear("laurel_r", "laurel", of.width)
        for name in ("laurel_post_norm", "post_attention_norm"):
            found |= norm(name, of.width, centred=of.centred)
        return found

    def caches(self) -> Mapping[str, Cached]:
        """Those of attention."""
        return self.attention.caches()

    def build(self, at: Scope, x: Tensor) -> Tensor:
        """[width, tokens] -> [any, tokens]: the heads' results, and the input behind them."""
        return ops.concat(self.attention.build(at, x), x, 0)

    def output(self, at: Scope, y: Tensor) -> Tensor:
        """[any, n] -> [width, n]."""
        inner = self.attention.heads * self.attention.value_length
        heads = ops.cont(ops.view_2d(y, inner, y.ne[1], y.nb[1], 0))
        rest = ops.view_2d(y, y.ne[0] - inner, y.ne[1], y.nb[1], inner * y.nb[0])
        x = ops.cont(rest)
        thin = at.norm("laurel_post_norm", at.linear("laurel_r", at.linear("laurel_l", x)))
        own = at.norm("post_attention_norm", self.attention.output(at, heads))
        return ops.add(own, ops.add(x, thin))
