"""fit: epochs of training and validation over a data set, with progress.

Not here: one batch (trainer.py), the data (dataset.py).
"""

from __future__ import annotations

import math
import sys
import time
from operator import index
from typing import TYPE_CHECKING, NamedTuple

import anyio.lowlevel
import numpy as np

from aggml import InvalidArgument, InvalidHandle, Tensor
from aggml.opt.dataset import Dataset
from aggml.opt.results import Results
from aggml.opt.trainer import Trainer
from aggml.process import html

if TYPE_CHECKING:
    from collections.abc import Callable

    from aggml import Backend, Scheduler
    from aggml.opt.losses import LossType
    from aggml.opt.optimizers import Optimizer

__all__ = ["Epoch", "TrainingProgress", "fit", "progress_bar", "run_epoch"]


class TrainingProgress(NamedTuple):
    """What `fit` tells after each batch.

    Attributes:
        trainer: what is trained.
        training: whether this part of the data trains; otherwise it validates.
        epoch: the number of the epoch, from 1.
        n_epochs: how many there are.
        batch: batches of this part that are done.
        n_batches: how many it has.
        results: of this part so far.
        seconds: since this part began.
    """

    trainer: Trainer
    training: bool
    epoch: int
    n_epochs: int
    batch: int
    n_batches: int
    results: Results
    seconds: float

    def _repr_html_(self) -> str:
        """For notebooks: a bar."""
        part = "training" if self.training else "validation"
        text = f"epoch {self.epoch} of {self.n_epochs}, {part}, {self.seconds:.1f} s"
        return html.bar(text, self.batch, self.n_batches)


class Epoch(NamedTuple):
    """The results of one pass over the data.

    Attributes:
        epoch: its number, from 1.
        training: of the data that trained.
        validation: of the data that did not; without data points if there was no such part.
    """

    epoch: int
    training: Results
    validation: Results


