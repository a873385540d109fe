"""Tokens per second of a decoder, compared with peers on the same files.

A prompt of 512 tokens (pp512), then 128 steps of one sequence (tg128) and of eight together (tg128
x 8), in turns of a few steps. Our steps are those of the engine at temperature 0: each step takes
the best token and feeds it to the next step. llama.cpp is fed random tokens and chooses
none. Not here: the files (model_files.py), how peers are driven (llamacpp.py, ik_llamacpp.py),
files with mixtures of types (files.py).
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

import aggml
from benchmarks import model_files
from benchmarks.child import Child, ChildError
from benchmarks.models import Decoder, best_tokens, load_decoder, open_model
from benchmarks.peers import MissingPeerError
from benchmarks.timing import Budget, Row, median, progress

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from benchmarks.model_files import Shape
    from benchmarks.roofline import Roofline

PART: Final = "generate"
TYPES: Final = ("q4_0", "q8_0", "q4_K", "Q4_K_M", "Q5_K_M", "bf16")
PEER: Final = "llama.cpp"
PROMPT: Final = 512
STEPS: Final = 128
SLICE: Final = 16
TOGETHER: Final = 8
CTX: Final = 1024
PACKINGS: Final = {"all": "", "CPU_REPACK": "without AMX", "none": "weights as they lie"}

# Least shares of the bytes per second that memory gives. Also, no row may be slower than llama.cpp.
SHARES: Final = {"tg128": 0.88, "tg128 x 8": 0.75}


async def measure(
    threads: int,
    roofline: Roofline,
    *,
    quick: bool,
    match: str,
    missing: list[str],
) -> list[Row]:
    """Three rows for each type of file whose name contains ``match``."""
    rows: list[Row] = []
    shape = model_files.SMALL if quick else model_files.LARGE
    for dtype in TYPES:
        if match.lower() not in dtype.lower():
            continue
        progress(f"{PART}: {dtype}")
        try:
            path = model_files.llama_file(dtype, shape)
        except MissingPeerError as error:
            missing.append(f"{PART}: {error}")
            return rows
        peer = Peer(path, threads, shape)
        try:
            if peer.child is None and f"{PEER}: {peer.note}" not in missing:
                missing.append(f"{PEER}: {peer.note}")
            case = Case(PART, dtype, dtype, shape, path)
            rows += await Measurement(case, threads, {PEER: peer}, roofline, quick).rows()
        finally:
            peer.close()
    return rows


class Peer:
    """A peer with a model, with the first packing of weights that does not end its process.

    Args:
        path: the file of the model.
        threads: how many.
        shape: the shape of the model.
        packings: the packings of weights to try, by the peer's names, each with a note for the row.
        module: the module that runs in the peer's process.
        name: the peer's name, for notes.
        sequences: at a time, at most.
    """

    def __init__(
        self,
        path: Path,
        threads: int,
        shape: Shape,
        packings: Mapping[str, str] = PACKINGS,
        *,
        module: str = "benchmarks.llamacpp",
        name: str = PEER,
        sequences: int = TOGETHER,
    ) -> None:
        self.child: Child | None = None
        self.name = name
        self.note = ""
        tried: list[str] = []
        for packing, how in packings.items():
            child = Child(module)
            try:
                child.call("load", str(path), threads, sequences, CTX, packing)
                child.call("prompt", list(range(PROMPT % shape.vocabulary)))
                child.call("begin")
                child.call("steps", [list(range(sequences))])
            except ChildError as error:
                child.close()
                tried.append(f"{name} {error}" if not how else f"{how}: {error}")
                if "MissingPeerError" in str(error):
                    break
                continue
            self.child = child
            tried += [how] if how else []
            break
        self.note = "; ".join(tried)

    def call(self, name: str, *arguments: Any) -> float | None:
        """The seconds that a call took; None if the peer is missing or died, which is noted."""
        if self.child is None:
            return None
        try:
            found: float | None = self.child.call(name, *arguments)
        except ChildError as error:
            self.note += f"; {self.name} {error}"
            self.close()
            return None
        return found

    def close(self) -> None:
        if self.child is not None:
            self.child.close()
            self.child = None


@dataclass
class _Spans:
    """Seconds of aggml and of the peers, and the machine's limits measured meanwhile."""

    ours: list[float] = field(default_factory=list)
    theirs: dict[str, list[float]] = field(default_factory=dict)
    roofs: dict[str, list[float]] = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    """A file: the part and the name of its rows, the type or mixture, the shape, the path."""

    part: str
    name: str
    dtype: str
    shape: Shape
    path: Path


