"""SparseMixer, by which Phi-3.5-MoE weighs experts: compared with the paper's rule in numpy.

Not here: whole models (test_folders.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

import aggml
from aggml import DType, Graph
from aggml.models.blocks import Experts

if TYPE_CHECKING:
    from aggml import Tensor

COUNT, TOKENS = 8, 64


class Router:
    """A layer whose router gives its input."""

    @staticmethod
    def linear(_: str, x: Tensor) -> Tensor:
        return x

    @staticmethod
    def find(_: str) -> None:
        return None


def weigh(logits: np.ndarray) -> tuple[list[int], list[float]]:
    """The two experts of a token and their weights, one after the other."""
    left = logits.astype(np.float64).copy()
    ids, weights = [], []
    for _ in range(2):
        best = int(left.argmax())
        own = left[best]
        near = (own - left) / np.maximum(np.abs(logits), own) <= 0.02
        shares = np.where(near, np.exp(left - own), 0.0)
        ids.append(best)
        weights.append(1 / shares.sum())
        left[best] = -np.inf
    return ids, weights


async def test_each_expert_has_its_share_among_those_that_are_as_good() -> None:
    random = np.random.default_rng(5)
    # near each other, far from each other, below 0: half of all logits within 2 % of the best
    logits = random.normal(1.0, 0.02, (TOKENS, COUNT)).astype(np.float32)
    logits[::3] = random.normal(0.0, 2.0, logits[::3].shape)
    logits[1::3] -= 3.0
    wanted = [weigh(row) for row in logits]
    x = aggml.new_tensor(DType.F32, ne=(COUNT, TOKENS), name="x").set_input()
    block: Any = Experts(COUNT, 2, weights="sparse mixer")
    ids, weights = block._choose(Router(), x)
    ids, weights = aggml.ops.cont(ids), aggml.ops.cont(weights)
    graph = Graph(ids.set_output(), weights.set_output())
    async with aggml.get_device("CPU").backend() as backend:
        backend.alloc_graph(graph)
        found, shares = await backend.run(graph, {x: logits}, [ids, weights])
    found, shares = np.asarray(found).reshape(TOKENS, 2), np.asarray(shares).reshape(TOKENS, 2)
    assert found.tolist() == [x for x, _ in wanted]
    np.testing.assert_allclose(shares, [y for _, y in wanted], rtol=2e-6)
    assert (shares < 0.6).sum() > 20
    assert (shares > 0.999).sum() > 20
