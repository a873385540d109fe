"""all-MiniLM-L6-v2: token ids of sentences in, vectors out.

Here: placing the weights, a bounded cache of graphs, computing parts of a batch at the same time.
Not here: the weights (weights.py), the graph (graph.py), how sentences share a batch
(aggml.models.encoder), which parts a batch has (parts.py), tokenizing (embedder.py).
"""

from __future__ import annotations

from collections import OrderedDict
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

import anyio
import anyio.to_thread
import numpy as np
from anyio.lowlevel import checkpoint

import aggml
from aggml import Backend, DType
from aggml.models.encoder.packing import F32, Ids, Shape, fill, pack
from minilm.graph import Program, build
from minilm.parts import parts_of
from minilm.weights import (
    WIDTH,
    ModelError,
    Weights,
    converted,
    leaves_of,
    model_folder,
    read_safetensors,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence
    from pathlib import Path

MOST_WORKERS: Final = 16


@asynccontextmanager
async def workers(
    device: str = "CPU", n_threads: int | None = None
) -> AsyncGenerator[list[Backend]]:
    """Backends for `MiniLM.load`: on a CPU one for each thread. All of them share the threads.

    Parts of a batch on different streams need not wait for each other. A thread without work of its
    own stream helps with others. The backends are closed at the end.
    """
    on = aggml.get_device(device)
    count = 1
    if on.type is aggml.DeviceType.CPU:
        count = min(aggml.ThreadPoolParams(n_threads).n_threads or 1, MOST_WORKERS)
    async with AsyncExitStack() as stack:
        opened: list[Backend] = []
        while len(opened) < count:
            backend = on.backend(n_threads=n_threads)
            opened.append(await stack.enter_async_context(backend))
        yield opened


@dataclass(slots=True)
class _Worker:
    """A backend and its graphs, the least recently used graph first."""

    backend: Backend
    programs: OrderedDict[Shape, Program]


class MiniLM:
    """The model: ``await MiniLM.load([backend])``, then ``await model.embed([ids])``.

    Args:
        backends: backends of one device; they compute parts of a large batch at the same time.
        weights: the weights, placed on that device.
        max_graphs: how many graphs each backend keeps.
    """

    def __init__(
        self, backends: Sequence[Backend], weights: Weights, *, max_graphs: int = 64
    ) -> None:
        self._workers = [_Worker(backend, OrderedDict()) for backend in backends]
        self._weights = weights
        self._max_graphs = max_graphs

    @classmethod
    async def load(
        cls,
        backends: Sequence[Backend],
        folder: Path | None = None,
        *,
        dtype: DType | str = DType.F32,
        throughout: bool = False,
        row_scales: bool = False,
        progress: Callable[[int, int], None] | None = None,
    ) -> MiniLM:
        """Place the weights on the device of ``backends``.

        Args:
            backends: where to compute, at least one; must stay open while the model is used.
            folder: where model.safetensors is; None: the folder of the installed package.
            dtype: element type of the matrices: f32, bf16, q8_0, or another that
                `aggml.quantize` makes.
            throughout: whether q8_0 means all matrices. By default those that matter most stay
                bf16: the worst of 3000 sentences then has a cosine of 0.9993 to its exact
                vector, instead of 0.9976.
            row_scales: whether a row of a q8_0 matrix has one scale, not one for each 32 elements.
                With ``throughout``, large batches are then 7 % faster on AVX-512, and the mean
                cosine is 0.9986 to 0.9991 instead of 0.9995 (the worst seen 0.994, of a full stop).
            progress: called with bytes placed so far and bytes in all.

        Raises:
            ModelError: the model is not installed or its file is damaged.
        """
        path = (folder or model_folder()) / "model.safetensors"
        try:
            file = await anyio.to_thread.run_sync(read_safetensors, path)
        except OSError as error:
            raise ModelError(f"cannot read the model: {error}") from error
        leaves = leaves_of(DType.parse(dtype), throughout=throughout)
        convert = partial(converted, row_scales=row_scales)
        await checkpoint()  # making 100 leaves takes a millisecond, and placing them one more
        backend = backends[0]
        buffer = backend.alloc(list(leaves.values()))
        buffer.usage = aggml.BufferUsage.WEIGHTS
        done = 0
        total = sum(leaf.nbytes for leaf in leaves.values())
        for name, leaf in leaves.items():
            # Reading, joining and converting take milliseconds, so a thread does it.
            try:
                data = await anyio.to_thread.run_sync(convert, name, file, leaf.dtype)
            except KeyError as error:
                raise ModelError(f"{path} has no tensor {error}") from error
            await backend.set(leaf, data)
            done += leaf.nbytes
            if progress is not None:
                progress(done, total)
        return cls(backends, Weights(leaves))

    async def embed(self, sentences: Sequence[Ids]) -> F32:
        """Embed tokenized sentences as one batch.

        Args:
            sentences: token ids of each, int32 (1 to 512,), [CLS] and [SEP] included.

        Returns:
            Normalised vectors, (len(sentences), 384) float32.

        Raises:
            AggmlError: a part of the computation failed; the other parts were aborted.

        Cancellation: aborts the computation.
        """
        if not sentences:
            return np.empty((0, WIDTH), np.float32)
        packing = pack([len(x) for x in sentences])
        shape = packing.shape
        parts = parts_of(shape, len(self._workers))
        first = await self._program(self._workers[0], replace(shape, rows=len(parts[0])))
        await checkpoint()
        arrays = fill(packing, sentences)
        await checkpoint()  # each step may take 0.5 ms while workers are busy
        vectors = np.empty((shape.rows, shape.segments, WIDTH), np.float32)
        if len(parts) == 1:
            await self._compute(self._workers[0], first, arrays, parts[0], vectors)
        else:
            waiting = iter(parts)

            async def serve(worker: _Worker) -> None:
                for rows in waiting:
                    program = await self._program(worker, replace(shape, rows=len(rows)))
                    await self._compute(worker, program, arrays, rows, vectors)

            try:
                async with anyio.create_task_group() as tasks:
                    for worker in self._workers[: len(parts)]:
                        tasks.start_soon(serve, worker)
            except BaseExceptionGroup as group:
                raise group.exceptions[0] from None  # as if there were one part
        row, _, segment = zip(*packing.places, strict=True)
        return vectors[list(row), list(segment)]

    @staticmethod
    async def _compute(
        worker: _Worker, program: Program, arrays: tuple[Ids, Ids, F32], rows: range, out: F32
    ) -> None:
        """Compute some rows of a batch; their vectors go to ``out``, (rows, segments, 384)."""
        ids, positions, member = (x[rows.start : rows.stop] for x in arrays)
        inputs = {program.ids: ids.reshape(-1), program.positions: positions.reshape(-1)}
        vectors = await worker.backend.run(
            program.graph, {**inputs, program.member: member}, program.vectors
        )
        # The array that `get` makes has no outer extents of 1.
        out[rows.start : rows.stop] = np.asarray(vectors).reshape(len(rows), *out.shape[1:])

    async def _program(self, worker: _Worker, shape: Shape) -> Program:
        program = worker.programs.get(shape)
        if program is None:
            program = await build(self._weights, shape)
            await worker.backend.prepare(program.graph)
            worker.programs[shape] = program
            if len(worker.programs) > self._max_graphs:
                worker.programs.popitem(last=False)
        else:
            worker.programs.move_to_end(shape)
        return program
