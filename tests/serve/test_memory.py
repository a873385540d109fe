"""Keys, values and states never take more memory than the service was given, as the system counts.

Not here: the count of pages (test_pages.py), what is stored (test_prefixes.py).
"""

from __future__ import annotations

import ctypes
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import numpy as np
import pytest
from models import random_models
from serve.running import PATIENCE, all_of, greedy

import aggml
from aggml.models import ModelError
from aggml.models.decoder.generating import generate
from aggml.models.decoder.sampling import Sampler
from aggml.models.kv.paging import PAGE, PagedDecoder
from aggml.models.loading import load_decoder
from aggml.models.weights import open_model
from aggml.serve import Completer, Limits, opened

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aggml.serve import Engine

CTX = 512
MAPPING = re.compile(
    rb"^([0-9a-f]+)-([0-9a-f]+) [^\n]*\n(?:[A-Z][^\n]*\n)*?Anonymous: +(\d+)", re.MULTILINE
)


def resident(model: PagedDecoder) -> int:
    """Bytes of memory that the system has given to a model's caches.

    mincore would also count pages that were only read, which all share one page of zeros.
    """
    if not sys.platform.startswith("linux"):
        pytest.skip("smaps tells of anonymous memory on Linux only")
    ranges = []
    for held, _ in model._maps:
        first = ctypes.addressof(ctypes.c_char.from_buffer(held))
        ranges.append((first, first + len(held)))
    total = 0
    # One expression over the whole text: it is read after each step, and has tens of thousands of
    # lines. Line by line in Python that was most of the time of these tests.
    for found in MAPPING.finditer(Path("/proc/self/smaps").read_bytes()):
        begin, end = int(found[1], 16), int(found[2], 16)
        if any(first <= begin and end <= last for first, last in ranges):
            total += int(found[3]) * 1024
    return total


def text(n: int, seed: int) -> list[int]:
    return [1, *np.random.default_rng(seed).integers(3, 60, n - 1).tolist()]


async def alone(file: Path, prompt: Sequence[int], n: int, cache: str) -> list[int]:
    with await open_model(file) as opened_file:
        async with aggml.get_device("CPU").backend() as backend:
            model = await load_decoder(
                backend, opened_file, kind=PagedDecoder, ctx=CTX, cache=cache
            )
            steps = generate(model, prompt, [Sampler(temperature=0)], n_predict=n)
            return [x for (x,) in [tokens async for tokens in steps] if x is not None]


def watch(engine: Engine, most: int) -> list[int]:
    """Note the memory after each step; it is checked there."""
    seen: list[int] = []
    step = engine._step

    async def watched(*given: object) -> None:
        await step(*given)  # type: ignore[arg-type]
        await engine._keeper.done()
        seen.append(resident(engine.model))
        assert seen[-1] <= most, f"{seen[-1]} bytes are in memory, {most} are allowed"

    engine._step = watched  # type: ignore[method-assign, assignment]
    return seen


@pytest.mark.parametrize("layout", ["llama", "llama-wide-heads", "gemma2", "mamba2", "qwen3next"])
@pytest.mark.parametrize("cache", ["f16", "q8_0"])
@pytest.mark.parametrize("pages", [10, 17])
async def test_the_system_counts_no_more_memory_than_was_given(
    tmp_path: Path, layout: str, cache: str, pages: int
) -> None:
    words = random_models.words(*(f"▁{i}" for i in range(40)))
    file = random_models.write(tmp_path / "model.gguf", layout, words)
    asked = [text(n, n) for n in (3, 200, 250, 60, 130, 70, 240, 90, 33, 5)]
    asked += [asked[1][:150] + text(20, i)[1:] for i in range(4)]
    found: dict[int, list[int]] = {}
    async with aggml.get_device("CPU").backend(n_threads=2) as backend:
        with await open_model(file) as opened_file:
            try:
                model = await load_decoder(
                    backend, opened_file, kind=PagedDecoder, ctx=CTX, cache=cache
                )
            except ModelError:
                pytest.skip(f"{layout} has no cache of {cache}")
            most = pages * model.page_bytes()
            least = model.pages(0, 1).need(260)
            slack = model.slack(16)
            model.close()
        most = max(most, least * model.page_bytes()) + slack
        limits = Limits(slots=5, ctx=CTX, cache=cache, kv_memory=most, chunk=64)
        async with opened(file, backend, limits) as served:
            assert isinstance(served, Completer)
            engine = served.engine
            seen = watch(engine, most)

            async def one(i: int) -> None:
                found[i] = await all_of(engine, greedy(asked[i], 7))

            with anyio.fail_after(PATIENCE):
                for _ in range(2):
                    async with anyio.create_task_group() as tasks:
                        for i in range(len(asked)):
                            tasks.start_soon(one, i)
    assert seen
    assert max(seen) <= most
    for i in (1, 6, 11):
        assert found[i] == await alone(file, asked[i], 7, cache)


async def test_a_prompt_for_which_no_shared_rows_are_left_is_processed_in_its_slot(
    tmp_path: Path,
) -> None:
    words = random_models.words(*(f"▁{i}" for i in range(40)))
    file = random_models.write(tmp_path / "model.gguf", "llama", words)
    asked = [text(250, 1), text(249, 2), text(100, 3)]
    async with aggml.get_device("CPU").backend(n_threads=2) as backend:
        with await open_model(file) as opened_file:
            model = await load_decoder(backend, opened_file, kind=PagedDecoder, ctx=CTX)
            most = 5 * model.page_bytes() + model.slack(16)
            model.close()
        limits = Limits(slots=3, ctx=CTX, kv_memory=most, chunk=64, prefix_cache=0)
        async with opened(file, backend, limits) as served:
            assert isinstance(served, Completer)
            seen = watch(served.engine, most)
            jobs = [greedy(prompt, 60) for prompt in asked]
            async with anyio.create_task_group() as tasks:
                for job in jobs:
                    tasks.start_soon(all_of, served.engine, job)
            assert [job.in_place for job in jobs] == [True, True, False]
    assert seen
    for job in jobs:
        assert job.made == await alone(file, job.prompt, 60, "f16")
    assert PAGE * 5 == 320
