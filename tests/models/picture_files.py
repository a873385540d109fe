"""mmproj files of random weights, the text models they belong to, and pictures.

Here: their contents, from fixed seeds. Not here: the expected results, which were recorded
(reference_pictures/, made by benchmarks/make_pictures.py).
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from models import random_models
from models.layout import VOCABULARY, WIDTH

import aggml

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

REFERENCE: Final = Path(__file__).with_name("reference_pictures")
TOWER: Final = 48
INNER: Final = 80
LAYERS: Final = 2
PATCH: Final = 4
SIDE: Final = 32
PATCHES: Final = (SIDE // PATCH) ** 2


@dataclass(frozen=True)
class Eyes:
    """How a mmproj file differs from others.

    Attributes:
        kind: its ``clip.projector_type``.
        text: the layout of the text model, of tests/models/random_models.py.
        tensors: of the whole file, name -> shape in numpy order.
        layer: tensors of a layer that differ; None: missing.
        metadata: values by key, without "clip.vision.".
        types: element types of tensors, by the end of the name.
        activation: "use_gelu", "use_silu", or "" for neither.
    """

    kind: str
    text: str
    tensors: Mapping[str, tuple[int, ...]]
    layer: Mapping[str, tuple[int, ...] | None] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    types: Mapping[str, str] = field(default_factory=dict)
    activation: str = "use_gelu"


_LAYER: Final[dict[str, tuple[int, ...] | None]] = {
    "attn_q.weight": (TOWER, TOWER), "attn_q.bias": (TOWER,),
    "attn_k.weight": (TOWER, TOWER), "attn_k.bias": (TOWER,),
    "attn_v.weight": (TOWER, TOWER), "attn_v.bias": (TOWER,),
    "attn_out.weight": (TOWER, TOWER), "attn_out.bias": (TOWER,),
    "ln1.weight": (TOWER,), "ln1.bias": (TOWER,), "ln2.weight": (TOWER,), "ln2.bias": (TOWER,),
    "ffn_up.weight": (INNER, TOWER), "ffn_up.bias": (INNER,),
    "ffn_down.weight": (TOWER, INNER), "ffn_down.bias": (TOWER,),
}  # fmt: skip
_SIGLIP: Final = {
    "v.patch_embd.weight": (TOWER, 3, PATCH, PATCH), "v.patch_embd.bias": (TOWER,),
    "v.position_embd.weight": (PATCHES, TOWER), "v.post_ln.weight": (TOWER,),
    "v.post_ln.bias": (TOWER,),
}  # fmt: skip
_FC: Final = {"mm.model.fc.weight": (WIDTH, TOWER * 4)}

KINDS: Final[Mapping[str, Eyes]] = {
    "idefics3": Eyes(
        "idefics3", "llama", _SIGLIP | _FC,
        metadata={"projector.scale_factor": 2, "preproc_image_size": 64},
    ),
    "idefics3-old": Eyes(
        "idefics3", "llama", _SIGLIP | _FC, metadata={"projector.scale_factor": 2},
        types={"fc.weight": "f16", "patch_embd.weight": "f16"}, activation="",
    ),
    "gemma3": Eyes(
        "gemma3", "gemma3",
        _SIGLIP
        | {"mm.input_projection.weight": (TOWER, WIDTH), "mm.soft_emb_norm.weight": (TOWER,)},
        metadata={"projector.scale_factor": 2},
    ),
}  # fmt: skip

#: Sizes, (height, width), of the pictures for which results were recorded.
SIZES: Final = ((50, 70), (32, 32), (90, 33))
TEXTS: Final = ("What is this?\n", "And now:", " Say it.")
NAMES: Final = (
    "<bos>", "<eos>", "<start_of_image>", "<end_of_image>", "<fake_token_around_image>",
    "<global-img>", "<|vision_start|>", "<|vision_end|>", "[IMG_END]",
    *(f"<row_{y}_col_{x}>" for y in range(1, 4) for x in range(1, 4)),
)  # fmt: skip


def picture(i: int) -> NDArray[np.uint8]:
    """A picture of the size ``SIZES[i]``: waves and noise."""
    random = np.random.default_rng(70 + i)
    height, width = SIZES[i]
    y, x = np.arange(height)[:, None, None], np.arange(width)[None, :, None]
    wave = 127 + 100 * np.sin(y / 9 + np.arange(3)) * np.cos(x / (7 + 3 * i))
    found: NDArray[np.uint8] = np.clip(
        wave + random.normal(0, 12, (height, width, 3)), 0, 255
    ).astype(np.uint8)
    return found


def vocabulary() -> dict[str, Any]:
    """A byte-level vocabulary with the control tokens of all kinds."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {b: chr(b) for b in printable}
    for n, b in enumerate(b for b in range(256) if b not in letters):
        letters[b] = chr(256 + n)
    tokens = [letters[b] for b in range(256)]
    line = letters[10]
    tokens += [*NAMES, line * 2]
    tokens += [f"[unused{i}]" for i in range(VOCABULARY - len(tokens))]
    kinds = [1] * 256 + [3] * len(NAMES) + [1] + [5] * (VOCABULARY - 257 - len(NAMES))
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.merges": [f"{line} {line}"],
        "tokenizer.ggml.bos_token_id": 256,
        "tokenizer.ggml.eos_token_id": 257,
        "tokenizer.ggml.add_bos_token": True,
    }


