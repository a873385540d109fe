"""Keys, values and states never take more memory than the engine was given, as the system counts.

Not here: the count of pages (test_pages.py), stored beginnings of prompts (../kv/).
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import numpy as np
import pytest
from models import random_models
from models.engine.running import all_of, alone, engine_of, running, text, until

from aggml.models.decoder import steps as decoder_steps
from aggml.models.errors import ModelError
from aggml.models.kv.paging import PAGE

if TYPE_CHECKING:
    from aggml.models.engine.engine import Engine
    from aggml.models.kv.paging import PagedDecoder
    from aggml.models.text_model import TextModel


#: Bits of an entry of pagemap: the page is there, and no other mapping has it.
_PRESENT, _EXCLUSIVE = np.uint64(1 << 63), np.uint64(1 << 56)


def resident(decoder: PagedDecoder) -> int:
    """Bytes of memory that the system has given to a decoder's caches.

    mincore would also count pages that were only read, which all share one page of zeros. smaps
    walks through all memory of the process at each step, and misses what the system has merged
    with a neighbour.
    """
    if not sys.platform.startswith("linux"):
        pytest.skip("pagemap tells of pages on Linux only")
    own, total = _PRESENT | _EXCLUSIVE, 0
    with Path("/proc/self/pagemap").open("rb", buffering=0) as file:
        for held, _ in decoder._maps:
            begin = ctypes.addressof(ctypes.c_char.from_buffer(held)) // mmap.PAGESIZE
            n = -(-len(held) // mmap.PAGESIZE)
            entries = np.frombuffer(os.pread(file.fileno(), 8 * n, 8 * begin), np.uint64)
            assert len(entries) == n
            total += int(np.count_nonzero(entries & own == own)) * mmap.PAGESIZE
    return total


def watch(engine: Engine) -> list[int]:
    """Note the memory whenever a step is about to be queued."""
    seen: list[int] = []
    launch = engine._launch

    def watched(plan: Any) -> bool:
        seen.append(resident(engine.decoder))
        return launch(plan)

    engine._launch = watched  # type: ignore[method-assign]
    return seen


def small(n: int, seed: int) -> list[int]:
    """A prompt of ``n`` tokens out of the first 60."""
    return [x % 57 + 3 for x in text(n, seed)]


@pytest.mark.long(cases=1)
@pytest.mark.parametrize("layout", ["llama", "llama-wide-heads", "gemma2", "mamba2", "qwen3next"])
@pytest.mark.parametrize(
    ("cache", "pages"),
    [("f16", 10), ("q8_0", 17), pytest.param("f16", 17, marks=pytest.mark.slow),
     pytest.param("q8_0", 10, marks=pytest.mark.slow)],
)  # fmt: skip
async def test_the_system_counts_no_more_memory_than_was_given(
    tmp_path: Path, layout: str, cache: str, pages: int
) -> None:
    file = random_models.write(tmp_path / "model.gguf", layout)
    asked = [small(n, n) for n in (3, 200, 250, 60, 130, 70, 240, 90, 33, 5)]
    asked += [asked[1][:150] + small(20, i)[1:] for i in range(4)]
    found: dict[int, list[int]] = {}

    async def one(model: TextModel, i: int) -> None:
        found[i] = await all_of(model, asked[i], 7)

    try:
        async with running(file, slots=5, budget=pages, chunk=64, cache=cache) as model:
            engine = engine_of(model)
            budget = max(pages, engine.pages.need(260))
            engine.pages.budget = budget
            most = budget * engine.decoder.page_bytes() + engine.decoder.slack(7)
            seen = watch(engine)
            for _ in range(2):
                async with anyio.create_task_group() as tasks:
                    for i in range(len(asked)):
                        tasks.start_soon(one, model, i)
    except ModelError:
        pytest.skip(f"{layout} has no cache of {cache}")
    assert 0 < max(seen) <= most
    for i in (1, 6, 11):
        assert found[i] == await alone(file, asked[i], 7, cache)


async def test_a_prompt_for_which_no_shared_rows_are_left_is_processed_in_its_slot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = random_models.write(tmp_path / "model.gguf", "llama")
    asked = [small(250, 1), small(249, 2), small(100, 3)]
    found: dict[int, list[int]] = {}
    places: dict[int, bool] = {}

    async def one(model: TextModel, i: int) -> None:
        found[i] = await all_of(model, asked[i], 60)

    async with running(file, slots=3, budget=5, chunk=64) as model:
        engine = engine_of(model)
        launch = engine._launch

        def watched(plan: Any) -> bool:
            places.update((len(x.tokens), piece.at is None) for x, piece in plan.chunk)
            return launch(plan)

        def have_come(n: int) -> bool:
            return engine.queued + engine.active > n

        monkeypatch.setattr(engine, "_launch", watched)
        async with anyio.create_task_group() as tasks:
            for i in range(len(asked)):
                tasks.start_soon(one, model, i)
                await until(partial(have_come, i))
    assert places == {250: True, 249: True, 100: True}
    for i, prompt in enumerate(asked):
        assert found[i] == await alone(file, prompt, 60)
    assert PAGE * 5 == 320


async def test_logits_of_prompts_of_many_lengths_keep_few_large_results(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoder_steps, "LARGE", 1 << 12)
    monkeypatch.setattr(decoder_steps, "RESULTS", 1 << 18)
    async with running(file) as model:
        lengths = (5, 20, 40, 60, 90, 120, 180, 250, 30)
        wanted = {n: await model.logits(text(n, n)) for n in lengths}
        largest = max(x.nbytes for x in wanted.values())
        kept = engine_of(model).decoder._steps._kept.values()
        sizes = [decoder_steps._results(x) for x in kept]
        assert sum(sizes) <= max(2 * largest, 1 << 18)
        assert sum(x.nbytes for x in wanted.values()) > 3 << 18
        for n in lengths:
            assert (await model.logits(text(n, n)) == wanted[n]).all()
