"""EncoderDecoder: models like T5, from a text and the beginning of another to logits.

Here: the description, the graph, running it. Each call computes both texts anew; no keys and values
are kept. Not here: the public object (encoder_decoder_model.py), the architectures.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from anyio.lowlevel import checkpoint

import aggml
from aggml import DType, Graph, ops
from aggml.models.forms import TensorForm, linear, norm
from aggml.models.lifetime import Lifetime, closed_error
from aggml.models.memory import Parts
from aggml.models.site import CLOSED, free_with, site_of, unplace
from aggml.stream.slot_pool import SlotPool

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from aggml import Backend, Scheduler, Tensor
    from aggml.models.encoder.description import Pooling
    from aggml.models.site import Site

    F32 = npt.NDArray[np.float32]

__all__ = ["FURTHEST", "EncoderDecoder", "EncoderDecoderDescription", "buckets_of", "build_graph"]

#: Tokens that are further apart than this are in the last bucket.
FURTHEST: Final = 128
GRAPHS: Final = 16  # how many graphs are kept, each for one pair of lengths


@dataclass(frozen=True, slots=True)
class EncoderDecoderDescription:
    """A model of an encoder and a decoder, which attends to the encoder's results.

    Attributes:
        architecture: its name in the file.
        width: elements of a token's vector between layers.
        context_length: tokens that the model was trained with; each text may have as many.
        heads: of attention.
        head: elements of a head.
        eps: of all norms, which are RMS norms.
        buckets: of distances between tokens.
        layers: of the encoder.
        decoder_layers: of the decoder; 0: there is no decoder.
        start: the token with which each decoded text begins.
        pooling: how the vectors of all tokens become one vector; "none": they do not.
    """

    architecture: str
    width: int
    context_length: int
    heads: int
    head: int
    eps: float
    buckets: int
    layers: int
    decoder_layers: int
    start: int
    pooling: Pooling

    def needs(self) -> list[str]:
        """Names of the tensors that the file must have."""
        return [name for name, form in self.forms({}).items() if not form.optional]

    def forms(self, tensors: Mapping[str, Tensor]) -> dict[str, TensorForm]:
        """The forms of all tensors that it reads, optional ones included.

        Args:
            tensors: of the file, by name.
        """
        found = {"token_embd.weight": TensorForm((self.width, "vocabulary"))}
        found |= norm("enc.output_norm", self.width, centred=False)
        for i in range(self.layers):
            found |= self._layer(tensors, f"enc.blk.{i}.", first=i == 0, cross=False)
        if self.decoder_layers:
            found |= norm("dec.output_norm", self.width, centred=False)
            found["output.weight"] = TensorForm((self.width, "vocabulary"), optional=True)
        for i in range(self.decoder_layers):
            found |= self._layer(tensors, f"dec.blk.{i}.", first=i == 0, cross=True)
        return found

    def _layer(
        self, tensors: Mapping[str, Tensor], at: str, *, first: bool, cross: bool
    ) -> dict[str, TensorForm]:
        n, rows, inner = self.width, self.heads * self.head, f"inner of {at}"
        found: dict[str, TensorForm] = {}
        for part in ("attn", "cross_attn") if cross else ("attn",):
            found |= norm(f"{at}{part}_norm", n, centred=False)
            for name in "qkv":
                found[f"{at}{part}_{name}.weight"] = TensorForm((n, rows))
            found[f"{at}{part}_o.weight"] = TensorForm((rows, n))
        bias = TensorForm((self.heads, self.buckets), optional=not first, uneven=True)
        found[f"{at}attn_rel_b.weight"] = bias
        if cross:  # some files have it; nobody reads it
            unread = TensorForm((self.heads, self.buckets), optional=True, uneven=True)
            found[f"{at}cross_attn_rel_b.weight"] = unread
        found |= norm(f"{at}ffn_norm", n, centred=False)
        parts: list[tuple[str, int | str, int | str]]
        parts = [("ffn_up", n, inner), ("ffn_down", inner, n)]
        if f"{at}ffn_gate.weight" in tensors:
            parts.append(("ffn_gate", n, inner))
        for name, columns, many in parts:
            form = linear(f"{at}{name}", columns, many)
            found[f"{at}{name}.weight"] = form[f"{at}{name}.weight"]
        return found


def buckets_of(rows: int, columns: int, buckets: int, *, both: bool) -> npt.NDArray[np.int32]:
    """The bucket of each pair of tokens, (rows, columns).

    Near distances have a bucket each, far ones share buckets by their logarithm.

    Args:
        rows: tokens that look.
        columns: tokens that are looked at.
        buckets: how many there are.
        both: whether tokens look ahead, too: then half of the buckets are for later tokens.
    """
    apart = np.arange(columns)[None] - np.arange(rows)[:, None]
    if both:
        buckets //= 2
        first = np.where(apart > 0, buckets, 0)
        apart = np.abs(apart)
    else:
        first, apart = np.zeros_like(apart), np.maximum(-apart, 0)
    exact = buckets // 2
    far = np.log(np.maximum(apart, exact).astype(np.float32) / np.float32(exact))
    far = exact + far / np.float32(math.log(FURTHEST / exact)) * np.float32(buckets - exact)
    found = np.where(apart < exact, apart, np.minimum(far.astype(np.int64), buckets - 1))
    whole: npt.NDArray[np.int32] = (first + found).astype(np.int32)
    return whole


@dataclass(frozen=True, slots=True, weakref_slot=True)
class _Program:
    """A graph for texts of certain lengths.

    Attributes:
        inputs: that are the same in each run.
        ids, decoder_ids: i32 token ids; None: there is no decoded text.
        result: [vocabulary, decoded tokens], or [width, tokens].
    """

    graph: Graph
    inputs: Mapping[Tensor, Any]
    ids: Tensor
    decoder_ids: Tensor | None
    result: Tensor


class EncoderDecoder:
    """A model on a backend; tasks of any event loop and thread may use it.

    Args:
        backend: where to compute; must stay open while the model is used.
        model: its description.
        weights: by their names in the file, where `load_weights` has put them.
    """

    def __init__(
        self,
        backend: Backend | Scheduler,
        model: EncoderDecoderDescription,
        weights: Mapping[str, Tensor],
    ) -> None:
        self.site: Site = site_of(backend)
        self.model = model
        self.weights: Mapping[str, Tensor] = weights
        self.vocabulary: int = weights["token_embd.weight"].ne[1]
        self._programs: OrderedDict[tuple[int, int], _Program] = OrderedDict()
        self._building = SlotPool(1)  # the cache of graphs has one user at a time
        self.lifetime: Lifetime = Lifetime(self._free)

    def close(self) -> None:
        """Free graphs and weights; later calls raise InvalidState."""
        self.lifetime.close()

    def parts(self) -> Parts:
        """What it has, for `Model.memory`."""
        return Parts(self.site, self.weights.values())

    def _free(self) -> None:
        for program in self._programs.values():
            self.site.forget(program.graph)
        self._programs.clear()
        unplace(self.weights.values())
        self.weights = {}
        self.site = CLOSED

    async def compute(self, ids: Sequence[int], decoder_ids: Sequence[int] = ()) -> F32:
        """The logits after each decoded token; without any, the vector of each token of the text.

        Cancellation: aborts the computation.
        """
        with self.lifetime.use("EncoderDecoder"):
            program = await self._program(len(ids), len(decoder_ids))
            inputs = {**program.inputs, program.ids: np.array(ids, np.int32)}
            if program.decoder_ids is not None:
                inputs[program.decoder_ids] = np.array(decoder_ids, np.int32)
            found = np.asarray(await self.site.run(program.graph, inputs, program.result))
            return found.reshape(-1, program.result.ne[0])

    async def _program(self, n: int, decoded: int) -> _Program:
        async with self._building.slot():
            program = self._programs.get((n, decoded))
            if program is not None:
                self._programs.move_to_end((n, decoded))
                return program
            if self.lifetime.closed:
                raise closed_error("EncoderDecoder")
            program = await _Builder(self.model, self.weights).build(n, decoded)
            await self.site.prepare(program.graph)
            free_with(program, program.graph)
            self._programs[n, decoded] = program
            if len(self._programs) > GRAPHS:
                self._programs.popitem(last=False)
            return program


async def build_graph(
    model: EncoderDecoderDescription, weights: Mapping[str, Tensor], n: int, decoded: int
) -> Graph:
    """The graph of a text of ``n`` tokens, and of ``decoded`` tokens of another one."""
    return (await _Builder(model, weights).build(n, decoded)).graph


@dataclass(frozen=True, slots=True)
class _Builder:
    """Builds the graph of two texts."""

    model: EncoderDecoderDescription
    weights: Mapping[str, Tensor]

    async def build(self, n: int, decoded: int) -> _Program:
        """The graph of a text of ``n`` tokens, and of ``decoded`` tokens of another one."""
        model = self.model
        inputs: dict[Tensor, Any] = {}
        ids = self._make_input("ids", n)
        buckets = self._make_input("buckets", n * n)
        inputs[buckets] = buckets_of(n, n, model.buckets, both=True).reshape(-1)
        x = ops.get_rows(self.weights["token_embd.weight"], ids)
        first = None
        for i in range(model.layers):
            at = f"enc.blk.{i}."
            first = self._bias(at, buckets, n, first)
            y = self._norm_named(f"{at}attn_norm", x)
            x = ops.add(self._attention(f"{at}attn", y, y, first, None), x)
            x = ops.add(self._net(at, x), x)
            await checkpoint()
        heard = self._norm_named("enc.output_norm", x)
        if not decoded:
            return _Program(Graph(heard.set_output()), inputs, ids, None, heard)
        tokens = self._make_input("decoder_ids", decoded)
        near = self._make_input("decoder_buckets", decoded * decoded)
        inputs[near] = buckets_of(decoded, decoded, model.buckets, both=False).reshape(-1)
        mask = aggml.new_tensor(DType.F32, ne=(decoded, decoded), name="mask").set_input()
        inputs[mask] = np.triu(np.full((decoded, decoded), -np.inf, np.float32), 1)
        x = ops.get_rows(self.weights["token_embd.weight"], tokens)
        first = None
        for i in range(model.decoder_layers):
            at = f"dec.blk.{i}."
            first = self._bias(at, near, decoded, first)
            y = self._norm_named(f"{at}attn_norm", x)
            x = ops.add(self._attention(f"{at}attn", y, y, first, mask), x)
            y = self._norm_named(f"{at}cross_attn_norm", x)
            x = ops.add(self._attention(f"{at}cross_attn", y, heard, None, None), x)
            x = ops.add(self._net(at, x), x)
            await checkpoint()
        x = self._norm_named("dec.output_norm", x)
        output = self.weights.get("output.weight")
        logits = ops.mul_mat(self.weights["token_embd.weight"] if output is None else output, x)
        return _Program(Graph(logits.set_output()), inputs, ids, tokens, logits)

    def _make_input(self, name: str, n: int) -> Tensor:
        return aggml.new_tensor(DType.I32, ne=n, name=name).set_input()

    def _norm_named(self, name: str, x: Tensor) -> Tensor:
        return ops.mul(ops.rms_norm(x, self.model.eps), self.weights[f"{name}.weight"])

    def _bias(self, at: str, buckets: Tensor, n: int, before: Tensor | None) -> Tensor:
        """[tokens, tokens, heads]: of this layer if it has one, else that of the first layer."""
        table = self.weights.get(f"{at}attn_rel_b.weight")
        if table is None:
            assert before is not None
            return before
        each = ops.reshape_3d(ops.get_rows(table, buckets), self.model.heads, n, n)
        return ops.cont(ops.permute(each, 2, 0, 1, 3))

    def _attention(
        self, at: str, x: Tensor, seen: Tensor, bias: Tensor | None, mask: Tensor | None
    ) -> Tensor:
        """Attention of the tokens ``x`` to the tokens ``seen``; products are not scaled."""
        model, w = self.model, self.weights

        def heads(name: str, of: Tensor) -> Tensor:
            y = ops.mul_mat(w[f"{at}_{name}.weight"], of)
            return ops.permute(ops.reshape_3d(y, model.head, model.heads, of.ne[1]), 0, 2, 1, 3)

        q, k, v = heads("q", x), heads("k", seen), heads("v", seen)
        scores = ops.mul_mat(k, q)
        if bias is not None:
            scores = ops.add(scores, bias)
        scores = ops.soft_max_ext(scores, mask, 1.0, 0.0)
        y = ops.mul_mat(ops.cont(ops.transpose(v)), scores)
        y = ops.cont(ops.permute(y, 0, 2, 1, 3))
        y = ops.reshape_2d(y, model.head * model.heads, x.ne[1])
        return ops.mul_mat(w[f"{at}_o.weight"], y)

    def _net(self, at: str, x: Tensor) -> Tensor:
        w = self.weights
        x = self._norm_named(f"{at}ffn_norm", x)
        up = ops.mul_mat(w[f"{at}ffn_up.weight"], x)
        gate = w.get(f"{at}ffn_gate.weight")
        inner = ops.relu(up) if gate is None else ops.geglu_split(ops.mul_mat(gate, x), up)
        return ops.mul_mat(w[f"{at}ffn_down.weight"], inner)
