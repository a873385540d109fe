"""The recorded scheduler cases, rebuilt with a simulated device for each recorded one.

Here: backends, graph, placed weights, pins of a case. Not here: the tests (test_split.py,
test_recorded_runs.py).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from corpus_loader import CORPUS
from memory.recorded_graphs import make_graph

import aggml
from aggml.devices.sim import SimDevice

if TYPE_CHECKING:
    from numpy.lib.npyio import NpzFile

__all__ = ["Recorded", "arrays", "cases", "rebuild"]


@dataclass
class Recorded:
    """A case as objects of this package."""

    raw: dict[str, Any]
    graph: aggml.Graph
    tensors: dict[str, aggml.Tensor]
    backends: list[aggml.Backend]
    pins: dict[aggml.Tensor, int]
    weights: list[aggml.Tensor]
    inputs: list[aggml.Tensor]


def cases() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((CORPUS / "sched.json").read_text())
    return found


def arrays() -> NpzFile:
    file: NpzFile = np.load(CORPUS / "sched.npz")
    return file


def _backend(raw: dict[str, Any]) -> aggml.Backend:
    if raw["type"] == "cpu":
        return aggml.get_device("CPU").backend(n_threads=2)
    device = SimDevice(
        raw["name"],
        alignment=raw["alignment"],
        unsupported=raw.get("unsupported", ()),
        offload=raw.get("offload", ()),
        reads_host=raw.get("reads_host", False),
    )
    return device.backend()


def rebuild(raw: dict[str, Any]) -> Recorded:
    """Backends, graph and weights; the weights lie in buffers marked as such, without values."""
    graph, tensors = make_graph(raw)
    backends = [_backend(b) for b in raw["backends"]]
    weights = []
    for t in raw["graph"]["tensors"]:
        if t["kind"] == "weight":
            home = min(t.get("home") or 0, len(backends) - 1)
            tensor = tensors[t["name"]]
            backends[home].alloc([tensor], usage="weights")
            weights.append(tensor)
    inputs = [tensors[t["name"]] for t in raw["graph"]["tensors"] if t["kind"] == "input"]
    pins = {tensors[name]: b for name, b in raw["pins"].items()}
    return Recorded(raw, graph, tensors, backends, pins, weights, inputs)
