"""Large products by cuBLASLt, if it is installed: which products, and by which calls.

Here: `fits`, the calls, the kernels that run if the library cannot, the place of the library.
Matrices of a quantized type are unpacked to bf16 first, as many rows at a time as an L2 cache
holds. The library is not loaded here: the issuing thread loads it (native/cuda/blas.c), and runs
the kernels if that fails or if the library has no algorithm. Not here: the kernels (mul_mat.py,
unpack_bf16.cu).
"""

from __future__ import annotations

import functools
import importlib.util
import os
import struct
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from aggml.devices.cuda.kernels import cpy
from aggml.devices.cuda.launch import WITH_BLAS, WITHOUT_BLAS, Launch
from aggml.devices.cuda.pack import ceil
from aggml.dtype import DType

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aggml.devices.cuda.pack import NodeSite, Operand
    from aggml.tensor import Tensor

__all__ = ["fits", "instead", "library", "scratch"]

_TYPES = {DType.F32: 0, DType.F16: 1, DType.BF16: 2}
_TF32 = 3  # f32 whose mantissas the library may cut to 10 bits
_GEMM = struct.Struct("<4Q15q")
#: Bytes of scratch memory for the library; NVIDIA advises 32 MiB for sm_90 and 4 MiB before.
_WORKSPACE = 32 << 20
_PRECISE = 10  # GGML_PREC_F32: set in a product that must be computed in f32
#: Multiplications and columns from which the library is used. Not measured on a GPU yet: smaller
#: products fill few multiprocessors with tiles of 64, and launching takes most of their time.
_LEAST = 1 << 25
_COLUMNS = 32
#: Columns from which a quantized matrix is unpacked for the library. By count, not measured:
#: unpacking moves 4 bytes an element through L2, which takes as long as the tensor cores of an H100
#: take for some 100 columns.
_UNPACKED_COLUMNS = 256
#: Bytes of bf16 that are unpacked at a time: an H100 has 50 MiB of L2.
_UNPACKED = 32 << 20
_CALLS = 64  # most calls for a node whose matrices, because they repeat, are not evenly spaced


class _Product(NamedTuple):
    """One call: offsets of the first matrices in bytes, how many products, and their distances.

    Offsets and distances of ``a`` are those of the matrix that the library reads: if ``a`` is
    quantized, of its bf16 copy without gaps.
    """

    a: int
    b: int
    d: int
    n: int
    times: int
    a_step: int
    b_step: int
    d_step: int


@functools.cache
def library() -> str | None:
    """The path of libcublasLt, in NVIDIA's wheel or in a toolkit; None if it is not installed."""
    spec = importlib.util.find_spec("nvidia")
    folders = [Path(f) / "cu13" / "lib" for f in (spec and spec.submodule_search_locations) or ()]
    toolkit = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH") or "/usr/local/cuda"
    for folder in (*folders, Path(toolkit) / "lib64"):
        for path in sorted(folder.glob("libcublasLt.so.13*")):
            return str(path)
    return None


def _operands(node: Tensor) -> tuple[Tensor, Tensor]:
    a, b = node.src[0], node.src[1]
    assert a is not None
    assert b is not None
    return a, b


def _columns(t: Tensor) -> bool:
    """Whether rows are contiguous, at distances that the library takes."""
    size = t.dtype.type_size
    return (
        t.nb[0] == size
        and all(nb % size == 0 for n, nb in zip(t.ne[1:], t.nb[1:], strict=True) if n > 1)
        and (t.ne[1] == 1 or t.nb[1] >= t.ne[0] * size)
    )


