"""mul_mat_id with packed experts: the numbers, threads, wrong indices.

Not here: mul_mat (test_mul_mat_packed.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from ops.packed import (
    F32,
    PACKS,
    K,
    M,
    device,
    floats,
    nmse,
    plan_of,
    quantized,
)

import aggml
from aggml import BufferUsage, Graph, new_tensor, ops

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from numpy.typing import NDArray


@pytest.fixture
async def backend() -> AsyncIterator[aggml.Backend]:
    async with device().backend(n_threads=2) as backend:
        yield backend


class Experts:
    """``mul_mat_id`` placed on a backend, the experts in a buffer of their own."""

    def __init__(
        self, backend: aggml.Backend, dtype: str, tokens: int, used: int, usage: BufferUsage
    ) -> None:
        self.backend = backend
        self.w = new_tensor(dtype, ne=(K, M, 5), name="w")
        self.x = new_tensor("f32", ne=(K, 1, tokens), name="x")
        self.ids = new_tensor("i32", ne=(used, tokens), name="ids")
        backend.alloc([self.w]).usage = usage
        self.y = ops.mul_mat_id(self.w, self.x, self.ids)
        self.graph = Graph(self.y)
        backend.alloc_graph(self.graph)

    async def run(self, x: F32, ids: NDArray[np.int32]) -> F32:
        """x has shape (tokens, k), ids (tokens, used), the result (tokens, used, m)."""
        inputs = {self.x: x[:, None], self.ids: ids}
        found = await self.backend.run(self.graph, inputs, self.y)
        return np.asarray(found).reshape(*ids.shape, M)

    @property
    def packed(self) -> int:
        return plan_of(self.backend, self.graph).native.n_packed


@pytest.mark.long(cases=10)
@pytest.mark.parametrize(
    "dtype",
    ["q8_0", "q4_0", "q4_K", "q6_K", "mxfp4", "iq2_xs", "iq3_s", "iq1_m", "tq1_0", "nvfp4"],
)
@pytest.mark.parametrize("tokens", [1, 7, 20, 90])
async def test_packed_experts(backend: aggml.Backend, dtype: str, tokens: int) -> None:
    random = np.random.default_rng(30 + tokens)
    # The first expert has the most columns, the last one none; some ids name no expert.
    ids = random.choice([0, 1, 2, 3, -1], (tokens, 2), p=[0.6, 0.2, 0.1, 0.05, 0.05])
    ids = ids.astype(np.int32)
    x = floats(tokens, K, seed=31)
    blocks = quantized(floats(5 * M, K, seed=32), dtype).reshape(5, M, -1)
    single = Experts(backend, dtype, 1, 2, BufferUsage.ANY)
    await backend.set(single.w, blocks)
    expected = np.concatenate(
        [await single.run(x[i : i + 1], ids[i : i + 1]) for i in range(tokens)]
    )
    together = Experts(backend, dtype, tokens, 2, BufferUsage.WEIGHTS)
    await backend.set(together.w, blocks)
    found = await together.run(x, ids)
    assert (together.packed, single.packed) == (PACKS, 0)
    assert nmse(found, expected) < (1e-9 if PACKS else 1e-3)

    # Writing the weights of one expert leaves the others packed.
    other = quantized(floats(M, K, seed=33), dtype)
    for experts in (single, together):
        view = ops.view_2d(experts.w, K, M, experts.w.nb[1], experts.w.nb[2])
        await backend.set(view, other)
    expected = np.concatenate(
        [await single.run(x[i : i + 1], ids[i : i + 1]) for i in range(tokens)]
    )
    assert nmse(await together.run(x, ids), expected) < (1e-9 if PACKS else 1e-3)


async def test_experts_do_not_depend_on_threads() -> None:
    ids = np.random.default_rng(34).integers(-1, 5, (60, 3)).astype(np.int32)
    x, results = floats(60, K, seed=35), []
    blocks = aggml.quantize(floats(5 * M, K, seed=36), "q5_K").reshape(5, M, -1)
    for n_threads in (1, 3):
        async with device().backend(n_threads=n_threads) as backend:
            experts = Experts(backend, "q5_K", 60, 3, BufferUsage.WEIGHTS)
            await backend.set(experts.w, blocks)
            results.append(await experts.run(x, ids))
    assert (results[0] == results[1]).all()


async def test_a_wrong_expert_is_refused_and_the_next_run_is_right(backend: aggml.Backend) -> None:
    experts = Experts(backend, "q4_0", 2, 2, BufferUsage.WEIGHTS)
    await backend.set(
        experts.w, aggml.quantize(floats(5 * M, K, seed=37), "q4_0").reshape(5, M, -1)
    )
    x, good = floats(2, K, seed=38), np.array([[0, 1], [2, 4]], np.int32)
    expected = await experts.run(x, good)
    with pytest.raises(aggml.OutOfBounds, match="beyond the 5 experts"):
        await experts.run(x, good + 1)
    assert (await experts.run(x, good) == expected).all()


@pytest.mark.parametrize(
    "dtype",
    ["q8_0", "q4_0", "q5_1", "q4_K", "q5_K", "q3_K", "q6_K", "tq1_0", "tq2_0", "nvfp4"],
)
async def test_experts_that_are_no_weights(backend: aggml.Backend, dtype: str) -> None:
    random = np.random.default_rng(40)
    ids = random.choice([0, 1, 2, 3, -1], (20, 2), p=[0.6, 0.2, 0.1, 0.05, 0.05]).astype(np.int32)
    x = floats(20, K, seed=41)
    blocks = aggml.quantize(floats(5 * M, K, seed=42), dtype).reshape(5, M, -1)
    found = []
    # packed once and kept; packed again for each product
    for usage in (BufferUsage.WEIGHTS, BufferUsage.ANY):
        experts = Experts(backend, dtype, 20, 2, usage)
        await backend.set(experts.w, blocks)
        found.append(await experts.run(x, ids))
    if PACKS:
        assert found[0].tobytes() == found[1].tobytes()
    assert nmse(found[1], found[0]) < 1e-3
