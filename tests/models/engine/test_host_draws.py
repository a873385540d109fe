"""A device without the ops that draw tokens, as those of ggml: the host draws the same ones.

Not here: ggml's devices themselves (tests/devices/ggml), which tokens are drawn (tests/models).
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import pytest

import aggml
from aggml.devices.sim import SimDevice
from aggml.models.small import write_small

if TYPE_CHECKING:
    from pathlib import Path

PROMPT = "Once upon a time"
MISSING = ("sample", "penalize")
BEST: dict[str, Any] = {"temperature": 0}
DRAWN: dict[str, Any] = {"temperature": 1.5, "seed": 3}
REQUESTS: tuple[dict[str, Any], ...] = (
    BEST,
    {**BEST, "presence_penalty": 1.5},
    {**BEST, "logit_bias": {7: 5.0}},
    DRAWN,
    {**DRAWN, "top_k": 200},
    {**DRAWN, "repetition_penalty": 1.3},
)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small(tmp_path_factory.mktemp("models") / "small.gguf")


async def answers(small: Path, *devices: aggml.Device, draft: str | None = None) -> list[list[int]]:
    """The tokens of each request, one after the other: beside others rounding may be different."""
    async with AsyncExitStack() as stack:
        backends = [await stack.enter_async_context(x.backend(n_threads=1)) for x in devices]
        site: aggml.Backend | aggml.Scheduler = backends[0]
        if len(backends) > 1:
            site = await stack.enter_async_context(aggml.Scheduler(backends))
        model = await stack.enter_async_context(
            await aggml.models.load(small, site, ctx=256, draft=draft)
        )

        return [
            [x.id async for x in model.generate(PROMPT, max_tokens=12, **request)]
            for request in REQUESTS
        ]


@pytest.fixture
async def wanted(small: Path) -> list[list[int]]:
    return await answers(small, aggml.get_device("CPU"))


@pytest.mark.long(cases=1)
async def test_the_host_draws_what_a_device_would_draw(
    small: Path, wanted: list[list[int]]
) -> None:
    poor = SimDevice("POOR", unsupported=MISSING)
    assert await answers(small, poor) == wanted
    assert len({tuple(x) for x in wanted}) > 3  # the requests differ


@pytest.mark.long(cases=1)
async def test_another_device_of_a_scheduler_draws(small: Path, wanted: list[list[int]]) -> None:
    poor = SimDevice("POOR", unsupported=MISSING)
    assert await answers(small, poor, aggml.get_device("CPU")) == wanted


@pytest.mark.long(cases=1)
@pytest.mark.parametrize("draft", ["lookup", "itself"])
async def test_drafts_are_verified_by_the_host(
    small: Path, wanted: list[list[int]], draft: str
) -> None:
    poor = SimDevice("POOR", unsupported=MISSING)
    given = str(small) if draft == "itself" else draft
    assert await answers(small, poor, draft=given) == wanted