def fits(node: Tensor) -> bool:
    """Whether the library should compute the product."""
    if node.op != "mul_mat" or node.is_empty:
        return False
    a, b = _operands(node)
    if a.dtype.is_quantized:
        return _fits_unpacked(node)
    if a.dtype not in _TYPES or b.dtype not in (DType.F32, a.dtype):
        return False
    if not _columns(a) or (a.dtype is b.dtype and not _columns(b)):
        return False
    m, n = node.ne[0], node.ne[1]
    work = a.ne[0] * node.nelements
    small = n * node.ne[2] * node.ne[3] < _COLUMNS or n == 1 or m < _COLUMNS or work < _LEAST
    return not small and max(*node.ne, a.ne[0]) < 1 << 31 and len(_split(node)) <= _CALLS


def _fits_unpacked(node: Tensor) -> bool:
    """Whether a quantized matrix should be unpacked for the library.

    There must be one matrix and many columns. Products that must be computed in f32 are left to the
    kernels.
    """
    a, b = _operands(node)
    columns, m = node.nelements // node.ne[0], node.ne[0]
    exact = struct.unpack_from("<i", node.op_params)[0] == _PRECISE
    alone = a.ne[2] * a.ne[3] == 1 and a.nb[0] == a.dtype.type_size
    many = columns >= _UNPACKED_COLUMNS and m >= _COLUMNS and a.ne[0] * node.nelements >= _LEAST
    return (
        alone
        and many
        and not exact
        and b.dtype is DType.F32
        and node.is_contiguous
        and max(columns, m, a.ne[0]) < 1 << 31
    )


def _type(a: DType) -> DType:
    """The type of both operands of a call."""
    return DType.BF16 if a.is_quantized else a


