"""The size to which a picture is brought that may have any: its sides keep their ratio, about.

Not here: resampling (resizing.py).
"""

from __future__ import annotations

import math

import numpy as np

__all__ = ["fitting_size", "longest_size"]


def fitting_size(width: int, height: int, *, unit: int, least: int, most: int) -> tuple[int, int]:
    """Width and height that are multiples of ``unit``, with so many pixels at least and at most.

    The sums are those of f32, as llama.cpp has them, so that sizes at an edge are the same.
    """
    one = np.float32

    def round_to_unit(x: np.float32) -> int:
        return math.floor(float(x / one(unit)) + 0.5) * unit

    def lower(x: np.float32) -> int:
        return math.floor(x / one(unit)) * unit

    def upper(x: np.float32) -> int:
        return math.ceil(x / one(unit)) * unit

    wide, tall = max(unit, round_to_unit(one(width))), max(unit, round_to_unit(one(height)))
    if wide * tall > most:
        ratio = np.sqrt(one(height) * one(width) / one(most))
        wide = max(unit, lower(one(width) / ratio))
        tall = max(unit, lower(one(height) / ratio))
    elif wide * tall < least:
        ratio = np.sqrt(one(least) / (one(height) * one(width)))
        wide, tall = upper(one(width) * ratio), upper(one(height) * ratio)
    # A picture that is very long and thin would take more; its ratio is given up.
    while wide * tall > max(most, least) and max(wide, tall) > unit:
        wide, tall = (wide - unit, tall) if wide >= tall else (wide, tall - unit)
    return wide, tall


def longest_size(width: int, height: int, *, unit: int, side: int) -> tuple[int, int]:
    """Width and height that are multiples of ``unit``, the longer one ``side``, rounded up.

    The sums are those of f32, as llama.cpp has them.
    """
    one = np.float32
    scale = min(one(side) / one(width), one(side) / one(height))
    wide, tall = (max(math.ceil(one(x) * scale / one(unit)), 1) * unit for x in (width, height))
    return wide, tall
