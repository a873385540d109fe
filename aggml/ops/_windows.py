"""count_windows: how many windows fit in a line; used by all groups of convolutions."""

from __future__ import annotations

from aggml.errors import InvalidArgument

__all__ = ["count_windows"]


def count_windows(op: str, n: int, kernel: int, s: int, p: int, d: int) -> int:
    """How many windows fit in a line of ``n`` elements.

    Raises:
        InvalidArgument: no window fits, or stride, padding or dilation is out of range.
    """
    if s < 1 or d < 1 or p < 0:
        raise InvalidArgument(
            f"[{op}] stride {s}, padding {p}, dilation {d}: must be >= 1, >= 0, >= 1"
        )
    count = (n + 2 * p - d * (kernel - 1) - 1) // s + 1
    if count < 1:
        raise InvalidArgument(
            f"[{op}] a kernel of {kernel}, dilated by {d}, does not fit in {n} padded by {p}"
        )
    return count
