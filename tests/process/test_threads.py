"""Threads begin with an empty context, also where threads inherit the one of their starter.

Not here: signals (test_signals.py), what a fork does to threads (test_processes.py).
"""

from __future__ import annotations

import contextvars
import subprocess
import sys
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

import pytest

import aggml
from aggml.process.threads import new_thread
from examples import llama_files

if TYPE_CHECKING:
    from collections.abc import Callable

PACKAGE = Path(aggml.__file__).parent
NUMBER: contextvars.ContextVar[int] = contextvars.ContextVar("number", default=0)
#: As free-threaded Python from 3.14 on does it.
INHERIT = """
import contextvars, threading
def start(thread, start=threading.Thread.start):
    run, context = thread.run, contextvars.copy_context()
    thread.run = lambda: context.run(run)
    start(thread)
threading.Thread.start = start
"""


def inherit(thread: Thread, start: Callable[[Thread], None] = Thread.start) -> None:
    run, context = thread.run, contextvars.copy_context()
    thread.run = lambda: context.run(run)  # type: ignore[method-assign]
    start(thread)


def test_a_thread_begins_with_an_empty_context(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Thread, "start", inherit)
    found: list[int] = []

    def look() -> None:
        found.append(NUMBER.get())

    def begin() -> None:
        NUMBER.set(7)
        for thread in (Thread(target=look), new_thread(look, "look")):
            thread.start()
            thread.join(60)

    contextvars.copy_context().run(begin)
    assert found == [7, 0]


def test_functions_of_a_stream_do_not_see_the_context_of_the_first_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Thread, "start", inherit)

    def begin() -> int:
        NUMBER.set(7)
        found: int = aggml.Stream("s").call(NUMBER.get).get(60)
        return found

    assert contextvars.copy_context().run(begin) == 0


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_blocking_calls_work_within_a_loop_whose_context_threads_inherit(
    tmp_path: Path, loop: str
) -> None:
    """As in a notebook, whose cells run in a task. Anyio runs no loop where it sees one."""
    path = llama_files.write(tmp_path / "llama.gguf", "llama")
    program = f"""{INHERIT}
import anyio
from aggml.models import blocking
async def main():
    with blocking.load({str(path)!r}, ctx=256) as model:
        print(len([*model.generate([1, 2, 3], max_tokens=4, min_tokens=4)]))
anyio.run(main, backend={loop!r})
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=False
    )
    assert (done.stdout, done.stderr) == ("4\n", "")


def test_all_threads_are_made_by_one_function() -> None:
    made = [
        str(file.relative_to(PACKAGE))
        for file in sorted(PACKAGE.rglob("*.py"))
        if "threading.Thread(" in file.read_text(encoding="utf-8")
    ]
    assert made == ["process/threads.py"]
