"""``python -m benchmarks``: runs them, prints ratios to peers as a table, writes all as JSON.

Not here: the benchmarks, one file each.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

import anyio

from benchmarks import awaits, conversions, embeddings, executor, lag
from benchmarks.timing import Row, machine, table

PARTS = (awaits.PART, lag.PART, embeddings.PART, executor.PART, conversions.PART)
LOOPS = ("asyncio", "trio")
RESULTS = Path(__file__).resolve().parent / "results"
PACKAGES = ("aggml", "numpy", "anyio", "trio", "torch", "transformers", "onnxruntime")


def usable_cores() -> int:
    """As many as this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def run(part: str, *, threads: int, quick: bool, missing: list[str]) -> list[Row]:
    """The rows of one benchmark, on both loops where they matter."""
    rows: list[Row] = []
    if part == embeddings.PART:

        async def compare() -> list[Row]:
            return await embeddings.measure(threads, quick=quick, missing=missing)

        return anyio.run(compare)
    if part == executor.PART:

        async def nodes() -> list[Row]:
            return await executor.measure(quick=quick, missing=missing)

        return anyio.run(nodes)
    if part == conversions.PART:

        async def convert() -> list[Row]:
            return await conversions.measure(threads, quick=quick)

        return anyio.run(convert)
    measure = awaits.measure if part == awaits.PART else lag.measure
    for loop in LOOPS:

        async def on_loop(loop: str = loop) -> list[Row]:
            return await measure(loop, quick=quick)

        rows += anyio.run(on_loop, backend=loop)
    return rows


def main() -> int:
    """Run the command line; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="few repetitions: whether it runs, not how fast"
    )
    parser.add_argument("--only", choices=PARTS, action="append", help="this one; may be repeated")
    parser.add_argument(
        "--threads", type=int, default=usable_cores(), help="for embeddings, all contenders"
    )
    parser.add_argument(
        "--out", type=Path, help="the JSON file (default: a new one in benchmarks/results)"
    )
    given = parser.parse_args()
    stamp = time.strftime("%Y%m%d-%H%M%S")
    out: Path = given.out or RESULTS / f"bench-{stamp}.json"
    result = {"machine": machine(PACKAGES), "threads": given.threads, "quick": given.quick}
    rows: list[Row] = []
    missing: list[str] = []
    for part in given.only or PARTS:
        print(f"{part} ...", file=sys.stderr, flush=True)
        found = run(part, threads=given.threads, quick=given.quick, missing=missing)
        print(table(found), end="\n\n", flush=True)
        rows += found
    for line in missing:
        print(f"not measured: {line}")
    result["rows"] = [row.as_json() for row in rows]
    result["missing"] = missing
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(f"written to {out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
