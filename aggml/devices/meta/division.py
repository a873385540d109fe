"""How a tensor is divided: each device has an equal part along an axis, all of it, or a summand.

Here: these three states, how a leaf is divided, which part a view shows on each device. Not here:
how ops treat divided operands (rules.py).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from aggml.tensor import Tensor

__all__ = [
    "SUM",
    "WHOLE",
    "Extents",
    "Shown",
    "axis_of_leaf",
    "can_divide",
    "part_of",
    "seen",
    "shown",
]

Extents = tuple[int, int, int, int]

#: The states besides an axis (0 to 3): each device has the whole tensor; each has a summand.
WHOLE, SUM = -1, -2

# Names of leafs in GGUF files, and of the caches of `aggml.models`, with the axes to try in turn.
# Weights divided by rows (axis 1) give rows of the result. Weights divided along the depth (axis 0)
# give summands, which are then added up.
_DIVIDED: Final = (
    (r"(blk\.\d+\.(attn_(q|k|v|qkv)|ffn_(gate|up)(_exps|_shexp)?)|output)\.weight", (1, 0)),
    (r"blk\.\d+\.(attn_output|ffn_down(_exps|_shexp)?)\.weight", (0, 1)),
    (r"blk\.\d+\.(attn_(q|k|v|qkv)|ffn_(gate|up))\.bias", (0,)),
    (r"token_embd\.weight", (0,)),
    (r"cache_[kv]\.\d+", (0,)),
)
_PATTERNS: Final = tuple([(re.compile(pattern), axes) for pattern, axes in _DIVIDED])


def axis_of_leaf(leaf: Tensor, n: int) -> int:
    """The axis along which a leaf is divided among ``n`` devices, or WHOLE."""
    for pattern, axes in _PATTERNS:
        if pattern.fullmatch(leaf.name):
            for axis in axes:
                if can_divide(leaf, axis, n):
                    return axis
    return WHOLE


def can_divide(tensor: Tensor, axis: int, n: int) -> bool:
    """Whether equal parts along the axis are whole blocks."""
    unit = tensor.dtype.blck_size if axis == 0 else 1
    return tensor.ne[axis] > 0 and tensor.ne[axis] % (n * unit) == 0


def part_of(ne: Extents, axis: int, n: int) -> Extents:
    """The extents of one of ``n`` parts."""
    found = list(ne)
    if axis >= 0:
        found[axis] //= n
    return found[0], found[1], found[2], found[3]


class Shown(NamedTuple):
    """The part of a view that lies on each device.

    Attributes:
        axis: of the view, along which it is divided.
        ne, nb, offset: of the view of a part.
    """

    axis: int
    ne: Extents
    nb: Extents
    offset: int


def shown(root: Tensor, axis: int, n: int, view: Tensor) -> Shown | None:
    """A view of a tensor that is divided along ``axis``, as seen on each device.

    Args:
        root: lies without gaps.
        axis: along which it is divided.
        n: among how many devices.
        view: shows bytes of ``root``.

    Returns:
        None if the view is not divided in the same parts as the bytes. Then it needs the whole
        tensor.
    """
    return seen(root.ne, (root.nb, axis, n), view, (view.ne, view.nb, view.view_offs))


def seen(
    ne: Extents,
    divided: tuple[Extents, int, int],
    like: Tensor,
    view: tuple[Extents, Extents, int],
) -> Shown | None:
    """`shown` for plain extents instead of tensors.

    Args:
        ne: of the storage.
        divided: its strides, the axis, and the number of devices.
        like: a tensor of the element type.
        view: extents, strides and offset of the view.
    """
    nb, axis, n = divided
    block, size = like.dtype.blck_size, like.dtype.type_size
    count = ne[axis] // (block if axis == 0 else 1)
    span = nb[axis] * count  # bytes from one part of a device to its next part
    view_ne, view_nb, offset = view
    extents = (view_ne[0] // block, *view_ne[1:])
    outer, inner = divmod(offset, span)
    found = -1
    below = inner + size  # bytes of a unit of the divided axis of the view that are shown
    for j in range(4):
        if extents[j] == 1:
            continue
        if view_nb[j] >= span:
            if view_nb[j] % span:
                return None
        elif view_nb[j] * extents[j] == span and found < 0:
            found = j
        else:
            below += view_nb[j] * (extents[j] - 1)
    if found < 0:
        return None
    unit = view_nb[found]
    if extents[found] % n or below > unit or (span // n) % unit:
        return None
    new_ne, new_nb = list(view_ne), list(view_nb)
    new_ne[found] //= n
    for j in range(4):
        if extents[j] == 1 and j > 0:
            new_nb[j] = new_nb[j - 1] * (new_ne[j - 1] // (block if j == 1 else 1))
        elif view_nb[j] >= span and extents[j] > 1:
            new_nb[j] = view_nb[j] // n
    return Shown(
        found,
        (new_ne[0], new_ne[1], new_ne[2], new_ne[3]),
        (new_nb[0], new_nb[1], new_nb[2], new_nb[3]),
        outer * (span // n) + inner,
    )
