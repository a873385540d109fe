"""LossType: the quantities that training makes small, and the nodes that compute them.

Not here: gradients (gradients/), how losses of several batches are put together (results.py).
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from aggml import DType, InvalidArgument, LayoutMismatch, Tensor, Unsupported, new_tensor, ops
from aggml.tensor import describe

__all__ = ["LossNodes", "LossType", "loss_nodes", "parse_loss"]


class LossType(enum.Enum):
    """What training makes small (``ggml_opt_loss_type``).

    MEAN and SUM take the mean or the sum of all outputs, so the graph may compute any loss.
    CROSS_ENTROPY and MEAN_SQUARED_ERROR compare the outputs with labels.
    """

    MEAN = "mean"
    SUM = "sum"
    CROSS_ENTROPY = "cross_entropy"
    MEAN_SQUARED_ERROR = "mean_squared_error"


class LossNodes(NamedTuple):
    """The nodes that a loss adds to a graph.

    Attributes:
        labels: the leaf that takes the labels of a batch; None: the loss has none.
        loss: one f32.
        predictions: the largest output of each data point, i32; None if the outputs are no classes.
        n_correct: how many of them agree with the labels, i64; likewise.
        per_datapoint: whether the loss is a mean over data points, not a sum.
    """

    labels: Tensor | None
    loss: Tensor
    predictions: Tensor | None
    n_correct: Tensor | None
    per_datapoint: bool


def parse_loss(given: LossType | str) -> LossType:
    """The loss of that name.

    Raises:
        InvalidArgument: there is none.
    """
    try:
        return given if isinstance(given, LossType) else LossType(given)
    except ValueError:
        names = ", ".join([loss.value for loss in LossType])
        raise InvalidArgument(f"[opt] loss = {given!r}: expected one of {names}") from None


def loss_nodes(outputs: Tensor, loss: LossType, opt_period: int) -> LossNodes:
    """Compute a loss of ``outputs``.

    Args:
        outputs: f32.
        loss: which.
        opt_period: batches whose gradients are added up; a mean over them is a sum of their means
            divided by their number.

    Raises:
        LayoutMismatch: cross entropy of outputs that are not [classes, data points].
        Unsupported: the outputs are not f32.
    """
    if outputs.dtype is not DType.F32:
        raise Unsupported(f"[opt] outputs are {describe(outputs)}: expected f32; ops.cast converts")
    share = 1.0 / (opt_period * max(outputs.nelements, 1))
    if loss is LossType.SUM:
        return LossNodes(None, ops.sum(outputs).set_name("loss_sum"), None, None, False)
    if loss is LossType.MEAN:
        total = ops.scale(ops.sum(outputs), share).set_name("loss_mean")
        return LossNodes(None, total, None, None, True)
    labels = new_tensor(DType.F32, outputs.ne[: outputs.ndim], "labels").set_input()
    if loss is LossType.MEAN_SQUARED_ERROR:
        error = ops.sqr(ops.sub(outputs, labels))
        total = ops.scale(ops.sum(error), share).set_name("loss_mean_squared_error")
        return LossNodes(labels, total, None, None, True)
    if not outputs.is_matrix or not outputs.is_contiguous:
        raise LayoutMismatch(
            f"[opt] outputs are {describe(outputs)}: cross entropy takes a contiguous matrix "
            "[classes, data points]"
        )
    total = ops.cross_entropy_loss(outputs, labels)
    if opt_period > 1:
        total = ops.scale(total, 1.0 / opt_period)
    total.set_name("loss_cross_entropy")
    predictions = ops.argmax(outputs).set_name("predictions")
    n_correct = ops.count_equal(predictions, ops.argmax(labels)).set_name("n_correct")
    return LossNodes(labels, total, predictions, n_correct, True)
