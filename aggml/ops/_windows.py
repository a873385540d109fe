"""How many windows fit in a line. All groups of convolutions use it."""

from __future__ import annotations

from aggml.errors import InvalidArgument

__all__ = ["places"]


def places(op: str, n: int, kernel: int, s: int, p: int, d: int) -> int:
    """How many windows fit in a line of ``n`` elements.

    Raises:
        InvalidArgument: none, or stride, padding or dilation out of range.
    """
    if s < 1 or d < 1 or p < 0:
        raise InvalidArgument(f"[{op}] stride {s}, padding {p}, dilation {d}: not >= 1, >= 0, >= 1")
    count = (n + 2 * p - d * (kernel - 1) - 1) // s + 1
    if count < 1:
        raise InvalidArgument(
            f"[{op}] a kernel of {kernel}, dilated by {d}, does not fit in {n} padded by {p}"
        )
    return count