@dataclass
class Measurement:
    """Measures one file, with aggml and all peers in turns: a row for the prompt, two for steps."""

    case: Case
    threads: int
    peers: Mapping[str, Peer]
    roofline: Roofline
    quick: bool

    async def rows(self) -> list[Row]:
        """The rows of the file."""
        device = aggml.get_device("CPU")
        async with device.backend(n_threads=self.threads) as backend:
            with await open_model(self.case.path) as file:
                model = await load_decoder(backend, file, ctx=CTX, sequences=TOGETHER)
            prompt = await self._prompt(model)
            one = await self._steps(model, 1)
            many = await self._steps(model, TOGETHER)
        pp = self._row("pp512", prompt, PROMPT, self._compute_roofs(prompt, PROMPT))
        step = self._bytes_of_a_step(1)
        tg = self._row("tg128", one, SLICE, self._read_roof(one, step, 1))
        step = self._bytes_of_a_step(TOGETHER)
        tg8 = self._row("tg128 x 8", many, SLICE * TOGETHER, self._read_roof(many, step, TOGETHER))
        return [pp, tg, tg8]

    async def _prompt(self, model: Decoder) -> _Spans:
        found = _Spans()
        ids = np.random.default_rng(0).integers(0, self.case.shape.vocabulary, PROMPT).tolist()
        await model.prefill(0, ids)
        for _ in range(1 if self.quick else 5):
            self._sample_peaks(found)
            start = time.perf_counter()
            await model.prefill(0, ids)
            found.ours.append(time.perf_counter() - start)
            self._ask(found, "prompt", ids)
        return found

    async def _steps(self, model: Decoder, n: int) -> _Spans:
        """STEPS steps of ``n`` sequences; aggml and each peer take SLICE steps in turn."""
        found = _Spans()
        steps = 2 * SLICE if self.quick else STEPS
        ids = np.random.default_rng(n).integers(0, self.case.shape.vocabulary, (steps, n)).tolist()
        await best_tokens(model, ids[0], 0, 1)  # builds the graph
        for peer in self.peers.values():
            peer.call("begin")
        last = ids[0]
        for at in range(0, steps, SLICE):
            found.roofs.setdefault("read", []).append(self.roofline.read())
            some = ids[at : at + SLICE]
            start = time.perf_counter()
            last = await best_tokens(model, last, at, len(some))
            found.ours.append(time.perf_counter() - start)
            self._ask(found, "steps", some)
        return found

    def _ask(self, found: _Spans, what: str, ids: list[Any]) -> None:
        for name, peer in self.peers.items():
            seconds = peer.call(what, ids)
            if seconds is not None:
                found.theirs.setdefault(name, []).append(seconds)

    def _sample_peaks(self, found: _Spans) -> None:
        kind = "bf16" if self.case.dtype == "bf16" else "int8"
        for name in dict.fromkeys((kind, self.roofline.best(kind))):
            if name in self.roofline.peaks:
                found.roofs.setdefault(name, []).append(self.roofline.peak(name))

    def _compute_roofs(self, found: _Spans, tokens: int) -> dict[str, float]:
        """Tokens per second if every unit were busy.

        What comes behind the attention of the last layer is computed for one token only.
        """
        shape = self.case.shape
        once = shape.width * (shape.vocabulary + shape.width + 3 * shape.inner)
        attention = shape.layers * 2 * shape.width * tokens * tokens / 2
        products = (shape.streamed() - once) * tokens + once + attention
        return {name: median(x) * tokens / (2 * products) for name, x in found.roofs.items()}

    def _bytes_of_a_step(self, n: int) -> float:
        """Bytes that a step reads on average: weights once, keys and values of each sequence."""
        streamed = model_files.streamed_bytes(self.case.dtype, self.case.shape)
        kv = 2 * 2 * self.case.shape.head * self.case.shape.kv_heads * self.case.shape.layers
        return streamed + n * kv * STEPS / 2

    def _read_roof(self, found: _Spans, step: float, n: int) -> dict[str, float]:
        return {name: median(x) * n / step for name, x in found.roofs.items()}

    def _row(self, what: str, found: _Spans, tokens: int, roofs: dict[str, float]) -> Row:
        peers = {name: tokens / median(seconds) for name, seconds in found.theirs.items()}
        budgets = [Budget(name, ">=", 1.0) for name in self.peers]
        if what in SHARES:
            budgets.append(Budget("read", ">=", SHARES[what]))
        name = f"{what}, {self.case.name}" + (", small model" if self.quick else "")
        own = tokens / median(found.ours)
        notes = "; ".join(dict.fromkeys(x.note for x in self.peers.values() if x.note))
        return Row(
            self.case.part, name, own, "t/s", peers, roofs, () if self.quick else budgets, notes
        )
