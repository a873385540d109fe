"""Embeddings per second of all-MiniLM-L6-v2 at three sizes: onnxruntime, PyTorch, llama.cpp.

Contenders take turns. Before each turn there is a pause, because the threads of the peers spin for
a while when their work is done, and one run that does not count. llama.cpp is a process that is
stopped while others are measured. Not here: how the peers are set up (peers.py, llamacpp.py).
"""

from __future__ import annotations

import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio
import numpy as np

from benchmarks import model_files, peers
from benchmarks.child import Child, ChildError
from benchmarks.models import minilm
from benchmarks.timing import Budget, Row, median, progress

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

PART = "embeddings"
SIZES = ((1, 14), (32, 32), (64, 122))
OURS = ("f32", "bf16", "q8_0")
LLAMA_CPP = ("f32", "q8_0")
TOKENS = 1024  # in a batch of llama.cpp: each looks at all of them, so more would be slower
PEERS: dict[str, Callable[[int], peers.Compute]] = {
    "onnxruntime f32": peers.onnxruntime,
    "PyTorch f32": lambda threads: peers.pytorch("f32", threads),
    "PyTorch bf16": lambda threads: peers.pytorch("bf16", threads),
}


@dataclass
class Contender:
    """Embeds token ids of (batch, tokens); returns the seconds that it took, and the vectors."""

    name: str
    compute: Callable[[np.ndarray], Awaitable[tuple[float, np.ndarray]]]
    note: str = ""


async def measure(threads: int, *, quick: bool, match: str, missing: list[str]) -> list[Row]:
    """Rows for all installed contenders; the names of the others go to ``missing``.

    Only sizes whose name contains ``match`` are measured.
    """
    rows: list[Row] = []
    async with AsyncExitStack() as stack:
        contenders = [await _ours(stack, dtype, threads) for dtype in OURS]
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
            rows += await _size(contenders, batch, tokens, quick=quick)
    return rows


async def _ours(stack: AsyncExitStack, dtype: str, threads: int) -> Contender:
    backends = await stack.enter_async_context(minilm.workers(n_threads=threads))
    model = await minilm.MiniLM.load(backends, dtype=dtype)

    async def compute(ids: np.ndarray) -> tuple[float, np.ndarray]:
        start = time.perf_counter()
        vectors = await model.embed(list(ids.astype(np.int32)))
        return time.perf_counter() - start, vectors

    return Contender(f"aggml {dtype}", compute)


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


async def _size(contenders: list[Contender], batch: int, tokens: int, *, quick: bool) -> list[Row]:
    rng = np.random.default_rng(batch)
    ids = rng.integers(1000, 30000, (batch, tokens))
    ids[:, 0], ids[:, -1] = 101, 102  # [CLS], [SEP]
    rounds = 2 if quick else 4 if batch * tokens > 3000 else 7  # the largest takes 15 s a round
    repeats = max(1, min(30, 3000 // (batch * tokens)))  # samples of large sizes are long enough
    seconds: dict[str, list[float]] = {x.name: [] for x in contenders}
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
    rate = {name: batch / median(x) for name, x in seconds.items() if x and name not in dead}
    notes = {x.name: x.note for x in contenders}
    return _rows(f"{batch} x {tokens}", rate, vectors, notes, small=batch == 1)


def _rows(
    size: str,
    rate: dict[str, float],
    vectors: dict[str, np.ndarray],
    notes: dict[str, str],
    *,
    small: bool,
) -> list[Row]:
    reduced = Budget("PyTorch bf16", ">=", 2.0 if small else 2.5)
    wanted = {
        "aggml f32": (("onnxruntime f32", "PyTorch f32", "llama.cpp f32"),
                      Budget("onnxruntime f32", ">=", 1.5)),
        "aggml bf16": (("PyTorch bf16",), reduced),
        "aggml q8_0": (("PyTorch bf16", "llama.cpp q8_0"), reduced),
    }  # fmt: skip
    rows = []
    for ours, (names, budget) in wanted.items():
        beside = [name for name in names if name in rate]
        cosine = {x: float((vectors[ours] * vectors[x]).sum(1).min()) for x in beside}
        note = "; ".join(filter(None, (notes[x] for x in beside)))
        peers_ = {x: rate[x] for x in beside}
        what = f"{ours}, {size}"
        more = {"cosine": cosine}
        rows.append(Row(PART, what, rate[ours], "/s", peers_, {}, (budget,), note, more))
    return rows
