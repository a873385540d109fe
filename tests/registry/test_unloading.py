"""Plug-ins that are unloaded: what is removed with them, and what prevents it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from registry.plugins import FakeFamily, status, write

import aggml

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.mark.feature("RG-18")
def test_unloading_removes_a_family_and_its_devices(tmp_path: Path) -> None:
    path = write(tmp_path, "aggml_filed.py", variant="one")
    family = aggml.load(path)
    device = family.device(0)
    assert aggml.unload("filed")
    assert device.family is None
    assert family not in aggml.list_families()
    assert device not in aggml.list_devices()
    assert not aggml.unload("filed")
    assert not aggml.unload(family)
    assert status(aggml.load_report(), "aggml_filed.py").reason == "it was unloaded"
    write(tmp_path, "aggml_filed.py", variant="two, to be read anew")
    again = aggml.load(path)
    assert again is not family
    assert again.features() == {"VARIANT": "two, to be read anew"}


@pytest.mark.feature("RG-18")
def test_a_family_lets_go_once_it_is_unloaded() -> None:
    family = FakeFamily()
    aggml.register_family(family)
    assert family.closed == 0
    assert aggml.unload(family)
    assert family.closed == 1


@pytest.mark.feature("RG-18")
@pytest.mark.parametrize("kind", ["backend", "buffer", "event"])
def test_unloading_is_refused_while_something_lives(kind: str) -> None:
    family = FakeFamily(n=2)
    aggml.register_family(family)
    device = family.devices[1]
    make: dict[str, Callable[[], Any]] = {
        "backend": device.backend,
        "buffer": lambda: device.buffer_type.alloc_buffer(64),
        "event": device.event,
    }
    thing = make[kind]()
    with pytest.raises(aggml.InvalidState, match=rf"FAKE is in use: <{kind.title()}"):
        aggml.unload(family)
    assert family in aggml.list_families()
    assert family.closed == 0
    assert device.family is family
    if kind == "event":
        del thing
    else:
        thing.close()
    assert aggml.unload(family)


@pytest.mark.feature("RG-18")
def test_work_in_flight_keeps_a_family_even_if_its_backend_is_closed() -> None:
    family = FakeFamily()
    aggml.register_family(family)
    backend = family.device(0).backend()
    with backend.stream.hold():
        done = backend.stream.delay(0)
        backend.close()
        with pytest.raises(aggml.InvalidState, match=r"[12] queued"):
            aggml.unload(family)
    assert done.wait(60)
    assert backend.synchronize().wait(60)
    assert aggml.unload(family)


@pytest.mark.feature("RG-18")
def test_a_cycle_that_waits_for_the_collector_keeps_nothing_loaded() -> None:
    family = FakeFamily()
    aggml.register_family(family)
    event: Any = family.device(0).event()
    cycle: list[Any] = [event]
    cycle.append(cycle)
    del event, cycle
    assert aggml.unload(family)
