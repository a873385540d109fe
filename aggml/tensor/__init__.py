"""Tensors: dtype, extents, strides, the operation that makes them, the storage that they view.

Here: the names. tensor.py is the class, making.py makes leafs, nodes and views, layout.py is the
arithmetic of extents and strides.
"""

from aggml.tensor.dlpack import array_over
from aggml.tensor.layout import (
    MAX_BYTES,
    MAX_DIMS,
    MAX_NAME,
    ONES,
    Extents,
    can_repeat,
    cut,
    describe,
    fresh_strides,
    same_layout,
    span,
)
from aggml.tensor.making import (
    MAX_SRC,
    NO_PARAMS,
    new_like,
    new_node,
    new_permuted,
    new_tensor,
    new_view,
)
from aggml.tensor.tensor import Tensor, TensorFlag, change

__all__ = [
    "MAX_BYTES",
    "MAX_DIMS",
    "MAX_NAME",
    "MAX_SRC",
    "NO_PARAMS",
    "ONES",
    "Extents",
    "Tensor",
    "TensorFlag",
    "array_over",
    "can_repeat",
    "change",
    "cut",
    "describe",
    "fresh_strides",
    "new_like",
    "new_node",
    "new_permuted",
    "new_tensor",
    "new_view",
    "same_layout",
    "span",
]


def __dir__() -> list[str]:
    return __all__
