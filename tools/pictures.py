"""Writes docs/pictures: the timeline of a run that overlaps, and the charts of the benchmarks.

The charts follow from a file of benchmarks/results, the schedule from two simulated devices. The
timeline is of a run that this program makes on one, so each time it is another one. Not here: the
drawings (aggml.trace, SchedulePlan.plot, benchmarks/chart.py).

    python tools/pictures.py          write all of them
    python tools/pictures.py --check  fail if the charts are out of date
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Final

import anyio

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "examples")]

from overlapped_transfer import measure  # noqa: E402 - the path is set above

import aggml  # noqa: E402
from aggml import Graph, new_tensor, ops  # noqa: E402
from aggml.devices.sim import SimDevice  # noqa: E402
from benchmarks.chart import charts  # noqa: E402

FOLDER: Final = ROOT / "docs" / "pictures"
RESULTS: Final = ROOT / "benchmarks" / "results" / "amd-epyc-zen4-2.json"


def drawings() -> dict[Path, str]:
    """The charts of the pages, and the schedule, by the path of their file."""
    result = json.loads(RESULTS.read_text(encoding="utf-8"))
    found = {FOLDER / f"speed-{name}.svg": text for name, text in charts(result).items()}
    return found | {FOLDER / "schedule.svg": _schedule()}


def _schedule() -> str:
    """Two layers with a residual, each on a device of its own."""
    width = 64
    a, b = SimDevice("A").backend(), SimDevice("B").backend()
    host = aggml.get_device("CPU").backend(n_threads=1)
    y = new_tensor("f32", ne=(width, 8), name="x").set_input()
    for i, home in enumerate((a, b)):
        gate, up, down = (
            new_tensor("f32", ne=(width, width), name=f"{i}.{name}")
            for name in ("gate", "up", "down")
        )
        home.alloc([gate, up, down], usage="weights")
        h = ops.rms_norm(y, 1e-5).set_name(f"{i}.norm")
        h = ops.mul(ops.silu(ops.mul_mat(gate, h)), ops.mul_mat(up, h)).set_name(f"{i}.hidden")
        y = ops.add(y, ops.mul_mat(down, h)).set_name(f"{i}.out")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "schedule.svg")
        scheduler = aggml.Scheduler([a, b, host])
        scheduler.plan(Graph(y)).plot(path, title="Two layers on two devices")
        for opened in (scheduler, a, b, host):
            opened.close()
        return path.read_text(encoding="utf-8")


def main() -> int:
    """Write or check; returns the exit status."""
    found = drawings()
    if sys.argv[1:] == ["--check"]:
        return int(any(not p.exists() or p.read_text() != text for p, text in found.items()))
    FOLDER.mkdir(exist_ok=True)
    for path, text in found.items():
        path.write_text(text, encoding="utf-8")
    trace = anyio.run(measure, 6, 40.0).trace
    trace.plot(FOLDER / "overlap.svg", title="Six chunks: while one is computed, the next one "
               "is uploaded and the one before is downloaded")  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
