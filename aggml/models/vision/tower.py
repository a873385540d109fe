"""Tower: the transformer over the patches of a picture, as a mmproj file describes it.

Here: its hyperparameters, and those of projectors that several kinds share; the extents of its
tensors. Not here: its nodes (layers.py), the kinds of files (projector.py and a file for each).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from aggml import ops
from aggml.models.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy.typing as npt

    from aggml import Tensor
    from aggml.models.hyperparameters import Hyperparameters

    U8 = npt.NDArray[np.uint8]
    F32 = npt.NDArray[np.float32]

__all__ = [
    "ACTIVATIONS", "BOUNDS", "HEAD_NORMS", "MOST_PATCHES", "MOST_TOKENS", "PatchGrid", "Tower",
    "check_merged", "is_of_pictures", "merged_of", "pixels_of", "square_of_positions", "tower_of",
]  # fmt: skip

MOST_PATCHES: Final = 1 << 16  # of one view
MOST_TOKENS: Final = 1 << 16  # of one picture
MOST_PIXELS: Final = 1 << 26  # of one view

HEAD_NORMS: Final = ("attn_q_norm", "attn_k_norm")  # of each head of queries and keys
#: What layers of some kinds have: these norms, factors of what attention and the net give, norms
#: behind both, a factor of the whole layer.
FURTHER: Final = (*HEAD_NORMS, "ls1", "ls2", "attn_post_norm", "ffn_post_norm", "out_scale")
#: Ends of the names of numbers that bound what a matrix takes and gives.
BOUNDS: Final = (".input_min", ".input_max", ".output_min", ".output_max")
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
        norms: the norm that stands before or behind all layers, "v.pre_ln" or "v.post_ln"; "": a
            file may have neither.
        scale: of the products of queries and keys; None: 1 / sqrt(head).
        value_norm: whether each head of values is normalised, without weights.
        further: tensors that each layer has beside the usual ones: see `FURTHER`.
        optional: those of them that some files have.
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
    scale: float | None = None
    value_norm: bool = False
    further: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()

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
            found |= self._further(tensors, at)
        found |= {f"{name}.weight": ne for name, ne in matrices.items()}
        found |= {f"{name}.weight": (w,) for name in norms}
        if self.biased or any(f"{name}.bias" in tensors for name in matrices):
            found |= {f"{name}.bias": ne[1:] for name, ne in matrices.items()}
        if not self.rms or any(f"{name}.bias" in tensors for name in norms):
            found |= {f"{name}.bias": (w,) for name in norms}
        if self.embeds_biased or "v.patch_embd.bias" in tensors:
            found["v.patch_embd.bias"] = (w,)
        return found

    def _further(self, tensors: Mapping[str, Tensor], at: str) -> dict[str, tuple[int, ...]]:
        """Extents of the further tensors of a layer."""
        found: dict[str, tuple[int, ...]] = {}
        for part in (*self.further, *self.optional):
            name = f"{at}{part}.weight"
            if part in self.further or name in tensors:
                n = {"out_scale": 1, **dict.fromkeys(HEAD_NORMS, self.head)}.get(part, self.width)
                found[name] = (n,)
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


def square_of_positions(tensors: Mapping[str, Tensor]) -> int:
    """How many learned embeddings of places a file has, which are those of a square.

    Raises:
        ModelError: they are not.
    """
    table = tensors.get("v.position_embd.weight")
    n = 1 if table is None else table.ne[1]
    if math.isqrt(n) ** 2 != n:
        raise ModelError(
            f"tensor 'v.position_embd.weight' has {n} rows, expected as many as a square has places"
        )
    return n


def merged_of(hp: Hyperparameters, tower: Tower, default: int, least: int) -> int:
    """``projector.scale_factor``: patches of a side of the square that becomes one token.

    Raises:
        ModelError: it does not divide the patches of a side of the tower's size.
    """
    merged = hp.integer("vision.projector.scale_factor", default, least=least, most=64)
    if (tower.side // tower.patch) % merged:
        raise ModelError(
            f"clip.vision.projector.scale_factor is {merged}, which does not divide the "
            f"{tower.side // tower.patch} patches of a side"
        )
    return merged


def check_merged(hp: Hyperparameters, merged: int) -> None:
    """Refuse a file of a kind whose tokens always stand for a square of ``merged`` patches a side.

    Raises:
        ModelError: the file tells another number.
    """
    told = hp.integer("vision.spatial_merge_size", merged)
    if told != merged:
        raise ModelError(f"clip.vision.spatial_merge_size is {told}, expected {merged}")


def pixels_of(hp: Hyperparameters, square: int) -> tuple[int, int]:
    """The least and the most pixels of a view, which is not smaller than a square of patches."""
    least = hp.integer("vision.image_min_pixels", least=1, most=MOST_PIXELS)
    most = hp.integer("vision.image_max_pixels", least=max(least, square), most=MOST_PIXELS)
    return least, most


def tower_of(
    hp: Hyperparameters,
    *,
    rms: bool,
    biased: bool,
    embeds_biased: bool,
    norms: str,
    sized: bool = True,
    rotary: bool = False,
) -> Tower:
    """The transformer that a mmproj file describes.

    Args:
        hp: the file's metadata.
        rms: as of `Tower`; files of one kind are alike in it, and in the following.
        biased: as of `Tower`.
        embeds_biased: as of `Tower`.
        norms: as of `Tower`.
        sized: whether all views have one size, which the file has to tell.
        rotary: whether patches have rotary positions of rows and columns.

    Raises:
        ModelError: something is missing or wrong.
    """
    width = hp.integer("vision.embedding_length", least=1)
    heads = hp.integer("vision.attention.head_count", least=1)
    if width % heads:
        raise ModelError(
            f"clip.vision.embedding_length is {width}, which {heads} heads do not divide"
        )
    if rotary and width // heads % 4:
        raise ModelError(
            f"clip.vision.attention.head_count is {heads}, so a head has {width // heads} "
            "elements, expected a multiple of 4"
        )
    gelu, silu = hp.flag("use_gelu", False), hp.flag("use_silu", False)
    if gelu and silu:
        raise ModelError("clip.use_gelu and clip.use_silu are both true")
    side = hp.integer("vision.image_size", None if sized else 0, least=int(sized))
    patch = hp.integer("vision.patch_size", least=1)
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


def is_of_pictures(name: str) -> bool:
    """Whether a tensor of a mmproj file is for pictures; some files have others, for sound."""
    return name.startswith(("v.", "mm.")) and not name.startswith("mm.a.")
