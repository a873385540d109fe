"""Large products by cuBLASLt: on the fake driver by a fake library that multiplies on the host.

Layouts, batches, broadcasting, captured graphs; statuses as exceptions; kernels if there is no
library. On a GPU only the numbers are compared, with the library if it is installed.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from corpus_loader import nmse
from devices.cuda.fake_driver import ON_FAKE, HostKernels, built
from ops.computing import run as run_on

import aggml
from aggml import AggmlError, Graph, new_tensor, ops
from aggml.devices.cuda import CUDADevice, driver
from aggml.devices.cuda.kernels import blas
from aggml.devices.cuda.lowering import CudaKernels
from aggml.errors import AllocFailed, DeviceError, Unsupported

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from devices.cuda.fake_driver import Fake
    from numpy.typing import NDArray

    from aggml import Tensor


class FakeBlas:
    """Controls and counters of the fake library."""

    def __init__(self) -> None:
        self.path = str(built("cublaslt.cpp", "libcublasLt.so.13"))
        self._library = ctypes.CDLL(self.path)
        self._library.fake_blas_calls.restype = ctypes.c_long

    def fail(self, entry: str, status: int) -> None:
        self._library.fake_blas_fail(entry.encode(), status)

    def wants(self, size: int) -> None:
        self._library.fake_blas_wants(ctypes.c_size_t(size))

    def calls(self, entry: str = "cublasLtMatmul") -> int:
        return int(self._library.fake_blas_calls(entry.encode()))


@pytest.fixture
def fake_blas(fake: Fake) -> Iterator[FakeBlas]:
    library = FakeBlas()
    yield library
    library.wants(1 << 20)


@pytest.fixture
def kernels(request: pytest.FixtureRequest) -> Any:
    if not ON_FAKE:
        return CudaKernels(blas=blas.library())
    return HostKernels(blas=request.getfixturevalue("fake_blas").path)


@pytest.fixture(autouse=True)
def _small_ones_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blas, "_LEAST", 1 << 12)
    monkeypatch.setattr(blas, "_COLUMNS", 3)
    monkeypatch.setattr(blas, "_UNPACKED_COLUMNS", 3)
    monkeypatch.setattr(blas, "_UNPACKED", 0)  # unpack 64 rows at a time, the least possible


Values = dict["Tensor", "NDArray[Any]"]


def leaf(values: Values, kind: str, *ne: int, seed: int = 0) -> Tensor:
    tensor = new_tensor(kind, ne=ne)
    x = np.random.default_rng(seed + 7).normal(size=tensor.ne[::-1]).astype(np.float32)
    if tensor.dtype.is_quantized:
        values[tensor] = aggml.quantize(x.reshape(tensor.shape), tensor.dtype)
        return tensor
    assert tensor.dtype.numpy is not None
    values[tensor] = x.astype(tensor.dtype.numpy).reshape(tensor.shape)
    return tensor


#: name: (type of a, type of b, ne of a, ne of b, how the node uses them)
CASES: dict[str, tuple[str, str, tuple[int, ...], tuple[int, ...], str]] = {
    "f32": ("f32", "f32", (33, 20), (33, 17), "plain"),
    "f16": ("f16", "f16", (64, 20), (64, 17), "plain"),
    "bf16": ("bf16", "bf16", (64, 20), (64, 17), "plain"),
    "f16 by f32": ("f16", "f32", (64, 20), (64, 17), "plain"),
    "bf16 by f32": ("bf16", "f32", (48, 20), (48, 17), "plain"),
    "batches": ("f16", "f32", (32, 12, 3, 2), (32, 9, 3, 2), "plain"),
    "one matrix for all": ("bf16", "f32", (32, 12), (32, 9, 3, 2), "plain"),
    "groups of heads": ("f32", "f32", (32, 12, 2, 2), (32, 9, 6, 2), "plain"),
    "groups in both": ("f16", "f32", (32, 12, 2, 2), (32, 9, 4, 6), "plain"),
    "outer alone": ("f16", "f16", (32, 12, 1, 2), (32, 9, 1, 4), "plain"),
    "columns apart": ("f32", "f32", (64, 20, 2), (64, 17, 2), "part of rows"),
    "heads in between": ("f16", "f16", (32, 3, 12), (32, 3, 16), "permuted"),
    "one row apart": ("f32", "f32", (64, 20), (64, 16), "odd offset"),
    "gaps that repeat": ("f32", "f32", (32, 12, 1, 1), (32, 9, 4, 3), "every other"),
}


def product(name: str, values: Values) -> Tensor:
    kind_a, kind_b, ne_a, ne_b, how = CASES[name]
    a, b = leaf(values, kind_a, *ne_a), leaf(values, kind_b, *ne_b, seed=1)
    if how == "part of rows":
        a, b = (ops.view_3d(t, 40, *t.ne[1:3], t.nb[1], t.nb[2], 8 * t.nb[0]) for t in (a, b))
    elif how == "permuted":
        a, b = (ops.permute(t, 0, 2, 1, 3) for t in (a, b))
    elif how == "odd offset":
        a, b = (ops.view_2d(t, 63, t.ne[1], t.nb[1], 4) for t in (a, b))
    elif how == "every other":
        b = ops.view_4d(b, 32, 9, 2, 3, b.nb[1], 2 * b.nb[2], b.nb[3], 0)
    return ops.mul_mat(a, b)


def on_cpu(cpu: aggml.Backend, node: Tensor, values: Values) -> NDArray[Any]:
    """The CPU's product of cuBLASLt's operands: if one is bf16, both are rounded to bf16."""
    for bf16 in [t.dtype.numpy for t in values if t.dtype is aggml.DType.BF16][:1]:
        values = {t: x.astype(bf16).astype(x.dtype) for t, x in values.items()}
    return run_on(cpu, node, values)


async def run(device: CUDADevice, node: Tensor, values: Values, times: int = 1) -> NDArray[Any]:
    graph = Graph(node)
    async with device.backend() as be:
        be.alloc_graph(graph)
        results = [await be.run(graph, values, node) for _ in range(times)]
        if graph.memory is not None:
            graph.memory.close()
    return results[-1]


@pytest.fixture(scope="module")
def cpu() -> Iterator[aggml.Backend]:
    with aggml.get_device("CPU").backend() as backend:
        yield backend


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("name", CASES)
async def test_products_agree_with_the_cpu(
    device: CUDADevice, cpu: aggml.Backend, name: str, request: pytest.FixtureRequest
) -> None:
    values: Values = {}
    node = product(name, values)
    assert blas.fits(node)
    before = request.getfixturevalue("fake_blas").calls() if ON_FAKE else 0
    result = await run(device, node, values, times=3)  # launched, captured, launched as a graph
    expected = on_cpu(cpu, node, values)
    assert nmse(expected.astype(np.float64), result.astype(np.float64)) <= 1e-6
    if ON_FAKE:
        assert device.native.blas_problem == ""
        calls = request.getfixturevalue("fake_blas").calls() - before
        assert calls >= len(blas._split(node))


QUANTIZED = ("q4_0", "q8_0", "mxfp4", "q4_K", "q6_K", "iq4_xs")


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("kind", QUANTIZED)
@pytest.mark.parametrize("ne", [(256, 150, 17), (512, 64, 6, 3)])
async def test_quantized_matrices_are_unpacked(
    device: CUDADevice, kind: str, ne: tuple[int, ...], request: pytest.FixtureRequest
) -> None:
    """150 rows take three calls. The error is that of bf16, 2 ** -9 for each operand."""
    values: Values = {}
    a = leaf(values, kind, *ne[:2])
    b = leaf(values, "f32", ne[0], *ne[2:], seed=1)
    node = ops.mul_mat(a, b)
    assert blas.fits(node)
    before = request.getfixturevalue("fake_blas").calls() if ON_FAKE else 0
    result = await run(device, node, values, times=3)
    weights = aggml.dequantize(values[a], a.dtype, ne=a.ne).reshape(ne[1], ne[0])
    exact = values[b].astype(np.float64) @ weights.astype(np.float64).T
    assert nmse(exact, result.astype(np.float64)) <= 1e-5
    if ON_FAKE:
        calls = request.getfixturevalue("fake_blas").calls() - before
        assert calls >= -(-ne[1] // 64)


def test_which_quantized_products_are_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    wide = new_tensor("f32", ne=(1024, 256))

    def product_of(kind: str, b: Tensor) -> Tensor:
        return ops.mul_mat(new_tensor(kind, ne=(1024, 1024)), b)

    found = product_of("q4_K", wide)
    assert blas.fits(found)
    assert blas.scratch(found) == (32 << 20) + 2 * 1024 * 256 + 2 * 1024 * 1024
    large = ops.mul_mat(new_tensor("q4_K", ne=(4096, 32768)), new_tensor("f32", ne=(4096, 256)))
    assert blas.scratch(large) == (32 << 20) + 2 * 4096 * 256 + (32 << 20)
    assert not blas.fits(product_of("q4_K", new_tensor("f32", ne=(1024, 255))))
    precise = product_of("q4_K", wide)
    ops.mul_mat_set_prec(precise, "f32")
    assert not blas.fits(precise)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("tf32", [False, True])
async def test_tf32_is_for_who_asks(
    cpu: aggml.Backend, request: pytest.FixtureRequest, tf32: bool
) -> None:
    if ON_FAKE:
        made: Any = HostKernels(blas=request.getfixturevalue("fake_blas").path, tf32=tf32)
    else:
        request.getfixturevalue("device")  # skips if it is not installed
        made = CudaKernels(blas=blas.library(), tf32=tf32)
    device = CUDADevice(driver.facts(0), made)
    values: Values = {}
    node = product("f32", values)
    result = await run(device, node, values)
    error = nmse(on_cpu(cpu, node, values).astype(np.float64), result.astype(np.float64))
    assert error <= (1e-6 if tf32 else 1e-12)
    if ON_FAKE:
        assert (error > 1e-9) is tf32


async def test_a_captured_product_moves_with_scratch(
    device: CUDADevice, cpu: aggml.Backend, fake_blas: FakeBlas, fake: Fake
) -> None:
    values: Values = {}
    a, b = leaf(values, "bf16", 64, 20), leaf(values, "f32", 64, 17, seed=1)
    # both the operand and the result are in scratch
    node = ops.scale(ops.mul_mat(a, ops.scale(b, 2.0)), 0.5)
    graph = Graph(node)
    async with device.backend() as be:
        memory = be.alloc_graph(graph)
        results = []
        for i in range(6):
            if i == 3:
                await be.reserve(256 << 20)
            results.append(await be.run(graph, values, node))
        memory.close()
        assert fake.counter("graph launches") == 5
        assert fake.counter("graph updates") == 1
    assert fake.counter("wild") == 0
    assert all((result == results[0]).all() for result in results)
    expected = on_cpu(cpu, node, values)
    assert nmse(expected.astype(np.float64), results[0].astype(np.float64)) <= 1e-6


async def test_an_algorithm_is_asked_for_once_per_shape(
    device: CUDADevice, fake_blas: FakeBlas
) -> None:
    before = fake_blas.calls("cublasLtMatmulAlgoGetHeuristic")
    for seed in range(3):
        values: Values = {}
        a, b = (
            leaf(values, "f16", 64, 20, seed=seed),
            leaf(values, "f16", 64, 17, seed=seed),
        )
        await run(device, ops.mul_mat(a, b), values)
    assert fake_blas.calls("cublasLtMatmulAlgoGetHeuristic") == before + 1


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize(
    ("status", "kind", "name"),
    [
        (1, DeviceError, "NOT_INITIALIZED"),
        (3, AllocFailed, "ALLOC_FAILED"),
        (7, DeviceError, "INVALID_VALUE"),
        (8, DeviceError, "ARCH_MISMATCH"),
        (11, DeviceError, "MAPPING_ERROR"),
        (13, DeviceError, "EXECUTION_FAILED"),
        (14, DeviceError, "INTERNAL_ERROR"),
        (15, Unsupported, "NOT_SUPPORTED"),
        (16, DeviceError, "LICENSE_ERROR"),
        (99, DeviceError, "unknown"),
    ],
)
async def test_statuses_are_exceptions(
    device: CUDADevice,
    fake_blas: FakeBlas,
    cpu: aggml.Backend,
    status: int,
    kind: type[AggmlError],
    name: str,
) -> None:
    values: Values = {}
    node = product("f16 by f32", values).set_name("y")
    fake_blas.fail("cublasLtMatmul", status)
    with pytest.raises(kind, match=rf"cublasLtMatmul: .*{name}.* \({status}\)") as caught:
        await run(device, node, values)
    assert type(caught.value) is kind
    assert caught.value.device == "CUDA0"
    assert caught.value.tensor == "y"
    values = {}
    node = product("f16 by f32", values)
    result = await run(device, node, values)  # the device still works
    assert nmse(on_cpu(cpu, node, values), result) <= 1e-6


ENTRIES = (
    "cublasLtMatmulDescCreate",
    "cublasLtMatmulDescSetAttribute",
    "cublasLtMatrixLayoutCreate",
    "cublasLtMatrixLayoutSetAttribute",
    "cublasLtMatmulPreferenceCreate",
    "cublasLtMatmulPreferenceSetAttribute",
    "cublasLtMatmulAlgoGetHeuristic",
)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("entry", ENTRIES)
async def test_each_call_may_fail(
    device: CUDADevice, fake_blas: FakeBlas, cpu: aggml.Backend, entry: str
) -> None:
    values: Values = {}
    node = product("batches", values)
    fake_blas.fail(entry, 14)
    with pytest.raises(DeviceError, match="INTERNAL_ERROR"):
        await run(device, node, values)
    values = {}
    node = product("batches", values)
    result = await run(device, node, values)
    assert nmse(on_cpu(cpu, node, values), result) <= 1e-6


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("why", ["no algorithm", "no library", "no handle", "not a library"])
async def test_kernels_stand_in(
    fake_blas: FakeBlas, cpu: aggml.Backend, why: str, tmp_path: Path
) -> None:
    path = {"no library": str(tmp_path / "none.so"), "not a library": str(built("simple.c"))}
    kernels = HostKernels(blas=path.get(why, fake_blas.path))
    device = CUDADevice(driver.facts(0), kernels)
    # the library was not needed yet, so it was not loaded
    assert device.native.blas_problem is None
    if why == "no algorithm":
        fake_blas.wants(1 << 30)
    if why == "no handle":
        fake_blas.fail("cublasLtCreate", 1)
    values: Values = {}
    node = product("f16 by f32", values)
    before = fake_blas.calls()
    result = await run(device, node, values, times=3)
    expected = on_cpu(cpu, node, values)
    assert nmse(expected, result) <= 1e-5
    assert fake_blas.calls() == before
    told = {
        "no algorithm": "",
        "no library": "cannot be loaded",
        "no handle": "cublasLtCreate: CUBLAS_STATUS_NOT_INITIALIZED (1)",
        "not a library": "has no cublasLtMatmul",
    }
    problem = device.native.blas_problem
    assert problem is not None
    assert problem.startswith(told[why])
    assert bool(problem) == bool(told[why])


async def test_the_loop_never_calls_the_library(
    device: CUDADevice, fake: Fake, fake_blas: FakeBlas
) -> None:
    values: Values = {}
    node = product("f32", values)
    graph = Graph(node)
    async with device.backend() as be:
        await be.prepare(graph)
        with fake.marked(), fake.held():
            pending = be.run(graph, values, node)
            assert not pending.done()
        await pending
        assert fake.marked_calls("cuLaunchHostFunc") == 0


def test_what_is_left_to_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    values: Values = {}
    large = ops.mul_mat(new_tensor("f16", ne=(1024, 1024)), new_tensor("f32", ne=(1024, 64)))
    assert blas.fits(large)
    few = ops.mul_mat(new_tensor("f16", ne=(4096, 4096)), new_tensor("f32", ne=(4096, 8)))
    quantized = ops.mul_mat(new_tensor("q8_0", ne=(1024, 1024)), new_tensor("f32", ne=(1024, 64)))
    small = product("f32", values)
    for node in (few, quantized, small):
        assert not blas.fits(node)
        assert CudaKernels(blas="somewhere").scratch(node) == CudaKernels().scratch(node)
    assert CudaKernels(blas="somewhere").scratch(large) == (32 << 20) + 2 * 1024 * 64
    # the depth is split into two parts, whose sums need this scratch
    assert CudaKernels().scratch(large) == 2 * 4 * 1024 * 64
