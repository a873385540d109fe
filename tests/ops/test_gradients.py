"""Every op that computes a gradient, against finite differences of the op whose gradient it is.

Both are computed here: the reference kernels compute the op at neighbouring points, and a random
weighting of its results stands for the rest of a loss. Not here: recorded numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from ops.computing import by_differences, compute, floats

import aggml
from aggml import Tensor, new_tensor, ops

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from numpy.typing import NDArray

Array = np.ndarray[Any, Any]


def leaf(*ne: int, dtype: str = "f32") -> Tensor:
    return new_tensor(dtype, ne=ne)


@dataclass(frozen=True)
class Pair:
    """An op and its gradient.

    Attributes:
        x: extents (ne) of the tensor in which the gradient is taken.
        op: builds the result from x.
        back: builds the gradient from the result's gradient, x and the result.
        fixed: further leafs and their values.
        start: turns normally distributed numbers into the values of x.
        step: the step of the finite differences.
    """

    x: tuple[int, ...]
    op: Callable[[Tensor], Tensor]
    back: Callable[[Tensor, Tensor, Tensor], Tensor]
    fixed: Mapping[Tensor, Array] = field(default_factory=dict)
    start: Callable[[NDArray[np.float32]], NDArray[np.float32]] = np.asarray
    step: float = 1e-2


def _soft_max_back(back: Callable[..., Tensor], g: Tensor, x: Tensor, y: Tensor) -> Tensor:
    return back(g, y, 0.7)


def _pool(kind: str, x: Tensor) -> Tensor:
    return ops.pool_2d(x, kind, 2, 2, 2, 2)


def _pool_back(kind: str, g: Tensor, x: Tensor, y: Tensor) -> Tensor:
    return ops.pool_2d_back(g, x, kind, 2, 2, 2, 2)


def _pairs() -> Iterator[tuple[str, Pair]]:
    yield "silu_back", Pair((7, 3), ops.silu, lambda g, x, y: ops.silu_back(g, x))
    yield (
        "rms_norm_back",
        Pair((7, 3), lambda x: ops.rms_norm(x, 0.1), lambda g, x, y: ops.rms_norm_back(g, x, 0.1)),
    )
    for name in ("soft_max_ext_back", "soft_max_ext_back_inplace"):
        back = getattr(ops, name)
        yield (
            name,
            Pair(
                (7, 3),
                lambda x: ops.soft_max_ext(x, None, 0.7),
                partial(_soft_max_back, back),
            ),
        )
    labels = leaf(7, 3)
    share = np.exp(floats(3, 7, seed=5))
    yield (
        "cross_entropy_loss_back",
        Pair(
            (7, 3),
            lambda x: ops.cross_entropy_loss(x, labels),
            lambda g, x, y: ops.cross_entropy_loss_back(g, x, labels),
            {labels: share / share.sum(axis=-1, keepdims=True)},
        ),
    )
    small = leaf(3, 2)
    yield (
        "repeat_back",
        Pair(
            (3, 2),
            lambda x: ops.repeat_4d(x, 6, 2, 3, 2),
            lambda g, x, y: ops.repeat_back(g, small),
            {small: np.zeros((2, 3), np.float32)},
        ),
    )
    ids, table = leaf(4, dtype="i32"), leaf(5, 3)
    yield (
        "get_rows_back",
        Pair(
            (5, 3),
            lambda x: ops.get_rows(x, ids),
            lambda g, x, y: ops.get_rows_back(g, ids, table),
            {ids: np.array([2, 0, 2, 1], np.int32), table: np.zeros((3, 5), np.float32)},
        ),
    )
    yield from _windows()
    yield from _turned()
    yield from _attention()


def _windows() -> Iterator[tuple[str, Pair]]:
    kernel = leaf(3, 2, 2, 1)
    window: dict[str, Any] = {"s0": 2, "s1": 1, "p0": 1, "p1": 0, "d0": 1, "d1": 2}
    yield (
        "im2col_back",
        Pair(
            (6, 5, 2),
            lambda x: ops.im2col(kernel, x, **window, dst_type="f32"),
            lambda g, x, y: ops.im2col_back(g, kernel, [6, 5, 2, 1], **window),
            {kernel: np.zeros((2, 2, 3), np.float32)},
        ),
    )
    for kind in ("avg", "max"):
        yield (
            "pool_2d_back",
            Pair(
                (6, 4),
                partial(_pool, kind),
                partial(_pool_back, kind),
                # ranks, which differ by 1 or more: a small step does not change a window's maximum
                start=lambda x: x.ravel().argsort().argsort().astype(np.float32).reshape(x.shape),
            ),
        )


def _turned() -> Iterator[tuple[str, Pair]]:
    pos, factors = leaf(3, dtype="i32"), leaf(4)
    yarn = (8, "neox", 16, 1e4, 0.5, 1.0, 1.2)
    turn = {pos: np.array([0, 3, 7], np.int32), factors: np.array([1, 2, 1, 0.5], np.float32)}
    yield (
        "rope_ext_back",
        Pair(
            (8, 2, 3),
            lambda x: ops.rope_ext(x, pos, factors, *yarn),
            lambda g, x, y: ops.rope_ext_back(g, pos, factors, *yarn),
            turn,
        ),
    )
    many = leaf(12, dtype="i32")
    multi = (8, [2, 1, 1, 0], "mrope", 16, 1e4, 1.0)
    yield (
        "rope_multi_back",
        Pair(
            (8, 2, 3),
            lambda x: ops.rope_multi(x, many, None, *multi),
            lambda g, x, y: ops.rope_multi_back(g, many, None, *multi),
            {many: np.arange(12, dtype=np.int32)},
        ),
    )


def _attention() -> Iterator[tuple[str, Pair]]:
    """The gradients in q, k and v; two heads share one head of k and v; with and without a mask."""
    n, queries, keys = 4, 3, 5
    for masked in (False, True):
        shapes = {"q": (n, queries, 4, 2), "k": (n, keys, 2, 2), "v": (keys, n, 2, 2)}
        start = 0
        for i, name in enumerate(shapes):
            others = {other: leaf(*ne) for other, ne in shapes.items() if other != name}
            mask = leaf(keys, queries, dtype="f16")
            hidden = np.triu(np.ones((queries, keys), np.float16), keys - queries + 1)
            fixed: dict[Tensor, Array] = {
                t: floats(*t.ne[::-1], seed=i + 3) for t in others.values()
            }
            if masked:
                fixed[mask] = np.where(hidden > 0, -np.inf, 0).astype(np.float16)

            def given(x: Tensor, name: str = name, others: Any = others) -> dict[str, Tensor]:
                return {**others, name: x}

            def op(x: Tensor, given: Any = given, mask: Any = mask if masked else None) -> Tensor:
                t = given(x)
                v = ops.cont(ops.transpose(t["v"]))
                y = ops.flash_attn_ext(t["q"], t["k"], v, mask, n**-0.5)
                return ops.cont(ops.permute(y, 0, 2, 1, 3))

            def back(
                g: Tensor, x: Tensor, y: Tensor, given: Any = given, at: int = start,
                masked: bool = masked,
            ) -> Tensor:  # fmt: skip
                t = given(x)
                grads = ops.flash_attn_back(t["q"], t["k"], t["v"], g, masked)
                part = ops.view_1d(grads, x.nelements, at * 4)
                return ops.reshape(part, x)

            yield "flash_attn_back", Pair(shapes[name], op, back, fixed)
            start += -(-int(np.prod(shapes[name])) // 4) * 4


PAIRS = list(_pairs())


def test_every_gradient_is_here() -> None:
    named = {name for name in ops.__all__ if name.endswith(("_back", "_back_inplace"))}
    assert named == {name for name, _ in PAIRS}


@pytest.mark.long(cases=9)
@pytest.mark.parametrize(
    "pair", [pytest.param(pair, id=f"{i}-{name}") for i, (name, pair) in enumerate(PAIRS)]
)
def test_gradient_is_that_of_differences(
    pair: Pair, backend: aggml.Backend, reference: aggml.Backend
) -> None:
    x, y, g = leaf(*pair.x), leaf(*pair.x), None
    start = np.asarray(pair.start(floats(*x.ne[::-1], seed=1)), np.float32)
    forward = pair.op(x)
    y, g = leaf(*forward.ne), leaf(*forward.ne)
    weight = floats(*forward.ne[::-1], seed=2)

    def loss(value: NDArray[np.float64]) -> float:
        # the op gets and gives float32, which is exact enough here; it does not sum in float32
        result = compute(reference, forward, {x: value.astype(np.float32), **pair.fixed})
        return float((result.astype(np.float64) * weight).sum())

    expected = by_differences(loss, start, pair.step)
    values = {g: weight, x: start, y: compute(reference, forward, {x: start, **pair.fixed})}
    node = pair.back(g, x, y)
    read = _leafs(node)
    found = compute(backend, node, {t: v for t, v in {**values, **pair.fixed}.items() if t in read})
    scale = np.abs(expected).max()
    np.testing.assert_allclose(found.reshape(start.shape), expected, atol=2e-3 * scale)


def _leafs(node: Tensor) -> set[Tensor]:
    found: set[Tensor] = set()
    rest = [node]
    while rest:
        tensor = rest.pop()
        if tensor.op == "none":
            found.add(tensor)
        rest += [src for src in tensor.src if src is not None]
    return found


@pytest.fixture(scope="session")
def reference() -> Iterator[aggml.Backend]:
    device: Any = aggml.get_device("CPU")
    with device.backend(n_threads=1, use_ref=True) as be:
        yield be


def test_view_tensor_shows_what_a_node_computes(any_backend: aggml.Backend) -> None:
    a = leaf(4, 3)
    turned = ops.transpose(ops.neg(a))
    view = ops.view_tensor(turned)
    assert (view.ne, view.nb, view.dtype) == (turned.ne, turned.nb, turned.dtype)
    assert view.root is turned.root
    x = floats(3, 4, seed=1)
    assert np.array_equal(compute(any_backend, ops.cont(view), {a: x}).reshape(4, 3), -x.T)
