"""`~` at the beginning of a path is the home directory, wherever a caller gives a path."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio
import numpy as np
import pytest
from models import random_models

import aggml
from aggml.models.imatrix import read_imatrix
from aggml.process.paths import user_path

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT: Final = Path(aggml.__file__).parent


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    random_models.write(tmp_path / "llama.gguf", "llama")
    return tmp_path


def test_what_becomes_of_a_path(home: Path) -> None:
    assert user_path("~/a/b") == home / "a" / "b"
    assert user_path(Path("~")) == home
    assert user_path("a/~/b") == Path("a/~/b")
    assert user_path("~no-such-user-here/b") == Path("~no-such-user-here/b")


def _write(path: str) -> None:
    with aggml.GGUFWriter(path) as writer:
        writer.add("general.architecture", "none")
        writer.add_tensor("a", np.zeros(4, np.float32))


def _trace(path: str) -> None:
    with aggml.trace() as trace, aggml.get_device("CPU").backend() as backend:
        tensor = aggml.new_tensor("f32", ne=(4,))
        backend.alloc([tensor])
        backend.set(tensor, np.zeros(4, np.float32)).wait(60)
    trace.save(path)
    trace.plot(path + ".svg")


@pytest.mark.parametrize(
    ("call", "made"),
    [
        (lambda: aggml.GGUFFile.open("~/llama.gguf").close(), []),
        (lambda: _write("~/new.gguf"), ["new.gguf"]),
        (lambda: _trace("~/t"), ["t", "t.svg"]),
        (
            lambda: anyio.run(aggml.models.convert, "~/llama.gguf", "~/q.gguf", "q8_0"),
            ["q.gguf"],
        ),
    ],
)
def test_files_in_the_home_directory(home: Path, call: Callable[[], Any], made: list[str]) -> None:
    call()
    for name in made:
        assert (home / name).exists()


@pytest.mark.parametrize(
    "call",
    [
        lambda: aggml.devices.ggml.load("~/none"),
        lambda: aggml.load("~/none.py"),
        lambda: read_imatrix("~/none"),
        lambda: anyio.run(aggml.models.load, "~/none"),
    ],
)
def test_a_missing_file_is_named_in_the_home_directory(home: Path, call: Callable[[], Any]) -> None:
    with pytest.raises((aggml.AggmlError, OSError), match=r"none") as raised:
        call()
    assert str(home) in str(raised.value) or "~/none" in str(raised.value)


def used_as_it_is(source: str) -> list[int]:
    """Lines in which `Path` or `open` takes a parameter that may be a text or an os.PathLike."""
    found = []
    for function in ast.walk(ast.parse(source)):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        paths = {
            x.arg
            for x in [*function.args.args, *function.args.kwonlyargs]
            if x.annotation is not None and "PathLike" in ast.unparse(x.annotation)
        }
        found += [
            node.lineno
            for node in ast.walk(function)
            if isinstance(node, ast.Call)
            and ast.unparse(node.func) in {"Path", "pathlib.Path", "open"}
            and node.args
            and isinstance(node.args[0], ast.Name)
            and node.args[0].id in paths
        ]
    return found


@pytest.mark.long
def test_no_path_of_a_caller_is_used_as_it_is() -> None:
    assert used_as_it_is("def f(path: str | os.PathLike[str]):\n  return Path(path)") == [2]
    for file in sorted(ROOT.rglob("*.py")):
        if file.name != "paths.py":
            assert used_as_it_is(file.read_text(encoding="utf-8")) == [], file
