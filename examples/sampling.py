"""Which token comes next: greedy, or drawn from the most probable ones.

The chain is that of llama.cpp: the k best, of those the fewest that make up p, then a draw at a
temperature. Not here: where logits come from (llama.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclass
class Sampler:
    """Draws tokens; one for each sequence, since each has a generator of its own.

    Args:
        temperature: 0 takes the best token.
        top_k: only so many of the best; 0: all.
        top_p: only the best that make up this share of the probability.
        seed: of the generator.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    seed: int | None = None
    _random: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        self._random = np.random.default_rng(self.seed)

    def __call__(self, logits: npt.NDArray[np.float32]) -> int:
        """The next token; of equal logits the first one wins."""
        if self.temperature <= 0:
            return int(np.argmax(logits))
        k = min(self.top_k, logits.size) if self.top_k > 0 else logits.size
        best = np.argpartition(logits, logits.size - k)[logits.size - k :]
        best = best[np.argsort(-logits[best], kind="stable")]
        return self._draw(best, logits[best])

    def among(self, ids: npt.NDArray[np.int32], logits: npt.NDArray[np.float32]) -> int:
        """The next token, of the best ones alone: their ids, in any order, and their logits."""
        if self.temperature <= 0:
            top = logits == logits.max()
            return int(ids[top].min())
        order = np.argsort(-logits, kind="stable")
        if self.top_k > 0:
            order = order[: self.top_k]
        return self._draw(ids[order], logits[order])

    def _draw(self, best: npt.NDArray[Any], logits: npt.NDArray[np.float32]) -> int:
        """One of ``best``, best first."""
        kept = logits.astype(np.float64)
        share = np.exp(kept - kept[0])
        share /= share.sum()
        n = int(np.searchsorted(np.cumsum(share), self.top_p)) + 1  # at least the best one
        heat = np.exp((kept[:n] - kept[0]) / self.temperature)
        return int(self._random.choice(best[:n], p=heat / heat.sum()))
