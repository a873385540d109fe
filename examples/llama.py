"""Llama-architecture models of GGUF files (llama, qwen2, qwen3), any number of sequences together.

Here: hyperparameters, weights, the graph of one step, the KV cache. Not here: text and tokens
(vocabulary.py), which token to take (sampling.py), a command line (generate.py).
"""

from __future__ import annotations

import functools
import math
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

import anyio.to_thread
import numpy as np
import numpy.typing as npt
from anyio.lowlevel import checkpoint

import aggml
from aggml import DType, GGUFFile, Graph, Tensor, ops

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from aggml import Backend, Future

ARCHITECTURES: Final = ("llama", "qwen2", "qwen3")
KV_STEP: Final = 256  # attention reads so many positions more at a time: fewer different graphs
CHUNK: Final = 512  # tokens of a prompt computed at once
CHAINED: Final = -1  # instead of how many best ones: one, which stays on the device

F32 = npt.NDArray[np.float32]


class ModelError(Exception):
    """The file is no model that this example can run."""


@dataclass(frozen=True, slots=True)
class Config:
    """Hyperparameters under the names of GGUF's metadata; lengths in elements."""

    architecture: str
    block_count: int
    embedding_length: int
    head_count: int
    head_count_kv: int
    key_length: int
    value_length: int
    context_length: int
    rms_eps: float
    rope_dims: int
    rope_base: float
    rope_scale: float
    yarn: float  # share of YaRN's extrapolation
    original_context: int

    @classmethod
    def of(cls, metadata: Mapping[str, Any]) -> Config:
        """Read them.

        Raises:
            ModelError: another architecture, experts, or a value that is missing.
        """
        architecture = metadata.get("general.architecture")
        if architecture not in ARCHITECTURES:
            raise ModelError(
                f"the architecture is {architecture!r}, not one of {', '.join(ARCHITECTURES)}"
            )

        def value(name: str, default: Any = None) -> Any:  # noqa: ANN401 as the file has it
            found = metadata.get(f"{architecture}.{name}", default)
            if found is None:
                raise ModelError(f"the file says nothing of {architecture}.{name}")
            return found

        if value("expert_count", 0):
            raise ModelError("models with experts are not supported")
        heads = int(value("attention.head_count"))
        width = int(value("embedding_length"))
        head = int(value("attention.key_length", width // heads))
        scaling = value("rope.scaling.type", "none")
        factor = float(value("rope.scaling.factor", 1.0))
        return cls(
            architecture=architecture,
            block_count=int(value("block_count")),
            embedding_length=width,
            head_count=heads,
            head_count_kv=int(value("attention.head_count_kv", heads)),
            key_length=head,
            value_length=int(value("attention.value_length", head)),
            context_length=int(value("context_length")),
            rms_eps=float(value("attention.layer_norm_rms_epsilon")),
            rope_dims=int(value("rope.dimension_count", head)),
            rope_base=float(value("rope.freq_base", 10000.0)),
            rope_scale=1.0 / factor if scaling in ("linear", "yarn") and factor > 0 else 1.0,
            yarn=1.0 if scaling == "yarn" else 0.0,
            original_context=int(
                value("rope.scaling.original_context_length", value("context_length"))
            ),
        )


@dataclass(frozen=True, slots=True)
class Part:
    """``tokens`` of each of ``sequences``; attention looks at the first ``kv`` positions.

    The first of these sequences is ``slot`` of the cache, the others follow it there.
    """

    sequences: int
    tokens: int
    slot: int
    kv: int


@dataclass(frozen=True, slots=True)
class Shape:
    """What a graph depends on: its parts, one behind the other in all that is no attention.

    Keys and values are written at one place; those of the last part, if ``staged``, at a second one
    as well. Logits follow ``ends`` tokens (0: all of them); of these, if not 0, the ``best`` ones.
    If ``chained`` the tokens are those that the step before chose, as this one does for the next.
    """

    parts: tuple[Part, ...]
    ends: int = 0
    staged: bool = False
    best: int = 0
    chained: bool = False

    @property
    def tokens(self) -> int:
        """Of all parts."""
        return sum(part.sequences * part.tokens for part in self.parts)

    @property
    def logits(self) -> int:
        """How many tokens they follow."""
        return self.ends or self.tokens


@dataclass(frozen=True, slots=True)
class Step:
    """A graph and its inputs, all i32 but the masks: [kv, tokens, 1, sequences] f16, 0 or -inf."""

    graph: Graph
    tokens: Tensor
    positions: Tensor
    rows: Tensor  # where in the cache
    staged: Tensor | None  # where the last part is written as well
    masks: tuple[Tensor, ...]  # one for each part
    last: Tensor | None  # which rows go on after the last attention; None: all
    logits: Tensor | None  # [vocabulary, ends] f32; of the best: [1, best, ends]; None: chained
    best: Tensor | None  # [best, ends] i32; chained: [ends], which are `tokens` from then on


@dataclass(frozen=True, slots=True)
class Group:
    """What one part of a step takes in: arrays of (sequences, tokens).

    ``rows`` are those of the cache. The mask, (sequences, 1, tokens, kv) float16, hides what comes
    behind each token's own position, if not given.
    """

    ids: npt.NDArray[np.int32]
    positions: npt.NDArray[np.int32]
    rows: npt.NDArray[np.int32]
    slot: int
    kv: int
    mask: npt.NDArray[np.float16] | None = None

    @property
    def part(self) -> Part:
        """What a graph depends on."""
        sequences, tokens = self.ids.shape
        return Part(sequences, tokens, self.slot, self.kv)


@dataclass(frozen=True, slots=True)
class Batch:
    """What one step takes in.

    ``staged`` are rows to which the last group's keys and values are written as well; logits follow
    the tokens ``last``, counted over all groups (None: each).
    """

    groups: tuple[Group, ...]
    last: npt.NDArray[np.int32] | None = None
    staged: npt.NDArray[np.int32] | None = None


@dataclass(frozen=True, slots=True)
class Places:
    """Inputs of every attention, as `Step` has them."""

    positions: Tensor
    rows: Tensor
    staged: Tensor | None
    masks: tuple[Tensor, ...]


@dataclass(frozen=True, slots=True)
class Best:
    """The best tokens of each sequence, in no order: (sequences, best) int32 and float32."""

    ids: npt.NDArray[np.int32]
    logits: F32


class Llama:
    """A model on a backend, and the KV cache of ``sequences`` sequences of up to ``ctx`` positions.

    ``model = await Llama.load(backend, path)``; then `prefill` each sequence, and `decode` them
    together as often as wanted. One step at a time: the caller awaits one before the next, but for
    steps that `follow` each other.
    """

    def __init__(
        self,
        backend: Backend,
        config: Config,
        weights: Mapping[str, Tensor],
        *,
        ctx: int,
        sequences: int,
        max_graphs: int = 32,
    ) -> None:
        self.backend = backend
        self.config = config
        self.ctx = -(-ctx // KV_STEP) * KV_STEP
        self.sequences = sequences
        self._first_rows = (np.arange(sequences, dtype=np.int32) * self.ctx)[:, None]
        self._w = weights
        self._max_graphs = max_graphs
        self._steps: OrderedDict[Shape, Step] = OrderedDict()  # least recently used first
        self._foreseen: tuple[tuple[int, ...], Step, dict[Tensor, Any]] | None = None
        self._chosen: dict[int, Tensor] = {}  # by the number of sequences
        self._k = self._cache("k", config.key_length)
        self._v = self._cache("v", config.value_length)
        self._memory = self._allocate()

    def _allocate(self) -> object:
        """Give the caches memory, zeros: masked rows must be finite; it lives as long as this."""
        return self.backend.alloc([*self._k, *self._v])

    @property
    def vocabulary(self) -> int:
        """How many tokens there are."""
        return self._w["token_embd.weight"].ne[1]

    def _cache(self, name: str, head: int) -> list[Tensor]:
        ne = (head * self.config.head_count_kv, self.ctx * self.sequences)
        return [
            aggml.new_tensor(DType.F16, ne=ne, name=f"cache_{name}.{i}")
            for i in range(self.config.block_count)
        ]

    @classmethod
    async def load(
        cls,
        backend: Backend,
        file: GGUFFile,
        *,
        ctx: int | None = None,
        sequences: int = 1,
        progress: Callable[[int, int], None] | None = None,
    ) -> Self:
        """Bring the weights of a file to ``backend``: mapped if it reads host memory, else copied.

        Args:
            backend: where to compute; must stay open while the model is used.
            file: an open model file.
            ctx: positions of each sequence; if not given what the model was trained for, but at
                most 4096.
            sequences: how many there may be at a time.
            progress: called with bytes loaded so far and bytes in all.

        Raises:
            ModelError: the file is no model that this example can run.
        """
        config = Config.of(file.metadata)
        missing = [name for name in _needed(config) if name not in file.tensors]
        if missing:
            raise ModelError(f"the file has no tensor {missing[0]!r} ({len(missing)} are missing)")
        try:
            file.map(backend.device)
        except (aggml.Unsupported, aggml.Misaligned):
            await file.load(backend, progress=progress)
        limit = ctx or min(config.context_length, 4096)
        return cls(backend, config, file.tensors, ctx=limit, sequences=sequences)

    async def prefill(self, slot: int, ids: Sequence[int], start: int = 0) -> F32:
        """Take in ``ids`` at positions ``start ..`` of sequence ``slot``.

        Returns:
            The logits after the last one, (vocabulary,) float32.

        Cancellation: aborts the computation; positions from ``start`` on are undefined.
        """
        if not ids:
            raise ValueError("there must be at least one token")
        if start + len(ids) > self.ctx:
            raise ModelError(f"{start + len(ids)} tokens do not fit a context of {self.ctx}")
        logits = np.empty((1, 0), np.float32)
        for at in range(0, len(ids), CHUNK):
            piece = ids[at : at + CHUNK]
            logits = await self._run(slot, np.array([piece], np.int32), np.array([start + at]))
        result: F32 = logits[0]
        return result

    async def decode(self, ids: Sequence[int], positions: Sequence[int]) -> F32:
        """One more token for each of the sequences 0, 1, ...

        Args:
            ids: the token of each.
            positions: where it goes.

        Returns:
            The logits after it, (sequences, vocabulary) float32.

        Cancellation: aborts the computation; these positions are undefined.
        """
        step, inputs = await self._one_more(positions, 0)
        inputs[step.tokens] = np.array(ids, np.int32)
        assert step.logits is not None
        future = self.backend.run(step.graph, inputs, step.logits)
        self._foresee(step, positions, 0)
        return np.asarray(await future).reshape(-1, self.vocabulary)

    async def decode_best(self, ids: Sequence[int], positions: Sequence[int], best: int) -> Best:
        """As `decode`, but of the logits the ``best`` ones alone.

        Cancellation: as `decode`.
        """
        step, inputs = await self._one_more(positions, best)
        inputs[step.tokens] = np.array(ids, np.int32)
        assert step.best is not None
        assert step.logits is not None
        future = self.backend.run(step.graph, inputs, [step.best, step.logits])
        self._foresee(step, positions, best)
        chosen, logits = await future
        return Best(np.asarray(chosen).reshape(-1, best), np.asarray(logits).reshape(-1, best))

    async def follow(
        self, positions: Sequence[int], ids: Sequence[int] | None = None
    ) -> Future[npt.NDArray[np.int32]]:
        """Queue one more token for each of the sequences 0, 1, ..., and the choice of the best.

        The choice stays where the next step finds it, so that one can be queued before anybody has
        seen it: the device goes from one to the other while the tokens are on their way.

        Args:
            positions: where the token goes.
            ids: the token of each; if not given, what the step before chose. That must have been
                queued by `follow` for as many sequences.

        Returns:
            A Future of the best token of each, (sequences,) int32; of equal ones the first.

        Cancellation: nothing is queued. Of the Future: aborts the computation if nobody else awaits
        it; these positions are undefined then, and steps that follow it fail or have no meaning.
        Abort them too, and give ``ids`` to the next one.
        """
        step, inputs = await self._one_more(positions, CHAINED)
        if ids is None:
            del inputs[step.tokens]
        else:
            inputs[step.tokens] = np.array(ids, np.int32)
        assert step.best is not None
        return self.backend.run(step.graph, inputs, step.best)

    async def _one_more(
        self, positions: Sequence[int], best: int
    ) -> tuple[Step, dict[Tensor, Any]]:
        """The step for one token of each sequence, and its inputs; as tokens, any."""
        foreseen, self._foreseen = self._foreseen, None
        if foreseen is not None and foreseen[0] == (best, *positions):
            await checkpoint()
            return foreseen[1:]
        if max(positions) >= self.ctx:
            raise ModelError(f"the context of {self.ctx} tokens is full")
        return await self._fed(self._batch_of_one(positions), best)

    def _batch_of_one(self, positions: Sequence[int]) -> Batch:
        """One token of each sequence, any."""
        # No more than this: what weights pushed out of the caches comes back at 0.2 us a line.
        at = np.array(positions, np.int32)[:, None]
        rows, kv = at + self._first_rows[: len(at)], self._seen_positions(max(positions))
        return Batch((Group(at, at, rows, 0, kv),))

    def _foresee(self, step: Step, positions: Sequence[int], best: int) -> None:
        """Make the inputs of the next step while this one is computed, if that has its graph."""
        if (max(positions) + 1) % KV_STEP:
            after = [position + 1 for position in positions]
            inputs = self._inputs(step, self._batch_of_one(after))
            self._foreseen = ((best, *after), step, inputs)

    async def share(self, n: int) -> None:
        """Copy the first ``n`` positions of sequence 0 to all others."""
        nodes = []
        for cache in (*self._k, *self._v):
            row = cache.nb[1]
            source = ops.view_2d(cache, cache.ne[0], n, row, 0)
            for slot in range(1, self.sequences):
                target = ops.view_2d(cache, cache.ne[0], n, row, slot * self.ctx * row)
                nodes.append(ops.cpy(source, target))
            await checkpoint()  # for a model of 16 layers and 8 sequences all of it takes 6 ms
        if nodes:
            graph = Graph(*nodes)
            await self.backend.prepare(graph)
            await self.backend.graph_compute(graph)

    async def _run(
        self, slot: int, ids: npt.NDArray[np.int32], start: npt.NDArray[np.int64]
    ) -> F32:
        """Compute ids (sequences, tokens) that begin at positions ``start``, one per sequence."""
        sequences, tokens = ids.shape
        positions = (start[:, None] + np.arange(tokens)).astype(np.int32)
        group = Group(
            ids, positions, positions + self._first_rows[slot : slot + sequences], slot,
            self._seen_positions(int(positions.max())),
        )  # fmt: skip
        last = (np.arange(1, sequences + 1) * tokens - 1).astype(np.int32)
        return await self._logits(Batch((group,), last if tokens > 1 else None))

    async def _logits(self, batch: Batch) -> F32:
        """(logits of the batch, vocabulary)."""
        step, inputs = await self._fed(batch, 0)
        assert step.logits is not None
        logits = await self.backend.run(step.graph, inputs, step.logits)
        return np.asarray(logits).reshape(-1, self.vocabulary)

    def _seen_positions(self, last: int) -> int:
        """How many positions attention looks at if ``last`` is the last one."""
        return min(-(-(last + 1) // KV_STEP) * KV_STEP, self.ctx)

    async def best_of(self, batch: Batch, best: int) -> Best:
        """Compute a batch.

        Returns:
            The ``best`` largest logits after each of its last tokens.

        Cancellation: aborts the computation; the rows of the batch are undefined.
        """
        step, inputs = await self._fed(batch, best)
        assert step.best is not None
        assert step.logits is not None
        ids, logits = await self.backend.run(step.graph, inputs, [step.best, step.logits])
        return Best(np.asarray(ids).reshape(-1, best), np.asarray(logits).reshape(-1, best))

    async def _fed(self, batch: Batch, best: int) -> tuple[Step, dict[Tensor, Any]]:
        """The step for a batch, and its inputs; ``best`` may be CHAINED."""
        ends = 0 if batch.last is None else len(batch.last)
        parts = tuple(group.part for group in batch.groups)
        chained = best == CHAINED
        shape = Shape(parts, ends, batch.staged is not None, 0 if chained else best, chained)
        step = await self._step(shape)
        return step, self._inputs(step, batch)

    @staticmethod
    def _inputs(step: Step, batch: Batch) -> dict[Tensor, Any]:
        groups = batch.groups
        inputs: dict[Tensor, Any] = {
            step.tokens: _joined([group.ids for group in groups]),
            step.positions: _joined([group.positions for group in groups]),
            step.rows: _joined([group.rows for group in groups]),
        }
        for to, group in zip(step.masks, groups, strict=True):
            mask = group.mask
            inputs[to] = _mask(group.positions, group.kv) if mask is None else mask
        if step.staged is not None:
            inputs[step.staged] = batch.staged
        if step.last is not None:
            inputs[step.last] = batch.last
        return inputs

    async def _step(self, shape: Shape) -> Step:
        step = self._steps.get(shape)
        if step is None:
            step = await self._build(shape)
            await self.backend.prepare(step.graph)
            self._steps[shape] = step
            if len(self._steps) > self._max_graphs:
                self._steps.popitem(last=False)
        else:
            self._steps.move_to_end(shape)
        return step

    # -- the graph

    async def _build(self, shape: Shape) -> Step:
        w, c = self._w, self.config

        def given(name: str, n: int) -> Tensor:
            return aggml.new_tensor(DType.I32, ne=n, name=name).set_input()

        positions, rows = (given(name, shape.tokens) for name in ("positions", "rows"))
        tokens = await self._kept(shape.tokens) if shape.chained else given("tokens", shape.tokens)
        copied = shape.parts[-1]
        staged = given("staged", copied.sequences * copied.tokens) if shape.staged else None
        last = given("last", shape.ends) if shape.ends else None
        masks = tuple(
            aggml.new_tensor(
                DType.F16, ne=(part.kv, part.tokens, 1, part.sequences), name="mask"
            ).set_input()
            for part in shape.parts
        )
        places = Places(positions, rows, staged, masks)
        x = ops.get_rows(w["token_embd.weight"], tokens)
        for i in range(c.block_count):
            h = ops.mul(ops.rms_norm(x, c.rms_eps), w[f"blk.{i}.attn_norm.weight"])
            y = self._attention(i, h, places, shape)
            if last is not None and i == c.block_count - 1:
                x, y = ops.get_rows(x, last), ops.get_rows(y, last)
            x = ops.add(self._linear(f"blk.{i}.attn_output", y), x)
            h = ops.mul(ops.rms_norm(x, c.rms_eps), w[f"blk.{i}.ffn_norm.weight"])
            gate, up = (self._linear(f"blk.{i}.ffn_{part}", h) for part in ("gate", "up"))
            x = ops.add(self._linear(f"blk.{i}.ffn_down", ops.swiglu_split(gate, up)), x)
            await checkpoint()
        x = ops.mul(ops.rms_norm(x, c.rms_eps), w["output_norm.weight"])
        head = w.get("output.weight", w["token_embd.weight"])
        logits = ops.mul_mat(head, x)
        if shape.chained:  # top_k, since of equal ones argmax takes the last
            best = ops.reshape_1d(ops.top_k(logits, 1), shape.logits)
            best = ops.cpy(best, tokens).set_output()
            return Step(Graph(best), tokens, positions, rows, staged, masks, last, None, best)
        if not shape.best:
            graph = Graph(logits.set_output())
            return Step(graph, tokens, positions, rows, staged, masks, last, logits, None)
        best = ops.top_k(logits, shape.best).set_output()
        each = ops.reshape_3d(logits, 1, self.vocabulary, shape.logits)
        logits = ops.get_rows(each, best).set_output()
        graph = Graph(best, logits)
        return Step(graph, tokens, positions, rows, staged, masks, last, logits, best)

    async def _kept(self, n: int) -> Tensor:
        """Where chained steps of ``n`` sequences leave their tokens."""
        kept = self._chosen.get(n)
        if kept is None:
            kept = aggml.new_tensor(DType.I32, ne=n, name="chosen")
            await self.backend.alloc_async([kept])
            self._chosen[n] = kept
        return kept

    def _linear(self, name: str, x: Tensor) -> Tensor:
        y = ops.mul_mat(self._w[f"{name}.weight"], x)
        bias = self._w.get(f"{name}.bias")
        return y if bias is None else ops.add(y, bias)

    def _attention(self, i: int, h: Tensor, places: Places, shape: Shape) -> Tensor:
        """[width, n] -> [value_length * head_count, n]."""
        c, total = self.config, shape.tokens
        q = ops.reshape_3d(self._linear(f"blk.{i}.attn_q", h), c.key_length, c.head_count, total)
        k = ops.reshape_3d(self._linear(f"blk.{i}.attn_k", h), c.key_length, c.head_count_kv, total)
        v = self._linear(f"blk.{i}.attn_v", h)
        q, k = (self._placed(i, part, x, places.positions) for part, x in (("q", q), ("k", k)))
        # Written, then read: what set_rows returns is the cache with the new rows in it.
        new_k, new_v = ops.reshape_2d(k, self._k[i].ne[0], total), v
        k, v = (
            ops.set_rows(cache, new, places.rows)
            for cache, new in ((self._k[i], new_k), (self._v[i], new_v))
        )
        if places.staged is not None:
            n = places.staged.ne[0]
            k, v = (
                ops.set_rows(cache, _columns(new, total - n, n), places.staged)
                for cache, new in ((k, new_k), (v, new_v))
            )
        found, first = None, 0
        for part, mask in zip(shape.parts, places.masks, strict=True):
            n = part.sequences * part.tokens
            mine = ops.view_4d(
                q, c.key_length, c.head_count, part.tokens, part.sequences,
                q.nb[1], q.nb[2], part.tokens * q.nb[2], first * q.nb[2],
            )  # fmt: skip
            keys, values = self._seen(k, c.key_length, part), self._seen(v, c.value_length, part)
            scale = 1 / math.sqrt(c.key_length)
            mine = ops.permute(mine, 0, 2, 1, 3)
            y = ops.flash_attn_ext(mine, keys, values, mask, scale, 0.0, 0.0)
            y = ops.reshape_2d(y, c.value_length * c.head_count, n)
            found = y if found is None else ops.concat(found, y, 1)
            first += n
        assert found is not None
        return found

    def _placed(self, i: int, part: str, x: Tensor, positions: Tensor) -> Tensor:
        """Queries or keys, [key_length, heads, n], turned by their positions."""
        c = self.config
        norm = self._w.get(f"blk.{i}.attn_{part}_norm.weight")
        if norm is not None:
            x = ops.mul(ops.rms_norm(x, c.rms_eps), norm)
        return ops.rope_ext(
            x,
            positions,
            self._w.get("rope_freqs.weight"),
            c.rope_dims,
            mode="normal" if c.architecture == "llama" else "neox",
            n_ctx_orig=c.original_context,
            freq_base=c.rope_base,
            freq_scale=c.rope_scale,
            ext_factor=c.yarn,
        )

    def _seen(self, cache: Tensor, head: int, part: Part) -> Tensor:
        """[head, kv, heads, sequences] of a cache."""
        row, size = cache.nb[1], cache.dtype.type_size
        return ops.permute(
            ops.view_4d(
                cache, head, self.config.head_count_kv, part.kv, part.sequences,
                head * size, row, self.ctx * row, part.slot * self.ctx * row,
            ),
            0, 2, 1, 3,
        )  # fmt: skip


def _columns(x: Tensor, first: int, n: int) -> Tensor:
    """``n`` columns of a matrix, without a copy."""
    return ops.view_2d(x, x.ne[0], n, x.nb[1], first * x.nb[1])


def _joined(parts: list[npt.NDArray[np.int32]]) -> npt.NDArray[np.int32]:
    """All elements in one line."""
    return (
        parts[0].reshape(-1) if len(parts) == 1 else np.concatenate([x.reshape(-1) for x in parts])
    )


def _mask(positions: npt.NDArray[np.int32], kv: int) -> npt.NDArray[np.float16]:
    """(sequences, 1, tokens, kv): 0 up to each token's own position, -inf behind it.

    Each row is a window into one row of ``kv`` zeros and ``kv`` infinities. Of one prompt each is
    one to the left of the row before, and the worker that takes the mask reads the windows: written
    out on the loop, those of 512 tokens that look at 4096 would hold it up for 3 ms.
    """
    windows = _windows(kv)
    sequences, tokens = positions.shape
    first = int(positions[0, 0])
    if sequences == 1 and np.array_equal(positions[0], np.arange(first, first + tokens)):
        return windows[kv - first - tokens : kv - first][None, None, ::-1]
    found: npt.NDArray[np.float16] = windows[kv - 1 - positions][:, None]
    return found


@functools.lru_cache(maxsize=16)
def _windows(kv: int) -> npt.NDArray[np.float16]:
    """Row i ends with i infinities behind ``kv`` - i zeros; nobody may write to it."""
    line = np.zeros(2 * kv, np.float16)
    line[kv:] = -np.inf
    return np.lib.stride_tricks.sliding_window_view(line, kv)


def _needed(config: Config) -> list[str]:
    parts = ["attn_norm", "attn_q", "attn_k", "attn_v", "attn_output"]
    parts += ["ffn_norm", "ffn_gate", "ffn_up", "ffn_down"]
    blocks = range(config.block_count)
    names = [f"blk.{i}.{part}.weight" for i in blocks for part in parts]
    return ["token_embd.weight", "output_norm.weight", *names]


async def open_model(path: Path) -> GGUFFile:
    """Open a GGUF file without holding up the loop.

    Raises:
        ModelError: it cannot be read, or is no GGUF file.
    """
    try:
        return await anyio.to_thread.run_sync(GGUFFile.open, path)
    except (OSError, aggml.AggmlError) as error:
        raise ModelError(f"cannot open the model: {error}") from error
