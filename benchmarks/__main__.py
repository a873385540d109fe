"""``python -m benchmarks``: measures, prints a table, writes JSON and charts.

Not here: the benchmarks, which have a file each.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import re
import sys
import time
import traceback
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import anyio

from benchmarks import (
    awaits,
    busy,
    chart,
    conversions,
    embeddings,
    executor,
    files,
    generation,
    growth,
    kernels,
    lag,
    live,
    live_peers,
    mixed,
    ops,
    pipelines,
    roofline,
    service,
    tasks,
)
from benchmarks.peers import MissingPeerError
from benchmarks.timing import Row, machine, progress, table

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from typing import Any

PARTS: Final = {
    roofline.PART: "the limits of the machine: bandwidth, arithmetic peaks",
    kernels.GEMM: "mul_mat of 512 columns, every type; ggml, numpy, PyTorch",
    kernels.MATVEC: "mul_mat of 1 and 8 columns, weights from memory; ggml, PyTorch",
    kernels.ATTENTION: "attention of 512 x 512; ggml, PyTorch",
    kernels.CONTEXTS: "attention of one query to 4,096 x 8, 32,768 and 131,072 keys; ggml",
    kernels.ELEMENTWISE: "soft_max, rms_norm, rope; ggml, PyTorch",
    ops.PART: "every op, with data from outside of L2 and in cache; ggml",
    generation.PART: "tokens per second of a 514M llama; llama.cpp",
    files.PART: "the same for mixtures (Q4_K_M, ...) at real shapes; llama.cpp, ik_llama.cpp",
    busy.PART: "generate beside a process that burns one core; llama.cpp",
    embeddings.PART: "all-MiniLM-L6-v2; onnxruntime, OpenVINO, PyTorch, llama.cpp",
    tasks.PART: "generate of 1 to 16 tasks, embed of 64, an urgent request; serve, llama.cpp",
    service.PART: "aggml.serve with 1 to 64 clients; llama.cpp's server",
    mixed.PART: "chat, vectors, ranks, speech in one process; long prompts; llama.cpp's servers",
    awaits.PART: "the cost of an await; anyio's threads",
    pipelines.PART: "a pipeline, per item and stage; anyio's streams",
    live.PART: "Whisper hears 1 and 8 sounds: real-time factor, delay, lag of the loop",
    live_peers.PART: "from sound to an answer, 8 clients; faster-whisper, llama.cpp in threads",
    lag.PART: "how late the event loop is while all cores compute",
    executor.PART: "time per tiny node; ggml",
    growth.PART: "the cost of one future, stream, backend, input, call among up to 10,000",
    conversions.PART: "f16 and bf16 to f32 and back; a plain copy",
}
LOOPS: Final = ("asyncio", "trio")
RESULTS: Final = Path(__file__).resolve().parent / "results"
PACKAGES: Final = (
    "aggml", "numpy", "anyio", "trio", "torch", "transformers", "onnxruntime", "openvino", "nncf",
    "faster-whisper", "llama-cpp-python", "ik-llama-cpp-python", "xllamacpp",
)  # fmt: skip


def usable_cores() -> int:
    """The number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class Bench:
    """One run: its options, and the rows measured so far.

    Args:
        given: the options.
        about: facts of the machine.
        out: the file of the results.
    """

    def __init__(self, given: argparse.Namespace, about: Mapping[str, Any], out: Path) -> None:
        self.quick: bool = given.quick
        self.threads: int = given.threads
        self.match: str = given.match
        self.rows: list[Row] = []
        self.missing: list[str] = []
        self.roofline = roofline.Roofline(given.threads)
        self.out = out
        self.result: dict[str, Any] = {
            "machine": about, "threads": given.threads, "quick": given.quick,
        }  # fmt: skip
        self._begin = time.perf_counter()

    @property
    def seconds(self) -> float:
        """How long the run has lasted."""
        return time.perf_counter() - self._begin

    def save(self, unfinished: Sequence[Row] = ()) -> None:
        """Write all rows, and those of a part that has more rounds to come."""
        self.result |= {
            "seconds": self.seconds,
            "rows": [row.as_json() for row in [*self.rows, *unfinished]],
            "missing": self.missing,
        }
        self.out.parent.mkdir(parents=True, exist_ok=True)
        self.out.write_text(json.dumps(self.result, indent=1) + "\n", encoding="utf-8")

    def part(self, name: str) -> list[Row]:
        """The rows of one benchmark, on asyncio and trio where the loop matters."""
        # PyTorch, NNCF and others that parts before this one imported are not scanned again and
        # again: else a part that makes many objects, such as nodes, takes up to twice as long.
        gc.collect()
        gc.freeze()
        if name == roofline.PART:
            return roofline.measure(self.roofline, quick=self.quick)
        on_loops = {
            awaits.PART: awaits, pipelines.PART: pipelines, live.PART: live,
            live_peers.PART: live_peers, lag.PART: lag, growth.PART: growth,
        }  # fmt: skip
        if name in on_loops:
            rows: list[Row] = []
            for loop in LOOPS:
                on_loop = partial(on_loops[name].measure, loop, quick=self.quick)
                try:
                    rows += anyio.run(on_loop, backend=loop)
                except MissingPeerError as error:
                    self.missing.append(f"{name}: {error}")
                    break
            return rows
        return anyio.run(self._measure(name))

    def _measure(self, name: str) -> Callable[[], Awaitable[list[Row]]]:
        quick, missing = self.quick, self.missing
        if name in (generation.PART, files.PART):
            measured = generation if name == generation.PART else files
            return partial(
                measured.measure, self.threads, self.roofline,
                quick=quick, match=self.match, missing=missing,
            )  # fmt: skip
        if name == busy.PART:
            return partial(busy.measure, self.threads, quick=quick, missing=missing)
        if name in kernels.PARTS:
            return partial(
                kernels.measure, name, self.threads, self.roofline,
                quick=quick, match=self.match, missing=missing,
            )  # fmt: skip
        if name == ops.PART:
            return partial(
                ops.measure, self.threads, self.roofline,
                quick=quick, match=self.match, missing=missing,
            )  # fmt: skip
        if name == embeddings.PART:
            return partial(
                embeddings.measure, self.threads, self.roofline,
                quick=quick, match=self.match, missing=missing,
            )  # fmt: skip
        if name == service.PART:
            return partial(
                service.measure, self.threads, quick=quick, match=self.match, missing=missing
            )
        if name == mixed.PART:
            return partial(
                mixed.measure, self.threads,
                quick=quick, match=self.match, missing=missing, save=self.save,
            )  # fmt: skip
        if name == tasks.PART:
            return partial(
                tasks.measure, self.threads, quick=quick, match=self.match, missing=missing
            )
        if name == executor.PART:
            return partial(executor.measure, quick=quick, missing=missing)
        return partial(conversions.measure, self.threads, quick=quick)


