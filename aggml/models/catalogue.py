"""The catalogue: which architectures there are, by the name that a file gives.

Here: finding the architectures of architectures/, of other packages, and those that a program adds.
Not here: the architectures themselves.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Final

from aggml import InvalidArgument
from aggml.models.description import Architecture
from aggml.models.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aggml.models.checkpoints.recipes import Checkpoint
    from aggml.models.description import AnyDescription
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["GROUP", "checkpoints", "describe", "known_architectures", "register_architecture"]

FILES: Final = "aggml.models.architectures"
GROUP: Final = "aggml.architectures"  # of entry points whose objects are an Architecture

_added: dict[str, Architecture] = {}


def register_architecture(architecture: Architecture) -> None:
    """Add an architecture of a program, before files of it are loaded.

    Args:
        architecture: replaces existing architectures with the same names.

    Raises:
        InvalidArgument: not an Architecture, or without a name.
    """
    if type(architecture) is not Architecture or not architecture.names:
        raise InvalidArgument(
            f"[register_architecture] expected an Architecture with a name, given {architecture!r}"
        )
    _added.update(dict.fromkeys(architecture.names, architecture))


def known_architectures() -> Mapping[str, Architecture]:
    """Every architecture by name, in alphabetical order."""
    return dict(sorted((_find_all() | _added).items()))


@functools.cache
def _find_all() -> dict[str, Architecture]:
    """The architectures of this package and of other installed packages; the latter win."""
    made: dict[str, Architecture] = {}
    package = importlib.import_module(FILES)
    for module in pkgutil.iter_modules(package.__path__):
        file = importlib.import_module(f"{FILES}.{module.name}")
        made.update(dict.fromkeys(file.ARCHITECTURE.names, file.ARCHITECTURE))
    for entry in entry_points(group=GROUP):
        loaded = entry.load()
        made.update(dict.fromkeys(loaded.names, loaded))
    return made


def checkpoints() -> list[tuple[str, Checkpoint]]:
    """The formats of Hugging Face folders, each with the name of its architecture in GGUF."""
    return [
        (checkpoint.architecture or name, checkpoint)
        for name, architecture in known_architectures().items()
        if name == architecture.names[0]
        for checkpoint in architecture.checkpoints
    ]


def describe(hp: Hyperparameters) -> AnyDescription:
    """The model that a file describes.

    Raises:
        ModelError: an unknown architecture; a missing value.
    """
    known = known_architectures()
    found = known.get(hp.architecture)
    if found is None:
        raise ModelError(
            f"the architecture is {hp.architecture!r}, not one of {', '.join(known)}; "
            "aggml.models.register_architecture adds one"
        )
    return found.describe(hp)
