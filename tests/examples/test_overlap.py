"""The examples of overlap give right results, overlap, and draw it; nothing is timed here.

Overlap is read from the traces: operations of different streams that ran at the same time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import overlapped_transfer
import prefetch_experts
import prefetch_weights
import pytest
import two_devices

import aggml

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from aggml.devices.sim import SimDevice


def at_once(trace: aggml.Trace, operation: str) -> int:
    """The largest number of streams that ran ``operation`` at the same time."""
    steps = []
    for event in trace.events:
        if event.operation == operation:
            steps += [(event.started, 1), (event.done, -1)]
    most = now = 0
    for _, step in sorted(steps):
        now += step
        most = max(most, now)
    return most


def overlaps(trace: aggml.Trace, one: str, other: str) -> bool:
    """Whether an operation ``one`` ran at the same time as an operation ``other``."""
    spans = [(e.started, e.done) for e in trace.events if e.operation == other]
    return any(
        max(start, event.started) < min(end, event.done)
        for event in trace.events
        if event.operation == one
        for start, end in spans
    )


@pytest.mark.long(cases=1)
async def test_transfers_overlap_with_computing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    overlapped, gather = overlapped_transfer.overlapped, aggml.gather

    async def queued_first(device: SimDevice, chunks: Sequence[Any]) -> Any:
        """Nothing begins before all is queued: else a busy machine may queue it too late."""
        with device.hold() as held, monkeypatch.context() as patch:

            def release(*results: Any) -> Any:
                held.close()
                return gather(*results)

            patch.setattr(aggml, "gather", release)
            return await overlapped(device, chunks)

    monkeypatch.setattr(overlapped_transfer, "overlapped", queued_first)
    with aggml.check_races():
        # each stage is longer than a thread of a busy machine waits for a core
        report = await overlapped_transfer.measure(6, 30.0)
    assert report.right
    assert overlaps(report.trace, "set", "graph_compute")
    assert overlaps(report.trace, "get", "graph_compute") or overlaps(report.trace, "get", "set")
    assert "6 chunks" in str(report)
    report.trace.plot(tmp_path / "timeline.svg")
    assert (tmp_path / "timeline.svg").stat().st_size > 500


@pytest.mark.long(cases=1)
async def test_a_transformer_over_two_devices_is_right_and_overlaps() -> None:
    with aggml.check_races():
        report = await two_devices.compare(16, 4.0)
    assert report.right
    assert at_once(report.trace, "graph_compute") >= 2
    assert "SIM1" in report.plan
    assert "times as many" in str(report)


@pytest.mark.long
async def test_experts_that_the_next_router_will_name_come_while_this_layer_is_computed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with aggml.check_races(), aggml.trace() as trace:
        await prefetch_experts.main()
    demand, ahead, *_ = capsys.readouterr().out.splitlines()
    assert "right: True" in demand
    assert "right: True" in ahead
    late = [int(x.split(" experts")[0].rsplit(" ", 1)[1]) for x in (demand, ahead)]
    assert 0 < late[1] < late[0] / 2
    assert overlaps(trace, "graph_compute", "set")


@pytest.mark.long(cases=1)
async def test_weights_that_are_prefetched_come_while_the_layer_before_is_computed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with aggml.trace() as trace:
        await prefetch_weights.main()
    lines = capsys.readouterr().out.splitlines()
    assert [x.endswith("right: True") for x in lines] == [True, True, False]
    assert overlaps(trace, "graph_compute", "set")
