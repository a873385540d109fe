"""The gradient through a view: it is added to a part of the gradient in the viewed tensor.

A view has strides in the storage of its source, whose axes may be permuted and may have gaps. The
gradient in the source is contiguous. So the part is found twice: in the storage, and in the
gradient. Not here: views that keep all elements (reshape, permute, transpose: rules.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from aggml import ops
from aggml.gradients.step import shape_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aggml.gradients.step import BackwardStep
    from aggml.tensor import Tensor

__all__ = ["add_view"]

_BYTES = 4  # of an element of a gradient


class _ViewedPart(NamedTuple):
    """Where the elements of a view lie in the gradient of its source.

    Attributes:
        steps: for each axis of the view elements from one index to the next.
        start: elements before the first.
    """

    steps: tuple[int, ...]
    start: int


def add_view(step: BackwardStep) -> None:
    """Add the gradient in a view to that in its source.

    Raises:
        Unsupported: elements of the view overlap, or no strides lead to them in the gradient.
    """
    view, source = step.node, step.source(0)
    # Axes of the source by stride, the innermost first: in this order it is dense, or has gaps.
    order = sorted(range(4), key=lambda i: (source.nb[i], i if source.ne[i] > 1 else -1))
    part = _part_of(view, source, order)
    if part is None:
        raise step.refuse(
            f"its strides nb {list(view.nb)} cannot be followed in its source "
            f"{list(source.ne)} with nb {list(source.nb)}; ops.cont makes a contiguous source"
        )
    axes = [(n, s) for n, s in zip(view.ne, part.steps, strict=True) if n > 1]
    if _overlap(axes):
        raise step.refuse(f"its elements overlap, nb {list(view.nb)}; ops.cont copies first")
    grad = step.grad
    if axes and axes[0][1] != 1:
        # `acc` takes rows without gaps: each element becomes a row of its own.
        if len(axes) == 4:
            raise step.refuse(
                f"all four axes of the view have gaps, nb {list(view.nb)}; ops.cont of the source "
                "and a view of fewer axes can be differentiated"
            )
        axes.insert(0, (1, 1))
    elif not axes:
        axes = [(1, 1)]
    ne = [n for n, _ in axes] + [1] * (4 - len(axes))
    nb = [s * _BYTES for _, s in axes] + [_BYTES] * (4 - len(axes))
    if tuple(ne) != grad.ne:
        grad = ops.reshape_4d(grad, *ne)
    start = part.start * _BYTES
    if source.is_contiguous and step.sums.add_part(source, grad, nb, start):
        return
    if order == [0, 1, 2, 3]:
        zeros = _zeros(source.ne[: source.ndim])
        step.add(0, ops.acc(zeros, grad, nb[1], nb[2], nb[3], start))
    else:
        zeros = _zeros([source.ne[i] for i in order])
        part_added = ops.acc(zeros, grad, nb[1], nb[2], nb[3], start)
        step.add(0, ops.permute(part_added, *order))


def _zeros(ne: Sequence[int]) -> Tensor:
    """Zeros, which depend on no other tensor: ``0 * x`` would be NaN where x is infinite."""
    return ops.repeat(ops.arange(0, 1, 1), shape_of(*ne))


def _part_of(view: Tensor, source: Tensor, order: Sequence[int]) -> _ViewedPart | None:
    """The part in a dense tensor with the axes of ``source`` in that order; None: there is none."""
    element = source.dtype.type_size
    offset = view.view_offs - source.view_offs
    ne = [source.ne[i] for i in order]
    given = [source.nb[i] // element for i in order]
    packed = [1]
    for n in ne[:-1]:
        packed.append(packed[-1] * n)
    if all(n == 1 or s == p for n, s, p in zip(ne, given, packed, strict=True)):
        return _ViewedPart(tuple([nb // element for nb in view.nb]), offset // element)
    left = offset // element
    at = [0, 0, 0, 0]
    for k in (3, 2, 1, 0):
        if ne[k] > 1:
            at[k], left = divmod(left, given[k])
    if left or any(i >= n for i, n in zip(at, ne, strict=True)):
        return None
    start = sum([i * p for i, p in zip(at, packed, strict=True)])
    steps = []
    for n, nb in zip(view.ne, view.nb, strict=True):
        if n == 1:
            steps.append(1)
            continue
        stride = nb // element
        for k in (3, 2, 1, 0):
            if ne[k] > 1 and stride % given[k] == 0 and 0 < given[k] <= stride:
                times = stride // given[k]
                at[k] += (n - 1) * times
                if at[k] >= ne[k]:
                    return None
                steps.append(times * packed[k])
                break
        else:
            return None
    return _ViewedPart(tuple(steps), start)


def _overlap(axes: Sequence[tuple[int, int]]) -> bool:
    reach = 1  # elements from the first to the end of the last, of the axes so far
    for n, step in sorted(axes, key=lambda axis: axis[1]):
        if step < reach:
            return True
        reach += (n - 1) * step
    return False
