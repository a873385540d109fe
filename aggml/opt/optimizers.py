"""AdamW and SGD: the numbers of a step, and the node that takes it.

Not here: the arithmetic (ops/optimizers.py and its kernels).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np

from aggml import InvalidArgument, Tensor, ops

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["SGD", "AdamW", "Optimizer"]

Array = np.ndarray[Any, Any]


def _check(optimizer: object, bounds: Mapping[str, tuple[float, float]]) -> None:
    name = type(optimizer).__name__
    for field in fields(optimizer):  # type: ignore[arg-type]
        value = getattr(optimizer, field.name)
        low, high = bounds[field.name]
        if isinstance(value, bool) or not isinstance(value, int | float | np.floating):
            raise InvalidArgument(f"[{name}] {field.name} = {value!r} is no number")
        above = value > low if field.name == "alpha" else value >= low
        if not (above and value <= high and math.isfinite(value)):
            what = f"above {low}" if field.name == "alpha" else f"{low} or more"
            most = "" if high == math.inf else f", {high} at most"
            raise InvalidArgument(f"[{name}] {field.name} = {value}: expected {what}{most}")


@dataclass(frozen=True, kw_only=True)
class AdamW:
    """Adam with decoupled weight decay: each parameter has a step length of its own.

    Attributes:
        alpha: the step length (learning rate), above 0.
        beta1: what remains of the running mean of gradients in a step, 0 to 1.
        beta2: what remains of the running mean of their squares, 0 to 1.
        eps: added to the root of that mean, so that nothing is divided by 0.
        wd: the share of a parameter that decays in a step of length 1 (weight decay), 0 to 1.
    """

    alpha: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    wd: float = 0.0

    #: How many running means each parameter has.
    n_means: ClassVar[int] = 2
    #: How many numbers a step takes.
    n_numbers: ClassVar[int] = 7

    def __post_init__(self) -> None:
        unit = (0.0, 1.0)
        positive = (0.0, math.inf)
        _check(self, {"alpha": positive, "beta1": unit, "beta2": unit, "eps": positive, "wd": unit})

    def numbers(self, step: int) -> Array:
        """The seven numbers of ``ops.opt_step_adamw`` for a step, the first of which is 1.

        They are alpha, beta1, beta2, eps, wd, beta1h and beta2h. The running means begin at 0, so
        they are too small at first: beta1h = 1 / (1 - beta1^step) and beta2h, likewise, correct
        that.

        Raises:
            InvalidArgument: ``step`` is no whole number from 1 on.
        """
        given: object = step
        if isinstance(given, bool) or not isinstance(given, int | np.integer) or given < 1:
            raise InvalidArgument(f"[AdamW.numbers] step = {step!r}: expected 1, 2, ...")
        f = np.float32
        with np.errstate(divide="ignore"):
            beta1h = f(1) / (f(1) - f(self.beta1) ** f(step))
            beta2h = f(1) / (f(1) - f(self.beta2) ** f(step))
        numbers = (self.alpha, self.beta1, self.beta2, self.eps, self.wd, beta1h, beta2h)
        return np.array(numbers, f)

    def step(self, param: Tensor, grad: Tensor, means: Sequence[Tensor], numbers: Tensor) -> Tensor:
        """The node that changes a parameter and its running means."""
        return ops.opt_step_adamw(param, grad, means[0], means[1], numbers)


@dataclass(frozen=True, kw_only=True)
class SGD:
    """Gradient descent: each parameter goes against its gradient.

    Attributes:
        alpha: the step length (learning rate), above 0.
        wd: the share of a parameter that decays in a step of length 1 (weight decay), 0 to 1.
    """

    alpha: float = 1e-3
    wd: float = 0.0

    n_means: ClassVar[int] = 0
    n_numbers: ClassVar[int] = 2

    def __post_init__(self) -> None:
        _check(self, {"alpha": (0.0, math.inf), "wd": (0.0, 1.0)})

    def numbers(self, step: int) -> Array:
        """The two numbers of ``ops.opt_step_sgd``: alpha and wd."""
        return np.array((self.alpha, self.wd), np.float32)

    def step(self, param: Tensor, grad: Tensor, means: Sequence[Tensor], numbers: Tensor) -> Tensor:
        """The node that changes a parameter."""
        return ops.opt_step_sgd(param, grad, numbers)


#: Either of them; a value that is passed to a trainer keeps its class for all of its steps.
Optimizer: TypeAlias = "AdamW | SGD"
