"""GGUF files of the tests: their values and tensors, and files made byte by byte.

Not in tests/gguf: a test there that imports gguf means the package.
"""

from __future__ import annotations

import struct
from typing import Any

import gguf
import numpy as np

VALUES: dict[str, tuple[Any, gguf.GGUFValueType, gguf.GGUFValueType | None]] = {
    "t.uint8": (200, gguf.GGUFValueType.UINT8, None),
    "t.int8": (-100, gguf.GGUFValueType.INT8, None),
    "t.uint16": (60000, gguf.GGUFValueType.UINT16, None),
    "t.int16": (-30000, gguf.GGUFValueType.INT16, None),
    "t.uint32": (4_000_000_000, gguf.GGUFValueType.UINT32, None),
    "t.int32": (-2_000_000_000, gguf.GGUFValueType.INT32, None),
    "t.uint64": (1 << 63, gguf.GGUFValueType.UINT64, None),
    "t.int64": (-(1 << 62), gguf.GGUFValueType.INT64, None),
    "t.float32": (0.5, gguf.GGUFValueType.FLOAT32, None),
    "t.float64": (1e-300, gguf.GGUFValueType.FLOAT64, None),
    "t.bool": (True, gguf.GGUFValueType.BOOL, None),
    "t.string": ("blåbær 天", gguf.GGUFValueType.STRING, None),
    "t.strings": (["<s>", "", "▁the"], gguf.GGUFValueType.ARRAY, gguf.GGUFValueType.STRING),
    "t.floats": ([0.25, -1.0], gguf.GGUFValueType.ARRAY, gguf.GGUFValueType.FLOAT32),
    "t.ints": ([3, -4, 5], gguf.GGUFValueType.ARRAY, gguf.GGUFValueType.INT32),
    "t.bools": ([True, False], gguf.GGUFValueType.ARRAY, gguf.GGUFValueType.BOOL),
}


def floats(shape: tuple[int, ...], seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


TENSORS: dict[str, np.ndarray] = {
    "blk.0.attn_q.weight": floats((3, 64), 1),
    "blk.0.attn_k.weight": floats((5, 32), 2).astype(np.float16),
    "cube": floats((2, 3, 4), 3),
    "four": floats((2, 3, 1, 5), 4),
    "ids": np.arange(7, dtype=np.int32),
    "bias": floats((1,), 5),
}
Q8 = floats((4, 64), 6)


def text(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(data)) + data


def value(key: str | bytes, kind: int, data: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + data


def entry(
    name: str | bytes, ne: tuple[int, ...], kind: int = 0, offset: int = 0, dims: int | None = None
) -> bytes:
    extents = struct.pack(f"<{len(ne)}Q", *ne)
    count = len(ne) if dims is None else dims
    return text(name) + struct.pack("<I", count) + extents + struct.pack("<IQ", kind, offset)


def gguf_file(
    values: tuple[bytes, ...] = (),
    tensors: tuple[bytes, ...] = (),
    data: int = 0,
    *,
    version: int = 3,
    alignment: int = 32,
    n_values: int | None = None,
    n_tensors: int | None = None,
) -> bytes:
    counts = (
        len(tensors) if n_tensors is None else n_tensors,
        len(values) if n_values is None else n_values,
    )
    header = b"GGUF" + struct.pack("<IQQ", version, *counts) + b"".join(values) + b"".join(tensors)
    return header + bytes(-len(header) % alignment) + bytes(data)
