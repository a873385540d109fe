"""The graph of one step over the caches, built from a model's description.

Not here: the inputs as arrays (batch.py), the caches and the running of steps (decoder.py), the
blocks of a layer (../blocks/).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
from anyio.lowlevel import checkpoint

import aggml
from aggml import DType, Graph, Tensor, ops
from aggml.models.blocks.scope import Places, Scope, Turns, norm_rows
from aggml.models.decoder.batch import concatenate
from aggml.models.decoder.drawing import Drawing
from aggml.models.description import mixer_in

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping

    from aggml.models.adapters.stacks import GraphAdapters
    from aggml.models.blocks.experts import Experts
    from aggml.models.blocks.scope import Adapting
    from aggml.models.decoder.batch import Batch, Group, Shape
    from aggml.models.description import Description, Layer
    from aggml.models.kv.caches import Caches
    from aggml.models.kv.room import Room
    from aggml.models.kv.state_rows import StateRows

__all__ = ["Builder", "Step"]


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Step:
    """A graph and its inputs. All inputs but the masks and given embeddings are i32.

    The model may be a stage, a range of layers of a larger one. If the stage does not begin with
    the embeddings, ``tokens`` are values [width, tokens] f32, and the caller of `inputs` replaces
    them. If it does not end with logits, ``logits`` are the values for the next stage, [width,
    tokens] f32.
    """

    graph: Graph
    ctx: int
    state_rows: StateRows
    tokens: Tensor
    positions: Tensor
    told: bool  # whether any layer uses the positions
    places: Mapping[Room, Places]
    turns: Turns | None  # None: the model has no states
    last: Tensor | None  # the tokens that go on after the last mixer; None: all
    logits: (
        Tensor | None
    )  # [vocabulary, ends] f32; hidden: [width, ends]; of the best: [1, best, ends]; None: drawn
    best: Tensor | None  # [best, ends] i32; chained: [ends], the `tokens` of the next step
    result: Tensor | list[Tensor]  # the only one of `results`, or all of them
    every: Tensor | None = None  # [vocabulary, ends] f32, beside the best
    drawing: Drawing | None = None  # inputs of the draws; then `best` is [ends], the drawn tokens
    adapters: Tensor | None = None  # [most, tokens]: the numbers of each token's adapters
    adapters_last: Tensor | None = None  # [most, ends]: those of the tokens `last`
    scales: Tensor | None = None  # [1, most, tokens] f32: of these adapters
    scales_last: Tensor | None = None  # [1, most, ends] f32: those of the tokens `last`
    own: Tensor | None = None  # [1, tokens] f32: 0 where the embedding is given, else 1
    given: Tensor | None = None  # [width, tokens] f32: the given embeddings or hidden states
    hidden: Tensor | None = None  # [width, tokens] f32, beside the others

    @property
    def results(self) -> list[Tensor]:
        """The tensors that the step computes.

        Of: the best tokens, their logits, all logits, hidden states.
        """
        found = (self.best, self.logits, self.every, self.hidden)
        return [x for x in found if x is not None]

    def inputs(self, batch: Batch) -> dict[Tensor, Any]:
        """The input tensors of the graph, each with its array for a batch."""
        groups = batch.groups
        inputs: dict[Tensor, Any] = {
            self.tokens: concatenate([group.ids for group in groups]),
        }
        if self.told:
            inputs[self.positions] = batch.rotary
        for room, at in self.places.items():
            inputs[at.rows] = concatenate([group.rows_in(at.length, self.ctx) for group in groups])
            for mask, group in zip(at.masks, groups, strict=True):
                inputs[mask] = group.mask_in(room, at.length, self.ctx)
            if at.staged is not None:
                inputs[at.staged] = batch.staged
        if self.turns is not None:
            turns = self.turns
            each = zip(turns.reads, turns.writes, turns.latest, groups, strict=True)
            for read, write, latest, group in each:
                inputs[read], rows = group.states(self.state_rows)
                if write is not None:
                    inputs[write] = rows
                if latest is not None and latest is not write:
                    inputs[latest] = np.ascontiguousarray(
                        rows.reshape(group.history, -1)[::-1]
                    ).reshape(-1)
        if self.last is not None:
            inputs[self.last] = batch.last
        if self.adapters is not None or self.adapters_last is not None:
            adapters = batch.adapters
            if self.adapters is not None:
                inputs[self.adapters] = adapters.numbers
            if self.adapters_last is not None:
                inputs[self.adapters_last] = adapters.numbers[batch.last]
            if self.scales is not None and adapters.scales is not None:
                inputs[self.scales] = adapters.scales[:, :, None]
            if self.scales_last is not None and adapters.scales is not None:
                inputs[self.scales_last] = adapters.scales[batch.last][:, :, None]
        if self.given is not None:
            given = batch.given_embeddings(self.given.ne[0])
            inputs[self.given] = given.values
            if self.own is not None:
                inputs[self.own] = given.own
        return inputs

    def inputs_in_turn(self, group: Group) -> list[dict[Tensor, Any]]:
        """The inputs of steps of one token of each sequence: step i has the i-th tokens.

        They are those of `inputs`, without tokens. A sequence's first token must not be at position
        0 unless it is the only one.
        """
        n = group.positions.shape[1]
        found: dict[Tensor, Iterable[Any]] = {}
        if self.told:
            found[self.positions] = np.ascontiguousarray(group.positions.T)
        for room, at in self.places.items():
            found[at.rows] = np.ascontiguousarray(group.rows_in(at.length, self.ctx).T)
            found[at.masks[0]] = group.masks_in_turn(room, at.length, self.ctx)
        if self.turns is not None:
            read, written = group.states(self.state_rows)
            found[self.turns.reads[0]] = [read] * n
            for write in (self.turns.writes[0], self.turns.latest[0]):
                if write is not None:
                    found[write] = [written] * n
        each = zip(*found.values(), strict=True)
        return [dict(zip(found, arrays, strict=True)) for arrays in each]


class _AdapterInputs(NamedTuple):
    """Inputs for the adapters of tokens: i32 [most, tokens], and f32 [1, most, tokens]."""

    numbers: Tensor | None = None
    scales: Tensor | None = None

    @classmethod
    def of(cls, shape: Shape, tokens: int, name: str) -> _AdapterInputs:
        """Those of a step."""
        most = shape.adapted
        if not most:
            return cls()
        numbers = aggml.new_tensor(DType.I32, ne=(most, tokens), name=name).set_input()
        if not shape.scaled:
            return cls(numbers)
        ne = 1, most, tokens
        return cls(numbers, aggml.new_tensor(DType.F32, ne=ne, name=f"{name}_scales").set_input())

    def select(self, leafs: Container[Tensor]) -> _AdapterInputs:
        """Select those that a graph has."""
        return _AdapterInputs(*(None if x is None or x not in leafs else x for x in self))


class Builder:
    """Builds the graphs of a model's steps.

    Args:
        model: its description.
        weights: by their names in the file.
        caches: the caches and states of all layers.
        ctx: positions of a sequence.
        adapters: adapters and control vectors; None: there are none.
    """

    def __init__(
        self,
        model: Description,
        weights: Mapping[str, Tensor],
        caches: Caches,
        ctx: int,
        adapters: GraphAdapters | None = None,
    ) -> None:
        self._model = model
        self._weights = weights
        self._caches = caches
        self._ctx = ctx
        self._adapters = adapters

    @property
    def carried(self) -> int:
        """Elements of the hidden state that a chained step hands on with each token."""
        return self._model.width if self._model.predicts else 0

    async def build(
        self, shape: Shape, chosen: Tensor | None = None, carried: Tensor | None = None
    ) -> Step:
        """The graph of a step.

        Args:
            shape: of the batch.
            chosen: for a chained step, the tensor that holds the tokens: the step reads its tokens
                there and writes the next ones to it.
            carried: the same for hidden states, if the model `carried` any.
        """
        model, weights = self._model, self._weights
        tokens = self._build_input(shape) if chosen is None else chosen
        positions = _vector_input("positions", shape.tokens * (4 if shape.placed else 1))
        last = _vector_input("last", shape.ends) if shape.ends and model.ends else None
        places = self._places(shape)
        turns = _turns(shape) if self._caches.states else Turns((), (), ())
        kept: list[Tensor] = []
        early: list[Tensor] = []
        passed: dict[str, Tensor] = {}
        chosen_adapters = _AdapterInputs.of(shape, shape.tokens, "adapters")
        chosen_last = chosen_adapters
        if last is not None:
            chosen_last = _AdapterInputs.of(shape, shape.ends, "adapters_last")
        adapting, adapting_last = self._choose_adapters(shape, chosen_adapters, chosen_last)
        directions = {} if self._adapters is None else self._adapters.directions
        own, given = (None, carried) if carried is not None else self._embedding_inputs(shape)
        x = self._embed(tokens, positions, own, given) if model.embeds else tokens
        if model.layer_embedding:
            passed["embeddings of layers"] = self._of_layers(tokens, x)
        if model.streams is not None:
            x = model.streams.begin(weights, x)
        for i, layer in enumerate(model.layers):
            at = Scope(
                weights,
                f"blk.{model.first + i}.",
                model.eps,
                self._caches.layers[i],
                positions,
                places,
                shape,
                self._ctx,
                turns,
                model.centred,
                kept,
                early,
                passed,
                adapting,
                adapting_last,
            )
            parts = layer.parts()
            for part in parts:
                ends = i + 1 == len(model.layers) and part is parts[-1]
                x = _layer(part, at, x, last if ends and not shape.tapped else None)
            if given is not None and i < model.deepstack:  # what pictures add here
                n, first = model.width, (i + 1) * model.width * given.nb[0]
                x = ops.add(x, ops.cont(ops.view_2d(given, n, shape.tokens, given.nb[1], first)))
            direction = directions.get(model.first + i)
            if direction is not None:
                x = ops.add(x, direction)
            await checkpoint()
        drawing = Drawing.of(shape)
        hidden = None
        if model.streams is not None:
            x = model.streams.end(weights, x)
        if model.ends:
            x = norm_rows(weights, model.last_norm, x, model.eps, centred=model.centred)
            if carried is not None:
                kept.append(ops.cpy(x, carried))
            if shape.tapped:
                hidden = x.set_output()
                x = _only(last, x)
        logits, best, every = self._results(x, shape, chosen, drawing, adapting_last)
        results = [y for y in (best, logits, every, hidden) if y is not None]
        graph = Graph(*early, *results, *kept)
        leafs = set(graph.leafs)
        used = chosen_adapters.select(leafs)
        used_last = chosen_last.select(leafs) if last is not None else _AdapterInputs()
        return Step(
            graph, self._ctx, self._caches.state_rows, tokens, positions,
            positions in leafs, places,
            _keep_used(turns, leafs) if self._caches.states else None, last, logits, best,
            results[0] if len(results) == 1 else results, every, drawing,
            used.numbers, used_last.numbers, used.scales, used_last.scales, own, given, hidden,
        )  # fmt: skip

    def _results(
        self,
        x: Tensor,
        shape: Shape,
        chosen: Tensor | None,
        drawing: Drawing | None,
        adapting: Adapting | None,
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """From the last layer's normalised output: `Step.logits`, `Step.best` and `Step.every`."""
        model = self._model
        if not model.ends:
            return x.set_output(), None, None
        logits = x if shape.hidden else self._logits(x, adapting)
        if chosen is not None or drawing is not None:
            if drawing is not None:
                best = drawing.tokens(logits)
            else:  # top_k takes the first of equal logits; argmax would take the last
                best = ops.reshape_1d(ops.top_k(logits, 1), shape.logits)
            # The logit of each chosen token: NaN or -inf if there was no other to choose.
            each = ops.reshape_3d(logits, 1, logits.ne[0], shape.logits)
            theirs = ops.get_rows(each, ops.reshape_2d(best, 1, shape.logits)).set_output()
            return theirs, (best if chosen is None else ops.cpy(best, chosen)).set_output(), None
        if not shape.best:
            return logits.set_output(), None, None
        best = ops.top_k(logits, shape.best).set_output()
        every = logits.set_output() if shape.every else None
        each = ops.reshape_3d(logits, 1, logits.ne[0], shape.logits)
        return ops.get_rows(each, best).set_output(), best, every

    def _build_input(self, shape: Shape) -> Tensor:
        """The input of a step: token ids, or the output of the previous stage."""
        if self._model.embeds:
            return _vector_input("tokens", shape.tokens)
        ne = self._model.width, shape.tokens
        return aggml.new_tensor(DType.F32, ne=ne, name="values").set_input()

    def _choose_adapters(
        self, shape: Shape, chosen: _AdapterInputs, last: _AdapterInputs
    ) -> tuple[Adapting | None, Adapting | None]:
        """The adapters of all tokens, and of those that leave the last mixer."""
        adapters = self._adapters
        if adapters is None or not (adapters.always or shape.adapted):
            return None, None
        return adapters.at(*chosen), adapters.at(*last)

    def _embedding_inputs(self, shape: Shape) -> tuple[Tensor | None, Tensor | None]:
        """Inputs for embeddings that are given, if the step has any: `Step.own`, `Step.given`."""
        if not (shape.given and self._model.embeds):
            return None, None
        n, width = shape.tokens, self._model.width * (1 + self._model.deepstack)
        if self._model.predicts:
            return None, aggml.new_tensor(DType.F32, ne=(width, n), name="hidden").set_input()
        return (
            aggml.new_tensor(DType.F32, ne=(1, n), name="own").set_input(),
            aggml.new_tensor(DType.F32, ne=(width, n), name="given").set_input(),
        )

    def _embed(
        self, tokens: Tensor, positions: Tensor, own: Tensor | None, given: Tensor | None
    ) -> Tensor:
        """[tokens] -> [width, tokens]; where ``own`` is 0, ``given`` takes the token's place."""
        model, weights = self._model, self._weights
        x = ops.get_rows(weights["token_embd.weight"], tokens)
        if model.embedding_scale != 1.0:
            x = ops.scale(x, model.embedding_scale)
        if model.predicts:
            assert given is not None
            return self._beside_hidden(x, given)
        if own is not None and given is not None:  # which are not scaled
            if model.deepstack:
                given = ops.cont(ops.view_2d(given, model.width, given.ne[1], given.nb[1], 0))
            x = ops.add(ops.mul(x, own), given)
        if model.position_table:
            x = ops.add(x, ops.get_rows(weights["position_embd.weight"], positions))
        if model.embedding_norm:
            x = norm_rows(weights, "token_embd_norm", x, model.eps, centred=model.centred)
        return x

    def _beside_hidden(self, x: Tensor, hidden: Tensor) -> Tensor:
        """The input of a head's layer: embeddings, and the hidden states of the tokens before."""
        model, prefix = self._model, f"blk.{self._model.first}.nextn."
        x, y = (
            norm_rows(self._weights, prefix + name, z, model.eps, centred=model.centred)
            for name, z in (("enorm", x), ("hnorm", hidden))
        )
        return ops.mul_mat(self._weights[f"{prefix}eh_proj.weight"], ops.concat(x, y, 0))

    def _of_layers(self, tokens: Tensor, x: Tensor) -> Tensor:
        """What each token has for each layer: [layer_embedding, tokens, layers].

        It is the mean of an embedding of its own and of a map of ``x``, which is [width, tokens].
        """
        model, weights = self._model, self._weights
        size, layers, n = model.layer_embedding, len(model.layers), x.ne[1]
        own = ops.get_rows(weights["per_layer_token_embd.weight"], tokens)
        own = ops.reshape_3d(ops.scale(own, math.sqrt(size)), size, layers, n)
        y = ops.mul_mat(weights["per_layer_model_proj.weight"], x)
        y = ops.reshape_3d(ops.scale(y, model.width**-0.5), size, layers, n)
        y = norm_rows(weights, "per_layer_proj_norm", y, model.eps, centred=False)
        y = ops.scale(ops.add(y, own), math.sqrt(0.5))
        return ops.cont(ops.permute(y, 0, 2, 1, 3))

    def _places(self, shape: Shape) -> dict[Room, Places]:
        """Inputs for each room; rooms of the same length share the tensor of rows to write."""
        rows: dict[int, tuple[Tensor, Tensor | None]] = {}
        found = {}
        for room, length in self._caches.lengths.items():
            if length not in rows:
                copied = shape.parts[-1]
                n = copied.sequences * copied.tokens
                staged = _vector_input("staged", n) if shape.staged else None
                rows[length] = _vector_input("rows", shape.tokens), staged
            # A ring has no more rows than `length`. Where every position has a row, `kv` is not
            # bounded: prompts staged side by side also read rows after the first sequence's.
            whole = length == self._ctx
            seen = tuple(part.kv if whole else min(part.kv, length) for part in shape.parts)
            masks = tuple(
                aggml.new_tensor(
                    DType.F16, ne=(kv, part.tokens, 1, part.sequences), name="mask"
                ).set_input()
                for part, kv in zip(shape.parts, seen, strict=True)
            )
            found[room] = Places(*rows[length], masks, seen, length)
        return found

    def _logits(self, x: Tensor, adapting: Adapting | None) -> Tensor:
        """[width, n] -> [vocabulary, n]."""
        model, weights = self._model, self._weights
        output = weights.get("output.weight")
        if output is None:
            logits = ops.mul_mat(weights["token_embd.weight"], x)
        else:
            logits = ops.mul_mat(output, x)
            if adapting is not None:
                logits = adapting.add("output.weight", x, logits)
        bias = weights.get("output.bias")
        if bias is not None:
            logits = ops.add(logits, bias)
        if model.logit_scale != 1.0:
            logits = ops.scale(logits, model.logit_scale)
        if model.logit_soft_cap:
            bounded = ops.tanh(ops.scale(logits, 1.0 / model.logit_soft_cap))
            logits = ops.scale(bounded, model.logit_soft_cap)
        return logits


