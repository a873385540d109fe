"""Kernels compared with ggml, numpy and PyTorch, and with the limits of the machine.

Five parts: "gemm" (many columns), "matvec" (few columns, weights streamed from memory),
"attention", "contexts" (one query, many keys, streamed from memory), "elementwise". Each round
measures the roofline, then our kernel, then each peer. A peer is a process that is stopped while
others are measured. Not here: the cases' data (cases.py), the peers (ggml.py, arrays.py).
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import ml_dtypes
import numpy as np

import aggml
from aggml import DType, Graph, ops
from benchmarks import cases
from benchmarks.kernel_peers import PLAIN, Peers
from benchmarks.timing import Budget, Row, median, progress

if TYPE_CHECKING:
    from collections.abc import Callable

    from aggml import Backend, Tensor
    from benchmarks.cases import Case
    from benchmarks.roofline import Roofline

GEMM: Final = "gemm"
MATVEC: Final = "matvec"
ATTENTION: Final = "attention"
CONTEXTS: Final = "contexts"
ELEMENTWISE: Final = "elementwise"
PARTS: Final = (GEMM, MATVEC, ATTENTION, CONTEXTS, ELEMENTWISE)

LARGE: Final = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_K")
OTHERS: Final = (
    "q4_1", "q5_0", "q5_1", "q2_K", "q3_K", "q5_K", "q6_K", "iq4_nl", "iq4_xs", "iq2_xxs", "iq2_xs",
    "iq2_s", "iq3_xxs", "iq3_s", "iq1_s", "iq1_m", "tq1_0", "tq2_0", "mxfp4", "nvfp4",
)  # fmt: skip
PACKED: Final = ("q8_0", "q4_0", "q4_1", "q5_0", "q4_K", "q5_K", "q6_K", "q3_K", "q2_K", "iq4_xs")
MODELS: Final = {"8B": (32, 8, 128), "0.5B": (14, 2, 64)}  # heads, heads of keys, width of a head
STREAMED: Final = 512 << 20  # bytes of weights that a mat-vec reads: more than caches hold


def all_cases(part: str) -> dict[str, Case]:
    """The name and the case of each row of a part."""
    found: dict[str, Case] = {}
    if part == GEMM:
        for name in LARGE:
            found[f"mul_mat {name} 4096 x 512 x 14336"] = cases.mul_mat(name, 4096, 512, 14336)
        for name in OTHERS:
            found[f"mul_mat {name} 2048 x 256 x 4096"] = cases.mul_mat(name, 2048, 256, 4096)
    elif part == MATVEC:
        for n, types in ((1, (*LARGE, *OTHERS)), (8, ("bf16", *PACKED))):
            for name in types:
                size = DType.parse(name).row_size(14336) * 4096
                case = cases.mul_mat(name, 4096, n, 14336, copies=round(STREAMED / size))
                found[f"mul_mat {name} 4096 x {n} x 14336"] = case
    elif part == ATTENTION:
        for name in ("f16", "bf16", "q8_0"):
            for head in (128, 64):
                for causal in (False, True):
                    what = f"attention {name} 512 x 512, heads of {head}"
                    what += ", causal" if causal else ""
                    found[what] = cases.attention(name, head, causal=causal)
    elif part == CONTEXTS:
        for model, shape in MODELS.items():
            for keys, sequences in ((32768, 1), (131072, 1), (4096, 8)):
                for name in ("f16", "q8_0", "q4_0"):
                    what = f"{sequences} x {keys} keys {name}, heads of {model}"
                    found[what] = cases.context(name, *shape, keys, sequences)
    else:
        found["soft_max 512 x 512 x 32"] = cases.elementwise("soft_max", 512, 512, 32)
        found["rms_norm 4096 x 512"] = cases.elementwise("rms_norm", 4096, 512)
        found["rope 128 x 32 x 512"] = cases.elementwise("rope", 128, 32, 512)
    return found


async def measure(
    part: str,
    threads: int,
    roofline: Roofline,
    *,
    quick: bool,
    match: str,
    missing: list[str],
) -> list[Row]:
    """The rows of one of PARTS whose names contain ``match``."""
    rows = []
    with Peers(threads, missing) as peers, tempfile.TemporaryDirectory() as folder:
        for what, case in all_cases(part).items():
            if match.lower() not in what.lower():
                continue
            progress(f"{part}: {what}")
            stored = _store(case, Path(folder, "rows.npy"))
            async with aggml.get_device("CPU").backend(n_threads=threads) as be:
                ours = Ours(be, case, stored)
                await ours.prepare()
                peers.prepare(case, str(Path(folder, "rows.npy")))
                rows.append(await _row(part, what, ours, peers, roofline, quick=quick))
    return rows


# -- aggml


class Ours:
    """A case on a backend of aggml.

    Args:
        be: computes it.
        stored: the base rows of weights, or keys and values, in the case's type.
    """

    def __init__(self, be: Backend, case: Case, stored: np.ndarray[Any, Any] | None) -> None:
        self.be, self.case = be, case
        self._inputs: dict[Tensor, np.ndarray[Any, Any]] = {}
        self._weights: list[Tensor] = []
        self._stored = stored
        ends = getattr(self, "_" + case["op"])(case)
        self.result = ends[0].set_output()
        self.graph = Graph(*ends)

    async def prepare(self) -> None:
        """Place tensors, pack weights, fill; then one run, so that nothing is left to prepare."""
        if self._weights:
            assert self._stored is not None
            self.be.alloc(self._weights, usage="weights")
            data = cases.repeated(self._stored, self.case["m"])
            for w in self._weights:
                await self.be.set(w, data)
        await self.be.prepare(self.graph)
        for tensor, data in self._inputs.items():
            await self.be.set(tensor, data)
        await self.be.graph_compute(self.graph)

    async def run(self) -> float:
        """The seconds of a run, until the task goes on."""
        start = time.perf_counter()
        await self.be.graph_compute(self.graph)
        return time.perf_counter() - start

    async def values(self) -> np.ndarray[Any, Any]:
        """The first results."""
        return (await self.be.get(self.result)).ravel()[: cases.SAMPLE]

    def _input(self, dtype: str, data: np.ndarray[Any, Any], *ne: int) -> Tensor:
        tensor = aggml.new_tensor(dtype, ne=ne or data.shape[::-1]).set_input()
        self._inputs[tensor] = data
        return tensor

    def _mul_mat(self, case: Case) -> list[Tensor]:
        x = self._input("f32", cases.activations(case))
        ne = (case["k"], case["m"])
        self._weights = [aggml.new_tensor(case["dtype"], ne=ne) for _ in range(case["copies"])]
        return [ops.mul_mat(w, x).set_output() for w in self._weights]

    def _attention(self, case: Case) -> list[Tensor]:
        q = self._input("f32", cases.heads(case)[0])
        assert self._stored is not None
        ne = (case["head"], case["tokens"], case["heads"])
        shape = (case["heads"], case["tokens"], -1)
        halves = (x.reshape(shape) for x in np.split(self._stored, 2))
        k, v = (self._input(case["dtype"], x, *ne) for x in halves)
        mask = self._input("f16", cases.mask(case)) if case["causal"] else None
        return [ops.flash_attn_ext(q, k, v, mask, cases.scale(case), 0.0, 0.0)]

    def _context(self, case: Case) -> list[Tensor]:
        q = self._input("f32", cases.queries(case))
        assert self._stored is not None
        ne = (case["head"], case["kv_heads"], case["keys"], case["sequences"])
        halves = np.split(self._stored, 2)
        k, v = (
            ops.permute(self._input(case["dtype"], self._cache(x), *ne), 0, 2, 1, 3) for x in halves
        )
        return [ops.flash_attn_ext(q, k, v, None, cases.scale(case), 0.0, 0.0)]

    def _cache(self, rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        whole = cases.filled(rows, self.case)
        return whole.reshape(*whole.shape[:2], self.case["kv_heads"], -1)

    def _soft_max(self, case: Case) -> list[Tensor]:
        x = self._input("f32", cases.values(case))
        return [ops.soft_max_ext(x, None, 0.125, 0.0)]

    def _rms_norm(self, case: Case) -> list[Tensor]:
        return [ops.rms_norm(self._input("f32", cases.values(case)), cases.EPS)]

    def _rope(self, case: Case) -> list[Tensor]:
        x = self._input("f32", cases.values(case))
        at = self._input("i32", np.arange(case["ne"][2], dtype=np.int32))
        return [ops.rope_ext(x, at, None, case["ne"][0], mode="neox", freq_base=10000.0)]


def _store(case: Case, path: Path) -> np.ndarray[Any, Any] | None:
    """The base rows of weights, or keys and values, converted; also written to a file."""
    if case["op"] == "mul_mat":
        made = _converted(cases.base_rows(case), case["dtype"])
    elif case["op"] == "attention":
        _, k, v = cases.heads(case)
        made = _converted(np.concatenate([k, v]).reshape(-1, case["head"]), case["dtype"])
    elif case["op"] == "context":
        made = _converted(cases.cache_rows(case), case["dtype"])
    else:
        return None
    np.save(path, made.view(np.uint8))
    return made


def _converted(rows: np.ndarray[Any, Any], name: str) -> np.ndarray[Any, Any]:
    if name == "f32":
        return rows
    if name in PLAIN:
        return rows.astype(np.float16 if name == "f16" else ml_dtypes.bfloat16)
    # Quantizing to very few bits needs an importance of each column: equal ones here.
    return aggml.quantize(rows, name, imatrix=np.ones(rows.shape[-1], np.float32))


# -- rows


async def _row(
    part: str, what: str, ours: Ours, peers: Peers, roofline: Roofline, *, quick: bool
) -> Row:
    case = ours.case
    roofs = _roofs(part, case, roofline)
    spans: dict[str, list[float]] = {"ours": []}
    heights: dict[str, list[float]] = {name: [] for name in roofs}
    begin = time.perf_counter()
    rounds = 0
    while _goes_on(rounds, time.perf_counter() - begin, quick=quick):
        rounds += 1
        for name, sample in roofs.items():
            heights[name].append(sample())
        spans["ours"].append(await _least(ours, part))
        for name in list(peers.taking_part):
            peers.run(name)  # so that its threads are awake and its caches filled
            seconds = peers.run(name)
            if seconds is not None:
                spans.setdefault(name, []).append(seconds)
    got, differences = await ours.values(), {}
    for name in list(peers.taking_part):
        wanted = peers.values(name)
        if wanted is None:
            continue
        differences[name] = float(np.sum((got - wanted) ** 2) / np.sum(wanted**2))
    peers.finish()
    amount, unit = _amount(part, case)
    rate = {name: amount / median(found) for name, found in spans.items() if found}
    tops = {name: median(found) / 1e9 for name, found in heights.items()}
    beside = [Budget(peer, ">=", 1) for peer in rate if peer != "ours"]
    budgets = (*_shares(part, case, roofline), *beside)
    note = "; ".join(peers.notes)
    more = {"rounds": rounds, "milliseconds": median(spans["ours"]) * 1e3, "nmse": differences}
    own = rate.pop("ours")
    return Row(part, what, own, unit, rate, tops, budgets, note, more)


def _goes_on(rounds: int, seconds: float, *, quick: bool) -> bool:
    """Whether to do another round: up to 25 of small cases, 3 if a peer takes seconds."""
    if quick:
        return rounds < 2
    return rounds < 3 or (rounds < 5 and seconds < 6) or (rounds < 25 and seconds < 1.5)


async def _least(ours: Ours, part: str) -> float:
    """One sample of aggml; except for GEMM, a run before it fills caches and does not count."""
    if part != GEMM:
        await ours.run()
    return await ours.run()


def _amount(part: str, case: Case) -> tuple[float, str]:
    """The amount of a case in 1e9, and the unit of its rate: operations, or bytes moved."""
    if part == MATVEC:
        size = DType.parse(case["dtype"]).row_size(case["k"]) * case["m"] * case["copies"]
        return size / 1e9, "GB/s"
    if part == CONTEXTS:
        return 2 * _row_bytes(case) * case["keys"] * case["sequences"] / 1e9, "GB/s"
    if part == ELEMENTWISE:
        return 8 * cases.operations(case) / 1e9, "GB/s"
    return cases.operations(case) / 1e9, "GOP/s"


def _row_bytes(case: Case) -> int:
    """Bytes of one key, all heads together."""
    return DType.parse(case["dtype"]).row_size(case["kv_heads"] * case["head"])


def _kind(case: Case) -> str:
    """The unit of the processor that computes a case."""
    if case["op"] == "attention":
        return "bf16" if case["dtype"] == "bf16" else "f32"
    return {"f32": "f32", "f16": "f32", "bf16": "bf16"}.get(case["dtype"], "int8")


def _roofs(part: str, case: Case, roofline: Roofline) -> dict[str, Callable[[], float]]:
    if part == ELEMENTWISE:
        size = int(4 * cases.operations(case))
        return {"a copy": lambda: roofline.copy(size)}
    if part == CONTEXTS:
        return {"read": roofline.read}
    kind = _kind(case)
    names = dict.fromkeys((kind, roofline.best(kind)) if kind in roofline.peaks else ("f32",))
    # Peaks are operations. Rows of few columns are bytes of weights, of which each operation has
    # a part.
    amount, unit = _amount(part, case)
    each = 1.0 if unit == "GOP/s" else 1e9 * amount / cases.operations(case)
    found: dict[str, Callable[[], float]] = {}
    for name in names:
        found[name] = lambda name=name: each * roofline.peak(name)  # type: ignore[misc]
    if part == MATVEC:
        read: dict[str, Callable[[], float]] = {"read": roofline.read}
        return read if case["n"] == 1 else {**read, **found}
    return found


def _shares(part: str, case: Case, roofline: Roofline) -> tuple[Budget, ...]:
    """Demanded shares of the machine's limits; lower with tiles, because memory bounds them."""
    dtype = case.get("dtype", "")
    bf16 = roofline.best("bf16")
    tiles = bf16.endswith("tiles")
    if part == GEMM:
        if dtype in ("f32", "f16"):
            return (Budget("f32", ">=", 0.9),)
        if dtype == "bf16":
            return (Budget(bf16, ">=", 0.5 if tiles else 0.9),)
        return (Budget("int8 tiles", ">=", 0.5) if tiles else Budget("int8", ">=", 0.7),)
    if part == MATVEC and case["n"] == 1:
        return (Budget("read", ">=", 0.85 if dtype.startswith(("iq1", "iq2", "iq3")) else 0.95),)
    if part == MATVEC and dtype in PACKED:
        return (Budget("read", ">=", 0.85),)
    if part == CONTEXTS and dtype == "f16":
        return (Budget("read", ">=", 0.9),)
    if part == ATTENTION and not case["causal"] and dtype == "bf16":
        return (Budget(bf16, ">=", 0.25 if tiles else 0.7),)
    if part == ATTENTION and not case["causal"] and dtype == "f16":
        return (Budget("f32", ">=", 0.8),)
    return ()
