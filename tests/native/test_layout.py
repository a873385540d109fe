"""C style that clang-format does not check: tools/c_layout.py finds each fault, and none here.

Not here: arrows between rooms (test_native_rooms.py).
"""

from __future__ import annotations

from pathlib import Path

import c_layout
import pytest

ROOT = Path(__file__).resolve().parents[2]
LONG = "/* what is here */\nint f(void)\n{\n" + "    f();\n" * 80 + "}\n"


def test_no_file_of_this_repository_has_a_fault() -> None:
    assert c_layout.check(ROOT) == []


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("/* what is here */\n" + "x" * 121, "2: 121 columns"),
        (LONG, "2: a function of 83 lines"),
        ("int x;\n", "1: no comment says"),
        ("/* as in\n * gone.c */\n", "2: there is no gone.c"),
        ("/* kernels/<isa>/gone.c */\n", "there is no /gone.c"),
    ],
)
def test_each_fault_is_found(text: str, fault: str) -> None:
    (found,) = c_layout.faults("made.c", text, {"kernels/avx2/there.c", "there.c"})
    assert fault in found


def test_what_is_right_has_no_fault() -> None:
    text = "/* kernels/<isa>/there.c, there.c */\nint f(void)\n{\n    return 0;\n}\n"
    assert [*c_layout.faults("made.c", text, {"kernels/avx2/there.c", "there.c"})] == []
