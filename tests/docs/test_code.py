"""Every Python block of README and docs runs as it is printed, on both loops.

The blocks of a page belong together: names of one are known in the next, as in a notebook. A block
that awaits runs in a loop, the others without one. A comment after a ``print`` is its expected
output.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import inspect
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from docs.pages import PAGES, ROOT, Block, blocks

if TYPE_CHECKING:
    from pathlib import Path
    from types import CodeType

SERVER = "http://localhost"  # code that needs a server runs in test_serve_page.py
WITH_CODE = [page for page in PAGES if any(block.language == "python" for block in blocks(page))]


async def awaited(code: CodeType, names: dict[str, Any]) -> None:
    await eval(code, names)


def run(page: str, block: Block, names: dict[str, Any]) -> None:
    """Execute one block; a traceback names the page and its line."""
    source = "\n" * (block.line - 1) + block.code
    # Without the __future__ imports of this file: libraries evaluate annotations of a page.
    code = compile(
        source, str(ROOT / page), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True
    )  # fmt: skip
    if code.co_flags & inspect.CO_COROUTINE:
        anyio.run(awaited, code, names)
    else:
        exec(code, names)


def promised(code: str) -> list[str]:
    """The expected output: the comments after each ``print``."""
    lines = [line for line in code.splitlines() if line.lstrip().startswith("print(")]
    return [line.split("  # ", 1)[1] for line in lines if "  # " in line]


@pytest.mark.long(cases=20)
@pytest.mark.parametrize("loop", ["asyncio", "trio"])
@pytest.mark.parametrize("page", WITH_CODE)
def test_the_code_of_a_page_runs(
    page: str,
    loop: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(anyio, "run", functools.partial(anyio.run, backend=loop))
    names: dict[str, Any] = {"__name__": "page"}
    for block in blocks(page):
        if block.needs and importlib.util.find_spec(block.needs.partition(".")[0]) is None:
            continue  # a library of others; `make test-integrations` has all of them
        if block.language == "python" and SERVER not in block.code:
            run(page, block, names)
            printed = capsys.readouterr().out.splitlines()
            assert [line for line in promised(block.code) if line not in printed] == [], printed


def test_the_pages_that_users_start_with_have_code() -> None:
    first = {"README.md", "docs/getting-started.md", "docs/async.md", "docs/devices.md"}
    assert first <= set(WITH_CODE)


@pytest.mark.long
def test_the_tutorial_on_tests_is_a_file_that_pytest_runs(tmp_path: Path) -> None:
    """Without the lines that call the tests, as the page says."""
    code = "\n".join(b.code for b in blocks("docs/tutorials/testing.md") if b.language == "python")
    lines = [line for line in code.splitlines() if not line.startswith("await test_")]
    (tmp_path / "test_squarer.py").write_text("\n".join(lines))
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    tests = code.count("async def test_")
    assert f"{2 * tests} passed" in done.stdout  # on both loops
