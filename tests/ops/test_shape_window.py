"""Windowed attention of images: shapes and numbers of the recorded calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from ops.recorded import check_numbers, check_shape, family_cases

if TYPE_CHECKING:
    from corpus_loader import Case

    import aggml


@pytest.mark.parametrize("case", family_cases("shape_window", computed=False))
def test_shape(case: Case) -> None:
    check_shape(case)


@pytest.mark.parametrize("case", family_cases("shape_window", computed=True))
def test_numbers(case: Case, backend: aggml.Backend) -> None:
    check_numbers(case, backend)
