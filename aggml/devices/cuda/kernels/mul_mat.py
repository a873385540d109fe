"""Launches of products of matrices: by kernels for few columns, or by tiles.

For a quantized matrix the columns are quantized to int8 first.

Here: mul_mat and mul_mat_id. Not here: the kernels (columns.cu, mul_mat_q.cu, mul_mat_f.cu, and
those of 9 to 64 columns, mul_mat_q_ring.cu, mul_mat_f_ring.cu), how deep their ring is (ring.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aggml.devices.cuda.kernels.ring import Ring, ring
from aggml.devices.cuda.kernels.rows import check_ids
from aggml.devices.cuda.pack import ceil
from aggml.dtype import DType
from aggml.ops import Prec
from aggml.ops.table import in_group

if TYPE_CHECKING:
    from aggml.devices.cuda.launch import Gpu, Launch
    from aggml.devices.cuda.pack import NodeSite, Operand
    from aggml.tensor import Tensor

__all__ = ["OPS", "launches", "of_pair", "pairs", "refuses", "scratch_on"]

#: The ops that are launched here.
OPS = (*in_group("mul_mat"), *in_group("mul_mat_id"))

_VEC_COLUMNS = 8  # most columns of the kernels in which a warp computes whole dot products
_TILE = 64
_CHUNK = 700  # bytes of 32 groups of a row above which a warp has 2 rows instead of 4
#: With so many blocks a large GPU is full, even if each warp has rows of its own.
_BLOCKS = 512
_WIDTHS = (16, 32, 64)  # columns of a tile
_LEAST = 8  # the least depth of a part, in units of 32, if the depth is divided among blocks
#: What columns of f32 are converted to.
_CONVERTED = {DType.F16: Prec.F16, DType.BF16: Prec.BF16}
_ACT = 48  # bytes for 32 elements of a column
_Y = 65535


def _operands(node: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    a, b = node.src[0], node.src[1]
    assert a is not None
    assert b is not None
    return a, b, node.src[2] if node.op == "mul_mat_id" else None


def _converts_too_far(node: Tensor) -> bool:
    """Whether the columns would become less precise than ops.prec_set_src allows."""
    a, b, _ = _operands(node)
    prec = int.from_bytes(node.op_params[12:16], "little", signed=True)
    if prec == Prec.UNDEFINED or b.dtype is not DType.F32 or a.dtype is DType.F32:
        return False
    return prec < (Prec.Q8 if a.dtype.is_quantized else _CONVERTED[a.dtype])


def refuses(node: Tensor) -> bool:
    """Whether the grid would be larger than any GPU takes, or the depth is 0, or b too coarse."""
    a, b, ids = _operands(node)
    if _converts_too_far(node):
        return True
    tiles = 0 if ids is None else ceil(ids.nelements, _TILE) + min(a.ne[2], ids.nelements)
    return a.ne[0] == 0 or tiles > _Y or b.nrows >= 1 << 31


def _table(a: Tensor, ids: Tensor | None) -> int:
    """Bytes of the table of slots by expert (columns.cuh)."""
    return 0 if ids is None else ceil(4 * (a.ne[2] + 1 + ids.nelements), 256) * 256


def _acts(node: Tensor) -> int:
    """Bytes of the columns as int8."""
    a, b, _ = _operands(node)
    return b.ne[0] // 32 * _ACT * b.nrows if a.dtype.is_quantized else 0


@dataclass(frozen=True, slots=True)
class _Tiles:
    """How a product is divided.

    Attributes:
        wide: columns of a tile.
        parts: into how many parts the depth is divided.
        each: depth of a part, in units of 32.
        ring: the ring by which tiles are loaded into shared memory; None: through registers.
    """

    wide: int
    parts: int
    each: int
    ring: Ring | None


def _cut(node: Tensor, gpu: Gpu) -> _Tiles:
    """Divide the depth so that each multiprocessor has two or three blocks.

    There are fewer parts if their sums would be more traffic than half of the matrix.
    """
    a, _, _ = _operands(node)
    m, columns, batches = node.ne[0], node.ne[1], node.ne[2] * node.ne[3]
    wide = next((w for w in _WIDTHS if w >= columns), _TILE)
    by = ring(a.dtype, wide, gpu) if columns <= wide else None
    wide = _TILE if by is None else wide
    depth = ceil(a.ne[0], 32)
    blocks = ceil(m, _TILE) * ceil(columns, wide) * batches
    row = a.dtype.row_size(a.ne[0])
    most = min(3 * gpu.multiprocessors // blocks, depth // _LEAST, row // (16 * columns))
    if blocks >= gpu.multiprocessors or most < 2 or batches * most > _Y:
        return _Tiles(wide, 1, depth, by)
    step = 2 if by is None else by.step
    each = ceil(ceil(depth, most), step) * step
    return _Tiles(wide, ceil(depth, each), each, by)


def _sums(node: Tensor, gpu: Gpu) -> tuple[int, int]:
    """The offset in scratch of the sums of a product's parts, and their bytes."""
    if node.op == "mul_mat_id" or node.ne[1] <= _VEC_COLUMNS:
        return 0, 0
    parts = _cut(node, gpu).parts
    return ceil(_acts(node), 256) * 256, 4 * parts * node.nelements if parts > 1 else 0


