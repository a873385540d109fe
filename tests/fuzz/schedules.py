"""Schedules: random submissions with operations of users in between, against one numpy model.

Several simulated devices and CPUs, threads, held streams, new pins, rebuilt graphs; half of the
programs under the race checker. Not here: the graphs (schedule_graphs.py), the order that several
threads leave open (interleavings.py).
"""

from __future__ import annotations

import gc
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
from fuzz.interleavings import Event, agree
from fuzz.rounds import Failure, Report, draw
from fuzz.schedule_graphs import HALF, OPS, Drawn, N, State, draw_graph, small

import aggml
from aggml import Scheduler
from aggml.devices.meta import MetaDevice
from aggml.devices.sim import SimDevice

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    import numpy as np

    Array = np.ndarray[Any, Any]
    Act = Callable[[], Event]

__all__ = ["run"]

SHORT = 60
HANG = 120  # seconds; what takes longer never ends

# The steps of a program, and how often each is drawn.
KINDS = {
    "submit": 40,
    "use": 35,  # an operation that a user queues on a backend
    "storm": 6,  # another thread queues operations on the cells while this one submits
    "hold": 8,
    "release": 5,
    "new graph": 6,
    "pin": 3,
    "prepare": 2,
    "settle": 3,
    "reset": 1,
    "move": 4,  # a cell gets other memory and another value
    "move meanwhile": 4,  # while another task submits, which plans if it is the first time
}


class Dropped(Exception):
    """Raised by the body of a batch."""


