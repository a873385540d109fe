"""A short round of each fuzzer on each loop, with a seed of its own; long ones: ``make fuzz``."""

from __future__ import annotations

import zlib

import pytest
from fuzz.rounds import Report, draw, fuzzers, loops_of, short

ROUNDS = [(name, loop) for name, module in fuzzers().items() for loop in loops_of(module)]


@pytest.mark.parametrize(("name", "loop"), ROUNDS)
def test_a_short_round_agrees(name: str, loop: str) -> None:
    fuzzer = fuzzers()[name]
    report = fuzzer.run(zlib.crc32(name.encode()), short(fuzzer), loop)
    assert isinstance(report, Report)
    assert report.programs == short(fuzzer)


def test_a_program_is_drawn_alike_alone_and_in_a_round() -> None:
    assert draw(7, 3).random() == draw(7, 3).random()
    assert draw(7, 3).random() != draw(7, 4).random()
    assert draw(7, 3).random() != draw(8, 3).random()
