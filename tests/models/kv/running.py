"""A paged decoder on a tiny random model, and greedy generation with it. No tests here."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from models import random_models
from models.layout import VOCABULARY

import aggml
from aggml.devices.sim import SimDevice
from aggml.models.kv.paging import PagedDecoder
from aggml.models.loading import load_decoder
from aggml.models.weights import open_model

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from aggml import Future
    from aggml.models.decoder import Decoder

CTX = 512
PLACES = ["cpu", "sim", "scheduler"]
LARGE = 64 << 20


@asynccontextmanager
async def decoding(
    folder: Path,
    layout: str,
    *,
    place: str = "cpu",
    cache: str = "f16",
    sequences: int = 3,
    device: aggml.Device | None = None,
) -> AsyncIterator[PagedDecoder]:
    """A decoder of a model of that layout: on the CPU, on a simulated device, or over several."""
    path = folder / f"{layout}.gguf"
    if not path.exists():
        random_models.write(path, layout)
    async with AsyncExitStack() as stack:
        cpu = aggml.get_device("CPU")
        sims = {"cpu": 0, "sim": 1, "scheduler": 2}[place]
        devices: list[aggml.Device] = [SimDevice(f"S{i}", memory=LARGE) for i in range(sims)]
        devices += [cpu] if place != "sim" else []
        if device is not None:
            devices = [device]
        backends = [await stack.enter_async_context(x.backend(n_threads=1)) for x in devices]
        where: aggml.Backend | aggml.Scheduler = backends[0]
        if place == "scheduler":
            where = await stack.enter_async_context(aggml.Scheduler(backends, parallel=True))
        with await open_model(path) as opened:
            decoder = await load_decoder(
                where, opened, kind=PagedDecoder, ctx=CTX, sequences=sequences, cache=cache
            )
            stack.callback(decoder.close)
            for slot in range(sequences):
                decoder.promise(slot, CTX)
            yield decoder


async def queue_one(
    decoder: Decoder, at: int, token: int, slot: int = 0, *, chained: bool = False
) -> Future[Any]:
    """Queue a step of one token of a sequence; ``chained``: the step before it may still run."""
    batch = decoder.batch_of([token], at, slot)
    step = await decoder.prepare_step(batch.shape(0))
    inputs = decoder.inputs_of(step, batch, None, chained=False)
    return decoder.run_step(step, inputs, batch, chained=chained)


def prompt(n: int, seed: int = 0) -> list[int]:
    """Token ids."""
    found: list[int] = np.random.default_rng(seed).integers(0, VOCABULARY, n).tolist()
    return found


async def generated(
    decoder: PagedDecoder, slot: int, ids: list[int], start: int, n: int
) -> list[int]:
    """Process ``ids`` from position ``start`` on, then the best token each time."""
    logits = await decoder.prefill(slot, ids, start)
    made = [int(np.argmax(logits))]
    at = start + len(ids)
    while len(made) < n:
        (logits,) = await decoder.decode([made[-1]], [at], slot)
        made.append(int(np.argmax(logits)))
        at += 1
    return made


async def contents(decoder: PagedDecoder, slot: int, n: int) -> list[bytes]:
    """The first ``n`` rows of a slot in each cache, then its states."""
    found = []
    for i, (cache, length) in enumerate(decoder.caches.rows):
        del i
        row = cache.nb[1]
        backend = decoder.site.beside(cache)
        at = slot * length * row
        found.append((await backend.get(cache, offset=at, size=n * row)).tobytes())
    for state in decoder.caches.states:
        backend, size = decoder.site.beside(state), state.nb[1]
        found.append((await backend.get(state, offset=slot * size, size=size)).tobytes())
    return found
