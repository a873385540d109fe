"""Calls with random types, extents, strides and arguments: refused, or computed, never a crash.

A result has the same bits with one thread and with three. Under ASan and UBSan (make
check-asan-python) no kernel reads or writes beside its operands. AGGML_RANDOM_CALLS says how many
calls of each group are tried.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ops.mutated import MOST, calls, values_of
from ops.recorded import build, group_cases

import aggml
from aggml import DType, Graph

if TYPE_CHECKING:
    from corpus_loader import Case

N_CALLS = int(os.environ.get("AGGML_RANDOM_CALLS", "25"))
FOLDER = Path(aggml.__file__).parent / "ops"
CASES: dict[str, list[Case]] = {
    path.stem: [
        case
        for case in group_cases(path.stem)
        if all(np.prod(value.storage_ne) <= MOST for value in case.inputs)
    ]
    for path in sorted(FOLDER.glob("[!_]*.py"))
    if path.stem not in {"operators", "table"}  # modules without builders
}


def outcome(case: Case, backend: aggml.Backend, seed: int) -> bytes | type[aggml.AggmlError]:
    """The bytes of the result and of all storages, or the class of the error that was raised."""
    try:
        if any(np.prod(value.storage_ne) > MOST for value in case.inputs):
            return aggml.InvalidArgument
        built = build(case)
        graph = Graph(built.out)
        if sum(node.nelements for node in graph.nodes) > 4 * MOST:
            return aggml.InvalidArgument
        memory = backend.alloc(built.leafs.values())
        values = values_of(case, seed)
        for name, leaf in built.leafs.items():
            backend.set(leaf, values[name])
        placed = backend.alloc_graph(graph)
        computed = backend.graph_compute(graph)
        results: list[aggml.Future[Any]] = [
            backend.get(tensor) for tensor in (built.out, *built.leafs.values())
        ]
        assert results[-1].wait(60)
        computed.result()
        found = b"".join(result.result().tobytes() for result in results)
        placed.close()
        memory.close()
        return found
    except aggml.AggmlError as error:
        return type(error)
    except AssertionError:  # by `build`: a view whose strides do not fit its type
        return aggml.LayoutMismatch


@pytest.mark.long(cases=7)
@pytest.mark.parametrize("group", [group for group, cases in CASES.items() if cases])
def test_refused_or_computed(group: str, by_threads: list[aggml.Backend]) -> None:
    computed = 0

    @settings(
        max_examples=N_CALLS,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(case=calls(CASES[group]), seed=st.integers(0, 99))
    def check(case: Case, seed: int) -> None:
        nonlocal computed
        found = outcome(case, by_threads[0], seed)
        computed += isinstance(found, bytes)
        assert outcome(case, by_threads[2], seed) == found

    check()
    assert computed > 0


def test_every_group_with_recorded_calls_is_tried() -> None:
    assert not [group for group, cases in CASES.items() if not cases and group_cases(group)]
    assert {DType.parse(v.type) for cases in CASES.values() for c in cases for v in c.inputs}
