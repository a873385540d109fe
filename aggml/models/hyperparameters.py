"""Hyperparameters: the metadata of a model file, under GGUF's names.

Here: reading them, with errors for missing ones. Not here: their meaning for one architecture
(architectures/), the weights (weights.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from aggml.models.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Hyperparameters"]


class Hyperparameters:
    """The metadata of a model, read under its architecture's prefix.

    Args:
        metadata: of a GGUF file, or the same keys and values from another source.

    Raises:
        ModelError: the metadata names no architecture.
    """

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self.metadata = metadata
        found = metadata.get("general.architecture")
        if not isinstance(found, str):
            raise ModelError("the file names no architecture (general.architecture)")
        self.architecture = found

    def get(self, name: str, default: Any = None) -> Any:  # noqa: ANN401 as the file has it
        """The value of ``ARCHITECTURE.name``, or ``default``."""
        return self.metadata.get(f"{self.architecture}.{name}", default)

    def _need(self, name: str, default: Any) -> Any:  # noqa: ANN401 as the file has it
        found = self.get(name, default)
        if found is None:
            raise ModelError(
                f"the file has no {self.architecture}.{name}, which this architecture needs: "
                "convert the model again"
            )
        return found

    def integer(self, name: str, default: int | None = None) -> int:
        """A whole number; an array of equal elements counts as that element.

        Raises:
            ModelError: the file does not give it and there is no default; the layers differ.
        """
        found = self._need(name, default)
        if isinstance(found, (list, np.ndarray)):
            different = {int(x) for x in found}
            if len(different) != 1:
                raise ModelError(
                    f"{self.architecture}.{name} differs from layer to layer: {sorted(different)}; "
                    "this architecture expects one number"
                )
            return different.pop()
        return int(found)

    def number(self, name: str, default: float | None = None) -> float:
        """A number.

        Raises:
            ModelError: the file does not give it and there is no default.
        """
        return float(self._need(name, default))

    def flag(self, name: str, default: bool | None = None) -> bool:
        """True or False.

        Raises:
            ModelError: the file does not give it and there is no default.
        """
        return bool(self._need(name, default))

    def each_layer(self, name: str, layers: int, default: int | None = None) -> tuple[int, ...]:
        """A whole number for each layer; the file gives one for all layers or one for each.

        Raises:
            ModelError: the file does not give it and there is no default; it gives too few.
        """
        found = self._need(name, default)
        if not isinstance(found, (list, np.ndarray)):
            return (int(found),) * layers
        if len(found) < layers:
            raise ModelError(
                f"{self.architecture}.{name} has {len(found)} values for {layers} layers"
            )
        return tuple(int(x) for x in found[:layers])
