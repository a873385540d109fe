"""The transformer over the patches of a picture, and the projector's interface.

Here: hyperparameters of a mmproj file, layers that its kinds share. Not here: what each kind does
with a picture before, and with the output behind (its own file in this room).
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from aggml import DType, ops
from aggml.models.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import numpy.typing as npt

    from aggml import Tensor
    from aggml.models.hyperparameters import Hyperparameters

    U8 = npt.NDArray[np.uint8]
    F32 = npt.NDArray[np.float32]
    I32 = npt.NDArray[np.int32]

__all__ = [
    "PatchGrid",
    "Projector",
    "Tower",
    "TowerLayers",
    "Views",
    "squares",
    "tower_of",
    "tower_problems",
]

MOST_PATCHES: Final = 1 << 16  # of one view
MOST_TOKENS: Final = 1 << 16  # of one picture

ACTIVATIONS: Final[dict[str, Callable[[Tensor], Tensor]]] = {
    "gelu": ops.gelu, "silu": ops.silu, "gelu_quick": ops.gelu_quick,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Tower:
    """A transformer over patches.

    Attributes:
        width: elements of a patch's vector.
        inner: of the feed-forward net.
        heads: of attention.
        layers: how many.
        eps: of all norms.
        side: pixels of a side of a view, for kinds that have one size.
        patch: pixels of a side of a patch.
        activation: of the feed-forward net.
        mean, std: of each colour: they are subtracted from, and divide, values from 0 to 1.
        out: elements of an embedding of the text model.
        rms: whether norms are RMS norms; else they subtract the mean, too, and have a bias.
        biased: whether all matrices of the layers have a bias.
        embeds_biased: whether the matrix of patches has one.
        norms: the norm that stands before or behind all layers, "v.pre_ln" or "v.post_ln".
    """

    width: int
    inner: int
    heads: int
    layers: int
    eps: float
    side: int
    patch: int
    activation: str
    mean: tuple[float, ...]
    std: tuple[float, ...]
    out: int
    rms: bool
    biased: bool
    embeds_biased: bool
    norms: str

    @property
    def head(self) -> int:
        """Elements of a head."""
        return self.width // self.heads

    def patches(self, rgb: U8) -> F32:
        """The patches of a view, row by row: (patches, 3 * patch * patch), colour by colour."""
        rows, columns, p = rgb.shape[0] // self.patch, rgb.shape[1] // self.patch, self.patch
        x: F32 = rgb.astype(np.float32)
        x /= np.float32(255)
        x -= np.array(self.mean, np.float32)
        x /= np.array(self.std, np.float32)
        x = x.reshape(rows, p, columns, p, 3).transpose(0, 2, 4, 1, 3)
        return np.ascontiguousarray(x.reshape(rows * columns, 3 * p * p))

    def forms(self, tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
        """Extents of the tensors that its layers need.

        Matrices, and norms, have a bias each if ``biased`` says so, or if one of them has.
        """
        w = self.width
        found: dict[str, tuple[int, ...]] = {"v.patch_embd.weight": (self.patch, self.patch, 3, w)}
        matrices: dict[str, tuple[int, ...]] = {}
        norms = [x for x in ("v.pre_ln", "v.post_ln") if x == self.norms or _has(tensors, x)]
        for i in range(self.layers):
            at = f"v.blk.{i}."
            if f"{at}attn_qkv.weight" in tensors:
                matrices[f"{at}attn_qkv"] = (w, 3 * w)
            else:
                matrices |= {f"{at}attn_{x}": (w, w) for x in "qkv"}
            matrices |= {
                f"{at}attn_out": (w, w), f"{at}ffn_up": (w, self.inner),
                f"{at}ffn_down": (self.inner, w),
            }  # fmt: skip
            if _has(tensors, f"{at}ffn_gate"):
                matrices[f"{at}ffn_gate"] = (w, self.inner)
            norms += [f"{at}ln1", f"{at}ln2"]
        found |= {f"{name}.weight": ne for name, ne in matrices.items()}
        found |= {f"{name}.weight": (w,) for name in norms}
        if self.biased or any(f"{name}.bias" in tensors for name in matrices):
            found |= {f"{name}.bias": ne[1:] for name, ne in matrices.items()}
        if not self.rms or any(f"{name}.bias" in tensors for name in norms):
            found |= {f"{name}.bias": (w,) for name in norms}
        if self.embeds_biased or "v.patch_embd.bias" in tensors:
            found["v.patch_embd.bias"] = (w,)
        return found


def _has(tensors: Mapping[str, Tensor], name: str) -> bool:
    """Whether a file has a weight or a bias of this name."""
    return f"{name}.weight" in tensors or f"{name}.bias" in tensors


@dataclass(frozen=True, slots=True)
class PatchGrid:
    """Patches of a view: how many there are in a row and in a column."""

    columns: int
    rows: int

    @property
    def n(self) -> int:
        """All of them."""
        return self.columns * self.rows


@dataclass(frozen=True, slots=True)
class Views:
    """A picture as the model sees it.

    Attributes:
        pixels: of each view, (height, width, 3).
        written: what stands in the prompt: texts, and numbers of views for their embeddings.
    """

    pixels: Sequence[U8]
    written: Sequence[str | int]


class Projector(Protocol):
    """One kind of mmproj file (``clip.projector_type``)."""

    @property
    def tower(self) -> Tower:
        """The transformer."""
        ...

    @property
    def whole(self) -> bool:
        """Whether positions of a picture in a prompt see each other also where they come later."""
        ...

    def forms(self, tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
        """Extents of the tensors that it needs beside those of the tower's layers."""
        ...

    @property
    def deepstack(self) -> int:
        """How many layers of the text model get something of their own behind each embedding."""
        ...

    def views(self, rgb: U8) -> Views:
        """What the tower sees of a picture."""
        ...

    def tokens(self, grid: PatchGrid) -> tuple[int, int] | None:
        """Tokens of a row and of a column, where these have rotary positions; None: they do not."""
        ...

    def inputs(self, grid: PatchGrid) -> dict[str, Any]:
        """Further inputs, i32 or f16, of the graph of a view, by name."""
        ...

    def input_shapes(self, grid: PatchGrid) -> dict[str, tuple[int, ...]]:
        """The shapes of `inputs`; "mask" is f16, the others are i32."""
        ...

    def largest(self) -> PatchGrid:
        """The largest view."""
        ...

    def order(self, grid: PatchGrid) -> I32 | None:
        """The order of patches in the graph; None: row by row."""
        ...

    def build(self, at: TowerLayers, patches: Tensor, inputs: Mapping[str, Tensor]) -> Tensor:
        """The embeddings of a view, [width of the text model, any], of its patches."""
        ...


