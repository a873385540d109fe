"""A stream whose replica dies, or the replica's node: another replica goes on, no token is lost.

Here: kills on a cluster. Not here: every place where a stream can be cut
(tests/serve/test_resuming.py), answers that had not begun (test_prefixes.py).
"""

from __future__ import annotations

import json
import os
import signal
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import httpx
import numpy as np
import pytest
import ray
from ray_cluster import STORE, cluster, replica_actor, served
from waiting import until

import aggml
from aggml.models.small import write_small
from aggml.serve import Limits

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from pathlib import Path

pytestmark = [
    pytest.mark.slow,
    # Warnings of Ray's own code, which is imported while these tests run.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]
LONG = 30_000  # so many tokens that the replica is still busy when it is killed
BEFORE, AFTER = 20, 200  # events that are read before the kill, and from the other replica
CONTINUED = ": continued on "
NODE: dict[str, Any] = {"num_cpus": 4, "object_store_memory": STORE, "resources": {"worker": 1}}
PROMPT = np.random.default_rng(3).integers(3, 90, 200).tolist()
HOW: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "drawn": {"temperature": 1.0, "top_k": 40, "seed": 5},
}


def forgetful(path: Path) -> Path:
    """Write a model whose next token depends on the last one alone, not on earlier ones.

    Keys of tokens that are computed together differ from keys computed one by one, by the rounding
    of f16. With a complete model the 174th token of this prompt changed after a quarter of the
    cuts.
    """
    write_small(path)
    with aggml.GGUFFile.open(path, mmap=False) as file:
        whole = bytearray(path.read_bytes())
        for name in file.tensors:
            if name.endswith((".attn_output.weight", ".ffn_down.weight")):
                data = file.data(name).tobytes()
                assert whole.count(data) == 1
                at = whole.index(data)
                whole[at : at + len(data)] = bytes(len(data))
    path.write_bytes(whole)
    return path


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A head, and two nodes that have room for one replica each."""
    for made in cluster(tmp_path_factory.mktemp("continued"), nodes=1):
        for _ in range(2):
            made.add_node(**NODE)
        yield made


@pytest.fixture(scope="module")
def url(nodes: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    from aggml.ray import service

    model = forgetful(tmp_path_factory.mktemp("models") / "small.gguf")
    limits = Limits(slots=4, ctx=32_768)
    with served(service([model], replicas=2, limits=limits, resources={"worker": 1})) as url:
        yield url


async def both_run() -> None:
    """Wait until Ray Serve has two replicas again."""
    from ray import serve

    def running() -> int:
        states: Any = serve.status().applications["default"].deployments["aggml"].replica_states
        return int(states.get("RUNNING", 0)) if set(states) <= {"RUNNING"} else 0

    async def both() -> bool:
        return await anyio.to_thread.run_sync(running) >= 2

    await until(both, seconds=550, pause=0.2)


async def read(url: str, asked: dict[str, Any], see: Callable[[str, str], Awaitable[bool]]) -> None:
    """Read a stream until ``see`` returns true. It gets the first replica's name and a line.

    The service's comments on a quiet connection are left out.
    """
    asked = {"prompt": PROMPT, "max_tokens": LONG, "ignore_eos": True, "timeout": 550, **asked}
    address = f"{url}/v1/completions"
    async with httpx.AsyncClient(timeout=500) as client:
        with anyio.CancelScope() as scope:  # cancelling closes all iterators of httpx, also on trio
            async with client.stream("POST", address, json=asked | {"stream": True}) as response:
                assert response.status_code == 200
                first = response.headers["x-aggml-replica"]
                async for line in response.aiter_lines():
                    told = line.startswith(CONTINUED) or not line.startswith(":")
                    if line and told and not scope.cancel_called and await see(first, line):
                        scope.cancel()
        assert scope.cancelled_caught


def text_of(line: str) -> tuple[str, str]:
    """The text of an event, and the id of its answer."""
    event = json.loads(line.removeprefix("data: "))
    assert "error" not in event, event
    return event["choices"][0]["text"], event["id"]


def kill(nodes: Any, replica: str, victim: str) -> Any:
    """Kill a replica's process, or its node. Returns the node if it was killed."""
    actor = replica_actor(replica)
    if victim == "process":
        pid: Any = ray.get(actor.__ray_call__.remote(lambda _: os.getpid()))
        os.kill(pid, signal.SIGKILL)
        return None
    where: Any = ray.get(
        actor.__ray_call__.remote(lambda _: ray.get_runtime_context().get_node_id())
    )
    (node,) = [x for x in nodes.worker_nodes if x.node_id == where]
    for process in node.all_processes["raylet"]:
        os.kill(process.process.pid, signal.SIGKILL)
    return node


@pytest.mark.parametrize("victim", ["process", "node"])
@pytest.mark.parametrize("how", HOW)
async def test_a_stream_goes_on_in_another_replica(
    nodes: Any, url: str, how: str, victim: str
) -> None:
    await both_run()
    texts: list[str] = []
    names: set[str] = set()
    replicas: list[str] = []
    after = 0
    dead: Any = None

    async def disturb(first: str, line: str) -> bool:
        nonlocal after, dead
        if line.startswith(CONTINUED):
            replicas.extend([first, line.removeprefix(CONTINUED)])
            return False
        text, name = text_of(line)
        texts.append(text)
        names.add(name)
        after += bool(replicas)
        if len(texts) == BEFORE:
            dead = await anyio.to_thread.run_sync(kill, nodes, first, victim)
        return after == AFTER

    await read(url, HOW[how], disturb)
    if dead is not None:  # replace the node that was killed
        nodes.remove_node(dead, allow_graceful=False)
        nodes.add_node(**NODE)
    assert len(set(replicas)) == len(replicas) == 2
    assert len(names) == 1
    whole, wanted = "".join(texts), ""

    async def leave(_: str, line: str) -> bool:
        nonlocal wanted
        wanted += text_of(line)[0]
        return len(wanted) >= len(whole)

    await read(url, HOW[how], leave)
    assert wanted.startswith(whole)
