"""Chain: the steps between logits and a draw on the host, in an order that can be given.

The device draws with temperature, top_k, top_p and min_p in llama.cpp's order (drawing.py).
Requests that name another order, or one of the other steps, are drawn here, from all logits. Not
here: that other way (sampling.py), biases and penalties themselves (adjusting.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["BREAKERS", "STEPS", "Chain"]

#: The steps in llama.cpp's order.
STEPS: Final = (
    "penalties", "dry", "top_n_sigma", "top_k", "typical_p", "top_p", "min_p", "xtc", "temperature",
)  # fmt: skip
BREAKERS: Final = ("\n", ":", '"', "*")


@dataclass(frozen=True, slots=True)
class Chain:
    """Which steps a request takes, and their numbers; see `TextModel.generate`."""

    steps: tuple[str, ...] = STEPS
    typical_p: float = 1.0
    top_n_sigma: float = 0.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_range: int | None = None
    dry_breakers: tuple[str, ...] = BREAKERS
    dynatemp_range: float = 0.0
    dynatemp_exponent: float = 1.0
    mirostat: int = 0
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1

    @property
    def changes_something(self) -> bool:
        """Whether a draw needs them; not if all of them are without effect."""
        return (
            self.steps != STEPS
            or self.typical_p < 1
            or self.top_n_sigma > 0
            or (self.xtc_probability > 0 and self.xtc_threshold <= 0.5)
            or (self.dry_multiplier > 0 and self.dry_range != 0)
            or self.dynatemp_range > 0
            or self.mirostat > 0
        )
