"""A peer in a process of its own, stopped while others are measured.

A peer that crashes ends its own process, not the run. Its threads may spin when their work is done,
but they take no core while the process is stopped. Not here: the peers (ggml.py, arrays.py,
llamacpp.py).
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

ROOT = Path(__file__).resolve().parent.parent
PR_SET_PDEATHSIG = 1
PATIENCE = 90  # seconds for one call; the longest, loading a model, takes a few seconds


class ChildError(Exception):
    """A peer refused, or its process ended; the message says how."""


class Child:
    """A process ``python -m MODULE`` that calls `serve`; `call` runs one of its functions.

    Args:
        module: the module that runs.
        environment: variables, in addition to those of this process.
    """

    def __init__(self, module: str, environment: Mapping[str, str] | None = None) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 closed by close()
        self._process = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            cwd=ROOT,
            env={**os.environ, **(environment or {})},
            text=True,
        )

    def call(self, name: str, *arguments: Any) -> Any:
        """Call the child's function ``name``; returns its result. The child runs only meanwhile.

        Raises:
            ChildError: the function raised, or the process ended.
        """
        asked, answered = self._process.stdin, self._process.stdout
        assert asked is not None
        assert answered is not None
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGCONT)
        try:
            asked.write(json.dumps([name, arguments]) + "\n")
            asked.flush()
            # A call is answered with one line, so no more data waits in our buffer.
            if not select.select([answered], [], [], PATIENCE)[0]:
                self._process.kill()
                raise ChildError(f"said nothing for {PATIENCE} s")
            line = answered.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise ChildError(self._end())
        self._process.send_signal(signal.SIGSTOP)
        good, result = json.loads(line)
        if not good:
            raise ChildError(result)
        return result

    def _end(self) -> str:
        status = self._process.wait()
        if status < 0:
            return f"died of {signal.Signals(-status).name}"
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace").strip().splitlines()
        return f"ended with status {status}" + (f": {said[-1]}" if said else "")

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def serve(functions: Mapping[str, Callable[..., Any]]) -> None:
    """In the child: answer calls until the parent has gone. Output of libraries goes to stderr."""
    if sys.platform == "linux":  # a stopped process would not notice that its parent has ended
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        name, arguments = json.loads(line)
        answer: list[Any]
        try:
            answer = [True, functions[name](*arguments)]
        except Exception as error:  # report any exception to the parent
            traceback.print_exc()
            answer = [False, f"{type(error).__name__}: {error}"]
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
