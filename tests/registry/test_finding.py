"""Families and devices: registering, counting, finding by name, index, type and merit."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from registry.plugins import FakeFamily

import aggml
from aggml.devices.sim import SimDevice

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.feature("RG-01")
@pytest.mark.feature("RG-05")
def test_registering_a_family_adds_all_its_devices_at_the_end() -> None:
    before = aggml.list_devices()
    family = FakeFamily(n=2)
    assert aggml.register_family(family)
    assert aggml.list_devices() == [*before, *family.devices]
    assert aggml.list_families()[-1] is family
    assert aggml.get_family("fake").name == "FAKE"


@pytest.mark.feature("RG-05")
def test_the_same_family_twice_is_ignored() -> None:
    family = FakeFamily()
    assert aggml.register_family(family)
    assert not aggml.register_family(family)
    assert aggml.list_families().count(family) == 1


@pytest.mark.feature("RG-05")
def test_a_name_is_taken_once_and_nothing_is_added_in_part() -> None:
    aggml.register_family(FakeFamily("FAKE"))
    count = len(aggml.list_devices())
    with pytest.raises(aggml.InvalidArgument, match="'Fake'"):
        aggml.register_family(FakeFamily("Fake"))
    other = FakeFamily("OTHER", 2)
    other._devices[1].name = "fake0"
    with pytest.raises(aggml.InvalidArgument, match="fake0"):
        aggml.register_family(other)
    assert len(aggml.list_devices()) == count
    assert other.devices[0].family is None


def test_what_is_no_family_or_device_is_refused() -> None:
    wrong: Any = "CPU"
    with pytest.raises(aggml.InvalidHandle, match="CPU"):
        aggml.register_family(wrong)
    with pytest.raises(aggml.InvalidHandle, match="CPU"):
        aggml.register_device(wrong)
    with pytest.raises(aggml.InvalidHandle):
        aggml.get_family(wrong.encode())
    with pytest.raises(aggml.InvalidHandle):
        aggml.get_device(wrong.encode())
    with pytest.raises(aggml.InvalidHandle):
        aggml.unload(3)  # type: ignore[arg-type]
    family = FakeFamily()
    family._devices.append(wrong)
    with pytest.raises(aggml.InvalidHandle, match="CPU"):
        aggml.register_family(family)


@pytest.mark.feature("RG-02")
@pytest.mark.feature("RG-03")
def test_devices_of_a_family_by_index() -> None:
    family = FakeFamily(n=3)
    assert len(family.devices) == 3
    assert [family.device(i) for i in range(3)] == list(family.devices)
    assert family.device(1) is family.device(1)
    for index in (-1, 3):
        with pytest.raises(aggml.InvalidArgument, match=str(index)):
            family.device(index)
    assert len(FakeFamily(n=0).devices) == 0


@pytest.mark.feature("RG-04")
@pytest.mark.feature("RG-21")
def test_features_and_extension_functions_by_name() -> None:
    family = FakeFamily()
    assert family.features() == {"FAKERY": "1"}
    double = family.extension("ggml_backend_double")
    assert double is not None
    assert double(4) == 8
    assert family.extension("ggml_backend_triple") is None


@pytest.mark.feature("RG-07")
@pytest.mark.feature("RG-08")
@pytest.mark.feature("RG-22")
@pytest.mark.feature("RG-25")
def test_families_by_index() -> None:
    families = aggml.list_families()
    assert len(families) >= 1
    assert [aggml.get_family(i) for i in range(len(families))] == families
    assert [f.name for f in families].count("CPU") == 1
    for index in (-1, len(families)):
        with pytest.raises(aggml.InvalidArgument, match=str(index)):
            aggml.get_family(index)


@pytest.mark.feature("RG-09")
def test_a_family_by_name_whatever_its_case() -> None:
    assert aggml.get_family("cPu") is aggml.get_family("CPU")
    with pytest.raises(aggml.InvalidArgument, match=r"NONE.*CPU"):
        aggml.get_family("NONE")


@pytest.mark.feature("RG-06")
def test_a_device_of_no_family() -> None:
    device = SimDevice("LOOSE")
    families = aggml.list_families()
    assert aggml.register_device(device)
    assert not aggml.register_device(device)
    assert aggml.list_devices().count(device) == 1
    assert aggml.list_families() == families
    assert aggml.get_device("loose") is device
    assert device.family is None
    with pytest.raises(aggml.InvalidArgument, match="LOOSE"):
        aggml.register_device(SimDevice("LOOSE"))
    assert aggml.unregister_device(device)
    assert not aggml.unregister_device(device)
    assert device not in aggml.list_devices()


@pytest.mark.feature("RG-06")
def test_a_device_in_use_stays_registered() -> None:
    device = SimDevice("LOOSE")
    aggml.register_device(device)
    with device.backend(), pytest.raises(aggml.InvalidState, match=r"LOOSE.*Backend"):
        aggml.unregister_device(device)
    assert aggml.unregister_device(device)
    with pytest.raises(aggml.InvalidArgument, match="unload"):
        aggml.unregister_device(aggml.get_device("CPU"))


@pytest.mark.feature("RG-10")
@pytest.mark.feature("RG-11")
@pytest.mark.feature("RG-23")
def test_devices_by_global_index() -> None:
    aggml.register_family(FakeFamily(n=2))
    devices = aggml.list_devices()
    assert [aggml.get_device(i) for i in range(len(devices))] == devices
    assert devices.index(aggml.get_device("fake1")) == len(devices) - 1
    for index in (-1, len(devices)):
        with pytest.raises(aggml.InvalidArgument, match=str(index)):
            aggml.get_device(index)


@pytest.mark.feature("RG-12")
def test_a_device_by_name_whatever_its_case() -> None:
    aggml.register_family(family := FakeFamily())
    assert aggml.get_device("FaKe0") is family.devices[0]
    with pytest.raises(aggml.InvalidArgument, match=r"FAKE9.*FAKE0"):
        aggml.get_device("FAKE9")
    with pytest.raises(aggml.InvalidArgument, match="name or a type"):
        aggml.get_device()


@pytest.mark.feature("RG-13")
@pytest.mark.feature("DV-14")
def test_the_first_device_of_exactly_that_type() -> None:
    family = FakeFamily(n=3)
    family._devices[0].type = aggml.DeviceType.ACCEL
    aggml.register_family(family)
    assert aggml.get_device(type="accel") is family.devices[0]
    assert aggml.get_device(type=aggml.DeviceType.CPU).name == "CPU"
    assert aggml.get_device("FAKE1", type="GPU") is family.devices[1]
    with pytest.raises(aggml.InvalidArgument, match="accel"):
        aggml.get_device("FAKE1", type="accel")
    with pytest.raises(aggml.InvalidArgument, match="igpu"):
        aggml.get_device(type="igpu")
    with pytest.raises(aggml.InvalidArgument, match="toaster"):
        aggml.get_device(type="toaster")


@pytest.mark.feature("RG-16")
def test_the_best_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first GPU, else the first integrated GPU, else the CPU; never an accelerator."""
    from aggml.registry.table import table

    family = FakeFamily(n=4)
    kinds = (
        aggml.DeviceType.ACCEL,
        aggml.DeviceType.IGPU,
        aggml.DeviceType.GPU,
        aggml.DeviceType.GPU,
    )
    for device, kind in zip(family._devices, kinds, strict=True):
        device.type = kind
    cpu = aggml.get_device("CPU")
    monkeypatch.setattr(table, "entries", [e for e in table.entries if cpu in e.devices])
    assert aggml.best_device() is cpu
    aggml.register_family(family)
    assert aggml.best_device() is family.devices[2]
    with aggml.init_best() as be:
        assert be.device is family.devices[2]
    del family._devices[2:]
    table.entries[:] = [e for e in table.entries if e.family is not family]
    aggml.register_family(family)
    assert aggml.best_device() is family.devices[1]
    table.entries[:] = [e for e in table.entries if e.family is family]
    table.entries[0].devices = [family.devices[0]]
    with pytest.raises(aggml.InvalidArgument, match="FAKE0"):
        aggml.best_device()


