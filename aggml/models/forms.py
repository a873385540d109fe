"""TensorForm: the shape and the element type that a tensor of a model file must have.

Blocks say which tensors they read and in which form (`forms`); checking.py compares a file with
that. Here: the class, and the forms of linear maps and norms. Not here: the comparison.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aggml import Tensor

__all__ = [
    "PLAIN_NORM",
    "Extents",
    "FormContext",
    "TensorForm",
    "demand",
    "has_biased_norms",
    "linear",
    "norm",
]

#: The name of norms that have no weights.
PLAIN_NORM: Final = "norm without weights"
#: Extents in ggml's order. A name stands for a number that only the file gives: all extents of a
#: layer with the same name must be equal.
Extents: TypeAlias = "tuple[int | str, ...]"


@dataclass(frozen=True, slots=True)
class TensorForm:
    """The form of one tensor.

    Attributes:
        ne: its extents; trailing 1s do not count.
        optional: whether a file may lack it.
        vector: whether its elements must be f32, because they are added or multiplied; else any
            float type or quantized type will do.
        flat: whether only the number of its elements counts.
        other: other extents that are right, too.
        uneven: whether some layers may have it and others not, if it is optional.
    """

    ne: Extents
    optional: bool = False
    vector: bool = False
    flat: bool = False
    other: Extents | None = None
    uneven: bool = False


@dataclass(frozen=True, slots=True)
class FormContext:
    """What a block knows of its model when it says which tensors it reads.

    Attributes:
        width: elements of a token's vector between layers.
        centred: whether norms are LayerNorms, which may have a bias.
        tensors: of the file, by name.
        prefix: of the names of this layer's tensors, such as "blk.3.".
    """

    width: int
    centred: bool
    tensors: Mapping[str, Tensor]
    prefix: str = ""

    def find(self, name: str) -> Tensor | None:
        """A tensor of this layer, None if the file has none of that name."""
        return self.tensors.get(self.prefix + name)


def linear(name: str, columns: int | str, rows: int | str) -> dict[str, TensorForm]:
    """The forms of a linear map: ``NAME.weight``, and ``NAME.bias`` where the file has one."""
    return {
        f"{name}.weight": TensorForm((columns, rows)),
        f"{name}.bias": TensorForm((rows,), optional=True, vector=True),
    }


def norm(
    name: str,
    width: int | str,
    *,
    centred: bool,
    optional: bool = False,
    heads: int | None = None,
) -> dict[str, TensorForm]:
    """The forms of a norm; with ``heads`` each head has a row of its own."""
    if name == PLAIN_NORM:
        return {}
    ne: tuple[int | str, ...] = (width,) if heads is None else (width, heads)
    found = {f"{name}.weight": TensorForm(ne, optional, vector=True)}
    if centred:
        found[f"{name}.bias"] = TensorForm(ne, optional=True, vector=True)
    return found


def has_biased_norms(tensors: Mapping[str, Tensor]) -> bool:
    """Whether norms of layers have biases; then the norms outside of layers must have them, too."""
    return any(name.startswith("blk.") and name.endswith("_norm.bias") for name in tensors)


def demand(forms: Mapping[str, TensorForm], *names: str) -> dict[str, TensorForm]:
    """Those of ``names`` that are in ``forms``, no longer optional."""
    return {name: replace(forms[name], optional=False) for name in names if name in forms}
