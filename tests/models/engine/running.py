"""A model with an engine of so many pages, and what a prompt gets alone. No tests here."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import numpy as np

import aggml
from aggml.models.engine.engine import STAGED, Engine
from aggml.models.kv.paging import PagedDecoder
from aggml.models.loading import load_decoder
from aggml.models.text_model import TextModel
from aggml.models.weights import open_model

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from pathlib import Path

    from aggml.models.decoder import Decoder

CTX = 512
PATIENCE = 100


@asynccontextmanager
async def running(
    file: Path,
    *,
    slots: int = 4,
    budget: int = 64,
    max_waiting: int = 64,
    chunk: int = 32,
    swap: int = 1 << 30,
    cache: str = "f16",
    device: aggml.Device | None = None,
) -> AsyncIterator[TextModel]:
    """A model without a vocabulary; ``model.engine`` is an `Engine` of these sizes."""
    device = device or aggml.get_device("CPU")
    with await open_model(file) as opened:
        async with device.backend(n_threads=2) as backend:
            decoder = await load_decoder(
                backend, opened, kind=PagedDecoder, ctx=CTX, cache=cache, sequences=slots + STAGED
            )
            engine = Engine(
                decoder, slots=slots, budget=budget, chunk=chunk, max_waiting=max_waiting,
                swap=swap,
            )  # fmt: skip
            async with TextModel(engine, None) as model:
                with anyio.fail_after(PATIENCE):
                    yield model


def engine_of(model: TextModel) -> Engine:
    """The engine of a model, which is one on this machine."""
    assert isinstance(model.engine, Engine)
    return model.engine


def prompts(n: int, longest: int = 100, seed: int = 7) -> list[list[int]]:
    """Prompts that differ from their second token on."""
    random = np.random.default_rng(seed)
    lengths = random.integers(1, longest, n)
    return [[1, *random.integers(3, 290, k - 1).tolist()] for k in lengths]


def text(n: int, seed: int) -> list[int]:
    """A prompt of ``n`` tokens."""
    return [1, *np.random.default_rng(seed).integers(3, 290, n - 1).tolist()]


async def all_of(model: TextModel, prompt: Sequence[int], n: int, **options: Any) -> list[int]:
    """The tokens of an answer that no token ends."""
    options = {"stop_ids": (), **options}
    return [x.id async for x in model.generate(prompt, max_tokens=n, **options)]


async def alone(
    file: Path, prompt: Sequence[int], n: int, cache: str = "f16", ctx: int = CTX
) -> list[int]:
    """The best tokens after a prompt, computed by a decoder of its own, without an engine."""
    with await open_model(file) as opened:
        async with aggml.get_device("CPU").backend(n_threads=2) as backend:
            decoder = await load_decoder(backend, opened, ctx=ctx, cache=cache)
            return await best_tokens(decoder, prompt, n)


async def best_tokens(decoder: Decoder, prompt: Sequence[int], n: int) -> list[int]:
    """The best tokens after a prompt, one step after the other."""
    made = [int((await decoder.prefill(0, prompt)).argmax())]
    while len(made) < n:
        (row,) = await decoder.decode([made[-1]], [len(prompt) + len(made) - 1])
        made.append(int(row.argmax()))
    return made


async def until(holds: Callable[[], object]) -> None:
    """Let other tasks run until the condition holds."""
    while not holds():
        await anyio.lowlevel.checkpoint()
