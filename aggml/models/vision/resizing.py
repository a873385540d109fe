"""Resampling of pictures as Pillow does it, to the last bit: models were trained with that.

Each output pixel is a weighted sum of the pixels around it, first along rows and then along
columns. (llama.cpp has this order, too; Pillow 13 begins with the other side where it takes less
work.) Weights are whole numbers of 22 bits behind the point, and each pass rounds to bytes. Here:
that, on arrays, so that no picture has to become an object of Pillow. Not here: which sizes a model
wants (its file in this room).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, Literal

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    U8 = npt.NDArray[np.uint8]

__all__ = ["Filter", "cut", "resize", "resize_padded"]

Filter = Literal["bilinear", "bicubic", "lanczos"]

BITS: Final = 22  # behind the point of a weight
PIXELS_AT_ONCE: Final = 1 << 20  # so that temporary arrays stay small


def _bilinear(x: float) -> float:
    return max(0.0, 1.0 - abs(x))


def _bicubic(x: float) -> float:
    x, a = abs(x), -0.5
    if x < 1.0:
        return ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0
    return (((x - 5.0) * x + 8.0) * x - 4.0) * a if x < 2.0 else 0.0


def _sinc(x: float) -> float:
    return 1.0 if x == 0.0 else math.sin(math.pi * x) / (math.pi * x)


def _lanczos(x: float) -> float:
    return _sinc(x) * _sinc(x / 3.0) if -3.0 <= x < 3.0 else 0.0


#: Each filter, and how far it reaches.
FILTERS: Final[dict[Filter, tuple[Callable[[float], float], float]]] = {
    "bilinear": (_bilinear, 1.0), "bicubic": (_bicubic, 2.0), "lanczos": (_lanczos, 3.0),
}  # fmt: skip


def resize(rgb: U8, width: int, height: int, by: Filter) -> U8:
    """A picture of another size: (height, width, 3). The same size gives the picture itself."""
    if rgb.shape[:2] == (height, width):
        return rgb
    wide = _along_rows(rgb, width, by) if rgb.shape[1] != width else rgb
    if wide.shape[0] == height:
        return wide
    found = _along_rows(np.ascontiguousarray(wide.transpose(1, 0, 2)), height, by)
    return np.ascontiguousarray(found.transpose(1, 0, 2))


def resize_padded(rgb: U8, width: int, height: int, by: Filter) -> U8:
    """As `resize`, but the sides keep their ratio, and the rest is black: half on each side."""
    if rgb.shape[:2] == (height, width):
        return rgb
    one = np.float32
    scale = min(one(width) / one(rgb.shape[1]), one(height) / one(rgb.shape[0]))
    inner = min(math.ceil(one(rgb.shape[1]) * scale), width)
    tall = min(math.ceil(one(rgb.shape[0]) * scale), height)
    found = np.zeros((height, width, 3), np.uint8)
    x, y = (width - inner) // 2, (height - tall) // 2
    found[y : y + tall, x : x + inner] = resize(rgb, inner, tall, by)
    return found


def cut(rgb: U8, side: int) -> list[U8]:
    """The square pieces of a picture, row by row; its sides are multiples of ``side``."""
    return [
        rgb[y : y + side, x : x + side]
        for y in range(0, rgb.shape[0], side)
        for x in range(0, rgb.shape[1], side)
    ]


def _along_rows(rgb: U8, n: int, by: Filter) -> U8:
    """Each row with ``n`` pixels instead of its own."""
    first, weights = _weights(rgb.shape[1], n, by)
    rows = max(1, PIXELS_AT_ONCE // max(n, rgb.shape[1]))
    found = np.empty((rgb.shape[0], n, 3), np.uint8)
    for at in range(0, rgb.shape[0], rows):
        some = rgb[at : at + rows]
        total = np.full((len(some), n, 3), 1 << (BITS - 1), np.int32)
        for k in range(weights.shape[1]):
            # A weight of 0 stands for a pixel beyond the edge.
            column = np.minimum(first + k, rgb.shape[1] - 1)
            total += some[:, column].astype(np.int32) * weights[:, k, None]
        found[at : at + rows] = np.clip(total >> BITS, 0, 255)
    return found


def _weights(given: int, n: int, by: Filter) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.int32]]:
    """For each of ``n`` pixels the first of ``given`` pixels that it is made of, and weights."""
    curve, reach = FILTERS[by]
    ratio = given / n
    stretch = max(ratio, 1.0)  # a smaller picture is made of wider windows
    reach *= stretch
    first = np.zeros(n, np.intp)
    rows: list[list[float]] = []
    for i in range(n):
        centre = (i + 0.5) * ratio
        low = max(int(centre - reach + 0.5), 0)
        high = min(int(centre + reach + 0.5), given)
        row = [curve((x - centre + 0.5) / stretch) for x in range(low, high)]
        total = sum(row)
        first[i] = low
        rows.append([x / total for x in row] if total else row)
    found = np.zeros((n, max(map(len, rows))), np.int32)
    for i, row in enumerate(rows):
        found[i, : len(row)] = [int(x * (1 << BITS) + math.copysign(0.5, x)) for x in row]
    return first, found
