"""Strided: what follows from extents and strides alone, as properties.

Here: shape, counts, and whether elements lie contiguous, transposed or permuted. Not here:
arithmetic with the extents of several tensors (layout.py), the fields (tensor.py).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from aggml.tensor.layout import Extents, least_ndim

if TYPE_CHECKING:
    from aggml.dtype import DType

__all__ = ["Strided"]


class Strided:
    """Something with a type, extents and strides; see `Tensor` for the fields."""

    __slots__ = ()

    dtype: DType
    ne: Extents
    ndim: int
    nb: Extents
    nbytes: int

    # -- shape

    @property
    def shape(self) -> tuple[int, ...]:
        """The numpy order: reversed ``ne`` with ``ndim`` axes."""
        return self.ne[self.ndim - 1 :: -1]

    @property
    def n_dims(self) -> int:
        """Dimensions up to the last whose extent is not 1, at least one (``ggml_n_dims``).

        It depends on the extents, and may be less than ``ndim``.
        """
        return least_ndim(self.ne)

    @property
    def nelements(self) -> int:
        """Number of elements."""
        return math.prod(self.ne)

    @property
    def nrows(self) -> int:
        """Number of rows, ``ne[1] * ne[2] * ne[3]``."""
        return math.prod(self.ne[1:])

    @property
    def is_empty(self) -> bool:
        """Whether any extent is 0."""
        return 0 in self.ne

    @property
    def is_scalar(self) -> bool:
        """Whether there is exactly one element."""
        return self.ne == (1, 1, 1, 1)

    @property
    def is_vector(self) -> bool:
        """Whether only ``ne[0]`` differs from 1."""
        return self.ne[1:] == (1, 1, 1)

    @property
    def is_matrix(self) -> bool:
        """Whether ``ne[2]`` and ``ne[3]`` are 1."""
        return self.ne[2:] == (1, 1)

    # -- layout

    @property
    def is_contiguous(self) -> bool:
        """Whether the elements lie without gaps in logical order (``ggml_is_contiguous``)."""
        return self.is_contiguous_n(0)

    def is_contiguous_n(self, n: int) -> bool:
        """The same, but strides of dimensions 1 to ``n`` may be any (``ggml_is_contiguous_n``)."""
        ne, nb, dtype = self.ne, self.nb, self.dtype
        if ne[0] != dtype.blck_size and nb[0] != dtype.type_size:
            return False
        expected = dtype.type_size * (ne[0] // dtype.blck_size)
        for i in (1, 2, 3):
            if i > n:
                if ne[i] != 1 and nb[i] != expected:
                    return False
                expected *= ne[i]
            else:
                expected = ne[i] * nb[i]
        return True

    @property
    def is_contiguous_rows(self) -> bool:
        """Whether the elements of each row lie without gaps (``ggml_is_contiguous_rows``)."""
        return self.ne[0] == self.dtype.blck_size or self.nb[0] == self.dtype.type_size

    @property
    def is_contiguously_allocated(self) -> bool:
        """Whether the span has no gaps, in whatever order the elements lie."""
        n, block = self.nelements, self.dtype.blck_size
        return n % block == 0 and self.nbytes == n // block * self.dtype.type_size

    @property
    def is_contiguous_channels(self) -> bool:
        """Whether dimension 2 is innermost in memory, then 0 (``ggml_is_contiguous_channels``)."""
        nb = self.nb
        return nb[1] > nb[0] > nb[2] == self.dtype.type_size

    @property
    def is_padded_1d(self) -> bool:
        """Whether only rows are padded: all rows have one distance (``ggml_is_padded_1d``)."""
        ne, nb = self.ne, self.nb
        return nb[0] == self.dtype.type_size and nb[2] == nb[1] * ne[1] and nb[3] == nb[2] * ne[2]

    @property
    def is_transposed(self) -> bool:
        """Whether rows lie closer together than the elements of a row (``ggml_is_transposed``)."""
        return self.nb[0] > self.nb[1]

    @property
    def is_permuted(self) -> bool:
        """Whether strides do not ascend (``ggml_is_permuted``)."""
        a, b, c, d = self.nb
        return a > b or b > c or c > d
