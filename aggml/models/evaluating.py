"""evaluate: how well a model predicts a text, and how far it is from another model.

Perplexity and Kullback-Leibler divergence as llama.cpp's llama-perplexity computes them: in chunks,
of which the second half is scored. Here: the numbers of a piece of logits, their means, the loop
over the text. Not here: files of saved logits (saved_logits.py), chunks (measuring.py).
"""

from __future__ import annotations

import math
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import anyio.to_thread
import numpy as np

from aggml import InvalidArgument
from aggml.models.arguments import file_path, integer, one_text
from aggml.models.errors import ModelError
from aggml.models.measuring import FEWEST, begin_text, chunks_of, open_decoder
from aggml.models.saved_logits import LogitReader, LogitWriter, is_saved

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from aggml import Backend, Scheduler
    from aggml.models.decoder.decoder import Decoder

    F32 = npt.NDArray[np.float32]
    F64 = npt.NDArray[np.float64]
    Ids = npt.NDArray[np.intp]

__all__ = ["Divergence", "Perplexity", "evaluate"]

#: Logarithms of probabilities below this are cut in files of saved logits, so they do not count.
SMALLEST: Final = -16.0
#: With fewer values, no uncertainty is told.
FEW: Final = 10
PERCENTILES: Final = (0.1, 1.0, 5.0, 10.0, 50.0, 90.0, 95.0, 99.0, 99.9)


@dataclass(frozen=True, slots=True)
class Divergence:
    """How far a model is from its base, over the scored tokens; errors are standard errors.

    Attributes:
        base_ppl, base_ppl_error: the base's perplexity.
        ln_ratio, ln_ratio_error: the logarithm of the model's perplexity divided by the base's.
        kl, kl_error: the mean divergence, in nats.
        kl_max, kl_min: the largest and the smallest one.
        kl_percentiles: of the divergences, by percent; 50 is the median.
        dp, dp_error: the mean change of the probability of the text's own token.
        dp_rms, dp_rms_error: the root of the mean square of these changes.
        same_top, same_top_error: the share of tokens for which both find the same one most likely.
    """

    base_ppl: float
    base_ppl_error: float
    ln_ratio: float
    ln_ratio_error: float
    kl: float
    kl_error: float
    kl_max: float
    kl_min: float
    kl_percentiles: dict[float, float]
    dp: float
    dp_error: float
    dp_rms: float
    dp_rms_error: float
    same_top: float
    same_top_error: float


@dataclass(frozen=True, slots=True)
class Perplexity:
    """How well a model predicts a text.

    Attributes:
        chunks: pieces of the text that were computed.
        tokens: that were scored: of each chunk the second half, but for its first token.
        ppl: perplexity; e to the mean of the negative logarithms of the tokens' probabilities.
        ppl_error: its standard error.
        divergence: from the base; None: there is none.
    """

    chunks: int
    tokens: int
    ppl: float
    ppl_error: float
    divergence: Divergence | None = None


