"""Replicas behind the deployment in front: which one a prompt goes to, on a cluster.

Here: prefixes that settle, bursts, replicas that are killed, clients that hang up. Not here: the
rule (test_routing.py), streams that go on (test_continued.py), which pages a replica stores
(tests/models/engine/test_beginnings.py).
"""

from __future__ import annotations

import itertools
from collections import Counter
from typing import TYPE_CHECKING, Any

import anyio
import httpx
import numpy as np
import pytest
import ray
from ray_cluster import cluster, replica_actor, served
from waiting import until

from aggml.models.small import write_small
from aggml.serve import Limits
from aggml.serve.http.streams import LARGEST

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.slow,
    # Warnings of Ray's own code, which is imported while these tests run.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]
REPLICAS = 3
IMBALANCE = 3
LONG = 30_000  # more tokens than any test waits for
# Of 200 tokens: whole pages, or all of them if the slot still holds them.
FOUND = (192, 200)
SEEDS = itertools.count(1)


@pytest.fixture
def seed() -> int:
    """Another seed for each test: replicas remember the prompts of earlier tests."""
    return next(SEEDS) * 1000


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    from aggml.ray import service

    folder = tmp_path_factory.mktemp("prefixes")
    model = write_small(folder / "small.gguf")
    for _ in cluster(folder):
        limits = Limits(slots=4, ctx=32_768)
        with served(service([model], replicas=REPLICAS, limits=limits, imbalance=IMBALANCE)) as url:
            yield url


def text(n: int, seed: int) -> list[int]:
    found: list[int] = np.random.default_rng(seed).integers(3, 90, n).tolist()
    return found


async def ask(client: httpx.AsyncClient, url: str, prompt: list[int], **more: Any) -> Any:
    """The replica that answered, the number of cached tokens, the text of the answer."""
    asked = {
        "prompt": prompt,
        "max_tokens": 8,
        "temperature": 0,
        "ignore_eos": True,
        "timeout": 300,
        **more,
    }
    answer = await client.post(f"{url}/v1/completions", json=asked, timeout=300)
    assert answer.status_code == 200, answer.text
    told = answer.json()
    cached = told["usage"]["prompt_tokens_details"]["cached_tokens"]
    return answer.headers["x-aggml-replica"], cached, told["choices"][0]["text"]


async def test_each_beginning_settles_on_one_replica(url: str, seed: int) -> None:
    begins = [text(200, seed + i) for i in range(6)]
    order = np.random.default_rng(1).permutation(np.repeat(np.arange(6), 8)).tolist()
    where: dict[int, set[str]] = {i: set() for i in range(6)}
    hits = 0
    async with httpx.AsyncClient() as client:
        for k, i in enumerate(order):
            # No two go on with the same token, or more than the beginning would be found.
            more = [3 + k, *text(4, seed + 100 + k)]
            replica, cached, _ = await ask(client, url, begins[i] + more)
            assert cached in (FOUND if where[i] else (0,))
            hits += cached > 0
            where[i].add(replica)
    assert all(len(replicas) == 1 for replicas in where.values())
    assert Counter(Counter(next(iter(x)) for x in where.values()).values()) == {2: REPLICAS}
    assert hits == 42  # all of the 48 requests but the first of each prefix


async def test_a_burst_of_one_beginning_goes_to_all_replicas(url: str, seed: int) -> None:
    begin = text(200, seed)
    found: list[Any] = []
    async with httpx.AsyncClient(limits=httpx.Limits(max_connections=64)) as client:
        first, _, _ = await ask(client, url, [*begin, 9])

        async def one(k: int) -> None:
            found.append(await ask(client, url, begin + text(5, 200 + k), max_tokens=400))

        async with anyio.create_task_group() as tasks:
            for k in range(18):
                tasks.start_soon(one, k)
    counts = Counter(replica for replica, _, _ in found)
    assert len(counts) == REPLICAS
    assert counts[first] == max(counts.values())
    # All requests arrived before the first was answered, so these counts are the loads.
    assert max(counts.values()) - min(counts.values()) <= IMBALANCE


async def test_clients_that_hang_up_end_their_requests_on_the_replica(url: str, seed: int) -> None:
    begin = text(200, seed)
    async with httpx.AsyncClient(timeout=300) as client:
        replica, _, _ = await ask(client, url, [*begin, 9])
        actor = replica_actor(replica)
        begun: list[str] = []

        def under_way() -> int:
            return int(ray.get(actor.get_num_ongoing_requests.remote()))

        async def read(k: int) -> None:
            asked = {"prompt": [*begin, k], "max_tokens": LONG, "stream": True, "ignore_eos": True}
            address = f"{url}/v1/completions"
            async with client.stream("POST", address, json=asked) as response:
                async for line in response.aiter_lines():
                    if line.startswith("data: {") and k not in first:
                        first.add(k)
                        begun.append(response.headers["x-aggml-replica"])

        first: set[int] = set()
        with anyio.fail_after(300):
            async with anyio.create_task_group() as tasks:
                for k in range(IMBALANCE):
                    tasks.start_soon(read, k)
                await until(lambda: len(begun) == IMBALANCE, 300)
                assert await anyio.to_thread.run_sync(under_way) == IMBALANCE
                tasks.cancel_scope.cancel()
        assert begun == [replica] * IMBALANCE

        # if the answers went on to their end this would take several minutes
        async def ended() -> bool:
            return not await anyio.to_thread.run_sync(under_way)

        await until(ended, seconds=300, pause=0.1)
        answer = await ask(client, url, [*begin, 9])
        assert answer[0] == replica
        assert answer[1] in FOUND


async def test_beginnings_of_a_killed_replica_move(url: str, seed: int) -> None:
    begin = text(200, seed)
    async with httpx.AsyncClient(timeout=300) as client:
        replica, _, said = await ask(client, url, [*begin, 5])
        answer = await ask(client, url, [*begin, 5])
        assert (answer[0], answer[2]) == (replica, said)
        assert answer[1] in FOUND
        found: list[Any] = []

        async def whole() -> None:
            found.append(await ask(client, url, [*begin, 5], max_tokens=2000))

        def kill_when_it_computes() -> None:
            actor = replica_actor(replica)
            while not ray.get(actor.get_num_ongoing_requests.remote()):
                pass
            ray.kill(actor)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(whole)
            await anyio.to_thread.run_sync(kill_when_it_computes)
        # A request that had no token of its answer yet got all tokens from another replica.
        assert found[0][0] != replica
        assert found[0][2].startswith(said)
        again = await ask(client, url, [*begin, 5])
        assert again[0] != replica
        assert again[2] == said
        answer = await ask(client, url, [*begin, 5])
        assert (answer[0], answer[2]) == (again[0], said)
        assert answer[1] in FOUND


async def test_what_replicas_refuse_arrives_as_they_say_it(url: str) -> None:
    async with httpx.AsyncClient(timeout=300) as client:
        unknown = await client.post(f"{url}/v1/completions", json={"model": "no", "prompt": "a"})
        assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")
        broken = await client.post(f"{url}/v1/completions", content=b"{")
        assert broken.status_code == 400
        large = await client.post(f"{url}/v1/completions", content=b"x" * (LARGEST + 1))
        assert large.status_code == 413
        assert (await client.get(f"{url}/nowhere")).status_code == 404
        assert (await client.get(f"{url}/health")).json()["status"] == "ok"
