"""VoiceModel: a model that hears where somebody speaks, in a sound that may still go on.

Here: the public object. Not here: the computation (speech/voice.py), the rules by which speech
begins and ends (speech/spans.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from aggml import InvalidArgument
from aggml.models.arguments import number, show
from aggml.models.model import Model
from aggml.models.speech.chunks import heard_chunks
from aggml.models.speech.spans import Span, SpanFinder, SpanRules
from aggml.models.speech.voice import VOICE, WINDOW, VoiceState
from aggml.models.speech.waves import RATE, rate_of

if TYPE_CHECKING:
    from collections.abc import (
        AsyncGenerator,
        AsyncIterable,
        Awaitable,
        Callable,
        Iterable,
        Iterator,
        Sequence,
    )

    import numpy.typing as npt

    from aggml.models.model import Closing, TokenIds
    from aggml.models.speech.voice import VoiceDetector

    F32 = npt.NDArray[np.float32]

__all__ = ["VoiceFollower", "VoiceModel", "follow_voice"]

#: Of a sound that is transcribed while it goes on: somebody who takes a breath speaks on.
FOLLOWED: Final = SpanRules(
    threshold=0.5, silence=RATE // 2, shortest=RATE // 4, pad=RATE // 5, longest=30 * RATE
)


class VoiceModel(Model):
    """A detector of speech: `load` returns it for Silero's ``silero_vad_16k.safetensors``.

    ``async for span in vad.listen(chunks, rate=48000): print(span.start, span.end)``

    Attributes:
        architecture: "silero-vad".
        ctx: samples of a window, 512 at 16 kHz.
    """

    def __init__(self, detector: VoiceDetector, owned: Closing | None = None) -> None:
        self.architecture = VOICE
        self.ctx = WINDOW
        super().__init__(detector, None, owned)
        self._detector = detector

    @property
    def width(self) -> int:
        """Probabilities of a window."""
        return 1

    @property
    def vocabulary_size(self) -> int:
        """It has no tokens."""
        return 0

    def __repr__(self) -> str:
        return f"<VoiceModel {self.architecture}{', closed' if self._closed else ''}>"

    async def embed(self, texts: Sequence[str]) -> F32:
        """A detector of speech makes no vectors of texts.

        Raises:
            Unsupported: always.
        """
        raise self._cannot("embed", "hears where somebody speaks, and makes no vectors of texts")

    async def embed_ids(self, sequences: Sequence[TokenIds]) -> F32:
        """A detector of speech makes no vectors of texts.

        Raises:
            Unsupported: always.
        """
        raise self._cannot("embed_ids", "hears where somebody speaks, and makes no vectors")

    def listen(  # type: ignore[override]  # its options by name
        self,
        chunks: Iterable[npt.ArrayLike] | AsyncIterable[npt.ArrayLike],
        rate: int = RATE,
        *,
        threshold: float = 0.5,
        silence: float = 0.1,
        shortest: float = 0.25,
        pad: float = 0.03,
        longest: float | None = None,
        began: Callable[[float], object] | None = None,
    ) -> AsyncGenerator[Span]:
        """The times in which somebody speaks, each as soon as it is over.

        Args:
            chunks: pieces of a sound, of any length, as they come: floats from -1 to 1 or integers;
                if (samples, channels), channels are averaged. An asynchronous generator is closed
                at the end.
            rate: samples a second.
            threshold: the probability from which on it is speech. Speech ends when it falls 0.15
                below that.
            silence: seconds of silence that end a span.
            shortest: seconds; shorter speech is noise.
            pad: seconds that a span has before and behind the speech.
            longest: seconds after which a span is cut; None: never.
            began: called with the second at which a span starts, once for each span: as soon as
                its speech has lasted for ``shortest``, and before the span is yielded.

        Yields:
            Each span with its samples at 16 kHz.

        Raises:
            InvalidArgument: an argument of another type or out of its range. By the first span: a
                chunk is no audio.
            InvalidState: the model is closed.

        Cancellation: aborts the computation.
        """
        place = "listen"
        self._check_open(place)
        hertz = rate_of(place, rate)

        def samples(name: str, seconds: float) -> int:
            return round(number(place, name, seconds, 0) * RATE)

        rules = SpanRules(
            threshold=number(place, "threshold", threshold, 0, 1, above=True),
            silence=samples("silence", silence),
            shortest=samples("shortest", shortest),
            pad=samples("pad", pad),
            longest=None if longest is None else max(WINDOW, samples("longest", longest)),
        )
        if began is not None and not callable(began):
            raise InvalidArgument(
                f"[{place}] began is {show(began)}, expected a function of a number of seconds"
            )
        return self._spans(heard_chunks(place, chunks, hertz), SpanFinder(rules), began)

    async def probabilities(self, samples: npt.ArrayLike, rate: int = RATE) -> F32:
        """The probability that somebody speaks, of each whole window of 32 ms.

        Args:
            samples: as one chunk of `listen`.
            rate: samples a second.

        Raises:
            InvalidArgument: ``samples`` is no audio, or ``rate`` no rate of sound.
            InvalidState: the model is closed.

        Cancellation: aborts the computation.
        """
        self._check_open("probabilities")
        hertz = rate_of("probabilities", rate)
        pieces = [x async for x in heard_chunks("probabilities", [samples], hertz)]
        whole = np.concatenate([np.empty(0, np.float32), *pieces])
        with self._open("probabilities"):
            return await self._detector.hear(
                VoiceState.new(), whole[: len(whole) // WINDOW * WINDOW]
            )

    async def _spans(
        self,
        pieces: AsyncGenerator[F32],
        finder: SpanFinder,
        began: Callable[[float], object] | None,
    ) -> AsyncGenerator[Span]:
        follower = VoiceFollower(self._hear, finder, began)
        try:
            async for piece in pieces:
                for span in await follower.take(piece):
                    yield span
        finally:
            await pieces.aclose()
        last = follower.finish()
        if last is not None:
            yield last

    async def _hear(self, state: VoiceState, samples: F32) -> F32:
        with self._open("listen"):
            return await self._detector.hear(state, samples)

    def _follow(self) -> VoiceFollower:
        self._check_open("listen")
        return VoiceFollower(self._hear, SpanFinder(FOLLOWED))


class VoiceFollower:
    """Finds the spans of one sound that comes in pieces.

    Args:
        hear: the detector.
        finder: decides where speech begins and ends.
        began: as for `VoiceModel.listen`.
    """

    def __init__(
        self,
        hear: Callable[[VoiceState, F32], Awaitable[F32]],
        finder: SpanFinder,
        began: Callable[[float], object] | None = None,
    ) -> None:
        self._hear, self._finder, self._began = hear, finder, began
        self._state, self._rest = VoiceState.new(), np.empty(0, np.float32)
        self._told = began is None  # whether ``began`` knows of the span that has begun

    @property
    def start(self) -> float | None:
        """Where the span that has begun starts, in seconds, even if it may prove to be noise."""
        return self._finder.start

    @property
    def speaks(self) -> bool:
        """Whether somebody speaks, for certain."""
        return self._finder.certain is not None

    async def take(self, piece: F32) -> Iterator[Span]:
        """The next piece; returns the spans that end in it, found one by one as they are taken.

        Cancellation: aborts the computation; this sound cannot be followed any more.
        """
        self._rest = np.concatenate([self._rest, piece])
        n = len(self._rest) // WINDOW * WINDOW
        if not n:
            return iter(())
        whole, self._rest = self._rest[:n], self._rest[n:]
        return self._find_spans(whole, await self._hear(self._state, whole))

    def _find_spans(self, samples: F32, probabilities: F32) -> Iterator[Span]:
        finder = self._finder
        for i, probability in enumerate(probabilities):
            span = finder.take(samples[i * WINDOW : (i + 1) * WINDOW], float(probability))
            start = finder.certain if span is None else span.start
            if self._began is not None and not self._told and start is not None:
                self._began(start)
                self._told = True
            if span is not None:
                self._told = self._began is None
                yield span

    def finish(self) -> Span | None:
        """The sound has ended; returns the span that had begun."""
        last = self._finder.finish(self._rest)
        if last is not None and self._began is not None and not self._told:
            self._began(last.start)
        return last


def follow_voice(model: VoiceModel) -> VoiceFollower:
    """Follow one sound, for a model that transcribes it.

    Raises:
        InvalidState: the detector is closed.
    """
    return model._follow()
