"""For tests of custom nodes: a user's function that doubles its operand, a leaf, its values.

Not here: the tests (test_custom.py, test_custom_streams.py).
"""

from __future__ import annotations

from typing import Any

import numpy as np

import aggml
from aggml import new_tensor

__all__ = ["Array", "X", "double", "leaf"]

Array = np.ndarray[Any, Any]
X = np.arange(15, dtype=np.float32).reshape(3, 5)


def double(dst: Array, a: Array, ith: int, nth: int, userdata: object) -> None:
    np.multiply(a, 2, out=dst)


def leaf(name: str = "a", dtype: str = "f32") -> aggml.Tensor:
    return new_tensor(dtype, ne=(5, 3), name=name)
