"""Bad transfers: a typed exception that names object and values, before anything is queued.

Not here: options and closed backends (test_bad_options.py), GGUF files (gguf/test_reading.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support import N, holding, placed, ramp, sum_on, vector

import aggml
from aggml.devices.sim import SimDevice

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Place:
    """A backend with placed tensors and graphs for the tests."""

    def __init__(self, be: aggml.Backend) -> None:
        self.be: Any = be  # Any, since the tests pass arguments of wrong types on purpose
        self.t = holding(be, ramp(), "tensor")
        self.ids = placed(be, 4, "ids", "i32")
        self.bf16 = placed(be, N, "bf16", "bf16")
        self.q8 = placed(be, 32, "q8", "q8_0")
        self.matrix = aggml.new_tensor("f32", ne=(4, 4), name="matrix")
        be.alloc([self.matrix])
        self.s = sum_on(be)
        self.unplaced = vector(name="unplaced")
        self.other_side = vector(name="elsewhere")
        # The simulated device cannot reach host memory, nor the CPU its memory.
        self.elsewhere = (
            SimDevice("ELSEWHERE") if be.device.name == "CPU" else aggml.get_device("CPU")
        ).backend()
        self.elsewhere.alloc([self.other_side])


@pytest.fixture
def at(be: aggml.Backend) -> Iterator[Place]:
    place = Place(be)
    with place.elsewhere:
        yield place
        # A refused call has queued nothing and poisoned nothing, and the backend works on.
        assert be.pending == 0
        got = be.get(place.t)
        assert got.wait(60)
        assert np.array_equal(got.result(), ramp())
        run = place.s.run(be, ramp(), ramp())
        assert run.wait(60)
        assert np.array_equal(run.result(), 2 * ramp())


READ_ONLY = ramp()
READ_ONLY.flags.writeable = False
TRANSFERS: dict[str, tuple[Callable[[Place], object], type[Exception], str]] = {
    # element types
    "f64 into f32": (
        lambda p: p.be.set(p.t, np.zeros(N)),
        aggml.LayoutMismatch,
        "tensor.*float32.*float64",
    ),
    "i64 into i32": (
        lambda p: p.be.set(p.ids, np.arange(4)),
        aggml.LayoutMismatch,
        r"ids.*int64.*astype\(numpy.int32\)",
    ),
    "i32 into f32": (
        lambda p: p.be.set(p.t, np.zeros(N, np.int32)),
        aggml.LayoutMismatch,
        "float32.*int32",
    ),
    "f32 into bf16": (
        lambda p: p.be.set(p.bf16, ramp()),
        aggml.LayoutMismatch,
        "bf16.*ml_dtypes.bfloat16",
    ),
    "f32 into q8_0": (
        lambda p: p.be.set(p.q8, ramp(32)),
        aggml.LayoutMismatch,
        "q8.*aggml.quantize",
    ),
    "bool into f32": (lambda p: p.be.set(p.t, np.zeros(N, bool)), aggml.LayoutMismatch, "bool"),
    "big endian": (lambda p: p.be.set(p.t, np.zeros(N, ">f4")), aggml.LayoutMismatch, "f4"),
    "strings": (lambda p: p.be.set(p.t, np.array(["a"] * N)), aggml.AggmlError, "tensor"),
    "objects": (lambda p: p.be.set(p.t, np.array([object()] * N)), aggml.AggmlError, "tensor"),
    "a structure": (lambda p: p.be.set(p.t, np.zeros(N, "f4,f4")), aggml.LayoutMismatch, "tensor"),
    # invalid arrays
    "None": (lambda p: p.be.set(p.t, None), aggml.AggmlError, r"Backend\.set"),
    "a list of floats": (lambda p: p.be.set(p.t, [1.0] * N), aggml.LayoutMismatch, "float64"),
    "a ragged list": (lambda p: p.be.set(p.t, [[1], [1, 2]]), aggml.AggmlError, "list"),
    "an object": (lambda p: p.be.set(p.t, object()), aggml.AggmlError, "Backend.set"),
    "a string": (lambda p: p.be.set(p.t, "x" * N), aggml.AggmlError, "Backend.set"),
    "a tensor": (lambda p: p.be.set(p.t, p.t), aggml.AggmlError, "Backend.set"),
    "a string of bytes at an offset": (
        lambda p: p.be.set(p.t, "abcd", offset=0),
        aggml.AggmlError,
        "Backend.set",
    ),
    "objects at an offset": (
        lambda p: p.be.set(p.t, np.array([object()]), offset=0),
        aggml.AggmlError,
        "Backend.set",
    ),
    # shapes
    "too short": (lambda p: p.be.set(p.t, ramp(N - 1)), aggml.LayoutMismatch, r"\(16,\).*\(15,\)"),
    "too long": (lambda p: p.be.set(p.t, ramp(N + 1)), aggml.LayoutMismatch, r"\(17,\)"),
    "a scalar": (lambda p: p.be.set(p.t, np.float32(1)), aggml.LayoutMismatch, r"\(\)"),
    "transposed": (
        lambda p: p.be.set(p.matrix, np.zeros((2, 8), np.float32)),
        aggml.LayoutMismatch,
        r"\(2, 8\)",
    ),
    "trailing ones": (
        lambda p: p.be.set(p.t, ramp().reshape(N, 1)),
        aggml.LayoutMismatch,
        r"\(16, 1\)",
    ),
    "five axes": (
        lambda p: p.be.set(p.t, np.zeros((2, 1, 1, 1, 8), np.float32)),
        aggml.LayoutMismatch,
        "tensor",
    ),
    "blocks of another length": (
        lambda p: p.be.set(p.q8, np.zeros(33, np.uint8)),
        aggml.LayoutMismatch,
        "33",
    ),
    # ranges
    "offset past the end": (
        lambda p: p.be.set(p.t, ramp(1), offset=64),
        aggml.OutOfBounds,
        "64.*68.*tensor.*64",
    ),
    "offset and size past the end": (
        lambda p: p.be.set(p.t, ramp(2), offset=60),
        aggml.OutOfBounds,
        "60.*68",
    ),
    "negative offset": (lambda p: p.be.set(p.t, ramp(1), offset=-4), aggml.OutOfBounds, "-4"),
    "negative size": (lambda p: p.be.set(p.t, ramp(1), offset=0, size=-4), aggml.OutOfBounds, "-4"),
    "huge offset": (
        lambda p: p.be.set(p.t, ramp(1), offset=1 << 63),
        aggml.OutOfBounds,
        str(1 << 63),
    ),
    "huge size": (lambda p: p.be.get(p.t, size=1 << 70), aggml.OutOfBounds, str(1 << 70)),
    "offset + size that wraps": (
        lambda p: p.be.get(p.t, offset=8, size=(1 << 64) - 8),
        aggml.OutOfBounds,
        "tensor",
    ),
    "size that is not the array's": (
        lambda p: p.be.set(p.t, ramp(2), offset=0, size=4),
        aggml.LayoutMismatch,
        "4.*8",
    ),
    "non-contiguous with offset": (
        lambda p: p.be.set(p.t, ramp()[::2], offset=0),
        aggml.LayoutMismatch,
        "contiguous",
    ),
    "offset of a wrong type": (
        lambda p: p.be.set(p.t, ramp(1), offset="4"),
        aggml.AggmlError,
        "offset",
    ),
    "offset that is no integer": (lambda p: p.be.get(p.t, offset=1.5), aggml.AggmlError, "1.5"),
    "size that is no integer": (lambda p: p.be.get(p.t, size=2.5), aggml.AggmlError, "2.5"),
    # get
    "read-only out": (lambda p: p.be.get(p.t, READ_ONLY), aggml.InvalidArgument, "read-only"),
    "read-only out of bytes": (
        lambda p: p.be.get(p.t, READ_ONLY, offset=0),
        aggml.InvalidArgument,
        "read-only",
    ),
    "out of another type": (
        lambda p: p.be.get(p.t, np.zeros(N)),
        aggml.LayoutMismatch,
        "float32.*float64",
    ),
    "out of another size": (
        lambda p: p.be.get(p.t, np.zeros(3, np.float32)),
        aggml.LayoutMismatch,
        r"\(3,\)",
    ),
    "out that is a list": (lambda p: p.be.get(p.t, [0.0] * N), aggml.InvalidHandle, "list"),
    "out of bytes of another size": (
        lambda p: p.be.get(p.t, np.zeros(3, np.uint8), offset=0, size=4),
        aggml.LayoutMismatch,
        "3.*4",
    ),
    "shape of another size": (
        lambda p: p.be.get(p.t, shape=(3, 5)),
        aggml.LayoutMismatch,
        r"\(3, 5\)",
    ),
    "a negative shape": (lambda p: p.be.get(p.t, shape=(-1, 4)), aggml.AggmlError, "-1"),
    "a shape of strings": (lambda p: p.be.get(p.t, shape=("a",)), aggml.AggmlError, "shape"),
    "strided out that cannot be viewed": (
        lambda p: p.be.get(
            p.matrix, np.zeros((4, 8), np.float32)[:, ::2].T[::2].reshape(-1)[::1][:16]
        ),
        aggml.LayoutMismatch,
        "matrix",
    ),
    # memset
    "memset 256": (lambda p: p.be.memset(p.t, 256), aggml.InvalidArgument, "256"),
    "memset -1": (lambda p: p.be.memset(p.t, -1), aggml.InvalidArgument, "-1"),
    "memset 1.5": (lambda p: p.be.memset(p.t, 1.5), aggml.AggmlError, "1.5"),
    "memset of a string": (lambda p: p.be.memset(p.t, "0"), aggml.AggmlError, "0"),
    "memset out of range": (
        lambda p: p.be.memset(p.t, 0, offset=60, size=8),
        aggml.OutOfBounds,
        "60.*68",
    ),
    # tensors
    "unplaced: set": (lambda p: p.be.set(p.unplaced, ramp()), aggml.NotAllocated, "unplaced"),
    "unplaced: get": (lambda p: p.be.get(p.unplaced), aggml.NotAllocated, "unplaced"),
    "unplaced: memset": (lambda p: p.be.memset(p.unplaced, 0), aggml.NotAllocated, "unplaced"),
    "unplaced: copy from": (lambda p: p.be.copy(p.unplaced, p.t), aggml.NotAllocated, "unplaced"),
    "unplaced: copy to": (lambda p: p.be.copy(p.t, p.unplaced), aggml.NotAllocated, "unplaced"),
    "unplaced: accept": (lambda p: p.be.accept(p.unplaced), aggml.NotAllocated, "unplaced"),
    "another device: set": (
        lambda p: p.be.set(p.other_side, ramp()),
        aggml.InvalidArgument,
        "elsewhere",
    ),
    "another device: get": (lambda p: p.be.get(p.other_side), aggml.InvalidArgument, "elsewhere"),
    "another device: memset": (
        lambda p: p.be.memset(p.other_side, 0),
        aggml.InvalidArgument,
        "elsewhere",
    ),
    "another device: copy without to": (
        lambda p: p.be.copy(p.t, p.other_side),
        aggml.InvalidArgument,
        "elsewhere",
    ),
    "another device: copy, sides mixed up": (
        lambda p: p.be.copy(p.other_side, p.t, to=p.elsewhere),
        aggml.InvalidArgument,
        "elsewhere",
    ),
    "copy between types": (lambda p: p.be.copy(p.t, p.bf16), aggml.LayoutMismatch, "tensor.*bf16"),
    "copy between shapes": (
        lambda p: p.be.copy(p.t, p.matrix),
        aggml.LayoutMismatch,
        "tensor.*matrix",
    ),
    "copy to what is no backend": (
        lambda p: p.be.copy(p.t, p.t, to="CPU"),
        aggml.InvalidHandle,
        "CPU",
    ),
    "no tensor: set": (lambda p: p.be.set("t", ramp()), aggml.InvalidHandle, "'t'"),
    "no tensor: get": (lambda p: p.be.get(None), aggml.InvalidHandle, "None"),
    "no tensor: copy": (lambda p: p.be.copy(3, p.t), aggml.InvalidHandle, "3"),
    "an array as a tensor": (lambda p: p.be.get(ramp(3)), aggml.InvalidHandle, "array"),
    # events and graphs
    "record of no event": (lambda p: p.be.record("now"), aggml.InvalidHandle, "now"),
    "wait for no event": (lambda p: p.be.wait(7), aggml.InvalidHandle, "7"),
    "no graph: compute": (lambda p: p.be.graph_compute(p.t), aggml.InvalidHandle, "tensor"),
    "no graph: alloc_graph": (lambda p: p.be.alloc_graph([p.t]), aggml.InvalidHandle, "tensor"),
    "no graph: run": (lambda p: p.be.run(None, {}, p.t), aggml.InvalidHandle, "None"),
    "run: bad input": (
        lambda p: p.be.run(p.s.graph, {p.s.a: ramp(3)}, p.s.y),
        aggml.LayoutMismatch,
        r"a.*\(3,\)",
    ),
    "run: input of a wrong type": (
        lambda p: p.be.run(p.s.graph, {p.s.a: np.zeros(N)}, p.s.y),
        aggml.LayoutMismatch,
        "float64",
    ),
    "run: unplaced input": (
        lambda p: p.be.run(p.s.graph, {p.unplaced: ramp()}, p.s.y),
        aggml.NotAllocated,
        "unplaced",
    ),
    "run: input of another device": (
        lambda p: p.be.run(p.s.graph, {p.other_side: ramp()}, p.s.y),
        aggml.InvalidArgument,
        "elsewhere",
    ),
    "run: unplaced output": (
        lambda p: p.be.run(p.s.graph, {}, p.unplaced),
        aggml.NotAllocated,
        "unplaced",
    ),
    "run: output that is none": (lambda p: p.be.run(p.s.graph, {}, [3]), aggml.InvalidHandle, "3"),
    "run: no outputs": (lambda p: p.be.run(p.s.graph, {}, None), aggml.InvalidHandle, "None"),
    "run: inputs that are no mapping": (
        lambda p: p.be.run(p.s.graph, [p.s.a], p.s.y),
        aggml.InvalidHandle,
        "a",
    ),
    "run: inputs by number": (
        lambda p: p.be.run(p.s.graph, {7: ramp()}, p.s.y),
        aggml.InvalidHandle,
        "7",
    ),
    "run: a name that no tensor has": (
        lambda p: p.be.run(p.s.graph, {"q": ramp()}, p.s.y),
        aggml.InvalidArgument,
        "'q'",
    ),
    # alloc
    "alloc of a tensor, not of a list": (
        lambda p: p.be.alloc(p.unplaced),
        aggml.InvalidHandle,
        "unplaced",
    ),
    "alloc of what is no tensor": (lambda p: p.be.alloc([3]), aggml.InvalidHandle, "3"),
    "alloc of a list of lists": (
        lambda p: p.be.alloc([[p.unplaced]]),
        aggml.InvalidHandle,
        "unplaced",
    ),
    "alloc twice": (lambda p: p.be.alloc([p.t]), aggml.AlreadyAllocated, "tensor"),
}


@pytest.mark.parametrize("what", TRANSFERS)
def test_it_is_refused_at_the_call(at: Place, what: str) -> None:
    call, error, message = TRANSFERS[what]
    with at.be.stream.hold():
        with pytest.raises(error, match=f"(?s){message}"):
            call(at)
        assert at.be.pending == 0
        assert at.elsewhere.pending == 0


@pytest.mark.parametrize(
    "what", ["unplaced: set", "negative offset", "run: bad input", "i64 into i32"]
)
def test_it_is_refused_inside_a_batch_as_well(at: Place, what: str) -> None:
    call, error, message = TRANSFERS[what]
    with at.be.batch():
        good = at.be.get(at.t)
        with pytest.raises(error, match=f"(?s){message}"):
            call(at)
    assert good.wait(60)
    assert np.array_equal(good.result(), ramp())
