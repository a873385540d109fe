"""Small graphs of several operations: feed-forward blocks, attention over a cache, views."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from ops.recorded import check_numbers, check_shape, graph_cases

if TYPE_CHECKING:
    from corpus_loader import Case

    import aggml


@pytest.mark.parametrize("case", graph_cases())
def test_shape(case: Case) -> None:
    check_shape(case)


@pytest.mark.parametrize("case", graph_cases())
def test_numbers(case: Case, backend: aggml.Backend) -> None:
    check_numbers(case, backend)
