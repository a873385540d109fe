"""Control vectors: directions that are added to a token's vector after layers.

A GGUF file with the tensors direction.1, direction.2, ..., each as wide as the model; direction.N
is added after layer N, where the first layer is layer 0 and has none. Not here: adding them
(../decoder/step.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from aggml.models.adapters.files import elements, open_file
from aggml.models.errors import ModelError

if TYPE_CHECKING:
    from pathlib import Path

    from aggml.models.adapters.low_rank import F32

__all__ = ["read_control_vector"]

NAME: Final = "direction."


def read_control_vector(path: Path, width: int, layers: int) -> dict[int, F32]:
    """The directions of a file by the layers after which they are added. Blocks meanwhile.

    Args:
        path: a GGUF file.
        width: of the model.
        layers: how many the model has.

    Raises:
        ModelError: it cannot be read, or is no control vector of such a model.
    """
    where = f"the control vector {str(path)!r}"
    found: dict[int, F32] = {}
    with open_file(path, "control vector") as file:
        for name in file.tensors:
            number = name.removeprefix(NAME)
            if not (name.startswith(NAME) and number.isascii() and number.isdecimal()):
                raise ModelError(
                    f"{where} has the tensor {name!r}, expected were {NAME}1, {NAME}2, ..."
                )
            layer, vector = int(number), elements(file, name)
            if not 0 < layer < layers:
                raise ModelError(
                    f"{where} has {name!r}; a model of {layers} layers can have {NAME}1 to "
                    f"{NAME}{layers - 1}"
                )
            if layer in found:
                raise ModelError(f"{where} has two directions for the layer {layer}")
            if vector.size != width:
                raise ModelError(
                    f"{where}: {name!r} has {vector.size} elements, the model is {width} wide"
                )
            if not np.isfinite(vector).all():
                raise ModelError(f"{where} has NaN or infinity in {name!r}")
            found[layer] = vector.reshape(-1)
    if not found:
        raise ModelError(f"{where} has no tensor {NAME}1, {NAME}2, ...")
    return found
