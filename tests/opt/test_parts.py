"""Data sets, the numbers of optimizers, results with uncertainties, the line of progress.

Not here: training (test_training.py).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import aggml
from aggml import opt

WRONG: Any = 0.5


def test_batches_have_all_data_points_once_in_the_order_of_the_index() -> None:
    x, y = np.arange(24).reshape(12, 2), np.arange(12)
    data = opt.Dataset(x, y, shard=2)
    assert len(data) == 12
    data.shuffle(np.random.default_rng(5))
    batches = [data.batch(i, 4) for i in range(3)]
    labels = np.concatenate([b for _, b in batches if b is not None])
    assert np.array_equal(labels, data.order)
    assert sorted(labels) == list(range(12))
    assert list(labels) != list(range(12))
    assert np.array_equal(labels[1::2], labels[::2] + 1)  # shards stay together
    assert np.array_equal(np.concatenate([a for a, _ in batches]), x[labels])


def test_a_shuffle_of_the_first_data_points_leaves_the_others() -> None:
    data = opt.Dataset(np.arange(10))
    data.shuffle(np.random.default_rng(1), 6)
    assert list(data.order[6:]) == [6, 7, 8, 9]
    assert sorted(data.order[:6]) == list(range(6))
    again = opt.Dataset(np.arange(10))
    again.shuffle(np.random.default_rng(1), 6)
    assert np.array_equal(again.order, data.order)


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: opt.Dataset([]), aggml.InvalidArgument, "no data point"),
        (lambda: opt.Dataset([[1], [2, 3]]), aggml.InvalidHandle, "data is no array"),
        (lambda: opt.Dataset("text"), aggml.InvalidHandle, "data = 'text'"),
        (lambda: opt.Dataset(np.zeros(4), np.zeros(3)), aggml.LayoutMismatch, "3 labels for 4"),
        (lambda: opt.Dataset(np.zeros(4), shard=3), aggml.InvalidArgument, "shard = 3"),
        (lambda: opt.Dataset(np.zeros(4), shard=WRONG), aggml.InvalidHandle, "shard = 0.5"),
        (lambda: opt.Dataset(np.zeros(4)).batch(2, 2), aggml.OutOfBounds, "batch 2 of 2"),
        (lambda: opt.Dataset(np.zeros(4)).batch(-1, 2), aggml.OutOfBounds, "batch -1"),
        (lambda: opt.Dataset(np.zeros(4), shard=2).batch(0, 1), aggml.InvalidArgument, "size = 1"),
        (lambda: opt.Dataset(np.zeros(4)).shuffle(WRONG), aggml.InvalidHandle, "rng = 0.5"),
        (
            lambda: opt.Dataset(np.zeros(4)).shuffle(np.random.default_rng(), 5),
            aggml.OutOfBounds,
            "n = 5 of 4",
        ),
        (
            lambda: opt.Dataset(np.zeros(4), shard=2).shuffle(np.random.default_rng(), 3),
            aggml.InvalidArgument,
            "n = 3 cuts",
        ),
    ],
)
def test_data_sets_that_cannot_be_are_refused(make: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=rf"\[Dataset.*{text}"):
        make()


def test_the_seven_numbers_of_adamw() -> None:
    adamw = opt.AdamW(alpha=0.5, beta1=0.75, beta2=0.5, eps=0.25, wd=0.125)
    assert list(adamw.numbers(1)) == [0.5, 0.75, 0.5, 0.25, 0.125, 4.0, 2.0]
    np.testing.assert_allclose(adamw.numbers(3)[5:], [1 / (1 - 0.75**3), 1 / (1 - 0.5**3)])
    np.testing.assert_allclose(opt.AdamW().numbers(10**6)[5:], [1, 1])
    assert list(opt.SGD(alpha=0.5, wd=0.25).numbers(9)) == [0.5, 0.25]


@pytest.mark.parametrize("step", [0, -1, 1.5, "1", True])
def test_steps_count_from_one(step: Any) -> None:
    with pytest.raises(aggml.InvalidArgument, match="step = "):
        opt.AdamW().numbers(step)


@pytest.mark.parametrize(
    ("optimizer", "options"),
    [
        (opt.AdamW, {"alpha": 0}),
        (opt.AdamW, {"beta1": 1.5}),
        (opt.AdamW, {"beta2": -0.1}),
        (opt.AdamW, {"eps": -1e-8}),
        (opt.AdamW, {"wd": 2}),
        (opt.AdamW, {"alpha": math.nan}),
        (opt.AdamW, {"alpha": math.inf}),
        (opt.SGD, {"alpha": -1}),
        (opt.SGD, {"wd": 1.01}),
        (opt.SGD, {"alpha": "0.1"}),
        (opt.SGD, {"alpha": True}),
    ],
)
def test_numbers_out_of_range_are_refused_by_name(optimizer: Any, options: dict[str, Any]) -> None:
    (name,) = options
    with pytest.raises(aggml.InvalidArgument, match=rf"\[{optimizer.__name__}\] {name} = "):
        optimizer(**options)


def test_results_have_means_and_standard_errors() -> None:
    results = opt.Results()
    assert results.loss.value == 0
    assert math.isnan(results.loss.uncertainty)
    assert math.isnan(results.accuracy.value)
    losses = [1.0, 2.0, 4.0, 3.0]
    for loss in losses:
        results.add(5, loss, predictions=np.array([1, 0, 1, 1, 2], np.int32), n_correct=3)
    assert results.n == 20
    assert results.loss.value == 2.5
    np.testing.assert_allclose(results.loss.uncertainty, np.std(losses, ddof=1) / 2)
    assert results.accuracy.value == 0.6
    np.testing.assert_allclose(results.accuracy.uncertainty, math.sqrt(0.6 * 0.4 / 19))
    assert results.predictions.shape == (20,)
    assert "accuracy 60.00 %" in repr(results)
    results.reset()
    assert (results.n, results.losses, results.predictions.size) == (0, [], 0)


def test_the_results_of_a_sum_are_added() -> None:
    results = opt.Results()
    for loss in (1.0, 2.0, 4.0):
        results.add(5, loss, per_datapoint=False)
    assert results.loss.value == 7.0
    np.testing.assert_allclose(results.loss.uncertainty, np.std([1, 2, 4], ddof=1) * math.sqrt(3))


def test_the_line_of_progress(capsys: pytest.CaptureFixture[str]) -> None:
    results = opt.Results()
    results.add(4, 1.5, n_correct=3)
    told: Any = object()
    opt.progress_bar(opt.TrainingProgress(told, True, 2, 3, 1, 2, results, 4.0))
    opt.progress_bar(opt.TrainingProgress(told, False, 2, 3, 2, 2, results, 4.0))
    first, second = capsys.readouterr().err.split("\r")[1:]
    assert first.startswith(
        "train 2/3 [████    ] 1/2 loss=1.50000±nan acc=75.00±25.00% t=4s ETA=4s"
    )
    assert second.startswith("val 2/3 [████████] 2/2 ")
    assert second.endswith("\n")
