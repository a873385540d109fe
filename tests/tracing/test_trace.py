"""Traces: what is recorded, the JSON, the picture.

Not here: whether operations overlap (tests of the examples).
"""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING

import numpy as np
import pytest
from support import ramp, sum_on

import aggml
from aggml.devices.sim import SimDevice
from aggml.stream.observe import observers
from aggml.tracing.drawing import Arrow, svg

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import AnyDevice


async def test_a_trace_has_every_operation_with_its_times(device: AnyDevice) -> None:
    be, other = device.backend(), device.backend()
    s = sum_on(be)
    await be.set(s.a, ramp())  # before the trace: not recorded
    with aggml.trace() as t:
        first = be.set(s.a, ramp())
        run = s.run(be, ramp(), ramp())
        with be.batch():
            be.get(s.y)
        other.stream.delay(0.001)
        await run
    await be.set(s.b, ramp())  # after the trace: not recorded
    await other.synchronize()
    assert observers == []
    assert len(t.streams) == 2
    names = [e.operation for e in t.events]
    assert names.count("get") >= 2
    assert {"set", "graph_compute", "get", "delay"} <= set(names)
    assert len(names) == names.count("set") + names.count("graph_compute") + names.count(
        "get"
    ) + names.count("delay")
    for event in t.events:
        assert event.submitted <= event.started <= event.done
    assert t.events[0][2:5] == first.times
    assert next(e for e in t.events if e.operation == "delay").stream == t.streams[1]
    assert str(len(names)) in repr(t)


async def test_a_trace_is_saved_for_perfetto(device: AnyDevice, tmp_path: Path) -> None:
    be = device.backend()
    s = sum_on(be)
    with aggml.trace() as t:
        await s.run(be, ramp(), ramp())
    t.save(tmp_path / "trace.json")
    saved = json.loads((tmp_path / "trace.json").read_text())
    rows = [e for e in saved["traceEvents"] if e["ph"] == "M"]
    work = [e for e in saved["traceEvents"] if e["ph"] == "X"]
    assert [e["args"]["name"] for e in rows] == t.streams
    assert len(work) == len(t.events)
    assert all(e["ts"] >= 0 and e["dur"] >= 0 and e["pid"] == 1 for e in work)


async def test_a_trace_is_drawn(device: AnyDevice, tmp_path: Path) -> None:
    be = device.backend()
    s = sum_on(be)
    with aggml.trace() as empty:
        await be.synchronize()
    with pytest.raises(aggml.InvalidArgument, match="nothing to draw"):
        empty.plot(tmp_path / "timeline.svg")
    with aggml.trace() as t:
        await s.run(be, ramp(), ramp())
    t.plot(tmp_path / "timeline.svg", title="a < b")
    root = ET.parse(tmp_path / "timeline.svg").getroot()
    bars = [r for r in root.iter("{http://www.w3.org/2000/svg}rect") if len(r)]
    assert len(bars) == len([e for e in t.events if e.operation not in {"wait", "mark"}])
    for name in ("timeline.pdf", "timeline.png", "timeline"):
        with pytest.raises(aggml.InvalidArgument, match="svg"):
            t.plot(tmp_path / name)


async def test_an_operation_tells_its_tensor_and_the_one_that_it_waited_for() -> None:
    device = SimDevice("TWO")
    up, compute = device.backend(), device.backend()
    x = aggml.new_tensor("f32", ne=(4,), name="x")
    y = aggml.ops.sqr(x).set_name("y")
    graph = aggml.Graph(y)
    compute.alloc_graph(graph)
    await compute.prepare(graph)
    event = device.event()
    with aggml.trace() as t:
        with device.hold():  # so that everything is queued before the first operation ends
            up.set(x, np.ones(4, np.float32))
            up.record(event)
            compute.wait(event)
            compute.graph_compute(graph)
            result = compute.get(y)
        await result
    found = {e.operation: e for e in t.events}
    assert found["set"].tensors == ("x",)
    assert found["get"].tensors == ("y",)
    assert found["set"].cause == ""
    assert found["graph_compute"].cause == "set on TWO (x)"
    assert found["get"].cause == "graph_compute on TWO (2)"
    arguments = [e["args"] for e in t.to_json()["traceEvents"] if e.get("name") == "graph_compute"]
    assert [x["cause"] for x in arguments] == ["set on TWO (x)"]


async def test_an_operation_that_waits_for_nothing_has_no_cause() -> None:
    device = SimDevice("ONE")
    be = device.backend()
    x = aggml.new_tensor("f32", ne=(4,), name="x")
    be.alloc([x])
    with aggml.trace() as t:
        await be.set(x, np.ones(4, np.float32))
        await be.get(x)
    assert [e.cause for e in t.events] == ["", ""]


async def test_a_page_has_all_work_and_asks_no_host(tmp_path: Path) -> None:
    device = SimDevice("PAGE")
    up, down = device.backend(), device.backend()
    x = aggml.new_tensor("f32", ne=(4,), name="</script><b>&")
    up.alloc([x])
    event = device.event()
    with aggml.trace() as t:
        with device.hold():
            up.set(x, np.ones(4, np.float32))
            up.record(event)
            down.wait(event)
            result = down.get(x)
        await result
    t.plot(tmp_path / "timeline.html", title="a <b> & c")
    text = (tmp_path / "timeline.html").read_text()
    assert "//" not in text
    assert "<title>a &lt;b&gt; &amp; c</title>" in text
    found = text.split('<script id="data" type="application/json">')[1].split("</script>")[0]
    data = json.loads(found)
    assert [bar[3] for bar in data["bars"]] == ["set", "get"]
    assert data["arrows"] == [[0, 1]]
    assert data["lanes"] == [["PAGE", "set"], ["PAGE (2)", "get"]]
    assert "tensors: </script><b>&" in data["bars"][0][4]
    assert "16 bytes" in data["bars"][0][4]
    assert "began after: set on PAGE (</script><b>&)" in data["bars"][1][4]


async def test_an_arrow_of_a_picture_leads_from_the_end_to_the_beginning(tmp_path: Path) -> None:
    events = [
        aggml.TraceEvent("a", "set", 0.0, 0.0, 1.0, 0),
        aggml.TraceEvent("b", "get", 0.0, 1.0, 2.0, 0),
    ]
    root = ET.fromstring(svg(events, [Arrow(0, 1)]))
    space = "{http://www.w3.org/2000/svg}"
    first, second = (r for r in root.iter(f"{space}rect") if len(r))
    (arrow,) = (p for p in root.iter(f"{space}path") if p.get("marker-end"))
    begin, end = arrow.get("d", "")[1:].split("C")
    there = float(second.get("x", ""))
    assert float(begin.split()[0]) == pytest.approx(there)
    assert float(end.split()[-2]) == pytest.approx(there)
    assert float(first.get("x", "")) + float(first.get("width", "")) == pytest.approx(there)
