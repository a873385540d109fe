"""Turns recorded cases into tensors and results, for the tests of all groups of ops.

Here: which cases can run, how their inputs and nodes are built, how results are compared. Not here:
the data (corpus_loader.py), the tests.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from corpus_loader import (
    Case,
    Value,
    nmse,
    numbers,
    op_cases,
    refused_cases,
    same_values,
)

import aggml
from aggml import DType, Graph, Tensor, new_tensor, ops

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray

__all__ = [
    "Built",
    "build",
    "check_numbers",
    "check_refused",
    "check_shape",
    "check_values",
    "compute_case",
    "graph_cases",
    "group_cases",
    "recorded_calls",
    "refusals",
]

_TIMEOUT = 15.0


@dataclass
class Built:
    """The tensors of a case."""

    leafs: dict[str, Tensor]  # by the name of the storage
    inputs: dict[str, Tensor]
    out: Tensor


# -- which cases


def _buildable(op: str, args: Mapping[str, Any], modify: Iterable[str]) -> bool:
    """Whether ``ops`` has all that a call needs, including the members of its enums."""
    if not hasattr(ops, op) or any(not hasattr(ops, name) for name in modify):
        return False
    if op.startswith("rope"):
        return args["mode"] in {mode.name.lower() for mode in ops.RopeMode}
    if op in {"glu", "glu_split"}:
        return args["op"] in {gate.name.lower() for gate in ops.GluOp}
    if op in {"unary", "unary_inplace"}:
        return args["op"] in {function.name.lower() for function in ops.UnaryOp}
    return True


def recorded_calls() -> list[Any]:
    """Every recorded call of a builder. Each id begins with the name of its file in the corpus."""
    return [
        pytest.param(case, id=f"{case.group}-{case.id}")
        for case in op_cases()
        if not case.steps and _buildable(case.op, case.args, case.modify)
    ]


def group_cases(group: str) -> list[Case]:
    """The recorded calls of the builders of ``aggml/ops/<group>.py``, whatever file holds them."""
    names = set(importlib.import_module(f"aggml.ops.{group}").__all__)
    return [
        case
        for case in op_cases()
        if case.op in names and _buildable(case.op, case.args, case.modify)
    ]


def graph_cases() -> list[Any]:
    """The recorded small graphs of which every node can be built."""
    return [
        pytest.param(case, id=case.id)
        for case in op_cases("graph")
        if all(_buildable(step.op, step.args, step.modify) for step in case.steps)
    ]


def refusals(*, stage_build: bool) -> list[Any]:
    """The calls that must fail: those that ggml refuses when building, or those refused later."""
    return [
        pytest.param(case, id=f"{case.id}-{case.op}")
        for case in refused_cases()
        if hasattr(ops, case.op) and (case.stage == "build") == stage_build
    ]


# -- building


def _input(value: Value, leafs: dict[str, Tensor]) -> Tensor:
    leaf = leafs.get(value.storage)
    if leaf is None:
        leaf = leafs[value.storage] = new_tensor(
            value.type, ne=value.storage_ne, name=value.storage
        )
    tensor = leaf
    for view in value.via:
        if view.op == "permute":
            tensor = ops.permute(tensor, *view.axes)
        elif view.op == "transpose":
            tensor = ops.transpose(tensor)
        else:
            assert view.op == "view"
            assert view.nb[0] == tensor.dtype.type_size
            n0, n1, n2, n3 = view.ne
            _, s1, s2, s3 = view.nb
            tensor = ops.view_4d(tensor, n0, n1, n2, n3, s1, s2, s3, view.offset)
    return tensor


def _call(
    op: str, operands: dict[str, Tensor], args: dict[str, Any], modify: dict[str, Any]
) -> Tensor:
    # The functions in `modify` are applied to the finished node. Their operands are no arguments of
    # the call itself.
    later = {name for name in modify.values() if isinstance(name, str) and name in operands}
    given: dict[str, Any] = {k: v for k, v in operands.items() if k not in later} | args
    if op.startswith(("rope_ext", "rope_multi")):
        given.setdefault("c", None)
    node: Tensor = getattr(ops, op)(**given)
    for name, value in modify.items():
        values = value if isinstance(value, list) else [value]
        getattr(ops, name)(node, *(operands.get(v, v) if isinstance(v, str) else v for v in values))
    return node


def build(case: Case) -> Built:
    """Build a case: the inputs, through all their views, and the node."""
    leafs: dict[str, Tensor] = {}
    # Inputs that are their own storage come first: a view may be listed before its storage.
    for value in sorted(case.inputs, key=lambda v: v.storage != v.name):
        _input(value, leafs)
    inputs = {value.name: _input(value, leafs) for value in case.inputs}
    if case.op.startswith("opt_step") and case.stage is None:
        inputs["a"].set_param()
    if not case.steps:
        return Built(leafs, inputs, _call(case.op, inputs, case.args, case.modify))
    known = dict(inputs)
    for step in case.steps:
        operands = {name: known[source] for name, source in step.inputs.items()}
        known[step.id] = _call(step.op, operands, step.args, step.modify)
    return Built(leafs, inputs, known["out"])


# -- checks


def check_shape(case: Case) -> None:
    """Build the case; compare types, extents, strides, and which input the result is a view of."""
    built = build(case)
    out = case.output
    assert out is not None
    for value in case.inputs:
        tensor = built.inputs[value.name]
        assert tensor.ne == value.ne
        if value.nb is not None:
            assert tensor.nb == value.nb
    assert built.out.dtype is DType.parse(out.type)
    assert built.out.ne == out.ne
    assert built.out.op == case.node
    if out.nb is None:
        assert built.out.is_contiguous
    else:
        assert built.out.nb == out.nb
    if case.steps:
        return
    if out.view_of is None:  # it may still be a view of an intermediate node
        assert built.out.root not in built.leafs.values()
    else:
        assert built.out.root is built.inputs[out.view_of].root
        assert built.out.view_offs >= built.inputs[out.view_of].view_offs


def check_refused(case: Case, backend: aggml.Backend | None) -> None:
    """Build the case, and compute it if there is a ``backend``; the caller expects an error."""
    built = build(case)
    if backend is not None:
        data = {
            value.storage: np.array(
                value.values if value.values is not None else np.zeros(value.ne[::-1]),
                DType.parse(value.type).numpy,
            )
            for value in case.inputs
            if not DType.parse(value.type).is_quantized
        }
        _compute(backend, built, data)


def _compute(
    backend: aggml.Backend, built: Built, data: Mapping[str, NDArray[Any]]
) -> NDArray[Any]:
    """Place, set, compute, get: wait for every step before the results are read."""
    memory = backend.alloc(built.leafs.values())
    for name, leaf in built.leafs.items():
        if name in data:
            backend.set(leaf, data[name])
    graph = Graph(built.out)
    backend.alloc_graph(graph)
    computed = backend.graph_compute(graph)
    result = backend.get(built.out)
    result.wait(_TIMEOUT)
    computed.result()
    assert memory is not None  # keeps the memory alive until here
    return result.result()


def check_values(
    expected: NDArray[Any], actual: NDArray[Any], dtype: DType, ne: tuple[int, ...], bound: float
) -> None:
    if dtype.is_quantized:
        if bound == 0.0:
            assert np.array_equal(expected.ravel(), actual.ravel())
            return
        e: NDArray[np.float64] = aggml.dequantize(expected, dtype, ne=ne).astype(np.float64)
        a: NDArray[np.float64] = aggml.dequantize(actual, dtype, ne=ne).astype(np.float64)
    else:
        if bound == 0.0:
            assert same_values(expected.ravel(), actual.ravel(), dtype.type_name)
            return
        e, a = numbers(expected, dtype.type_name), numbers(actual, dtype.type_name)
    assert nmse(e, a) <= bound


def _run(case: Case, built: Built, backend: aggml.Backend) -> list[NDArray[Any]]:
    found = [_compute(backend, built, {name: case.storage(name) for name in built.leafs})]
    for name in case.written:
        future = backend.get(built.leafs[name])
        future.wait(_TIMEOUT)
        found.append(future.result())
    return found


def compute_case(case: Case, backend: aggml.Backend) -> list[bytes]:
    """Compute the case: the bytes of the result and of every storage that it writes."""
    return [x.tobytes() for x in _run(case, build(case), backend)]


def check_numbers(case: Case, backend: aggml.Backend) -> list[bytes]:
    """As `compute_case`, but compare the numbers with those that were recorded."""
    built = build(case)
    result, *written = _run(case, built, backend)
    found = [result.tobytes(), *(x.tobytes() for x in written)]
    expected = case.expected()
    if case.row_order_free:
        expected, result = np.sort(expected, axis=-1), np.sort(result, axis=-1)
    check_values(expected, result, built.out.dtype, built.out.ne, case.nmse_max)
    for name, after in zip(case.written, written, strict=True):
        leaf = built.leafs[name]
        check_values(case.after(name), after, leaf.dtype, leaf.ne, case.nmse_max)
    return found
