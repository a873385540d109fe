"""The peers of one kernel benchmark, each in a process that is stopped while others are measured.

Not here: our side and the rows (kernels.py), the code in the peers' processes (ggml.py, arrays.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np

from aggml import DType
from benchmarks.child import Child, ChildError

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.cases import Case


PLAIN: Final = ("f32", "f16", "bf16")  # element types that PyTorch can multiply


class Peers:
    """The peers' processes, and which of them take part in the present case."""

    def __init__(self, threads: int, missing: list[str]) -> None:
        self._threads, self._missing = threads, missing
        self._children: dict[str, Child] = {}
        self.taking_part: list[str] = []
        self.notes: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for child in self._children.values():
            child.close()

    def prepare(self, case: Case, rows: str) -> None:
        """Make the case ready in every peer that can compute it."""
        self.taking_part, self.notes = [], []
        self._prepare_ggml(case, rows)
        if case["op"] == "mul_mat" and case["dtype"] == "f32" and case["copies"] == 1:
            self._try("numpy", lambda: self._call("numpy", "prepare", "numpy", case, self._threads))
        plain = case.get("dtype") in PLAIN and case["op"] != "context"
        if case["op"] in ("soft_max", "rms_norm") or plain:
            prepare = lambda: self._call("PyTorch", "prepare", "torch", case, self._threads)  # noqa: E731
            self._try("PyTorch", prepare)

    def _prepare_ggml(self, case: Case, rows: str) -> None:
        number = DType.parse(case.get("dtype", "f32")).value
        for without in ((), ("AMX",), ("AMX", "CPU_REPACK")):
            try:
                packed = self._call("ggml", "prepare", case, number, rows, self._threads, without)
                self._call("ggml", "run")
            except ChildError as error:
                self._drop("ggml")
                if case["op"] != "mul_mat" or len(without) == 2:
                    self._fail("ggml", str(error))
                    return
                # ggml's AMX kernels are known to crash, so ggml runs as on machines without AMX.
                self.notes.append(f"ggml {error}" + "".join(f" also without {x}" for x in without))
                continue
            self.taking_part.append("ggml")
            if packed or without:
                self.notes.append(f"ggml: {packed or 'weights as they lie'}")
            return

    def _try(self, name: str, prepare: Callable[[], object]) -> None:
        try:
            prepare()
            self._call(name, "run")
        except ChildError as error:
            self._fail(name, str(error))
        else:
            self.taking_part.append(name)

    def run(self, name: str) -> float | None:
        """The seconds of a run; None if the peer died, which is noted."""
        try:
            return float(self._call(name, "run"))
        except ChildError as error:
            self._fail(name, str(error))
            return None

    def values(self, name: str) -> np.ndarray[Any, Any] | None:
        """The first results; None if the peer died, which is noted."""
        try:
            return np.array(self._call(name, "values"), np.float32)
        except ChildError as error:
            self._fail(name, str(error))
            return None

    def finish(self) -> None:
        """Free the memory of the case."""
        for name in list(self._children):
            try:
                self._call(name, "close")
            except ChildError:
                self._drop(name)

    def _fail(self, name: str, why: str) -> None:
        self._drop(name)
        self.notes.append(f"{name}: {why}")
        if "MissingPeerError" in why and f"{name}: {why}" not in self._missing:
            self._missing.append(f"{name}: {why}")
        if name in self.taking_part:
            self.taking_part.remove(name)

    def _drop(self, name: str) -> None:
        child = self._children.pop(name, None)
        if child is not None:
            child.close()

    def _call(self, name: str, function: str, *arguments: Any) -> Any:
        if name not in self._children:
            module = "benchmarks.ggml" if name == "ggml" else "benchmarks.arrays"
            variables = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
            environment: dict[str, str] = dict.fromkeys(variables, str(self._threads))
            self._children[name] = Child(module, {} if name == "ggml" else environment)
        return self._children[name].call(function, *arguments)
