"""Checkpoint and Recipe: how the tensors and keys of a GGUF file are found in a folder.

An architecture gives this as data, beside its description: for each name in GGUF the name in the
folder, or a recipe that makes the tensor of several. Here: the classes and recipes. Not here:
applying them (planning.py, folder.py).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from aggml.models.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from aggml import DType
    from aggml.models.checkpoints.config import Config

__all__ = [
    "Array", "Checkpoint", "Key", "Recipe", "Rule", "Shape", "add_one", "compute", "flatten",
    "half", "output_of", "permute_heads", "reshape", "scale", "stack", "transpose",
    "transpose_experts", "when", "without_first",
]  # fmt: skip

Array: TypeAlias = np.ndarray[Any, Any]
Shape: TypeAlias = tuple[int, ...]
#: Names that a value may have in config.json, or a function that finds it and may return None.
Key: TypeAlias = "str | tuple[str, ...] | Callable[[Config], Any]"


@dataclass(frozen=True, slots=True)
class Recipe:
    """How one tensor is made of others.

    Attributes:
        sources: names in the folder; "{i}" is the layer, and "{e}" stands for every expert.
        make: makes the tensor's array from those of the sources, in numpy's order; None: there is
            no such tensor.
        shape: computes the tensor's shape from those of the sources; (): there is no such tensor.
        dtype: the type of blocks, which `make` returns as bytes; None: floats of the first source's
            type.
    """

    sources: tuple[str, ...]
    make: Callable[[Sequence[Array], Config], Array | None]
    shape: Callable[[Sequence[Shape], Config], Shape]
    dtype: DType | None = None


Rule: TypeAlias = "str | Recipe | tuple[str | Recipe, ...] | None"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One format of Hugging Face folders from which an architecture can be read.

    Attributes:
        model_types: values of ``model_type`` in config.json.
        tensors: by their names in GGUF. "{i}" is the layer. A name without ".weight" or ".bias" at
            its end stands for both, as far as the folder has them; ".ssm_a" and ".ssm_d" are whole
            names. The value is a name in the folder, a recipe, a tuple of these (the first whose
            sources the folder has is used), or None: the tensor is left out.
        keys: GGUF's keys without the architecture, each with the place of its value in config.json.
        architecture: its name in the GGUF file, if the architecture has several names.
        prefixes: beginnings of names in the folder that are removed.
        ignored: regular expressions of names of tensors that the model does not use.
        expects: allowed values of entries of config.json; with others the model would be built
            differently. An entry may be missing.
        classes: if not empty, a name in ``architectures`` must begin with one of these.
        condition: whether a folder of this type has this format; None: every one that no other
            format's condition fits.
        harmless: settings of config.json that need not be read, each with the reason.
        bare: names in GGUF that stand for one tensor although they have no ending.
        numbers: whole keys of GGUF whose values are numbers of the layers, each with the name in
            the folder of the tensor that has the number of the layer "{i}".
    """

    model_types: tuple[str, ...]
    tensors: Mapping[str, Rule]
    keys: Mapping[str, Key]
    architecture: str | None = None
    prefixes: tuple[str, ...] = ("model.",)
    ignored: tuple[str, ...] = ()
    expects: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    classes: tuple[str, ...] = ()
    condition: Callable[[Config], bool] | None = None
    harmless: Mapping[str, str] = field(default_factory=dict)
    bare: tuple[str, ...] = ()
    numbers: Mapping[str, str] = field(default_factory=dict)


def _same(shapes: Sequence[Shape], _: Config) -> Shape:
    return shapes[0]


