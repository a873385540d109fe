"""Fuzzer: random pipelines with random delays, failures, slow consumers, and ends at any moment.

Nothing is lost, nothing comes twice, the order is as promised, no call and no task is left. What a
pipeline must give is computed by plain loops (`expected`). Delays are numbers of checkpoints.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import anyio
from anyio.lowlevel import checkpoint
from fuzz.rounds import Report, one_by_one

from aggml import pipeline
from aggml.pipeline import Fan, Stage, StageError, Urgent, fan

if TYPE_CHECKING:
    import random
    from collections.abc import AsyncIterator, Iterator

SHORT = 60
KINDS = ("map", "map", "filter", "many", "batch", "future", "fan")
ENDS = ("all", "all", "all", "break", "raise", "cancel")


@dataclass(frozen=True)
class Part:
    """One stage.

    Attributes:
        kind: see ``KINDS``.
        number: mixes with items into delays, failures and how many results there are.
        workers: of the stage.
        size: of its batch and of its buffer; 0: no buffer of its own.
        fails: it fails on one of so many items; 0: never.
        tries: how often it fails on such an item before it succeeds; 0: it always fails.
        stuck: whether it hangs instead, until its time-out.
        branches: of a fan.
    """

    kind: str
    number: int
    workers: int = 1
    size: int = 0
    fails: int = 0
    tries: int = 0
    stuck: bool = False
    branches: tuple[Part, ...] = ()


@dataclass(frozen=True)
class Program:
    """A pipeline, and what its consumer does.

    Attributes:
        items: of the source.
        parts: the stages.
        buffer: of all queues.
        ordered: whether the order is kept.
        handled: whether errors go to a handler.
        source: "list", "async", "urgent", "failing".
        end: see ``ENDS``.
        after: the results, or checkpoints, after which the consumer does that.
        slow: checkpoints of the consumer for each result.
    """

    items: int
    parts: tuple[Part, ...]
    buffer: int = 8
    ordered: bool = True
    handled: bool = False
    source: str = "list"
    end: str = "all"
    after: int = 0
    slow: int = 0


class Wrong(Exception):
    """What a stage fails with."""


def draw_part(dice: random.Random, depth: int = 0) -> Part:
    kind = dice.choice(KINDS[:-1] if depth > 1 else KINDS)
    if depth and kind == "many":
        kind = "map"
    fails = dice.choice([0, 0, 0, 2, 5, 20])
    return Part(
        kind, dice.randrange(1000), dice.choice([1, 1, 2, 3, 5]), dice.choice([0, 1, 2, 4, 7]),
        fails, dice.choice([0, 0, 1, 2]), dice.random() < 0.15,
        tuple(draw_part(dice, depth + 1) for _ in range(dice.randint(1, 3)))
        if kind == "fan" else (),
    )  # fmt: skip


def draw_program(dice: random.Random) -> Program:
    return Program(
        dice.choice([0, 1, 2, 5, 13, 30]),
        tuple(draw_part(dice) for _ in range(dice.choice([0, 1, 1, 2, 3, 4]))),
        dice.choice([1, 1, 2, 3, 8]), dice.random() < 0.6, dice.random() < 0.6,
        dice.choice(["list", "list", "async", "urgent", "failing"]), dice.choice(ENDS),
        dice.choice([0, 1, 2, 5, 20, 60]), dice.choice([0, 0, 1, 5]),
    )  # fmt: skip


def mix(item: Any, number: int) -> int:
    """A number that depends on an item and on a stage, and on nothing else."""
    found = number * 7919 + 13
    for x in _flat(item):
        found = (found * 1103515245 + x * 40503 + 12345) % (1 << 31)
    return found >> 8


def _flat(item: Any) -> Iterator[int]:
    if isinstance(item, tuple):
        for x in item:
            yield from _flat(x)
    else:
        yield item


# -- what a pipeline must give


def fails(part: Part, item: Any) -> bool:
    return bool(part.fails) and mix(item, part.number + 1) % part.fails == 0


def breaks(part: Part, item: Any) -> bool:
    """Whether a generator fails after its results; then it must not be called again."""
    if part.kind != "many" or part.number % 4 or fails(part, item):
        return False
    return mix(item, part.number + 3) % 5 == 0 and bool(results_of(part, item))


def _fails_for_good(part: Part, item: Any) -> bool:
    return fails(part, item) and part.tries == 0


def results_of(part: Part, item: Any) -> list[Any]:
    """What a stage gives for one item, if it does not fail."""
    if part.kind == "filter":
        return [(item, part.number)] if mix(item, part.number) % 3 else []
    if part.kind == "many":
        return [(item, part.number, i) for i in range(mix(item, part.number) % 4)]
    return [(item, part.number)]


def through(part: Part, item: Any) -> list[Any]:
    """What a stage gives for one item."""
    if part.kind == "fan":
        every = [through(branch, item) for branch in part.branches]
        return [tuple(x[0] for x in every)] if all(every) else []
    # which items share a batch is open, so a stage with batches does not fail here
    if part.kind != "batch" and _fails_for_good(part, item):
        return []
    return results_of(part, item)


def expected(program: Program) -> list[Any]:
    items: list[Any] = [*range(program.items)]
    for part in program.parts:
        items = [*itertools.chain.from_iterable(through(part, x) for x in items)]
    return items


# -- the pipeline


class Bench:
    """The stages of a program, and what goes on in them now."""

    def __init__(self) -> None:
        self.calls = 0  # that are open now
        self.sources = 0
        self.tried: Counter[tuple[int, Any]] = Counter()

    def stage(self, part: Part) -> Stage | Fan:
        if part.kind == "fan":
            return fan(*(self.stage(branch) for branch in part.branches))
        made = {"batch": self._batch, "many": self._many, "future": self._future}
        stuck = part.stuck and part.fails and part.kind != "batch"
        return Stage(
            made.get(part.kind, self._single)(part), workers=part.workers,
            batch=max(part.size, 1) if part.kind == "batch" else None,
            within=0.0 if part.number % 2 else 0.001, buffer=part.size or None,
            timeout=0.001 if stuck else None,
            retries=part.tries, name=None if part.number % 3 else "stage",
        )  # fmt: skip

    async def _enter(self, part: Part, item: Any) -> None:
        """The delay of an item, and its failure."""
        if fails(part, item):
            self.tried[part.number, item] += 1
            if not part.tries or self.tried[part.number, item] <= part.tries:
                if part.stuck:
                    await anyio.sleep_forever()
                raise Wrong(item)
        if not part.stuck:  # else the time-out could come first
            for _ in range(mix(item, part.number + 2) % 4):
                await checkpoint()

    def _single(self, part: Part) -> Any:
        async def work(item: Any) -> Any:
            self.calls += 1
            try:
                await self._enter(part, item)
                found = results_of(part, item)
                return found[0] if found else None
            finally:
                self.calls -= 1

        return work

    def _future(self, part: Part) -> Any:
        work = self._single(part)

        class Later:
            def __init__(self, item: Any) -> None:
                self.item = item

            def __await__(self) -> Any:
                return work(self.item).__await__()

        return Later

    def _many(self, part: Part) -> Any:
        async def work(item: Any) -> AsyncIterator[Any]:
            self.calls += 1
            try:
                await self._enter(part, item)
                for found in results_of(part, item):
                    yield found
                    if not part.stuck:
                        await checkpoint()
                if breaks(part, item):
                    raise Wrong(item)
            finally:
                self.calls -= 1

        return work

    def _batch(self, part: Part) -> Any:
        async def work(items: list[Any]) -> list[Any]:
            assert 1 <= len(items) <= max(part.size, 1)
            self.calls += 1
            try:
                for _ in range(mix(items[0], part.number) % 4):
                    await checkpoint()
                return [results_of(part, item)[0] for item in items]
            finally:
                self.calls -= 1

        return work

    def source(self, program: Program) -> Any:
        if program.source == "list":
            return range(program.items)
        if program.source == "urgent":
            return [
                Urgent(i, priority=i * 7 % 3, deadline=None if i % 2 else 1000)
                for i in range(program.items)
            ]
        return self._async_source(program)

    async def _async_source(self, program: Program) -> AsyncIterator[int]:
        self.sources += 1
        try:
            for i in range(program.items):
                if i % 3 == 0:
                    await checkpoint()
                yield i
            if program.source == "failing":
                raise Wrong("source")
        finally:
            self.sources -= 1


def _tasks() -> int:
    try:
        return len(asyncio.all_tasks())
    except RuntimeError:
        import trio

        return trio.lowlevel.current_statistics().tasks_living


class Left(Exception):
    """What a consumer raises."""


async def check(program: Program) -> Counter[str]:
    """Run a program, and check what it gave and what it left behind.

    Raises:
        AssertionError: something is wrong.
    """
    bench = Bench()
    got: list[Any] = []
    errors: list[StageError] = []
    before = _tasks()
    ended = "cancel"  # until something else is known
    stats: dict[str, Any] = {}
    cause: BaseException | None = None
    failed: Any = None
    with anyio.fail_after(60):
        try:
            async with anyio.create_task_group() as tasks:
                scope = tasks.cancel_scope
                if program.end == "cancel":
                    tasks.start_soon(_cancel, scope, program.after)
                try:
                    opened = pipeline.run(
                        bench.source(program), *map(bench.stage, program.parts),
                        buffer=program.buffer, ordered=program.ordered,
                        on_error=errors.append if program.handled else None,
                    )  # fmt: skip
                    async with opened as results:
                        early = program.end in ("break", "raise")
                        if early and not program.after:
                            ended = program.end
                        else:
                            async for item in results:
                                got.append(item)
                                for _ in range(program.slow):
                                    await checkpoint()
                                if early and len(got) >= program.after:
                                    ended = program.end
                                    break
                        if ended == "raise":
                            raise Left
                        stats = results.stats
                    if ended != "break":
                        ended = "to the end"
                except StageError as error:
                    assert not program.handled
                    ended, cause, failed = "error", error.__cause__, error.item
                except Left:
                    assert ended == "raise"
                scope.cancel()
        except BaseExceptionGroup as group:
            raise AssertionError(f"a group came out: {group!r}") from group
    assert ended != "error" or isinstance(cause, (Wrong, TimeoutError)), cause
    assert not bench.calls, f"{bench.calls} calls are left"
    assert not bench.sources, "the source is open"
    assert _tasks() == before, "tasks are left"
    if program.ordered and failed is not None and not isinstance(failed, list):
        last = next(_flat(failed))
        assert all(next(_flat(x)) <= last for x in got), f"behind the failed item {failed}: {got}"
    wanted = expected(program)
    _compare(program, ended, got, wanted)
    if ended == "to the end":
        _check_errors(program, errors)
        assert all(not x.waiting for x in stats.values())
        firsts = [part for part in program.parts[:1] if part.kind != "fan"]
        assert [next(iter(stats.values())).taken for _ in firsts] == [program.items for _ in firsts]
    return Counter({f"{ended}": 1, "results": len(got), "errors": len(errors)})


def _compare(program: Program, ended: str, got: list[Any], wanted: list[Any]) -> None:
    what = f"{ended}: {got} of {wanted}"
    if ended == "to the end":
        assert (got if program.ordered else sorted(got, key=repr)) == (
            wanted if program.ordered else sorted(wanted, key=repr)
        ), what
        bad = _failing(program)
        assert program.handled or not bad, what
        return
    if program.ordered:
        assert got == wanted[: len(got)], what
    else:
        assert not Counter(map(repr, got)) - Counter(map(repr, wanted)), what
    if ended == "error":
        assert _failing(program) or program.source == "failing", what


def _failing(program: Program) -> list[Any]:
    """The items, each with the number of the stage that fails on it for good."""
    items: list[Any] = [*range(program.items)]
    found: list[Any] = []
    for part in program.parts:
        for item in items:
            found += _failing_in(part, item)
        items = [*itertools.chain.from_iterable(through(part, x) for x in items)]
    return found


def _failing_in(part: Part, item: Any) -> list[Any]:
    if part.kind == "fan":
        return [x for branch in part.branches for x in _failing_in(branch, item)]
    bad = breaks(part, item) or (part.kind != "batch" and _fails_for_good(part, item))
    return [item] if bad else []


def _check_errors(program: Program, errors: list[StageError]) -> None:
    named = [x.item for x in errors if x.stage != "source"]
    assert sorted(map(repr, named)) == sorted(map(repr, _failing(program)))
    assert len(errors) - len(named) == (program.source == "failing" and program.handled)


async def _cancel(scope: anyio.CancelScope, after: int) -> None:
    for _ in range(after * 3):
        await checkpoint()
    scope.cancel()


async def _program(dice: random.Random) -> Counter[str]:
    program = draw_program(dice)
    try:
        return await check(program)
    except (AssertionError, TimeoutError) as error:
        raise AssertionError(f"{error}\n{program}") from error


def run(seed: int, programs: int, loop: str, first: int = 0) -> Report:
    """See `rounds.Fuzzer`."""
    return one_by_one(_program, seed, programs, loop, first)
