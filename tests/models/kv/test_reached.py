"""Reached: where the state of a sequence stands, also if writes end between two looks at them.

Not here: states that steps and snapshots really change (test_snapshots.py).
"""

from __future__ import annotations

from typing import Any

import pytest

from aggml.models.kv.reached import Reached
from aggml.models.kv.state_rows import Rewind, StateRows


class Write:
    """A write of a state that is under way for the first ``looks`` looks at it."""

    def __init__(self, looks: int) -> None:
        self._looks = looks

    def done(self) -> bool:
        self._looks -= 1
        return self._looks < 0

    def exception(self) -> None:
        return None


@pytest.mark.parametrize("looks", range(8))
def test_a_write_that_ends_between_two_looks_is_no_step(looks: int) -> None:
    reached = Reached(1, StateRows(1, Rewind()))
    writes: Any = [Write(looks)]
    reached.record_load(0, 64, writes)
    for _ in range(4):
        reached.expect(0, 64)