def scratch_on(node: Tensor, gpu: Gpu) -> int:
    """Bytes of scratch: the table of slots (mul_mat_id), int8 columns, sums of parts (mul_mat)."""
    a, _, ids = _operands(node)
    at, size = _sums(node, gpu)
    return at + size if size else _table(a, ids) + _acts(node)


def launches(site: NodeSite) -> list[Launch]:
    """Quantize the columns if the matrix is quantized, then multiply."""
    a, _, ids = _operands(site.node)
    found: list[Launch] = []
    if ids is not None:
        found.append(check_ids(site, site.src(2), a.ne[2], none=True))
    if a.dtype.is_quantized:
        groups = site.src(1)
        found.append(_columns(site, groups, _table(a, ids)))
    return found + (_plain(site) if ids is None else _by_expert(site))


def pairs(node: Tensor) -> bool:
    """Whether one kernel can compute the product and another one like it: if columns are few."""
    _, b, ids = _operands(node)
    if ids is None:
        return b.nrows == 1
    return ids.nelements <= 2 * _VEC_COLUMNS


def of_pair(kernel: str) -> str:
    """The name of the kernel that computes two products such as ``kernel`` computes one."""
    return kernel.replace("vec_1", "pair_1").replace("id_vec", "id_pair")


def _columns(site: NodeSite, b: Operand, offset: int) -> Launch:
    n = b.ne[0] // 32 * b.ne[1] * b.ne[2] * b.ne[3]
    grid = (min(ceil(n, 8), 1 << 20), 1, 1)
    operands = [site.dst, b]
    return site.launch(
        "columns", "quantize_columns", grid, (256, 1, 1), 1, operands=operands, aux=[offset]
    )


def _kernel(a: Tensor, name: str, by: Ring | None = None) -> tuple[str, str]:
    """The names of the module and of the kernel."""
    of_ring = "" if by is None else "_ring"
    if a.dtype.is_quantized:
        return f"mul_mat_q{of_ring}[TYPE={a.dtype.name}]", name
    return f"mul_mat_f{of_ring}", f"{name}_{a.dtype.type_name}"


def _rows(a: Tensor, width: int, m: int, batches: int) -> int:
    """Rows of a for each block of the kernel for ``width`` columns (`vec` in both files)."""
    if not a.dtype.is_quantized:
        return 8
    wide = 1024 // a.dtype.blck_size * a.dtype.type_size > _CHUNK or width > 4
    rows = 2 if wide else 4
    apart = 4 * rows  # each warp has its own; where that leaves few blocks they share them
    return apart if ceil(m, apart) * batches >= _BLOCKS or a.ne[0] <= 1024 else rows


def _rows_are_aligned(site: NodeSite) -> int:
    """Whether rows of a and b begin at multiples of 16 bytes."""
    operands = (site.src(0), site.src(1))
    return int(
        all(
            o.data % 16 == 0
            and all(s % 16 == 0 for n, s in zip(o.ne[1:], o.nb[1:], strict=True) if n > 1)
            for o in operands
        )
    )


def _plain(site: NodeSite) -> list[Launch]:
    node = site.node
    a, _, _ = _operands(node)
    m, columns, batches = node.ne[0], node.ne[1], node.ne[2] * node.ne[3]
    aligned = _rows_are_aligned(site)
    if columns > _VEC_COLUMNS:
        cut = _cut(node, site.gpu)
        stages, shared = (0, 0) if cut.ring is None else cut.ring[1:]
        module, kernel = _kernel(a, f"tiles_{cut.wide}", cut.ring)
        grid = (ceil(m, _TILE), min(ceil(columns, cut.wide), _Y), min(batches * cut.parts, _Y))
        aux = [0, aligned, cut.parts, cut.each, _sums(node, site.gpu)[0], stages]
        found = [site.launch(module, kernel, grid, (128, 1, 1), 2, aux=aux, shared=shared)]
        if cut.parts > 1:
            found += site.per_element("columns", "add_parts", node.nelements, 2, aux=aux)
        return found
    found = []
    first = 0
    while first < columns:
        left = columns - first
        width = 8 if left > 4 else 4 if left > 2 else left
        module, kernel = _kernel(a, f"vec_{width}")
        rows = _rows(a, width, m, batches)
        grid = (ceil(m, rows), min(batches, _Y), 1)
        found.append(site.launch(module, kernel, grid, (128, 1, 1), 2, aux=[first, aligned, rows]))
        first += width
    return found


def _by_expert(site: NodeSite) -> list[Launch]:
    a, _, ids = _operands(site.node)
    assert ids is not None
    m, slots, aligned = site.node.ne[0], ids.nelements, _rows_are_aligned(site)
    if slots <= 2 * _VEC_COLUMNS:
        module, kernel = _kernel(a, "id_vec")
        rows = _rows(a, 1, m, slots)
        grid = (ceil(m, rows), slots, 1)
        return [site.launch(module, kernel, grid, (128, 1, 1), 3, aux=[0, aligned, rows])]
    module, kernel = _kernel(a, "id_tiles")
    tiles = ceil(slots, _TILE) + min(a.ne[2], slots)
    aux = [0, aligned, 1, ceil(a.ne[0], 32)]
    return [
        site.launch("columns", "group_slots", (min(a.ne[2], _Y), 1, 1), (256, 1, 1), 3),
        site.launch(module, kernel, (ceil(m, _TILE), tiles, 1), (128, 1, 1), 3, aux=aux),
    ]
