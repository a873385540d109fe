"""Parts of a batch, and places of texts in a part: each whole, no overlap, little room left."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from aggml.models.encoder.packing import (
    FEWEST_TOKENS,
    Packing,
    PackingShape,
    divide,
    fill,
    pack,
)

PART = 512

LENGTHS = st.lists(st.integers(1, 256), min_size=1, max_size=100)


@given(LENGTHS)
def test_every_sentence_has_a_place_of_its_own(lengths: list[int]) -> None:
    packing = pack(lengths)
    shape = packing.shape
    taken = np.zeros((shape.rows, shape.tokens), bool)
    segments = set()
    for length, (row, start, segment) in zip(lengths, packing.places, strict=True):
        assert start + length <= shape.tokens
        assert not taken[row, start : start + length].any()
        taken[row, start : start + length] = True
        assert 0 <= segment < shape.segments
        segments.add((row, segment))
    assert len(segments) == len(lengths)
    assert shape.masked or (taken.all() and shape.segments == 1)


@given(LENGTHS)
def test_half_of_all_tokens_or_more_are_real(lengths: list[int]) -> None:
    shape = pack(lengths).shape
    # By first fit no two rows could be merged into one, and a row is at most 7 tokens longer than
    # it must be.
    assert shape.rows * shape.tokens <= 2 * sum(lengths) + 2 * 8 * shape.rows + shape.tokens + 64


@given(LENGTHS)
def test_arrays_say_who_is_where(lengths: list[int]) -> None:
    sentences = [np.arange(1, n + 1, dtype=np.int32) + 1000 * i for i, n in enumerate(lengths)]
    packing = pack(lengths)
    flat_ids, flat_positions, member = fill(packing, sentences)
    ids, positions = (
        x.reshape(packing.shape.rows, packing.shape.tokens) for x in (flat_ids, flat_positions)
    )
    assert member is not None
    assert member.sum() == sum(lengths)
    for sentence, (row, _, segment) in zip(sentences, packing.places, strict=True):
        mine = member[row, :, segment] == 1
        assert (ids[row, mine] == sentence).all()
        assert (positions[row, mine] == np.arange(len(sentence))).all()


def test_equal_lengths_need_no_mask() -> None:
    assert pack([14, 14, 14], alike=True) == Packing(
        PackingShape(3, 14, 1, masked=False), ((0, 0, 0), (1, 0, 0), (2, 0, 0))
    )


def test_rows_of_whole_sentences_have_no_members() -> None:
    sentences = [np.array(x, np.int32) for x in ([5, 6, 7], [8, 9, 4])]
    ids, positions, member = fill(pack([3, 3], alike=True), sentences)
    assert ids.tolist() == [5, 6, 7, 8, 9, 4]
    assert positions.tolist() == [0, 1, 2, 0, 1, 2]
    assert member is None


def test_short_sentences_share_a_row() -> None:
    assert pack([3, 16, 5, 8]) == Packing(
        PackingShape(2, 16, 4, masked=True), ((1, 13, 2), (0, 0, 0), (1, 8, 1), (1, 0, 0))
    )


@given(LENGTHS, st.integers(1, 16))
def test_every_text_is_in_one_part_and_parts_are_as_large_as_each_other(
    lengths: list[int], workers: int
) -> None:
    parts = divide(lengths, workers, PART)
    assert sorted(i for part in parts for i in part) == list(range(len(lengths)))
    assert all(parts)
    sizes = [sum(lengths[i] for i in part) for part in parts]
    total, longest = sum(lengths), max(lengths)
    assert max(sizes) <= total / len(parts) + longest or len(parts) < workers
    assert max(sizes) < PART + longest
    if len(parts) > 1:
        assert total / len(parts) >= FEWEST_TOKENS / 2


@given(LENGTHS, st.integers(1, 4))
def test_long_and_short_texts_are_apart(lengths: list[int], workers: int) -> None:
    """No text of a part is longer than one of the part before it, so rows have little padding."""
    parts = divide(lengths, workers, PART)
    for before, after in itertools.pairwise(parts):
        assert min(lengths[i] for i in before) >= max(lengths[i] for i in after)


def test_a_long_text_does_not_lengthen_the_rows_of_short_ones() -> None:
    lengths = [16] * 64 + [500]
    shapes = [pack([lengths[i] for i in part]).shape for part in divide(lengths, 2, PART)]
    assert sum(x.rows * x.tokens for x in shapes) <= 1.2 * sum(lengths)
    assert sum(x.tokens > 16 for x in shapes) == 1


def test_texts_of_one_length_are_equal_parts_for_each_worker() -> None:
    parts = divide([122] * 64, 2, PART)
    assert [len(part) for part in parts] == [4] * 16
    assert len(divide([14], 2, PART)) == 1
    assert divide([], 2, PART) == []
