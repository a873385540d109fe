"""Errors of calls and of requests begin with their place: ``[generate] the deadline ...``.

Found by reading the sources. Not here: errors of files (ModelError, GGUFError), which name the file
or its key, errors of the service, which clients get without a place (tests/serve).
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

import aggml

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT: Final = Path(aggml.__file__).parent
CALLS: Final = {"InvalidArgument", "InvalidHandle", "InvalidState", "OutOfBounds", "Unsupported"}
REQUESTS: Final = {
    "DeadlineError", "EngineError", "FullError", "GrammarError", "NotFiniteError", "TooLongError",
}  # fmt: skip
#: Files in which the place is in a variable with which the messages begin.
GIVEN: Final = {"devices/meta/split.py", "gguf/pieces.py", "models/vision/decoding.py"}


def beginning(message: ast.expr) -> str | None:
    """The text with which a message begins; None: it is made elsewhere."""
    match message:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=[ast.Constant(value=str(text)), *_]):
            return text
        case ast.JoinedStr():
            return "{"
        case ast.BinOp(left=left):
            return beginning(left)
    return None


def without_place(source: str) -> Iterator[tuple[int, str]]:
    """Lines in which an error of a call or a request is made whose message has no place."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        name = getattr(node.func, "id", getattr(node.func, "attr", ""))
        text = beginning(node.args[0])
        if name in CALLS | REQUESTS and text is not None and not text.startswith("["):
            yield node.lineno, f"{name}({text!r}...)"


@pytest.mark.long
def test_errors_of_calls_and_requests_begin_with_their_place() -> None:
    found = []
    for path in sorted(ROOT.rglob("*.py")):
        file = path.relative_to(ROOT).as_posix()
        if not file.startswith("serve/") and file not in GIVEN:
            found += [(file, *x) for x in without_place(path.read_text())]
    assert found == []


@pytest.mark.parametrize(
    ("line", "is_found"),
    [
        ('raise DeadlineError("too late")', True),
        ('raise models.DeadlineError(f"{n} tokens made")', True),
        ('error = EngineError("stop" + why)', True),
        ('raise DeadlineError(f"[generate] {n} tokens made")', False),
        ("raise FullError(message, 5)", False),
        ('raise ModelError("the file has no tensor")', False),
    ],
)
def test_the_finder_sees_a_message_without_a_place(line: str, is_found: bool) -> None:
    assert bool(list(without_place(line))) == is_found
