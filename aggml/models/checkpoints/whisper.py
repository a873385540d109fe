"""open_whisper: Whisper's weights as OpenAI publishes them (``.pt``) and as ggml's ``.bin``.

Both have OpenAI's names of tensors. A ``.pt`` has no vocabulary: it is read from gpt2.tiktoken or
multilingual.tiktoken of Whisper's own package, if that file lies in the same folder. Not here:
unpickling (pickled.py), folders of Hugging Face (folder.py).
"""

from __future__ import annotations

import base64
import mmap
import re
import struct
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from aggml.models.checkpoints.arrays import ArraysFile
from aggml.models.checkpoints.pickled import read_pickled
from aggml.models.errors import ModelError
from aggml.models.speech.special import Special
from aggml.models.tokenizers.roles import CONTROL, NORMAL
from aggml.models.tokenizers.vocabulary import letters

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import numpy.typing as npt

__all__ = ["open_whisper"]

GGML: Final = struct.pack("<I", 0x67676D6C)
ZIP: Final = b"PK\x03\x04"
#: OpenAI's names, as regular expressions, and our names.
NAMES: Final = tuple(
    (re.compile(pattern), name)
    for pattern, name in (
        (r"encoder\.conv(\d)\.(weight|bias)", r"enc.conv\1.\2"),
        (r"encoder\.positional_embedding", "enc.position_embd.weight"),
        (r"encoder\.ln_post\.(weight|bias)", r"enc.output_norm.\1"),
        (r"decoder\.token_embedding\.weight", "token_embd.weight"),
        (r"decoder\.positional_embedding", "position_embd.weight"),
        (r"decoder\.ln\.(weight|bias)", r"output_norm.\1"),
    )
)
LAYER: Final = re.compile(r"(encoder|decoder)\.blocks\.(\d+)\.(.+)\.(weight|bias)")
PARTS: Final = {
    "attn_ln": "attn_norm", "attn.query": "attn_q", "attn.key": "attn_k", "attn.value": "attn_v",
    "attn.out": "attn_output", "cross_attn_ln": "cross_attn_norm",
    "cross_attn.query": "cross_attn_q", "cross_attn.key": "cross_attn_k",
    "cross_attn.value": "cross_attn_v", "cross_attn.out": "cross_attn_output",
    "mlp_ln": "ffn_norm", "mlp.0": "ffn_up", "mlp.2": "ffn_down",
}  # fmt: skip
#: The types of tensors that can be read, by ggml's numbers.
KINDS: Final[dict[int, np.dtype[Any]]] = {0: np.dtype("<f4"), 1: np.dtype("<f2")}


def open_whisper(path: Path, what: str = "model") -> ArraysFile | None:
    """Open a file of Whisper's weights; None if it is another kind of file. Blocks meanwhile.

    Args:
        path: of the file.
        what: it is, for errors.

    Raises:
        ModelError: the file is damaged, or has weights of another model.
    """
    try:
        with path.open("rb") as file:
            begin = file.read(4)
    except OSError as error:
        raise ModelError(f"cannot open the {what}: {error}") from error
    words: list[bytes] | None = None
    if begin == GGML:
        arrays, words = _read_ggml(path)
    elif begin == ZIP:
        found = read_pickled(path)
        prefix = "model_state_dict."
        arrays = {k.removeprefix(prefix): v for k, v in found.items() if k.startswith(prefix)}
    else:
        return None
    named = {_name(name, path): array for name, array in arrays.items() if name != "decoder.mask"}
    metadata = _metadata(named, path)
    rows = named["token_embd.weight"].shape[0]
    if words is None:
        words = _ranks(path, Special.of(rows))
    if words is not None:
        metadata |= _vocabulary(words, Special.of(rows), rows)
    return ArraysFile(path, metadata, {name: _widen_vectors(name, x) for name, x in named.items()})


def _name(name: str, path: Path) -> str:
    for pattern, ours in NAMES:
        if match := pattern.fullmatch(name):
            return match.expand(ours)
    match = LAYER.fullmatch(name)
    if match is None or match[3] not in PARTS:
        raise ModelError(f"{str(path)!r} has a tensor {name!r}: it is not Whisper's")
    side = "enc." if match[1] == "encoder" else ""
    return f"{side}blk.{match[2]}.{PARTS[match[3]]}.{match[4]}"


