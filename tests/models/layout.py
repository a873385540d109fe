"""The contents of a model file of random weights: sizes, a llama's tensors, how others differ.

Here: the dataclass, shapes that several architectures share. Not here: the layouts of each
(random_models.py, layouts_*.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

WIDTH: Final = 64
HEADS: Final = 4
KV_HEADS: Final = 2
HEAD: Final = WIDTH // HEADS
INNER: Final = 96
LAYERS: Final = 4
VOCABULARY: Final = 320
WINDOW: Final = 12
N_EXPERTS: Final = 8
USED: Final = 2
INNER_OF_EXPERT: Final = 32


@dataclass(frozen=True)
class Layout:
    """How the files of an architecture differ from a llama's.

    Attributes:
        architecture: its name in the file.
        tensors: the tensors of a layer that differ: name -> shape in numpy order; None: missing.
        whole: further tensors outside the layers: name -> shape.
        metadata: values by key, without the architecture's prefix.
        types: element types of tensors, by the end of the name.
        layers: how many.
        bare: values by key, of keys without a prefix.
        single: layers that differ from the others: number -> differences as in ``tensors``.
    """

    architecture: str
    tensors: Mapping[str, tuple[int, ...] | None] = field(default_factory=dict)
    whole: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    types: Mapping[str, str] = field(default_factory=dict)
    layers: int = LAYERS
    bare: Mapping[str, Any] = field(default_factory=dict)
    single: Mapping[int, Mapping[str, tuple[int, ...] | None]] = field(default_factory=dict)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of all tensors; of embeddings and last norm only if the layout sets them."""
        found = dict(self.whole)
        for i in range(self.layers):
            of_layer = DENSE | dict(self.tensors) | dict(self.single.get(i, {}))
            found |= {f"blk.{i}.{name}": x for name, x in of_layer.items() if x is not None}
        return found


DENSE: Final[dict[str, tuple[int, ...]]] = {
    "attn_norm.weight": (WIDTH,),
    "attn_q.weight": (WIDTH, WIDTH),
    "attn_k.weight": (HEAD * KV_HEADS, WIDTH),
    "attn_v.weight": (HEAD * KV_HEADS, WIDTH),
    "attn_output.weight": (WIDTH, WIDTH),
    "ffn_norm.weight": (WIDTH,),
    "ffn_gate.weight": (INNER, WIDTH),
    "ffn_up.weight": (INNER, WIDTH),
    "ffn_down.weight": (WIDTH, INNER),
}
QKV_BIAS: Final = {
    "attn_q.bias": (WIDTH,),
    "attn_k.bias": (HEAD * KV_HEADS,),
    "attn_v.bias": (HEAD * KV_HEADS,),
}
HEAD_NORMS: Final = {"attn_q_norm.weight": (HEAD,), "attn_k_norm.weight": (HEAD,)}
POST_NORMS: Final = {"post_attention_norm.weight": (WIDTH,), "post_ffw_norm.weight": (WIDTH,)}
EXPERTS: Final[dict[str, tuple[int, ...] | None]] = {
    "ffn_gate.weight": None,
    "ffn_up.weight": None,
    "ffn_down.weight": None,
    "ffn_gate_inp.weight": (N_EXPERTS, WIDTH),
    "ffn_gate_exps.weight": (N_EXPERTS, INNER_OF_EXPERT, WIDTH),
    "ffn_up_exps.weight": (N_EXPERTS, INNER_OF_EXPERT, WIDTH),
    "ffn_down_exps.weight": (N_EXPERTS, WIDTH, INNER_OF_EXPERT),
}
SHARED: Final = {
    "ffn_gate_shexp.weight": (INNER, WIDTH),
    "ffn_up_shexp.weight": (INNER, WIDTH),
    "ffn_down_shexp.weight": (WIDTH, INNER),
}
OF_EXPERTS: Final = {
    "expert_count": N_EXPERTS,
    "expert_used_count": USED,
    "expert_feed_forward_length": INNER_OF_EXPERT,
}
OUTPUT: Final = {"output.weight": (VOCABULARY, WIDTH)}
