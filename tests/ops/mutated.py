"""Mutated calls: recorded calls with other types, extents, strides and arguments.

Here: drawing them, with values for their leafs. The builders refuse most of them; the others reach
the kernels with unforeseen shapes. No tests here.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
from corpus_loader import Case, Value, View
from hypothesis import strategies as st

from aggml import DType, ops

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

__all__ = ["calls", "values_of"]

MOST = 40_000  # the most elements of an operand
_PLAIN = ["f32", "f16", "bf16", "i32", "i64", "i16", "i8", "f64"]
_BLOCKS = [kind.type_name for kind in DType if kind.is_quantized]
_ENUMS: dict[str, list[str]] = {
    "unary": [member.name.lower() for member in ops.UnaryOp],
    "glu": [member.name.lower() for member in ops.GluOp],
    "pool": [member.name.lower() for member in ops.PoolOp],
    "rope": [member.name.lower() for member in ops.RopeMode],
    "order": [member.name.lower() for member in ops.SortOrder],
    "tri": [member.name.lower() for member in ops.TriType],
    "scale": ["nearest", "bilinear", "bicubic", "bilinear|antialias", "bicubic|align_corners"],
}


def _enum_of(op: str, argument: str) -> list[str] | None:
    if argument == "type" and op == "tri":
        return _ENUMS["tri"]
    if argument in {"type", "dst_type"}:
        return _PLAIN + _BLOCKS
    for word in ("unary", "glu", "pool", "rope"):
        if op.startswith(word):
            return _ENUMS[word]
    return _ENUMS["scale"] if argument == "mode" else _ENUMS.get(argument)


def _replace(case: Case, change: Callable[[Value], Value]) -> Case:
    return dataclasses.replace(case, inputs=tuple(change(value) for value in case.inputs))


def _type(draw: st.DrawFn, case: Case) -> Case:
    value = draw(st.sampled_from(case.inputs))
    kind = draw(st.sampled_from(_PLAIN[:3] * 4 + _PLAIN + _BLOCKS))
    old, new = DType.parse(value.type), DType.parse(kind)

    def strides(view: View) -> View:
        if view.op != "view" or old.is_quantized or new.is_quantized:
            return view
        nb = tuple(n // old.type_size * new.type_size for n in view.nb)
        offset = view.offset // old.type_size * new.type_size
        return dataclasses.replace(view, nb=nb, offset=offset)

    def change(other: Value) -> Value:
        if other.storage != value.storage:
            return other
        return dataclasses.replace(
            other, type=kind, nb=None, via=tuple(strides(view) for view in other.via)
        )

    return _replace(case, change)


def _layout(draw: st.DrawFn, case: Case) -> Case:
    value = draw(st.sampled_from(case.inputs))
    shared = [other for other in case.inputs if other.storage == value.storage]
    if value.via or len(shared) > 1:
        return case
    ne, kind = value.ne, DType.parse(value.type)
    how = draw(st.sampled_from(["pad", "behind", "apart", "transpose", "permute", "permute"]))
    axes = tuple(draw(st.permutations(range(4))))
    storage, view = ne, View("transpose")
    if how == "transpose":
        storage = (ne[1], ne[0], *ne[2:])
    elif how == "permute":
        storage, view = tuple(ne[axis] for axis in axes), View("permute", axes)
    else:
        more = kind.blck_size if how == "pad" else 0
        apart = 2 if how == "apart" else 1
        storage = (ne[0] + more, (ne[1] + (how == "behind")) * apart, *ne[2:])
        if storage[0] % kind.blck_size:
            return case
        row = kind.row_size(storage[0])
        nb = (kind.type_size, row * apart, row * storage[1], row * storage[1] * storage[2])
        view = View("view", ne=ne, nb=nb, offset=row if how == "behind" else 0)
    changed = dataclasses.replace(value, storage_ne=storage, via=(view,), nb=None)
    return _replace(case, lambda other: changed if other is value else other)


def _extents(draw: st.DrawFn, case: Case) -> Case:
    if any(value.via for value in case.inputs):
        return case
    value = draw(st.sampled_from(case.inputs))
    old = draw(st.sampled_from(value.ne))
    new = draw(
        st.sampled_from([0, 1, 2, 3, 5, 17, 31, 32, 33, 64, 256, old + 1, 2 * old, old // 2])
    )
    one = draw(st.sampled_from([None, None, None, 0, 1, 2, 3]))

    def change(other: Value) -> Value:
        if one is not None and other is not value:
            return other
        ne = tuple(
            new if (i == one if one is not None else n == old) else n
            for i, n in enumerate(other.ne)
        )
        return dataclasses.replace(other, ne=ne, storage_ne=ne)

    changed = _replace(case, change)
    if one is None and draw(st.booleans()):
        args = {k: new if v == old and type(v) is int else v for k, v in case.args.items()}
        changed = dataclasses.replace(changed, args=args)
    return changed


def _argument(draw: st.DrawFn, case: Case) -> Case:
    if not case.args:
        return case
    name = draw(st.sampled_from(sorted(case.args)))
    old = case.args[name]
    new: Any = old
    if isinstance(old, bool):
        new = not old
    elif isinstance(old, int):
        new = draw(st.sampled_from([-1, 0, 1, 2, 3, 5, 16, 64, 1 << 31, old + 1, old - 1, 2 * old]))
    elif isinstance(old, float):
        few = [0.0, 1.0, -old, old / 2, 8.0, 1e30, math.inf, math.nan]
        new = draw(st.sampled_from(few))
    elif isinstance(old, list):
        new = [draw(st.sampled_from([0, 1, 2, 7, n, n + 1])) for n in old]
    elif (members := _enum_of(case.op, name)) is not None:
        new = draw(st.sampled_from(members))
    return dataclasses.replace(case, args={**case.args, name: new})


@st.composite
def calls(draw: st.DrawFn, cases: Sequence[Case]) -> Case:
    """Draw a recorded call and change it up to three times."""
    case = draw(st.sampled_from(cases))
    changes = [_argument, *([_type, _layout, _extents] if case.inputs else [])]
    for _ in range(draw(st.integers(0, 3))):
        case = draw(st.sampled_from(changes))(draw, case)
    return case


def values_of(case: Case, seed: int) -> dict[str, NDArray[Any]]:
    """Values for the storages: any bits in blocks, integers that are mostly valid indices."""
    rng = np.random.default_rng(seed)
    values: dict[str, NDArray[Any]] = {}
    for value in case.inputs:
        kind, shape = DType.parse(value.type), value.storage_ne[::-1]
        if kind.is_quantized:
            size = kind.row_size(shape[-1] // kind.blck_size * kind.blck_size)
            values[value.storage] = rng.integers(0, 256, (*shape[:-1], size), dtype=np.uint8)
        elif kind.type_name.startswith("i"):
            most = 3 if rng.random() < 0.8 else 100
            values[value.storage] = rng.integers(-1, most, shape).astype(kind.numpy)
        else:
            x = rng.normal(size=shape)
            if rng.random() < 0.2:
                x = np.where(rng.random(shape) < 0.1, rng.choice([np.inf, np.nan, 0, 1e30]), x)
            with np.errstate(over="ignore"):
                plain = ml_dtypes.bfloat16 if kind is DType.BF16 else kind.numpy
                values[value.storage] = x.astype(plain)
    return values