def permute_heads(source: str, heads: str = "num_attention_heads") -> Recipe:
    """Reorder each head's rows for rotary positions on pairs of neighbours, not on halves."""

    def make(arrays: Sequence[Array], config: Config) -> Array:
        (x,) = arrays
        n = int(config.need(heads, "num_attention_heads"))
        rows = x.reshape(n, 2, x.shape[0] // n // 2, *x.shape[1:])
        return rows.swapaxes(1, 2).reshape(x.shape)

    return Recipe((source,), make, _same)


def add_one(source: str) -> Recipe:
    """Add 1: the folder has the difference from 1."""
    return Recipe((source,), lambda x, _: x[0].astype(np.float32) + 1, _same)


def stack(source: str) -> Recipe:
    """Stack the matrices of all experts in one tensor; "{e}" stands for each expert."""
    return Recipe((source,), lambda x, _: np.stack(x), lambda shapes, _: (len(shapes), *shapes[0]))


def half(source: str, which: int, *, axis: int = 0, alternating: bool = False) -> Recipe:
    """The first or the second half of the rows, or every other row.

    Args:
        source: name in the folder.
        which: 0 or 1.
        axis: of the rows; with experts, rows are the second axis.
        alternating: whether the rows of the two halves alternate.
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


def transpose(source: str) -> Recipe:
    """Transpose a matrix; a vector stays as it is."""
    return Recipe((source,), lambda x, _: x[0].T, lambda shapes, _: shapes[0][::-1])


def transpose_experts(source: str, which: int | None = None) -> Recipe:
    """Transpose matrices [experts, columns, rows] to [experts, rows, columns].

    Args:
        source: name in the folder.
        which: 0: the first half of the rows, 1: the second one, None: all.
    """

    def make(arrays: Sequence[Array], _: Config) -> Array:
        x = arrays[0].swapaxes(1, 2)
        n = x.shape[1] // 2
        return x if which is None else x[:, which * n : which * n + n]

    def shape(shapes: Sequence[Shape], _: Config) -> Shape:
        experts, columns, rows = shapes[0]
        return experts, rows if which is None else rows // 2, columns

    return Recipe((source,), make, shape)


def flatten(source: str) -> Recipe:
    """Make a vector of a matrix of one row."""
    return Recipe(
        (source,), lambda x, _: x[0].reshape(-1), lambda shapes, _: (math.prod(shapes[0]),)
    )


def scale(source: str | Recipe, factor: Callable[[Config], float | Array]) -> Recipe:
    """Multiply the tensor of a rule by a number, or each row by its own.

    Args:
        source: a name in the folder, or a recipe.
        factor: computes the number, or those of the rows, from config.json.
    """
    of = Recipe((source,), lambda x, _: x[0], _same) if isinstance(source, str) else source

    def make(arrays: Sequence[Array], config: Config) -> Array | None:
        x, by = of.make(arrays, config), np.asarray(factor(config), np.float32)
        if x is None or (by.ndim == 0 and by == 1):
            return x
        return x.astype(np.float32) * (by[:, None] if by.ndim else by)

    def shape(shapes: Sequence[Shape], config: Config) -> Shape:
        factor(config)  # settings are read, and refused, before tensors are made
        return of.shape(shapes, config)

    return Recipe(of.sources, make, shape)


def output_of(
    embeddings: str,
    tied: Callable[[Config], bool],
    own: Callable[[Config], float],
    of_embeddings: Callable[[Config], float],
) -> tuple[Recipe, Recipe]:
    """The matrix of the logits, of models that scale them: its own, or that of the embeddings.

    It is for the name "output.weight".

    Args:
        embeddings: their name in the folder.
        tied: whether it is the matrix of the embeddings.
        own: by what the matrix ``lm_head`` is multiplied.
        of_embeddings: by what that of the embeddings is multiplied.
    """
    whole = scale(f"{embeddings}.weight", of_embeddings)
    lone = scale("lm_head.weight", own)

    def make(arrays: Sequence[Array], config: Config) -> Array | None:
        return whole.make(arrays[1:], config) if tied(config) else lone.make(arrays, config)

    def shape(shapes: Sequence[Shape], config: Config) -> Shape:
        return whole.shape(shapes[1:], config) if tied(config) else lone.shape(shapes, config)

    def shape_of_tied(shapes: Sequence[Shape], config: Config) -> Shape:
        if not tied(config):
            raise ModelError(
                "the folder has no tensor 'lm_head.weight', and config.json does not have "
                "tie_word_embeddings = true"
            )
        return whole.shape(shapes, config)

    return (
        Recipe((*lone.sources, *whole.sources), make, shape),
        Recipe(whole.sources, whole.make, shape_of_tied),
    )


def reshape(
    source: str | tuple[str, ...],
    shape: Callable[[Sequence[Shape], Config], Shape],
    change: Callable[[Array], Array] = lambda x: x,
) -> Recipe:
    """Give the elements, in their order, another shape; several sources are concatenated.

    Args:
        source: one name in the folder, or several.
        shape: computes the tensor's shape from those of the sources.
        change: a function that is applied to all elements.
    """
    names = (source,) if isinstance(source, str) else source

    def make(arrays: Sequence[Array], config: Config) -> Array:
        whole = np.concatenate([x.reshape(-1) for x in arrays])
        return change(whole).reshape(shape([x.shape for x in arrays], config))

    return Recipe(names, make, shape)


def when(condition: Callable[[Config], bool], rule: str | Recipe) -> Recipe:
    """A rule that applies only to folders whose config.json fulfils a condition."""
    of = Recipe((rule,), lambda x, _: x[0], _same) if isinstance(rule, str) else rule
    return Recipe(
        of.sources, of.make, lambda x, config: of.shape(x, config) if condition(config) else ()
    )


def without_first(source: str, count: Callable[[Config], int]) -> Recipe:
    """All rows without the first ones; ``count`` says how many these are."""
    return Recipe(
        (source,),
        lambda x, config: x[0][count(config) :],
        lambda shapes, config: (shapes[0][0] - count(config), *shapes[0][1:]),
    )


def compute(function: Callable[[Config], Array | None]) -> Recipe:
    """Compute a tensor from config.json alone; None: there is no such tensor."""

    def shape(_: Sequence[Shape], config: Config) -> Shape:
        found = function(config)
        return () if found is None else found.shape

    return Recipe((), lambda _, config: function(config), shape)