def opened(open_it: Callable[[], aggml.Backend]) -> aggml.Device:
    with open_it() as be:
        return be.device


@pytest.mark.feature("RG-14")
@pytest.mark.feature("RG-15")
@pytest.mark.feature("RG-26")
def test_a_backend_by_name_type_and_index() -> None:
    cpu = aggml.get_device("CPU")
    assert opened(lambda: aggml.init_by_name("cpu")) is cpu
    assert opened(lambda: aggml.init_by_type("cpu")) is cpu
    at = aggml.list_devices().index(cpu)
    with aggml.init_by_name(at, "n_threads=1") as be:
        assert be.n_threads == 1  # type: ignore[attr-defined]
    calls: list[Callable[[], aggml.Backend]] = [
        lambda: aggml.init_by_name("NONE"),
        lambda: aggml.init_by_type("meta"),
        lambda: aggml.init_by_name(99),
    ]
    for call in calls:
        with pytest.raises(aggml.InvalidArgument):
            call()


@pytest.mark.feature("RG-24")
def test_a_text_is_split_at_the_first_colon() -> None:
    assert aggml.split_backend_text("name:par:ams") == ("name", "par:ams")
    assert aggml.split_backend_text("name") == ("name", "")
    assert aggml.split_backend_text("name:") == ("name", "")
    for text in ("", ":", ":params"):
        with pytest.raises(aggml.InvalidArgument, match="no device"):
            aggml.split_backend_text(text)
    with pytest.raises(aggml.InvalidHandle):
        aggml.split_backend_text(None)  # type: ignore[arg-type]


