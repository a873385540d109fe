"""Pages of a mapped file are given back when the CPU has packed copies of the weights in them.

Not here: reading and mapping (test_reading.py), packed copies (tests/ops).
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from gguf_by_hand import entry, gguf_file

import aggml
from aggml import DType, Graph, ops
from aggml.gguf import GGUFFile
from aggml.native import _native

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(sys.platform != "linux", reason="/proc/self/smaps is of Linux"),
]

K, ROWS = 1024, 512
#: With AVX2 weights of q8_0 are packed, with tiles those of f32.
CASES = [(DType.Q8_0, "avx2"), (DType.F32, None)]


def resident(path: Path) -> int:
    """Bytes of the mapping of a file that are in the memory of this process."""
    inside, total = False, 0
    with open("/proc/self/smaps", encoding="utf-8") as lines:
        for line in lines:
            if "-" in line.split(" ", 1)[0]:
                inside = line.rstrip().endswith(str(path))
            elif inside and line.startswith("Rss:"):
                total += int(line.split()[1]) * 1024
    return total


def weights(kind: DType, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Weights as they are stored, and their values, rows first."""
    x = np.random.default_rng(seed).standard_normal((ROWS, K), dtype=np.float32)
    if kind is DType.F32:
        return x, x
    blocks = aggml.quantize(x, kind)
    return blocks, aggml.dequantize(blocks, kind, ne=(K, ROWS)).reshape(ROWS, K)


def write(path: Path, kind: DType, stored: np.ndarray) -> None:
    head = gguf_file((), (entry("w", (K, ROWS), kind=kind.value),))
    path.write_bytes(head + bytes(-len(head) % 32) + stored.tobytes())


def backend(isa: str | None) -> aggml.Backend:
    device: Any = aggml.get_device("CPU")  # `isa` is an option of the CPU alone
    try:
        made: aggml.Backend = device.backend(n_threads=2, **({"isa": isa} if isa else {}))
        return made
    except aggml.AggmlError as error:
        pytest.skip(str(error))


def need_packed(w: aggml.Tensor) -> None:
    assert w.placement is not None
    if not _native.packed_of(w.placement.storage):
        pytest.skip(f"this processor does not pack {w.dtype.name}")


async def products(be: aggml.Backend, w: aggml.Tensor, x: np.ndarray) -> np.ndarray:
    b = aggml.new_tensor("f32", ne=(K, len(x)))
    y = ops.mul_mat(w, b)
    graph = Graph(y)
    with be.alloc([b]), be.alloc_graph(graph):
        return np.asarray(await be.run(graph, {b: x}, y)).reshape(len(x), ROWS)


@pytest.mark.long(cases=1)
@pytest.mark.parametrize(("kind", "isa"), CASES)
async def test_what_was_packed_is_not_resident_and_still_right(
    tmp_path: Path, kind: DType, isa: str | None
) -> None:
    path = tmp_path / "weights.gguf"
    stored, values = weights(kind, 5)
    write(path, kind, stored)
    x = np.random.default_rng(6).standard_normal((40, K), dtype=np.float32)
    with GGUFFile.open(path) as file, backend(isa) as be:
        w = file.tensors["w"]
        with file.map(be.device):
            raw = np.asarray(await be.get(w)).tobytes()  # all pages are resident now
            full = resident(path)
            assert full >= w.nbytes
            first = await products(be, w, x)
            need_packed(w)
            assert resident(path) <= full - w.nbytes + 2 * 4096
            np.testing.assert_allclose(first, x @ values.T, atol=2.0, rtol=2e-2)
            assert np.asarray(await be.get(w)).tobytes() == raw  # from the file again
            assert np.array_equal(await products(be, w, x), first)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(("kind", "isa"), CASES)
async def test_what_was_written_to_a_mapped_weight_stays(
    tmp_path: Path, kind: DType, isa: str | None, when: str
) -> None:
    path = tmp_path / "weights.gguf"
    write(path, kind, weights(kind, 5)[0])
    stored, values = weights(kind, 7)
    x = np.random.default_rng(8).standard_normal((40, K), dtype=np.float32)
    with GGUFFile.open(path) as file, backend(isa) as be:
        w = file.tensors["w"]
        with file.map(be.device):
            if when == "after":
                await products(be, w, x)
            await be.set(w, stored)
            for _ in range(2):
                found = await products(be, w, x)
                np.testing.assert_allclose(found, x @ values.T, atol=2.0, rtol=2e-2)
                assert np.asarray(await be.get(w)).tobytes() == stored.tobytes()
            need_packed(w)
