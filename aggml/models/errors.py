"""The errors of models: a file that is no model, and requests that could not be carried out."""

from __future__ import annotations

from aggml import AggmlError

__all__ = ["DeadlineError", "EngineError", "FullError", "ModelError", "TooLongError"]


class ModelError(AggmlError, ValueError):
    """A file is no model that this package can run, or a request does not fit the model."""


class EngineError(AggmlError):
    """A request could not be carried out; the cause is attached if there is one."""


class FullError(EngineError):
    """The queue is full, or the engine is stopping; try again after ``seconds``."""

    def __init__(self, message: str, seconds: int) -> None:
        super().__init__(message)
        self.seconds = seconds


class DeadlineError(EngineError, TimeoutError):
    """A request cannot be answered by its deadline, or was not."""


class TooLongError(EngineError, ModelError):
    """Prompt and answer do not fit the context, or the memory for keys and values.

    Args:
        message: what does not fit.
        field: the field of the request that could be smaller.
    """

    def __init__(self, message: str, field: str = "max_tokens") -> None:
        super().__init__(message)
        self.field = field
