"""Embeddings per second of all-MiniLM-L6-v2 at three sizes, beside onnxruntime and PyTorch.

Contenders take turns, each after a pause (the peers' threads spin on for a while when their work is
done) and one run that does not count. Not here: how the peers are set up (peers.py).
"""

from __future__ import annotations

import sys
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio
import numpy as np

import aggml
from benchmarks import peers
from benchmarks.models import minilm
from benchmarks.timing import Row, absolute, median, versus

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

PART = "embeddings"
SIZES = ((1, 14), (32, 32), (64, 122))
OURS = ("f32", "bf16", "q8_0")
PEERS: dict[str, Callable[[int], peers.Compute]] = {
    "onnxruntime f32": peers.onnxruntime,
    "PyTorch f32": lambda threads: peers.pytorch("f32", threads),
    "PyTorch bf16": lambda threads: peers.pytorch("bf16", threads),
}


@dataclass
class Contender:
    """Something that embeds a batch of token ids (batch, tokens)."""

    name: str
    compute: Callable[[np.ndarray], Awaitable[np.ndarray]]


async def measure(threads: int, *, quick: bool, missing: list[str]) -> list[Row]:
    """Rows for all contenders that are here; the names of the others go to ``missing``."""
    rows: list[Row] = []
    async with AsyncExitStack() as stack:
        contenders = [await _ours(stack, dtype, threads) for dtype in OURS]
        for name, make in PEERS.items():
            try:
                contenders.append(_peer(name, make(threads)))
            except peers.MissingPeerError as error:
                missing.append(f"{name}: {error}")
        for batch, tokens in SIZES:
            print(f"{PART} {batch} x {tokens} ...", file=sys.stderr, flush=True)
            rows += await _size(contenders, batch, tokens, quick=quick)
    return rows


async def _ours(stack: AsyncExitStack, dtype: str, threads: int) -> Contender:
    backend = await stack.enter_async_context(aggml.get_device("CPU").backend(n_threads=threads))
    model = await minilm.MiniLM.load(backend, dtype=dtype)

    async def compute(ids: np.ndarray) -> np.ndarray:
        return await model.embed(list(ids.astype(np.int32)))

    return Contender(f"aggml {dtype}", compute)


def _peer(name: str, blocking: peers.Compute) -> Contender:
    async def compute(ids: np.ndarray) -> np.ndarray:
        return blocking(ids)

    return Contender(name, compute)


async def _size(contenders: list[Contender], batch: int, tokens: int, *, quick: bool) -> list[Row]:
    rng = np.random.default_rng(batch)
    ids = rng.integers(1000, 30000, (batch, tokens))
    ids[:, 0], ids[:, -1] = 101, 102  # [CLS], [SEP]
    rounds = 2 if quick else 7
    repeats = max(1, min(30, 3000 // (batch * tokens)))  # large ones are long enough by themselves
    seconds: dict[str, list[float]] = {x.name: [] for x in contenders}
    vectors: dict[str, np.ndarray] = {}
    for _ in range(rounds):
        for x in contenders:
            await anyio.sleep(0.1)
            vectors[x.name] = await x.compute(ids)
            for _ in range(repeats):
                start = time.perf_counter()
                await x.compute(ids)
                seconds[x.name].append(time.perf_counter() - start)
    rate = {name: batch / median(values) for name, values in seconds.items()}
    return _rows(f"{batch} x {tokens}", rate, vectors, small=batch == 1)


def _rows(
    size: str, rate: dict[str, float], vectors: dict[str, np.ndarray], *, small: bool
) -> list[Row]:
    wanted = {
        ("aggml f32", "onnxruntime f32"): 1.5,
        ("aggml f32", "PyTorch f32"): None,
        ("aggml bf16", "PyTorch bf16"): 2.0 if small else 2.5,
        ("aggml q8_0", "PyTorch bf16"): 2.0 if small else 2.5,
    }
    rows = []
    for (ours, peer), budget in wanted.items():
        what = f"{ours}, {size}"
        if peer not in rate:
            rows.append(absolute(PART, what, rate[ours], "/s"))
            continue
        cosine = float((vectors[ours] * vectors[peer]).sum(1).min())
        demand = None if budget is None else (">=", budget)
        rows.append(versus(PART, what, rate[ours], "/s", peer, rate[peer], demand, cosine=cosine))
    return rows
