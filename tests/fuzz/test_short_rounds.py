"""A short round of each fuzzer: a share of its programs on each loop, from seeds of their own.

Not here: long rounds, of the same programs on each loop (``make fuzz``).
"""

from __future__ import annotations

import importlib
import zlib
from typing import TYPE_CHECKING

import pytest
from fuzz.rounds import Absent, Report, draw, fuzzers, loops_of, short

if TYPE_CHECKING:
    from collections.abc import Callable

ROUNDS = [
    (name, loop)
    for name, module in fuzzers().items()
    for loop in (["no loop"] if isinstance(module, Absent) else loops_of(module))
]


@pytest.mark.long(cases=6)
@pytest.mark.parametrize(("name", "loop"), ROUNDS)
def test_a_short_round_agrees(name: str, loop: str) -> None:
    fuzzer = fuzzers()[name]
    if isinstance(fuzzer, Absent):
        pytest.skip(f"{fuzzer.package} is not installed")
    programs = -(-short(fuzzer) // len(loops_of(fuzzer)))
    report = fuzzer.run(zlib.crc32(f"{name} {loop}".encode()), programs, loop)
    assert isinstance(report, Report)
    assert report.programs == programs


def test_a_program_is_drawn_alike_alone_and_in_a_round() -> None:
    assert draw(7, 3).random() == draw(7, 3).random()
    assert draw(7, 3).random() != draw(7, 4).random()
    assert draw(7, 3).random() != draw(8, 3).random()


def test_only_a_missing_package_keeps_a_fuzzer_out(monkeypatch: pytest.MonkeyPatch) -> None:
    load = importlib.import_module

    def lacking(missing: str) -> Callable[[str], object]:
        def load_or_lack(name: str) -> object:
            if name == "fuzz.streams":
                raise ModuleNotFoundError(missing, name=missing)
            return load(name)

        return load_or_lack

    monkeypatch.setattr(importlib, "import_module", lacking("msgspec.json"))
    found = fuzzers()
    assert isinstance(found["streams"], Absent)
    assert found["streams"].package == "msgspec"
    assert list(loops_of(found["streams"])) == []
    assert not isinstance(found["threads"], Absent)
    monkeypatch.setattr(importlib, "import_module", lacking("aggml.serve"))
    with pytest.raises(ModuleNotFoundError):
        fuzzers()
