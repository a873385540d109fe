"""Plain tensors for the tests of this folder: making and drawing them, offsets of their elements.

Not here: tests.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from aggml import Tensor, new_tensor

extents = st.lists(st.integers(1, 5), min_size=4, max_size=4).map(tuple)
axes = st.permutations(range(4)).map(tuple)


def leaf(*ne: int, dtype: str = "f32", name: str = "x") -> Tensor:
    return new_tensor(dtype, ne=ne, name=name)


def strided(tensor: Tensor) -> np.ndarray[Any, Any]:
    """The offsets of all elements of a plain tensor in its storage, shape (ne3, ne2, ne1, ne0)."""
    offsets: np.ndarray[Any, Any] = np.full((1, 1, 1, 1), tensor.view_offs)
    for i in range(4):
        steps = np.arange(tensor.ne[i]) * tensor.nb[i]
        offsets = offsets + steps.reshape([-1 if j == 3 - i else 1 for j in range(4)])
    return offsets