class World:
    """Devices, backends, cells and a scheduler of one program."""

    def __init__(self, rng: random.Random, threads: ThreadPoolExecutor) -> None:
        self.rng = rng
        self.threads = threads
        self.backends: list[aggml.Backend] = []
        for d in range(rng.randint(1, 3)):
            device = SimDevice(
                f"sim{d}",
                latency=rng.choice((0, 0, 0, 5e-5)),
                unsupported=rng.sample(OPS, rng.randint(0, 2)),
                reads_host=rng.random() < 0.2,
            )
            self.backends += [device.backend() for _ in range(rng.choice((1, 1, 1, 2)))]
        if rng.random() < 0.2:
            members = [SimDevice(f"m{i}", unsupported=rng.sample(OPS, 1)) for i in range(2)]
            self.backends.append(MetaDevice(members).backend())
        host = aggml.get_device("CPU")
        self.backends += [host.backend(n_threads=1) for _ in range(rng.choice((1, 1, 2)))]
        self.cells: list[aggml.Tensor] = []
        # for each cell, the backend that placed it and on which its user queues operations
        self.homes: list[aggml.Backend] = []
        for i in range(rng.randint(2, 5)):
            # a meta device divides what is called like a cache
            name = rng.choice((f"cell{i}", f"cache_k.{i}"))
            cell = aggml.new_tensor("f32", ne=(N,), name=name)
            home = rng.choice(self.backends)
            home.alloc([cell])
            self.cells.append(cell)
            self.homes.append(home)
        self.limit = rng.choice((4, 4, 1, 2, None))
        self.parallel = rng.choice((False, True, True, 2))
        self.sched = Scheduler(self.backends, parallel=self.parallel, max_in_flight=self.limit)
        self.graphs: list[Drawn] = []
        # in order; each entry has a row of events for each thread that ran at once
        self.events: list[list[list[Event]]] = []
        self.told: list[str] = []
        self.flying: list[aggml.Future[Any]] = []
        self.held: list[aggml.Stream] = []
        self.counts: Counter[str] = Counter()
        for i, cell in enumerate(self.cells):
            self.note(self.set_whole(i)())
            assert cell.placement is not None

    # -- the log of events

    def note(self, *threads: Event | list[Event]) -> None:
        """Note an entry of the log: the events of one thread, or of several that ran at once."""
        rows = [[t] if isinstance(t, Event) else t for t in threads]
        self.events.append(rows)
        self.told.append(" | ".join("; ".join(e.what for e in row) for row in rows))
        self.counts["operations"] += sum(map(len, rows))

    def tell(self, what: str) -> None:
        self.events.append([])
        self.told.append(what)

    # -- operations of users: each method draws all its choices and returns the function that acts

    def set_whole(self, i: int) -> Act:
        x, cell, home = small(self.rng), self.cells[i], self.homes[i]
        copy = self.rng.random() < 0.5

        def apply(state: State) -> list[Array]:
            state[i] = x.copy()
            return []

        def act() -> Event:
            home.set(cell, x.copy(), copy=copy)
            return Event(f"set {cell.name} {x.astype(int).tolist()}", apply)

        return act

    def set_half(self, i: int) -> Act:
        x, cell, home = small(self.rng, HALF), self.cells[i], self.homes[i]
        at = self.rng.choice((0, HALF))

        def apply(state: State) -> list[Array]:
            state[i][at : at + HALF] = x
            return []

        def act() -> Event:
            home.set(cell, x, offset=4 * at, size=4 * HALF)
            return Event(f"set {cell.name}[{at}:] {x.astype(int).tolist()}", apply)

        return act

    def memset(self, i: int) -> Act:
        cell, home = self.cells[i], self.homes[i]

        def apply(state: State) -> list[Array]:
            state[i][...] = 0
            return []

        def act() -> Event:
            home.memset(cell, 0)
            return Event(f"memset {cell.name}", apply)

        return act

    def copy(self, i: int) -> Act:
        j = self.rng.randrange(len(self.cells))
        if i == j:
            return self.get(i)
        source, target = self.cells[i], self.cells[j]
        here, there = self.homes[i], self.homes[j]

        def apply(state: State) -> list[Array]:
            state[j] = state[i].copy()
            return []

        def act() -> Event:
            here.copy(source, target, to=None if here is there else there)
            return Event(f"copy {source.name} to {target.name}", apply)

        return act

    def get(self, i: int) -> Act:
        cell, home = self.cells[i], self.homes[i]

        def act() -> Event:
            future = home.get(cell)
            return Event(f"get {cell.name}", lambda state: [state[i].copy()], (future,))

        return act

    def many(self, i: int) -> Act:
        """Several operations in one batch."""
        acts = [self.set_half(i), self.get(i), self.memset(i), self.set_whole(i), self.get(i)]
        acts = self.rng.sample(acts, self.rng.randint(2, 4))
        home = self.homes[i]

        at = self.rng.randint(0, len(acts)) if self.rng.random() < 0.3 else None

        def drop() -> Event:
            done: list[Event] = []
            with suppress(Dropped), home.batch():
                for k, one in enumerate(acts):
                    if k == at:
                        raise Dropped
                    done.append(one())
                raise Dropped
            for event in done:
                for future in event.futures:
                    assert isinstance(future.exception(), aggml.Aborted)
            self.counts["dropped batches"] += 1
            return Event(f"dropped batch of {', '.join(e.what for e in done)}", lambda _: [])

        def act() -> Event:
            if at is not None:
                return drop()
            with home.batch():
                done = [one() for one in acts]

            def apply(state: State) -> list[Array]:
                return [x for e in done for x in e.apply(state)]

            what = f"batch of {', '.join(e.what for e in done)}"
            return Event(what, apply, tuple([f for e in done for f in e.futures]))

        return act

    def use(self) -> Act:
        i = self.rng.randrange(len(self.cells))
        kinds = (self.set_whole, self.set_half, self.memset, self.copy, self.get, self.many)
        return self.rng.choices(kinds, (6, 3, 1, 3, 3, 2))[0](i)

    # -- steps

    async def submit(self) -> Event:
        rng = self.rng
        if not self.graphs or (len(self.graphs) < 4 and rng.random() < 0.3):
            self.new_graph()
        drawn = rng.choice(self.graphs)
        inputs = {leaf: small(rng) for leaf in drawn.brought}
        for cell in drawn.cells:
            if rng.random() < 0.1:
                inputs[cell] = small(rng)
        wanted = rng.sample(drawn.outs, rng.randint(1, len(drawn.outs)))
        if rng.random() < 0.5:
            wanted = drawn.outs
        self.flying = [f for f in self.flying if not f.done()]
        if self.limit is not None and len(self.flying) >= self.limit:
            self.release()  # else no submission could get a slot
        future = await self.sched.submit(drawn.graph, dict(inputs), wanted)
        self.flying.append(future)
        self.counts["submissions"] += 1
        brought = {t.name: x.astype(int).tolist() for t, x in inputs.items()}
        nodes = [f"{n.name or n.op}" for n in drawn.graph.nodes]
        return Event(
            f"submit graph {self.graphs.index(drawn)} {nodes} {brought}",
            lambda state: drawn.run(state, inputs, wanted),
            (future,),
        )

    async def storm(self) -> None:
        """Another thread queues operations while this thread submits."""
        acts = [self.use() for _ in range(self.rng.randint(1, 3))]
        self.counts["storms"] += 1
        theirs = self.threads.submit(lambda: [act() for act in acts])
        mine = [await self.submit() for _ in range(self.rng.randint(1, 3))]
        self.note(mine, theirs.result(HANG))

    def streams(self) -> list[aggml.Stream]:
        return self.sched._runner.streams()

    def hold(self) -> None:
        stream = self.rng.choice(self.streams())
        stream.native.hold()
        self.held.append(stream)
        self.tell(f"hold {stream.name}")

    def release(self) -> None:
        for stream in self.held:
            stream.native.release()
        self.held = []
        self.tell("release")

    def new_graph(self) -> None:
        drawn = draw_graph(self.rng, self.cells)
        if len(self.graphs) == 4:
            self.graphs[self.rng.randrange(4)] = drawn
        else:
            self.graphs.append(drawn)
        lines = [
            f"{n.name or '-'} = {n.op}({[s.name or s.op for s in n.src if s is not None]})"
            for n in drawn.graph.nodes
        ]
        self.tell(f"graph {self.graphs.index(drawn)}: {'; '.join(lines)}")
        self.check(drawn)

    def check(self, drawn: Drawn) -> None:
        """Take all pins away if no backend can run the graph with them."""
        try:
            self.sched.split_graph(drawn.graph)
        except aggml.NoBackendForOp:
            self.sched.reset()
            self.tell("no backend: reset")

    def pin(self) -> None:
        if not self.graphs:
            return
        drawn = self.rng.choice(self.graphs)
        nodes = [n for n in drawn.graph.nodes if n.view_src is None]
        if nodes:
            node = self.rng.choice(nodes)
            able = [b for b in self.backends if b.device.supports_op(node)]
            backend = self.rng.choice(able)
            self.sched.set_tensor_backend(node, backend)
            self.tell(f"pin {node.op} of {self.graphs.index(drawn)} to {backend.name}")
            for other in self.graphs:
                self.check(other)

    def move(self) -> Event:
        """Give a cell other memory, and a value; what is queued goes on over the old memory."""
        i = self.rng.randrange(len(self.cells))
        cell, home, x = self.cells[i], self.homes[i], small(self.rng)
        assert cell.placement is not None
        cell.placement.buffer.close()
        home.alloc([cell])
        home.set(cell, x.copy(), copy=True)
        self.counts["moves"] += 1

        def apply(state: State) -> list[Array]:
            state[i] = x.copy()
            return []

        return Event(f"move {cell.name} {x.astype(int).tolist()}", apply)

    async def move_meanwhile(self) -> None:
        """Move a cell while another task submits: the submission sees the old value or the new."""
        pauses = self.rng.randint(0, 6)
        self.new_graph()  # so that there is something to plan
        moved: list[Event] = []
        theirs: list[Event] = []

        async def submit() -> None:
            theirs.append(await self.submit())

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(submit)
            for _ in range(pauses):
                await anyio.lowlevel.checkpoint()
            moved.append(self.move())
        self.note(moved[0], theirs)

    async def settle(self) -> None:
        self.release()
        for future in self.flying:
            await future
        self.flying = []

    async def step(self) -> None:
        kind = self.rng.choices(list(KINDS), list(KINDS.values()))[0]
        if kind == "submit":
            self.note(await self.submit())
        elif kind == "use":
            act = self.use()
            if self.rng.random() < 0.3:
                self.note(self.threads.submit(act).result(HANG))
            else:
                self.note(act())
        elif kind == "storm":
            await self.storm()
        elif kind == "hold":
            self.hold()
        elif kind == "release":
            self.release()
        elif kind == "new graph":
            self.new_graph()
        elif kind == "pin":
            self.pin()
        elif kind == "prepare" and self.graphs:
            await self.sched.prepare(self.rng.choice(self.graphs).graph)
        elif kind == "settle":
            await self.settle()
        elif kind == "reset":
            self.sched.reset()
        elif kind == "move":
            self.note(self.move())
        elif kind == "move meanwhile":
            await self.move_meanwhile()

    async def play(self) -> None:
        for _ in range(self.rng.randint(8, 30)):
            await self.step()
        for i in range(len(self.cells)):
            self.note(self.get(i)())
        await self.settle()
        for backend in self.backends:
            await backend.synchronize()

    async def close(self) -> None:
        self.release()
        await self.sched.aclose()
        for backend in self.backends:
            await backend.aclose()


