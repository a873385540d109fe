"""Random calls of ops, for kernels.py: operands, a function that builds the node, a tolerance.

Each function of `FAMILIES` draws a call of one group of ops. Sizes are drawn around those at which
other kernels begin: vectors, blocks, packed weights, panels. Not here: running the calls.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import aggml
from aggml import ops

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from aggml import Tensor

    View = Callable[[Tensor], Tensor]

FLOATS = ("f32", "f16", "bf16")
BLOCKS_OF_32 = ("q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl", "mxfp4")
BLOCKS_OF_256 = (
    *("q2_K", "q3_K", "q4_K", "q5_K", "q6_K", "iq4_xs", "iq2_xxs", "iq2_xs", "iq2_s"),
    *("iq3_xxs", "iq3_s", "iq1_s", "iq1_m", "tq1_0", "tq2_0"),
)
MATRICES = (*FLOATS, *BLOCKS_OF_32, *BLOCKS_OF_256, "nvfp4")
COLUMNS = (1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 31, 32, 33, 48, 49, 80, 81, 97, 128, 161, 200)
WIDTHS = (1, 7, 8, 15, 16, 17, 31, 32, 33, 64, 100, 128, 256, 300, 513)
PRODUCTS = 5e-4  # columns are rounded to 8 bits; as in ggml's own tests of ops
FUNCTIONS = 1e-2  # of products: they may make zeros of most of a row, but not of its errors
ROUNDED = {"f32": 1e-10, "f16": 5e-6, "bf16": 1e-4}  # squares of some units in the last place


@dataclass(frozen=True)
class Operand:
    """A tensor that a call reads.

    Attributes:
        dtype, ne: its type and extents.
        fill: "normal", "scaled" (each row has a magnitude of its own), "mask" (0 or
            -inf), "below:N" (numbers below N), "distinct:N" (the same, distinct in each row).
        weights: whether it may lie in a buffer of weights, which are packed.
    """

    dtype: str
    ne: tuple[int, ...]
    fill: str = "normal"
    weights: bool = False


@dataclass
class Call:
    """A call of an op.

    Attributes:
        build: makes the node from tensors, one for each operand.
        lost: the largest share of the power of a row of the result that may be lost.
    """

    name: str
    build: Callable[..., Tensor]
    lost: float
    operands: list[Operand] = field(default_factory=list)


def extents(choose: random.Random) -> tuple[int, ...]:
    """Four extents, of some thousand elements at most."""
    ne = [choose.choice(WIDTHS), *(choose.choice((1, 1, 2, 3, 5, 8)) for _ in range(3))]
    while math.prod(ne) > 20000:
        ne[ne.index(max(ne))] //= 2
    return tuple(ne)


def with_gaps(choose: random.Random, ne: tuple[int, ...]) -> tuple[tuple[int, ...], View]:
    """The extents of a larger tensor, and a function that views `ne` elements of it."""
    if choose.random() < 0.5:
        return ne, lambda x: x
    more, first = choose.choice((1, 4, 8)), choose.choice((0, 1))
    whole = (ne[0] + more, ne[1] + 1, *ne[2:])

    def view(x: Tensor) -> Tensor:
        return ops.view_4d(x, ne[0], ne[1], ne[2], ne[3], *x.nb[1:4], first * (x.nb[0] + x.nb[1]))

    return whole, view


def elementwise(choose: random.Random) -> Call:
    dtype = choose.choice(FLOATS)
    ne = extents(choose)
    name = choose.choice(("add", "mul", "sub", "neg", "relu", "tanh", "silu", "gelu", "gelu_erf"))
    if name in ("silu", "gelu", "gelu_erf") and dtype == "bf16":
        dtype = "f16"
    whole, view = with_gaps(choose, ne)
    call = Call(f"{name} {dtype} {ne}", lambda a: getattr(ops, name)(view(a)), ROUNDED[dtype])
    call.operands.append(Operand(dtype, whole))
    if name in ("add", "mul", "sub"):
        other = tuple(choose.choice((x, 1)) for x in ne)
        call.operands.append(Operand(dtype, other))
        call.build = lambda a, b: getattr(ops, name)(view(a), b)
    return call


def gated(choose: random.Random) -> Call:
    name = choose.choice(("reglu", "geglu", "swiglu", "geglu_erf", "geglu_quick"))
    dtype = choose.choice(("f32", "f16"))
    ne = extents(choose)
    if choose.random() < 0.5:
        both = [Operand(dtype, ne), Operand(dtype, ne)]
        split = f"{name}_split"
        return Call(f"{split} {dtype} {ne}", getattr(ops, split), ROUNDED[dtype], both)
    ne = (2 * ne[0], *ne[1:])
    return Call(f"{name} {dtype} {ne}", getattr(ops, name), ROUNDED[dtype], [Operand(dtype, ne)])


def of_rows(choose: random.Random) -> Call:
    """Norms with their factor and summand, which are fused; soft_max with its mask."""
    ne = extents(choose)
    name = choose.choice(("norm", "rms_norm", "l2_norm", "soft_max"))
    whole, view = with_gaps(choose, ne)
    if name == "soft_max":
        mask = Operand("f16", (ne[0], ne[1], 1, 1), "mask")
        operands = [Operand("f32", ne), mask]
        return Call(f"{name} {ne}", lambda a, m: ops.soft_max_ext(a, m, 0.3, 0.0), 1e-9, operands)
    row = Operand("f32", (ne[0], 1, 1, 1))

    def fused(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        return ops.add(ops.mul(getattr(ops, name)(view(a), 1e-5), b), c)

    return Call(f"{name} {ne}", fused, 1e-9, [Operand("f32", whole), row, row])


def copies(choose: random.Random) -> Call:
    ne = extents(choose)
    at, to = choose.choice(FLOATS), choose.choice(FLOATS)
    whole, view = with_gaps(choose, ne)
    order = choose.sample(range(4), 4)

    def turned(a: Tensor) -> Tensor:
        return ops.cont(ops.permute(ops.cast(view(a), to), *order))

    return Call(f"cast {at} to {to} {ne} {order}", turned, 0.0, [Operand(at, whole)])


def picked_rows(choose: random.Random) -> Call:
    dtype = choose.choice(MATRICES)
    k, rows, n = block_of(dtype) * choose.randint(1, 3), choose.randint(1, 40), choose.randint(1, 9)
    operands = [Operand(dtype, (k, rows)), Operand("i32", (n,), f"below:{rows}")]
    return Call(f"get_rows {dtype} {k} x {rows}, {n}", ops.get_rows, 1e-10, operands)


def block_of(dtype: str) -> int:
    """The number of elements of which a row of this type must have a multiple."""
    return max(1, aggml.DType.parse(dtype).blck_size)


def products(choose: random.Random) -> Call:
    """A product and what is fused with it; rows are weights or not, columns of any magnitude."""
    dtype = choose.choice(MATRICES)
    k = block_of(dtype) * choose.choice((1, 2, 3, 4, 6))
    k *= choose.choice((1, 7, 16, 65)) if dtype in FLOATS else 1
    m, n = choose.choice((15, 16, 17, 32, 33, 37, 64, 100)), choose.choice(COLUMNS)
    weights = choose.random() < 0.6
    operands = [Operand(dtype, (k, m), weights=weights), Operand("f32", (k, n), "scaled")]
    name = f"mul_mat {dtype} {k} x {m}, {n}{', weights' * weights}"
    if choose.random() < 0.5:
        return Call(name, ops.mul_mat, PRODUCTS, operands)
    act = choose.choice(("relu", "gelu_erf", "silu"))
    operands[1] = Operand("f32", (k, n))  # a function of large numbers may be 0 or the number
    operands += [Operand("f32", (m,)), Operand("f32", (m, n))]

    def fused(a: Tensor, b: Tensor, bias: Tensor, rest: Tensor) -> Tensor:
        return ops.add(getattr(ops, act)(ops.add(ops.mul_mat(a, b), bias)), rest)

    return Call(f"{name}, {act}", fused, FUNCTIONS, operands)


def experts(choose: random.Random) -> Call:
    dtype = choose.choice(MATRICES)
    k, m = block_of(dtype) * choose.choice((1, 2, 3)) * (64 if dtype in FLOATS else 1), 33
    of, used, n = choose.choice((2, 8)), choose.choice((1, 2)), choose.choice(COLUMNS[:14])
    operands = [
        Operand(dtype, (k, m, of), weights=choose.random() < 0.5),
        Operand("f32", (k, 1, n), "scaled"),
        Operand("i32", (used, n), f"distinct:{of}"),
    ]
    return Call(
        f"mul_mat_id {dtype} {k} x {m}, {used} of {of}, {n}", ops.mul_mat_id, PRODUCTS, operands
    )


def attention(choose: random.Random) -> Call:
    dtype = choose.choice((*FLOATS, "q8_0", "q4_0", "q4_1", "q5_0", "q5_1"))
    width, heads, group = (
        choose.choice((32, 64, 96, 128)),
        choose.choice((1, 2)),
        choose.choice((1, 3, 4, 7)),
    )
    n, keys = choose.choice((1, 2, 3, 8, 31, 33)), choose.choice((1, 31, 32, 64, 113, 256, 500))
    shape = (width, keys, heads, 1)
    operands = [
        Operand("f32", (width, n, heads * group, 1)),
        Operand(dtype, shape),
        Operand(dtype, shape),
    ]
    operands.append(Operand("f16", (keys, n, 1, 1), "mask"))
    cap = choose.choice((0.0, 10.0))
    name = f"flash_attn_ext {dtype} {width}, {group} x {heads} heads, {n} to {keys}, cap {cap}"

    def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        return ops.flash_attn_ext(q, k, v, mask, width**-0.5, 0.0, cap)

    return Call(name, attend, PRODUCTS, operands)


FAMILIES = (
    elementwise,
    gated,
    of_rows,
    copies,
    picked_rows,
    products,
    products,
    experts,
    attention,
)
