"""Decoding: the protocol by which `TextModel` and `generate` have decoding steps computed.

`Decoder` (decoder.py) implements it on one backend or scheduler, aggml.ray on many machines. Not
here: the graphs of steps (step.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Protocol

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    import numpy as np
    import numpy.typing as npt

    from aggml.models.decoder.decoder import F32, Best
    from aggml.models.decoder.drawing import Draws
    from aggml.models.description import Description
    from aggml.models.lifetime import Lifetime

__all__ = ["Chosen", "Decoding"]


class Chosen(Protocol):
    """Awaited, it gives the token chosen for each sequence, (sequences,) int32."""

    def __await__(self) -> Generator[Any, Any, npt.NDArray[np.int32]]:
        """Wait for the tokens."""
        ...

    def abort(self) -> None:
        """Stop the computation: nobody needs the tokens any more."""
        ...


class Decoding(Protocol):
    """The caches of some sequences, and steps that use them. `Decoder` documents each method.

    Attributes:
        model: the description of the model.
        ctx: positions of each sequence.
        sequences: how many sequences there are.
        draws: whether `follow` takes draws.
        lifetime: closed by `close`; frees the memory when no task is using it.
    """

    model: Description
    ctx: int
    sequences: int
    draws: ClassVar[bool]
    lifetime: Lifetime

    @property
    def vocabulary(self) -> int:
        """How many tokens there are."""
        ...

    def close(self) -> None:
        """Free the caches and graphs: later steps raise InvalidState."""
        ...

    def reusable(self, common: int, processed: int) -> int:
        """From which position on a sequence has to be processed again, for another end."""
        ...

    async def prefill(self, slot: int, ids: Sequence[int], start: int = 0) -> F32:
        """Process tokens of a sequence; returns the logits after the last one."""
        ...

    async def logits(self, ids: Sequence[int], slot: int = 0) -> F32:
        """Process a sequence; returns the logits after each token."""
        ...

    async def hidden(self, ids: Sequence[int], slot: int = 0) -> F32:
        """Process a sequence; returns the normalised output of the last layer for each token."""
        ...

    async def decode(self, ids: Sequence[int], positions: Sequence[int], slot: int = 0) -> F32:
        """Process one more token of each sequence from ``slot`` on; returns all logits."""
        ...

    async def decode_best(
        self, ids: Sequence[int], positions: Sequence[int], best: int, slot: int = 0
    ) -> Best:
        """Process one more token of each sequence from ``slot`` on; returns the best logits."""
        ...

    async def follow(
        self,
        positions: Sequence[int],
        ids: Sequence[int] | None = None,
        slot: int = 0,
        draws: Draws | None = None,
    ) -> Chosen:
        """Queue one more token of each sequence; the next step can use the tokens it chooses."""
        ...

    async def share(self, n: int) -> None:
        """Copy the first ``n`` positions of sequence 0 to all others."""
        ...
