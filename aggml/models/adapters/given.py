"""The arguments ``adapters`` and ``control_vectors`` of `load`, checked.

Not here: the files that they name (reading.py).
"""
# ruff: noqa: ANN401 - arguments are whatever was given until they are checked

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from aggml import InvalidArgument
from aggml.models.arguments import file_path, number, show

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["GivenAdapters", "ScaledFile", "adapters_of", "refusal", "scaled_files"]

LIST: Final = "[(path, scale), ...]"


@dataclass(frozen=True, slots=True)
class ScaledFile:
    """An adapter or a control vector, and the number by which its effect is multiplied."""

    path: Path
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class GivenAdapters:
    """What of a model its user wants changed.

    Attributes:
        named: adapters that a request chooses by name.
        always: adapters that every request has; there are none if there are named ones.
        control_vectors: those that every request has.
    """

    named: Mapping[str, ScaledFile] = field(default_factory=dict)
    always: tuple[ScaledFile, ...] = ()
    control_vectors: tuple[ScaledFile, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.named or self.always or self.control_vectors)

    @property
    def what(self) -> str:
        """The name of the argument, for messages."""
        return "adapters" if self.named or self.always else "control_vectors"


def adapters_of(place: str, adapters: Any, control_vectors: Any = None) -> GivenAdapters:
    """The arguments, checked.

    Raises:
        InvalidArgument: one of them has another form.
    """
    vectors = scaled_files(place, "control_vectors", control_vectors)
    if not isinstance(adapters, Mapping):
        return GivenAdapters({}, scaled_files(place, "adapters", adapters), vectors)
    named: dict[str, ScaledFile] = {}
    for name, value in adapters.items():
        if not isinstance(name, str) or not name.strip():
            raise InvalidArgument(
                f"[{place}] adapters has the name {show(name)}, expected a text that requests "
                "choose it by"
            )
        named[name] = _read_scaled(place, f"adapters[{name!r}]", value)
    return GivenAdapters(named, (), vectors)


def scaled_files(place: str, name: str, given: Any) -> tuple[ScaledFile, ...]:
    """Files, each with its scale or without one: then it is 1.

    Raises:
        InvalidArgument: it is no list of these.
    """
    if given is None:
        return ()
    # A sequence, because it may be looked at more than once.
    if isinstance(given, (str, bytes)) or not isinstance(given, Sequence):
        forms = LIST if name != "adapters" else f"{LIST} or {{name: path}}"
        raise InvalidArgument(f"[{place}] {name} is {show(given)}, expected {forms}")
    return tuple(_read_scaled(place, f"{name}[{i}]", x) for i, x in enumerate(given))


def refusal(place: str, given: GivenAdapters, architecture: str) -> InvalidArgument:
    """The error of a model that takes no adapters."""
    return InvalidArgument(
        f"[{place}] {given.what} are given, but {architecture} does not continue text: such models "
        "take none"
    )


def _read_scaled(place: str, name: str, given: Any) -> ScaledFile:
    if isinstance(given, (tuple, list)):
        if len(given) != 2:
            raise InvalidArgument(
                f"[{place}] {name} has {len(given)} elements, expected (path, scale)"
            )
        path, scale = given
        times = number(place, f"{name}[1]", scale, -math.inf)
        return ScaledFile(file_path(place, f"{name}[0]", path), float(times))
    return ScaledFile(file_path(place, name, given))