async def fit(
    on: Backend | Scheduler | Trainer,
    inputs: Tensor | None = None,
    outputs: Tensor | None = None,
    dataset: Dataset | None = None,
    *,
    loss: LossType | str | None = None,
    optimizer: Optimizer | Callable[[int], Optimizer] | None = None,
    epochs: int = 1,
    batch: int | None = None,
    val_split: float = 0.0,
    seed: int | np.random.Generator | None = None,
    progress: Callable[[TrainingProgress], object] | None = None,
) -> list[Epoch]:
    """Train a model on a data set (``ggml_opt_fit``).

    Before the first epoch all data points are shuffled, before each epoch those that train.

    Args:
        on: the backend or the scheduler that computes; or a `Trainer`, which goes on training.
            Then ``inputs``, ``outputs``, ``loss``, ``optimizer`` and ``batch`` are the trainer's.
        inputs: as `Trainer` takes it.
        outputs: likewise.
        dataset: the data; its size is a multiple of ``batch``.
        loss: as `Trainer` takes it.
        optimizer: likewise.
        epochs: how often the data are gone through.
        batch: data points between two steps of the optimizer, a multiple of those that ``inputs``
            has; the gradients of several batches are added up for a step. None: those of
            ``inputs``.
        val_split: the share of the data that validates: 0 or more, below 1.
        seed: of the shuffling, or a Generator of numpy. None: a new order each time.
        progress: called after each batch; `progress_bar` prints a line.

    Returns:
        The results of each epoch.

    Raises:
        InvalidArgument: sizes that do not fit each other, no epoch, a wrong ``val_split``.
        InvalidHandle: an argument of the wrong sort.
        As `Trainer` and `Trainer.train`.

    Cancellation: between two batches. The batch that is under way is carried out. Parameters,
    accumulators and the optimizer are those after that batch; with a `Trainer` of your own
    (`Trainer.steps`, `Trainer.pending`) training can go on from there. An exception of
    ``progress`` ends training in the same way.
    """
    trainer = _trainer(on, inputs, outputs, loss, optimizer, batch)
    if not isinstance(dataset, Dataset):
        raise InvalidHandle(f"[opt.fit] dataset = {dataset!r} is no Dataset")
    try:
        n_epochs = index(epochs)
    except TypeError:
        raise InvalidHandle(f"[opt.fit] epochs = {epochs!r} is no integer") from None
    if n_epochs < 1:
        raise InvalidArgument(f"[opt.fit] epochs = {epochs}: expected 1 or more")
    if isinstance(val_split, bool) or not isinstance(val_split, int | float):
        raise InvalidHandle(f"[opt.fit] val_split = {val_split!r} is no number")
    if not 0 <= val_split < 1:
        raise InvalidArgument(f"[opt.fit] val_split = {val_split}: expected 0 or more, below 1")
    if progress is not None and not callable(progress):
        raise InvalidHandle(f"[opt.fit] progress = {progress!r} is no function")
    try:
        rng = np.random.default_rng(seed)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"[opt.fit] seed = {seed!r}: {error}") from None
    each = trainer.inputs.shape[0]
    logical = each * trainer.opt_period
    if len(dataset) % logical or each % dataset.shard:
        raise InvalidArgument(
            f"[opt.fit] {dataset!r} in shards of {dataset.shard} is no whole number of steps of "
            f"{logical} data points in batches of {each}"
        )
    steps = int((1.0 - val_split) * (len(dataset) // logical))
    if not steps:
        raise InvalidArgument(
            f"[opt.fit] val_split = {val_split} leaves no step of {logical} of {len(dataset)} data "
            "points to train with"
        )
    split = steps * logical
    if logical < len(dataset):
        dataset.shuffle(rng)
    done = []
    for i in range(1, n_epochs + 1):
        if logical < split:
            dataset.shuffle(rng, split)
        trainer.epoch = i
        found = Epoch(i, Results(), Results())
        await run_epoch(trainer, dataset, found, split, n_epochs=n_epochs, progress=progress)
        done.append(found)
    return done


def _trainer(
    on: Backend | Scheduler | Trainer,
    inputs: Tensor | None,
    outputs: Tensor | None,
    loss: LossType | str | None,
    optimizer: Optimizer | Callable[[int], Optimizer] | None,
    batch: int | None,
) -> Trainer:
    if isinstance(on, Trainer):
        own = {"inputs": inputs, "outputs": outputs, "loss": loss, "optimizer": optimizer}
        for name, value in {**own, "batch": batch}.items():
            if value is not None:
                raise InvalidArgument(f"[opt.fit] {name} is that of the Trainer: do not pass it")
        return on
    if inputs is None or outputs is None or loss is None:
        raise InvalidArgument("[opt.fit] give inputs, outputs and loss, or a Trainer")
    if not isinstance(inputs, Tensor):
        raise InvalidHandle(f"[opt.fit] inputs = {inputs!r} is no tensor")
    period = 1
    if batch is not None:
        each = inputs.shape[0]
        try:
            period, left = divmod(index(batch), each)
        except TypeError:
            raise InvalidHandle(f"[opt.fit] batch = {batch!r} is no integer") from None
        if period < 1 or left:
            raise InvalidArgument(
                f"[opt.fit] batch = {batch} is no multiple of the {each} data points of inputs"
            )
    return Trainer(on, inputs, outputs, loss=loss, optimizer=optimizer, opt_period=period)


async def run_epoch(
    trainer: Trainer,
    dataset: Dataset,
    into: Epoch,
    split: int | None = None,
    *,
    n_epochs: int = 1,
    progress: Callable[[TrainingProgress], object] | None = None,
) -> None:
    """One pass over the data: training up to ``split``, evaluation behind it (``ggml_opt_epoch``).

    Args:
        trainer: what is trained.
        dataset: the data, taken in its order.
        into: where the results are added.
        split: data points that train; None: all.
        n_epochs: for ``progress``.
        progress: called after each batch.

    Cancellation: as `fit`.
    """
    each = trainer.inputs.shape[0]
    n = len(dataset) // each
    n_training = n if split is None else split // each
    for training, first, last in ((True, 0, n_training), (False, n_training, n)):
        began = time.perf_counter()
        results = into.training if training else into.validation
        run = trainer.train if training else trainer.evaluate
        for i in range(first, last):
            await anyio.lowlevel.checkpoint()
            data, labels = dataset.batch(i, each)
            await run(data, labels, results)
            if progress is not None:
                seconds = time.perf_counter() - began
                done, total = i + 1 - first, last - first
                progress(
                    TrainingProgress(
                        trainer, training, into.epoch, n_epochs, done, total, results, seconds
                    )
                )


def progress_bar(progress: TrainingProgress) -> None:
    """Show progress as one line on stderr, for ``fit(progress=progress_bar)``."""
    width = 8
    full = width * progress.batch // progress.n_batches
    loss, accuracy = progress.results.loss, progress.results.accuracy
    right = ""
    if not math.isnan(accuracy.value):
        right = f" acc={100 * accuracy.value:.2f}±{100 * accuracy.uncertainty:.2f}%"
    left = progress.seconds * (progress.n_batches - progress.batch) / progress.batch
    end = "\n" if progress.batch == progress.n_batches else ""
    sys.stderr.write(
        f"\r{'train' if progress.training else 'val'} {progress.epoch}/{progress.n_epochs} "
        f"[{'█' * full}{' ' * (width - full)}] {progress.batch}/{progress.n_batches} "
        f"loss={loss.value:.5f}±{loss.uncertainty:.5f}{right} "
        f"t={progress.seconds:.0f}s ETA={left:.0f}s{end}"
    )
    sys.stderr.flush()
