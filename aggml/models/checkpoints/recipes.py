"""Checkpoint and Recipe: how the tensors and keys of a GGUF file are found in a folder.

An architecture says so as data, beside its description: for each name in GGUF the name in the
folder, or what is made of several. Here: these words. Not here: carrying them out (folder.py).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from aggml import DType
    from aggml.models.checkpoints.config import Config

__all__ = [
    "Array", "Checkpoint", "Key", "Recipe", "Rule", "Shape", "across", "flat", "half",
    "joined", "made", "shaped", "shifted", "stacked", "turned", "when", "without_first",
]  # fmt: skip

Array: TypeAlias = np.ndarray[Any, Any]
Shape: TypeAlias = tuple[int, ...]
#: The names that a value may have in config.json, or what finds it there; None: the file has none.
Key: TypeAlias = "str | tuple[str, ...] | Callable[[Config], Any]"


@dataclass(frozen=True, slots=True)
class Recipe:
    """How one tensor is made of others.

    Attributes:
        sources: names in the folder; "{i}" is the layer, and "{e}" stands for every expert.
        make: from their arrays to the tensor's, in numpy's order; None: there is no such tensor.
        shape: from their shapes to the tensor's.
        dtype: of blocks that `make` returns as bytes; None: floats of the first source's type.
    """

    sources: tuple[str, ...]
    make: Callable[[Sequence[Array], Config], Array | None]
    shape: Callable[[Sequence[Shape], Config], Shape]
    dtype: DType | None = None


Rule: TypeAlias = "str | Recipe | tuple[str | Recipe, ...] | None"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One kind of folder that an architecture is read from.

    Attributes:
        model_types: values of ``model_type`` in config.json.
        tensors: by their names in GGUF. "{i}" is the layer. A name without ".weight" or ".bias" at
            its end stands for both, as far as the folder has them; ".ssm_a" and ".ssm_d" are whole
            names. A name in the folder, a recipe, several of these of which the first that the
            folder has counts, or None: nothing.
        keys: GGUF's keys without the architecture, and where config.json has the value.
        architecture: its name in the GGUF file, where the architecture has several.
        prefixes: beginnings of names in the folder that do not count.
        ignored: regular expressions of names that are no part of the model's work.
        expects: what a value of config.json must be if it is there: other models differ.
        classes: if not empty, a name in ``architectures`` must begin with one of these.
    """

    model_types: tuple[str, ...]
    tensors: Mapping[str, Rule]
    keys: Mapping[str, Key]
    architecture: str | None = None
    prefixes: tuple[str, ...] = ("model.",)
    ignored: tuple[str, ...] = ()
    expects: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    classes: tuple[str, ...] = ()


def _same(shapes: Sequence[Shape], _: Config) -> Shape:
    return shapes[0]


def turned(source: str, heads: str = "num_attention_heads") -> Recipe:
    """Rows of each head in another order: neighbours are turned together, not halves of a head."""

    def make(arrays: Sequence[Array], config: Config) -> Array:
        (x,) = arrays
        n = int(config.need(heads, "num_attention_heads"))
        rows = x.reshape(n, 2, x.shape[0] // n // 2, *x.shape[1:])
        return rows.swapaxes(1, 2).reshape(x.shape)

    return Recipe((source,), make, _same)


def shifted(source: str) -> Recipe:
    """One more: the folder has the difference from one."""
    return Recipe((source,), lambda x, _: x[0].astype(np.float32) + 1, _same)


def stacked(source: str) -> Recipe:
    """The matrices of all experts, one on the other; "{e}" stands for each."""
    return Recipe((source,), lambda x, _: np.stack(x), lambda shapes, _: (len(shapes), *shapes[0]))


def joined(*sources: str) -> Recipe:
    """Their rows, one after the other."""
    return Recipe(
        sources,
        lambda x, _: np.concatenate(x),
        lambda shapes, _: (sum(x[0] for x in shapes), *shapes[0][1:]),
    )


def half(source: str, which: int, *, axis: int = 0, alternating: bool = False) -> Recipe:
    """The first or the second half of the rows, or every other row.

    Args:
        source: of the whole.
        which: 0 or 1.
        axis: of the rows; the rows of experts are their second axis.
        alternating: rows come in turns.
    """

    def make(arrays: Sequence[Array], _: Config) -> Array:
        x = np.moveaxis(arrays[0], axis, 0)
        n = x.shape[0] // 2
        cut = x[which::2] if alternating else x[which * n : which * n + n]
        return np.moveaxis(cut, 0, axis)

    def shape(shapes: Sequence[Shape], _: Config) -> Shape:
        found = list(shapes[0])
        found[axis] //= 2
        return tuple(found)

    return Recipe((source,), make, shape)


def across(source: str) -> Recipe:
    """A matrix whose rows are the folder's columns; a vector as it is."""
    return Recipe((source,), lambda x, _: x[0].T, lambda shapes, _: shapes[0][::-1])


def flat(source: str) -> Recipe:
    """A matrix of one row as a vector."""
    return Recipe(
        (source,), lambda x, _: x[0].reshape(-1), lambda shapes, _: (math.prod(shapes[0]),)
    )


def shaped(
    source: str | tuple[str, ...],
    shape: Callable[[Sequence[Shape], Config], Shape],
    change: Callable[[Array], Array] = lambda x: x,
) -> Recipe:
    """Elements in their order under another shape, of several sources one source after the other.

    Args:
        source: one name in the folder, or several.
        shape: from the shapes of the sources to the tensor's.
        change: of each element.
    """
    names = (source,) if isinstance(source, str) else source

    def make(arrays: Sequence[Array], config: Config) -> Array:
        whole = np.concatenate([x.reshape(-1) for x in arrays])
        return change(whole).reshape(shape([x.shape for x in arrays], config))

    return Recipe(names, make, shape)


def when(condition: Callable[[Config], bool], rule: str | Recipe) -> Recipe:
    """A rule of only those folders whose config.json fulfils a condition."""
    of = Recipe((rule,), lambda x, _: x[0], _same) if isinstance(rule, str) else rule
    return Recipe(
        of.sources, of.make, lambda x, config: of.shape(x, config) if condition(config) else ()
    )


def without_first(source: str, count: Callable[[Config], int]) -> Recipe:
    """All rows but the first so many."""
    return Recipe(
        (source,),
        lambda x, config: x[0][count(config) :],
        lambda shapes, config: (shapes[0][0] - count(config), *shapes[0][1:]),
    )


def made(function: Callable[[Config], Array | None]) -> Recipe:
    """A tensor that config.json alone decides."""

    def shape(_: Sequence[Shape], config: Config) -> Shape:
        found = function(config)
        return () if found is None else found.shape

    return Recipe((), lambda _, config: function(config), shape)
