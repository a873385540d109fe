"""Random pipelines by hypothesis: nothing is lost, nothing comes twice, the order is as promised.

What is checked, and by which model: tests/fuzz/pipelines.py, which draws larger ones, too.
"""

from __future__ import annotations

import anyio
import pytest
from fuzz.pipelines import ENDS, KINDS, Part, Program, check
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

WITHOUT_MANY = [x for x in KINDS if x not in ("many", "fan")]


def parts(kinds: list[str]) -> st.SearchStrategy[Part]:
    return st.builds(
        Part, st.sampled_from(kinds), st.integers(0, 999), st.integers(1, 4), st.integers(0, 5),
        st.sampled_from([0, 0, 2, 5]), st.integers(0, 2), st.booleans(),
    )  # fmt: skip


FANS = st.builds(
    Part, st.just("fan"), st.integers(0, 999),
    branches=st.lists(parts(WITHOUT_MANY), min_size=1, max_size=3).map(tuple),
)  # fmt: skip
PROGRAMS = st.builds(
    Program, st.integers(0, 20),
    st.lists(parts([x for x in KINDS if x != "fan"]) | FANS, max_size=4).map(tuple),
    st.integers(1, 4), st.booleans(), st.booleans(),
    st.sampled_from(["list", "async", "urgent", "failing"]), st.sampled_from(ENDS),
    st.integers(0, 20), st.integers(0, 3),
)  # fmt: skip


@pytest.mark.long(cases=1)
@pytest.mark.parametrize("loop", ["asyncio", "trio"])
@settings(
    max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
@given(program=PROGRAMS)
def test_a_random_pipeline_gives_what_plain_loops_give(loop: str, program: Program) -> None:
    anyio.run(check, program, backend=loop)
