"""Reads the recorded cases of corpus/: calls of ggml and their results, bit for bit.

Here: cases as typed objects, arrays read when asked for, the measures of equality. Not here: how a
case becomes tensors of this package (ops/recorded.py). The files are described in corpus/README.md.
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.lib.npyio import NpzFile
    from numpy.typing import NDArray

__all__ = [
    "CORPUS",
    "GROUPS",
    "Case",
    "Output",
    "Step",
    "Value",
    "View",
    "allocator_cases",
    "nmse",
    "op_cases",
    "refused_cases",
    "same_values",
    "type_table",
]

CORPUS = Path(__file__).resolve().parent / "corpus"
_OTHER = {"types", "gallocr", "sched", "refused"}
GROUPS = sorted(path.stem for path in CORPUS.glob("*.json") if path.stem not in _OTHER)


@dataclass(frozen=True)
class View:
    """One link of the chain from a storage to an input."""

    op: str  # permute, transpose, view
    axes: tuple[int, ...] = ()
    ne: tuple[int, ...] = ()
    nb: tuple[int, ...] = ()
    offset: int = 0


@dataclass(frozen=True)
class Value:
    """An input: its type and extents, and the storage it is a view of."""

    name: str
    type: str
    ne: tuple[int, ...]
    nb: tuple[int, ...] | None  # None: contiguous
    storage: str
    storage_ne: tuple[int, ...]
    via: tuple[View, ...]
    values: tuple[float, ...] | None  # of refused cases only


@dataclass(frozen=True)
class Output:
    """What the operation gave."""

    type: str
    ne: tuple[int, ...]
    nb: tuple[int, ...] | None
    view_of: str | None


@dataclass(frozen=True)
class Step:
    """One node of a case that is a small graph. Its operands are inputs or earlier steps."""

    id: str
    op: str
    inputs: dict[str, str]
    args: dict[str, Any]
    modify: dict[str, Any]


@dataclass(frozen=True)
class Case:
    """One call, its results, and how close another implementation has to come (``nmse_max``)."""

    id: str
    group: str
    op: str
    node: str
    inputs: tuple[Value, ...]
    args: dict[str, Any]
    modify: dict[str, Any]
    steps: tuple[Step, ...]
    output: Output | None  # None if ggml refuses the call
    # where ggml refuses the call: build, unsupported, compute; None if it does not
    stage: str | None
    nmse_max: float
    inplace: bool
    written: tuple[str, ...]
    row_order_free: bool
    raw: dict[str, Any] = field(repr=False, compare=False)

    def storage(self, name: str) -> NDArray[Any]:
        """The contents of the storage of that name before the call."""
        return self._array(name)

    def expected(self) -> NDArray[Any]:
        """The contents of the output in logical order, shape (ne3, ne2, ne1, ne0)."""
        return self._array("out")

    def after(self, name: str) -> NDArray[Any]:
        """The contents of the storage of that name after the call; for names in ``written``."""
        return self._array(f"{name}.after")

    def _array(self, name: str) -> NDArray[Any]:
        return _read_array(self.group, f"{self.id}/{name}")

    def __str__(self) -> str:
        return self.id


@functools.cache
def _arrays(group: str) -> NpzFile:
    file: NpzFile = np.load(CORPUS / f"{group}.npz")
    return file


@functools.lru_cache(64)
def _read_array(group: str, name: str) -> NDArray[Any]:
    """An array, which cannot be written to.

    A case is run several times in a row; reading its arrays took half of the time.
    """
    array: NDArray[Any] = _arrays(group)[name]
    array.flags.writeable = False
    return array


@functools.cache
def _json(group: str) -> Any:
    return json.loads((CORPUS / f"{group}.json").read_text())


def _value(raw: dict[str, Any], by_name: dict[str, dict[str, Any]]) -> Value:
    storage = raw.get("storage", raw["name"])
    ne = tuple(raw["ne"])
    via = raw.get("via", ())
    # The JSON of a refused case gives `ne` before its views are applied; the other cases give `ne`
    # after them, and the storage's own as `storage_ne`.
    before = raw.get("storage_ne", by_name.get(storage, raw).get("storage_ne", ne))
    return Value(
        name=raw["name"],
        type=raw["type"],
        ne=ne,
        nb=tuple(raw["nb"]) if "nb" in raw else None,
        storage=storage,
        storage_ne=tuple(before),
        via=tuple(
            View(
                v["op"],
                tuple(v.get("axes", ())),
                tuple(v.get("ne", ())),
                tuple(v.get("nb", ())),
                v.get("offset", 0),
            )
            for v in via
        ),
        values=tuple(raw["values"]) if "values" in raw else None,
    )


def _case(group: str, raw: dict[str, Any]) -> Case:
    by_name = {i["name"]: i for i in raw["inputs"]}
    out = raw.get("output")
    return Case(
        id=raw["id"],
        group=group,
        op=raw["op"],
        node=raw.get("node", ""),
        inputs=tuple(_value(i, by_name) for i in raw["inputs"]),
        args=raw.get("args", {}),
        modify=raw.get("modify", {}),
        steps=tuple(
            Step(s["id"], s["op"], s["inputs"], s.get("args", {}), s.get("modify", {}))
            for s in raw.get("graph", ())
        ),
        output=None
        if out is None
        else Output(
            out["type"],
            tuple(out["ne"]),
            tuple(out["nb"]) if "nb" in out else None,
            out.get("view_of"),
        ),
        stage=raw.get("stage"),
        nmse_max=raw.get("nmse_max", 0.0),
        inplace=raw.get("inplace", False),
        written=tuple(raw.get("written", ())),
        row_order_free=raw.get("compare") == "set_per_row",
        raw=raw,
    )


@functools.cache
def _cases(group: str) -> tuple[Case, ...]:
    """The cases of a group, read once: the test files of 30 groups of ops look through them all."""
    return tuple(_case(group, raw) for raw in _json(group))


def op_cases(*groups: str) -> Iterator[Case]:
    """The cases of these groups; of all groups that hold op cases if none is named."""
    for group in groups or GROUPS:
        yield from _cases(group)


def refused_cases() -> Iterator[Case]:
    """Calls that must fail, with the stage at which ggml stops them."""
    yield from _cases("refused")


def allocator_cases() -> list[dict[str, Any]]:
    """Graphs with the buffer size and offsets that ggml's graph allocator found."""
    found: list[dict[str, Any]] = _json("gallocr")
    return found


