"""Every op compared with ggml, in turns: with data from outside of L2, and with data in cache.

The figure is bytes of operands and results for each second. For ops that compute more than they
move only the ratio to ggml means something. Not here: products and attention of models' sizes
(kernels.py).
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np

import aggml
from aggml import Graph, ops
from benchmarks.child import Child, ChildError
from benchmarks.op_cases import data
from benchmarks.op_ggml import SAMPLE
from benchmarks.op_rows import all_cases
from benchmarks.timing import Budget, Row, computed_in, median, progress

if TYPE_CHECKING:
    from aggml import Backend, Tensor
    from benchmarks.op_cases import OpCase
    from benchmarks.roofline import Roofline

PART: Final = "ops"
MOMENT: Final = 0.05  # seconds for each contender of a row, but at least three turns
TURN: Final = 0.003  # seconds of a turn; shorter cases run several times in it


class Builders:
    """`aggml.ops`, and functions for which ggml has other names."""

    def __getattr__(self, name: str) -> Any:
        return getattr(ops, name)

    def param(self, x: Tensor) -> Tensor:
        """Mark x as a parameter; returns it."""
        return x.set_param()

    def sinks(self, x: Tensor, sinks: Tensor) -> Tensor:
        """Add sinks to an attention node; returns the node."""
        return ops.flash_attn_ext_add_sinks(x, sinks)


class Ours:
    """A case on a backend of aggml."""

    def __init__(self, be: Backend, case: OpCase) -> None:
        self.be, self.case = be, case
        self._inputs = [aggml.new_tensor(x.dtype, ne=x.ne).set_input() for x in case.inputs]
        self._ends = [
            case.build(Builders(), *self._inputs).set_output() for _ in range(case.copies)
        ]
        self.graph = Graph(*self._ends)

    async def prepare(self) -> None:
        """Place and fill tensors; then one run, so that nothing is left to prepare."""
        await self.be.prepare(self.graph)
        for number, (operand, tensor) in enumerate(
            zip(self.case.inputs, self._inputs, strict=True)
        ):
            if tensor.buffer is None:
                continue
            await self.be.set(tensor, data(operand, number))
        await self.be.graph_compute(self.graph)

    async def run(self, times: int) -> list[float]:
        """The seconds of each run, from the first instruction of the graph to the last."""
        found = []
        for _ in range(times):
            future = self.be.graph_compute(self.graph)
            await future
            found.append(computed_in(future))
        return found

    async def values(self) -> np.ndarray[Any, Any] | None:
        """Some results, evenly spread, if they are f32."""
        got = (await self.be.get(self._ends[0])).ravel()
        if self._ends[0].dtype is not aggml.DType.F32:
            return None
        return got[:: -(-got.size // SAMPLE)]

    def bytes_moved(self) -> float:
        """Bytes of operands and results, each counted once."""
        given = sum(x.nbytes for x in self._inputs)
        return float(given + self.case.copies * self._ends[0].nbytes)


class _Peer:
    """ggml's process; a new one is started when it has died."""

    def __init__(self, threads: int, missing: list[str]) -> None:
        self._threads, self._missing = threads, missing
        self._child: Child | None = None
        self.note = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._drop()

    def call(self, name: str, *arguments: Any) -> Any:
        """Call a function of the process; None if that fails, which is noted."""
        if self._child is None:
            self._child = Child("benchmarks.op_ggml", {"GGML_NO_BACKTRACE": "1"})
        try:
            return self._child.call(name, *arguments)
        except ChildError as error:
            self._drop()
            self.note = f"ggml: {error}"
            if "MissingPeerError" in self.note and self.note not in self._missing:
                self._missing.append(self.note)
            return None

    def prepare(self, what: str) -> bool:
        """Prepare a case; returns whether ggml can compute it."""
        self.note = ""
        self.call("prepare", what, self._threads)
        if not self.note:
            self.call("run", 1)
        return not self.note

    def _drop(self) -> None:
        if self._child is not None:
            self._child.close()
        self._child = None


async def measure(
    threads: int, roofline: Roofline, *, quick: bool, match: str, missing: list[str]
) -> list[Row]:
    """The rows whose names contain ``match``."""
    rows = []
    with _Peer(threads, missing) as peer:
        async with aggml.get_device("CPU").backend(n_threads=threads) as be:
            for what, case in all_cases().items():
                if match.lower() not in what.lower():
                    continue
                progress(f"{PART}: {what}")
                ours = Ours(be, case)
                await ours.prepare()
                taking_part = peer.prepare(what)
                rows.append(
                    await _row(what, ours, peer if taking_part else None, roofline, peer, quick)
                )
                peer.call("close")
    beside = [row.value >= row.peers["ggml"] for row in rows if row.peers]
    if beside:
        what = f"of {len(beside)} rows, as fast as ggml or faster"
        rows.append(Row(PART, what, 100 * sum(beside) / len(beside), "%"))
    return rows


async def _row(
    what: str, ours: Ours, peer: _Peer | None, roofline: Roofline, told: _Peer, quick: bool
) -> Row:
    moved = ours.bytes_moved()
    own: list[float] = []
    theirs: list[float] = []
    heights: list[float] = []
    begin, turns = time.perf_counter(), 0
    while turns < 3 or (not quick and turns < 30 and time.perf_counter() - begin < 2 * MOMENT):
        turns += 1
        if turns <= 3:
            heights.append(roofline.copy(max(4096, int(moved) // 2)))
        own += (await ours.run(_times(own)))[-1:] if not own else await ours.run(_times(own))
        if peer is not None:
            found = peer.call("run", _times(theirs))
            theirs += [] if found is None else found[-1:] if not theirs else found
    seconds = median(own)
    note, more = told.note, {"microseconds": seconds * 1e6, "least": min(own) * 1e6}
    if theirs and peer is not None:
        more["theirs least"] = min(theirs) * 1e6
        got, wanted = await ours.values(), np.array(peer.call("values"), np.float32)
        if got is not None and wanted.size == got.size:
            square = float(np.nansum(wanted.astype(np.float64) ** 2)) or 1.0
            difference = float(np.nansum((got.astype(np.float64) - wanted) ** 2)) / square
            more["nmse"] = difference
            if not math.isfinite(difference) or difference > 1e-2:
                note = f"results differ: nmse {difference:.2g}"
    rates = {"ggml": moved / 1e9 / median(theirs)} if theirs else {}
    tops = {"a copy": median(heights) / 1e9} if heights else {}
    return Row(
        PART,
        what,
        moved / 1e9 / seconds,
        "GB/s",
        rates,
        tops,
        budgets=(Budget("ggml", ">=", 1.0),),
        note=note,
        more=more,
    )


def _times(found: list[float]) -> int:
    """How often a case runs in a turn; the first run of all wakes threads and does not count."""
    return 2 if not found else max(1, min(100, int(TURN / (min(found) + 1e-9))))
