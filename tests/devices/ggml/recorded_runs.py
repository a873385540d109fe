"""The recorded calls of ggml on one device, in a process that may crash: the outcome of each.

Here: the process that runs cases, the process that watches it, counts by op. `python -m
devices.ggml.recorded_runs Vulkan0` in tests/ prints a table. Not here: the cases and their bounds
(ops/recorded.py), which outcomes are right (test_recorded.py).
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import IO, Any

from devices.ggml import builds
from ops.recorded import check_numbers, graph_cases, recorded_calls

import aggml
from aggml.devices import ggml

#: Seconds for one case: software Vulkan compiles a kernel at its first use.
PATIENCE = 120.0
TESTS = Path(__file__).resolve().parents[2]

#: The outcomes of a case; the last two end the process that runs it.
OUTCOMES = ("passed", "refused", "failed", "crashed", "stuck")


def cases() -> list[Any]:
    """Every recorded call and graph: name and case as pytest's parameters."""
    return [*recorded_calls(), *graph_cases()]


def op_of(name: str) -> str:
    """The op of a case, from its name: "mul_mat" from "products-mul_mat-12"."""
    case = _by_name()[name]
    return str(case.op or "graph")


def _by_name() -> dict[str, Any]:
    return {str(param.id): param.values[0] for param in cases()}


def outcome(case: Any, backend: aggml.Backend) -> tuple[str, str]:
    """The outcome of a case on a backend, and the reason if it did not pass."""
    try:
        check_numbers(case, backend)
    except aggml.Unsupported as error:
        return "refused", str(error)
    except AssertionError as error:
        return "failed", f"values differ: {str(error).splitlines()[0] if str(error) else ''}"
    except (aggml.AggmlError, TimeoutError) as error:
        return "failed", f"{type(error).__name__}: {error}"
    return "passed", ""


def _tell(line: list[Any]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def _serve(name: str, first: int, step: int) -> None:
    """Run every ``step``-th case from ``first`` on. Prints a line before and after each case."""
    builds.devices()
    device = ggml.connect(name)[0] if ":" in name else builds.device(name)
    backend = device.backend(n_threads=1)
    for k, param in enumerate(cases()):
        if k < first or (k - first) % step != 0:
            continue
        _tell([k])
        _tell([k, *outcome(param.values[0], backend)])
        if device.native.lost is not None:
            backend.close()
            backend = device.backend(n_threads=1)
    _tell([-1])
    os._exit(0)


def _line(stream: IO[bytes], until: float) -> list[Any] | None:
    ready, _, _ = select.select([stream], [], [], max(0.0, until - time.monotonic()))
    text = stream.readline() if ready else b""
    return json.loads(text) if text.endswith(b"\n") and text.startswith(b"[") else None


def _ended(child: subprocess.Popen[bytes]) -> tuple[str, int]:
    """How a process ended that prints nothing more. If it does not end, it is killed."""
    try:
        return "crashed", child.wait(60)  # the pipe closes a moment before the process ends
    except subprocess.TimeoutExpired:
        child.kill()
        return "stuck", child.wait()


def run(name: str, *, step: int = 1, libraries: Path | None = None) -> dict[str, tuple[str, str]]:
    """The outcome of each ``step``-th case on the device or the endpoint ``name``."""
    names = [str(param.id) for param in cases()]
    found: dict[str, tuple[str, str]] = {}
    first = 0
    while first < len(names):
        child = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "devices.ggml.recorded_runs",
                "--serve",
                name,
                str(first),
                str(step),
            ],
            cwd=TESTS,
            env=os.environ | ({"AGGML_GGML_LIBRARIES": str(libraries)} if libraries else {}),
            stdout=subprocess.PIPE,
            bufsize=0,
        )
        assert child.stdout is not None
        at: int | None = None
        while True:
            told = _line(child.stdout, time.monotonic() + PATIENCE)
            if told is None or told[0] < 0:
                break
            at = int(told[0])
            if len(told) > 1:
                found[names[at]] = (told[1], told[2])
        what, code = _ended(child)
        child.stdout.close()
        if told is not None:
            break
        if at is None or names[at] in found:
            raise RuntimeError(f"{name}: the process that runs cases ended with {code} at {at}")
        found[names[at]] = (what, f"exit code {code}" if what == "crashed" else f"{PATIENCE} s")
        first = at + step
    return found


def table(found: dict[str, tuple[str, str]]) -> str:
    """A table of counts by op, then every case that neither passed nor was refused."""
    by_op: dict[str, Counter[str]] = {}
    for name, (what, _) in found.items():
        by_op.setdefault(op_of(name), Counter())[what] += 1
    lines = [f"{'op':28}" + "".join(f"{what:>9}" for what in OUTCOMES)]
    for op, counts in sorted(by_op.items()):
        lines.append(f"{op:28}" + "".join(f"{counts[what]:9}" for what in OUTCOMES))
    total = Counter(what for what, _ in found.values())
    lines.append(f"{'all':28}" + "".join(f"{total[what]:9}" for what in OUTCOMES))
    bad = [(n, *o) for n, o in found.items() if o[0] not in {"passed", "refused"}]
    return "\n".join(lines + [f"{name}: {what}, {why}" for name, what, why in bad])


if __name__ == "__main__":
    if sys.argv[1] == "--serve":
        _serve(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    else:
        sys.stdout.write(table(run(sys.argv[1], step=int((*sys.argv, "1")[2]))) + "\n")
