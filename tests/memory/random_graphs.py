"""Random graphs for hypothesis: views, in place, writes through views, inputs and outputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

from aggml import Graph, Tensor, new_tensor, ops

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["graphs"]

_SIZES = (2, 4, 8)


def _same(tensors: list[Tensor], a: Tensor) -> list[Tensor]:
    return [b for b in tensors if b.ne == a.ne and b.nb[0] == 4]


def _steps(
    draw: Callable[[st.SearchStrategy[Any]], Any], tensors: list[Tensor], a: Tensor
) -> Tensor:
    """One more node over ``a``. Its op and further operands are drawn."""
    rows = a.nb[0] == 4
    kinds = ["permute", "cont"]
    if a.is_contiguous:
        kinds += ["reshape", "soft_max", "view"]
    if rows:
        kinds += ["relu", "relu_inplace", "scale", "rms_norm", "add", "mul", "cpy", "mul_mat"]
    kind = draw(st.sampled_from(kinds))
    if kind == "permute":
        return ops.permute(a, *draw(st.sampled_from([(0, 2, 1, 3), (1, 0, 2, 3), (0, 1, 3, 2)])))
    if kind == "reshape":
        return ops.reshape_2d(a, a.ne[0] * a.ne[1], a.ne[2] * a.ne[3])
    if kind == "view":
        first = draw(st.integers(0, a.ne[1] - 1))
        shown = draw(st.integers(1, a.ne[1] - first))
        return ops.view_2d(a, a.ne[0], shown, a.nb[1], first * a.nb[1])
    if kind == "scale":
        return ops.scale(a, 2.0) if a.is_padded_1d else ops.cont(a)
    if kind == "rms_norm":
        return ops.rms_norm(a, 1e-5)
    if kind in {"add", "mul"}:
        b: Tensor = draw(st.sampled_from(_same(tensors, a)))
        return ops.add(a, b) if kind == "add" else ops.mul(a, b)
    if kind == "cpy":
        others = [b for b in tensors if b.nelements == a.nelements and b.root is not a.root]
        return ops.cpy(a, draw(st.sampled_from(others))) if others else ops.cont(a)
    if kind == "mul_mat":
        if a.is_transposed or a.ne[1] > 8:  # squares would grow beyond all bounds
            return ops.cont(a)
        return ops.mul_mat(a, a)
    node: Tensor = getattr(ops, kind)(a)
    return node


@st.composite
def graphs(draw: Callable[[st.SearchStrategy[Any]], Any]) -> Graph:
    """Up to 25 drawn nodes over up to three leafs; some flagged INPUT or OUTPUT, some ends."""
    tensors: list[Tensor] = []
    for i in range(draw(st.integers(1, 3))):
        ne = (draw(st.sampled_from(_SIZES)), draw(st.sampled_from(_SIZES)), 2)
        leaf = new_tensor("f32", ne=ne, name=f"x{i}")
        tensors.append(leaf.set_input() if draw(st.booleans()) else leaf)
    for _ in range(draw(st.integers(1, 25))):
        # Mostly the newest tensor: memory is reused along chains.
        a = draw(st.sampled_from(tensors[-4:] if draw(st.booleans()) else tensors))
        node = _steps(draw, tensors, a)
        if draw(st.integers(0, 7)) == 0:
            node.set_output()
        tensors.append(node)
    ends = draw(st.lists(st.sampled_from(tensors), max_size=3))
    return Graph(*ends, tensors[-1])
