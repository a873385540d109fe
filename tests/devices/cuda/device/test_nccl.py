"""Sums over several GPUs by NCCL: on the fake driver by a fake library that sums on the host.

On the fake driver this file runs in two processes of its own, with two GPUs and with eight. On a
machine with two GPUs or more and the wheel of NCCL it runs on all GPUs, without the faults. Not
here: how graphs are divided (tests/devices/meta), models on peer copies (test_several.py).
"""

from __future__ import annotations

import ctypes
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import numpy as np
import pytest
from devices.cuda.fake_driver import ON_FAKE, all_kernels, built

import aggml
from aggml import Graph, new_tensor, ops
from aggml.devices.cuda import CUDADevice, driver, nccl
from aggml.devices.meta import MetaDevice
from aggml.errors import DeviceError, Unsupported
from aggml.models import small

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from devices.cuda.fake_driver import Fake

    from aggml import Tensor

DOWN = "blk.0.ffn_down.weight"  # divided along the depth: each GPU computes a summand
IDS = [1, 40, 50, 60, 70]


class FakeNccl:
    """Controls and counters of the fake library."""

    def __init__(self) -> None:
        self.path = str(built("nccl.cpp", "libnccl.so.2"))
        self._library = ctypes.CDLL(self.path)
        self._library.fake_nccl_calls.restype = ctypes.c_long

    def fail(self, entry: str, result: int) -> None:
        self._library.fake_nccl_fail(entry.encode(), result)

    def fail_asynchronously(self, result: int) -> None:
        self._library.fake_nccl_asynchronous(result)

    def calls(self, name: str) -> int:
        """Calls of an entry; "sums": of all GPUs together; "refused": those it refused."""
        return int(self._library.fake_nccl_calls(name.encode()))

    @property
    def aborted(self) -> int:
        """How many communicators were aborted."""
        return self.calls("ncclCommAbort")


@pytest.fixture
def fake_nccl(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeNccl]:
    library = FakeNccl()
    monkeypatch.setenv("AGGML_CUDA_NCCL", library.path)
    yield library
    library.fail_asynchronously(0)
    assert fake.counter("wild") == 0


@pytest.fixture
def gpus(request: pytest.FixtureRequest) -> list[CUDADevice]:
    """All GPUs of this machine, as device objects that no other test uses."""
    if ON_FAKE:
        request.getfixturevalue("fake_nccl")
    try:
        n = driver.probe()
    except driver.Missing as missing:
        pytest.skip(str(missing))
    if n < 2 or nccl.library() is None:
        pytest.skip(f"{n} GPU, NCCL at {nccl.library()}: two and the wheel of NCCL are needed")
    kernels: Any = all_kernels()
    return [CUDADevice(driver.facts(i), kernels) for i in range(n)]


@pytest.fixture
def together(gpus: list[CUDADevice]) -> Iterator[aggml.Backend]:
    """A backend of all these GPUs as one device."""
    backend = MetaDevice(gpus).backend()
    yield backend
    backend.close()
    assert backend.synchronize().wait(60), f"{backend!r} has not finished its work within 60 s"


Values = dict["Tensor", Any]


def product(rows: int = 96, columns: int = 3) -> tuple[Tensor, Values, np.ndarray]:
    """A product whose depth is divided, its operands, and its value."""
    w, x = new_tensor("f32", ne=(256, rows), name=DOWN), new_tensor("f32", ne=(256, columns))
    rng = np.random.default_rng(rows)
    values = {t: rng.normal(size=t.shape).astype(np.float32) for t in (w, x)}
    exact = values[x].astype(np.float64) @ values[w].astype(np.float64).T
    return ops.relu(ops.mul_mat(w, x)), values, np.maximum(exact, 0)


def check(found: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=2e-4)


async def test_a_sum_is_one_call_of_all_gpus(
    together: aggml.Backend, fake: Fake, fake_nccl: FakeNccl
) -> None:
    y, values, expected = product()
    graph = Graph(y)
    together.alloc_graph(graph)
    fake.reset_counts()
    sums, refused = fake_nccl.calls("sums"), fake_nccl.calls("refused")
    # launched, captured, as graphs: sums are not part of a graph but come between two graphs
    for _ in range(4):
        (found,) = await together.run(graph, values, [y])
        check(found, expected)
    assert fake_nccl.calls("sums") - sums == 4
    assert fake_nccl.calls("refused") == refused
    assert fake.counter("peer copies") == 0