def type_table() -> list[dict[str, Any]]:
    """ggml's table of element types."""
    found: list[dict[str, Any]] = _json("types")["types"]
    return found


@dataclass(frozen=True)
class Vector:
    """Rows of a type with their conversion: ``src`` becomes ``dst``."""

    id: str
    type: str
    kind: str

    def array(self, name: str) -> NDArray[Any]:
        """The array ``src``, ``dst`` or ``imatrix``."""
        array: NDArray[Any] = _arrays("types")[f"{self.id}/{name}"]
        return array

    def __str__(self) -> str:
        return self.id


def vectors() -> list[Vector]:
    """Every recorded conversion of rows."""
    return [Vector(**raw) for raw in _json("types")["vectors"]]


def numbers(array: NDArray[Any], type_name: str) -> NDArray[np.float64]:
    """Elements of a plain type as float64; bf16 may be bit patterns."""
    if type_name == "bf16" and array.dtype == np.uint16:
        array = array.view(ml_dtypes.bfloat16)
    return array.astype(np.float64)


def nmse(expected: NDArray[np.float64], actual: NDArray[np.float64]) -> float:
    """Normalised mean squared error, ``sum((e - a)**2) / sum(e**2)``.

    Infinities and NaN count as equal to themselves; where only one side has them the error is
    infinite.
    """
    e, a = expected.ravel(), actual.ravel()
    odd = ~(np.isfinite(e) & np.isfinite(a))
    if not np.array_equal(e[odd], a[odd], equal_nan=True):
        return float("inf")
    e, a = e[~odd], a[~odd]
    error = float(np.square(e - a).sum())
    return error / max(float(np.square(e).sum()), 1e-300) if error else 0.0


def same_values(expected: NDArray[Any], actual: NDArray[Any], type_name: str) -> bool:
    """Whether all numbers are equal; NaN equals NaN whatever its bits."""
    return np.array_equal(numbers(expected, type_name), numbers(actual, type_name), equal_nan=True)
