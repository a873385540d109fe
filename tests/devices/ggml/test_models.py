"""A llama on ggml's devices gives the CPU's tokens: alone, split with the CPU, on two servers.

Not here: what a scheduler decides (tests/scheduler), models (tests/models).
"""

from __future__ import annotations

from contextlib import AsyncExitStack, ExitStack
from typing import TYPE_CHECKING

import pytest
from devices.ggml import builds

import aggml
from aggml.models.small import write_small

if TYPE_CHECKING:
    from pathlib import Path

    from aggml.devices.ggml import GgmlDevice

PROMPT = "Once upon a time"
HALF = 10 << 20  # memory for some of the small model's layers, not for all


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small(tmp_path_factory.mktemp("models") / "small.gguf")


async def tokens(path: Path, site: aggml.Backend | aggml.Scheduler) -> list[int]:
    async with await aggml.models.load(path, site, ctx=256) as model:
        return [token.id async for token in model.generate(PROMPT, max_tokens=20)]


async def over(path: Path, devices: list[GgmlDevice]) -> list[int]:
    """A scheduler over these devices and our CPU."""
    async with AsyncExitStack() as stack:
        backends: list[aggml.Backend] = [
            await stack.enter_async_context(device.backend(n_threads=2))
            for device in (*devices, aggml.get_device("CPU"))
        ]
        scheduler = await stack.enter_async_context(aggml.Scheduler(backends))
        return await tokens(path, scheduler)


@pytest.fixture
async def wanted(small: Path) -> list[int]:
    async with aggml.get_device("CPU").backend(n_threads=2) as be:
        return await tokens(small, be)


@pytest.mark.parametrize("name", ["CPU", "Vulkan0"])
async def test_alone(small: Path, wanted: list[int], name: str) -> None:
    async with builds.device(name).backend(n_threads=2) as be:
        assert await tokens(small, be) == wanted


async def test_split_between_vulkan_and_the_cpu(
    small: Path, wanted: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    device = builds.device("Vulkan0")
    monkeypatch.setattr(device, "memory", lambda: (HALF, HALF))
    assert await over(small, [device]) == wanted


async def test_over_two_servers(small: Path, wanted: list[int]) -> None:
    with ExitStack() as stack:
        devices = [stack.enter_context(builds.server())[1][0] for _ in range(2)]
        assert await over(small, devices) == wanted
