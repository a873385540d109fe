"""llama4: attention in chunks in most layers, experts whose inputs are weighed, a shared net.

Layers that see all positions have no rotary ones. There attention gets sharper at late positions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aggml.models.blocks import FeedForward, Temperature
from aggml.models.checkpoints.keys import (
    DECODER,
    DECODER_KEYS,
    EXPERT_KEYS,
    scaled_frequencies,
)
from aggml.models.checkpoints.recipes import Checkpoint, transpose_experts
from aggml.models.description import Architecture, Description, Layer
from aggml.models.errors import ModelError
from aggml.models.reading import (
    attention_of,
    description_of,
    experts_of,
    layers_of,
    nets_of,
    rope_of,
    sliding_layers,
)

if TYPE_CHECKING:
    from aggml.models.checkpoints.config import Config
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]

CHUNK: Final = 8192  # positions; files do not have the number
PERIOD: Final = 4  # each so many-th layer sees all positions
SHARPER: Final = Temperature(0.1, CHUNK, 1)
WITHOUT_NORM: Final = 128  # models with so many experts have no norms of queries and keys


def describe(hp: Hyperparameters) -> Description:
    """A model of this architecture.

    Raises:
        ModelError: the file says that no layer has chunks.
    """
    if hp.get("attention.sliding_window") == 0:
        raise ModelError(
            "llama4.attention.sliding_window is 0: models without chunks are not supported"
        )
    hp.integer("attention.sliding_window", CHUNK)  # other programs ignore the number, too
    rope, layers = rope_of(hp, "normal"), layers_of(hp)
    near = rope_of(hp, "normal", base=hp.number("rope.freq_base_swa", rope.base, above=0.0))
    experts = experts_of(
        hp, weights="sigmoid", weigh_input=True, shared=FeedForward(suffix="_shexp")
    )
    step = hp.integer("interleave_moe_layer_step", least=1)
    nets = nets_of(hp, experts, step)
    norm = None if experts.count == WITHOUT_NORM else "turned head alone"
    mixers = []
    for i, chunked in enumerate(sliding_layers(hp, layers, PERIOD)):
        turned = (i + 1) % PERIOD != 0
        mixers.append(
            attention_of(
                hp, (near if chunked else rope) if turned else None, i,
                window=CHUNK if chunked else None, chunked=chunked,
                norm=norm if turned else None, temperature=None if turned else SHARPER,
            )
        )  # fmt: skip
    return description_of(hp, [Layer(mixer, net) for mixer, net in zip(mixers, nets, strict=True)])


def _check_chunks(config: Config) -> None:
    """Refuses what GGUF has no keys for: other chunks, other layers without rotary positions.

    Raises:
        ModelError: config.json has such a setting.
    """
    layers = int(config.need("num_hidden_layers"))
    period = config.get("no_rope_layer_interval", default=PERIOD)
    turned = [int((i + 1) % period != 0) for i in range(layers)]
    found = config.get("no_rope_layers") or turned
    usual = [int((i + 1) % PERIOD != 0) for i in range(layers)]
    if list(found) != usual:
        raise ModelError(
            f"config.json has no_rope_layers = {found!r:.60}; expected was each fourth layer to "
            "have no rotary positions"
        )
    kinds = ["chunked_attention" if x else "full_attention" for x in usual]
    if config.get("layer_types", default=kinds) != kinds:
        raise ModelError(
            f"config.json has layer_types = {config.get('layer_types')!r:.60}; expected was each "
            "fourth layer to see all positions"
        )
    experts = int(config.need("num_local_experts"))
    normed = config.get("use_qk_norm", default=True)
    if normed is (experts == WITHOUT_NORM):
        raise ModelError(
            f"config.json has use_qk_norm = {normed} for {experts} experts; models of "
            f"{WITHOUT_NORM} experts have no such norms, and all others have them"
        )


def _step(config: Config) -> int:
    """Every how many layers there are experts.

    Raises:
        ModelError: config.json names other layers.
    """
    step, layers = (
        config.get("interleave_moe_layer_step", default=1),
        config.need("num_hidden_layers"),
    )
    usual = [*range(step - 1, layers, step)]
    if config.get("moe_layers", default=usual) != usual:
        raise ModelError(
            f"config.json has moe_layers = {config.get('moe_layers')!r:.60}; expected was every "
            f"{step}th layer"
        )
    return int(step)


_NET: Final = "layers.{i}.feed_forward."
CHECKPOINT: Final = Checkpoint(
    ("llama4_text", "llama4"),
    DECODER | {
        "blk.{i}.ffn_gate": f"{_NET}gate_proj",
        "blk.{i}.ffn_up": f"{_NET}up_proj",
        "blk.{i}.ffn_down": f"{_NET}down_proj",
        "blk.{i}.ffn_gate_inp": f"{_NET}router",
        "blk.{i}.ffn_gate_exps.weight": transpose_experts(f"{_NET}experts.gate_up_proj", 0),
        "blk.{i}.ffn_up_exps.weight": transpose_experts(f"{_NET}experts.gate_up_proj", 1),
        "blk.{i}.ffn_down_exps.weight": transpose_experts(f"{_NET}experts.down_proj"),
        "blk.{i}.ffn_gate_shexp": f"{_NET}shared_expert.gate_proj",
        "blk.{i}.ffn_up_shexp": f"{_NET}shared_expert.up_proj",
        "blk.{i}.ffn_down_shexp": f"{_NET}shared_expert.down_proj",
        "rope_freqs.weight": scaled_frequencies,
    },
    DECODER_KEYS | EXPERT_KEYS | {
        "feed_forward_length": ("intermediate_size_mlp", "intermediate_size"),
        "expert_feed_forward_length": "intermediate_size",
        "interleave_moe_layer_step": _step,
        "attention.sliding_window": _check_chunks,
    },
    prefixes=("language_model.model.", "model.language_model.", "language_model.", "model."),
    ignored=(r"vision_model\.", r"multi_modal_projector\."),
    harmless={"for_llm_compressor": "it says how the folder is quantized"},
    expects={
        "hidden_act": ("silu",), "attention_chunk_size": (CHUNK,), "floor_scale": (CHUNK,),
        "attn_scale": (0.1,), "attn_temperature_tuning": (True, 4),
    },
)  # fmt: skip


ARCHITECTURE = Architecture(("llama4",), describe, (CHECKPOINT,))
