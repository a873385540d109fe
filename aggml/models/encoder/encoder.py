"""Encoder: from token ids of texts to vectors.

A batch is computed in parts. On a CPU each thread has a stream of its own, so that parts need not
wait for each other between nodes, and a part is so small that the results of a layer stay in a
core's cache. Here: parts, streams, a bounded cache of graphs. Not here: the graph (graph.py), which
requests share a batch (../engine/batches.py), text (../encoder_model.py).
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from aggml import Backend, DeviceType, DType, InvalidArgument, gather
from aggml.models.encoder.graph import Kind, Program, build, mask_of
from aggml.models.encoder.packing import (
    F32,
    Ids,
    Packing,
    PackingShape,
    divide,
    fill,
    pack,
    pack_apart,
    segments_of,
    types_of,
)
from aggml.models.errors import ModelError
from aggml.models.lifetime import Lifetime, closed_error
from aggml.models.memory import Parts
from aggml.models.site import CLOSED, free_with, site_of, unplace
from aggml.process.locks import new_lock
from aggml.stream.waits import CHECKPOINT

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aggml import Future, Scheduler, Tensor
    from aggml.models.encoder.description import EncoderDescription
    from aggml.models.site import Site

__all__ = ["Encoder"]

MOST_WORKERS: Final = 16
#: With so many tokens a layer's results, from its first product to its last, stay in a core's L2.
#: 64 texts of 122 tokens in such parts take two thirds of the time of one graph.
PART_TOKENS: Final = 512
#: The same for devices other than a CPU: they need many columns.
DEVICE_TOKENS: Final = 4096
#: Numbers of a head that predicts masked words, one for each token and each word of the vocabulary,
#: that one graph computes: 64 MiB of them, and 512 tokens for a vocabulary of 30,522 words.
TERMS: Final = 1 << 24
#: Graphs of such heads that are kept for each thread; each has up to 8 MiB of results.
TERM_GRAPHS: Final = 8
#: A batch is full with so many parts for each worker; two are computed at a time. Beside calls of
#: 64 texts of 122 tokens one text waited 0.17 s, and 0.27 s with 4 parts (median, two busy cores).
PARTS: Final = 2
#: So many texts are packed and queued in one turn of the event loop: it takes less than 0.1 ms.
AT_ONCE: Final = 8


class _Worker:
    """A stream and its graphs, the least recently used graph first."""

    __slots__ = ("programs", "site", "stream")

    def __init__(self, site: Site) -> None:
        self.site = site
        self.stream = site.host.stream
        self.programs: OrderedDict[tuple[PackingShape, Kind], Program] = OrderedDict()


class Encoder:
    """A model like BERT on a backend; tasks of any event loop and thread may use it.

    Args:
        backend: where to compute; must stay open while the model is used. If it is a CPU, further
            backends that share its threads are opened, one for each thread.
        model: the description of the model.
        weights: by their names in the file, where `load_weights` has put them.
        separator: the token of a pair behind which tokens are of type 1; None: all are of type 0.
        max_graphs: how many graphs are kept for each thread.

    Attributes:
        vocabulary: how many tokens there are.
        ranks: how many numbers the file's rank head gives; 0: it has none.
        sparse: what a weight of a word is made of: "weights" of tokens (bge-m3), "terms" of a head
            that predicts masked words (SPLADE); None: the file has neither head.
        multi: what vectors of tokens are: "multi" with a head for them (ColBERT), else "tokens".
        full: tokens of a full batch.
        enough: tokens of a batch that is worth computing beside another one.
    """

    def __init__(
        self,
        backend: Backend | Scheduler,
        model: EncoderDescription,
        weights: Mapping[str, Tensor],
        *,
        separator: int | None = None,
        max_graphs: int = 64,
    ) -> None:
        self.site: Site = site_of(backend)
        self.model = model
        self.weights: Mapping[str, Tensor] = weights
        self.vocabulary: int = weights["token_embd.weight"].ne[1]
        head = weights.get("cls.output.weight", weights.get("cls.weight"))
        self.ranks: int = 0 if head is None else head.ne[1]
        types = weights.get("token_types.weight")
        self._separator = separator if types is not None and types.ne[1] > 1 else None
        self.sparse: Kind | None = None
        if "sparse.weight" in weights or "mlm.dense.weight" in weights:
            self.sparse = "weights" if "sparse.weight" in weights else "terms"
        self.multi: Kind = "multi" if "multi.weight" in weights else "tokens"
        cpu = isinstance(backend, Backend) and backend.device.type is DeviceType.CPU
        self._further = _further(backend) if isinstance(backend, Backend) and cpu else []
        sites = [self.site, *map(site_of, self._further)]
        self._workers = [_Worker(site) for site in sites]
        self._part = PART_TOKENS if cpu else DEVICE_TOKENS
        each = self._part * len(self._workers)  # a part for each worker
        self.full: int = PARTS * each if cpu else self._part
        self.enough: int = each
        self._narrow = cpu and _is_narrow(weights)
        self._max_graphs = max_graphs
        self._lock = new_lock()  # of the caches of graphs; held for moments only
        self.lifetime: Lifetime = Lifetime(self._free)

    def close(self) -> None:
        """Free graphs and weights; later batches raise InvalidState.

        If a batch is running, all memory is freed when it ends.
        """
        self.lifetime.close()

    def parts(self) -> Parts:
        """What it has, for `Model.memory`."""
        return Parts(self.site, self.weights.values())

    def _free(self) -> None:
        for worker in self._workers:
            for program in worker.programs.values():
                worker.site.forget(program.graph)
        self._workers = []
        for backend in self._further:
            backend.close()
        self._further = []
        unplace(self.weights.values())
        self.weights = {}
        self.site = CLOSED  # the backend has scratch memory

    async def compute(self, texts: Sequence[Ids], kind: Kind = "pooled") -> list[F32]:
        """Compute texts as one batch.

        Args:
            texts: token ids, for which `check` has returned.
            kind: "pooled": the vector of each text, not normalised, (1, width); "unit": with length
                1; "rank": the numbers of the rank head, (1, ranks); "tokens": the vectors of all
                tokens, (tokens, width); "terms": a number of each word, (vocabulary,); "weights":
                one of each token; "multi": the vectors of all tokens by the head for them.

        Returns:
            The result of each text; those of texts that share a part may be views of one array.

        Cancellation: aborts the computation.
        """
        with self.lifetime.use("Encoder"):
            lengths = [*map(len, texts)]
            alike = len(set(lengths)) == 1
            most = self._part
            if kind == "terms":
                alike, most = False, min(most, max(1, TERMS // self.vocabulary))
            parts = divide(lengths, len(self._workers), most)
            queued: list[tuple[_Part, Future[Any]]] = []
            try:
                for numbers in parts:
                    sizes = [lengths[i] for i in numbers]
                    packing = pack_apart(sizes) if kind == "terms" else pack(sizes, alike=alike)
                    part = _Part(numbers, [texts[i] for i in numbers], packing)
                    queued.append((part, await self._queue(part, kind)))
                if len(queued) == 1:
                    arrays = [await queued[0][1]]
                else:
                    arrays = await gather(*(future for _, future in queued))
            except BaseException:
                for _, future in queued:
                    future.abort()
                raise
        found: list[Any] = [None] * len(texts)
        for (part, _), array in zip(queued, arrays, strict=True):
            for i, result in zip(part.numbers, part.results(array, kind), strict=True):
                found[i] = result
        return found

    def check(self, ids: Sequence[int]) -> None:
        """Refuse what cannot be computed.

        Raises:
            InvalidArgument: no tokens, an id that is not in the vocabulary.
            ModelError: more tokens than the model's context.
        """
        if not len(ids):
            raise InvalidArgument("[Encoder] a text has no tokens: give one that is not empty")
        if len(ids) > self.model.context_length:
            raise ModelError(
                f"a text has {len(ids)} tokens, but this model takes at most "
                f"{self.model.context_length}"
            )
        if not 0 <= min(ids) <= max(ids) < self.vocabulary:
            raise InvalidArgument(
                f"[Encoder] token ids are 0 to {self.vocabulary - 1}, "
                f"given were {min(ids)} to {max(ids)}"
            )

    async def _queue(self, part: _Part, kind: Kind) -> Future[Any]:
        """Queue a part on the stream that has the least to do."""
        shape = part.packing.shape
        key: tuple[PackingShape, Kind] = (shape, kind)
        worker = self._workers[0]
        if worker.stream.pending or key not in worker.programs:
            worker = min(self._workers, key=lambda w: (w.stream.pending, key not in w.programs))
        program = await self._program(worker, key)
        ids, positions, member = fill(part.packing, part.texts)
        if len(part.texts) > AT_ONCE:
            await CHECKPOINT  # each step may take 0.5 ms while workers are busy
        inputs: dict[Tensor, Any] = {program.ids: ids}
        if program.positions is not None:
            inputs[program.positions] = positions
        if program.member is not None:
            inputs[program.member] = member
        if program.masks:
            segments = segments_of(shape, member)
            alibi = self.model.distance_bias > 0
            for window, mask in program.masks.items():
                inputs[mask] = mask_of(segments, window, distances=alibi)
                await CHECKPOINT
        if program.types is not None:
            assert self._separator is not None
            inputs[program.types] = types_of(part.packing, part.texts, self._separator)
        if program.chosen is not None:
            last = kind in ("unit", "pooled") and self.model.pooling == "last"
            inputs[program.chosen] = part.chosen_tokens(last=last)
        return worker.site.run(program.graph, inputs, program.vectors)

    async def _program(self, worker: _Worker, key: tuple[PackingShape, Kind]) -> Program:
        shape, kind = key
        programs = worker.programs
        with self._lock:
            program = programs.get(key)
            if program is not None:
                programs.move_to_end(key)
                return program
        program = await build(
            self.model, self.weights, shape, kind, narrow=self._narrow,
            typed=kind == "rank" and self._separator is not None,
        )  # fmt: skip
        if self.lifetime.closed:
            raise closed_error("Encoder")
        await worker.site.prepare(program.graph)
        free_with(program, program.graph)
        with self._lock:
            programs[key] = program
            if kind == "terms":
                for old in [x for x in programs if x[1] == kind][:-TERM_GRAPHS]:
                    del programs[old]
            if len(programs) > self._max_graphs:
                programs.popitem(last=False)
        return program


class _Part:
    """Texts that are computed in one graph.

    Attributes:
        numbers: of the texts, in the batch.
        texts: their token ids.
        packing: where each of them lies.
    """

    __slots__ = ("numbers", "packing", "texts")

    def __init__(self, numbers: list[int], texts: list[Ids], packing: Packing) -> None:
        self.numbers, self.texts, self.packing = numbers, texts, packing

    def chosen_tokens(self, *, last: bool) -> Ids:
        """The token whose vector is the text's vector, for each segment of each row."""
        shape = self.packing.shape
        found = np.zeros((shape.rows, shape.segments), np.int32)
        for (row, start, segment), ids in zip(self.packing.places, self.texts, strict=True):
            found[row, segment] = row * shape.tokens + start + (len(ids) - 1 if last else 0)
        return found.reshape(-1)

    def results(self, array: F32, kind: Kind) -> list[F32]:
        """The result of each text, from the array of the graph's result."""
        shape, places = self.packing.shape, self.packing.places
        if kind in ("tokens", "weights", "multi"):
            rows = array.reshape(shape.rows, shape.tokens, -1)
            return [
                rows[row, start : start + len(ids)].copy()
                for (row, start, _), ids in zip(places, self.texts, strict=True)
            ]
        if shape.masked:  # else each text is a row
            row, _, segment = np.array(places).T
            array = array[row * shape.segments + segment]
        if kind == "terms":
            return list(array)
        n = len(places)
        return [array] if n == 1 else [array[i : i + 1] for i in range(n)]


def _further(backend: Backend) -> list[Backend]:
    """Backends that share the threads of a CPU's backend, so that there is one for each thread."""
    threads = min(getattr(backend, "n_threads", 1), MOST_WORKERS)
    return [backend._sibling() for _ in range(threads - 1)]


def _is_narrow(weights: Mapping[str, Tensor]) -> bool:
    """Whether the matrices have so few bits that bf16 does for keys and values."""
    first = weights.get("blk.0.attn_qkv.weight") or weights.get("blk.0.attn_k.weight")
    return first is not None and first.dtype not in (DType.F32, DType.F16)
