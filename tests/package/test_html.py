"""What objects show in a notebook: their facts, as escaped text, and little of it.

Not here: notebooks (tests/examples/test_notebooks.py).
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING, Any

import numpy as np

import aggml
from aggml import Graph, new_tensor, ops, opt
from aggml.devices.sim import SimDevice
from aggml.models.small import write_small
from aggml.pipeline import run
from aggml.process import html

if TYPE_CHECKING:
    from pathlib import Path

HOSTILE = "<script>alert('x')</script>&"


def texts(thing: Any) -> list[str]:
    """The texts of what an object shows; markup that is not well-formed is an error."""
    root = ET.fromstring(f"<div>{thing._repr_html_()}</div>")
    assert root.find(".//script") is None
    return [text for text in root.itertext() if text.strip()]


def layer(name: str = "w") -> tuple[aggml.Tensor, Graph]:
    w = new_tensor("f32", ne=(4, 2), name=name)
    y = ops.relu(ops.mul_mat(w, new_tensor("f32", ne=(4,), name="x").set_input())).set_name("y")
    return w, Graph(y)


def test_a_tensor_shows_both_orders_of_its_extents() -> None:
    w, graph = layer()
    assert {"w", "f32", "(2, 4)", "(4, 2, 1, 1)", "32", "no memory yet"} <= set(texts(w))
    assert {"relu", "y"} <= set(texts(graph.nodes[-1]))


def test_names_of_files_do_not_become_markup() -> None:
    w, graph = layer(HOSTILE)
    assert HOSTILE in texts(w)
    assert any(HOSTILE in text for text in texts(graph))
    assert HOSTILE not in w._repr_html_() + graph._repr_html_()


def test_a_graph_shows_its_nodes_and_of_many_the_first() -> None:
    _, graph = layer()
    assert {"mul_mat", "relu", "w, x"} <= set(texts(graph))
    y = new_tensor("f32", ne=(4,), name="x")
    for _ in range(html.ROWS_MOST + 7):
        y = ops.sqr(y)
    found = texts(Graph(y))
    assert found.count("sqr") == html.ROWS_MOST
    assert "and 7 more" in found


async def test_plans_and_schedules_show_their_lines() -> None:
    w, graph = layer()
    far, host = SimDevice("FAR").backend(), aggml.get_device("CPU").backend(n_threads=1)
    async with far, host, aggml.Scheduler([far, host]) as scheduler:
        far.alloc([w], usage="weights")
        await far.set(w, np.ones((2, 4), np.float32))
        plan = scheduler.plan(graph)
        assert texts(plan) == [str(plan)]
    other = layer()[1]
    async with aggml.get_device("CPU").backend(n_threads=1) as be:
        be.alloc_graph(other)
        compiled = aggml.compile_plan(other)
        assert texts(compiled) == [str(compiled)]


async def test_a_trace_shows_its_timeline() -> None:
    x = new_tensor("f32", ne=(4,), name=HOSTILE)
    async with SimDevice("SHOWN").backend() as be:
        be.alloc([x])
        with aggml.trace() as trace:
            assert texts(trace) == [repr(trace)]
            await be.set(x, np.ones(4, np.float32))
    found = texts(trace)
    assert {"SHOWN", "set"} <= set(found)
    assert any(HOSTILE in text for text in found)


async def test_a_model_shows_what_it_is_and_its_memory(tmp_path: Path) -> None:
    async with aggml.models.load(write_small(tmp_path / "small.gguf"), ctx=256, slots=2) as model:
        assert {"llama", "256", "2", "mapped", "total"} <= set(texts(model))
    assert "mapped" not in texts(model)
    assert "llama" in texts(model)


async def test_progress_shows_how_far_it_is() -> None:
    async def same(x: int) -> int:
        return x

    async with run(range(3), same) as results:
        assert [x async for x in results] == [0, 1, 2]
        assert texts(results) == [str(results)]
    unused: Any = None
    progress = opt.TrainingProgress(unused, True, 2, 5, 30, 40, unused, 1.25)
    assert texts(progress) == [" epoch 2 of 5, training, 1.2 s"]
    bar = ET.fromstring(f"<div>{progress._repr_html_()}</div>").find("progress")
    assert bar is not None
    assert bar.attrib == {"value": "30", "max": "40"}
