"""Copies and conversions: which kernel of cpy.cu a pair of layouts and types gets."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from aggml.devices.cuda.kernels import quantize
from aggml.devices.cuda.pack import ceil, dense, merge, rows_by_columns
from aggml.dtype import DType
from aggml.ops.table import in_group

if TYPE_CHECKING:
    from aggml.devices.cuda.launch import Launch
    from aggml.devices.cuda.pack import NodeSite, Operand
    from aggml.tensor import Tensor

__all__ = ["OPS", "convert", "copy", "launches", "refuses"]

#: The ops that are launched here.
OPS = in_group("cpy")


def refuses(node: Tensor) -> bool:
    """Whether a quantized operand of a conversion has gaps between the blocks of a row."""
    src = node.src[0]
    assert src is not None
    if src.dtype is node.dtype:
        return False
    return any(
        t.dtype.is_quantized and t.nb[0] != t.dtype.type_size and t.ne[0] > t.dtype.blck_size
        for t in (src, node)
    )


def launches(site: NodeSite) -> list[Launch]:
    """One launch."""
    dst, src = site.dst, site.src(0)
    if dst.type == src.type:
        return copy(site, dst, src)
    to, element = DType(dst.type), DType(src.type)
    if to.is_quantized:
        return quantize.cpy(site)
    if element.is_quantized:
        grid = (min(ceil(site.node.nelements // 32, 128), 1 << 20), 1, 1)
        return [site.launch("cpy", "from_quantized", grid, (128, 1, 1), 1, operands=[dst, src])]
    return convert(site, dst, src)


def convert(site: NodeSite, dst: Operand, src: Operand) -> list[Launch]:
    """Convert elements of a plain type to another plain type."""
    pair = _in_one_shape(dst, src, DType(dst.type).type_size, DType(src.type).type_size)
    if pair is None:
        n = dst.ne[0] * dst.ne[1] * dst.ne[2] * dst.ne[3]
        grid = (min(ceil(n, 256), 1 << 20), 1, 1)
        return [site.launch("cpy", "convert_any", grid, (256, 1, 1), 1, operands=[dst, src])]
    operands = merge(pair)
    grid, block = rows_by_columns(operands[0].ne)
    return [site.launch("cpy", "convert_rows", grid, block, 1, operands=operands)]


def _reshape(o: Operand, ne: tuple[int, ...], size: int) -> Operand:
    """An operand without gaps, with another shape."""
    nb = (size, size * ne[0], size * ne[0] * ne[1], size * ne[0] * ne[1] * ne[2])
    return replace(o, ne=ne, nb=nb)


def _in_one_shape(dst: Operand, src: Operand, to: int, size: int) -> list[Operand] | None:
    if dst.ne == src.ne:
        return [dst, src]
    if dense(src, size):
        return [dst, _reshape(src, dst.ne, size)]
    if dense(dst, to):
        return [_reshape(dst, src.ne, to), src]
    return None


def _blocks(o: Operand, element: DType) -> Operand:
    """The operand with its blocks as elements of ``type_size`` bytes."""
    return replace(o, ne=(o.ne[0] // element.blck_size, *o.ne[1:]))


def _largest_word(operands: list[Operand], size: int) -> int:
    """The largest word of up to 16 bytes of which every address, stride and row is a multiple."""
    for word in (16, 8, 4, 2):
        fits = size % word == 0 and all(
            o.data % word == 0
            and all(nb % word == 0 for n, nb in zip(o.ne, o.nb, strict=True) if n > 1)
            for o in operands
        )
        if fits:
            return word
    return 1


def copy(site: NodeSite, dst: Operand, src: Operand) -> list[Launch]:
    """Copy elements of one type in words as large as possible; ``src`` may repeat."""
    element = DType(dst.type)
    size = element.type_size
    to, what = _blocks(dst, element), _blocks(src, element)
    if 0 in to.ne:
        return []
    repeats = any(n % m == 0 for n, m in zip(to.ne, what.ne, strict=True)) and all(
        m <= n and n % m == 0 for n, m in zip(to.ne, what.ne, strict=True)
    )
    pair = [to, what] if repeats else _in_one_shape(to, what, size, size)
    plain = size in {1, 2, 4, 8}
    if pair is None or (not plain and not _side_by_side(pair, size)):
        n = to.ne[0] * to.ne[1] * to.ne[2] * to.ne[3]
        grid = (min(ceil(n, 256), 1 << 20), 1, 1)
        word = 4 if size % 4 == 0 else 2 if size % 2 == 0 else 1
        return [
            site.launch(
                "cpy", "copy_blocks", grid, (256, 1, 1), 1, operands=[to, what], aux=[size, word]
            )
        ]
    if not plain:
        pair, size = _as_words(pair, size)
    operands = merge(pair)
    turned = _by_tiles(operands, size)
    if turned is not None:
        to, what = turned
        tiles = ceil(to.ne[0], 32) * ceil(to.ne[1], 32)
        grid = (tiles, min(to.ne[2] * to.ne[3], 65535), 1)
        return [site.launch("cpy", f"transpose_{size}", grid, (32, 8, 1), 1, operands=turned)]
    if plain and operands[0].ne[0] > 1:
        operands, size = _as_words(operands, size)
    grid, block = rows_by_columns(operands[0].ne)
    return [site.launch("cpy", f"copy_{size}", grid, block, 1, operands=operands)]


def _side_by_side(pair: list[Operand], size: int) -> bool:
    return all(o.nb[0] == size or o.ne[0] == 1 for o in pair) and pair[0].ne[0] == pair[1].ne[0]


def _by_tiles(operands: list[Operand], size: int) -> list[Operand] | None:
    """The operands if a copy by tiles is faster: if ``src`` is transposed and not too small."""
    dst, src = operands
    fits = size in {2, 4} and dst.nb[0] == size and src.nb[1] == size and src.nb[0] != size
    return operands if fits and dst.ne[0] >= 8 and dst.ne[1] >= 8 and dst.ne == src.ne else None


def _as_words(operands: list[Operand], size: int) -> tuple[list[Operand], int]:
    """The operands with the largest possible words as elements, if their rows have no gaps.

    Words are larger than plain elements, but may be smaller than blocks.
    """
    if (
        any(o.nb[0] != size and o.ne[0] > 1 for o in operands)
        or operands[0].ne[0] != operands[1].ne[0]
    ):
        return operands, size
    row = operands[0].ne[0] * size
    outer = [replace(o, nb=(16, *o.nb[1:])) for o in operands]
    word = _largest_word(outer, row)
    return [replace(o, ne=(row // word, *o.ne[1:]), nb=(word, *o.nb[1:])) for o in operands], word
