"""Embeddings per second of all-MiniLM-L6-v2: onnxruntime, OpenVINO, PyTorch, llama.cpp.

Three sizes, computed by what `aggml.models.load` returns; and the same texts from as many tasks
with one text each. The limits of the machine and the contenders take turns. Before each turn there
is a pause, because the threads of the peers spin for a while when their work is done, and one run
that does not count. llama.cpp is a process that is stopped while others are measured. Not here: how
the peers are set up (peers.py, openvino_minilm.py, llamacpp.py).
"""

from __future__ import annotations

import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio
import numpy as np

import aggml.models
from aggml import DType
from aggml.models import EncoderModel
from benchmarks import model_files, peers
from benchmarks.child import Child, ChildError
from benchmarks.models import embed
from benchmarks.openvino_minilm import openvino
from benchmarks.timing import Budget, Row, median, progress

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from benchmarks.roofline import Roofline

PART = "embeddings"
SIZES = ((1, 14), (32, 32), (64, 122))
LLAMA_CPP = ("f32", "q8_0")
TOKENS = 1024  # in a batch of llama.cpp: each looks at all of them, so more would be slower
PEERS: dict[str, Callable[[int], peers.Compute]] = {
    "onnxruntime f32": peers.onnxruntime,
    "PyTorch f32": lambda threads: peers.pytorch("f32", threads),
    "PyTorch bf16": lambda threads: peers.pytorch("bf16", threads),
    "OpenVINO f32": lambda threads: openvino("f32", threads),
    "OpenVINO bf16": lambda threads: openvino("bf16", threads),
    "OpenVINO int8": lambda threads: openvino("int8", threads),
}
# The peers of each of our types, and the least share of the limit that bounds batches on vectors.
BESIDE = {
    "f32": (("onnxruntime f32", "OpenVINO f32", "PyTorch f32", "llama.cpp f32"), 0.85),
    "bf16": (("PyTorch bf16", "OpenVINO bf16"), 0.80),
    "q8_0": (("PyTorch bf16", "llama.cpp q8_0"), 0.60),
    "q8_0 throughout": (("OpenVINO int8", "llama.cpp q8_0"), 0.60),
    "q8_0 row scales": (("OpenVINO int8", "llama.cpp q8_0"), 0.60),
}
# What multiplies weights of that type, as Roofline names it.
UNIT = {"f32": "f32", "bf16": "bf16", "q8_0": "int8"}
OF_MEMORY = 0.85  # of the read bandwidth, for one sentence


OURS = tuple(BESIDE)  # what `dtype=` of `load` says
LAYERS, WIDTH, INNER = 6, 384, 1536
OF_CALL = 0.95  # of the speed of one call, for as many tasks with one text each
TASKS = " from tasks"


@dataclass
class Contender:
    """Embeds token ids of (batch, tokens); returns the seconds that it took, and the vectors."""

    name: str
    compute: Callable[[np.ndarray], Awaitable[tuple[float, np.ndarray]]]
    note: str = ""


async def measure(
    threads: int, roofline: Roofline, *, quick: bool, match: str, missing: list[str]
) -> list[Row]:
    """Rows for all installed contenders; the names of the others go to ``missing``.

    Only sizes whose name contains ``match`` are measured.
    """
    rows: list[Row] = []
    async with AsyncExitStack() as stack:
        contenders = [x for name in OURS for x in await _ours(stack, name, threads)]
        for name, make in PEERS.items():
            try:
                contenders.append(_peer(name, make(threads)))
            except peers.MissingPeerError as error:
                missing.append(f"{name}: {error}")
        for dtype in LLAMA_CPP:
            try:
                contenders.append(_llama_cpp(stack, dtype, threads))
            except (peers.MissingPeerError, ChildError) as error:
                missing.append(f"llama.cpp {dtype}: {error}")
        for batch, tokens in SIZES:
            if match not in f"{batch} x {tokens}":
                continue
            progress(f"{PART}: {batch} x {tokens}")
            rows += await _size(contenders, roofline, batch, tokens, quick=quick)
    return rows


async def _ours(stack: AsyncExitStack, name: str, threads: int) -> list[Contender]:
    """One call with all texts, and a task for each of them."""
    backend = await stack.enter_async_context(aggml.get_device("CPU").backend(n_threads=threads))
    folder = embed.model_folder()
    model = await stack.enter_async_context(aggml.models.load(folder, backend, dtype=name))
    assert isinstance(model, EncoderModel)

    async def compute(ids: np.ndarray) -> tuple[float, np.ndarray]:
        start = time.perf_counter()
        vectors = await model.embed_ids(list(ids))
        return time.perf_counter() - start, vectors

    async def compute_in_tasks(ids: np.ndarray) -> tuple[float, np.ndarray]:
        vectors = np.empty((len(ids), model.width), np.float32)

        async def one(i: int) -> None:
            vectors[i] = (await model.embed_ids([ids[i]]))[0]

        start = time.perf_counter()
        async with anyio.create_task_group() as tasks:
            for i in range(len(ids)):
                tasks.start_soon(one, i)
        return time.perf_counter() - start, vectors

    return [
        Contender(f"aggml {name}", compute),
        Contender(f"aggml {name}{TASKS}", compute_in_tasks),
    ]


