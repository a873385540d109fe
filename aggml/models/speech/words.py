"""Words: when each word of a window is said, from the attention of its tokens to the audio.

While the decoder writes a token, some of its heads attend to the frames in which that token is
said. A path through these weights that only goes forward (dynamic time warping) gives each token a
frame. Here: plain functions on arrays. Not here: the weights of attention (aligning.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    F32 = npt.NDArray[np.float32]

__all__ = ["Word", "characters_of", "token_times", "words_of"]

FRAME: Final = 0.02  # seconds of a frame of the encoder's output
SMOOTHED: Final = 7  # frames of the median filter
#: Pairs of these frames that are exchanged if they are in the wrong order; then the middle one is
#: the median.
EXCHANGES: Final = (
    (0, 5), (0, 3), (1, 6), (2, 4), (0, 1), (3, 5), (2, 6), (2, 3), (3, 6), (4, 5), (1, 4), (1, 3),
    (3, 4),
)  # fmt: skip
#: Languages that are written without spaces: each character is a word.
UNSPACED: Final = frozenset({"zh", "ja", "th", "lo", "my", "yue"})
OPENING: Final = "\"'“¿([{-"  # belong to the word behind them
CLOSING: Final = "\"'.。,，!！?？:：”)]}、-"  # noqa: RUF001 belong to the word before them
PAUSES: Final = ".。!！?？"  # noqa: RUF001 people pause behind them
USUAL: Final = 0.7  # seconds of a word, at most
LEAST: Final = 0.4  # seconds; shorter words are not shortened
UNKNOWN: Final = "\N{REPLACEMENT CHARACTER}"  # a part of a character


@dataclass(frozen=True, slots=True)
class Word:
    """A word and when it is said.

    Attributes:
        start, end: seconds from the beginning of the recording.
        text: begins with a space if the language has spaces; ends with its punctuation.
    """

    start: float
    end: float
    text: str


def token_times(attention: F32, frames: int) -> F32:
    """When the tokens of a window begin, and when the last one ends; seconds.

    Args:
        attention: weights (heads, tokens + 1, frames of the window): of the steps that write the
            tokens, and of the step that ends the text.
        frames: how many of the window belong to the recording.

    Returns:
        (tokens + 1,), never falling.
    """
    weights = attention[:, :, : max(frames, 1)].astype(np.float64)
    mean, spread = weights.mean(axis=1, keepdims=True), weights.std(axis=1, keepdims=True)
    cost = -_smooth((weights - mean) / np.maximum(spread, 1e-12)).mean(axis=0)
    rows, columns = _path(cost)
    first = np.searchsorted(rows, np.arange(len(cost)))  # where the path enters each row
    found: F32 = (columns[first] * FRAME).astype(np.float32)
    return found


def _smooth(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The median of `SMOOTHED` frames around each frame."""
    half, n = SMOOTHED // 2, x.shape[-1]
    if n <= half:
        return x
    padded = np.pad(x, [(0, 0)] * (x.ndim - 1) + [(half, half)], mode="reflect")
    # Sorting by exchanges of whole arrays takes a tenth of the time of numpy's median.
    rows = [padded[..., i : i + n] for i in range(SMOOTHED)]
    for i, j in EXCHANGES:
        rows[i], rows[j] = np.minimum(rows[i], rows[j]), np.maximum(rows[i], rows[j])
    return rows[half]


def _path(cost: npt.NDArray[np.float64]) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """The cheapest path from the first to the last corner: a row, a column or both on each step."""
    n, m = cost.shape
    total = np.full((n + 1, m + 1), np.inf)
    total[0, 0] = 0
    for i in range(1, n + 1):
        # total[i, j] = cost[i, j] + min(above[j], total[i, j - 1]), a whole row at once: less the
        # sum of the row's costs so far, that is the least value of `above` so far.
        above = np.minimum(total[i - 1, :-1], total[i - 1, 1:])
        before = np.cumsum(cost[i - 1])
        total[i, 1:] = np.minimum.accumulate(above - before + cost[i - 1]) + before
    both, up, left = total[:-1, :-1], total[:-1, 1:], total[1:, :-1]
    steps = np.where((both <= up) & (both <= left), 0, np.where(up <= left, 1, 2)).tolist()
    rows, columns = [], []
    i, j = n - 1, m - 1
    while i >= 0 and j >= 0:
        rows.append(i)
        columns.append(j)
        step = steps[i][j]
        i, j = i - (step != 2), j - (step != 1)
    return np.array(rows[::-1], np.intp), np.array(columns[::-1], np.intp)


def words_of(
    tokens: Sequence[int],
    times: Sequence[float],
    decode: Callable[[Sequence[int]], str],
    language: str,
) -> list[Word]:
    """The words of some tokens.

    Args:
        tokens: without special ones.
        times: when each begins, and when the last one ends.
        decode: tokens to text.
        language: its code.
    """
    characters = characters_of(tokens, decode)
    # Text, first token, last token that is not punctuation: the path through a pause often runs
    # through the punctuation before it, which nobody says.
    groups: list[tuple[str, int, int]] = []
    for text, first, last in characters:
        begins = (
            not groups
            or language in UNSPACED
            or text.startswith(" ")
            or (not text.strip() and not groups[-1][0].strip())
        )
        if begins:
            groups.append((text, first, last))
        else:
            before, since, until = groups[-1]
            silent = bool(before.strip()) and all(x in CLOSING for x in text)
            groups[-1] = (before + text, since, until if silent else last)
    found: list[Word] = []
    carried, since = "", 0  # opening signs, which wait for the word behind them
    for text, first, last in groups:
        bare = text.strip()
        start = since if carried else first
        if found and bare and all(x in CLOSING for x in bare) and not text.startswith(" "):
            word = found[-1]
            found[-1] = Word(word.start, word.end, word.text + text)
        elif bare and all(x in OPENING for x in bare) and text.startswith(" "):
            carried, since = carried + text, start
        elif bare:
            whole = carried + (text.lstrip() if carried else text)
            found.append(
                Word(round(float(times[start]), 2), round(float(times[last + 1]), 2), whole)
            )
            carried = ""
    if carried and found:
        word = found[-1]
        found[-1] = Word(word.start, word.end, word.text + carried)
    return _shorten_pauses(found)


def _shorten_pauses(words: list[Word]) -> list[Word]:
    """Take pauses off the words beside them.

    The path through a pause belongs to the word before or behind it. So a word that is far longer
    than the others ends early if it ends a part of a sentence, and begins late if it begins one.
    """
    spoken = [x.end - x.start for x in words if x.end > x.start]
    if not spoken:
        return words
    most = max(2 * min(float(np.median(spoken)), USUAL), LEAST)
    found: list[Word] = []
    for i, word in enumerate(words):
        start, end = word.start, word.end
        if end - start > most:
            if i == 0 or words[i - 1].text[-1] in PAUSES:
                start = end - most
            elif word.text[-1] in PAUSES:
                end = start + most
        found.append(Word(round(start, 2), round(end, 2), word.text))
    return found


def characters_of(
    tokens: Sequence[int], decode: Callable[[Sequence[int]], str]
) -> list[tuple[str, int, int]]:
    """Pieces of text that are whole characters: the text, its first and its last token."""
    found = []
    first = 0
    for last in range(len(tokens)):
        text = decode(tokens[first : last + 1])
        if UNKNOWN not in text or last + 1 == len(tokens):
            found.append((text, first, last))
            first = last + 1
    return found
