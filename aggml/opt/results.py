"""Results: the losses and predictions of some batches, with their uncertainties.

Not here: what a batch computes (trainer.py).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

__all__ = ["Estimate", "Results"]

Array = np.ndarray[Any, Any]


class Estimate(NamedTuple):
    """A measured number.

    Attributes:
        value: the number.
        uncertainty: its standard error; NaN if there is too little to tell.
    """

    value: float
    uncertainty: float


class Results:
    """What batches gave (``ggml_opt_result``); each batch is added when it is done.

    Attributes:
        n: data points.
        losses: the loss of each batch.
        n_correct: predictions that agree with their labels; None if the loss has no classes.
    """

    n: int
    losses: list[float]
    n_correct: int | None

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget all batches."""
        self.n = 0
        self.losses = []
        self.n_correct = None
        self._predictions: list[Array] = []
        self._per_datapoint = True

    def add(
        self,
        n: int,
        loss: float,
        *,
        per_datapoint: bool = True,
        predictions: Array | None = None,
        n_correct: int | None = None,
    ) -> None:
        """Add a batch of ``n`` data points."""
        self.n += n
        self.losses.append(loss)
        self._per_datapoint = per_datapoint
        if predictions is not None:
            self._predictions.append(predictions)
        if n_correct is not None:
            self.n_correct = (self.n_correct or 0) + n_correct

    @property
    def loss(self) -> Estimate:
        """The mean loss of a data point; with `LossType.SUM` the sum over all.

        The uncertainty comes from the spread of the batches; of one batch it is NaN.
        """
        n = len(self.losses)
        if not n:
            return Estimate(0.0, math.nan)
        mean = math.fsum(self.losses) / n
        value = mean if self._per_datapoint else mean * n
        if n < 2:
            return Estimate(value, math.nan)
        variance = math.fsum([(loss - mean) ** 2 for loss in self.losses]) / n
        error = math.sqrt(variance / (n - 1))
        return Estimate(value, error if self._per_datapoint else error * n)

    @property
    def accuracy(self) -> Estimate:
        """The share of predictions that are right; NaN if the loss has no classes."""
        if self.n_correct is None or not self.n:
            return Estimate(math.nan, math.nan)
        share = self.n_correct / self.n
        if self.n < 2:
            return Estimate(share, math.nan)
        return Estimate(share, math.sqrt(share * (1 - share) / (self.n - 1)))

    @property
    def predictions(self) -> Array:
        """The class of each data point, i32, in the order of the batches."""
        return np.concatenate([np.zeros(0, np.int32), *self._predictions])

    def __repr__(self) -> str:
        loss, accuracy = self.loss, self.accuracy
        right = "" if math.isnan(accuracy.value) else f", accuracy {100 * accuracy.value:.2f} %"
        return f"<Results of {self.n} data points: loss {loss.value:.5g}{right}>"
