"""models/decoder/adjusting.py and sampling.py: penalties, biases, bans, min_p, probabilities."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import aggml
from aggml.models.decoder.adjusting import Adjuster, Rules
from aggml.models.decoder.drawing import Draws
from aggml.models.decoder.sampling import Sampler, choose, report

VOCABULARY = 40
BEST = 8


def row_of(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(VOCABULARY).astype(np.float32) * 3


def by_hand(
    rules: Rules, prompt: list[int], made: list[int], ends: set[int], row: np.ndarray
) -> np.ndarray:
    """The adjusted logits, computed token by token as the documentation describes it."""
    found = row.astype(np.float64).copy()
    for token in range(len(row)):
        if rules.repetition != 1 and token in {*prompt, *made}:
            found[token] *= rules.repetition if found[token] <= 0 else 1 / rules.repetition
        found[token] += rules.bias.get(token, 0.0)
        found[token] -= rules.frequency * made.count(token)
        found[token] -= rules.presence * (token in made)
        if token in ends and len(made) < rules.least:
            found[token] = -math.inf
    return found


tokens = st.integers(0, VOCABULARY - 1)
penalties = st.floats(-2, 2, width=32)
rules_ = st.builds(
    Rules,
    presence=penalties,
    frequency=penalties,
    repetition=st.sampled_from([1.0, 0.5, 1.3, 4.0]),
    bias=st.dictionaries(tokens, st.floats(-100, 100, width=32), max_size=9),
    least=st.integers(0, 5),
)


@pytest.mark.long
@settings(max_examples=300, deadline=None)
@given(
    rules=rules_,
    prompt=st.lists(tokens, max_size=30),
    made=st.lists(tokens, max_size=10),
    ends=st.sets(tokens, max_size=3),
    seed=st.integers(0, 1000),
    need=st.integers(1, BEST),
)
def test_the_best_after_all_changes_are_those_of_the_whole_row(
    rules: Rules, prompt: list[int], made: list[int], ends: set[int], seed: int, need: int
) -> None:
    row = row_of(seed)
    adjuster = Adjuster(rules, prompt, ends)
    for token in made:
        adjuster.take(token)
    wanted = by_hand(rules, prompt, made, ends, row)
    ids = np.argsort(-row, kind="stable")[:BEST].astype(np.int32)
    found, logits = adjuster.best(row, ids, row[ids], need)
    assert found.shape == logits.shape == (BEST,)
    np.testing.assert_allclose(logits, wanted[found], atol=1e-4)
    finite = np.isfinite(logits)
    assert len(set(found[finite].tolist())) == np.count_nonzero(finite)
    best = np.sort(logits)[::-1][:need]
    np.testing.assert_allclose(best, np.sort(wanted)[::-1][:need], atol=1e-4)


def test_rules_that_change_nothing_are_none() -> None:
    assert not Rules()
    assert not Rules(bias={})
    assert Rules(presence=-0.5)
    assert Rules(least=1)


def test_a_sequence_may_be_long() -> None:
    """More tokens than the adjuster has room for at first."""
    adjuster = Adjuster(Rules(frequency=0.5), [], ())
    row = np.zeros(1000, np.float32)
    for token in [*range(500), *range(250)]:
        adjuster.take(token)
    ids, logits = adjuster.adjust(row)
    assert dict(zip(ids.tolist(), logits.tolist(), strict=True)) == {
        i: -1.0 if i < 250 else -0.5 for i in range(500)
    }


@pytest.mark.parametrize(("min_p", "kept"), [(0.0, 5), (0.05, 3), (0.5, 2), (1.0, 1)])
def test_min_p_leaves_what_is_probable_enough(min_p: float, kept: int) -> None:
    share = np.array([0.5, 0.3, 0.15, 0.02, 0.01])
    logits = np.log(share).astype(np.float32)
    ids = np.arange(5, dtype=np.int32)
    drawn, alone = set(), set()
    for seed in range(300):
        sampler = Sampler(1.0, 0, 1.0, seed, min_p)
        drawn.update(choose([sampler], ids[None], logits[None]))
        alone.add(Sampler(1.0, 0, 1.0, seed, min_p)(logits))
    assert drawn <= set(range(kept))
    assert alone <= set(range(kept))
    assert {0, kept - 1} <= drawn | alone


def test_a_seed_draws_the_same_whoever_is_beside() -> None:
    ids = np.arange(20, dtype=np.int32)
    rows = [np.random.default_rng(i).standard_normal(20).astype(np.float32) for i in range(12)]

    def drawn(others: int) -> list[int]:
        mine = Sampler(1.0, 0, 0.95, seed=7, min_p=0.02)
        found = []
        for row in rows:
            beside = [Sampler(1.0, seed=i) for i in range(others)]
            both = np.stack([row] * (1 + others))
            found.append(choose([*beside, mine], np.stack([ids] * (1 + others)), both)[-1])
        return found

    assert drawn(0) == drawn(3)
    assert len(set(drawn(0))) > 3


def test_probabilities_are_those_of_the_whole_row() -> None:
    row = row_of(3)
    wanted = row - math.log(float(np.exp(row.astype(np.float64)).sum()))
    ids = np.argsort(-row)[:BEST].astype(np.int32)
    told = report(row, ids[::-1], row[ids[::-1]], 5, 3)
    assert told.logprob == pytest.approx(wanted[5], abs=1e-5)
    assert [token for token, _ in told.best] == ids[:3].tolist()
    assert [p for _, p in told.best] == pytest.approx(wanted[ids[:3]].tolist(), abs=1e-5)


@pytest.mark.parametrize("n", [1, 63, 64, 65, 128, 129, 300, 1024, 1025, 2500])
@pytest.mark.parametrize("of", ["bias", "prompt", "made", "ends", "all"])
async def test_any_number_of_different_tokens_is_changed(n: int, of: str) -> None:
    """Beside numpy token by token: on the host, and by the op of the device."""
    random = np.random.default_rng(n)
    size = 3000

    def some(name: str) -> list[int]:
        return [int(t) for t in random.permutation(size)[: n if of in (name, "all") else 3]]

    bias = {token: float(random.uniform(-100, 100)) for token in some("bias")}
    prompt, made, ends = some("prompt") * 2, some("made"), {*some("ends")}
    rules = Rules(0.75, -0.5, 1.75, bias, least=len(made) + 1)
    row = random.standard_normal(size).astype(np.float32) * 5
    adjuster = Adjuster(rules, prompt, ends)
    for token in made:
        adjuster.take(token)
    seen, count = np.zeros(size, bool), np.bincount(made, minlength=size)
    seen[prompt], seen[made] = True, True
    wanted = np.where(seen, np.where(row > 0, row / 1.75, row * 1.75), row).astype(np.float64)
    wanted[list(bias)] += list(bias.values())
    wanted -= 0.75 * (count > 0) - 0.5 * count
    wanted[list(ends)] = -math.inf
    ids, logits = adjuster.adjust(row)
    assert len(set(ids.tolist())) == len(ids) == adjuster.changing
    assert {*ids.tolist()} == {*bias, *prompt, *made, *ends}
    np.testing.assert_allclose(logits, wanted[ids], atol=1e-4)
    found, best = adjuster.best(row, *top_of(row), need=1)
    assert found[np.argmax(best)] == np.argmax(wanted)
    drawn = Draws.of([Sampler(0)], 8, [adjuster])
    assert drawn.changing is not None
    assert drawn.changes is not None
    a = aggml.new_tensor("f32", ne=(size, 1))
    which = aggml.new_tensor("i32", ne=(drawn.changing.shape[1], 1))
    how = aggml.new_tensor("f32", ne=(drawn.changing.shape[1], 5, 1))
    y = aggml.ops.penalize(a, which, how)
    graph = aggml.Graph(y)
    async with aggml.get_device("CPU").backend(n_threads=1) as backend:
        backend.alloc_graph(graph)
        given = {a: row[None], which: drawn.changing, how: drawn.changes}
        device = np.asarray(await backend.run(graph, given, y)).reshape(-1)
    np.testing.assert_allclose(device, wanted, atol=1e-4)


def top_of(row: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    ids = np.argsort(-row, kind="stable")[:BEST].astype(np.int32)
    return ids, row[ids]
