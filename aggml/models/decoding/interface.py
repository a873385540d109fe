"""Decoding: what a model that continues text asks of whoever computes its steps.

Here: the protocol. `Decoder` (decoder.py) computes on one backend; aggml.ray has one that computes
on many machines.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Protocol

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    import numpy as np
    import numpy.typing as npt

    from aggml.models.decoding.decoder import F32, Best
    from aggml.models.decoding.drawing import Draws
    from aggml.models.description import Description

__all__ = ["Chosen", "Decoding"]


class Chosen(Protocol):
    """The best token of each sequence, (sequences,) int32, when awaited."""

    def __await__(self) -> Generator[Any, Any, npt.NDArray[np.int32]]:
        """Wait for it."""
        ...

    def abort(self) -> None:
        """Nobody wants it any more."""
        ...


class Decoding(Protocol):
    """The caches of some sequences, and steps over them; each method as `Decoder` has it.

    Attributes:
        model: its description.
        ctx: positions of each sequence.
        sequences: how many there are.
        draws: whether `follow` takes draws.
    """

    model: Description
    ctx: int
    sequences: int
    draws: ClassVar[bool]

    @property
    def vocabulary(self) -> int:
        """How many tokens there are."""
        ...

    def close(self) -> None:
        """Free what it holds: later steps raise InvalidState."""
        ...

    async def prefill(self, slot: int, ids: Sequence[int], start: int = 0) -> F32:
        """Take in tokens of a sequence: the logits after the last one."""
        ...

    async def logits(self, ids: Sequence[int], slot: int = 0) -> F32:
        """Take in a sequence: the logits after each token."""
        ...

    async def hidden(self, ids: Sequence[int], slot: int = 0) -> F32:
        """Take in a sequence: what the logits would be made of."""
        ...

    async def decode(self, ids: Sequence[int], positions: Sequence[int], slot: int = 0) -> F32:
        """One more token of each sequence from ``slot`` on: all logits."""
        ...

    async def decode_best(
        self, ids: Sequence[int], positions: Sequence[int], best: int, slot: int = 0
    ) -> Best:
        """One more token of each sequence from ``slot`` on: the best logits."""
        ...

    async def follow(
        self,
        positions: Sequence[int],
        ids: Sequence[int] | None = None,
        slot: int = 0,
        draws: Draws | None = None,
    ) -> Chosen:
        """One more token of each sequence, whose choice the next step may take over."""
        ...

    async def share(self, n: int) -> None:
        """Copy the first ``n`` positions of sequence 0 to all others."""
        ...
