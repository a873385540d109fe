"""Launches of argsort and top_k. Many blocks sort a row that does not fit into shared memory.

Here: which kernels of sort.cu and sort_long.cu run, and the layout of their scratch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aggml.devices.cuda.pack import ceil
from aggml.ops.table import in_group

if TYPE_CHECKING:
    from aggml.devices.cuda.launch import Extent, Launch
    from aggml.devices.cuda.pack import NodeSite
    from aggml.tensor import Tensor

__all__ = ["OPS", "launches", "scratch"]

#: The ops that are launched here.
OPS = in_group("sort")

_SHARED = 4096  # keys: 32 KiB
_PART = 2048  # elements of a long row for each block
_BLOCKS = 512  # that a large GPU runs at a time: as many parts of rows are sorted at once
_BINS = 3 * 2048 + 2  # words of a selection, beside one for each part
_DIGITS = 256


def _source(node: Tensor) -> Tensor:
    a = node.src[0]
    assert a is not None
    return a


def _power(n: int) -> int:
    return max(2, 1 << (n - 1).bit_length())


def _parts(node: Tensor) -> int:
    return ceil(_source(node).ne[0], _PART)


def _at_once(node: Tensor) -> int:
    """How many long rows are sorted at once."""
    return min(_source(node).nrows, max(1, _BLOCKS // _parts(node)))


def _words(node: Tensor) -> tuple[int, int]:
    """Words of scratch of a long row, and the offset of its keys in them."""
    width, parts = _source(node).ne[0], _parts(node)
    if node.op == "top_k" and node.ne[0] == 1:
        return ceil(2 * parts, 4) * 4, 0
    if node.op == "top_k" and node.ne[0] <= _SHARED:
        head = ceil(_BINS + parts, 4) * 4
        return head + ceil(2 * node.ne[0], 4) * 4, head
    head = _DIGITS * parts
    return head + 4 * width, head


def scratch(node: Tensor) -> int:
    """Bytes of scratch: counts and keys of all long rows that are sorted at once."""
    if _source(node).ne[0] <= _SHARED:
        return 0
    return 4 * _words(node)[0] * _at_once(node)


def launches(site: NodeSite) -> list[Launch]:
    """Short rows: a block for each. Long rows: several launches for as many as fill the GPU."""
    a = _source(site.node)
    width = a.ne[0]
    if width > _SHARED:
        rows, step = a.nrows, _at_once(site.node)
        return [
            launch
            for first in range(0, rows, step)
            for launch in _long(site, first, min(step, rows - first))
        ]
    grid = (min(a.nrows, 1 << 20), 1, 1)
    if site.node.op == "top_k" and site.node.ne[0] == 1:
        return [site.launch("sort", "sort_first", grid, (512, 1, 1), 1, shared=8)]
    size = _power(width)
    block = (max(32, min(512, size // 2)), 1, 1)
    aux = [size, _down(site.node)]
    return [site.launch("sort", "sort_shared", grid, block, 1, aux=aux, shared=8 * size)]


def _down(node: Tensor) -> int:
    return int(node.op == "top_k" or int.from_bytes(node.op_params[:4], "little", signed=True) != 0)


def _long(site: NodeSite, first: int, rows: int) -> list[Launch]:
    node = site.node
    k, parts = node.ne[0], _parts(node)
    words, head = _words(node)
    every: Extent = (parts, rows, 1)
    one: Extent = (1, rows, 1)

    def of(kernel: str, grid: Extent, what: int, turn: int = 0) -> Launch:
        aux = [first, words, head, what, turn, parts, _power(k)]
        return site.launch("sort_long", kernel, grid, (256, 1, 1), 1, aux=aux)

    if node.op == "top_k" and k == 1:
        return [of("first_of_parts", every, k), of("first_of_all", one, k)]
    if node.op == "top_k" and k <= _SHARED:
        return [
            of("select_clear", (ceil(head, 256), rows, 1), k),
            *(of("select_digits", every, k, turn) for turn in range(3)),
            of("select_less", every, k),
            of("select_sort", one, k),
        ]
    return [
        of(kernel, one if kernel == "radix_add" else every, _down(node), turn)
        for turn in range(4)
        for kernel in ("radix_count", "radix_add", "radix_move")
    ]
