"""ModelError: why a file is no model that this package can run."""

from __future__ import annotations

from aggml import AggmlError

__all__ = ["ModelError"]


class ModelError(AggmlError, ValueError):
    """A file is no model that this package can run, or a request does not fit the model."""
