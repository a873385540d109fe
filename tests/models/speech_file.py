"""A Whisper of random weights in each file format, with a shape that whisper.cpp reads, too.

Here: the weights by OpenAI's names, ggml's ``.bin``, a Hugging Face folder. The vocabulary has the
right number of tokens, but no meaning. Not here: the expected results (test_speech.py).
"""

from __future__ import annotations

import functools
import io
import json
import struct
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import anyio
import numpy as np
from safetensors.numpy import save_file

import aggml
from aggml.models.speech.features import filters
from aggml.models.speech.windows import Windows

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import numpy.typing as npt
    import pytest

    from aggml.models import Model, SpeechModel

    F32 = npt.NDArray[np.float32]

__all__ = [
    "BANDS",
    "loaded",
    "shorten",
    "sound",
    "weights",
    "write_bin",
    "write_folder",
    "write_short",
]

WIDTH, LAYERS, HEARD, WRITTEN, BANDS = 128, 2, 1500, 448, 80
VOCABULARY: Final = 51865
#: Vectors of a window of `write_short`, 4 s of sound: the encoder takes a twentieth of the time.
SHORT: Final = 200


@functools.cache
def sound(seconds: float) -> F32:
    """Tones that come and go, 16 kHz, read-only."""
    t = np.arange(int(seconds * 16000)) / 16000
    tones = [np.sin(2 * np.pi * f * t) * np.sin(2 * np.pi * f / 400 * t) for f in (220, 700, 2500)]
    found: F32 = (np.sum(tones, axis=0) / 4).astype(np.float32)
    found.flags.writeable = False
    return found