def write_text(path: Path, kind: str, more: Mapping[str, Any] | None = None) -> Path:
    """The text model of a kind, with further metadata."""
    return random_models.write(path, KINDS[kind].text, vocabulary() | dict(more or {}))


def metadata_of(kind: str) -> dict[str, Any]:
    """The hyperparameters of a mmproj file, under GGUF's names."""
    eyes = KINDS[kind]
    found: dict[str, Any] = {
        "embedding_length": TOWER, "attention.head_count": 3, "feed_forward_length": INNER,
        "block_count": LAYERS, "projection_dim": WIDTH, "attention.layer_norm_epsilon": 1e-5,
        "image_size": SIDE, "patch_size": PATCH, "image_mean": [0.5, 0.4, 0.3],
        "image_std": [0.5, 0.6, 0.7],
    }  # fmt: skip
    found |= dict(eyes.metadata)
    whole: dict[str, Any] = {
        "general.architecture": "clip", "general.file_type": 0, "clip.has_vision_encoder": True,
        "clip.projector_type": eyes.kind,
    }  # fmt: skip
    if eyes.activation:
        whole[f"clip.{eyes.activation}"] = True
    return whole | {f"clip.vision.{key}": x for key, x in found.items()}


def weights(kind: str) -> dict[str, NDArray[np.float32]]:
    """Random values of each tensor, in numpy order; norms near 1."""
    eyes = KINDS[kind]
    random = np.random.default_rng(zlib.crc32(b"eyes" + kind.encode()))
    shapes = dict(eyes.tensors)
    for i in range(LAYERS):
        of = _LAYER | dict(eyes.layer)
        shapes |= {f"v.blk.{i}.{name}": x for name, x in of.items() if x is not None}
    made = {}
    for name, shape in shapes.items():
        values = random.standard_normal(shape).astype(np.float32)
        if name.endswith("bias"):
            values *= np.float32(0.3)
        elif "ln" in name or "norm" in name:
            values = 1 + np.float32(0.2) * values
        elif "position" not in name:
            values /= np.float32(np.sqrt(np.prod(shape[1:])))
        made[name] = values
    return made


def write_eyes(path: Path, kind: str, **changed: Any) -> Path:
    """The mmproj file of a kind; ``changed`` metadata by key, without "clip.vision."."""
    eyes = KINDS[kind]
    with aggml.GGUFWriter(path) as writer:
        more = {f"clip.vision.{key.replace('__', '.')}": x for key, x in changed.items()}
        for key, value in (metadata_of(kind) | more).items():
            writer.add(key, value)
        for name, values in weights(kind).items():
            as_ = next((t for end, t in eyes.types.items() if name.endswith(end)), None)
            writer.add_tensor(name, values if as_ is None else values.astype(np.float16))
    return path


def recorded(kind: str) -> dict[str, NDArray[Any]]:
    """The results of llama.cpp: "rows0" ... of pictures, "ids", "logits" and "next" of a prompt."""
    with np.load(REFERENCE / f"{kind}.npz") as found:
        return dict(found)
