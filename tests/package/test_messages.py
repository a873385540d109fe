"""Messages that users met: each error names the argument, the place, and a cure that works.

Here: arrays, names, options and the program. Not here: which calls are refused (test_bad_input.py,
test_misuse.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest
from support import placed, vector

import aggml
from aggml import Graph, ops

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from aggml.devices.cpu import CPUBackend, CPUDevice
    from aggml.devices.sim import SimDevice

TIB = 1 << 40


# -- options


@pytest.mark.parametrize("bad", ["2", 2.5, [2], b"2"])
def test_options_of_a_backend_that_are_no_integers(cpu_device: CPUDevice, bad: Any) -> None:
    for options in ({"n_threads": bad}, {"max_queued": bad}):
        with pytest.raises(aggml.InvalidHandle, match=rf"{next(iter(options))}=.* is no integer"):
            cpu_device.backend(**options)
    with cpu_device.backend() as be, pytest.raises(aggml.InvalidHandle, match="max_in_flight="):
        aggml.Scheduler([be], max_in_flight=bad)


def test_integers_of_numpy_are_integers(cpu_device: CPUDevice) -> None:
    number: Any = np.int64(1)
    with cpu_device.backend(n_threads=number, max_queued=number) as be:
        assert be.n_threads == 1


@pytest.mark.parametrize("bad", ["nope", 3, b"avx2"])
def test_an_unknown_instruction_set(cpu_device: CPUDevice, bad: Any) -> None:
    with pytest.raises(aggml.InvalidArgument, match=r"isa=.*scalar"):
        aggml.convert(np.zeros(3, np.float32), "f16", isa=bad)
    with pytest.raises(aggml.InvalidArgument, match=r"isa=.*scalar"):
        cpu_device.backend(isa=bad)


# -- memory


async def test_too_much_memory_names_device_tensor_and_amount(cpu: CPUBackend) -> None:
    big, small = aggml.new_tensor("f32", (TIB, 4), "big"), vector(name="small")
    ways: list[Callable[[], object]] = [
        lambda: cpu.alloc([small, big]),
        lambda: cpu.buffer_type.alloc_tensors([big]),
    ]
    for alloc in ways:
        with pytest.raises(aggml.AllocFailed, match=r"16.0 TiB.*CPU.*big f32 .*16.0 TiB") as caught:
            alloc()
        assert (caught.value.device, caught.value.tensor) == ("CPU", "big")
    with pytest.raises(aggml.AllocFailed, match=r"largest of 2 tensors is big"):
        await cpu.alloc_async([small, big])
    assert small.placement is None
    with pytest.raises(aggml.AllocFailed, match=r"\[CPU\].*16.0 TiB"):
        cpu.buffer_type.alloc_buffer(16 * TIB)


@pytest.mark.parametrize("scratch", [False, True])
async def test_too_large_a_graph_names_its_largest_tensor(cpu: CPUBackend, scratch: bool) -> None:
    x = vector(1, "x")
    wide = ops.repeat_4d(x, TIB, 4, 1, 1).set_name("wide")
    graph = Graph(ops.sum(wide) if scratch else wide)
    for _ in range(2):
        with pytest.raises(aggml.AllocFailed, match=r"16.0 TiB.*CPU.*wide f32") as caught:
            cpu.alloc_graph(graph)
        assert caught.value.tensor == "wide"
        assert graph.memory is None  # either all tensors are placed or none
        assert x.placement is None


def test_a_device_that_is_full_is_named(sim_device: SimDevice) -> None:
    device = aggml.devices.sim.SimDevice("tiny", memory=1000)
    with device.backend() as be:
        with pytest.raises(aggml.AllocFailed, match=r"tiny, for w f32.*0 of 1000 are in use"):
            be.alloc([vector(1000, "w")])
        with pytest.raises(aggml.AllocFailed, match=r"tiny, .* w f32"):
            be.alloc_graph(Graph(ops.sqr(vector(1000, "w"))))


# -- arrays

CURES = [
    ([1.0, 2.0], "f32", r"float64 of a list: pass numpy.asarray\(x, numpy.float32\)"),
    ((1, 2), "f32", r"int64 of a tuple: pass numpy.asarray\(x, numpy.float32\)"),
    (1.5, "f32", r"float64 of a float: pass numpy.asarray\(x, numpy.float32\)"),
    (1, "i32", r"int64 of a int: pass numpy.asarray\(x, numpy.int32\)"),
    ([1.0, 2.0], "bf16", r"of a list: pass numpy.asarray\(x, ml_dtypes.bfloat16\)"),
    (bytes(8), "f32", r"a bytes is read as uint8: pass numpy.frombuffer\(x, numpy.float32\)"),
    (bytearray(8), "f32", r"bytearray .* numpy.frombuffer\(x, numpy.float32\)"),
    (memoryview(bytes(4)), "bf16", r"numpy.frombuffer\(x, ml_dtypes.bfloat16\)"),
    (np.zeros(2), "f32", r"holds float64: convert with .astype\(numpy.float32\)"),
    (np.int64(1), "i32", r"holds int64: convert with .astype\(numpy.int32\)"),
    (None, "f32", "None is no array"),
]


# Addresses such as "<memory at 0x7f...>" are cut off: test names must be the same in each process.
@pytest.mark.parametrize(
    ("x", "dtype", "words"), CURES, ids=lambda x: str(x).split(" at 0x")[0][:24]
)
def test_the_cure_is_one_that_what_was_given_has(
    cpu: CPUBackend, x: Any, dtype: str, words: str
) -> None:
    t = placed(cpu, 2, "t", dtype)
    graph = Graph(ops.cont(t))
    cpu.alloc_graph(graph)
    with pytest.raises(aggml.LayoutMismatch, match=words):
        cpu.set(t, x)
    with pytest.raises(aggml.LayoutMismatch, match=words):
        cpu.run(graph, {t: x}, graph.ends[0])


def test_the_cures_work(cpu: CPUBackend) -> None:
    t, half = placed(cpu, 2, "t"), placed(cpu, 2, "half", "bf16")
    for x in (
        np.asarray([1.0, 2.0], np.float32),
        np.frombuffer(bytes(8), np.float32),
        np.zeros(2).astype(np.float32),
    ):
        assert cpu.set(t, x).wait(60)
    assert cpu.set(half, np.asarray([1.0, 2.0], ml_dtypes.bfloat16)).wait(60)


def test_a_tensor_is_no_array_for_numpy(cpu: CPUBackend) -> None:
    t = placed(cpu, 2, "t")
    ways: list[Callable[[Any], object]] = [
        np.asarray,
        np.array,
        lambda x: np.ones(2) @ x,
        lambda x: np.stack([x, x]),
    ]
    for use in ways:
        with pytest.raises(aggml.InvalidHandle, match=r"t f32 .*backend.get\(tensor\).*host_view"):
            use(t)
    with pytest.raises(TypeError):
        np.asarray(t, np.float32)
    assert cpu.set(t, np.asarray([3, 4], np.float32)).wait(60)
    assert np.array_equal(np.from_dlpack(t), [3, 4])
    assert np.array_equal(np.asarray(t.host_view()), [3, 4])


@pytest.mark.parametrize(
    ("kind", "cure"), [(aggml.GGUFFile, "GGUFFile.open"), (aggml.Tensor, "new_tensor")]
)
def test_a_class_that_is_not_called_names_what_is(kind: Any, cure: str) -> None:
    for args, named in [((), {}), (("model.gguf",), {}), ((), {"path": "model.gguf"})]:
        with pytest.raises(aggml.InvalidState, match=cure):
            kind(*args, **named)


# -- names


async def test_one_name_is_not_several(tmp_path: Path, cpu: CPUBackend) -> None:
    path = tmp_path / "a.gguf"
    with aggml.GGUFWriter(path) as w:
        w.add_tensor("A", np.ones(3, np.float32))
    with aggml.GGUFFile.open(path) as file:
        with pytest.raises(aggml.InvalidHandle, match=r"names='A' is one name: pass \['A'\]"):
            await file.load(cpu, names="A")
        await file.load(cpu, names=["A"])
        assert np.array_equal(await cpu.get(file.tensors["A"]), np.ones(3))


def test_a_long_name_is_refused_and_not_cut() -> None:
    ways: list[Callable[[Any], aggml.Tensor]] = [
        lambda name: aggml.new_tensor("f32", 4, name),
        lambda name: vector().set_name(name),
        lambda name: aggml.from_dlpack(np.zeros(4, np.float32), name=name),
    ]
    for make in ways:
        assert make("n" * 63).name == "n" * 63
        with pytest.raises(aggml.InvalidArgument, match=r"has 64 bytes of UTF-8.* at most 63"):
            make("n" * 64)
        with pytest.raises(aggml.InvalidHandle, match="no text"):
            make(3)


async def test_names_that_are_made_of_long_names_still_fit(sim: aggml.Backend) -> None:
    """Names that builders and staged copies make are cut: the user did not choose them."""
    a = vector(name="n" * 63)
    assert ops.transpose(a).name == "n" * 63
    sim.alloc([a])
    await sim.set(a, np.zeros(16, np.float32))
    assert not (await sim.get(a)).any()


# -- rows of odd length


@pytest.mark.parametrize("name", ["reglu", "geglu_swapped", "swiglu", "geglu_erf", "geglu_quick"])
def test_half_of_an_odd_row(name: str) -> None:
    with pytest.raises(aggml.LayoutMismatch, match=r"ne\[0\] = 5 is odd.*a = x f32 \[5\]"):
        getattr(ops, name)(vector(5, "x"))
    with pytest.raises(aggml.LayoutMismatch, match="is odd"):
        ops.glu(vector(1), "reglu")
    assert ops.glu(vector(4), "reglu").ne == (2, 1, 1, 1)
