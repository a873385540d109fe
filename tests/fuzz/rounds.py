"""What fuzzers share: their interface, the report of a round, the message of a failure.

Not here: the fuzzers (the other modules), the command (__main__.py), the rounds of the test suite
(test_short_rounds.py).
"""

from __future__ import annotations

import importlib
import random
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast

import anyio

import aggml

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

__all__ = [
    "LOOPS",
    "SHORT",
    "Absent",
    "Failure",
    "Fuzzer",
    "Report",
    "draw",
    "fuzzers",
    "loops_of",
    "one_by_one",
    "short",
]

LOOPS = ("asyncio", "trio")
SHORT = 20
# modules that must not be missing; any other one belongs to an optional package
OURS = ("aggml", "fuzz", "models", "support", "")


class Report(NamedTuple):
    """How many programs a round ran, and how often each operation was in them, by name."""

    programs: int
    counts: dict[str, int]

    def __str__(self) -> str:
        found = ", ".join(f"{n:,} {name}" for name, n in self.counts.items())
        return f"{self.programs:,} programs agree: {found}"


class Failure(AssertionError):
    """Program ``k`` of a round failed. The message says how to run it again."""

    def __init__(self, seed: int, k: int, loop: str, what: str) -> None:
        super().__init__(f"{what}\n(again: --seed {seed} --first {k} --programs 1 --loop {loop})")


class Fuzzer(Protocol):
    """A module of this folder that defines ``run``.

    It may define ``LOOPS``, those on which it runs, and ``SHORT``, the programs that the test suite
    runs on all of them together.
    """

    def run(self, seed: int, programs: int, loop: str, first: int = 0) -> Report:
        """Run programs ``first`` to ``first + programs - 1``, and check the results of each.

        Program ``k`` is drawn from ``draw(seed, k)`` alone, so that it can be run by itself.

        Args:
            seed: of the round.
            programs: how many.
            loop: "asyncio" or "trio"; a fuzzer that needs no loop has one name in ``LOOPS``.
            first: number of the first.

        Raises:
            Failure: by the first program that fails.
        """
        ...


class Absent:
    """A fuzzer whose imports need a package that is not installed; it runs on no loop."""

    LOOPS = ()

    def __init__(self, package: str) -> None:
        self.package = package

    def run(self, seed: int, programs: int, loop: str, first: int = 0) -> Report:
        """Raise the error of the import; the arguments are those of `Fuzzer.run`."""
        raise ModuleNotFoundError(f"{self.package} is not installed", name=self.package)


def draw(seed: int, k: int) -> random.Random:
    """The random generator from which all choices of program ``k`` are drawn."""
    return random.Random(f"{seed} {k}")


def one_by_one(
    program: Callable[[random.Random], Awaitable[Counter[str]]],
    seed: int,
    programs: int,
    loop: str,
    first: int,
) -> Report:
    """Run each program in a loop of its own; it returns its counts, or raises if it fails."""
    counts: Counter[str] = Counter()
    for k in range(first, first + programs):
        try:
            counts += anyio.run(program, draw(seed, k), backend=loop)
        except (AssertionError, TimeoutError, aggml.AggmlError, ExceptionGroup) as error:
            raise Failure(seed, k, loop, f"{type(error).__name__}: {error}") from error
    return Report(programs, dict(sorted(counts.items())))


def fuzzers() -> dict[str, Fuzzer]:
    """All modules of this folder that define ``run``, by name; `Absent` if a package is missing."""
    names = sorted(path.stem for path in Path(__file__).parent.glob("*.py"))
    found = {}
    for name in names:
        if name == "__main__" or name.startswith("test_"):
            continue
        try:
            module = importlib.import_module(f"fuzz.{name}")
        except ModuleNotFoundError as error:
            package = (error.name or "").partition(".")[0]
            if package in OURS:
                raise
            found[name] = cast("Fuzzer", Absent(package))
            continue
        if hasattr(module, "run"):
            found[name] = cast("Fuzzer", module)
    return found


def loops_of(fuzzer: Fuzzer) -> Sequence[str]:
    """The loops on which a fuzzer runs."""
    found: Sequence[str] = getattr(fuzzer, "LOOPS", LOOPS)
    return found


def short(fuzzer: Fuzzer) -> int:
    """How many programs a round in the test suite has, on all loops together."""
    found: int = getattr(fuzzer, "SHORT", SHORT)
    return found
