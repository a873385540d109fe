"""Embeds sentences for any number of tasks: requests that arrive one by one become batches.

Here: the service in one object, tokenizing. Not here: the model (model.py), queue and batches
(aggml.models.batching).
"""

from __future__ import annotations

import functools
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Final, Self

import anyio.to_thread
import numpy as np

from aggml.models.batching import Batcher
from minilm.model import MiniLM, workers
from minilm.weights import ModelError, model_folder

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

    from tokenizers import Tokenizer

    from aggml.models.encoder.packing import F32, Ids

MAX_TOKENS: Final = 256  # of a sentence; the model was trained with so many
LONG_TEXT: Final = 2000  # characters; longer texts take over 0.5 ms, so a thread tokenizes them


class Embedder:
    """Embeds sentences for any number of tasks.

    ``async with Embedder() as embedder: vector = await embedder.embed("text")``

    Args:
        device: name of an aggml device.
        dtype: element type of the weight matrices: "f32", "bf16" or "q8_0".
        throughout, row_scales: q8_0 that is faster and further from exact (MiniLM.load).
        threads: threads that compute; by default as many as there are usable cores.
        batch_tokens: a batch is full at this number of tokens.
        max_waiting: how many requests may be queued or computing; others wait their turn.
        folder: where model.safetensors and tokenizer.json are, if not in the installed package.
    """

    def __init__(
        self,
        *,
        device: str = "CPU",
        dtype: str = "f32",
        throughout: bool = False,
        row_scales: bool = False,
        threads: int | None = None,
        batch_tokens: int = 1024,
        max_waiting: int = 1024,
        folder: Path | None = None,
    ) -> None:
        self._device = device
        self._dtype = dtype
        self._throughout = throughout
        self._row_scales = row_scales
        self._threads = threads
        self._batch_tokens = batch_tokens
        self._max_waiting = max_waiting
        self._folder = folder

    async def __aenter__(self) -> Self:
        folder = self._folder or model_folder()
        self._tokenizer = await anyio.to_thread.run_sync(load_tokenizer, folder)
        async with AsyncExitStack() as stack:
            backends = await stack.enter_async_context(workers(self._device, self._threads))
            model = await MiniLM.load(
                backends,
                folder,
                dtype=self._dtype,
                throughout=self._throughout,
                row_scales=self._row_scales,
            )

            async def compute(sentences: list[Ids]) -> list[F32]:
                return list(await model.embed(sentences))

            self._batcher: Batcher[Ids, F32] = Batcher(
                compute, full=self._batch_tokens, max_waiting=self._max_waiting
            )
            await stack.enter_async_context(self._batcher)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        """End the service. Whoever still waits for an embedding gets a `BatchError`."""
        return await self._stack.__aexit__(kind, error, trace)

    async def embed(self, text: str) -> F32:
        """Embed one sentence, or its first 256 tokens.

        Returns:
            The normalised mean-pooled vector, (384,) float32.

        Raises:
            BatchError: the computation failed, or the service has ended.

        Cancellation: takes the request back; others go on.
        """
        return await self.embed_tokens(await self.tokens(text))

    async def tokens(self, text: str) -> Ids:
        """Token ids of a text, at most 256."""
        if len(text) <= LONG_TEXT:
            return tokenize(self._tokenizer, text)
        return await anyio.to_thread.run_sync(tokenize, self._tokenizer, text)

    async def embed_tokens(self, ids: Ids) -> F32:
        """As `embed`, for the token ids that `tokens` gave."""
        # A copy, because a view of one vector would keep the vectors of the whole batch.
        return (await self._batcher.submit(ids)).copy()


@functools.cache
def load_tokenizer(folder: Path) -> Tokenizer:
    """The model's tokenizer, without padding, truncating at 256 tokens; loaded once.

    Loading takes 20 ms and keeps the GIL, so an event loop waits even if another thread loads. Call
    this once before the loop starts.

    Raises:
        ModelError: the tokenizers package or the model's file is missing.
    """
    try:
        import tokenizers
    except ImportError as error:
        raise ModelError(
            "the tokenizers package is not installed; get it with: pip install tokenizers"
        ) from error
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise ModelError(f"{path} is missing")
    tokenizer = tokenizers.Tokenizer.from_file(str(path))
    tokenizer.no_padding()
    tokenizer.enable_truncation(MAX_TOKENS)
    return tokenizer


def tokenize(tokenizer: Tokenizer, text: str) -> Ids:
    """Token ids of a sentence, [CLS] first, [SEP] last. A lone surrogate becomes U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return np.array(tokenizer.encode(text).ids, np.int32)
