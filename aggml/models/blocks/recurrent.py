"""What recurrent layers share: views of each sequence's tokens, and a short convolution.

Not here: the recurrences themselves (mamba2.py, delta_net.py, rwkv7.py), where states lie
(../kv/caches.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aggml import ops

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aggml import Tensor
    from aggml.models.blocks.scope import Scope

__all__ = ["columns", "convolution", "convolved", "joined", "parts_of"]


def parts_of(at: Scope) -> Iterator[tuple[int, int, int, int]]:
    """For each part of a step: its number, its first token, tokens of a sequence, sequences."""
    first = 0
    for i, part in enumerate(at.shape.parts):
        yield i, first, part.tokens, part.sequences
        first += part.tokens * part.sequences


def columns(x: Tensor, n: int, offset: int, part: tuple[int, int, int, int]) -> Tensor:
    """A view of the tokens of one part: [n, tokens, sequences].

    Args:
        x: [any, tokens of the step].
        n: how many elements of each token.
        offset: the first of these elements.
        part: as `parts_of` gives it.
    """
    _, first, tokens, sequences = part
    row = x.nb[1]
    return ops.view_3d(x, n, tokens, sequences, row, tokens * row, first * row + offset * x.nb[0])


def joined(found: list[Tensor]) -> Tensor:
    """The results of all parts in one tensor, [any, tokens of the step]."""
    whole = found[0]
    for each in found[1:]:
        whole = ops.concat(whole, each, 1)
    return whole


def convolved(at: Scope, part: int, x: Tensor) -> Tensor:
    """SiLU of ``x``, convolved with the kernels ``ssm_conv1d``, plus a bias if there is one."""
    y = convolution(at, part, x, "ssm_conv1d.weight")
    bias = at.find("ssm_conv1d.bias")
    return ops.silu(y if bias is None else ops.add(y, bias))


def convolution(at: Scope, part: int, x: Tensor, kernels: str) -> Tensor:
    """``x`` [channels, tokens, sequences], each channel convolved with a kernel of its own.

    The state "conv" keeps the last tokens, as the convolution of the next tokens needs them.
    """
    kernel = at.weight(kernels)
    back, (channels, tokens, sequences) = kernel.ne[0] - 1, x.ne[:3]
    before = ops.reshape_3d(at.recall("conv", part), back, channels, sequences)
    line = ops.concat(before, ops.transpose(x), 0)
    n = at.history(part)
    last = ops.view_4d(
        line, back, channels, sequences, n,
        line.nb[1], line.nb[2], line.nb[0], (tokens - n + 1) * line.nb[0],
    )  # fmt: skip
    at.keep("conv", part, ops.cont(last), read=True)
    return ops.ssm_conv(line, kernel)
