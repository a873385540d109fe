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
        of_text: metadata of the text model.
        large: the size, (height, width), of one more picture; some of its rows were recorded.
    """

    kind: str
    text: str
    tensors: Mapping[str, tuple[int, ...]]
    layer: Mapping[str, tuple[int, ...] | None] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    types: Mapping[str, str] = field(default_factory=dict)
    activation: str = "use_gelu"
    of_text: Mapping[str, Any] = field(default_factory=dict)
    large: tuple[int, int] | None = None


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

_SQUARE: Final = {
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

_NONE: Final = {f"{x}.bias": None for x in ("attn_q", "attn_k", "attn_v", "attn_out")}
_RMS: Final[dict[str, tuple[int, ...] | None]] = {"ln1.bias": None, "ln2.bias": None}
_BARE: Final[dict[str, tuple[int, ...] | None]] = {
    **_RMS, **_NONE, "ffn_up.bias": None, "ffn_down.bias": None,
    "ffn_gate.weight": (INNER, TOWER),
}  # fmt: skip
_GATED: Final[dict[str, tuple[int, ...] | None]] = {
    **_RMS, "ffn_gate.weight": (INNER, TOWER), "ffn_gate.bias": (INNER,),
}  # fmt: skip
_JOINED: Final[dict[str, tuple[int, ...] | None]] = {
    **{f"attn_{x}.{y}": None for x in "qkv" for y in ("weight", "bias")},
    "attn_qkv.weight": (3 * TOWER, TOWER), "attn_qkv.bias": (3 * TOWER,),
}  # fmt: skip
_PIXTRAL: Final = {
    "v.patch_embd.weight": (TOWER, 3, PATCH, PATCH), "v.pre_ln.weight": (TOWER,),
    "mm.1.weight": (WIDTH, TOWER), "mm.2.weight": (WIDTH, WIDTH),
    "v.token_embd.img_break": (WIDTH,),
}  # fmt: skip
_QWEN: Final = {
    "v.patch_embd.weight": (TOWER, 3, PATCH, PATCH),
    "v.patch_embd.weight.1": (TOWER, 3, PATCH, PATCH), "v.post_ln.weight": (TOWER,),
    "mm.0.weight": (4 * TOWER, 4 * TOWER), "mm.0.bias": (4 * TOWER,),
    "mm.2.weight": (WIDTH, 4 * TOWER), "mm.2.bias": (WIDTH,),
}  # fmt: skip

_SCALED: Final[dict[str, tuple[int, ...] | None]] = {
    "ls1.weight": (TOWER,), "ls2.weight": (TOWER,),
}  # fmt: skip
_INTERNVL: Final = {
    "v.patch_embd.weight": (TOWER, 3, PATCH, PATCH), "v.patch_embd.bias": (TOWER,),
    "v.class_embd": (TOWER,), "v.position_embd.weight": (PATCHES + 1, TOWER),
    "mm.model.mlp.0.weight": (4 * TOWER,), "mm.model.mlp.0.bias": (4 * TOWER,),
    "mm.model.mlp.1.weight": (INNER, 4 * TOWER), "mm.model.mlp.1.bias": (INNER,),
    "mm.model.mlp.3.weight": (WIDTH, INNER), "mm.model.mlp.3.bias": (WIDTH,),
}  # fmt: skip
_TWO: Final = {
    "mm.1.weight": (INNER, 4 * TOWER), "mm.1.bias": (INNER,),
    "mm.2.weight": (WIDTH, INNER), "mm.2.bias": (WIDTH,),
}  # fmt: skip
_GEMMA4: Final = {
    "v.patch_embd.weight": (TOWER, 3, PATCH, PATCH), "v.position_embd.weight": (2, 64, TOWER),
    "mm.input_projection.weight": (WIDTH, TOWER),
}  # fmt: skip
_OF_GEMMA4: Final[dict[str, tuple[int, ...] | None]] = {
    **_BARE, "attn_q_norm.weight": (TOWER // 3,), "attn_k_norm.weight": (TOWER // 3,),
    "attn_post_norm.weight": (TOWER,), "ffn_post_norm.weight": (TOWER,),
}  # fmt: skip
_BOUNDED: Final[dict[str, tuple[int, ...] | None]] = {
    f"{name}_{end}": (1,)
    for name in ("attn_q.input", "attn_out.output", "ffn_gate.input", "ffn_up.output")
    for end in ("min", "max")
}

_PADDLE: Final = {"mm.input_norm.weight": (TOWER,), "mm.input_norm.bias": (TOWER,)}
_GLM: Final = {
    "v.patch_embd.weight": (TOWER, 3, PATCH, PATCH), "v.patch_embd.bias": (TOWER,),
    "v.patch_embd.weight.1": (TOWER, 3, PATCH, PATCH), "v.post_ln.weight": (TOWER,),
    "mm.patch_merger.weight": (WIDTH, TOWER, 2, 2), "mm.patch_merger.bias": (WIDTH,),
    "mm.model.fc.weight": (WIDTH, WIDTH), "mm.post_norm.weight": (WIDTH,),
    "mm.post_norm.bias": (WIDTH,), "mm.gate.weight": (INNER, WIDTH),
    "mm.up.weight": (INNER, WIDTH), "mm.down.weight": (WIDTH, INNER),
}  # fmt: skip

KINDS: Final[Mapping[str, Eyes]] = _SQUARE | {
    "internvl": Eyes(
        "internvl", "qwen3", _INTERNVL, _SCALED,
        {"projector.scale_factor": 2, "preproc_max_tiles": 6},
    ),
    "lfm2": Eyes(
        "lfm2", "lfm2", _SIGLIP | _TWO, metadata={"projector.scale_factor": 2},
    ),
    "lfm2-pieces": Eyes(
        "lfm2", "lfm2",
        _SIGLIP | _TWO
        | {"v.patch_embd.weight": (TOWER, 3, 16, 16), "v.position_embd.weight": (9, TOWER),
           "mm.input_norm.weight": (4 * TOWER,), "mm.input_norm.bias": (4 * TOWER,)},
        metadata={"projector.scale_factor": 2, "patch_size": 16},
        large=(700, 820),
    ),
    "paddleocr": Eyes(
        "paddleocr", "paddleocr",
        _SIGLIP | _TWO | _PADDLE, metadata={"image_min_pixels": 1024, "image_max_pixels": 4096},
    ),
    "kimivl": Eyes(
        "kimivl", "llama", _SIGLIP | _TWO | _PADDLE, metadata={"projector.scale_factor": 2},
    ),
    "dots_ocr": Eyes(
        "dots_ocr", "qwen2",
        _PADDLE
        | {
            "v.patch_embd.weight": (TOWER, 3, PATCH, PATCH), "v.patch_embd.bias": (TOWER,),
            "v.pre_ln.weight": (TOWER,), "mm.post_norm.weight": (TOWER,),
            "mm.0.weight": (INNER, 4 * TOWER), "mm.0.bias": (INNER,),
            "mm.2.weight": (WIDTH, INNER), "mm.2.bias": (WIDTH,),
        },
        _BARE,
        {"image_min_pixels": 1024, "image_max_pixels": 4096, "projector.scale_factor": 2,
         "image_size": 0},
        activation="use_silu",
    ),
    "glm4v": Eyes(
        "glm4v", "glm4-seeing",
        _GLM | {"v.norm_embd.weight": (TOWER,), "v.position_embd.weight": (PATCHES, TOWER)},
        _BARE, activation="use_silu",
    ),
    "glm-ocr": Eyes(
        "glm4v", "glm4-seeing", _GLM,
        {**_GATED, "attn_q_norm.weight": (TOWER // 3,), "attn_k_norm.weight": (TOWER // 3,)},
        activation="use_silu",
    ),
    "lightonocr": Eyes(
        "lightonocr", "qwen3",
        {x: y for x, y in _PIXTRAL.items() if "break" not in x}
        | {"mm.input_norm.weight": (TOWER,), "mm.patch_merger.weight": (TOWER, 4 * TOWER)},
        _BARE, {"spatial_merge_size": 2, "preproc_image_size": 61}, activation="use_silu",
    ),
    "gemma4v": Eyes("gemma4v", "gemma4", _GEMMA4, _OF_GEMMA4),
    "gemma4v-bounded": Eyes(
        "gemma4v", "gemma4-keys-as-values",
        _GEMMA4 | {"v.std_bias": (TOWER,), "v.std_scale": (TOWER,)},
        {**_OF_GEMMA4, **_BOUNDED, "out_scale.weight": (1,)}, {"projector.scale_factor": 2},
    ),
    "pixtral": Eyes(
        "pixtral", "llama", _PIXTRAL | {"mm.1.bias": (WIDTH,), "mm.2.bias": (WIDTH,)},
        _BARE, activation="use_silu",
    ),
    "pixtral-merged": Eyes(
        "pixtral", "mistral3",
        _PIXTRAL
        | {"mm.input_norm.weight": (TOWER,), "mm.patch_merger.weight": (TOWER, 4 * TOWER)},
        _BARE, {"spatial_merge_size": 2}, activation="use_silu",
    ),
    "qwen2vl": Eyes(
        "qwen2vl_merger", "qwen2vl", _QWEN | {"v.post_ln.bias": (TOWER,)}, activation="",
    ),
    "qwen2.5vl": Eyes(
        "qwen2.5vl_merger", "qwen2vl",
        # A window is 112 pixels wide, so the patches are larger here.
        _QWEN | {f"v.patch_embd.weight{x}": (TOWER, 3, 16, 16) for x in ("", ".1")},
        _GATED, {"n_wa_pattern": 2, "patch_size": 16}, activation="use_silu",
    ),
    "qwen3vl": Eyes(
        "qwen3vl_merger", "qwen3vl",
        _QWEN
        | {
            "v.patch_embd.bias": (TOWER,), "v.position_embd.weight": (PATCHES, TOWER),
            "v.post_ln.bias": (TOWER,), "v.deepstack.0.norm.weight": (4 * TOWER,),
            "v.deepstack.0.norm.bias": (4 * TOWER,),
            "v.deepstack.0.fc1.weight": (4 * TOWER, 4 * TOWER),
            "v.deepstack.0.fc1.bias": (4 * TOWER,),
            "v.deepstack.0.fc2.weight": (WIDTH, 4 * TOWER), "v.deepstack.0.fc2.bias": (WIDTH,),
        },
        _JOINED, {"spatial_merge_size": 2, "is_deepstack_layers": [True, False]},
        of_text={"qwen3vl.n_deepstack_layers": 1},
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
LATER_NAMES: Final = (  # behind the others, whose numbers are in records
    "<img>", "</img>", "<|image_start|>", "<|image_end|>", "<|img_thumbnail|>",
    "<|IMAGE_START|>", "<|IMAGE_END|>", "<|image>", "<image|>",
    *(f"<|img_row_{y}_col_{x}|>" for y in (1, 2) for x in (1, 2)),
    "<|im_start|>", "<|im_end|>", "<|img|>", "<|endofimg|>", "<|media_start|>", "<|media_end|>",
    "<|begin_of_image|>", "<|end_of_image|>",
)  # fmt: skip
LARGE_STEP: Final = 16  # of the rows of a large picture so many-th ones were recorded


def picture(i: int, size: tuple[int, int] | None = None) -> NDArray[np.uint8]:
    """A picture of the size ``SIZES[i]``, or another one: waves and noise."""
    random = np.random.default_rng(70 + i)
    height, width = size or SIZES[i]
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
    tokens += [*NAMES, line * 2, *LATER_NAMES]
    kinds = [1] * 256 + [3] * len(NAMES) + [1] + [3] * len(LATER_NAMES)
    unused = VOCABULARY - len(tokens)
    tokens += [f"[unused{i}]" for i in range(unused)]
    kinds += [5] * unused
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
    return random_models.write(
        path, KINDS[kind].text, vocabulary() | dict(KINDS[kind].of_text) | dict(more or {})
    )


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
        if name.endswith(("_min", "_max")):
            values = np.float32(0.5) * np.abs(values) + np.float32(0.7)
            values = -values if name.endswith("_min") else values
        elif name.endswith("bias"):
            values *= np.float32(0.3)
        elif any(part in name for part in ("ln", "norm", ".ls", "scale")):
            values = 1 + np.float32(0.2) * values
        elif "position" not in name:
            values /= np.float32(np.sqrt(np.prod(shape[1:])))
        made[name] = values
    return made


def write_eyes(path: Path, kind: str, *, for_llama_cpp: bool = False, **changed: Any) -> Path:
    """The mmproj file of a kind.

    Args:
        path: of the file.
        kind: one of `KINDS`.
        for_llama_cpp: llama.cpp 0.3.36 takes the last row of internvl's places for that of the
            class token, which is the first one in transformers: then the rows stand so.
        changed: metadata by key, without "clip.vision.".
    """
    eyes = KINDS[kind]
    with aggml.GGUFWriter(path) as writer:
        more = {f"clip.vision.{key.replace('__', '.')}": x for key, x in changed.items()}
        for key, value in (metadata_of(kind) | more).items():
            writer.add(key, value)
        for name, values in weights(kind).items():
            if for_llama_cpp and eyes.kind == "internvl" and "position" in name:
                values = np.roll(values, -1, axis=0)
            as_ = next((t for end, t in eyes.types.items() if name.endswith(end)), None)
            writer.add_tensor(name, values if as_ is None else values.astype(np.float16))
    return path


def recorded(kind: str) -> dict[str, NDArray[Any]]:
    """The results of llama.cpp: "rows0" ... of pictures, "ids", "logits" and "next" of a prompt."""
    with np.load(REFERENCE / f"{kind}.npz") as found:
        return dict(found)