def _parser() -> argparse.ArgumentParser:
    width = max(map(len, PARTS))
    parts = "\n".join(f"  {name:{width}}  {what}" for name, what in PARTS.items())
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measures aggml beside its peers, all in turns, as medians.",
        epilog=f"parts, in the order in which they are measured:\n{parts}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "parts", nargs="*", metavar="PART", help="what to measure (default: all); see below"
    )
    parser.add_argument(
        "--match",
        default="",
        metavar="TEXT",
        help="only rows with TEXT in their name: kernels, ops, files, generate, embeddings, ...",
    )
    parser.add_argument(
        "--quick", action="store_true", help="few repetitions: shows that it runs, not how fast"
    )
    parser.add_argument(
        "--threads", type=int, default=usable_cores(), metavar="N",
        help="threads of every contender (default: usable cores)",
    )  # fmt: skip
    parser.add_argument(
        "--out", type=Path, metavar="FILE",
        help="the JSON file (default: benchmarks/results/PROCESSOR-KIND-THREADS.json; of some "
        "parts or a quick run build/bench/bench.json)",
    )  # fmt: skip
    return parser


def _default_out(given: argparse.Namespace, about: Mapping[str, Any]) -> Path:
    """A file named after the processor; partial and quick runs do not go to the results.

    The kind of core is part of the name or, if it is not known or AGGML_ISA names one, the
    instruction set: a virtual machine often hides the model.
    """
    if given.quick or given.parts or given.match:
        return roofline.CACHE / "bench.json"
    name = re.sub(r"[^a-z0-9]+", "-", re.sub(r"\(\w+\)", "", about["cpu"].lower())).strip("-")
    kind = "" if os.environ.get("AGGML_ISA") else about["core"]
    return RESULTS / f"{name or 'machine'}-{kind or about['isa']}-{given.threads}.json"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = _parser()
    given = parser.parse_args(arguments)
    unknown = [name for name in given.parts if name not in PARTS]
    if unknown:
        parser.error(f"{unknown[0]!r} is none of {', '.join(PARTS)}")
    if given.threads < 1:
        parser.error(f"--threads {given.threads} is less than 1")
    about = machine(PACKAGES)
    out: Path = given.out or _default_out(given, about)
    bench = Bench(given, about, out)
    failed = []
    parts = given.parts or list(PARTS)
    for i, part in enumerate(parts):
        progress(f"part {i + 1} of {len(parts)}, after {bench.seconds:.0f} s: {part} ...")
        try:
            found = bench.part(part)
        except Exception as error:  # go on with the other parts
            traceback.print_exc()
            failed.append(part)
            bench.missing.append(f"{part} failed: {type(error).__name__}: {error}")
        else:
            print(table(found), end="\n\n", flush=True)
            bench.rows += found
        bench.save()
    for line in bench.missing:
        print(f"not measured: {line}")
    print(_summary(bench.rows, bench.seconds))
    print(f"written to {out}")
    folder = out.with_suffix("")
    drawn = chart.draw(bench.result, folder)
    print(f"{len(drawn)} charts in {folder}" if drawn else "no charts: these parts have none")
    return 1 if failed else 0


def _summary(rows: Sequence[Row], seconds: float) -> str:
    """A summary: how many budgets are kept, and which are missed."""
    judged = [(row, *verdict) for row in rows for verdict in row.judged()]
    missed = [(row, budget, actual) for row, budget, actual in judged if not budget.kept(actual)]
    lines = [f"{len(judged) - len(missed)} of {len(judged)} budgets kept, in {seconds:.0f} s"]
    lines += [
        f"  missed: {row.what}: {actual:.3g}, to be {budget.sign} {budget.limit:.3g}"
        + (f" of {budget.of}" if budget.of else f" {row.unit}")
        for row, budget, actual in missed
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