def _up(size: int) -> int:
    return -(-size // 256) * 256


def _conversion_bytes(node: Tensor) -> int:
    """Bytes of b after its conversion to the type of the call; 0 if it has that type already."""
    a, b = _operands(node)
    element = _type(a.dtype)
    return 0 if element is b.dtype else _up(b.nelements * element.type_size)


def _rows_at_a_time(a: Tensor) -> int:
    """Rows of a quantized matrix that are unpacked together: a multiple of 64, or all."""
    most = max(64, _UNPACKED // (2 * a.ne[0]) // 64 * 64)
    return min(a.ne[1], most)


def scratch(node: Tensor) -> int:
    """Bytes of scratch: the library's workspace, the converted b, unpacked rows of a."""
    if not fits(node):
        return 0
    a, _ = _operands(node)
    unpacked = 2 * a.ne[0] * _rows_at_a_time(a) if a.dtype.is_quantized else 0
    return _WORKSPACE + _conversion_bytes(node) + _up(unpacked)


def _split(node: Tensor) -> list[_Product]:
    """The calls of a node; distances are in bytes, and a converted b is dense."""
    a, b = _operands(node)
    size = a.dtype.type_size
    b_nb = b.nb
    if a.dtype is not b.dtype:
        b_nb = (size, size * b.ne[0], size * b.ne[0] * b.ne[1], size * b.ne[0] * b.ne[1] * b.ne[2])
    n, n2, n3 = node.ne[1:]
    d_nb = node.nb

    def even(nb: tuple[int, ...]) -> bool:  # over both outer dimensions
        return n3 == 1 or n2 == 1 or nb[3] == nb[2] * n2

    def step(nb: tuple[int, ...]) -> int:
        return nb[2] if n2 > 1 else nb[3]

    if a.ne[2] * a.ne[3] == 1 and even(b_nb):
        if n2 * n3 == 1 or (step(b_nb) == b_nb[1] * n and step(d_nb) == d_nb[1] * n):
            return [_Product(0, 0, 0, n * n2 * n3, 1, 0, 0, 0)]
        return [_Product(0, 0, 0, n, n2 * n3, 0, step(b_nb), step(d_nb))]
    if a.ne[2:] == b.ne[2:] and even(a.nb) and even(b_nb):
        return [_Product(0, 0, 0, n, n2 * n3, step(a.nb), step(b_nb), step(d_nb))]
    r2, r3 = n2 // a.ne[2], n3 // a.ne[3]
    found = []
    for i3 in range(n3):
        at_a, at_b, at_d = i3 // r3 * a.nb[3], i3 * b_nb[3], i3 * d_nb[3]
        if r2 == 1:
            found.append(_Product(at_a, at_b, at_d, n, n2, a.nb[2], b_nb[2], d_nb[2]))
            continue
        for _ in range(a.ne[2]):
            found.append(_Product(at_a, at_b, at_d, n, r2, 0, b_nb[2], d_nb[2]))
            at_a, at_b, at_d = at_a + a.nb[2], at_b + r2 * b_nb[2], at_d + r2 * d_nb[2]
    return found


def _alignment(address: int) -> int:
    return min(address & -address, 256) if address else 256


def _calls(
    site: NodeSite, a: Operand, b: Operand, products: list[_Product], first: int, *, tf32: bool
) -> Iterator[Launch]:
    """The calls for ``a``, the rows from ``first`` on of the node's matrix."""
    d = replace(site.dst, data=site.dst.data + 4 * first)
    element = DType(a.type)
    number = _TF32 if tf32 and element is DType.F32 else _TYPES[element]
    size = element.type_size
    m, k = a.ne[1], a.ne[0]
    for p in products:
        at = (a.data + p.a, b.data + p.b, d.data + p.d)
        a_ld = a.nb[1] // size if m > 1 else k
        b_ld = b.nb[1] // size if b.ne[1] > 1 else k
        yield Launch(
            "", "", (0, 0, 0), (0, 0, 0), 0,
            _GEMM.pack(
                *at, site.scratch, _WORKSPACE, number, m, p.n, k, a_ld, b_ld, d.nb[1] // 4,
                p.times, p.a_step // size, p.b_step // size, p.d_step // 4,
                *(_alignment(address) for address in at),
            ),
            WITH_BLAS, gemm=True,
        )  # fmt: skip


def instead(site: NodeSite, kernels: list[Launch], *, tf32: bool = False) -> list[Launch]:
    """The launches of a node that `fits`: calls of the library, and ``kernels`` if it fails.

    Args:
        site: of the node.
        kernels: the launches that compute the node without the library.
        tf32: whether products of f32 may use only 10 bits of each mantissa.
    """
    a, b = site.src(0), site.src(1)
    found = [replace(launch, when=WITHOUT_BLAS) for launch in kernels]
    element = _type(DType(a.type))
    if element.value != b.type:
        size = element.type_size
        nb = (size, size * b.ne[0], size * b.ne[0] * b.ne[1], size * b.ne[0] * b.ne[1] * b.ne[2])
        dense = replace(b, data=site.scratch + _WORKSPACE, nb=nb, type=element.value)
        found += [replace(launch, when=WITH_BLAS) for launch in cpy.convert(site, dense, b)]
        b = dense
    if not DType(a.type).is_quantized:
        return [*found, *_calls(site, a, b, _split(site.node), 0, tf32=tf32)]
    node = site.node
    each = _rows_at_a_time(_operands(node)[0])
    products = [_Product(0, 0, 0, node.nelements // node.ne[0], 1, 0, 0, 0)]
    for first in range(0, a.ne[1], each):
        rows = min(each, a.ne[1] - first)
        row = 2 * a.ne[0]
        unpacked = replace(
            a,
            data=site.scratch + _WORKSPACE + _conversion_bytes(node),
            ne=(a.ne[0], rows, 1, 1),
            nb=(2, row, row * rows, row * rows),
            type=DType.BF16.value,
        )
        packed = replace(a, data=a.data + first * a.nb[1], ne=unpacked.ne)
        grid = (min(ceil(a.ne[0] // 32 * rows, 128), 1 << 20), 1, 1)
        operands = [unpacked, packed]
        launch = site.launch(
            f"unpack_bf16[TYPE={DType(a.type).name}]",
            "unpack_rows",
            grid,
            (128, 1, 1),
            1,
            operands=operands,
        )
        found += [replace(launch, when=WITH_BLAS)]
        found += _calls(site, unpacked, b, products, first, tf32=tf32)
    return found
