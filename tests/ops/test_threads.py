"""Results do not depend on how many threads share the chunks: bit for bit, node by node.

Not here: groups whose own tests check this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from ops.computing import compute, floats

import aggml
from aggml import Graph, Tensor, new_tensor, ops
from aggml.plan import compile_plan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray


def leaf(*ne: int, dtype: str = "f32") -> Tensor:
    return new_tensor(dtype, ne=ne)


def named(names: str, *ne: int) -> dict[str, Any]:
    return {name: leaf(*ne) for name in names.split()}


NODES: dict[str, Callable[[], Tensor]] = {
    "im2col": lambda: ops.im2col(leaf(3, 3, 8, 4), leaf(40, 40, 8, 2), dst_type="f32"),
    "im2col_back": lambda: ops.im2col_back(leaf(72, 38, 38, 2), leaf(3, 3, 8, 4), [40, 40, 8, 2]),
    "conv_2d_direct": lambda: ops.conv_2d_direct(leaf(3, 3, 8, 16), leaf(40, 40, 8, 2)),
    "conv_2d_dw_direct": lambda: ops.conv_2d_dw_direct(leaf(3, 3, 1, 32), leaf(64, 64, 32, 2)),
    "conv_transpose_2d": lambda: ops.conv_transpose_2d_p0(leaf(3, 3, 8, 8), leaf(24, 24, 8, 2), 2),
    "conv_transpose_1d": lambda: ops.conv_transpose_1d(leaf(8, 32, 32), leaf(64, 32), 4),
    "col2im_1d": lambda: ops.col2im_1d(leaf(512, 200), 4, 32),
    "attention of one query": lambda: ops.flash_attn_ext(
        leaf(64, 1, 8), leaf(64, 3000, 2, dtype="f16"), leaf(64, 3000, 2, dtype="f16"), None, 0.125
    ),
    "pool_2d": lambda: ops.pool_2d(leaf(64, 64, 16, 2), "avg", 3, 3, 2, 2, 1, 1),
    "pool_2d_back": lambda: ops.pool_2d_back(
        leaf(32, 32, 16, 2), leaf(64, 64, 16, 2), "max", 2, 2, 2, 2
    ),
    "upscale": lambda: ops.interpolate(leaf(32, 32, 8, 2), 50, 60, 8, 2, "bicubic"),
    "repeat_back": lambda: ops.repeat_back(leaf(256, 64, 32), leaf(128, 8, 4)),
    "pad": lambda: ops.pad_ext_circular(leaf(128, 64, 8), 3, 3, 5, 5, 1, 1, 0, 0),
    "win_part": lambda: ops.win_part(leaf(64, 50, 50), 14),
    "timestep_embedding": lambda: ops.timestep_embedding(leaf(64), 320),
    "get_rows_back": lambda: ops.get_rows_back(
        leaf(4096, 64), leaf(64, dtype="i32"), leaf(4096, 20)
    ),
    "rope_multi": lambda: ops.rope_multi(
        leaf(128, 16, 64), leaf(256, dtype="i32"), None, 128, [24, 20, 20, 0]
    ),
    "ssm_conv": lambda: ops.ssm_conv(leaf(67, 512, 2), leaf(4, 512)),
    "wkv6": lambda: ops.rwkv_wkv6(
        **named("k v r td", 64, 8, 32), tf=leaf(64, 8), state=leaf(64 * 64 * 8, 2)
    ),
    "wkv7": lambda: ops.rwkv_wkv7(**named("r w k v a b", 64, 8, 32), state=leaf(64 * 64 * 8, 2)),
    "delta_net": lambda: ops.gated_delta_net(
        **named("q k v", 64, 8, 16, 2), **named("g beta", 1, 8, 16, 2), state=leaf(64, 64, 8, 2)
    ),
    "lightning_indexer": lambda: ops.lightning_indexer(
        leaf(128, 8, 16), leaf(128, 1, 300, dtype="q8_0"), leaf(8, 16), leaf(300, 16, dtype="f16")
    ),
    "solve_tri": lambda: ops.solve_tri(leaf(96, 96, 4), leaf(200, 96, 4)),
    "cross_entropy_loss": lambda: ops.cross_entropy_loss(leaf(512, 300), leaf(512, 300)),
}


@pytest.fixture(scope="module", params=[2, 5])
def shared(request: pytest.FixtureRequest) -> Iterator[aggml.Backend]:
    with aggml.get_device("CPU").backend(n_threads=request.param) as be:
        yield be


@pytest.fixture(scope="module")
def alone() -> Iterator[aggml.Backend]:
    with aggml.get_device("CPU").backend(n_threads=1) as be:
        yield be


def _values(node: Tensor) -> dict[Tensor, NDArray[Any]]:
    values: dict[Tensor, NDArray[Any]] = {}
    for i, tensor in enumerate(t for t in node.src if t is not None):
        x = 0.3 * floats(*tensor.ne[::-1], seed=i)
        if tensor.dtype.is_quantized:
            values[tensor] = aggml.quantize(x, tensor.dtype)
        elif tensor.dtype is aggml.DType.I32:
            values[tensor] = np.random.default_rng(i).integers(0, 20, tensor.shape, np.int32)
        else:
            values[tensor] = x.astype(tensor.dtype.numpy)
    if node.op == "solve_tri":
        a = next(iter(values))
        values[a] = values[a] + 4 * np.eye(a.ne[0], dtype=np.float32)
    return values


@pytest.mark.parametrize("name", NODES)
def test_threads_make_no_difference(name: str, alone: aggml.Backend, shared: aggml.Backend) -> None:
    node = NODES[name]()
    values = _values(node)
    expected = compute(alone, node, values)
    assert np.isfinite(expected).all()
    for _ in range(3):
        assert np.array_equal(compute(shared, node, values), expected)


@pytest.mark.parametrize("name", NODES)
def test_there_is_more_than_one_chunk(name: str) -> None:
    """Else the test above could not fail."""
    steps = compile_plan(Graph(NODES[name]()), lambda _: 64).steps
    assert max(step.n_chunks for step in steps) > 1
