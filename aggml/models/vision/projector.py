"""Projector: one kind of mmproj file, as all kinds have it; what is wrong with a file.

Each kind has a file of its own in this room, with a class that says how it sees a picture and what
it makes of the tower's output. Here: what these have in common. Not here: the tower (tower.py), its
nodes (layers.py).
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from aggml import DType
from aggml.models.vision.resizing import resize_padded
from aggml.models.vision.sizes import fitting_size
from aggml.models.vision.tower import PatchGrid, Tower, is_of_pictures

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy.typing as npt

    from aggml import Tensor
    from aggml.models.vision.layers import TowerLayers

    U8 = npt.NDArray[np.uint8]
    I32 = npt.NDArray[np.int32]

__all__ = ["Projector", "Views", "mlp_forms", "squares", "tower_problems"]


@dataclass(frozen=True, slots=True)
class Views:
    """A picture as the model sees it.

    Attributes:
        pixels: of each view, (height, width, 3).
        written: what stands in the prompt: texts, and numbers of views for their embeddings.
    """

    pixels: Sequence[U8]
    written: Sequence[str | int]


class Projector(ABC):
    """One kind of mmproj file (``clip.projector_type``): how it sees pictures, and its graph.

    Attributes:
        tower: the transformer.
        merged: patches of a side of the square that becomes one token.
    """

    __slots__ = ()
    tower: Tower
    merged: int

    @property
    def whole(self) -> bool:
        """Whether positions of a picture in a prompt see each other also where they come later."""
        return False

    @property
    def deepstack(self) -> int:
        """How many layers of the text model get something of their own behind each embedding."""
        return 0

    @property
    def placed(self) -> bool:
        """Whether tokens have rotary positions of rows and columns in the text model."""
        return False

    @abstractmethod
    def forms(self, tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
        """Extents of the tensors that it needs beside those of the tower's layers."""

    @abstractmethod
    def views(self, rgb: U8) -> Views:
        """What the tower sees of a picture."""

    @abstractmethod
    def build(self, at: TowerLayers, patches: Tensor, inputs: Mapping[str, Tensor]) -> Tensor:
        """The embeddings of a view, [width of the text model, any], of its patches."""

    def largest(self) -> PatchGrid:
        """The largest view; if a kind does not say it, all views have the size of the tower."""
        n = self.tower.side // self.tower.patch
        return PatchGrid(n, n)

    def order(self, grid: PatchGrid) -> I32 | None:
        """The order of patches in the graph: square by square; None: row by row."""
        return squares(grid, self.merged) if self.merged > 1 else None

    def inputs(self, grid: PatchGrid) -> dict[str, Any]:
        """Further inputs, i32 or f16, of the graph of a view, by name; "mask" is f16."""
        return {}

    def input_shapes(self, grid: PatchGrid) -> dict[str, tuple[int, ...]]:
        """The shapes of `inputs`."""
        return {name: x.shape for name, x in self.inputs(grid).items()}

    def tokens(self, grid: PatchGrid) -> tuple[int, int] | None:
        """Tokens of a row and of a column, where these have rotary positions; None: they do not."""
        return (grid.columns // self.merged, grid.rows // self.merged) if self.placed else None

    def rows_and_columns(self, grid: PatchGrid) -> tuple[I32, I32]:
        """The row and the column of each patch, in their order in the graph."""
        order = self.order(grid)
        at = np.arange(grid.n, dtype=np.int32) if order is None else order
        return at // np.int32(grid.columns), at % np.int32(grid.columns)

    def places(self, grid: PatchGrid) -> I32:
        """Rows, columns, and both once more, as `TowerLayers.rotate_by` takes them: [4 * n]."""
        return np.concatenate(self.rows_and_columns(grid) * 2)

    def fit_view(
        self, rgb: U8, least: int, most: int, begin: str, end: str, longest: int | None = None
    ) -> Views:
        """One view, with nearly the ratio of the picture's sides.

        Args:
            rgb: the picture.
            least: pixels of the view.
            most: pixels of the view.
            begin: what stands before it in the prompt.
            end: what stands behind it.
            longest: squares of a side at most, of a long and thin picture; None: however many.
        """
        unit = self.tower.patch * self.merged
        size = fitting_size(rgb.shape[1], rgb.shape[0], unit=unit, least=least, most=most)
        if longest is not None:
            size = min(size[0], longest * unit), min(size[1], longest * unit)
        written = [x for x in (begin, 0, end) if x != ""]
        return Views([resize_padded(rgb, *size, "bicubic")], written)

    def square(self, tokens: int) -> PatchGrid:
        """A square view of at most so many tokens."""
        n = max(1, math.isqrt(tokens)) * self.merged
        return PatchGrid(n, n)

    def pixels(self, tokens: int) -> int:
        """Pixels of so many tokens."""
        return tokens * (self.tower.patch * self.merged) ** 2


def mlp_forms(
    tensors: Mapping[str, Tensor], first: str, second: str, size: int, out: int
) -> dict[str, tuple[int, ...]]:
    """Extents of two matrices, [size, inner] and [inner, out], and of their biases.

    Only the first matrix tells how large ``inner`` is; of a file without it any size will do.
    """
    known = tensors.get(f"{first}.weight")
    inner = out if known is None else known.ne[1]
    return {
        f"{first}.weight": (size, inner), f"{first}.bias": (inner,),
        f"{second}.weight": (inner, out), f"{second}.bias": (out,),
    }  # fmt: skip


def squares(grid: PatchGrid, side: int) -> I32:
    """The numbers of patches, square by square; both squares and their patches row by row."""
    numbers = np.arange(grid.n, dtype=np.int32).reshape(grid.rows, grid.columns)
    blocks = numbers.reshape(grid.rows // side, side, grid.columns // side, side)
    found: I32 = np.ascontiguousarray(blocks.transpose(0, 2, 1, 3)).reshape(-1)
    return found


def tower_problems(projector: Projector, tensors: Mapping[str, Tensor]) -> Iterator[str]:
    """Tensors that are missing, have other extents or another type, or that no graph reads.

    A tensor that the graph of a view takes only if the file has it, such as a bias, would otherwise
    be left out without a word.
    """
    tower = projector.tower
    parts = {x.split(".", 3)[3] for x in tensors if re.fullmatch(r"v\.blk\.\d+\..+", x)}
    lacking: set[str] = set()
    for part in sorted(parts):
        names = [f"v.blk.{i}.{part}" for i in range(tower.layers)]
        missing = [x for x in names if x not in tensors]
        if missing and len(missing) < tower.layers:
            lacking |= {*missing}
            yield f"the mmproj file has no tensor {missing[0]!r}, which other layers have"
    forms = tower.forms(tensors) | projector.forms(tensors)
    for name, ne in forms.items():
        tensor = tensors.get(name)
        if tensor is None:
            if name not in lacking:
                yield f"the mmproj file has no tensor {name!r}"
            continue
        known = tuple(tensor.ne)
        if known != (*ne, 1, 1, 1, 1)[: len(known)]:
            yield f"tensor {name!r} has the extents {list(known)}, expected {list(ne)}"
        elif len(ne) == 1 and tensor.dtype is not DType.F32:
            yield f"tensor {name!r} is {tensor.dtype.name.lower()}, expected f32"
    for name in tensors:
        if name not in forms and is_of_pictures(name):
            yield f"the mmproj file has a tensor {name!r}, which nothing here reads"
