"""Cases for the rules of differentiation: a graph, the same in numpy, the extents of its leafs.

Every op of `DIFFERENTIABLE` has cases of several shapes: repeated operands, shared batches, views
with gaps, permuted sources. Not here: how they are compared (test_rules.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from gradients import numpy_ops as np_ops

from aggml import Tensor, new_tensor, ops

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Case:
    """A function of some leafs, as a graph and in numpy.

    Attributes:
        op: the op that it is a case of.
        params: extents (ne) of the leafs in which the gradient is taken.
        build: makes the result from these leafs.
        function: the same of arrays of float64 with four axes.
        start: turns normally distributed numbers into values of the leafs.
        fixed: other leafs, and their values.
    """

    op: str
    params: tuple[tuple[int, ...], ...]
    build: Callable[..., Tensor]
    function: Callable[..., Array]
    start: Callable[[Array], Array] = np.asarray
    fixed: Mapping[Tensor, Array] = field(default_factory=dict)


def positive(x: Array) -> Array:
    """Away from 0, where quotients, roots and logarithms are steep."""
    return np.abs(x) + 0.5


def apart(x: Array) -> Array:
    """Away from 0, of both signs: |x| and relu have a corner there."""
    return np.sign(x) * (np.abs(x) + 0.2)


def ranked(x: Array) -> Array:
    """Values of which no two are close, so that a small step changes no maximum."""
    return x.ravel().argsort().argsort().astype(np.float64).reshape(x.shape) / 4


SHAPES: tuple[tuple[int, ...], ...] = ((5,), (4, 3), (3, 2, 2), (2, 3, 2, 2))
#: Extents of two operands, the second repeated.
PAIRS = (
    ((4, 3), (4, 3)),
    ((4, 3), (4,)),
    ((4, 6), (2, 3)),
    ((4, 2, 3), (1, 2)),
    ((3, 2, 2, 2), (3, 1, 2)),
    ((3, 2), (1,)),
)


def _binary() -> Iterator[Case]:
    functions: dict[str, Callable[[Array, Array], Array]] = {
        "add": np.add,
        "sub": np.subtract,
        "mul": np.multiply,
        "div": np.divide,
    }
    for name, function in functions.items():
        for shapes in PAIRS:
            yield Case(
                name,
                shapes,
                getattr(ops, name),
                lambda a, b, f=function: f(a, np_ops.tiled(b, a.shape)),
                positive,
            )
        yield Case(  # the same leaf twice
            name, ((4, 3),), lambda a, n=name: getattr(ops, n)(a, a),
            lambda a, f=function: f(a, a), positive,
        )  # fmt: skip
    for shape in SHAPES:
        yield Case("add1", (shape, (1,)), ops.add1, lambda a, b: a + b)


def _unary() -> Iterator[Case]:
    functions: dict[str, tuple[Callable[[Array], Array], Callable[[Array], Array]]] = {
        "abs": (np.abs, apart),
        "neg": (np.negative, np.asarray),
        "relu": (lambda x: np.maximum(x, 0), apart),
        "silu": (lambda x: x / (1 + np.exp(-x)), np.asarray),
        "exp": (np.exp, np.asarray),
        "expm1": (np.expm1, np.asarray),
        "softplus": (lambda x: np.log1p(np.exp(x)), np.asarray),
        "sqr": (np.square, np.asarray),
        "sqrt": (np.sqrt, positive),
        "log": (np.log, positive),
        "sin": (np.sin, np.asarray),
        "cos": (np.cos, np.asarray),
        "dup": (np.asarray, np.asarray),
        "cont": (np.asarray, np.asarray),
    }
    for name, (function, start) in functions.items():
        for shape in SHAPES:
            yield Case(name, (shape,), getattr(ops, name), function, start)
    for shape in SHAPES:
        yield Case("scale", (shape,), lambda a: ops.scale(a, -1.7), lambda a: -1.7 * a)
        yield Case("scale", (shape,), lambda a: ops.scale_bias(a, 0.3, 2), lambda a: 0.3 * a + 2)
        yield Case(
            "rms_norm",
            (shape,),
            lambda a: ops.rms_norm(a, 0.01),
            lambda a: np_ops.rms_norm(a, 0.01),
        )


def _sums() -> Iterator[Case]:
    for shape in SHAPES:
        yield Case("sum", (shape,), ops.sum, lambda a: a.sum().reshape(1, 1, 1, 1))
        yield Case("sum_rows", (shape,), ops.sum_rows, lambda a: a.sum(-1, keepdims=True))
        yield Case("mean", (shape,), ops.mean, lambda a: a.mean(-1, keepdims=True))
        yield Case(  # two users of one leaf, both of which sum
            "mean", (shape,), lambda a: ops.add(ops.mean(a), ops.sum_rows(a)),
            lambda a: a.mean(-1, keepdims=True) + a.sum(-1, keepdims=True),
        )  # fmt: skip
        labels = new_tensor("f32", shape, "labels")
        share = np.exp(np.random.default_rng(3).normal(size=labels.ne[::-1]))
        share /= share.sum(-1, keepdims=True)
        yield Case(
            "cross_entropy_loss",
            (shape,),
            lambda a, b=labels: ops.cross_entropy_loss(a, b),
            lambda a, b=share: np_ops.cross_entropy(a, b),
            fixed={labels: share},
        )
    for small, large in (((2, 1), (4, 3)), ((1,), (3, 2, 2, 2)), ((3, 2, 1, 2), (3, 4, 3, 2))):
        big = (*large, 1, 1, 1)[:4]
        like = new_tensor("f32", small)
        yield Case(
            "repeat",
            (small,),
            lambda a, ne=big: ops.repeat_4d(a, *ne),
            lambda a, ne=big: np_ops.tiled(a, ne[::-1]),
        )
        yield Case(
            "repeat_back",
            (large,),
            lambda a, b=like: ops.repeat_back(a, b),
            lambda a, ne=like.ne: np_ops.sum_tiles(a, ne[::-1]),
        )


def _products() -> Iterator[Case]:
    for a, b in (
        ((4, 3), (4, 5)),
        ((4, 3, 2), (4, 5, 2)),
        ((4, 3, 2), (4, 5, 6)),
        ((4, 3), (4, 2, 3, 2)),
        ((4, 3, 2, 2), (4, 2, 4, 6)),
        ((4, 3, 1, 2), (4, 2, 3, 4)),
        ((4, 1), (4, 1)),
    ):
        yield Case("mul_mat", (a, b), ops.mul_mat, np_ops.mul_mat)
    yield Case(  # operands that are views of permuted tensors
        "mul_mat",
        ((3, 2, 4), (3, 4, 5)),
        lambda a, b: ops.mul_mat(ops.permute(a, 0, 2, 1, 3), ops.permute(b, 0, 2, 1, 3)),
        lambda a, b: np_ops.mul_mat(a.transpose(0, 2, 1, 3), b.transpose(0, 2, 1, 3)),
    )
    yield Case("swiglu", ((4, 3), (4, 3)), ops.swiglu_split, lambda a, b: a / (1 + np.exp(-a)) * b)
    yield Case("swiglu", ((6,), (6,)), ops.swiglu_split, lambda a, b: a / (1 + np.exp(-a)) * b)


def _parts() -> Iterator[Case]:
    for name, add in (("acc", True), ("set", False)):
        build = getattr(ops, name)
        yield Case(
            name,
            ((6, 4), (3, 2)),
            lambda a, b, f=build: f(a, b, 24, 96, 96, 28),
            lambda a, b, add=add: np_ops.put(a, b, (1, 6, 24, 24), 7, add=add),
        )
        yield Case(  # every second row of the second plane
            name, ((5, 4, 2), (5, 2, 1)), lambda a, b, f=build: f(a, b, 40, 80, 160, 80),
            lambda a, b, add=add: np_ops.put(a, b, (1, 10, 20, 40), 20, add=add),
        )  # fmt: skip
    yield Case(
        "set",
        ((8,), (3,)),
        lambda a, b: ops.set_1d(a, b, 8),
        lambda a, b: np_ops.put(a, b, (1, 8, 8, 8), 2, add=False),
    )
    target = new_tensor("f32", (3, 4), "target")
    yield Case(
        "cpy",
        ((4, 3),),
        lambda a: ops.cpy(a, target),
        lambda a: a.reshape(1, 1, 4, 3),
        fixed={target: np.zeros((1, 1, 4, 3))},
    )
    yield Case("cpy", ((4, 3),), lambda a: ops.cast(a, "f32"), np.asarray)
    yield Case(
        "cpy", ((4, 3),), lambda a: ops.cast(ops.transpose(a), "f32"), lambda a: a.swapaxes(2, 3)
    )
    yield Case(
        "cont",
        ((4, 3, 2),),
        lambda a: ops.cont(ops.permute(a, 2, 0, 1, 3)),
        lambda a: np.moveaxis(a, (3, 2, 1), (1, 3, 2)),
    )
    yield Case("cont", ((4, 3),), lambda a: ops.cont_2d(a, 6, 2), lambda a: a.reshape(1, 1, 2, 6))


def _views() -> Iterator[Case]:
    yield Case(
        "reshape", ((4, 3),), lambda a: ops.reshape_3d(a, 2, 3, 2), lambda a: a.reshape(1, 2, 3, 2)
    )
    yield Case(
        "reshape",
        ((4, 3),),
        lambda a: ops.reshape_2d(ops.cont(ops.transpose(a)), 6, 2),
        lambda a: a.swapaxes(2, 3).reshape(1, 1, 2, 6),
    )
    for axes in ((1, 0, 2, 3), (2, 0, 1, 3), (3, 1, 0, 2), (0, 2, 1, 3)):
        back = [3 - axes.index(3 - i) for i in range(4)]
        yield Case(
            "permute",
            ((2, 3, 4, 2),),
            lambda a, axes=axes: ops.cont(ops.permute(a, *axes)),
            lambda a, back=back: a.transpose(*back),
        )
    for shape in SHAPES[1:]:
        yield Case(
            "transpose",
            (shape,),
            lambda a: ops.cont(ops.transpose(a)),
            lambda a: a.swapaxes(2, 3),
        )
        yield Case(  # the turned tensor as an operand, as it is
            "transpose",
            (shape, (shape[1], shape[0], *shape[2:])),
            lambda a, b: ops.add(b, ops.transpose(a)),
            lambda a, b: b + a.swapaxes(2, 3),
        )
    yield Case("view", ((12,),), lambda a: ops.view_1d(a, 5, 12), lambda a: a[..., 3:8])
    yield Case(
        "view",
        ((4, 5),),
        lambda a: ops.view_2d(a, 3, 2, 32, 20),
        lambda a: np.take(a.ravel(), np_ops.part_of(a, (3, 2, 1, 1), (1, 8, 20, 20), 5)),
    )
    yield Case(
        "view", ((4, 3, 2),), lambda a: ops.view_3d(a, 2, 3, 2, 16, 48, 8), lambda a: a[..., 2:]
    )
    yield Case(
        "view",
        ((3, 2, 3, 2),),
        lambda a: ops.view_4d(a, 2, 2, 2, 2, 12, 24, 72, 24),
        lambda a: a[:, 1:, :, :2],
    )
    yield Case(  # the same tensor in three parts that overlap
        "view", ((8,),),
        lambda a: ops.add(ops.add(ops.view_1d(a, 4), ops.view_1d(a, 4, 8)), ops.view_1d(a, 4, 16)),
        lambda a: a[..., :4] + a[..., 2:6] + a[..., 4:],
    )  # fmt: skip
    indices: dict[tuple[int, ...], list[Any]] = {
        (8,): [np.s_[::2], np.s_[1::3]],
        (6, 5): [np.s_[1:4, ::2], np.s_[::2, 1], np.s_[:, 2:], np.s_[1::2, 1::2]],
        (4, 3, 5): [np.s_[::2, 1:, 1::2], np.s_[2, :, ::3], np.s_[:, 1]],
        (4, 3, 2, 2): [np.s_[1, :, ::2, 1:], np.s_[:, 1:, 1, ::2], np.s_[..., 1:3]],
    }
    for shape, chosen in indices.items():
        for index in chosen:
            yield Case(
                "view",
                (shape,),
                lambda a, i=index: ops.scale(ops.cont(a[i]), 2),
                lambda a, i=index, s=shape: _four(2 * a.reshape(s[::-1])[i]),
            )
    yield Case(  # a view of a view with gaps
        "view", ((6, 5),), lambda a: ops.cont(a[1:, ::2][::2, 1:]),
        lambda a: _four(a[0, 0][1:, ::2][::2, 1:]),
    )  # fmt: skip
    yield Case(  # views of turned tensors
        "view", ((6, 5),), lambda a: ops.cont(ops.transpose(a)[1:4, ::2]),
        lambda a: _four(a[0, 0].T[1:4, ::2]),
    )  # fmt: skip
    yield Case(
        "view",
        ((4, 3, 5),),
        lambda a: ops.cont(ops.permute(a, 2, 0, 1, 3)[1:, 1, ::2]),
        lambda a: _four(np.moveaxis(a[0], (2, 1, 0), (0, 2, 1))[1:, 1, ::2]),
    )


def _four(x: Array) -> Array:
    return x.reshape((1,) * (4 - x.ndim) + x.shape)


def _rows() -> Iterator[Case]:
    for shape, chosen in (((4, 5), [2, 0, 2, 4, 1]), ((3, 2), [1]), ((1, 6), [5, 5, 5])):
        ids = new_tensor("i32", len(chosen), "ids")
        yield Case(
            "get_rows",
            (shape,),
            lambda a, i=ids: ops.get_rows(a, i),
            lambda a, i=chosen: a[:, :, i],
            fixed={ids: np.array(chosen, np.int32)},
        )
        table = new_tensor("f32", shape)

        def back(a: Array, i: list[int] = chosen, n: int = shape[1]) -> Array:
            y = np.zeros((1, 1, n, a.shape[-1]))
            np.add.at(y[0, 0], i, a[0, 0])
            return y

        yield Case(
            "get_rows_back",
            ((shape[0], len(chosen)),),
            lambda a, i=ids, c=table: ops.get_rows_back(a, i, c),
            back,
            fixed={ids: np.array(chosen, np.int32)},
        )


def _attention() -> Iterator[Case]:
    squares: tuple[tuple[int, ...], ...] = ((5, 4), (4, 4, 2), (3, 2, 2, 2))
    for shape in squares:
        for past in (0, 1):
            yield Case(
                "diag_mask_zero",
                (shape,),
                lambda a, p=past: ops.diag_mask_zero(a, p),
                lambda a, p=past: np_ops.masked(a, p, 0.0),
            )
            yield Case(  # soft_max makes numbers of -inf
                "diag_mask_inf", (shape,),
                lambda a, p=past: ops.soft_max(ops.diag_mask_inf(a, p)),
                lambda a, p=past: np_ops.soft_max(np_ops.masked(a, p, -np.inf)),
            )  # fmt: skip
    for shape in SHAPES:
        yield Case("soft_max", (shape,), ops.soft_max, np_ops.soft_max)
        mask = new_tensor("f32", shape[:2], "mask")
        hidden = np.random.default_rng(4).normal(size=mask.ne[::-1])
        yield Case(
            "soft_max",
            (shape,),
            lambda a, m=mask: ops.soft_max_ext(a, m, 0.6),
            lambda a, h=hidden: np_ops.soft_max(0.6 * a + h),
            fixed={mask: hidden},
        )
    sinks, wide = new_tensor("f32", 2, "sinks"), new_tensor("f32", (4, 3), "wide mask")
    values, slopes = np.array([0.3, -0.5]), np.array([2.0**-4, 2.0**-8]).reshape(1, 2, 1, 1)
    hidden = np.random.default_rng(5).normal(size=(1, 1, 3, 4))
    yield Case(
        "soft_max",
        ((4, 3, 2),),
        lambda a: ops.soft_max_add_sinks(ops.soft_max_ext(a, None, 0.5), sinks),
        lambda a: np_ops.soft_max(0.5 * a, values),
        fixed={sinks: values},
    )
    yield Case(  # ALiBi: a slope for each head, of the mask alone
        "soft_max", ((4, 3, 2),), lambda a: ops.soft_max_ext(a, wide, 0.5, 8.0),
        lambda a: np_ops.soft_max(0.5 * a + slopes * hidden), fixed={wide: hidden},
    )  # fmt: skip
    where = np.array([0, 3, 7])
    for mode in ("normal", "neox"):
        for factors in (np.ones(2), np.array([2.0, 0.5])):
            pos, each = new_tensor("i32", 3, "pos"), new_tensor("f32", 2, "factors")
            yield Case(
                "rope",
                ((6, 2, 3),),
                lambda a, p=pos, c=each, m=mode: ops.rope_ext(a, p, c, 4, m, 0, 100.0, 0.5),
                partial(
                    np_ops.rope, pos=where, n_dims=4, neox=mode == "neox", base=100.0, scale=0.5,
                    factors=factors,
                ),
                fixed={pos: where.astype(np.int32), each: factors},
            )  # fmt: skip
    many = new_tensor("i32", 12, "many")
    yield Case(  # all sections at one position: as neox
        "rope", ((4, 2, 3),),
        lambda a: ops.rope_multi(a, many, None, 4, [1, 1, 0, 0], "mrope", 0, 100.0),
        partial(
            np_ops.rope, pos=where, n_dims=4, neox=True, base=100.0, scale=1.0, factors=np.ones(2)
        ),
        fixed={many: np.tile(where, 4).astype(np.int32)},
    )  # fmt: skip


def _images() -> Iterator[Case]:
    kernel = new_tensor("f32", (3, 2, 2, 1), "kernel")
    fixed = {kernel: np.zeros((1, 2, 2, 3))}
    for s, p, d in (((1, 1), (0, 0), (1, 1)), ((2, 1), (1, 0), (1, 2))):
        yield Case(
            "im2col",
            ((6, 5, 2, 2),),
            lambda a, s=s, p=p, d=d: ops.im2col(
                kernel, a, s[0], s[1], p[0], p[1], d[0], d[1], dst_type="f32"
            ),
            lambda a, s=s, p=p, d=d: np_ops.im2col(a, 3, 2, s, p, d),
            fixed=fixed,
        )
    for largest in (False, True):
        for k, s in (((2, 2), (2, 2)), ((3, 2), (3, 2))):
            yield Case(
                "pool_2d",
                ((6, 4, 2),),
                lambda a, k=k, s=s, n="max" if largest else "avg": ops.pool_2d(a, n, *k, *s),
                partial(np_ops.pool_2d, k=k, s=s, largest=largest),
                ranked,
            )


def cases() -> list[Case]:
    """All cases, those of one op one after the other."""
    groups = (
        _binary, _unary, _sums, _products, _parts, _views, _rows, _attention, _images,
    )  # fmt: skip
    return [case for group in groups for case in group()]
