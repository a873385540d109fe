"""BERT's encoder as an aggml graph, with mean pooling and normalisation.

Not here: the weights (weights.py), running the graph (model.py).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from anyio.lowlevel import checkpoint

import aggml
from aggml import DType, Graph, Tensor, ops
from minilm.weights import EPS, HEAD, HEADS, LAYERS, WIDTH

if TYPE_CHECKING:
    from aggml.models.encoder.packing import Shape
    from minilm.weights import Weights


@dataclass(frozen=True, slots=True)
class Program:
    """A graph for one shape, its inputs, and its result ``vectors``, (rows, segments, 384)."""

    graph: Graph
    ids: Tensor
    positions: Tensor
    member: Tensor
    vectors: Tensor


async def build(w: Weights, shape: Shape) -> Program:
    """Build the graph of BERT's encoder, mean pooling and normalisation for one shape.

    Building takes 0.6 ms, so it lets the event loop run other tasks after each layer.
    """
    rows, tokens, segments = shape.rows, shape.tokens, shape.segments
    total = rows * tokens
    ids = aggml.new_tensor(DType.I32, ne=(total,), name="ids").set_input()
    positions = aggml.new_tensor(DType.I32, ne=(total,), name="positions").set_input()
    member = aggml.new_tensor(DType.F32, ne=(segments, tokens, rows), name="member").set_input()

    # If matrices have fewer bits than f32, store keys and values in bf16. Processors with tile
    # units (AMX) then need half the time for attention.
    narrow = w["encoder.layer.0.qkv.weight"].dtype is not DType.F32
    mask = _mask(member, shape) if shape.masked else None
    x = ops.add(
        ops.get_rows(w["embeddings.word"], ids), ops.get_rows(w["embeddings.position"], positions)
    )
    x = _layer_norm(w, "embeddings.LayerNorm", x)
    for i in range(LAYERS):
        prefix = f"encoder.layer.{i}"
        y = _attention(_qkv(w, f"{prefix}.qkv", x, narrow=narrow), mask, shape)
        y = _linear(w, f"{prefix}.attention.output.dense", y)
        x = _layer_norm(w, f"{prefix}.attention.output.LayerNorm", ops.add(y, x))
        y = ops.gelu_erf(_linear(w, f"{prefix}.intermediate.dense", x))
        y = _linear(w, f"{prefix}.output.dense", y)
        x = _layer_norm(w, f"{prefix}.output.LayerNorm", ops.add(y, x))
        await checkpoint()

    # Sum over each sentence's tokens, then v / |v|. Dividing by the number of tokens would not
    # change that.
    x = ops.cont(ops.transpose(ops.reshape_3d(x, WIDTH, tokens, rows)))
    sums = ops.mul_mat(x, ops.cont(ops.transpose(member)))  # [384, segments, rows]
    vectors = ops.scale(ops.rms_norm(sums, EPS), 1 / math.sqrt(WIDTH)).set_output()
    return Program(Graph(vectors), ids, positions, member, vectors)


def _linear(w: Weights, name: str, x: Tensor) -> Tensor:
    return ops.add(ops.mul_mat(w[f"{name}.weight"], x), w[f"{name}.bias"])


def _layer_norm(w: Weights, name: str, x: Tensor) -> Tensor:
    return ops.add(ops.mul(ops.norm(x, EPS), w[f"{name}.weight"]), w[f"{name}.bias"])


def _mask(member: Tensor, shape: Shape) -> Tensor:
    """[tokens, tokens, 1, rows] f16: 0 between two tokens of one sentence, else -60000.

    It is finite because a token of padding belongs to no sentence: its row would be all -inf. After
    soft_max, -60000 gives 0 just as -inf does.
    """
    same = ops.mul_mat(member, member)  # 1 or 0
    mask = ops.cast(ops.scale_bias(same, 60000.0, -60000.0), DType.F16)
    return ops.reshape_4d(mask, shape.tokens, shape.tokens, 1, shape.rows)


def _qkv(w: Weights, name: str, x: Tensor, *, narrow: bool) -> tuple[tuple[Tensor, int], ...]:
    """Queries, keys, values: each a tensor, and which 384 of its row; ``narrow``: k, v in bf16."""
    if not narrow:
        qkv = _linear(w, name, x)
        return (qkv, 0), (qkv, 1), (qkv, 2)
    weight, bias = w[f"{name}.weight"], w[f"{name}.bias"]

    def part(first: int, n: int) -> Tensor:
        rows = ops.view_2d(weight, WIDTH, n, weight.nb[1], weight.nb[1] * first)
        return ops.add(ops.mul_mat(rows, x), ops.view_1d(bias, n, bias.nb[0] * first))

    # The product writes bf16 itself, because its f32 result is used by the cast alone.
    kv = ops.cast(part(WIDTH, 2 * WIDTH), DType.BF16)
    return (part(0, WIDTH), 0), (kv, 0), (kv, 1)


def _attention(qkv: tuple[tuple[Tensor, int], ...], mask: Tensor | None, shape: Shape) -> Tensor:
    """Attention of all heads: [384, rows * tokens]."""
    rows, tokens = shape.rows, shape.tokens

    def heads(x: Tensor, at: int) -> Tensor:
        size, row = x.nb[0], x.nb[1]
        view = ops.view_4d(
            x, HEAD, HEADS, tokens, rows, size * HEAD, row, row * tokens, size * WIDTH * at
        )
        return ops.permute(view, 0, 2, 1, 3)

    q, k, v = (heads(x, at) for x, at in qkv)
    y = ops.flash_attn_ext(q, k, v, mask, 1 / math.sqrt(HEAD), 0.0, 0.0)
    return ops.reshape_2d(y, WIDTH, rows * tokens)
