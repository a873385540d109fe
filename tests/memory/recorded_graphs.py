"""Graphs of the recorded allocator cases, for the tests of graph and allocator."""

from __future__ import annotations

from typing import Any

from aggml import Graph, Tensor, new_tensor, ops

__all__ = ["buildable", "make_graph"]


def buildable(case: dict[str, Any]) -> bool:
    """Whether ``ops`` has every operation of the case."""
    return all(hasattr(ops, t["op"]) for t in case["graph"]["tensors"] if t["kind"] == "node")


def make_graph(case: dict[str, Any]) -> tuple[Graph, dict[str, Tensor]]:
    """The graph of a case, and all its tensors by name; weights are not placed."""
    tensors: dict[str, Tensor] = {}
    for t in case["graph"]["tensors"]:
        if t["kind"] == "node":
            operands: dict[str, Tensor | None] = {
                name: tensors[source] for name, source in t["inputs"].items()
            }
            if t["op"].startswith("rope_ext"):
                operands.setdefault("c", None)
            tensor = getattr(ops, t["op"])(**operands, **t["args"])
            tensor.set_name(t["name"])
        else:
            tensor = new_tensor(t["type"], ne=t["ne"], name=t["name"])
        if "input" in t["flags"]:
            tensor.set_input()
        if "output" in t["flags"]:
            tensor.set_output()
        tensors[t["name"]] = tensor
    return Graph(*(tensors[name] for name in case["graph"]["ends"])), tensors