def shorten(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """Windows of at most so many tokens in a test: with random weights no window ends by itself.

    A whole window is 224 tokens at each of six temperatures, as none of the texts is believed.
    """
    made = Windows.__init__

    def shorter(self: Windows, *given: Any) -> None:
        made(self, *given)
        self.most = most

    monkeypatch.setattr(Windows, "__init__", shorter)


def weights(heard: int = HEARD, written: int = WRITTEN) -> dict[str, F32]:
    """Tensors by OpenAI's names; always the same ones.

    Args:
        heard: vectors that the encoder makes of a window, one for 20 ms.
        written: positions of the decoder; a window has half as many tokens.
    """
    rng = np.random.default_rng(19)

    def matrix(*shape: int) -> F32:
        size = np.prod(shape[1:])
        found: F32 = (rng.standard_normal(shape) / np.sqrt(size)).astype(np.float32)
        return found

    def vector(n: int, around: float = 0.0) -> F32:
        found: F32 = (around + 0.1 * rng.standard_normal(n)).astype(np.float32)
        return found

    found: dict[str, F32] = {
        "encoder.conv1.weight": matrix(WIDTH, BANDS, 3), "encoder.conv1.bias": vector(WIDTH),
        "encoder.conv2.weight": matrix(WIDTH, WIDTH, 3), "encoder.conv2.bias": vector(WIDTH),
        "encoder.positional_embedding": matrix(heard, WIDTH),
        "encoder.ln_post.weight": vector(WIDTH, 1), "encoder.ln_post.bias": vector(WIDTH),
        "decoder.token_embedding.weight": 2 * matrix(VOCABULARY, WIDTH),
        "decoder.positional_embedding": matrix(written, WIDTH),
        "decoder.ln.weight": vector(WIDTH, 1), "decoder.ln.bias": vector(WIDTH),
    }  # fmt: skip
    for side in ("encoder", "decoder"):
        for i in range(LAYERS):
            at = f"{side}.blocks.{i}."
            for attn in ("attn", "cross_attn") if side == "decoder" else ("attn",):
                for part in ("query", "key", "value", "out"):
                    found[f"{at}{attn}.{part}.weight"] = 2 * matrix(WIDTH, WIDTH)
                    if part != "key":
                        found[f"{at}{attn}.{part}.bias"] = vector(WIDTH)
                found[f"{at}{attn}_ln.weight"] = vector(WIDTH, 1)
                found[f"{at}{attn}_ln.bias"] = vector(WIDTH)
            found[f"{at}mlp_ln.weight"], found[f"{at}mlp_ln.bias"] = vector(WIDTH, 1), vector(WIDTH)
            found[f"{at}mlp.0.weight"] = matrix(4 * WIDTH, WIDTH)
            found[f"{at}mlp.0.bias"] = vector(4 * WIDTH)
            found[f"{at}mlp.2.weight"] = matrix(WIDTH, 4 * WIDTH)
            found[f"{at}mlp.2.bias"] = vector(WIDTH)
    return found


def words() -> list[bytes]:
    """All bytes, pairs of lower-case letters, then digits up to the right number of tokens."""
    found = [bytes([i]) for i in range(256)]
    letters = [bytes([c]) for c in b"abcdefghijklmnopqrstuvwxyz "]
    found += [a + b for a in letters for b in letters]
    found += [f"{i:05d}".encode() for i in range(50257 - len(found))]
    return found


def _kept(name: str, x: F32) -> npt.NDArray[Any]:
    """Matrices as f16, as whisper.cpp expects them."""
    return x.astype(np.float16) if x.ndim > 1 and "positional" not in name else x


def write_bin(path: Path, made: dict[str, F32] | None = None) -> None:
    """Write ggml's file format, as whisper.cpp reads it; ``made`` replaces `weights`."""
    path.write_bytes(_usual_bin() if made is None else _bin_of(made))


@contextmanager
def loaded(path: Path, **options: Any) -> Iterator[SpeechModel]:
    """A model for the tests of a file, whichever loop each runs on: a model belongs to none."""

    async def load() -> Model:
        return await aggml.models.load(path, **options)

    model = anyio.run(load)
    assert isinstance(model, aggml.models.SpeechModel)
    try:
        yield model
    finally:
        anyio.run(model.aclose)


def write_short(path: Path, written: int = WRITTEN) -> None:
    """As `write_bin`, with windows of 4 s: for tests that compare a model with itself.

    Whisper's own windows of 30 s take a third of a second of a core each, whatever is in them.
    """
    path.write_bytes(_short_bin(written))


@functools.cache
def _usual_bin() -> bytes:
    """15 MB, whose numbers take a quarter of a second of a core."""
    return _bin_of(weights())


@functools.cache
def _short_bin(written: int) -> bytes:
    return _bin_of(weights(SHORT, written))


def _bin_of(made: dict[str, F32]) -> bytes:
    heads = WIDTH // 64
    heard, written = (len(made[f"{x}.positional_embedding"]) for x in ("encoder", "decoder"))
    file = io.BytesIO()
    numbers = (VOCABULARY, heard, WIDTH, heads, LAYERS, written, WIDTH, heads, LAYERS, BANDS, 1)
    file.write(struct.pack("<I11i", 0x67676D6C, *numbers))
    file.write(struct.pack("<2i", BANDS, 201) + filters(BANDS).tobytes())
    file.write(struct.pack("<i", len(words())))
    for word in words():
        file.write(struct.pack("<I", len(word)) + word)
    for name, given in made.items():
        x = _kept(name, given)
        x = x.reshape(-1, 1) if name in {"encoder.conv1.bias", "encoder.conv2.bias"} else x
        ne = x.shape[::-1]
        kind = 1 if x.dtype == np.float16 else 0
        file.write(struct.pack(f"<3i{len(ne)}i", len(ne), len(name), kind, *ne))
        file.write(name.encode() + np.ascontiguousarray(x).tobytes())
    return file.getvalue()


#: Hugging Face's name of each layer, by OpenAI's name.
PARTS: Final = {
    "attn.query": "self_attn.q_proj", "attn.key": "self_attn.k_proj",
    "attn.value": "self_attn.v_proj", "attn.out": "self_attn.out_proj",
    "attn_ln": "self_attn_layer_norm", "cross_attn.query": "encoder_attn.q_proj",
    "cross_attn.key": "encoder_attn.k_proj", "cross_attn.value": "encoder_attn.v_proj",
    "cross_attn.out": "encoder_attn.out_proj", "cross_attn_ln": "encoder_attn_layer_norm",
    "mlp_ln": "final_layer_norm", "mlp.0": "fc1", "mlp.2": "fc2",
}  # fmt: skip
OTHERS: Final = {
    "encoder.positional_embedding": "encoder.embed_positions.weight",
    "decoder.positional_embedding": "decoder.embed_positions.weight",
    "decoder.token_embedding.weight": "decoder.embed_tokens.weight",
    "encoder.ln_post": "encoder.layer_norm", "decoder.ln": "decoder.layer_norm",
}  # fmt: skip


def write_folder(path: Path) -> None:
    """Write a Hugging Face folder, without a vocabulary."""
    tensors: dict[str, Any] = {}
    for name, given in weights().items():
        renamed = OTHERS.get(name, name)
        if ".blocks." in name:
            side, _, i, rest = name.split(".", 3)
            part, end = rest.rsplit(".", 1)
            renamed = f"{side}.layers.{i}.{PARTS[part]}.{end}"
        for old in ("encoder.ln_post", "decoder.ln"):
            if name.startswith(f"{old}."):
                renamed = f"{OTHERS[old]}.{name.rsplit('.', 1)[1]}"
        tensors[f"model.{renamed}"] = _kept(name, given)
    path.mkdir()
    save_file(tensors, path / "model.safetensors")
    config = {
        "model_type": "whisper", "architectures": ["WhisperForConditionalGeneration"],
        "d_model": WIDTH, "encoder_layers": LAYERS, "decoder_layers": LAYERS,
        "num_hidden_layers": LAYERS, "encoder_attention_heads": WIDTH // 64,
        "decoder_attention_heads": WIDTH // 64, "encoder_ffn_dim": 4 * WIDTH,
        "decoder_ffn_dim": 4 * WIDTH, "num_mel_bins": BANDS, "max_source_positions": HEARD,
        "max_target_positions": WRITTEN, "vocab_size": VOCABULARY, "activation_function": "gelu",
        "scale_embedding": False, "tie_word_embeddings": True,
    }  # fmt: skip
    (path / "config.json").write_text(json.dumps(config))
