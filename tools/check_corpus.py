"""Runs the whole op corpus on every variant of the kernels, with 1, 2 and 3 threads, and 3 again.

Shapes are those recorded, results within the tolerance of the case, all runs of one variant the
same bits; calls recorded as failures fail. That covers tests/ops/test_recorded.py, so `.ci/run`
leaves that file out. Not here: conversions of types (tests/ops/test_types.py), the allocator
(tests/memory/), the scheduler (tests/scheduler/).

A process for each core takes a share of the cases.

    python tools/check_corpus.py            all variants of this machine
    python tools/check_corpus.py avx2       these only; "ref" is the exact reference
"""

from __future__ import annotations

import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import chain
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from corpus_loader import op_cases, refused_cases  # noqa: E402 - the path is set above
from ops.recorded import (  # noqa: E402
    build,
    check_numbers,
    check_refused,
    check_shape,
    compute_case,
)

import aggml  # noqa: E402
from aggml.devices.cpu import isas  # noqa: E402

if TYPE_CHECKING:
    from corpus_loader import Case

#: How often each case runs with so many threads. What is left to chance shows with several.
RUNS = {1: 1, 2: 1, 3: 2}


def opened(variant: str, n_threads: int) -> aggml.Backend:
    """A CPU backend that runs this variant."""
    device: Any = aggml.get_device("CPU")  # only its own backend() takes an instruction set
    if variant == "ref":
        backend: aggml.Backend = device.backend(n_threads=n_threads, use_ref=True)
    else:
        backend = device.backend(n_threads=n_threads, isa=variant)
    return backend


def shape_problem(case: Case) -> str | None:
    """How the node differs from the recorded one, on any variant; None if it does not."""
    try:
        check_shape(case)
    except (AssertionError, aggml.AggmlError) as error:
        return f"another node than the recorded one: {error!r}"
    return None


def problem_of(case: Case, backends: dict[int, aggml.Backend]) -> str | None:
    """The fault of a case on one variant; None if there is none.

    The first run is compared with what was recorded, the others with the bits of the first.
    """
    first: list[bytes] | None = None
    for n_threads, backend in backends.items():
        for run in range(RUNS[n_threads]):
            try:
                if first is None:
                    first = check_numbers(case, backend)
                elif first != compute_case(case, backend):
                    return f"{n_threads} threads, run {run}: other bits than the first run"
            except AssertionError:
                return f"{n_threads} threads, run {run}: out of tolerance"
            except aggml.AggmlError as error:
                return f"{n_threads} threads, run {run}: {error!r}"
    return None


def refusal_problem(case: Case, backend: aggml.Backend) -> str | None:
    """The fault of a call that must fail; None if it fails."""
    try:
        if case.stage == "build":
            build(case)
        else:
            check_refused(case, backend)
    except aggml.AggmlError:
        return None
    return f"not refused ({case.stage})"


@dataclass(frozen=True)
class Part:
    """The result of one process: its share of the cases.

    Attributes:
        cases, refused: how many there were of each.
        problems: of each variant, by the names of the cases.
    """

    cases: int
    refused: int
    problems: dict[str, dict[str, str]]


def check(variants: list[str], k: int, of: int) -> Part:
    """Check cases ``k``, ``k + of``, ... on all variants.

    One case after the other, so that its arrays are read and its node is compared once.
    """
    cases, refused = list(op_cases())[k::of], list(refused_cases())[k::of]
    backends = {v: {n: opened(v, n) for n in RUNS} for v in variants}
    problems: dict[str, dict[str, str]] = {v: {} for v in variants}
    for case in cases:
        wrong = shape_problem(case)
        for variant, those in backends.items():
            problem = wrong or problem_of(case, those)
            if problem is not None:
                problems[variant][f"{case.group} {case}"] = problem
    for case in refused:
        for variant, those in backends.items():
            problem = refusal_problem(case, those[2])
            if problem is not None:
                problems[variant][f"refused {case}"] = problem
    for backend in chain.from_iterable(those.values() for those in backends.values()):
        backend.close()
    return Part(len(cases), len(refused), problems)


def main(variants: list[str]) -> int:
    """Print the faults; returns how many cases failed."""
    begin = time.monotonic()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    width = cores or 1
    failed = 0
    # Spawned, because a forked process lacks the threads of its parent's pools.
    with ProcessPoolExecutor(width, mp_context=get_context("spawn")) as pool:
        futures = [pool.submit(check, variants, k, width) for k in range(width)]
        parts = [future.result() for future in futures]
    for variant in variants:
        problems = dict(chain.from_iterable(part.problems[variant].items() for part in parts))
        for name, problem in problems.items():
            sys.stdout.write(f"{variant}: {name}: {problem}\n")
        failed += len(problems)
        sys.stdout.write(
            f"{variant}: {sum(part.cases for part in parts)} cases with {[*RUNS]} threads, "
            f"and {sum(part.refused for part in parts)} refusals: {len(problems)} failed\n"
        )
    sys.stdout.write(f"{time.monotonic() - begin:.0f} s\n")
    return failed


if __name__ == "__main__":
    sys.exit(min(main(sys.argv[1:] or ["ref", *isas()]), 1))