def _widen_vectors(name: str, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Vectors and positions as float32, matrices as they are."""
    if name.endswith(".bias"):
        array = array.reshape(-1)
    if array.ndim < 2 or "position_embd" in name:
        return array.astype(np.float32)
    return array


def _metadata(tensors: Mapping[str, npt.NDArray[Any]], path: Path) -> dict[str, Any]:
    """GGUF's keys; all follow from shapes, because heads have 64 elements in every Whisper."""

    def shape(name: str) -> tuple[int, ...]:
        if name not in tensors:
            raise ModelError(f"{str(path)!r} has no tensor {name!r}: it is not Whisper's")
        return tensors[name].shape

    def layers(prefix: str) -> int:
        heads = (n.removeprefix(prefix) for n in tensors if n.startswith(prefix))
        return 1 + max((int(n.split(".", 1)[0]) for n in heads), default=-1)

    width = shape("token_embd.weight")[1]
    values = {
        "context_length": shape("position_embd.weight")[0],
        "embedding_length": width,
        "block_count": layers("blk."),
        "feed_forward_length": shape("blk.0.ffn_up.weight")[0],
        "attention.head_count": max(width // HEAD, 1),
        "attention.layer_norm_epsilon": 1e-5,
        "encoder.block_count": layers("enc.blk."),
        "encoder.context_length": shape("enc.position_embd.weight")[0],
        "encoder.attention.head_count": max(width // HEAD, 1),
        "encoder.mel_bands": shape("enc.conv1.weight")[1],
        "vocab_size": shape("token_embd.weight")[0],
    }
    return {"general.architecture": "whisper"} | {f"whisper.{k}": v for k, v in values.items()}


HEAD: Final = 64


def _read_ggml(path: Path) -> tuple[dict[str, npt.NDArray[Any]], list[bytes]]:
    """Tensors and tokens of a ``.bin`` file: numbers, filters, tokens, tensors.

    Raises:
        ModelError: it is cut off; quantized tensors.
    """
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    whole = np.frombuffer(mapped, np.uint8)
    data = whole.data
    try:
        at = 4 + 44  # skips eleven numbers, which follow from shapes
        bands, bins = struct.unpack_from("<2i", data, at)
        at += 8 + 4 * bands * bins
        (count,) = struct.unpack_from("<i", data, at)
        at += 4
        words: list[bytes] = []
        length = struct.Struct("<I").unpack_from
        for _ in range(count):
            (n,) = length(data, at)
            words.append(mapped[at + 4 : at + 4 + n])
            at += 4 + n
        tensors: dict[str, npt.NDArray[Any]] = {}
        while at < len(data):
            axes, n, kind = struct.unpack_from("<3i", data, at)
            ne = struct.unpack_from(f"<{axes}i", data, at + 12)
            at += 12 + 4 * axes
            name = bytes(data[at : at + n]).decode()
            at += n
            if kind not in KINDS:
                raise ModelError(f"{str(path)!r} has quantized tensors, which are not read")
            size = int(np.prod(ne)) * KINDS[kind].itemsize
            raw = whole[at : at + size]
            if len(raw) < size:
                raise ModelError(f"{str(path)!r} is cut off")
            aligned = raw if at % KINDS[kind].itemsize == 0 else raw.copy()
            tensors[name] = aligned.view(KINDS[kind]).reshape(ne[::-1])
            at += size
    except (struct.error, ValueError) as error:
        raise ModelError(f"{str(path)!r} is damaged: {error}") from error
    return tensors, words


def _ranks(path: Path, special: Special) -> list[bytes] | None:
    """The tokens, from the tiktoken file in the folder of a ``.pt``; None if there is none.

    Raises:
        ModelError: that file is damaged.
    """
    file = path.with_name("multilingual.tiktoken" if special.multilingual else "gpt2.tiktoken")
    try:
        lines = file.read_bytes().splitlines()
    except FileNotFoundError:
        return None
    try:
        pairs = [line.split() for line in lines if line]
        ranked = {int(rank): base64.b64decode(token) for token, rank in pairs}
        return [ranked[i] for i in range(len(ranked))]
    except (ValueError, KeyError) as error:
        raise ModelError(f"{str(file)!r} is no list of ranked tokens") from error


def _vocabulary(words: Sequence[bytes], special: Special, rows: int) -> dict[str, Any]:
    """Everything under ``tokenizer.`` of a GGUF file.

    tiktoken has no list of merges: it merges the pair whose result has the lowest rank. So all
    splits of a token into two tokens are merges with the rank of that token.
    """
    letter_of = dict(enumerate(letters()))
    # Latin-1 has a character for each byte, so that `translate` replaces bytes by letters
    texts = [token.decode("latin-1").translate(letter_of) for token in words[: special.end]]
    ids = {text: i for i, text in enumerate(texts)}
    merges = []
    for text in texts:
        splits = [
            (ids[a], ids[b])
            for i in range(1, len(text))
            if (b := text[i:]) in ids and (a := text[:i]) in ids
        ]
        if len(splits) > 1:
            splits.sort()
        merges += [f"{texts[a]} {texts[b]}" for a, b in splits]
    tokens = [*texts, *special.names()]
    kinds = [NORMAL] * len(texts) + [CONTROL] * len(special.names())
    if len(tokens) != rows:
        raise ModelError(f"the vocabulary has {len(tokens)} tokens, the embeddings {rows}")
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.eos_token_id": special.end,
        "tokenizer.ggml.add_bos_token": False,
    }