async def test_without_nccl_summands_are_sent(
    gpus: list[CUDADevice], fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without NCCL the summands are copied. With two GPUs even the bits agree: a + b is b + a."""
    found = []
    for setting in ("0", None):
        y, values, expected = product()
        with monkeypatch.context() as patch:
            if setting is not None:
                patch.setenv("AGGML_CUDA_NCCL", setting)
            fake.reset_counts()
            async with MetaDevice(gpus).backend() as backend:
                graph = Graph(y)
                backend.alloc_graph(graph)
                found += await backend.run(graph, values, [y])
            sent = fake.counter("peer copies")
            assert sent == (0 if setting is None else len(gpus) * (len(gpus) - 1))
        check(found[-1], expected)
    if len(gpus) == 2:
        assert (found[0] == found[1]).all()


@pytest.mark.parametrize("kind", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("n", [1, 7, 4096, 33333])
async def test_types_and_sizes(gpus: list[CUDADevice], kind: str, n: int) -> None:
    backends = [gpu.backend() for gpu in gpus]
    sums = backends[0]._sums(backends)
    assert sums is not None
    rng = np.random.default_rng(n)
    sources, targets, total = [], [], np.zeros(n)
    for i, backend in enumerate(backends):
        source, target = new_tensor(kind, ne=(n,)), new_tensor(kind, ne=(n,))
        backend.alloc([source, target])
        dtype = source.dtype.numpy
        assert dtype is not None
        assert sums.takes(source)
        # sums of these numbers are exact in all types
        x = (rng.integers(-8, 9, n) / 8 + i).astype(dtype)
        backend.set(source, x)
        total += x.astype(np.float64)
        sources.append(source)
        targets.append(target)
    plans = sums.plan(sources, targets)
    for _ in range(3):
        with ExitStack() as stack:
            for other in backends[1:]:
                stack.enter_context(backends[0].stream.sharing(other.stream))
            sums.run(plans)
    for backend, target in zip(backends, targets, strict=True):
        found = (await backend.get(target)).astype(np.float64).reshape(-1)
        np.testing.assert_allclose(found, total, rtol=0 if kind != "bf16" else 2**-7, atol=0)
    for backend in backends:
        await backend.aclose()


async def test_a_llama(
    gpus: list[CUDADevice], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"LAYERS": 2, "WIDTH": 128, "INNER": 256, "KV_HEADS": 8}.items():
        monkeypatch.setattr(small, name, value)
    path = small.write_small(tmp_path / "small.gguf")

    async def told(device: aggml.Device) -> tuple[np.ndarray, list[int]]:
        async with (
            device.backend() as backend,
            await aggml.models.load(path, backend, ctx=256, cache="f32") as model,
        ):
            logits = await model.logits(IDS)
            return logits, [t.id async for t in model.generate(IDS, max_tokens=4)]

    expected, tokens = await told(gpus[0])
    found, same = await told(MetaDevice(gpus))
    assert np.abs(found - expected).max() <= 2e-3
    assert same == tokens


async def test_two_backends_at_a_time(gpus: list[CUDADevice], fake_nccl: FakeNccl) -> None:
    """They share communicators; the sums of both are enqueued in the same order on all GPUs."""
    refused, made = fake_nccl.calls("refused"), fake_nccl.calls("ncclCommInitAll")
    device = MetaDevice(gpus)

    async def work(rows: int) -> None:
        y, values, expected = product(rows)
        async with device.backend() as backend:
            graph = Graph(y)
            backend.alloc_graph(graph)
            for _ in range(10):
                (found,) = await backend.run(graph, values, [y])
                check(found, expected)

    kept = device.backend()  # keeps the communicators alive
    async with anyio.create_task_group() as group:
        group.start_soon(work, 40)
        group.start_soon(work, 96)
    await kept.aclose()
    assert fake_nccl.calls("refused") == refused
    assert fake_nccl.calls("ncclCommInitAll") == made + 1


# -- failures


async def runs_again(gpus: list[CUDADevice]) -> None:
    """A newly opened backend can sum again."""
    y, values, expected = product()
    async with MetaDevice(gpus).backend() as backend:
        graph = Graph(y)
        backend.alloc_graph(graph)
        (found,) = await backend.run(graph, values, [y])
        check(found, expected)


@pytest.mark.parametrize(
    ("entry", "result", "text"),
    [
        ("ncclCommInitAll", 2, r"ncclCommInitAll: unhandled system error \(2\) a test has"),
        ("ncclGroupStart", 3, r"ncclGroupStart: internal error \(3\)"),
        ("ncclAllReduce", 1, r"ncclAllReduce: unhandled cuda error \(1\)"),
        ("ncclGroupEnd", 5, r"ncclGroupEnd: invalid usage \(5\)"),
    ],
)
async def test_results_of_nccl_are_errors(
    gpus: list[CUDADevice],
    together: aggml.Backend,
    fake_nccl: FakeNccl,
    entry: str,
    result: int,
    text: str,
) -> None:
    y, values, _ = product()
    graph = Graph(y)
    together.alloc_graph(graph)
    aborted = fake_nccl.aborted
    fake_nccl.fail(entry, result)
    with anyio.fail_after(60), pytest.raises(DeviceError, match=text):
        await together.run(graph, values, [y])
    assert fake_nccl.aborted == aborted + (0 if entry == "ncclCommInitAll" else len(gpus))
    with anyio.fail_after(60), pytest.raises(DeviceError, match=text):
        await together.run(graph, values, [y])
    with anyio.fail_after(60):
        await runs_again(gpus)


@pytest.mark.parametrize("why", ["no library", "no communicators"])
async def test_prepare_falls_back_to_copies(
    gpus: list[CUDADevice],
    fake_nccl: FakeNccl,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    why: str,
) -> None:
    if why == "no library":
        monkeypatch.setenv("AGGML_CUDA_NCCL", str(tmp_path / "libnccl.so.2"))
    else:
        fake_nccl.fail("ncclCommInitAll", 2)
    y, values, expected = product()
    sums = fake_nccl.calls("sums")
    async with MetaDevice(gpus).backend() as backend:
        graph = Graph(y)
        await backend.prepare(graph)
        assert "NCCL cannot be used for sums" in caplog.text
        (found,) = await backend.run(graph, values, [y])
        check(found, expected)
    assert fake_nccl.calls("sums") == sums


async def test_a_library_that_cannot_be_loaded_is_told(
    gpus: list[CUDADevice], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGGML_CUDA_NCCL", str(tmp_path / "libnccl.so.2"))
    y, values, _ = product()
    backend = MetaDevice(gpus).backend()
    graph = Graph(y)
    backend.alloc_graph(graph)
    with anyio.fail_after(60), pytest.raises(Unsupported, match="AGGML_CUDA_NCCL=0"):
        await backend.run(graph, values, [y])
    await backend.aclose()


async def test_a_gpu_that_fails_before_a_sum_keeps_nobody_waiting(
    together: aggml.Backend, fake: Fake, fake_nccl: FakeNccl
) -> None:
    y, values, expected = product()
    graph = Graph(y)
    together.alloc_graph(graph)
    check((await together.run(graph, values, [y]))[0], expected)
    sums = fake_nccl.calls("sums")
    fake.fail("cuGraphInstantiateWithFlags", 2)
    fake.fail("cuLaunchKernel", 701)
    with anyio.fail_after(60), pytest.raises(aggml.AggmlError):
        await together.run(graph, values, [y])
    assert fake_nccl.calls("sums") == sums
    fake.heal()
    with anyio.fail_after(60):
        check((await together.run(graph, values, [y]))[0], expected)


def _lose_one(fake: Fake, fake_nccl: FakeNccl) -> None:
    fake.break_device(700, device=1)


def _fail_beside(fake: Fake, fake_nccl: FakeNccl) -> None:
    fake_nccl.fail_asynchronously(6)


@pytest.mark.parametrize(
    ("happens", "text"),
    [(_lose_one, "ILLEGAL_ADDRESS"), (_fail_beside, r"ncclAllReduce: remote process .* \(6\)")],
)
async def test_sums_under_way_are_aborted(
    gpus: list[CUDADevice],
    together: aggml.Backend,
    fake: Fake,
    fake_nccl: FakeNccl,
    happens: Callable[[Fake, FakeNccl], None],
    text: str,
) -> None:
    """A kernel of NCCL would wait for ever for the GPU that does not take part."""
    y, values, expected = product()
    graph = Graph(y)
    together.alloc_graph(graph)
    check((await together.run(graph, values, [y]))[0], expected)
    sums, aborted = fake_nccl.calls("sums"), fake_nccl.aborted
    with fake.held():
        future = together.graph_compute(graph)
        while fake_nccl.calls("sums") == sums:
            await anyio.lowlevel.checkpoint()
        happens(fake, fake_nccl)
    with anyio.fail_after(60), pytest.raises(DeviceError, match=text):
        await future
    assert fake_nccl.aborted == aborted + len(gpus)
    fake_nccl.fail_asynchronously(0)
