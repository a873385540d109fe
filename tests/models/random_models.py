"""Model files of random weights, one for each layout of each architecture.

Here: their metadata and tensors, from fixed seeds. Not here: the expected results, which were
recorded (reference/, made by benchmarks/make_logits.py).
"""

from __future__ import annotations

import functools
import tempfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from models import layouts_experts, layouts_hybrid, layouts_latent, layouts_states, layouts_variants
from models.layout import (
    EXPERTS,
    HEAD,
    HEAD_NORMS,
    HEADS,
    INNER,
    INNER_OF_EXPERT,
    KV_HEADS,
    N_EXPERTS,
    OF_EXPERTS,
    OUTPUT,
    POST_NORMS,
    QKV_BIAS,
    SHARED,
    VOCABULARY,
    WIDTH,
    WINDOW,
    Layout,
)

import aggml

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

#: Encoders that have a norm of this name after the last layer.
WITH_LAST_NORM: Final = ("modern-bert", "eurobert", "gemma-embedding", "llama-embed")
REFERENCE: Final = Path(__file__).with_name("reference")

#: The metadata of a file without a vocabulary.
NO_WORDS: Final[Mapping[str, Any]] = {"tokenizer.ggml.model": "no_vocab"}

LAYOUTS: Final[Mapping[str, Layout]] = {
    "llama": Layout("llama", whole=OUTPUT),
    "llama-tied": Layout("llama"),
    "llama-wide-heads": Layout(
        "llama",
        {"attn_k.weight": (32, WIDTH), "attn_v.weight": (32, WIDTH)},
        metadata={"attention.head_count": 2, "attention.head_count_kv": 1},
    ),
    "llama-rope-factors": Layout("llama", whole={"rope_freqs.weight": (HEAD // 2,)}),
    "llama-linear": Layout(
        "llama", metadata={"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}
    ),
    "llama-yarn": Layout(
        "llama",
        metadata={
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 4.0,
            "rope.scaling.original_context_length": 16,
        },
    ),
    "mixtral": Layout(
        "llama", EXPERTS, OUTPUT, {**OF_EXPERTS, "feed_forward_length": INNER_OF_EXPERT}
    ),
    "qwen2": Layout("qwen2", QKV_BIAS),
    "qwen3": Layout("qwen3", HEAD_NORMS),
    "qwen2moe": Layout(
        "qwen2moe",
        {**QKV_BIAS, **EXPERTS, **SHARED, "ffn_gate_inp_shexp.weight": (WIDTH,)},
        OUTPUT,
        {**OF_EXPERTS, "expert_shared_feed_forward_length": INNER},
    ),
    "qwen3moe": Layout("qwen3moe", {**HEAD_NORMS, **EXPERTS}, OUTPUT, OF_EXPERTS),
    "gemma2": Layout(
        "gemma2",
        POST_NORMS,
        metadata={
            "attention.sliding_window": WINDOW,
            "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 30.0,
        },
    ),
    "gemma3": Layout(
        "gemma3",
        {**POST_NORMS, **HEAD_NORMS},
        metadata={"attention.sliding_window": WINDOW, "rope.freq_base": 1e6},
        layers=7,
    ),
    "phi3": Layout(
        "phi3",
        {
            "attn_q.weight": None, "attn_k.weight": None, "attn_v.weight": None,
            "attn_qkv.weight": (WIDTH + 2 * HEAD * KV_HEADS, WIDTH),
            "ffn_gate.weight": None, "ffn_up.weight": (2 * INNER, WIDTH),
        },
        {
            **OUTPUT,
            "rope_factors_short.weight": (HEAD // 2,),
            "rope_factors_long.weight": (HEAD // 2,),
        },
        {
            "rope.scaling.original_context_length": 128, "rope.scaling.type": "longrope",
            "rope.scaling.attn_factor": 1.19,
        },
    ),
    "gpt-oss": Layout(
        "gpt-oss",
        {
            **EXPERTS, **QKV_BIAS, "ffn_norm.weight": None, "attn_output.bias": (WIDTH,),
            "post_attention_norm.weight": (WIDTH,), "attn_sinks.weight": (HEADS,),
            "ffn_gate_inp.bias": (N_EXPERTS,), "ffn_gate_exps.bias": (N_EXPERTS, INNER_OF_EXPERT),
            "ffn_up_exps.bias": (N_EXPERTS, INNER_OF_EXPERT),
            "ffn_down_exps.bias": (N_EXPERTS, WIDTH),
        },
        OUTPUT,
        {**OF_EXPERTS, "attention.sliding_window": WINDOW, "attention.key_length": HEAD,
         "attention.value_length": HEAD},
        {"exps.weight": "mxfp4"},
    ),
    "granite": Layout(
        "granite",
        metadata={
            "logit_scale": 8.0, "residual_scale": 0.22, "embedding_scale": 12.0,
            "attention.scale": 0.0625,
        },
    ),
    "granitemoe": Layout(
        "granitemoe",
        {**EXPERTS, **SHARED},
        metadata={
            **OF_EXPERTS, "feed_forward_length": INNER_OF_EXPERT, "logit_scale": 6.0,
            "residual_scale": 0.3, "embedding_scale": 10.0, "attention.scale": 0.1,
            "expert_shared_feed_forward_length": INNER,
        },
    ),
    "olmo2": Layout(
        "olmo2",
        {
            **POST_NORMS, "attn_norm.weight": None, "ffn_norm.weight": None,
            "attn_q_norm.weight": (WIDTH,), "attn_k_norm.weight": (HEAD * KV_HEADS,),
        },
        OUTPUT,
    ),
    "olmo3": Layout(
        "olmo2",
        {
            **POST_NORMS, "attn_norm.weight": None, "ffn_norm.weight": None,
            "attn_q_norm.weight": (WIDTH,), "attn_k_norm.weight": (HEAD * KV_HEADS,),
        },
        OUTPUT,
        {"attention.sliding_window": WINDOW},
    ),
    "glm4": Layout(
        "glm4",
        {**POST_NORMS, **QKV_BIAS, "ffn_gate.weight": None, "ffn_up.weight": (2 * INNER, WIDTH)},
        OUTPUT,
        {"rope.dimension_count": HEAD // 2},
    ),
    "glm4-seeing": Layout(
        "glm4",
        {**POST_NORMS, **QKV_BIAS, "ffn_gate.weight": None, "ffn_up.weight": (2 * INNER, WIDTH)},
        OUTPUT,
        {"rope.dimension_count": HEAD // 2, "rope.dimension_sections": [1, 1, 2, 0]},
    ),
    **layouts_latent.LAYOUTS,
    **layouts_states.LAYOUTS,
    **layouts_hybrid.LAYOUTS,
    **layouts_experts.LAYOUTS,
    **layouts_variants.LAYOUTS,
}  # fmt: skip


_ENCODER: Final[dict[str, tuple[int, ...] | None]] = {
    "attn_norm.weight": None,
    "ffn_norm.weight": None,
    "ffn_gate.weight": None,
    "attn_k.weight": (WIDTH, WIDTH),
    "attn_v.weight": (WIDTH, WIDTH),
    "attn_output_norm.weight": (WIDTH,),
    "attn_output_norm.bias": (WIDTH,),
    "layer_output_norm.weight": (WIDTH,),
    "layer_output_norm.bias": (WIDTH,),
}
_BIASES: Final = {
    "attn_q.bias": (WIDTH,),
    "attn_k.bias": (WIDTH,),
    "attn_v.bias": (WIDTH,),
    "attn_output.bias": (WIDTH,),
    "ffn_up.bias": (INNER,),
    "ffn_down.bias": (WIDTH,),
}
_EMBEDDINGS: Final = {
    "token_types.weight": (2, WIDTH),
    "token_embd_norm.weight": (WIDTH,),
    "token_embd_norm.bias": (WIDTH,),
}
_OF_ENCODER: Final = {
    "attention.layer_norm_epsilon": 1e-12,
    "attention.causal": False,
    "pooling_type": 1,
    "attention.head_count_kv": HEADS,
}

_RMS: Final = {"attention.causal": False, "pooling_type": 1}
_SOME_EXPERTS: Final = {
    "ffn_up.weight": None, "ffn_up.bias": None, "ffn_down.weight": None, "ffn_down.bias": None,
    "ffn_gate_inp.weight": (N_EXPERTS, WIDTH), "ffn_up_exps.weight": (N_EXPERTS, INNER, WIDTH),
    "ffn_down_exps.weight": (N_EXPERTS, WIDTH, INNER),
}  # fmt: skip
#: Models that make vectors; each of `texts` is one sequence.
ENCODERS: Final[Mapping[str, Layout]] = {
    "bert": Layout(
        "bert",
        {**_ENCODER, **_BIASES},
        {**_EMBEDDINGS, "position_embd.weight": (512, WIDTH)},
        _OF_ENCODER,
    ),
    "bert-cls": Layout(
        "bert",
        {**_ENCODER, **_BIASES},
        {**_EMBEDDINGS, "position_embd.weight": (512, WIDTH)},
        {**_OF_ENCODER, "pooling_type": 2},
    ),
    "bert-rank": Layout(
        "bert",
        {**_ENCODER, **_BIASES},
        {
            **_EMBEDDINGS, "position_embd.weight": (512, WIDTH), "cls.weight": (WIDTH, WIDTH),
            "cls.bias": (WIDTH,), "cls.output.weight": (1, WIDTH), "cls.output.bias": (1,),
        },
        {**_OF_ENCODER, "pooling_type": 2},
    ),
    "nomic-bert": Layout(
        "nomic-bert",
        {
            **_ENCODER, "attn_q.weight": None, "attn_k.weight": None, "attn_v.weight": None,
            "attn_qkv.weight": (3 * WIDTH, WIDTH), "ffn_gate.weight": (INNER, WIDTH),
        },
        _EMBEDDINGS,
        {**_OF_ENCODER, "rope.freq_base": 1000.0},
    ),
    "jina-bert-v2": Layout(
        "jina-bert-v2",
        {**_ENCODER, **_BIASES, "ffn_up.bias": None, "ffn_gate.weight": (INNER, WIDTH)},
        _EMBEDDINGS,
        _OF_ENCODER,
    ),
    "modern-bert": Layout(
        "modern-bert",
        {
            "attn_q.weight": None, "attn_k.weight": None, "attn_v.weight": None,
            "attn_qkv.weight": (3 * WIDTH, WIDTH), "ffn_gate.weight": None,
            "ffn_up.weight": (2 * INNER, WIDTH),
        },
        {"token_embd_norm.weight": (WIDTH,)},
        {**_OF_ENCODER, "attention.sliding_window": 8, "rope.freq_base": 160000.0,
         "rope.freq_base_swa": 10000.0},
        layers=5,
    ),
    "jina-bert-v3": Layout(
        "jina-bert-v3", {**_ENCODER, **_BIASES}, _EMBEDDINGS,
        {**_OF_ENCODER, "rope.freq_base": 20000.0},
    ),
    "nomic-bert-moe": Layout(
        "nomic-bert-moe",
        {
            **_ENCODER, **_BIASES, "attn_q.weight": None, "attn_k.weight": None,
            "attn_v.weight": None, "attn_q.bias": None, "attn_k.bias": None, "attn_v.bias": None,
            "attn_qkv.weight": (3 * WIDTH, WIDTH), "attn_qkv.bias": (3 * WIDTH,),
        },
        _EMBEDDINGS,
        {
            **_OF_ENCODER, **OF_EXPERTS, "moe_every_n_layers": 2, "rope.freq_base": 10000.0,
        },
        single=dict.fromkeys((1, 3), _SOME_EXPERTS),
    ),
    "eurobert": Layout("eurobert", {}, {}, {**_RMS, "rope.freq_base": 250000.0}),
    "llama-embed": Layout("llama-embed", {}, {}, _RMS),
    "llama-embed-rope-factors": Layout(
        "llama-embed", {}, {"rope_freqs.weight": (HEAD // 2,)}, _RMS
    ),
    "neo-bert": Layout(
        "neo-bert",
        {
            "attn_q.weight": None, "attn_k.weight": None, "attn_v.weight": None,
            "attn_qkv.weight": (3 * WIDTH, WIDTH), "ffn_gate.weight": None,
            "ffn_up.weight": (2 * INNER, WIDTH),
        },
        {"enc.output_norm.weight": (WIDTH,)}, {**_RMS, "attention.head_count_kv": HEADS},
    ),
    "gemma-embedding": Layout(
        "gemma-embedding", {**POST_NORMS, **HEAD_NORMS}, {},
        {
            **_RMS, "attention.sliding_window": 8, "rope.freq_base": 1e6,
            "rope.freq_base_swa": 10000.0,
        },
        layers=7,
    ),
    "gemma-embedding-dense": Layout(
        "gemma-embedding", {**POST_NORMS, **HEAD_NORMS},
        {"dense_2.weight": (INNER, WIDTH), "dense_3.weight": (WIDTH, INNER)},
        {
            **_RMS, "attention.sliding_window": 8, "rope.freq_base": 1e6,
            "rope.freq_base_swa": 10000.0, "dense_2_feat_in": WIDTH, "dense_2_feat_out": INNER,
            "dense_3_feat_in": INNER, "dense_3_feat_out": WIDTH,
        },
        layers=7,
    ),
}  # fmt: skip


def texts() -> list[list[int]]:
    """Token ids of five texts of different lengths."""
    random = np.random.default_rng(12)
    return [[int(x) for x in random.integers(3, VOCABULARY, n)] for n in (5, 1, 17, 40, 8)]


def _layout(name: str) -> Layout:
    return LAYOUTS[name] if name in LAYOUTS else ENCODERS[name]


def weights(name: str) -> dict[str, NDArray[np.float32]]:
    """Random values of each tensor, in numpy order; norms near 1."""
    layout = _layout(name)
    random = np.random.default_rng(zlib.crc32(name.encode()))

    def values(tensor: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
        if "rope_" in tensor:
            return (1 + random.random(shape)).astype(np.float32)
        if layout.architecture == "gemma3n" and tensor.endswith(("q_norm.weight", "k_norm.weight")):
            # products of queries and keys are not scaled
            return (0.5 + 0.1 * random.standard_normal(shape)).astype(np.float32)
        if "norm" in tensor:
            return (1 + 0.2 * random.standard_normal(shape)).astype(np.float32)
        if tensor.endswith(("scale.weight", ".scale")):
            return (0.5 + random.random(shape)).astype(np.float32)
        if tensor.endswith("ssm_a"):  # negative, so that the state decays
            return (-0.2 - random.random(shape)).astype(np.float32)
        made = random.standard_normal(shape).astype(np.float32)
        if tensor.endswith(("bias", "exp_probs_b")) or "sinks" in tensor:
            return made * np.float32(0.3)
        return made / np.float32(np.sqrt(shape[-1]))

    shapes = {"token_embd.weight": (VOCABULARY, WIDTH), "output_norm.weight": (WIDTH,)}
    shapes |= layout.shapes()
    made = {tensor: values(tensor, shape) for tensor, shape in shapes.items()}
    made["token_embd.weight"] *= 4
    # lfm2's last norm has the name token_embd_norm, that of olmo has no weights
    other = layout.architecture.startswith(("lfm2", "olmo")) and layout.architecture not in (
        "olmo2",
        "olmoe",
    )
    if other or (name in ENCODERS and layout.architecture not in WITH_LAST_NORM):
        del made["output_norm.weight"]
    return made


def metadata_of(name: str) -> dict[str, Any]:
    """The hyperparameters of one layout, under GGUF's names."""
    layout = _layout(name)
    metadata = {
        "block_count": layout.layers,
        "context_length": 512,
        "embedding_length": WIDTH,
        "feed_forward_length": INNER,
        "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "vocab_size": VOCABULARY,
    } | dict(layout.metadata)
    of = layout.architecture
    named = {f"{of}.{key}": x for key, x in metadata.items() if x is not None}
    return {"general.architecture": of} | named | dict(layout.bare)


def write(path: Path, name: str, vocabulary: Mapping[str, Any] | None = None) -> Path:
    """Write a file of one layout, with the metadata of a vocabulary or without one."""
    if not vocabulary:
        path.unlink(missing_ok=True)  # a model may still have the file mapped
        path.write_bytes(_without_vocabulary(name))
    else:
        _write(path, name, vocabulary)
    return path


@functools.lru_cache(16)
def _without_vocabulary(name: str) -> bytes:
    """The file of a layout: many tests in a row ask for the same one, which takes 10 ms to make."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.gguf"
        _write(path, name, NO_WORDS)
        return path.read_bytes()


def _write(path: Path, name: str, vocabulary: Mapping[str, Any]) -> None:
    layout = _layout(name)
    with aggml.GGUFWriter(path) as writer:
        for key, value in metadata_of(name).items():
            writer.add(key, value)
        for key, value in (vocabulary or NO_WORDS).items():
            writer.add(key, value)
        if name in ENCODERS:
            writer.add("tokenizer.ggml.token_type_count", 2)
        for tensor, values in weights(name).items():
            kind = next((t for end, t in layout.types.items() if tensor.endswith(end)), None)
            if kind is None:
                writer.add_tensor(tensor, values)
            else:
                writer.add_tensor(tensor, aggml.quantize(values, kind), kind)


def words(*known: str) -> dict[str, Any]:
    """The metadata of a vocabulary of BERT: these words, and others up to the size of a layout."""
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *known]
    tokens += [f"▁w{i}" for i in range(VOCABULARY - len(tokens))]
    return {
        "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3] * 4 + [1] * (len(tokens) - 4),
        "tokenizer.ggml.cls_token_id": 2,
        "tokenizer.ggml.seperator_token_id": 3,
        "tokenizer.ggml.unknown_token_id": 1,
    }


def prompt(n: int = 40) -> list[int]:
    """The token ids of the prompt for which logits were recorded."""
    return [int(x) for x in np.random.default_rng(11).integers(0, VOCABULARY, n)]


#: Layouts with chunks or windows of a fixed length, and how long a prompt is that reaches beyond.
LATE: Final[Mapping[str, int]] = {"llama4": 8250, "smallthinker": 4150}


def recorded(name: str) -> dict[str, NDArray[Any]]:
    """The results of llama.cpp for a file of this layout: "logits" and "ids", or "vectors"."""
    with np.load(REFERENCE / f"{name}.npz") as found:
        return dict(found)