async def evaluate(
    path: str | os.PathLike[str],
    text: str | None = None,
    backend: Backend | Scheduler | None = None,
    *,
    ctx: int = 512,
    chunks: int | None = None,
    kl_base: str | os.PathLike[str] | None = None,
    save_logits: str | os.PathLike[str] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Perplexity:
    """The perplexity of a text, and the divergence from a base if one is named.

    Each chunk of ``ctx`` tokens begins anew; the second half of it is scored. Of the logits there
    are 64 MiB in memory at a time, for each model.

    Args:
        path: the model, a GGUF file or a folder of Hugging Face; it must continue text.
        text: at least ``ctx`` tokens; may be None if ``kl_base`` is a file of saved logits, which
            contains the tokens.
        backend: where to compute; None: the best device.
        ctx: tokens of a chunk; with saved logits theirs.
        chunks: at most so many; None: the whole text.
        kl_base: what the model is compared with: another model, most often the one that was
            quantized, or a file that ``save_logits`` has written, here or by llama.cpp.
        save_logits: write the probabilities of all tokens to this file, in the form of llama.cpp:
            two bytes for each token of the vocabulary.
        progress: called with the chunks done so far and the chunks in all.

    Raises:
        InvalidArgument: the text is missing, too short, or not that of the saved logits; an
            argument is wrong.
        ModelError: a file cannot be read, does not continue text, or has another vocabulary;
            logits are not finite.
        OSError: the file of logits cannot be written.

    Cancellation: takes effect after the current step; an old file of logits stays.
    """
    place = "evaluate"
    content = None if text is None else one_text(place, "text", text)
    size = integer(place, "ctx", ctx, FEWEST)
    most = None if chunks is None else integer(place, "chunks", chunks, 1)
    base = None if kl_base is None else file_path(place, "kl_base", kl_base)
    target = None if save_logits is None else file_path(place, "save_logits", save_logits)
    saved = None
    async with AsyncExitStack() as stack:
        if base is not None and await anyio.to_thread.run_sync(is_saved, base):
            saved = stack.enter_context(await anyio.to_thread.run_sync(LogitReader, base))
            size = saved.ctx
        elif content is None:
            raise InvalidArgument(f"[{place}] text is missing: expected was a text to predict")
        own = open_decoder(place, path, backend, size)
        decoder, words = await stack.enter_async_context(own)
        other = None
        if base is not None and saved is None:
            other, _ = await stack.enter_async_context(open_decoder(place, base, backend, size))
        if saved is None:
            assert content is not None
            pieces = await chunks_of(place, words, content, size, most)
        else:
            pieces = saved.chunks[:most]
            if content is not None:
                given = await chunks_of(place, words, content, size, len(pieces))
                if [x[1:] for x in given] != [x[1:] for x in pieces]:
                    raise InvalidArgument(f"[{place}] the text is not that of {str(base)!r}")
        _check_alike(decoder, other, saved)
        writer = None
        if target is not None:
            writer = LogitWriter(target, size, decoder.vocabulary, pieces)
            stack.push_async_exit(writer.finish)
        scores = _Scores()
        for done, piece in enumerate(pieces):
            if progress is not None:
                progress(done, len(pieces))
            await _score(scores, begin_text(words, piece), decoder, other, saved, writer, done)
    if progress is not None:
        progress(len(pieces), len(pieces))
    return scores.result(len(pieces))


def _check_alike(decoder: Decoder, other: Decoder | None, saved: LogitReader | None) -> None:
    """Refuse a base with another vocabulary."""
    n = decoder.vocabulary
    theirs = n if other is None else other.vocabulary
    theirs = theirs if saved is None else saved.vocabulary
    if n != theirs:
        raise ModelError(f"the model has {n} tokens in its vocabulary, its base has {theirs}")


async def _score(
    scores: _Scores,
    ids: Sequence[int],
    decoder: Decoder,
    other: Decoder | None,
    saved: LogitReader | None,
    writer: LogitWriter | None,
    number: int,
) -> None:
    """Score the second half of a chunk."""
    first, size = len(ids) // 2, decoder.piece
    for one in (decoder, other):
        if one is not None:
            await one.begin(ids[:first])
    for at in range(first, len(ids) - 1, size):
        piece = ids[at : min(at + size, len(ids) - 1)]
        targets = np.array(ids[at + 1 : at + 1 + len(piece)], np.intp)
        logits = await decoder.logits_at(piece, at)
        base: F32 | None = None
        if other is not None:
            base = await other.logits_at(piece, at)
        elif saved is not None:
            base = await anyio.to_thread.run_sync(saved.rows, number, at - first, len(piece))
        whole = saved is None
        found = await anyio.to_thread.run_sync(_numbers, logits, targets, base, whole)
        if not np.isfinite(found).all():
            raise ModelError(f"logits of chunk {number} are not finite")
        if writer is not None:
            await anyio.to_thread.run_sync(writer.add, logits)
        scores.add(found)


def _numbers(logits: F32, targets: Ids, base: F32 | None, whole: bool) -> F64:
    """Rows of numbers of each token: its negative logarithm; with a base also the others.

    They are the base's negative logarithm, the divergence, and whether both find the same token
    most likely.

    Args:
        logits: (tokens, vocabulary).
        targets: the tokens that follow.
        base: logits of the base, or logarithms of its probabilities; None: there is no base.
        whole: whether the smallest probabilities of the base count, too.
    """
    each = np.arange(len(targets))
    mine = _log_softmax(logits)
    rows = [-mine[each, targets]]
    if base is not None:
        theirs = _log_softmax(base) if whole else base
        counts = theirs > (-np.inf if whole else SMALLEST)
        powers = np.exp(theirs, where=counts, out=np.zeros_like(theirs))
        apart = np.subtract(theirs, mine, where=counts, out=np.zeros_like(theirs))
        rows.append(-theirs[each, targets])
        rows.append((powers * apart).sum(1, dtype=np.float64))
        rows.append(mine.argmax(1) == theirs.argmax(1))
    return np.array(rows, np.float64)


def _log_softmax(logits: F32) -> F32:
    """Logarithms of probabilities, (tokens, vocabulary)."""
    found: F32 = logits - logits.max(1, keepdims=True)
    sums = np.exp(found).sum(1, dtype=np.float64, keepdims=True)
    found -= np.log(sums).astype(np.float32)
    return found


@dataclass
class _Scores:
    """The numbers of all scored tokens: 8 bytes for each, whatever the vocabulary."""

    rows: list[F64] = field(default_factory=list)

    def add(self, found: F64) -> None:
        """Add the numbers of some tokens."""
        self.rows.append(found)

    def result(self, chunks: int) -> Perplexity:
        """The means."""
        nll, *others = np.concatenate(self.rows, axis=1)
        mean, error = _mean(nll)
        ppl = _power(mean)
        if not others:
            return Perplexity(chunks, len(nll), ppl, ppl * error)
        base, kl, same = others
        base_mean, base_error = _mean(base)
        change = np.exp(-nll) - np.exp(-base)
        shared = float(np.cov(nll, base, bias=True)[0, 1]) / (len(nll) - 1) if error else 0.0
        ratio = math.sqrt(max(0.0, error**2 + base_error**2 - 2 * shared))
        square, square_error = _mean(change**2)
        rms, top = math.sqrt(square), float(same.mean())
        dp, dp_error = _mean(change)
        apart = Divergence(
            _power(base_mean), _power(base_mean) * base_error, mean - base_mean, ratio, *_mean(kl),
            float(kl.max()), float(kl.min()),
            dict(zip(PERCENTILES, np.percentile(kl, PERCENTILES).tolist(), strict=True)),
            dp, dp_error, rms, 0.5 * square_error / rms if rms else 0.0,
            top, math.sqrt(top * (1 - top) / max(1, len(same) - 1)),
        )  # fmt: skip
        return Perplexity(chunks, len(nll), ppl, ppl * error, apart)


def _mean(values: F64) -> tuple[float, float]:
    """The mean and its standard error; 0 for few values."""
    error = math.sqrt(values.var() / (len(values) - 1)) if len(values) > FEW else 0.0
    return float(values.mean()), error


def _power(mean: float) -> float:
    """e to a mean; infinite if it is too large for a float."""
    return math.exp(mean) if mean < 700 else math.inf
