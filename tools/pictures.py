"""Writes docs/pictures: the timeline of a run that overlaps, and the charts of the benchmarks.

The charts follow from a file of benchmarks/results. The timeline is of a run that this program
makes on a simulated accelerator, so each time it is another one. Not here: the drawings
(aggml.trace, benchmarks/chart.py).

    python tools/pictures.py          write all of them
    python tools/pictures.py --check  fail if the charts are out of date
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Final

import anyio

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "examples")]

from overlapped_transfer import measure  # noqa: E402 - the path is set above

from benchmarks.chart import charts  # noqa: E402

FOLDER: Final = ROOT / "docs" / "pictures"
RESULTS: Final = ROOT / "benchmarks" / "results" / "amd-epyc-zen4-2.json"


def drawings() -> dict[Path, str]:
    """The charts of the pages, by the path of their file."""
    result = json.loads(RESULTS.read_text(encoding="utf-8"))
    return {FOLDER / f"speed-{name}.svg": text for name, text in charts(result).items()}


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
