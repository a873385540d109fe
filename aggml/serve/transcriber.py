"""Transcriber: speech to text for any number of tasks, whose windows are computed in batches.

Not here: queue and batches (aggml/models/batching.py), the computation (aggml.models.speech).
"""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Self

from aggml.models.batching import Batcher

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    import numpy.typing as npt

    from aggml.models import Segment, SpeechModel
    from aggml.models.speech.windows import Said, Window

__all__ = ["Transcriber"]


class Transcriber:
    """Transcribes recordings with one model. Windows of many tasks are computed together.

    ``async with Transcriber("name", model) as t: segments = [x async for x in t.said(samples)]``

    Args:
        name: the name under which the model is served.
        model: a speech model; closed by its owner.
        max_waiting: how many windows may be queued or computing; others wait their turn.
    """

    def __init__(self, name: str, model: SpeechModel, *, max_waiting: int = 256) -> None:
        self.name = name
        self.model = model
        self._windows: Batcher[Window, Said] = Batcher(
            model.say, full=model.slots, max_waiting=max_waiting
        )

    async def __aenter__(self) -> Self:
        await self._windows.__aenter__()
        return self

    async def __aexit__(self, *raised: object) -> bool | None:
        """Stop. Whoever still waits for a window gets a `BatchError`."""
        return await self._windows.__aexit__(*raised)

    async def said(
        self,
        samples: npt.ArrayLike,
        rate: int,
        **options: Any,  # noqa: ANN401
    ) -> AsyncGenerator[Segment]:
        """The segments of a recording, with arguments and errors as `SpeechModel.transcribe`.

        Raises:
            BatchError: the computation failed, or the service has ended.

        Cancellation: takes back the window that waits; others go on.
        """
        segments = self.model.segments(self._windows.submit, samples, rate, **options)
        async with aclosing(segments):
            async for segment in segments:
                yield segment
