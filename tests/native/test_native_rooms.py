"""A file of aggml/native uses only rooms below its own, and files use each other one way.

Here: tools/native_rooms.py, run on the sources and on sources with a fault. Not here: the calls
that `make check-c` reads from the objects; the Python rooms (test_rooms.py).
"""

from __future__ import annotations

from pathlib import Path

import native_rooms
import pytest


def test_no_include_goes_up() -> None:
    assert native_rooms.upward(native_rooms.arrows()) == []


def test_every_folder_is_a_room() -> None:
    folders = {path.name for path in native_rooms.NATIVE.iterdir() if path.is_dir()}
    assert folders - {"__pycache__"} == set(native_rooms.ROOMS)


def test_every_room_is_used_by_one_above() -> None:
    used = {target for _, target in native_rooms.arrows()}
    assert used == set(native_rooms.ROOMS) - {"binding"}


@pytest.mark.parametrize(
    ("file", "text", "fault"),
    [
        ("kernels/avx2/a.c", '#include "lower/b.h"\n', "kernels/avx2/a.c -> lower/b.h"),
        ("lower/a.c", '#include "kernels/b.h"\n', None),
        ("lower/a.c", '#include "../runtime/b.h"\n', "lower/a.c -> runtime/b.h"),
    ],
)
def test_an_include_upwards_is_found(
    file: str, text: str, fault: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("lower/b.h", "kernels/b.h", "runtime/b.h"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text(text)
    monkeypatch.setattr(native_rooms, "NATIVE", tmp_path)
    found = native_rooms.upward(native_rooms.arrows())
    assert found == ([fault] if fault else [])


def test_files_do_not_include_each_other_in_a_circle() -> None:
    assert native_rooms.circle_lines(native_rooms.include_graph()) == []


def test_files_do_not_call_each_other_in_a_circle() -> None:
    graph = native_rooms.uses()
    assert {"stream.c", "queue.c"} <= {Path(file).name for file in graph}
    assert native_rooms.circle_lines(graph) == []


@pytest.mark.parametrize(
    ("files", "circle"),
    [
        (
            {"a.c": "int ag_f(void)\n{\n    return ag_g();\n}\n", "b.c": "int ag_g(void)\n{\n}\n"},
            None,
        ),
        (
            {
                "a.c": "int ag_f(void)\n{\n    return ag_g();\n}\n",
                "b.c": "int ag_g(void)\n{\n    ag_f();\n}\n",
            },
            "a circle of 2 files: runtime/a.c, runtime/b.c",
        ),
        (
            {
                "a.c": "ag_x *ag_f(int a,\n   int b)\n{\n    use(ag_g);\n}\n",
                "b.c": "void ag_g(void)\n{\n    ++ag_count;\n}\n",
                "c.c": "int ag_count = 1;\nvoid ag_h(void)\n{\n    ag_f(1, 2);\n}\n",
            },
            "a circle of 3 files: runtime/a.c, runtime/b.c, runtime/c.c",
        ),
        (
            {
                "a.c": "int ag_f(void)\n{\n    return ag_g(); /* as ag_h() */\n}\n",
                "b.c": "int ag_g(void)\n{\n}\n",
                "c.c": "int ag_h(void)\n{\n    return ag_f();\n}\n",
            },
            None,
        ),
    ],
)
def test_a_circle_of_files_is_found(
    files: dict[str, str],
    circle: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "runtime").mkdir()
    for name, text in files.items():
        (tmp_path / "runtime" / name).write_text(text)
    monkeypatch.setattr(native_rooms, "NATIVE", tmp_path)
    found = native_rooms.circle_lines(native_rooms.uses())
    assert [line for line in found if not line.startswith(" ")] == ([circle] if circle else [])


def test_no_line_is_longer_than_the_limit() -> None:
    """clang-format does not wrap comments and strings. Rows of tables and strings may be longer."""
    style = (native_rooms.NATIVE.parents[1] / ".clang-format").read_text()
    limit = int(style.partition("ColumnLimit:")[2].split()[0])
    long = [
        f"{path.relative_to(native_rooms.NATIVE)}:{number}"
        for path in native_rooms.sources()
        if path.suffix != ".def"
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if len(line) > limit and not line.lstrip().startswith(("* |", '"'))
    ]
    assert long == []