async def program(rng: random.Random, threads: ThreadPoolExecutor, counts: Counter[str]) -> str:
    """Run one program. Returns an error message, or an empty text."""
    watched = rng.random() < 0.5
    with aggml.check_races(raises=False) if watched else nullcontext() as checker:
        world = World(rng, threads)
        try:
            with anyio.fail_after(HANG):
                await world.play()
            wrong = agree(world.events, len(world.cells), N)
        except Exception as error:
            error.add_note("\n".join(world.told))
            raise
        finally:
            await world.close()
    counts.update(world.counts)
    races = [] if checker is None else checker.races
    counts["programs under the race checker"] += watched
    if wrong is None and not races:
        return ""
    at = len(world.told) if wrong is None else wrong[0]
    head = [f"{len(world.backends)} backends, parallel={world.parallel}, limit {world.limit}"]
    head += [f"{b.name}" for b in world.backends]
    head += [f"{c.name} on {h.name}" for c, h in zip(world.cells, world.homes, strict=True)]
    steps = [f"{'>' if i == at else ' '} {i}: {told}" for i, told in enumerate(world.told)]
    tail = [wrong[1]] if wrong is not None else []
    return "\n".join([*head, *steps, *tail, *map(str, races)])


def run(seed: int, programs: int, loop: str, first: int = 0) -> Report:
    """See `fuzz.rounds.Fuzzer`."""
    counts: Counter[str] = Counter()

    async def all_of_them() -> None:
        with ThreadPoolExecutor(2) as threads:
            for k in range(first, first + programs):
                try:
                    what = await program(draw(seed, k), threads, counts)
                except Exception as error:
                    raise Failure(seed, k, loop, f"it raised {error!r}") from error
                if what:
                    raise Failure(seed, k, loop, what)
                if k % 100 == 0:
                    gc.collect()

    anyio.run(all_of_them, backend=loop)
    return Report(programs, dict(counts))
