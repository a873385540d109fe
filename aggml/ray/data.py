"""Datasets: a model in the workers of Ray Data, a batch of rows at a time.

``dataset.map_batches(aggml.ray.Embed, fn_constructor_args=("model.gguf",), concurrency=2)``

Here: `Embed`, `Generate` and `Transcribe`, of which Ray makes one in each worker. Ray Data reads
ahead, applies back-pressure and shows progress. Not here: models (aggml.models).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import anyio
import anyio.from_thread
import numpy as np

import aggml
from aggml import models
from aggml.models import SpeechModel
from aggml.models.speech import as_objects, as_text, mono, resample
from aggml.process.locks import new_lock

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from aggml.models import Model, Segment

__all__ = ["Embed", "Generate", "Transcribe"]


class _Worker:
    """A model on its own event loop in a thread, because Ray Data may call from any thread."""

    def __init__(self, path: str, threads: int, **options: Any) -> None:  # noqa: ANN401 of `load`
        self._leave = new_lock()
        self._portal_context = anyio.from_thread.start_blocking_portal()
        self._portal = self._portal_context.__enter__()
        self._backend = aggml.get_device("CPU").backend(n_threads=threads)
        self._model: Model = self._portal.call(self._load, path, options)

    async def _load(self, path: str, options: dict[str, Any]) -> Model:
        return await models.load(path, self._backend, **options)

    def close(self) -> None:
        """Close the model and its event loop."""
        with self._leave:
            if self._portal_context is not None:
                self._portal.call(self._model.aclose)
                self._portal.call(self._backend.aclose)
                self._portal_context.__exit__(None, None, None)


class Embed(_Worker):
    """Adds a column of vectors to batches of texts.

    Args:
        path: a model file, at this path on every node.
        column: name of the column of texts.
        to: name of the new column of vectors, float32.
        threads: cores of each worker; give Ray the same number as ``num_cpus``.
        options: further arguments of `aggml.models.load`.
    """

    def __init__(
        self, path: str, *, column: str = "text", to: str = "embedding", threads: int = 1,
        **options: Any,  # noqa: ANN401
    ) -> None:  # fmt: skip
        super().__init__(path, threads, **options)
        self._column, self._to = column, to

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """A batch with the vectors of its texts, (rows, width)."""
        texts = [str(x) for x in batch[self._column]]
        vectors = self._portal.call(self._model.embed, texts)
        return {**batch, self._to: vectors}


class Generate(_Worker):
    """Adds a column of continuations to batches of prompts; those of a batch are computed together.

    Args:
        path: a model file, at this path on every node.
        column: name of the column of prompts.
        to: name of the new column of continuations.
        threads: cores of each worker; give Ray the same number as ``num_cpus``.
        slots: prompts that are continued at a time.
        generation: arguments of `aggml.models.TextModel.generate`, such as ``{"max_tokens": 64}``.
        options: further arguments of `aggml.models.load`.
    """

    def __init__(
        self, path: str, *, column: str = "prompt", to: str = "completion", threads: int = 1,
        slots: int = 8, generation: dict[str, Any] | None = None,
        **options: Any,  # noqa: ANN401
    ) -> None:  # fmt: skip
        super().__init__(path, threads, slots=slots, **options)
        self._column, self._to = column, to
        self._generation = generation or {}

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """A batch with the continuations of its prompts."""
        prompts = [str(x) for x in batch[self._column]]
        texts = self._portal.call(self._all, prompts)
        return {**batch, self._to: np.array(texts, dtype=object)}

    async def _all(self, prompts: Sequence[str]) -> list[str]:
        found = [""] * len(prompts)

        async def one(i: int) -> None:
            tokens = self._model.generate(prompts[i], **self._generation)
            found[i] = "".join([token.text async for token in tokens])

        async with anyio.create_task_group() as tasks:
            for i in range(len(prompts)):
                tasks.start_soon(one, i)
        return found


class Transcribe(_Worker):
    """Adds a column of transcripts to batches of recordings, whose windows are decoded together.

    A recording is the bytes of a WAV file, as from ``ray.data.read_binary_files``, or samples.

    Args:
        path: a file of a model of speech, at this path on every node.
        column: name of the column of recordings: bytes or samples.
        to: name of the new column of texts.
        segments: name of a further column with lists of segments as JSON (start, end, text, ...);
            None: no such column.
        rate: samples a second, for recordings that are given as samples.
        threads: cores of each worker; give Ray the same number as ``num_cpus``.
        slots: windows of 30 s that are decoded together.
        transcription: arguments of `aggml.models.SpeechModel.transcribe`, such as
            ``{"language": "en"}``.
        options: further arguments of `aggml.models.load`.
    """

    def __init__(
        self, path: str, *, column: str = "bytes", to: str = "text", segments: str | None = None,
        rate: int = 16000, threads: int = 1, slots: int = 4,
        transcription: dict[str, Any] | None = None, **options: Any,  # noqa: ANN401
    ) -> None:  # fmt: skip
        super().__init__(path, threads, slots=slots, **options)
        if not isinstance(self._model, SpeechModel):
            self.close()
            raise aggml.Unsupported(
                f"[Transcribe] {path!r} is no model of speech: give a Whisper model"
            )
        self._column, self._to, self._segments = column, to, segments
        self._rate, self._transcription = rate, transcription or {}

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """A batch with what is said in each of its recordings."""
        heard = [self._read_recording(x) for x in batch[self._column]]
        found = self._portal.call(self._all, heard)
        said = {**batch, self._to: np.array([as_text(x) for x in found], dtype=object)}
        if self._segments is not None:
            told = [json.dumps(as_objects(x)) for x in found]
            said[self._segments] = np.array(told, dtype=object)
        return said

    def _read_recording(self, given: Any) -> npt.NDArray[np.float32]:  # noqa: ANN401 bytes or samples
        """A recording at the model's rate."""
        if isinstance(given, bytes):
            return resample(*models.read_wav(given))
        return resample(mono(given), self._rate)

    async def _all(self, recordings: Sequence[npt.NDArray[np.float32]]) -> list[list[Segment]]:
        assert isinstance(self._model, SpeechModel)
        return await self._model.transcribe_all(recordings, **self._transcription)
