"""Dataset: data points and their labels in arrays, shuffled by shards, read in batches.

Not here: the tensors that take a batch (trainer.py).
"""

from __future__ import annotations

from operator import index
from typing import Any

import numpy as np

from aggml.errors import InvalidArgument, InvalidHandle, LayoutMismatch, OutOfBounds

__all__ = ["Dataset"]

Array = np.ndarray[Any, Any]


class Dataset:
    """Data points and, if the loss needs them, a label for each (``ggml_opt_dataset``).

    The arrays are used as they are, without a copy. Shuffling permutes an index.

    Args:
        data: [n, ...]: n data points along the first axis.
        labels: [n, ...]: the label of each; None: no labels.
        shard: consecutive data points that stay together; the unit of shuffling. A batch has whole
            shards. 1 mixes best, more read memory in longer pieces.

    Raises:
        InvalidArgument: no data point, or ``shard`` does not divide their number.
        InvalidHandle: ``data`` or ``labels`` is no array of numbers, ``shard`` no integer.
        LayoutMismatch: not one label for each data point.
    """

    data: Array
    labels: Array | None
    shard: int

    def __init__(self, data: object, labels: object = None, *, shard: int = 1) -> None:
        self.data = _array("data", data)
        self.labels = None if labels is None else _array("labels", labels)
        n = len(self.data)
        if not n:
            raise InvalidArgument("[Dataset] data has no data point")
        if self.labels is not None and len(self.labels) != n:
            raise LayoutMismatch(
                f"[Dataset] {len(self.labels)} labels for {n} data points: expected one for each"
            )
        self.shard = _integer("shard", shard)
        if self.shard < 1 or n % self.shard:
            raise InvalidArgument(f"[Dataset] shard = {shard} does not divide {n} data points")
        self._order = np.arange(n // self.shard)

    def __len__(self) -> int:
        return len(self.data)

    def __repr__(self) -> str:
        labels = "" if self.labels is None else f", labels {list(self.labels.shape[1:])}"
        return f"<Dataset of {len(self)} data points {list(self.data.shape[1:])}{labels}>"

    @property
    def order(self) -> Array:
        """The indices of the data points in the order in which batches have them."""
        return (self._order[:, None] * self.shard + np.arange(self.shard)).ravel()

    def shuffle(self, rng: np.random.Generator, n: int | None = None) -> None:
        """Put the shards of the first ``n`` data points into a random order.

        Args:
            rng: decides the order; the same state gives the same order.
            n: how many, whole shards; None: all.

        Raises:
            InvalidArgument: ``n`` is no whole number of shards.
            InvalidHandle: ``rng`` is no numpy Generator.
            OutOfBounds: more than there are, or below 0.
        """
        if not isinstance(rng, np.random.Generator):
            raise InvalidHandle(f"[Dataset.shuffle] rng = {rng!r} is no numpy.random.Generator")
        n = len(self) if n is None else _integer("n", n)
        if not 0 <= n <= len(self):
            raise OutOfBounds(f"[Dataset.shuffle] n = {n} of {len(self)} data points")
        if n % self.shard:
            raise InvalidArgument(f"[Dataset.shuffle] n = {n} cuts shards of {self.shard}")
        rng.shuffle(self._order[: n // self.shard])

    def batch(self, i: int, size: int) -> tuple[Array, Array | None]:
        """Batch ``i`` of those of ``size`` data points: the data and the labels.

        Raises:
            InvalidArgument: ``size`` is no whole number of shards, or none.
            OutOfBounds: there is no such batch.
        """
        i, size = _integer("i", i), _integer("size", size)
        if size < 1 or size % self.shard:
            raise InvalidArgument(f"[Dataset.batch] size = {size} cuts shards of {self.shard}")
        if not 0 <= i < len(self) // size:
            raise OutOfBounds(f"[Dataset.batch] batch {i} of {len(self) // size} of {size}")
        shards = size // self.shard
        chosen = self._order[i * shards : (i + 1) * shards]
        at = (chosen[:, None] * self.shard + np.arange(self.shard)).ravel()
        return self.data[at], None if self.labels is None else self.labels[at]


def _array(name: str, given: object) -> Array:
    try:
        array = np.asarray(given)
    except ValueError as error:  # rows of different lengths
        raise InvalidHandle(f"[Dataset] {name} is no array: {error}") from None
    if array.ndim < 1 or array.dtype.kind not in "biufV":
        raise InvalidHandle(f"[Dataset] {name} = {given!r:.60}: give an array [n, ...] of numbers")
    return array


def _integer(name: str, given: object) -> int:
    try:
        return index(given)  # type: ignore[arg-type]
    except TypeError:
        raise InvalidHandle(f"[Dataset] {name} = {given!r} is no integer") from None
