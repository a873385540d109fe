"""Hyperparameters: the metadata of a model file, under GGUF's names.

Here: reading them, with errors for missing and wrong ones. Not here: their meaning for one
architecture (architectures/), the weights (weights.py).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from aggml.models.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["LARGEST", "MOST_LAYERS", "Hyperparameters"]

LARGEST: Final = (1 << 31) - 1  # of a count or an extent
MOST_LAYERS: Final = 1024  # a larger number is a mistake, and would take memory for each layer


class Hyperparameters:
    """The metadata of a model, read under its architecture's prefix.

    Args:
        metadata: of a GGUF file, or the same keys and values from another source.

    Attributes:
        read: the names that were asked for, without the architecture.

    Raises:
        ModelError: the metadata names no architecture.
    """

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self.metadata = metadata
        found = metadata.get("general.architecture")
        if not isinstance(found, str):
            raise ModelError("the file names no architecture (general.architecture)")
        self.architecture = found
        self.read: set[str] = set()

    def get(self, name: str, default: Any = None) -> Any:  # noqa: ANN401 as the file has it
        """The value of ``ARCHITECTURE.name``, or ``default``."""
        self.read.add(name)
        return self.metadata.get(f"{self.architecture}.{name}", default)

    def _need(self, name: str, default: Any) -> Any:  # noqa: ANN401 as the file has it
        found = self.get(name, default)
        if found is None:
            raise ModelError(
                f"the file has no {self.architecture}.{name}, which this architecture needs: "
                "convert the model again"
            )
        return found

    def integer(
        self, name: str, default: int | None = None, *, least: int = 0, most: int = LARGEST
    ) -> int:
        """A whole number; an array of equal elements counts as that element.

        Args:
            name: of the key, without the architecture.
            default: if the file does not give it; None: it must.
            least: the lowest number that is right.
            most: the highest one.

        Raises:
            ModelError: the file does not give it and there is no default; the layers differ; it is
                no whole number, or outside of the bounds.
        """
        found = self._need(name, default)
        if isinstance(found, (list, np.ndarray)):
            different = {self._whole(name, x, least, most) for x in _to_list(found)}
            if len(different) != 1:
                raise ModelError(
                    f"{self.architecture}.{name} differs from layer to layer: {sorted(different)}; "
                    "this architecture expects one number"
                )
            return different.pop()
        return self._whole(name, found, least, most)

    def number(
        self,
        name: str,
        default: float | None = None,
        *,
        least: float = -math.inf,
        above: float = -math.inf,
        most: float = math.inf,
    ) -> float:
        """A number.

        Args:
            name: of the key, without the architecture.
            default: if the file does not give it; None: it must.
            least: the lowest number that is right.
            above: all right numbers are higher than this.
            most: the highest one.

        Raises:
            ModelError: the file does not give it and there is no default; it is no finite number,
                or outside of the bounds.
        """
        found = self._need(name, default)
        if not _is_finite(found):
            raise self._wrong(name, found, "a finite number")
        if found < least or found > most:
            raise self._wrong(name, found, f"a number from {least} to {most}")
        if found <= above:
            raise self._wrong(name, found, f"a number above {above}")
        return float(found)

    def each_number(self, key: str, layers: int) -> tuple[float, ...]:
        """A number for each layer, of a key that does not begin with the architecture.

        The file gives one for all layers or one for each.

        Raises:
            ModelError: the file does not give it, or too few; one is no finite number.
        """
        found = self.metadata.get(key)
        if found is None:
            raise ModelError(f"the file has no {key}, which a {self.architecture} needs")
        each = _to_list(found) if isinstance(found, (list, np.ndarray)) else [found] * layers
        if len(each) < layers:
            raise ModelError(f"{key} has {len(each)} values for {layers} layers")
        wrong = [x for x in each[:layers] if not _is_finite(x)]
        if wrong:
            raise ModelError(f"{key} has the value {wrong[0]!r:.60}, expected were finite numbers")
        return tuple(float(x) for x in each[:layers])

    def flag(self, name: str, default: bool | None = None) -> bool:
        """True or False.

        Raises:
            ModelError: the file does not give it and there is no default; it is something else.
        """
        found = self._need(name, default)
        if not isinstance(found, bool):
            raise self._wrong(name, found, "true or false")
        return found

    def text(self, name: str, default: str | None, known: Sequence[str]) -> str:
        """One of some texts.

        Raises:
            ModelError: the file does not give it and there is no default; it is something else.
        """
        found = self._need(name, default)
        if not isinstance(found, str) or found not in known:
            raise self._wrong(name, found, " or ".join(map(repr, known)))
        return found

    def each_layer(
        self,
        name: str,
        layers: int,
        default: int | None = None,
        *,
        least: int = 0,
        most: int = LARGEST,
    ) -> tuple[int, ...]:
        """A whole number for each layer; the file gives one for all layers or one for each.

        Raises:
            ModelError: the file does not give it and there is no default; it gives too few; one is
                no whole number, or outside of the bounds.
        """
        found = self._need(name, default)
        if not isinstance(found, (list, np.ndarray)):
            return (self._whole(name, found, least, most),) * layers
        if len(found) < layers:
            raise ModelError(
                f"{self.architecture}.{name} has {len(found)} values for {layers} layers"
            )
        return tuple(self._whole(name, x, least, most) for x in _to_list(found)[:layers])

    def _whole(self, name: str, found: object, least: int, most: int) -> int:
        if not isinstance(found, int) or isinstance(found, bool):
            raise self._wrong(name, found, "a whole number")
        if not least <= found <= most:
            raise self._wrong(name, found, f"a whole number from {least} to {most}")
        return found

    def _wrong(self, name: str, found: object, expected: str) -> ModelError:
        told = repr(found)
        return ModelError(
            f"{self.architecture}.{name} is {told if len(told) < 60 else told[:57] + '...'}, "
            f"expected was {expected}"
        )


def _is_finite(found: Any) -> bool:  # noqa: ANN401 as the file has it
    """Whether this is a number, and neither infinite nor NaN."""
    right = isinstance(found, (int, float)) and not isinstance(found, bool)
    return right and math.isfinite(found)


def _to_list(found: Any) -> list[Any]:  # noqa: ANN401 as the file has it
    return found.tolist() if isinstance(found, np.ndarray) else list(found)