@pytest.mark.feature("RG-24")
def test_a_device_gets_its_parameters_as_they_are() -> None:
    family = FakeFamily()
    aggml.register_family(family)
    device = family._devices[0]
    for text, seen in (("fake0:par:ams", "par:ams"), ("FAKE0", ""), ("FAKE0:", "")):
        assert opened(partial(aggml.init_backend, text)) is device
        assert device.seen == seen
    with pytest.raises(aggml.InvalidArgument, match="NONE"):
        aggml.init_backend("NONE:x")


@pytest.mark.feature("RG-24")
@pytest.mark.feature("DV-07")
def test_parameters_are_keyword_arguments_of_the_backend() -> None:
    with aggml.init_backend("CPU:n_threads=2, use_ref, max_queued=none") as be:
        assert be.n_threads == 2  # type: ignore[attr-defined]
        assert be.use_ref is True  # type: ignore[attr-defined]
    with aggml.init_backend("CPU:use_ref=false") as be:
        assert be.use_ref is False  # type: ignore[attr-defined]
    for params, told in (
        ("n_thread=2", r"n_thread'.*n_threads"),
        ("n_threads=1,n_threads=2", "twice"),
        ("n_threads=513", "513"),
        ("n_threads=many", "many"),
    ):
        with pytest.raises(aggml.InvalidArgument, match=told):
            aggml.init_backend(f"CPU:{params}")


@pytest.mark.feature("RG-27")
@pytest.mark.feature("RG-28")
def test_a_buffer_without_a_backend() -> None:
    family = FakeFamily(memory=1 << 20)
    aggml.register_family(family)
    device = aggml.get_device(len(aggml.list_devices()) - 1)
    assert device.buffer_type is family.devices[0].buffer_type
    with device.buffer_type.alloc_buffer(4096) as buffer:
        assert buffer.size == 4096
        assert buffer.type is device.buffer_type
    with pytest.raises(aggml.AllocFailed):
        device.buffer_type.alloc_buffer(1 << 21)
