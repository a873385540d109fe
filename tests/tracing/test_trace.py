"""Traces: what is recorded, the JSON, the picture.

Not here: whether operations overlap (tests of the examples).
"""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING

import pytest
from support import ramp, sum_on

import aggml
from aggml.stream.observe import observers

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