def _vector_input(name: str, n: int) -> Tensor:
    return aggml.new_tensor(DType.I32, ne=n, name=name).set_input()


def _turns(shape: Shape) -> Turns:
    """Inputs that tell which states each part of a step reads and writes."""
    reads = tuple(_vector_input("state_from", part.sequences) for part in shape.parts)
    writes = tuple(_vector_input("state_to", part.sequences * part.history) for part in shape.parts)
    latest = tuple(
        write
        if part.history == 1
        else _vector_input("state_to_latest", part.sequences * part.history)
        for write, part in zip(writes, shape.parts, strict=True)
    )
    return Turns(reads, writes, latest)


def _keep_used(turns: Turns, leafs: set[Tensor]) -> Turns:
    """Without the inputs that the graph does not have."""
    writes, latest = (
        tuple(x if x in leafs else None for x in those) for those in (turns.writes, turns.latest)
    )
    return Turns(turns.reads, writes, latest)


def _layer(layer: Layer, at: Scope, x: Tensor, last: Tensor | None) -> Tensor:
    """One layer. ``last``, given for the last layer, is which tokens leave its last mixer."""
    x = x if layer.beginning is None else layer.beginning.build(at, x)
    x = _blocks(layer, at, x, last)
    return (
        x
        if layer.ending is None
        else layer.ending.build(at if last is None else at.of_last(), x, last)
    )