def _peer(name: str, blocking: peers.Compute) -> Contender:
    async def compute(ids: np.ndarray) -> tuple[float, np.ndarray]:
        start = time.perf_counter()
        vectors = blocking(ids)
        return time.perf_counter() - start, vectors

    return Contender(name, compute)


def _llama_cpp(stack: AsyncExitStack, dtype: str, threads: int) -> Contender:
    """llama.cpp in a process, because it may crash, with the first packing that it survives."""
    path = str(model_files.minilm_file(dtype))
    for packing in ("all", "none"):
        child = Child("benchmarks.llamacpp")
        try:
            child.call("embedder", path, threads, TOKENS // 32, TOKENS, packing)
            child.call("embed", [[101, 2000, 2001, 102]] * 4, 4)
        except ChildError:
            child.close()
            if packing == "none":
                raise
        else:
            break
    stack.callback(child.close)

    async def compute(ids: np.ndarray) -> tuple[float, np.ndarray]:
        at_once = max(1, TOKENS // ids.shape[1])
        seconds, vectors = child.call("embed", ids.tolist(), at_once)
        return float(seconds), np.array(vectors, np.float32)

    note = "" if packing == "all" else "llama.cpp crashes with packed weights: as they lie"
    return Contender(f"llama.cpp {dtype}", compute, note)


async def _size(
    contenders: list[Contender], roofline: Roofline, batch: int, tokens: int, *, quick: bool
) -> list[Row]:
    rng = np.random.default_rng(batch)
    ids = rng.integers(1000, 30000, (batch, tokens))
    ids[:, 0], ids[:, -1] = 101, 102  # [CLS], [SEP]
    rounds = 2 if quick else 4 if batch * tokens > 3000 else 7  # the largest takes 15 s a round
    repeats = max(1, min(30, 3000 // (batch * tokens)))  # samples of large sizes are long enough
    seconds: dict[str, list[float]] = {x.name: [] for x in contenders}
    heights: dict[str, list[float]] = {}
    vectors: dict[str, np.ndarray] = {}
    dead: list[str] = []
    for _ in range(rounds):
        for x in contenders:
            if x.name in dead:
                continue
            await anyio.sleep(0.1)
            try:
                _, vectors[x.name] = await x.compute(ids)
                for _ in range(repeats):
                    spent, _ = await x.compute(ids)
                    seconds[x.name].append(spent)
            except ChildError as error:
                progress(f"{PART}: {x.name} {error}")
                dead.append(x.name)
            ours = x.name.removeprefix("aggml ")
            if ours in OURS:  # now the clock is that of a busy core, and no peer's threads spin
                limit, most = _limit(roofline, ours.split()[0], batch, tokens)
                heights.setdefault(f"{ours}, {limit}", []).append(most)
    rate = {name: batch / median(x) for name, x in seconds.items() if x and name not in dead}
    notes = {x.name: x.note for x in contenders}
    limits = {name: median(found) for name, found in heights.items()}
    return _rows(f"{batch} x {tokens}", rate, vectors, notes, limits)


def _limit(roofline: Roofline, dtype: str, batch: int, tokens: int) -> tuple[str, float]:
    """What bounds sentences of that many tokens, and the most sentences a second it allows.

    One sentence reads all matrices of the layers once; of many, the products bound the time.
    """
    elements = LAYERS * (4 * WIDTH**2 + 2 * WIDTH * INNER)
    if batch == 1:
        row_size = DType.parse(dtype).row_size
        return "read", roofline.read() / row_size(elements)
    of_attention = LAYERS * 2 * tokens * tokens * WIDTH
    unit = roofline.best(UNIT[dtype])
    unit = unit if unit in roofline.peaks else "f32"
    return unit, roofline.peak(unit) / (2 * (tokens * elements + of_attention))


def _rows(
    size: str,
    rate: dict[str, float],
    vectors: dict[str, np.ndarray],
    notes: dict[str, str],
    limits: dict[str, float],
) -> list[Row]:
    rows = []
    for dtype, (names, share) in BESIDE.items():
        ours = f"aggml {dtype}"
        beside = [name for name in names if name in rate]
        cosine = {x: float((vectors[ours] * vectors[x]).sum(1).min()) for x in beside}
        note = "; ".join(filter(None, (notes[x] for x in beside)))
        roofs = {k.split(", ")[1]: v for k, v in limits.items() if k.startswith(dtype + ",")}
        budgets = [Budget(name, ">=", 1.0) for name in beside]
        # The design names no share for products on tiles.
        least = {name: OF_MEMORY if name == "read" else share for name in roofs}
        budgets += [Budget(k, ">=", v) for k, v in least.items() if not k.endswith("tiles")]
        peers_ = {x: rate[x] for x in beside}
        more = {"cosine": cosine}
        what = f"{ours}, {size}"
        rows.append(Row(PART, what, rate[ours], "/s", peers_, roofs, budgets, note, more))
        alone = rate[f"{ours}{TASKS}"]
        budget = [Budget("one call", ">=", OF_CALL)]
        what = f"{ours}, {size}, a task for each text"
        rows.append(Row(PART, what, alone, "/s", {"one call": rate[ours]}, budgets=budget))
    return rows
