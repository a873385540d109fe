"""What aggml.serve tells of stored beginnings of prompts: usage and metrics.

Not here: beginnings that are stored, used and given up (tests/models/engine/test_beginnings.py),
which replica gets a prompt (tests/ray).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from serve.support import GREEDY, engine_of, serving

if TYPE_CHECKING:
    from pathlib import Path

PROMPT: list[int] = [1, *np.random.default_rng(18).integers(3, 290, 199).tolist()]
OTHER: list[int] = [1, *np.random.default_rng(19).integers(3, 290, 9).tolist()]


async def cached(client: Any, **options: Any) -> tuple[int, str]:
    """How many tokens of the prompt were not computed, and the first answer's text."""
    body = {"prompt": PROMPT, "max_tokens": 4, **GREEDY, **options}
    answer = (await client.post("/v1/completions", json=body)).json()
    told: int = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return told, answer["choices"][0]["text"]


async def test_usage_and_metrics_tell_of_cached_tokens(file: Path) -> None:
    async with serving(models=[file], slots=1) as (app, client):
        first = await cached(client)
        await cached(client, prompt=OTHER)  # it has the slot meanwhile
        second = await cached(client)
        third = await cached(client)  # the slot still has all tokens; the last one is computed
        assert [first[0], second[0], third[0]] == [0, 192, 199]
        assert first[1] == second[1] == third[1]
        metrics = (await client.get("/metrics")).text
        name = next(iter(app.state.service.completers))
        assert f'aggml_cached_prompt_tokens{{model="{name}"}} {192.0 + 199.0}' in metrics
        stored = engine_of(app).page_usage.stored
        assert stored >= 3
        assert f'aggml_pages_stored{{model="{name}"}} {float(stored)}' in metrics


async def test_the_store_can_be_switched_off(file: Path) -> None:
    async with serving(models=[file], slots=1, prefix_cache=0) as (app, client):
        for _ in range(2):
            assert (await cached(client))[0] == 0
            assert (await cached(client, prompt=OTHER))[0] <= 1
        assert engine_of(app).page_usage.stored == 0