def _blocks(layer: Layer, at: Scope, x: Tensor, last: Tensor | None) -> Tensor:
    """The mixer and the feed-forward block of a layer."""
    before, net, entered = _norm(at, layer.before_mixer, x), layer.feed_forward, x
    y = layer.mixer.build(at, before)
    mixer = mixer_in(net)
    if mixer is None:
        x, y = _only(last, x), _only(last, y)
        before = _only(last, before) if layer.parallel else before
        at = at if last is None else at.of_last()
    into, y = x, _norm(at, layer.after_mixer, layer.mixer.output(at, y))
    x = _add_residual(layer, x, y)
    x = x if layer.sum_scale == 1.0 else ops.scale(x, layer.sum_scale)
    if net is None:
        return x
    if not layer.parallel:
        into = _norm(at, layer.before_feed_forward, x)
    elif layer.before_feed_forward is not None:
        into = _norm(at, layer.before_feed_forward, into)
    else:
        into = before
    if layer.routed_early:
        y = cast("Experts", net).build(at, into, _only(last, entered))
    else:
        y = net.build(at, into)
    if mixer is not None:
        x, y = _only(last, x), _only(last, y)
        y = mixer.output(at if last is None else at.of_last(), y)
    return _add_residual(layer, x, _norm(at, layer.after_feed_forward, y))


def _only(last: Tensor | None, x: Tensor) -> Tensor:
    return x if last is None else ops.get_rows(x, last)


def _norm(at: Scope, name: str | None, x: Tensor) -> Tensor:
    return x if name is None else at.norm(name, x)


def _add_residual(layer: Layer, x: Tensor, y: Tensor) -> Tensor:
    if layer.residual_scale != 1.0:
        y = ops.scale(y, layer.residual_scale)
    return ops.add(y, x)
