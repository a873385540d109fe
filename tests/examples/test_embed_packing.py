"""The places of sentences in a batch: each whole, without overlap, with little room left."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from minilm.parts import FEWEST_TOKENS, PART_TOKENS, parts_of

from aggml.models.encoder.packing import Packing, Shape, fill, pack

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
    assert shape.rows * shape.tokens <= 2 * sum(lengths) + 2 * 8 * shape.rows + shape.tokens


@given(LENGTHS)
def test_arrays_say_who_is_where(lengths: list[int]) -> None:
    sentences = [np.arange(1, n + 1, dtype=np.int32) + 1000 * i for i, n in enumerate(lengths)]
    packing = pack(lengths)
    ids, positions, member = fill(packing, sentences)
    assert member.sum() == sum(lengths)
    for sentence, (row, _, segment) in zip(sentences, packing.places, strict=True):
        mine = member[row, :, segment] == 1
        assert (ids[row, mine] == sentence).all()
        assert (positions[row, mine] == np.arange(len(sentence))).all()


def test_equal_lengths_need_no_mask() -> None:
    assert pack([14, 14, 14]) == Packing(
        Shape(3, 14, 1, masked=False), ((0, 0, 0), (1, 0, 0), (2, 0, 0))
    )


def test_short_sentences_share_a_row() -> None:
    assert pack([3, 16, 5, 8]) == Packing(
        Shape(2, 16, 4, masked=True), ((1, 13, 2), (0, 0, 0), (1, 8, 1), (1, 0, 0))
    )


@given(st.integers(1, 300), st.integers(1, 512), st.integers(1, 16))
def test_parts_are_all_rows_in_order_and_as_long_as_each_other(
    rows: int, tokens: int, workers: int
) -> None:
    parts = parts_of(Shape(rows, tokens, 1, masked=False), workers)
    assert [row for part in parts for row in part] == list(range(rows))
    lengths = {len(part) for part in parts}
    assert max(lengths) - min(lengths) <= 1
    if len(parts) > 1:
        assert rows * tokens / len(parts) >= FEWEST_TOKENS
    assert min(lengths) == 1 or min(lengths) * tokens <= PART_TOKENS
    enough = rows * tokens >= workers * FEWEST_TOKENS and rows >= len(parts) + workers
    assert not enough or len(parts) % workers == 0


def test_a_large_batch_is_parts_for_each_worker() -> None:
    parts = parts_of(Shape(64, 122, 1, masked=False), 2)
    assert parts == [range(i, i + 4) for i in range(0, 64, 4)]
    assert parts_of(Shape(1, 14, 1, masked=False), 2) == [range(1)]
