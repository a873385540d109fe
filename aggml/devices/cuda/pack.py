"""Packs operands and parameters into the bytes that kernels take (struct Node, common.cuh).

Here: packing, merging dimensions where all operands allow it, the usual grids. Not here: the
launches of each group of ops (kernels/, plain.py).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from aggml.devices.cuda.launch import Launch
from aggml.ops.table import NUMBERS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aggml.devices.cuda.launch import Address, Extent, Gpu
    from aggml.tensor import Tensor

__all__ = ["MISSING", "NodeSite", "Operand", "ceil", "dense", "merge", "rows_by_columns"]

_OPERAND = struct.Struct("<Q9q")
_TAIL = struct.Struct("<8qQQq")
_GRID_Y = 65535
_GRID_X = 1 << 22  # the most blocks of a grid-stride loop: more than any GPU runs at a time


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor, or another view of its bytes, as a kernel sees it."""

    data: int
    ne: tuple[int, ...]
    nb: tuple[int, ...]
    type: int

    def pack(self) -> bytes:
        """Pack a struct Tensor: 80 bytes."""
        return _OPERAND.pack(self.data, *self.ne, *self.nb, self.type)


MISSING = Operand(0, (0, 0, 0, 0), (0, 0, 0, 0), -1)


def ceil(n: int, by: int) -> int:
    """``n / by``, rounded up."""
    return -(-n // by)


@dataclass(frozen=True, slots=True)
class NodeSite:
    """A node that is being lowered, with the addresses of its operands."""

    node: Tensor
    address: Address
    scratch: int
    fault: int
    gpu: Gpu

    @property
    def dst(self) -> Operand:
        """The node itself."""
        return self.operand(self.node)

    def src(self, i: int) -> Operand:
        """Source ``i``; `MISSING` if it is not given."""
        tensor = self.node.src[i] if i < len(self.node.src) else None
        return MISSING if tensor is None else self.operand(tensor)

    def operand(self, tensor: Tensor) -> Operand:
        """A tensor where it lies."""
        return Operand(self.address(tensor), tensor.ne, tensor.nb, tensor.dtype.value)

    def args(
        self, n_src: int, *, operands: Sequence[Operand] | None = None, aux: Sequence[int] = ()
    ) -> bytes:
        """struct Node<n_src>; ``operands`` stand for the node and its sources if given."""
        if operands is None:
            operands = [self.dst, *(self.src(i) for i in range(n_src))]
        assert len(operands) == n_src + 1
        op = NUMBERS[self.node.op]
        tail = _TAIL.pack(*aux, *(0 for _ in range(8 - len(aux))), self.scratch, self.fault, op)
        return b"".join([*(o.pack() for o in operands), self.node.op_params, tail])

    def launch(
        self,
        module: str,
        kernel: str,
        grid: Extent,
        block: Extent,
        n_src: int,
        *,
        operands: Sequence[Operand] | None = None,
        aux: Sequence[int] = (),
        shared: int = 0,
    ) -> Launch:
        """One launch with this node's parameter."""
        args = self.args(n_src, operands=operands, aux=aux)
        return Launch(module, kernel, grid, block, shared, args)

    def per_element(
        self, module: str, kernel: str, n: int, n_src: int, *, aux: Sequence[int] = ()
    ) -> list[Launch]:
        """One thread per element of ``n``, in blocks of 256; the kernel has a grid-stride loop."""
        if n == 0:
            return []
        grid = (min(ceil(n, 256), _GRID_X), 1, 1)
        return [self.launch(module, kernel, grid, (256, 1, 1), n_src, aux=aux)]

    def per_row(
        self,
        module: str,
        kernel: str,
        rows: int,
        width: int,
        n_src: int,
        *,
        aux: Sequence[int] = (),
    ) -> list[Launch]:
        """One block per row of ``rows``; each thread handles about 4 of ``width`` elements."""
        if rows == 0:
            return []
        threads = 32
        while threads < 256 and threads * 4 < width:
            threads *= 2
        grid = (min(rows, _GRID_X), 1, 1)
        return [self.launch(module, kernel, grid, (threads, 1, 1), n_src, aux=aux)]


def dense(o: Operand, size: int) -> bool:
    """Whether plain elements of ``size`` bytes lie without gaps in logical order."""
    step = size
    for n, nb in zip(o.ne, o.nb, strict=True):
        if n != 1 and nb != step:
            return False
        step *= n
    return True


def merge(operands: Sequence[Operand]) -> list[Operand]:
    """The same elements in fewer dimensions; the first operand has the full extents.

    The other operands may be broadcast (an extent of 1, or a divisor). A dimension is merged into
    the one before it if it continues that dimension in every operand. Unused dimensions come last.
    """
    ne: list[list[int]] = [[] for _ in operands]
    nb: list[list[int]] = [[] for _ in operands]
    for d in range(4):
        if operands[0].ne[d] == 1:
            continue
        if ne[0] and all(
            _continues(o, d, n[-1], b[-1], ne[0][-1], operands[0].ne[d])
            for o, n, b in zip(operands, ne, nb, strict=True)
        ):
            for o, n in zip(operands, ne, strict=True):
                n[-1] *= o.ne[d]
            continue
        for o, n, b in zip(operands, ne, nb, strict=True):
            n.append(o.ne[d])
            b.append(o.nb[d])
    merged = []
    for o, n, b in zip(operands, ne, nb, strict=True):
        padding = 4 - len(n)
        merged.append(
            replace(
                o, ne=(*n, *[1] * padding), nb=(*(b or [o.nb[0]]), *[0] * (padding if b else 3))
            )
        )
    return merged


def _continues(o: Operand, d: int, n: int, step: int, whole: int, whole_d: int) -> bool:
    """Whether dimension ``d`` goes on where ``n`` elements, ``step`` bytes apart, end."""
    if o.ne[d] == 1 and n == 1:
        return True  # one element is broadcast along both dimensions
    return n == whole and o.ne[d] == whole_d and o.nb[d] == n * step


def rows_by_columns(ne: Sequence[int], each: int = 4) -> tuple[Extent, Extent]:
    """Grid and block for rows: x runs along a row, each thread handles ``each`` elements."""
    columns, rows = ne[0], ne[1] * ne[2] * ne[3]
    bx = 32
    while bx < 256 and bx * each < columns:
        bx *= 2
    by = 256 // bx
    gx = ceil(columns, bx * each)
    return (gx, min(ceil(rows, by), _GRID_Y), 1), (bx, by, 1)
