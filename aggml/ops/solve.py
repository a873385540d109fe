"""Linear systems: solve_tri.

Here: shapes, types, checks. Not here: kernels (native/*/solve.c), which look at the diagonals.
"""

from __future__ import annotations

from aggml.errors import Unsupported
from aggml.ops._common import F32, all_tensors, mismatch, need_dense, refuse_type, wider
from aggml.tensor import Tensor, new_node

__all__ = ["solve_tri"]


def solve_tri(
    a: Tensor, b: Tensor, left: bool = True, lower: bool = True, uni: bool = False
) -> Tensor:
    """Solve ``A x = b`` with lower triangular A by substitution (``ggml_solve_tri``).

    Args:
        a: f32 [n, n, s, t], contiguous; elements above the diagonals are not read. A zero on a
            diagonal fails the computation before anything is written.
        b: f32 [m, n, s, t], contiguous.
        left: has to be True: A stands on the left.
        lower: has to be True.
        uni: has to be False: the diagonals are those of ``a``, not 1.

    Returns:
        f32 [m, n, s, t].

    Raises:
        LayoutMismatch: extents that do not fit, or gaps.
        Unsupported: other types, or another kind of system.
    """
    op = "solve_tri"
    if a.__class__ is not Tensor or b.__class__ is not Tensor:
        all_tensors(op, a=a, b=b)
    if not left or not lower or uni:
        raise Unsupported(
            f"[{op}] left = {left}, lower = {lower}, uni = {uni}: only True, True, False, which "
            "solve A x = b for a lower triangle A, are supported"
        )
    if a.dtype is not F32 or b.dtype is not F32:
        raise refuse_type(op, "f32", a=a, b=b)
    if a.ne[0] != a.ne[1] or a.ne[1:] != b.ne[1:]:
        raise mismatch(op, "a [n, n, s, t] does not fit b [m, n, s, t]", a=a, b=b)
    need_dense(op, a=a, b=b)
    return new_node(op, F32, b.ne, (a, b), ndim=wider(a, b, 2))
