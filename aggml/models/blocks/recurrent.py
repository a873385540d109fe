"""What recurrent layers share: views of each sequence's tokens, a short convolution, kept states.

Not here: the recurrences themselves (mamba2.py, delta_net.py, rwkv6.py, rwkv7.py), where
states lie (../kv/caches.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aggml import ops

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from aggml import Tensor
    from aggml.models.blocks.scope import Scope

__all__ = [
    "columns",
    "convolution",
    "convolve",
    "join_parts",
    "parts_of",
    "previous",
    "run_recurrence",
]


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


def join_parts(found: list[Tensor]) -> Tensor:
    """The results of all parts in one tensor, [any, tokens of the step]."""
    whole = found[0]
    for each in found[1:]:
        whole = ops.concat(whole, each, 1)
    return whole


def convolve(at: Scope, part: int, x: Tensor) -> Tensor:
    """SiLU of ``x``, convolved with the kernels ``ssm_conv1d``, plus a bias if there is one."""
    y = convolution(at, part, x, "ssm_conv1d.weight")
    bias = at.find("ssm_conv1d.bias")
    return ops.silu(y if bias is None else ops.add(y, bias))


def convolution(at: Scope, part: int, x: Tensor, kernels: str, name: str = "conv") -> Tensor:
    """``x`` [channels, tokens, sequences], each channel convolved with a kernel of its own.

    The state ``name`` keeps the last tokens, as the convolution of the next tokens needs them.
    """
    kernel = at.weight(kernels)
    kernel = kernel if kernel.ne[1] > 1 else ops.reshape_2d(kernel, kernel.ne[0], x.ne[0])
    back, (channels, tokens, sequences) = kernel.ne[0] - 1, x.ne[:3]
    before = ops.reshape_3d(at.recall(name, part), back, channels, sequences)
    line = ops.concat(before, ops.transpose(x), 0)
    n = at.history(part)
    last = ops.view_4d(
        line, back, channels, sequences, n,
        line.nb[1], line.nb[2], line.nb[0], (tokens - n + 1) * line.nb[0],
    )  # fmt: skip
    at.keep(name, part, ops.cont(last), read=True)
    return ops.ssm_conv(line, kernel)


def previous(at: Scope, name: str, x: Tensor) -> Tensor:
    """The previous token of each token of ``x``, [width, tokens].

    The last tokens of each sequence are written to the state ``name``.
    """
    found = []
    for part in parts_of(at):
        i, _, tokens, sequences = part
        width, each = x.ne[0], columns(x, x.ne[0], 0, part)
        shifted = ops.reshape_3d(at.recall(name, i), width, 1, sequences)
        n = at.history(i)
        last = ops.view_3d(
            each, width, sequences, n, each.nb[2], each.nb[1], (tokens - n) * each.nb[1]
        )
        at.keep(name, i, ops.cont(last))
        if tokens > 1:
            rest = ops.view_3d(each, width, tokens - 1, sequences, each.nb[1], each.nb[2], 0)
            shifted = ops.concat(shifted, rest, 1)
        found.append(ops.reshape_2d(shifted, width, tokens * sequences))
    return join_parts(found)


def run_recurrence(
    at: Scope, name: str, taken: Sequence[Tensor], step: Callable[[list[Tensor], Tensor], Tensor]
) -> Tensor:
    """The outputs [width, tokens] of an operation whose state is ``name``.

    Args:
        at: where the block is.
        name: the state: a matrix for each head, [width * head] of each sequence.
        taken: what the operation takes of each token, [head, heads, tokens].
        step: the operation for some tokens of each sequence, and the states before: it gives the
            outputs [width, tokens], and behind them the states, as ggml's rwkv_wkv6 does.
    """
    found = []
    for part in parts_of(at):
        i, first, tokens, sequences = part
        n, states = tokens * sequences, at.recall(name, i)
        if at.history(i) > 1:
            found.append(_one_by_one(at, name, taken, step, part))
            continue
        of_part = [ops.view_3d(x, *x.ne[:2], n, x.nb[1], x.nb[2], first * x.nb[2]) for x in taken]
        y, states = _outputs_and_states(step(of_part, states), n, states)
        at.keep(name, i, states, read=True)
        found.append(y)
    return join_parts(found)


def _outputs_and_states(y: Tensor, n: int, before: Tensor) -> tuple[Tensor, Tensor]:
    """The outputs [width, n], and the states after them in the shape of those before."""
    width, whole = y.ne[0], ops.reshape_1d(y, y.nelements)
    states = ops.view_1d(whole, before.nelements, n * width * whole.nb[0])
    return ops.view_2d(y, width, n, y.nb[1], 0), ops.reshape_2d(states, *before.ne[:2])


def _one_by_one(
    at: Scope,
    name: str,
    taken: Sequence[Tensor],
    step: Callable[[list[Tensor], Tensor], Tensor],
    part: tuple[int, int, int, int],
) -> Tensor:
    """`run_recurrence` where several states are kept: the operation tells the last one alone."""
    i, first, tokens, sequences = part
    oldest = tokens - at.history(i)
    outputs: Tensor | None = None
    states = at.recall(name, i)
    for token in range(tokens):
        now = [
            ops.cont(
                ops.view_3d(
                    x, *x.ne[:2], sequences,
                    x.nb[1], tokens * x.nb[2], (first + token) * x.nb[2],
                )
            )
            for x in taken
        ]  # fmt: skip
        y, states = _outputs_and_states(step(now, states), sequences, states)
        if token >= oldest:
            at.keep(name, i, states, read=True, place=token - oldest)
        y = ops.reshape_3d(y, y.ne[0], 1, sequences)
        outputs = y if outputs is None else ops.concat(outputs, y, 1)
    assert outputs is not None
    return ops.reshape_2d(outputs, outputs.ne[0], tokens * sequences)
