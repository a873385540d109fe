"""One step backwards: a node, the gradient in its result, and the sums of gradients so far.

Here: what all rules of differentiation use. Not here: the rules (rules.py), the walk over the
graph (backward.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from aggml import ops
from aggml.dtype import DType
from aggml.errors import Unsupported
from aggml.graph import Order
from aggml.tensor import cut, describe, fresh_strides, new_tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aggml.graph import Graph
    from aggml.tensor import Tensor

__all__ = ["BackwardStep", "GradientSums", "dense", "shape_of", "sum_to", "value_of"]


class GradientSums:
    """The gradients found so far; each is the sum of what the users of its tensor contribute.

    Attributes:
        order: the nodes of the graph, and behind them those that compute gradients.
        needed: the tensors in which a gradient is needed.
        found: the sum so far, by the tensor in which it is taken.
        accs: the leafs with which sums begin, likewise.
        lasting: the tensors whose sums are written into such a leaf.
    """

    def __init__(self, graph: Graph, needed: set[Tensor]) -> None:
        self.order: Order = Order(graph.nodes, graph.leafs)
        self.needed = needed
        self.found: dict[Tensor, Tensor] = {}
        self.accs: dict[Tensor, Tensor] = {}
        self.lasting: set[Tensor] = set()

    def begin(self, tensor: Tensor, acc: Tensor, *, lasts: bool) -> None:
        """Let ``acc`` have the gradient in ``tensor`` at the beginning.

        Args:
            tensor: in which the gradient is taken.
            acc: a leaf.
            lasts: whether contributions are written into the leaf, for the next run to find.
        """
        self.found[tensor] = self.accs[tensor] = acc
        if lasts:
            self.lasting.add(tensor)

    def get(self, tensor: Tensor) -> Tensor | None:
        """The sum so far."""
        return self.found.get(tensor)

    def add(self, tensor: Tensor, gradient: Tensor) -> None:
        """Add a contribution, which has the extents of ``tensor``."""
        gradient = dense(gradient)
        assert gradient.ne == tensor.ne, (gradient, tensor)
        if gradient.ndim != tensor.ndim:
            gradient = ops.reshape(gradient, tensor)  # an array of the gradient has as many axes
        before = self.found.get(tensor)
        if before is not None:
            add = ops.add_inplace if tensor in self.lasting else ops.add
            gradient = add(before, gradient)
        self._replace(tensor, gradient)

    def add_part(self, tensor: Tensor, gradient: Tensor, nb: Sequence[int], offset: int) -> bool:
        """Add a contribution to the part of the sum that has these strides.

        Returns:
            Whether there was a sum. If not, nothing is done.
        """
        before = self.found.get(tensor)
        if before is None:
            return False
        acc = ops.acc_inplace if tensor in self.lasting else ops.acc
        self._replace(tensor, acc(before, gradient, nb[1], nb[2], nb[3], offset))
        return True

    def _replace(self, tensor: Tensor, gradient: Tensor) -> None:
        if gradient.op != "none" and not gradient.frozen:
            gradient.set_name(cut(f"grad for {tensor.name}"))
        self.found[tensor] = gradient
        self.order.expand([gradient])


class BackwardStep(NamedTuple):
    """A node through which the chain rule is taken.

    Attributes:
        node: the operation.
        grad: the gradient in its result, f32, contiguous, of its extents.
        needed: for each source whether a gradient in it is needed.
        sums: where the gradients in the sources are added.
    """

    node: Tensor
    grad: Tensor
    needed: tuple[bool, ...]
    sums: GradientSums

    def needs(self, i: int) -> bool:
        """Whether a gradient in source ``i`` is needed."""
        return i < len(self.needed) and self.needed[i]

    def source(self, i: int) -> Tensor:
        """Source ``i``, which is there."""
        found = self.node.src[i]
        assert found is not None
        return found

    def add(self, i: int, gradient: Tensor) -> None:
        """Add a gradient in source ``i``, which is needed."""
        self.sums.add(self.source(i), gradient)

    def refuse(self, why: str) -> Unsupported:
        """The exception for a node whose gradient cannot be taken."""
        return Unsupported(
            f"[build_backward_expand] op {self.node.op} has no gradient for node "
            f"{describe(self.node)}: {why}"
        )

    def refuse_needed(self, i: int, what: str) -> None:
        """Refuse to take a gradient in source ``i``.

        Raises:
            Unsupported: it is needed.
        """
        if self.needs(i):
            raise self.refuse(f"none is defined in {what}, {describe(self.source(i))}")


def dense(a: Tensor) -> Tensor:
    """``a`` with the strides of a new tensor, copied if its elements do not lie in that order.

    A contiguous tensor may have other strides along axes of one element, and some builders, such as
    `ops.scale`, look at these, too.
    """
    if a.nb == fresh_strides(a.dtype, a.ne):
        return a
    return ops.reshape(a, a) if a.is_contiguous else ops.cont(a)


def value_of(a: Tensor) -> Tensor:
    """The values of ``a`` as f32 without gaps: itself if it is that already."""
    return dense(a) if a.dtype is DType.F32 else ops.cast(a, DType.F32)


def shape_of(*ne: int) -> Tensor:
    """A tensor that stands for its extents alone; no node has it as a source."""
    return new_tensor(DType.F32, ne)


def sum_to(gradient: Tensor, a: Tensor) -> Tensor:
    """The gradient in ``a``, which was repeated to the extents of ``gradient``."""
    return gradient if gradient.ne == a.ne else ops.repeat_back(gradient, a)
