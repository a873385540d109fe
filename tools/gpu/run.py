"""Verifies and measures aggml on a GPU, step by step: ``python tools/gpu/run.py verify``.

Also ``full`` (all measurements), or groups and steps by name, such as ``sanitize soak``. A step is
a process with a time limit. If it hangs, it is stopped with a dump of its stacks, and the next one
begins. ``$OUT`` gets log.txt, results.jsonl (of steps) and figures.jsonl, line by line. ``FAKE=1``
runs all steps on the fake driver of tests/devices/cuda. This file needs nothing but Python, because
all else is under test. Not here: what the steps do (look.py, the tests, benchmarks/gpu.py),
unpacking (run.sh).
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["GROUPS", "Step", "perform", "steps"]

_TREE = Path(__file__).resolve().parents[2]
_TAIL = 20  # last lines of a step's output that are printed
_LEFT = 30.0  # seconds that a step leaves for each later step, if --seconds limits them together
_DEVICE = "tests/devices/cuda/device"


@dataclass(frozen=True)
class Step:
    """A command, and the seconds after which it is stopped."""

    name: str
    seconds: float
    command: list[str]
    environment: dict[str, str] = field(default_factory=dict)


#: Groups of steps, by name.
GROUPS = {
    "verify": ["environment", "load", "quick", "corpus", "device", "faults"],
    "full": ["figures", "joined", "sums"],
    "sanitize": ["memcheck", "racecheck", "synccheck"],
}
GROUPS["all"] = [*GROUPS["verify"], *GROUPS["full"], *GROUPS["sanitize"], "soak"]


def _pytest(*arguments: str) -> list[str]:
    """pytest with packed plug-ins only: others may warn, and warnings are errors here."""
    return [
        sys.executable, "-m", "pytest", "-q", "-p", "anyio.pytest_plugin", "-p", "pytest_timeout",
        "-p", "no:cacheprovider", "-o", "filterwarnings=default", "-o",
        "addopts=-ra --strict-markers --import-mode=importlib", *arguments,
    ]  # fmt: skip


def steps(out: Path, *, fake: bool) -> dict[str, Step]:
    """Every step by name."""
    python = sys.executable
    look = [python, "tools/gpu/look.py"]
    figures = ["--figures", str(out / "figures.jsonl")]
    mark = [] if fake else ["-m", "gpu"]
    on = {
        "AGGML_TEST_CUDA": "fake" if fake else "gpu",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    # For the fake driver g++ compiles kernels one by one, so only a few are tested.
    few = {"AGGML_CORPUS_GROUPS": "norm,glu"} if fake else {}
    some = {"AGGML_CORPUS_GROUPS": "unary,norm,mul_mat_id,soft_max,rows"}
    on_a_gpu = (
        "models", "fusion_chain", "fusion_experts", "strided", "kernels_on_it", "conformance",
    )  # fmt: skip
    on_both = ("driver_rules", "streams", "waits", "faults", "scheduling", "blas")
    device = [f"{_DEVICE}/test_{x}.py" for x in on_both]
    device += [] if fake else [f"{_DEVICE}/test_{x}.py" for x in on_a_gpu]
    corpus = f"{_DEVICE}/test_corpus.py"
    found = [
        Step("environment", 60, [*look, "environment"]),
        Step("load", 120, [*look, "load"]),
        Step("quick", 120, [python, "-m", "benchmarks.gpu", "--quick", *figures]),
        Step("corpus", 240, _pytest(*mark, "-o", "test_seconds=60", corpus), few),
        Step("device", 240, _pytest(*mark, "-o", "test_seconds=100", *device)),
        Step("faults", 60, [python, "-m", "benchmarks.gpu_faults", "0"]),
        Step(
            "joined",
            240,
            _pytest(*mark, "-o", "test_seconds=60", f"{_DEVICE}/test_fusion_pair.py"),
            few | {"FAKE_CUDA_DEVICES": "2"},
        ),
        Step(  # skipped on a machine with one GPU, or without the wheel of NCCL
            "sums", 120, _pytest(*mark, "-o", "test_seconds=60", f"{_DEVICE}/test_nccl.py"),
            {"FAKE_CUDA_DEVICES": "2"},
        ),
        Step("figures", 540, [python, "-m", "benchmarks.gpu", *figures]),
        Step(
            "soak", 540, _pytest(*mark, "--capture=no", "-o", "test_seconds=500",
            f"{_DEVICE}/test_soak.py"), {"AGGML_SOAK": "200" if fake else "20000"},
        ),
    ]  # fmt: skip
    if fake:
        quick = _pytest(f"{_DEVICE}/test_bench_gpu.py", "-k", "failures or wild or without")
        found = [step for step in found if step.name not in ("quick", "figures", "faults")]
        found.insert(2, Step("quick", 120, quick))
    for tool in GROUPS["sanitize"]:
        checker = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "9"]
        found.append(Step(tool, 180, [*checker, *_pytest(*mark, corpus)], some))
    return {x.name: Step(x.name, x.seconds, x.command, on | x.environment) for x in found}


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Abort a process, so that Python's fault handler dumps its stacks; if that fails, kill it."""
    for number in (signal.SIGABRT, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(10)
        except subprocess.TimeoutExpired:
            continue
        except ProcessLookupError:
            break
    process.wait()


def perform(step: Step, out: Path, seconds: float) -> dict[str, object]:
    """Run a step for at most ``seconds``; its output goes to log.txt while it runs."""
    path = out / "log.txt"
    start = time.monotonic()
    with path.open("ab") as log:
        log.write(f"\n=== {step.name}: {' '.join(step.command)}\n".encode())
        log.flush()
        before = path.stat().st_size
        status: int | str
        try:
            process = subprocess.Popen(
                step.command,
                cwd=_TREE,
                env=os.environ | step.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except FileNotFoundError:
            status = "not here"
        else:
            try:
                status = process.wait(seconds)
            except subprocess.TimeoutExpired:
                _stop(process)
                status = f"stopped after {seconds:.0f} s"
    lines = path.read_bytes()[before:].decode(errors="replace").splitlines()
    print("\n".join(lines[-_TAIL:]), flush=True)
    took = time.monotonic() - start
    told: dict[str, object] = {"step": step.name, "status": status, "seconds": round(took, 1)}
    with (out / "results.jsonl").open("a") as file:
        file.write(json.dumps(told) + "\n")
    return told


def main() -> int:
    """Run steps; returns how many failed. A missing tool is reported and is no failure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("what", nargs="*", default=["verify"], help="groups and steps")
    parser.add_argument("--seconds", type=float, default=0, help="for all of them together")
    given = parser.parse_args()
    out = Path(os.environ.get("OUT", "gpu-out")).resolve()
    out.mkdir(parents=True, exist_ok=True)
    known = steps(out, fake=os.environ.get("FAKE") == "1")
    names = [name for what in given.what for name in GROUPS.get(what, [what])]
    unknown = [name for name in names if name not in known and name not in GROUPS["all"]]
    if unknown:
        parser.error(f"no step is called {', '.join(unknown)}; there are {', '.join(known)}")
    end = time.monotonic() + given.seconds if given.seconds else float("inf")
    told = []
    there = [name for name in names if name in known]  # the fake driver lacks some
    for i, name in enumerate(there):
        left = end - time.monotonic() - _LEFT * (len(there) - 1 - i)
        limit = min(known[name].seconds, left)
        if limit < 5:
            print(f"=== {name}: no time is left for it", flush=True)
            told.append({"step": name, "status": "not begun"})
            continue
        print(f"=== {name}", flush=True)
        told.append(perform(known[name], out, limit))
    print("=== summary")
    for line in told:
        print(f"{line['step']:12} {line['status']!s:24} {line.get('seconds', '')} s")
    return sum(line["status"] not in (0, "not here") for line in told)


if __name__ == "__main__":
    sys.exit(main())
