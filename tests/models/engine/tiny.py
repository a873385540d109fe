"""An engine on a tiny random model, requests, what it has left at the end. No tests here."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from models import random_models
from models.layout import VOCABULARY

import aggml
from aggml.models.decoder.sampling import Sampler
from aggml.models.engine.engine import Engine, staged_slots
from aggml.models.engine.requests import TextRequest
from aggml.models.kv.paging import PagedDecoder
from aggml.models.kv.state_rows import Rewind
from aggml.models.loading import load_decoder
from aggml.models.weights import open_model

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

CTX = 512
#: Attention; a state of each sequence; both.
LAYOUTS = ("llama", "mamba2", "rwkv7", "qwen3next")


@asynccontextmanager
async def engines(
    folder: Path,
    layout: str = "llama",
    *,
    slots: int = 4,
    pages: int | None = None,
    rewind: int = 0,
    **options: Any,
) -> AsyncIterator[Engine]:
    """An engine on the CPU.

    ``pages`` is its budget, None: all that its slots may need. States can go back by ``rewind``.
    """
    path = folder / f"{layout}.gguf"
    if not path.exists():
        random_models.write(path, layout)
    async with AsyncExitStack() as stack:
        device = aggml.get_device("CPU")
        backend = await stack.enter_async_context(device.backend(n_threads=1))
        with await open_model(path) as opened:
            decoder = await load_decoder(
                backend, opened, kind=PagedDecoder, ctx=CTX, cache="f16",
                sequences=slots + staged_slots(slots), rewind=Rewind(slots, rewind),
            )  # fmt: skip
        stack.callback(decoder.close)
        count = decoder.pages(0, slots)
        if pages is None:
            pages = slots * count.need(CTX) + count.of(2 * CTX)
        yield Engine(decoder, slots=slots, budget=pages, **options)


def prompt(n: int, seed: int = 0) -> list[int]:
    """Token ids."""
    found: list[int] = np.random.default_rng(seed).integers(0, VOCABULARY, n).tolist()
    return found


def request(tokens: list[int], n: int, *, seed: int | None = None, **options: Any) -> TextRequest:
    """A request for ``n`` tokens: the best ones or, with a seed, drawn ones."""
    drawn = Sampler(0.0) if seed is None else Sampler(1.5, 40, 0.95, seed)
    return TextRequest(list(tokens), n, drawn, **options)


async def answer(engine: Engine, one: TextRequest) -> list[int]:
    """Submit a request and wait for all of its tokens."""
    engine.submit(one)
    return await rest(engine, one)


async def rest(engine: Engine, one: TextRequest) -> list[int]:
    """The tokens of a request that was submitted."""
    found: list[int] = []
    try:
        while tokens := await engine.next(one):
            found += tokens
    finally:
        engine.cancel(one)
    return found


async def steps_to_first_token(engine: Engine, those: list[TextRequest]) -> list[int]:
    """Submit requests, and how many steps ended until each of them had its first token.

    Counted where the engine gives the token: until its task looks, further steps may have ended.
    """
    import anyio

    begin, found = engine.counters.steps, [0] * len(those)
    number = {id(one): i for i, one in enumerate(those)}
    notify = engine._notify

    def note(request: TextRequest) -> None:
        i = number.get(id(request))
        if i is not None and request.made and not found[i]:
            found[i] = engine.counters.steps - begin
        notify(request)

    engine._notify = note  # type: ignore[method-assign]
    try:
        for one in those:
            engine.submit(one)
        async with anyio.create_task_group() as tasks:
            for one in those:
                tasks.start_soon(engine.next, one)
    finally:
        engine._notify = notify  # type: ignore[method-assign]
    assert all(found)
    return found


async def settle(engine: Engine) -> None:
    """Let the engine take note of its last steps, then look that nothing is left."""
    for _ in range(8):
        for flight in list(engine._flights):
            await flight.future.wait_until_done()
        engine.turn()
    assert not engine._flights
    assert not engine._waiting
    assert not engine._active
    assert not engine._parked
    assert not engine._loops
    assert not engine._arriving
    assert engine.pages.used == 0
    assert len(engine.pages.free_slots) == engine.slots
    assert engine._swapped == 0
    assert len(engine._shares) == 0
    assert engine.queued == engine.active == engine.owed == 0
