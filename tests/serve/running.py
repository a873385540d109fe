"""A running engine, and jobs for it, for the tests of aggml.serve without HTTP."""

from __future__ import annotations

from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel
import numpy as np
from aggml.models.engine.jobs import Job

import aggml
from aggml.models.decoder.sampling import Sampler
from aggml.models.engine.engine import STAGED, Engine
from aggml.models.kv.paging import PAGE, PagedDecoder
from aggml.models.loading import load_decoder
from aggml.models.weights import open_model

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path


CTX = 512
PATIENCE = 100  # seconds: less than the watch of a process (watch.py), to fail alone


@asynccontextmanager
async def running(
    file: Path,
    *,
    slots: int = 4,
    budget: int = 64,
    stored: int = 0,
    max_waiting: int = 64,
    device: aggml.Device | None = None,
) -> AsyncIterator[Engine]:
    device = device or aggml.get_device("CPU")
    more = -(-stored * PAGE // CTX)
    with await open_model(file) as opened:
        async with device.backend() as backend:
            model = await load_decoder(
                backend, opened, kind=PagedDecoder, ctx=CTX, sequences=slots + STAGED + more
            )
            async with Engine(
                model, slots=slots, budget=budget, stored=stored, chunk=32, max_waiting=max_waiting
            ) as engine:
                with anyio.fail_after(PATIENCE):
                    yield engine


def greedy(prompt: Sequence[int], n: int) -> Job:
    return Job(prompt, n, Sampler(temperature=0))


def prompts(n: int, longest: int = 100, seed: int = 7) -> list[list[int]]:
    random = np.random.default_rng(seed)
    lengths = random.integers(1, longest, n)
    return [[1, *random.integers(3, 290, k - 1).tolist()] for k in lengths]


async def all_of(engine: Engine, job: Job) -> list[int]:
    async with aclosing(engine.stream(job)) as stream:
        return [token async for tokens in stream for token in tokens]
