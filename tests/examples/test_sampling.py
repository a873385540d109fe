"""models/decoder/sampling.py: the next token of one sequence, and of many at once."""

from __future__ import annotations

import numpy as np

from aggml.models.decoder.sampling import Sampler, choose


def test_sampler_draws_from_the_best_only() -> None:
    logits = np.log(np.array([0.05, 0.5, 0.3, 0.15], np.float32))
    draws = [Sampler(1.0, top_k=0, top_p=0.79, seed=s)(logits) for s in range(50)]
    assert set(draws) == {1, 2}
    assert {Sampler(1.0, top_k=1, top_p=1.0, seed=s)(logits) for s in range(9)} == {1}
    sampler = Sampler(1.0, top_k=0, top_p=1.0, seed=0)
    share = np.bincount([sampler(logits) for _ in range(4000)], minlength=4) / 4000
    np.testing.assert_allclose(share, np.exp(logits), atol=0.03)
    hot = Sampler(100.0, top_k=0, top_p=1.0, seed=0)
    np.testing.assert_allclose(
        np.bincount([hot(logits) for _ in range(4000)]) / 4000, 0.25, atol=0.03
    )


def test_many_samplers_at_once_choose_what_each_would() -> None:
    random = np.random.default_rng(0)
    for _ in range(20):
        logits = random.normal(size=(12, 300), scale=3).astype(np.float32)
        samplers = [
            (
                float(random.choice([0.0, 0.5, 1.5])),
                int(random.choice([1, 5, 40])),
                float(random.choice([0.3, 0.9, 1.0])),
                int(random.integers(99)),
            )
            for _ in logits
        ]
        best = np.argsort(-logits, axis=1)[:, :64].astype(np.int32)
        best = random.permuted(best, axis=1)
        among = np.take_along_axis(logits, best, axis=1)
        chosen = choose([Sampler(*each) for each in samplers], best, among)
        assert chosen == [Sampler(*each)(row) for each, row in zip(samplers, logits, strict=True)]


def test_of_equal_logits_the_first_token_is_chosen() -> None:
    ids = np.array([[7, 3, 5], [4, 9, 2]], np.int32)
    logits = np.array([[1, 2, 2], [0, 0, 0]], np.float32)
    assert choose([Sampler(0.0)] * 2, ids, logits) == [3, 2]
    assert choose([Sampler(0.0), Sampler(1.0, top_k=1, seed=0)], ids, logits) == [3, 2]


def test_a_row_that_is_not_a_number_still_has_a_token() -> None:
    ids = np.arange(8, dtype=np.int32).reshape(2, 4)
    logits = np.array([[1, np.nan, 3, 2], [np.nan] * 4], np.float32)
    assert choose([Sampler(0.0)] * 2, ids, logits) == [2, 4]
    for token in choose([Sampler(1.0, seed=1)] * 2, ids, logits):
        assert token in ids
