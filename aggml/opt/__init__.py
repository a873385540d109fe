"""Training: data sets, losses, optimizers, and the loop over batches, as in ggml-opt.

dataset.py has the data, losses.py the losses, optimizers.py AdamW and SGD, results.py what was
measured, trainer.py one batch after the other, fitting.py epochs. Not here: the gradients
(gradients/), the ops of a step (ops/optimizers.py).
"""

from aggml.opt.dataset import Dataset
from aggml.opt.fitting import Epoch, TrainingProgress, fit, progress_bar
from aggml.opt.losses import LossType
from aggml.opt.optimizers import SGD, AdamW, Optimizer
from aggml.opt.results import Estimate, Results
from aggml.opt.trainer import Trainer

__all__ = [
    "SGD",
    "AdamW",
    "Dataset",
    "Epoch",
    "Estimate",
    "LossType",
    "Optimizer",
    "Results",
    "Trainer",
    "TrainingProgress",
    "fit",
    "progress_bar",
]


def __dir__() -> list[str]:
    return __all__
