"""Transfers and host memory: promises of particular devices. Others are in aggml.testing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support import placed

import aggml

if TYPE_CHECKING:
    from aggml.devices.sim import SimBackend


async def test_the_host_may_not_touch_the_memory_of_another_device(sim: SimBackend) -> None:
    t = placed(sim)
    assert t.buffer is not None
    assert not t.buffer.is_host
    assert not aggml.get_device("CPU").supports_buffer_type(t.buffer.type)
    with aggml.get_device("CPU").backend() as cpu, pytest.raises(aggml.InvalidArgument):
        cpu.get(t)
