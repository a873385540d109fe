"""The ops that can be differentiated, in numpy and float64: the results that gradients belong to.

All arrays have four axes in numpy's order, (ne3, ne2, ne1, ne0). Not here: the cases (cases.py),
gradients: the tests take differences of these functions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

Array = np.ndarray[Any, Any]


def tiled(x: Array, shape: tuple[int, ...]) -> Array:
    """``x`` repeated to ``shape``."""
    return np.tile(x, [n // m for n, m in zip(shape, x.shape, strict=True)])


def part_of(x: Array, ne: Sequence[int], steps: Sequence[int], start: int) -> NDArray[np.intp]:
    """The flat indices of a strided part of ``x``, steps in elements, innermost first."""
    index = np.full(tuple(ne)[::-1], start, np.intp)
    for axis, (n, step) in enumerate(zip(ne, steps, strict=True)):
        shape = [1, 1, 1, 1]
        shape[3 - axis] = n
        index = index + (np.arange(n) * step).reshape(shape)
    assert index.max(initial=0) < x.size
    return index


def put(a: Array, b: Array, steps: Sequence[int], start: int, *, add: bool) -> Array:
    """``a`` with ``b`` written into, or added to, a strided part of it."""
    flat = a.reshape(-1).copy()
    index = part_of(a, b.shape[::-1], steps, start)
    if add:
        np.add.at(flat, index, b)
    else:
        flat[index] = b
    return flat.reshape(a.shape)


def sum_tiles(x: Array, shape: tuple[int, ...]) -> Array:
    """Add up the elements that `tiled` would make of one."""
    split: list[int] = []
    for n, m in zip(x.shape, shape, strict=True):
        split += [n // m, m]
    return np.asarray(x.reshape(split).sum(axis=(0, 2, 4, 6)))


def mul_mat(a: Array, b: Array) -> Array:
    """Rows of b times rows of a; planes of a serve groups of planes of b."""
    planes = [np.repeat(a, b.shape[0] // a.shape[0], axis=0)]
    planes.append(np.repeat(planes[0], b.shape[1] // a.shape[1], axis=1))
    return np.asarray(b @ np.swapaxes(planes[1], -1, -2))


def rms_norm(x: Array, eps: float) -> Array:
    return np.asarray(x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps))


def soft_max(x: Array, sinks: Array | None = None) -> Array:
    top = x.max(axis=-1, keepdims=True)
    e = np.exp(x - top)
    total = e.sum(axis=-1, keepdims=True)
    if sinks is not None:
        total = total + np.exp(sinks.reshape(1, -1, 1, 1) - top)
    return np.asarray(e / total)


def cross_entropy(x: Array, labels: Array) -> Array:
    top = x.max(axis=-1, keepdims=True)
    logs = x - top - np.log(np.exp(x - top).sum(axis=-1, keepdims=True))
    rows = x.size // x.shape[-1]
    return np.asarray(-(labels * logs).sum() / rows).reshape(1, 1, 1, 1)


def masked(x: Array, past: int, value: float) -> Array:
    rows, n = x.shape[-2:]
    return np.where(np.arange(n) > past + np.arange(rows)[:, None], value, x)


def rope(
    x: Array, pos: Array, n_dims: int, *, neox: bool, base: float, scale: float, factors: Array
) -> Array:
    """Rotary embedding of [n, heads, tokens]: pairs of the first ``n_dims`` elements."""
    y = x.copy()
    angle = base ** (-2.0 * np.arange(n_dims // 2) / n_dims) / factors * scale
    turn = pos[:, None] * angle  # (tokens, pairs)
    cos, sin = (f(turn)[None, :, None, :] for f in (np.cos, np.sin))
    half = n_dims // 2
    at = [slice(0, half), slice(half, n_dims)] if neox else [
        slice(0, n_dims, 2), slice(1, n_dims, 2)
    ]  # fmt: skip
    a, b = x[..., at[0]], x[..., at[1]]
    y[..., at[0]] = a * cos - b * sin
    y[..., at[1]] = a * sin + b * cos
    return y


def im2col(
    x: Array, kw: int, kh: int, s: tuple[int, int], p: tuple[int, int], d: tuple[int, int]
) -> Array:
    """Windows of (n, channels, h, w) as rows [channels * kh * kw], (n, oh, ow, rows)."""
    n, c, h, w = x.shape
    big = np.pad(x, ((0, 0), (0, 0), (p[1], p[1]), (p[0], p[0])))
    ow = (w + 2 * p[0] - d[0] * (kw - 1) - 1) // s[0] + 1
    oh = (h + 2 * p[1] - d[1] * (kh - 1) - 1) // s[1] + 1
    y = np.empty((n, oh, ow, c, kh, kw))
    for i in range(oh):
        for j in range(ow):
            rows = i * s[1] + d[1] * np.arange(kh)
            columns = j * s[0] + d[0] * np.arange(kw)
            y[:, i, j] = big[:, :, rows[:, None], columns[None, :]]
    return y.reshape(n, oh, ow, c * kh * kw)


def pool_2d(x: Array, k: tuple[int, int], s: tuple[int, int], *, largest: bool) -> Array:
    n, c, h, w = x.shape
    oh, ow = (h - k[1]) // s[1] + 1, (w - k[0]) // s[0] + 1
    y = np.empty((n, c, oh, ow))
    for i in range(oh):
        for j in range(ow):
            window = x[:, :, i * s[1] : i * s[1] + k[1], j * s[0] : j * s[0] + k[0]]
            y[:, :, i, j] = window.max(axis=(2, 3)) if largest else window.mean(axis=(2, 3))
    return y