def squares(grid: PatchGrid, side: int) -> I32:
    """The numbers of patches, square by square; both squares and their patches row by row."""
    numbers = np.arange(grid.n, dtype=np.int32).reshape(grid.rows, grid.columns)
    blocks = numbers.reshape(grid.rows // side, side, grid.columns // side, side)
    found: I32 = np.ascontiguousarray(blocks.transpose(0, 2, 1, 3)).reshape(-1)
    return found


class TowerLayers:
    """The nodes of a tower, for one grid.

    Args:
        tower: the transformer.
        weights: by their names in the file.
        grid: of the view.
    """

    def __init__(self, tower: Tower, weights: Mapping[str, Tensor], grid: PatchGrid) -> None:
        self.tower = tower
        self.weights = weights
        self.grid = grid

    def linear(self, name: str, x: Tensor) -> Tensor:
        """``NAME.weight`` times ``x``, plus ``NAME.bias`` where the file has one."""
        y = ops.mul_mat(self.weights[f"{name}.weight"], x)
        bias = self.weights.get(f"{name}.bias")
        return y if bias is None else ops.add(y, bias)

    def norm(self, name: str, x: Tensor, *, rms: bool | None = None) -> Tensor:
        """The rows of ``x`` normalised, times ``NAME.weight``, plus ``NAME.bias``."""
        tower = self.tower
        rms = tower.rms if rms is None else rms
        y = ops.rms_norm(x, tower.eps) if rms else ops.norm(x, tower.eps)
        y = ops.mul(y, self.weights[f"{name}.weight"])
        bias = self.weights.get(f"{name}.bias")
        return y if bias is None else ops.add(y, bias)

    def embed(self, patches: Tensor, name: str = "v.patch_embd.weight") -> Tensor:
        """[3 * patch * patch, n] -> [width, n]."""
        weight = self.weights[name]
        size = 3 * self.tower.patch**2
        x = ops.mul_mat(ops.reshape_2d(weight, size, self.tower.width), patches)
        bias = self.weights.get("v.patch_embd.bias")
        return x if bias is None else ops.add(x, bias)

    def positions(self, x: Tensor) -> Tensor:
        """``x`` with the learned embeddings of the places of patches."""
        table = self.weights["v.position_embd.weight"]
        return ops.add(x, table if table.dtype is DType.F32 else ops.cast(table, DType.F32))

    def all(
        self,
        x: Tensor,
        turned: Callable[[Tensor], Tensor] | None = None,
        mask: Callable[[int], Tensor | None] = lambda _: None,
        each: Callable[[int, Tensor], None] = lambda _i, _x: None,
    ) -> Tensor:
        """All layers, with the norms before and behind them if the file has these.

        Args:
            x: [width, n].
            turned: gives queries and keys, [head, heads, n], rotary positions.
            mask: of attention, for the number of a layer; None: all patches see each other.
            each: is told the output of each layer.
        """
        if "v.pre_ln.weight" in self.weights:
            x = self.norm("v.pre_ln", x)
        for i in range(self.tower.layers):
            at = f"v.blk.{i}."
            y = self._attention(at, self.norm(f"{at}ln1", x), turned, mask(i))
            x = ops.add(y, x)
            x = ops.add(x, self._net(at, self.norm(f"{at}ln2", x)))
            each(i, x)
        return self.norm("v.post_ln", x) if "v.post_ln.weight" in self.weights else x

    def _attention(
        self, at: str, x: Tensor, turned: Callable[[Tensor], Tensor] | None, mask: Tensor | None
    ) -> Tensor:
        tower, n = self.tower, x.ne[1]
        head, heads = tower.head, tower.heads
        if f"{at}attn_qkv.weight" in self.weights:
            whole = self.linear(f"{at}attn_qkv", x)
            size, row = head * whole.nb[0], whole.nb[1]
            q, k, v = (
                ops.cont(ops.view_3d(whole, head, heads, n, size, row, i * heads * size))
                for i in range(3)
            )
        else:
            q, k, v = (
                ops.reshape_3d(self.linear(f"{at}attn_{part}", x), head, heads, n) for part in "qkv"
            )
        if turned is not None:
            q, k = turned(q), turned(k)
        q, k, v = (ops.permute(y, 0, 2, 1, 3) for y in (q, k, v))
        y = ops.flash_attn_ext(q, k, v, mask, 1 / math.sqrt(head), 0.0, 0.0)
        return self.linear(f"{at}attn_out", ops.reshape_2d(y, tower.width, n))

    def _net(self, at: str, x: Tensor) -> Tensor:
        act = ACTIVATIONS[self.tower.activation]
        up = self.linear(f"{at}ffn_up", x)
        if f"{at}ffn_gate.weight" in self.weights:
            up = ops.mul(act(self.linear(f"{at}ffn_gate", x)), up)
        else:
            up = act(up)
        return self.linear(f"{at}ffn_down", up)

    def mlp(self, first: str, second: str, x: Tensor) -> Tensor:
        """Two matrices with GELU between them."""
        return self.linear(second, ops.gelu(self.linear(first, x)))


def tower_of(
    hp: Hyperparameters, *, rms: bool, biased: bool, embeds_biased: bool, norms: str
) -> Tower:
    """The transformer that a mmproj file describes.

    Args:
        hp: the file's metadata.
        rms: as of `Tower`; files of one kind are alike in it, and in the following.
        biased: as of `Tower`.
        embeds_biased: as of `Tower`.
        norms: as of `Tower`.

    Raises:
        ModelError: something is missing or wrong.
    """
    width = hp.integer("vision.embedding_length", least=1)
    heads = hp.integer("vision.attention.head_count", least=1)
    if width % heads:
        raise ModelError(
            f"clip.vision.embedding_length is {width}, which {heads} heads do not divide"
        )
    gelu, silu = hp.flag("use_gelu", False), hp.flag("use_silu", False)
    if gelu and silu:
        raise ModelError("clip.use_gelu and clip.use_silu are both true")
    side, patch = hp.integer("vision.image_size", least=1), hp.integer("vision.patch_size", least=1)
    if side % patch or (side // patch) ** 2 > MOST_PATCHES:
        raise ModelError(
            f"clip.vision.image_size is {side}, expected a multiple of the patch_size, {patch}, "
            f"with at most {MOST_PATCHES} patches"
        )
    return Tower(
        width=width,
        inner=hp.integer("vision.feed_forward_length", least=1),
        heads=heads,
        layers=hp.integer("vision.block_count", least=1, most=1024),
        eps=hp.number("vision.attention.layer_norm_epsilon", above=0.0),
        side=side,
        patch=patch,
        activation="gelu" if gelu else "silu" if silu else "gelu_quick",
        mean=_colours(hp, "vision.image_mean"),
        std=_colours(hp, "vision.image_std", above=0.0),
        out=hp.integer("vision.projection_dim", least=1),
        rms=rms,
        biased=biased,
        embeds_biased=embeds_biased,
        norms=norms,
    )


def _colours(hp: Hyperparameters, name: str, above: float = -math.inf) -> tuple[float, ...]:
    found: Any = hp.get(name)
    given = found.tolist() if isinstance(found, np.ndarray) else found
    listed = given if isinstance(given, list) else []
    values = [float(x) for x in listed if isinstance(x, (int, float)) and not isinstance(x, bool)]
    if (
        len(values) < 3
        or len(values) != len(listed)
        or not all(math.isfinite(x) and x > above for x in values[:3])
    ):
        raise ModelError(f"clip.{name} is {given!r:.64}, expected three numbers, for red to blue")
    return tuple(values[:3])


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
        if name not in forms and name.startswith(("v.", "mm.")):
            yield f"the mmproj file has a tensor {name!r}, which nothing here reads"
