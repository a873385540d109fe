"""What recurrent layers share: views of each sequence's tokens, and a short convolution.

Not here: the recurrences themselves (mamba2.py, delta_net.py, rwkv6.py, rwkv7.py), where
states lie (../kv/caches.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aggml import ops

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aggml import Tensor
    from aggml.models.blocks.scope import Scope

__all__ = ["columns", "convolution", "convolved", "joined", "parts_of", "previous"]


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
    last = ops.view_3d(line, back, channels, sequences, line.nb[1], line.nb[2], tokens * line.nb[0])
    at.keep("conv", part, ops.cont(last), read=True)
    return ops.ssm_conv(line, kernel)


def previous(at: Scope, name: str, x: Tensor) -> Tensor:
    """The previous token of each token of ``x``, [width, tokens].

    The last token of each sequence is written to the state ``name``.
    """
    found = []
    for part in parts_of(at):
        i, _, tokens, sequences = part
        width, each = x.ne[0], columns(x, x.ne[0], 0, part)
        shifted = ops.reshape_3d(at.recall(name, i), width, 1, sequences)
        last = ops.view_3d(
            each, width, 1, sequences, each.nb[1], each.nb[2], (tokens - 1) * each.nb[1]
        )
        at.keep(name, i, ops.cont(last))
        if tokens > 1:
            rest = ops.view_3d(each, width, tokens - 1, sequences, each.nb[1], each.nb[2], 0)
            shifted = ops.concat(shifted, rest, 1)
        found.append(ops.reshape_2d(shifted, width, tokens * sequences))
    return joined(found)
