"""argsort and top_k: keys in shared memory where a row fits, in scratch where not; none for 1."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aggml.ops.table import in_group

if TYPE_CHECKING:
    from aggml.devices.cuda.launch import Launch
    from aggml.devices.cuda.pack import Site
    from aggml.tensor import Tensor

__all__ = ["OPS", "launches", "scratch"]

#: What is launched from here.
OPS = in_group("sort")

_SHARED = 4096  # keys: 32 KiB
_BLOCKS = 256  # rows that are sorted at a time in scratch


def _first_alone(node: Tensor) -> bool:
    return node.op == "top_k" and node.ne[0] == 1


def _size(node: Tensor) -> tuple[int, int]:
    """Keys, a power of two, and blocks."""
    a = node.src[0]
    assert a is not None
    size = 2
    while size < a.ne[0]:
        size *= 2
    return size, min(a.nrows, _BLOCKS if size > _SHARED else 1 << 20)


def scratch(node: Tensor) -> int:
    """Keys of all blocks, of long rows."""
    if _first_alone(node):
        return 0
    size, blocks = _size(node)
    return 8 * size * blocks if size > _SHARED else 0


def launches(site: Site) -> list[Launch]:
    """A block for each row."""
    node = site.node
    size, blocks = _size(node)
    if _first_alone(node):
        return [site.launch("sort", "sort_first", (blocks, 1, 1), (512, 1, 1), 1, shared=8)]
    down = node.op == "top_k" or int.from_bytes(node.op_params[:4], "little", signed=True) != 0
    threads = max(32, min(512, size // 2))
    kernel = "sort_scratch" if size > _SHARED else "sort_shared"
    shared = 0 if size > _SHARED else 8 * size
    aux = [size, int(down)]
    block = (threads, 1, 1)
    return [site.launch("sort", kernel, (blocks, 1, 1), block, 1, aux=aux, shared=shared)]
