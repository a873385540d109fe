"""Every recorded call and small graph: its shape, and its numbers on each instruction set.

Here: all of tests/corpus that can be built. Not here: what no call of ggml shows, such as layouts
that its builders refuse, threads, properties (a file for each group).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from ops.recorded import check_numbers, check_shape, graph_cases, recorded_calls

if TYPE_CHECKING:
    from corpus_loader import Case

    import aggml

CASES = [*recorded_calls(), *graph_cases()]


@pytest.mark.long(cases=300)
@pytest.mark.parametrize("case", CASES)
def test_shape(case: Case) -> None:
    check_shape(case)


@pytest.mark.long(cases=600)
@pytest.mark.parametrize("case", CASES)
def test_numbers(case: Case, backend: aggml.Backend) -> None:
    check_numbers(case, backend)
