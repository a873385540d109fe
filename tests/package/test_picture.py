"""Drawings of graphs, plans and schedules: who reads what, lanes that do not collide, odd names.

Not here: timelines (tests/tracing).
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING

import numpy as np
import pytest

import aggml
from aggml import Graph, new_tensor, ops
from aggml.devices.sim import SimDevice
from aggml.process.picture import DrawnRow, draw_rows, xml_text

if TYPE_CHECKING:
    from pathlib import Path

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = "<script>&\"'\x00\x1b\ud800\N{SNOWMAN}"


class Drawing:
    """What a drawing shows: its texts, its dots, and its lines as pairs of dots."""

    def __init__(self, text: str) -> None:
        root = ET.fromstring(text)
        self.texts = [t.text or "" for t in root.iter(f"{SVG}text")]
        self.titles = [t.text or "" for t in root.iter(f"{SVG}title")]
        dots = [(float(c.attrib["cx"]), float(c.attrib["cy"])) for c in root.iter(f"{SVG}circle")]
        self.dots = dots
        paths = [(p.attrib["d"], "stroke-dasharray" in p.attrib) for p in root.iter(f"{SVG}path")]
        self.lines: list[tuple[int, int]] = []
        self.dashed: list[tuple[int, int]] = []
        for path, dashed in paths:
            x, y = map(float, path[1:].split("V")[0].split())
            if "C" in path:
                *_, to_x, to_y = map(float, path.split("C")[1].split())
            else:
                to_x, to_y = x, float(path.split("V")[1])
            line = dots.index((x, y)), dots.index((to_x, to_y))
            (self.dashed if dashed else self.lines).append(line)


def layer(name: str = "") -> tuple[Graph, aggml.Tensor]:
    x = new_tensor("f32", ne=(8, 2), name="x" + name).set_input()
    w = new_tensor("f32", ne=(8, 8), name="w" + name)
    h = ops.mul_mat(w, x).set_name("h" + name)
    return Graph(ops.add(ops.sqr(h), h).set_name("y" + name)), w


def test_a_graph_is_drawn_with_who_reads_what(tmp_path: Path) -> None:
    layer()[0].plot(tmp_path / "graph.svg", title="A layer")
    found = Drawing((tmp_path / "graph.svg").read_text())
    assert found.texts[0] == "A layer"
    assert [t.split()[0] for t in found.texts[1:]] == ["mul_mat", "sqr", "add"]
    assert "h f32 [8, 2] (w, x)" in found.texts[1]
    assert sorted(found.lines) == [(0, 1), (0, 2), (1, 2)]


def test_lines_of_a_view_and_of_repeated_operands_are_drawn_once(tmp_path: Path) -> None:
    x = new_tensor("f32", ne=(8, 2), name="x")
    a = ops.sqr(x)
    Graph(ops.mul(ops.reshape_2d(a, 2, 8), ops.reshape_2d(a, 2, 8))).plot(tmp_path / "views.svg")
    found = Drawing((tmp_path / "views.svg").read_text())
    assert sorted(found.lines) == [(0, 1), (0, 2), (1, 3), (2, 3)]
    Graph(ops.mul(a, a)).plot(tmp_path / "twice.svg")
    assert Drawing((tmp_path / "twice.svg").read_text()).lines == [(0, 1)]


async def test_a_plan_is_drawn_by_its_steps_through_fused_nodes_and_views(tmp_path: Path) -> None:
    x = new_tensor("f32", ne=(64, 8), name="x").set_input()
    weights = [new_tensor("f32", ne=(64, 64), name=f"w{i}") for i in range(3)]
    first = ops.mul_mat(weights[0], x).set_name("first")
    gate = ops.silu(ops.mul_mat(weights[1], ops.reshape_2d(first, 64, 8)))
    y = ops.mul(gate, ops.mul_mat(weights[2], first)).set_name("y")
    async with aggml.get_device("CPU").backend(n_threads=1) as be:
        graph = Graph(y)
        be.alloc_graph(graph)
        plan = be.graph_plan(graph)
        plan.plot(tmp_path / "plan.svg")
        steps = plan.plan.steps
    found = Drawing((tmp_path / "plan.svg").read_text())
    assert len(found.dots) == len(steps)
    assert [t.split()[0] for t in found.texts[1:]] == [step.op for step in steps]
    last = len(steps) - 1
    # `y` reads the product that is not fused into it, and `first` for the one that is
    assert {line for line in found.lines if line[1] == last} == {(0, last), (last - 1, last)}
    assert {line for line in found.lines if line[1] == last - 1} == {(0, last - 1)}


async def test_a_plan_of_a_device_without_native_steps_is_drawn_by_its_nodes(
    tmp_path: Path,
) -> None:
    graph, _ = layer()
    async with SimDevice("DRAWN").backend() as be:
        be.alloc_graph(graph)
        be.graph_plan(graph).plot(tmp_path / "sim.svg")
    assert Drawing((tmp_path / "sim.svg").read_text()).lines


async def test_a_schedule_is_drawn_with_its_copies(tmp_path: Path) -> None:
    x = new_tensor("f32", ne=(8, 2), name="x").set_input()
    weights = [new_tensor("f32", ne=(8, 8), name=f"w{i}") for i in range(2)]
    hidden = ops.relu(ops.mul_mat(weights[0], x)).set_name("hidden")
    graph = Graph(ops.add(ops.mul_mat(weights[1], hidden), hidden).set_name("y"))
    a, b = SimDevice("FIRST").backend(), SimDevice("SECOND").backend()
    host = aggml.get_device("CPU").backend(n_threads=1)
    async with a, b, host, aggml.Scheduler([a, b, host]) as scheduler:
        for weight, home in zip(weights, (a, b), strict=True):
            home.alloc([weight], usage="weights")
            await home.set(weight, np.eye(8, dtype=np.float32))
        plan = scheduler.plan(graph)
        plan.plot(tmp_path / "schedule.svg")
    found = Drawing((tmp_path / "schedule.svg").read_text())
    headings = [t for t in found.texts if t.startswith("split ")]
    assert headings == ["split 0 on 0 FIRST", "split 1 on 1 SECOND"]
    rows = [t.split()[0] for t in found.texts[1:] if not t.startswith(("split", "["))]
    assert rows == ["copy", "mul_mat", "relu", "copy", "mul_mat", "add"]
    assert found.dashed == [(2, 3)]
    assert sorted(found.lines) == [(0, 1), (1, 2), (3, 4), (3, 5), (4, 5)]


def test_results_that_are_still_needed_never_share_a_lane(rng: np.random.Generator) -> None:
    for _ in range(200):
        rows = [
            DrawnRow(
                str(i),
                tuple(sorted({int(x) for x in rng.integers(0, i, rng.integers(0, 4))}))
                if i
                else (),
            )
            for i in range(int(rng.integers(1, 30)))
        ]
        found = Drawing(draw_rows("random", rows))
        assert sorted(found.lines) == [(s, i) for s, i in sorted(
            (s, i) for i, row in enumerate(rows) for s in row.sources
        )]  # fmt: skip
        last = {s: i for i, row in enumerate(rows) for s in row.sources}
        for i in range(len(rows)):
            alive = [s for s, until in last.items() if s < i < until]
            taken = [found.dots[s][0] for s in [*alive, i]]
            assert len(set(taken)) == len(taken)


def test_names_that_xml_cannot_contain_leave_a_drawing_that_can_be_read(tmp_path: Path) -> None:
    graph, _ = layer(HOSTILE)
    graph.plot(tmp_path / "hostile.svg", title=HOSTILE)
    text = (tmp_path / "hostile.svg").read_text(encoding="utf-8")
    assert "<script>" not in text
    found = Drawing(text)
    assert found.texts[0] == "<script>&\"'" + "\N{REPLACEMENT CHARACTER}" * 3 + "\N{SNOWMAN}"
    for code in (*range(0x20), 0xD800, 0xDFFF, 0xFFFE, 0xFFFF):
        ET.fromstring(f"<a>{xml_text(chr(code))}</a>")


def test_long_names_are_cut_and_told_under_the_pointer() -> None:
    found = Drawing(draw_rows("long", [DrawnRow("x" * 1000)]))
    assert len(found.texts[1]) < 200
    assert found.titles == ["x" * 1000]


def test_a_drawing_of_many_results_stays_narrow() -> None:
    rows = [DrawnRow("leaf") for _ in range(500)]
    root = ET.fromstring(draw_rows("wide", [*rows, DrawnRow("sum", tuple(range(500)))]))
    assert float(root.attrib["width"]) < 1000


def test_another_suffix_is_refused_and_a_home_directory_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, _ = layer()
    with pytest.raises(aggml.InvalidArgument, match=r"\[Graph.plot\] 'graph.png' does not end"):
        graph.plot("graph.png")
    monkeypatch.setenv("HOME", str(tmp_path))
    graph.plot("~/graph.svg")
    assert (tmp_path / "graph.svg").exists()


async def test_a_graph_in_scratch_memory_is_compiled_by_its_backend() -> None:
    graph, _ = layer()
    async with aggml.get_device("CPU").backend(n_threads=1) as be:
        be.alloc_graph(graph)
        with pytest.raises(aggml.NotAllocated, match=r"compiles it by Backend.graph_plan"):
            aggml.compile_plan(graph)
        assert "mul_mat" in str(be.graph_plan(graph))
