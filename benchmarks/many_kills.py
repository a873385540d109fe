"""``python -m benchmarks.many_kills``: parts of a pipeline on Ray die. Are the answers right?

In each round some generations run at the same time, and at a random token one of these is killed or
cut: a stage's process; a raylet, the daemon of a node, and all of its processes with it; the
driver's connections to the stages; the driver's connections to Ray's GCS. In the last round it is
the driver's own raylet. Each generation must give the tokens that one machine gives, or raise an
error of aggml. Not here: what a pipeline costs (many_machines.py).
"""

from __future__ import annotations

import argparse
import collections
import json
import logging
import os
import random
import signal
import socket
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio

# Ray ends a program that has not reached the GCS for a minute. On a machine under load connecting
# again takes longer.
os.environ.setdefault("RAY_gcs_rpc_server_reconnect_timeout_s", "600")
import ray
from ray.cluster_utils import Cluster
from ray.exceptions import RayError

import aggml
from aggml.models.small import write_small
from aggml.ray import pipeline, result

if TYPE_CHECKING:
    from collections.abc import Sequence

PLACE = {"CPU": 1.0, "worker": 1.0}
PROMPT = list(range(40, 60))
TOKENS = 32
GENERATIONS = 4
NODE: dict[str, Any] = {"num_cpus": 4, "object_store_memory": 128 << 20}
VICTIMS = ("stage", "raylet", "connections", "gcs")
WAIT = 240.0  # seconds for a generation, so that one that hangs is counted, too


def cut_to(port: int) -> int:
    """Shut all TCP connections of this process to a port of this machine; returns how many."""
    inodes = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/self/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if int(fields[2].rsplit(":", 1)[1], 16) == port and fields[3] == "01":
                inodes.add(f"socket:[{fields[9]}]")
    n = 0
    for entry in Path("/proc/self/fd").iterdir():
        try:
            if os.readlink(entry) in inodes:
                with socket.socket(fileno=os.dup(int(entry.name))) as found:
                    found.shutdown(socket.SHUT_RDWR)
                n += 1
        except OSError:  # the connection was closed meanwhile
            continue
    return n


class Rounds:
    """The rounds, with counts of the victims and of the answers."""

    def __init__(self, cluster: Any, model: Any, wanted: list[int], seed: int) -> None:
        self.cluster = cluster
        self.model = model
        self.wanted = wanted
        self.dice = random.Random(seed)
        self.killed: collections.Counter[str] = collections.Counter()
        self.answered: collections.Counter[str] = collections.Counter()
        self.cut = 0
        self.dead: Any = None  # a node whose raylet was killed in this round

    async def one(self, doomed: int | None, victim: str) -> None:
        """Run a generation; at its token ``doomed`` the victim dies."""
        got: list[int] = []
        how = "right"
        try:
            with anyio.fail_after(WAIT):
                tokens = self.model.generate(PROMPT, max_tokens=TOKENS, stop_ids=[])
                async for token in tokens:
                    got.append(token.id)
                    if len(got) == doomed:
                        await self.kill(victim)
        except aggml.AggmlError as error:
            how = f"failed typed: {type(error).__name__}"
            if got != self.wanted[: len(got)]:
                how = "wrong"
        except TimeoutError:
            how = "hung"
        else:
            if got != self.wanted:
                how = "wrong"
        self.answered[how] += 1

    async def kill(self, victim: str) -> None:
        """Kill a victim, or cut its connections, without warning."""
        self.killed[victim] += 1
        stages = self.model._decoder.stages
        if victim == "stage":
            try:
                with anyio.fail_after(30):
                    pid = await result(self.dice.choice(stages.actors).pid.remote())
            except (RayError, TimeoutError):
                return  # the stage is dead already
            os.kill(pid, signal.SIGKILL)
        elif victim == "raylet":
            doomed = self.dice.choice(sorted(self.cluster.worker_nodes, key=str))
            _kill(doomed)
            self.dead = doomed
        elif victim == "connections":
            if stages.wire is not None:
                stages.wire.drop()
        elif victim == "gcs":
            self.cut += cut_to(int(self.cluster.address.rsplit(":", 1)[1]))
        else:
            _kill(self.cluster.head_node)

    async def round(self, victim: str) -> None:
        doomed = self.dice.randrange(1, TOKENS)
        async with anyio.create_task_group() as tasks:
            for i in range(GENERATIONS):
                tasks.start_soon(self.one, doomed if i == 0 else None, victim)
        dead, self.dead = self.dead, None
        if dead is not None:  # another node replaces it
            self.cluster.remove_node(dead, allow_graceful=False)
            self.cluster.add_node(**NODE, resources={"worker": 4})


def _kill(node: Any) -> None:
    for process in node.all_processes["raylet"]:
        os.kill(process.process.pid, signal.SIGKILL)


def in_store() -> float:
    """Bytes in Ray's object stores."""
    have: Any = ray.cluster_resources()  # type: ignore[no-untyped-call]
    left: Any = ray.available_resources()  # type: ignore[no-untyped-call]
    return float(have.get("object_store_memory", 0) - left.get("object_store_memory", 0))


async def run(cluster: Any, path: Path, given: argparse.Namespace) -> dict[str, Any]:
    async with await aggml.models.load(path, ctx=256) as alone:
        wanted = [x.id async for x in alone.generate(PROMPT, max_tokens=TOKENS, stop_ids=[])]
    stores = []
    model = await pipeline(path, 2, ctx=256, slots=GENERATIONS, resources=PLACE, patience=90)
    async with model:
        rounds = Rounds(cluster, model, wanted, given.seed)
        begin = time.perf_counter()
        for i in range(given.rounds):
            await rounds.round(rounds.dice.choice(given.victims))
            if i % 10 == 9:
                stores.append(in_store())
                seconds = time.perf_counter() - begin
                print(
                    f"round {i + 1}, {seconds:.0f} s: {dict(rounds.killed)} "
                    f"{dict(rounds.answered)}, {stores[-1]:.0f} bytes stored",
                    flush=True,
                )
        took = time.perf_counter() - begin
        losses = model.losses
        before = dict(rounds.answered)
        if given.last:
            await rounds.round("driver's raylet")
    last = {k: v - before.get(k, 0) for k, v in rounds.answered.items()}
    return {
        "rounds": given.rounds, "killed": dict(rounds.killed), "losses": losses,
        "answers": before, "connections to the GCS that were cut": rounds.cut,
        "answers when the driver's raylet died": {k: v for k, v in last.items() if v},
        "seconds": took, "bytes in the object store at most": max(stores, default=0.0),
    }  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--victims", nargs="+", default=VICTIMS, choices=VICTIMS)
    parser.add_argument("--model", type=Path, help="a GGUF file; else a small random llama")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--last", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--loop", default="asyncio", choices=["asyncio", "trio"])
    parser.add_argument("--out", type=Path, help="a file for the figures, as JSON")
    given = parser.parse_args(arguments)
    head: Any = {**NODE, "include_dashboard": False}
    cluster: Any = Cluster(initialize_head=True, head_node_args=head)
    try:
        for _ in range(3):
            cluster.add_node(**NODE, resources={"worker": 4})
        ray.init(address=cluster.address, log_to_driver=False, logging_level=logging.CRITICAL)
        with tempfile.TemporaryDirectory() as folder:
            path = given.model or write_small(Path(folder) / "small.gguf")
            found = anyio.run(run, cluster, path, given, backend=given.loop)
    finally:
        ray.shutdown()
        cluster.shutdown()
    print(json.dumps(found, indent=1))
    if given.out:
        given.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
