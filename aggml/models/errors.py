"""The errors of models: of files that cannot be run, and of requests that cannot be carried out."""

from __future__ import annotations

from aggml import AggmlError, InvalidArgument

__all__ = [
    "DeadlineError", "EngineError", "FullError", "GrammarError", "ModelError", "NotFiniteError",
    "TooLongError",
]  # fmt: skip


class ModelError(AggmlError, ValueError):
    """A file is no model that this package can run, or a request does not fit the model."""


class EngineError(AggmlError):
    """A request could not be carried out; ``__cause__`` says why if there is another error."""


class FullError(EngineError):
    """The queue is full, or the engine is stopping.

    Args:
        message: which of them.
        seconds: when to try again.
    """

    def __init__(self, message: str, seconds: float) -> None:
        super().__init__(message)
        self.seconds = seconds


class DeadlineError(EngineError, TimeoutError):
    """A request missed its deadline, or would miss it and was refused at once."""


class TooLongError(EngineError, ModelError):
    """Prompt and answer do not fit the context, or the memory for keys and values.

    Args:
        message: what does not fit.
        field: the argument that could be smaller.
        tokens: of the prompt; None: not told.
        most: positions of a sequence; None: not told.
    """

    def __init__(
        self,
        message: str,
        field: str = "max_tokens",
        tokens: int | None = None,
        most: int | None = None,
    ) -> None:
        super().__init__(message)
        self.field = field
        self.tokens = tokens
        self.most = most


class NotFiniteError(EngineError, ModelError):
    """No token can be chosen for a request, because all its logits are NaN or -inf."""


class GrammarError(EngineError, InvalidArgument):
    """A grammar cannot go on with an answer that has begun: it never ends, or is too large."""
