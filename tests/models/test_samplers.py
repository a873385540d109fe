"""Samplers on the host: each compared with another implementation, and with its distribution.

Not here: draws on the device (engine/), penalties and biases in these (test_text_model.py).
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import aggml
from aggml.models import TextModel
from aggml.models.decoder.adjusting import Adjuster, Rules
from aggml.models.decoder.chain import STEPS, Chain, ChainDraw
from aggml.models.decoder.sampling import Sampler
from aggml.models.small import write_small

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

N = 40  # tokens
DRAWS = 1200
#: The least and the greatest chi-square value for each number of outcomes that 1 of 10^6 exceeds,
#: by Wilson and Hilferty 1931.
Z = 4.75


def logits_of(seed: int, n: int = N) -> np.ndarray[Any, np.dtype[np.float32]]:
    return (2.0 * np.random.default_rng(seed).standard_normal(n)).astype(np.float32)


def softmax(x: list[float]) -> list[float]:
    most = max(x)
    found = [math.exp(y - most) for y in x]
    return [y / math.fsum(found) for y in found]


def by_hand(
    logits: list[float], chain: Chain, temperature: float, top_k: int, top_p: float, min_p: float,
    *, xtc: bool,
) -> dict[int, float]:  # fmt: skip
    """The probability of each token, by lists and loops, step by step."""
    now = sorted(enumerate(logits), key=lambda x: (-x[1], x[0]))
    for step in chain.steps:
        values = [x for _, x in now]
        share = softmax(values)
        if step == "top_k" and top_k:
            now = now[:top_k]
        elif step == "top_n_sigma" and chain.top_n_sigma > 0:
            mean = math.fsum(values) / len(values)
            sigma = math.sqrt(math.fsum((x - mean) ** 2 for x in values) / len(values))
            now = [x for x in now if x[1] >= values[0] - chain.top_n_sigma * sigma]
        elif step == "top_p" and top_p < 1:
            total, kept = 0.0, 0
            while total < top_p and kept < len(now):
                total += share[kept]
                kept += 1
            now = now[:kept]
        elif step == "min_p" and min_p > 0:
            now = [x for x, p in zip(now, share, strict=True) if p >= min_p * share[0]]
        elif step == "typical_p" and chain.typical_p < 1:
            entropy = -math.fsum(p * math.log(p) for p in share)
            order = sorted(range(len(now)), key=lambda i: abs(-math.log(share[i]) - entropy))
            total, chosen = 0.0, []
            for i in order:
                chosen.append(i)
                total += share[i]
                if total > chain.typical_p:
                    break
            now = [now[i] for i in sorted(chosen)]
        elif step == "xtc" and xtc:
            above = [i for i, p in enumerate(share) if p >= chain.xtc_threshold]
            now = now[above[-1] :] if len(above) > 1 else now
        elif step == "temperature":
            heat = temperature
            if chain.dynatemp_range > 0 and len(now) > 1:
                entropy = -math.fsum(p * math.log(p) for p in share) / math.log(len(now))
                low = max(0.0, temperature - chain.dynatemp_range)
                heat = low + (temperature + chain.dynatemp_range - low) * (
                    entropy**chain.dynatemp_exponent
                )
            now = now[:1] if heat <= 0 else [(i, x / heat) for i, x in now]
    return dict(zip([i for i, _ in now], softmax([x for _, x in now]), strict=True))


CHAINS: dict[str, dict[str, Any]] = {
    "typical": {"typical_p": 0.6},
    "typical, nearly all": {"typical_p": 0.98},
    "top-n-sigma": {"top_n_sigma": 1.0},
    "top-n-sigma, narrow": {"top_n_sigma": 0.2},
    "dynamic temperature": {"dynatemp_range": 0.5},
    "dynamic temperature from 0": {"dynatemp_range": 3.0, "dynatemp_exponent": 2.0},
    "temperature first": {"steps": ("temperature", "top_k", "top_p")},
    "temperature first, then typical": {"steps": ("temperature", "typical_p"), "typical_p": 0.5},
    "min_p before top_p": {"steps": ("min_p", "top_p", "temperature")},
    "no step": {"steps": ()},
    "top_k alone": {"steps": ("top_k",)},
    "everything": {"typical_p": 0.9, "top_n_sigma": 1.5, "dynatemp_range": 0.3},
}  # fmt: skip


def check(found: list[int], wanted: dict[int, float]) -> None:
    """Compare draws with probabilities: those of which less than 5 are expected count together."""
    assert set(found) <= set(wanted)
    rare = 0.0
    statistic, groups = 0.0, 0
    seen_rare = 0
    for token, share in wanted.items():
        if share * len(found) < 5:
            rare += share
            seen_rare += found.count(token)
        else:
            groups += 1
            statistic += (found.count(token) - share * len(found)) ** 2 / (share * len(found))
    if rare * len(found) >= 1:
        groups += 1
        statistic += (seen_rare - rare * len(found)) ** 2 / (rare * len(found))
    freedom = groups - 1
    if freedom > 0:
        bound = freedom * (1 - 2 / (9 * freedom) + Z * math.sqrt(2 / (9 * freedom))) ** 3
        assert statistic < bound, (statistic, bound)


@pytest.mark.long(cases=4)
@pytest.mark.parametrize("name", CHAINS)
@pytest.mark.parametrize("temperature", [0.7, 1.5])
def test_draws_have_the_distribution_of_the_steps_by_hand(name: str, temperature: float) -> None:
    for seed in range(2):
        logits = logits_of(seed)
        chain = Chain(**CHAINS[name])
        wanted = by_hand(logits.tolist(), chain, temperature, 12, 0.9, 0.02, xtc=False)
        draw = ChainDraw(chain, lambda _: b"")
        numbers = np.random.default_rng(seed).random(DRAWS)
        found = [
            draw.draw(logits, None, [], (temperature, 12, 0.9, 0.02), float(x), 1.0)
            for x in numbers
        ]
        assert None not in found
        check([x for x in found if x is not None], wanted)


@pytest.mark.parametrize("threshold", [0.05, 0.1, 0.3])
def test_xtc_leaves_out_the_most_probable_tokens_as_often_as_it_says(threshold: float) -> None:
    logits = logits_of(3)
    chain = Chain(xtc_probability=0.4, xtc_threshold=threshold)
    draw = ChainDraw(chain, lambda _: b"")
    random = np.random.default_rng(1)
    with_it: list[int] = []
    without: list[int] = []
    for one, another in random.random((DRAWS, 2)).tolist():
        token = draw.draw(logits, None, [], (1.0, 0, 1.0, 0.0), one, another)
        assert token is not None
        (with_it if another < 0.4 else without).append(token)
    check(with_it, by_hand(logits.tolist(), chain, 1.0, 0, 1.0, 0.0, xtc=True))
    check(without, by_hand(logits.tolist(), chain, 1.0, 0, 1.0, 0.0, xtc=False))


def test_at_temperature_0_the_best_token_is_taken_of_those_that_are_left() -> None:
    logits = logits_of(5)
    order = np.argsort(-logits)
    greedy = (0.0, 40, 0.95, 0.0)
    plain = ChainDraw(Chain(typical_p=0.99), lambda _: b"")
    assert plain.draw(logits, None, [], greedy, 0.0, 1.0) in order[:3]
    first = ChainDraw(Chain(steps=("temperature",)), lambda _: b"")
    assert first.draw(logits, None, [], greedy, 0.999, 1.0) == order[0]
    logits[order[1]] = logits[order[0]]  # of equal ones the first
    assert first.draw(logits, None, [], greedy, 0.999, 1.0) == min(order[:2])


@pytest.mark.parametrize("bad", [np.nan, -np.inf])
def test_tokens_that_cannot_be_drawn_are_not_drawn(bad: float) -> None:
    logits = np.full(N, bad, np.float32)
    draw = ChainDraw(Chain(typical_p=0.5, mirostat=0), lambda _: b"")
    assert draw.draw(logits, None, [], (1.0, 0, 1.0, 0.0), 0.5, 1.0) is None
    logits[7] = -50.0
    assert draw.draw(logits, None, [], (1.0, 0, 1.0, 0.0), 0.5, 1.0) == 7
    logits[9] = np.inf
    assert draw.draw(logits, None, [], (1.0, 0, 1.0, 0.0), 0.5, 1.0) == 9


# -- repetitions


def dry_by_hand(
    logits: list[float], text: list[int], chain: Chain, breaks: set[int]
) -> list[float]:
    """For each token: the longest end of the text that stands before it somewhere, one by one."""
    found = list(logits)
    if chain.dry_range is not None and chain.dry_range >= 0:
        text = text[len(text) - min(len(text), chain.dry_range) :]
    for token in range(len(logits)):
        longest = 0
        if token in breaks:
            continue
        for at in range(1, len(text)):
            if text[at] != token:
                continue
            n = 0
            while n < at and text[at - 1 - n] == text[-1 - n] and text[-1 - n] not in breaks:
                n += 1
            longest = max(longest, n)
        if longest >= chain.dry_allowed_length:
            power = longest - chain.dry_allowed_length
            found[token] -= chain.dry_multiplier * chain.dry_base**power
    return found


@pytest.mark.parametrize("limit", [None, -1, 0, 5, 30])
def test_repetitions_are_punished_as_by_hand(limit: int | None) -> None:
    names = {i: f"t{i} ".encode() for i in range(12)} | {3: b"a:", 4: b"\n"}
    for seed in range(40):
        random = np.random.default_rng(seed)
        text = random.integers(0, int(random.integers(2, 9)), int(random.integers(1, 60))).tolist()
        chain = Chain(
            steps=("dry",), dry_multiplier=0.8, dry_range=limit, dry_base=1.5,
            dry_allowed_length=int(random.integers(1, 4)),
        )  # fmt: skip
        logits = logits_of(seed, 12)
        draw = ChainDraw(chain, names.__getitem__)
        at = np.arange(12)
        found = draw._without_repetition(at, logits.astype(np.float64), text)
        wanted = dry_by_hand(logits.tolist(), text, chain, {3, 4})
        np.testing.assert_allclose(found, wanted, rtol=1e-6)
        # The same in two calls, as the text grows.
        grown = ChainDraw(chain, names.__getitem__)
        grown._without_repetition(at, logits.astype(np.float64), text[: len(text) // 2])
        again = grown._without_repetition(at, logits.astype(np.float64), text)
        np.testing.assert_array_equal(again, found)


def test_a_breaker_that_two_tokens_share_breaks_a_repetition() -> None:
    names = {0: b"a", 1: b"E", 2: b"ND", 3: b"b"}
    chain = Chain(dry_multiplier=1.0, dry_breakers=("END",), dry_allowed_length=1)
    zeros = np.zeros(4)
    held = ChainDraw(chain, names.__getitem__)._without_repetition(
        np.arange(4), zeros, [0, 1, 2, 3, 0, 1, 2]
    )
    assert (held == 0).all()
    free = ChainDraw(replace(chain, dry_breakers=()), names.__getitem__)._without_repetition(
        np.arange(4), zeros, [0, 1, 2, 3, 0, 1, 2]
    )
    assert free[3] < 0


def test_a_repetition_of_any_length_has_a_finite_penalty() -> None:
    chain = Chain(dry_multiplier=1e30, dry_base=1e6)
    found = ChainDraw(chain, lambda _: b"a")._without_repetition(
        np.arange(3), np.zeros(3), [1] * 3000
    )
    assert np.isfinite(found).all()
    assert found[1] < -1e29


# -- mirostat


def test_mirostat_2_draws_below_its_bound_and_adapts_it() -> None:
    chain = Chain(mirostat=2, mirostat_tau=3.0, mirostat_eta=0.2)
    draw = ChainDraw(chain, lambda _: b"")
    bound = 6.0
    random = np.random.default_rng(2)
    for i in range(300):
        logits = logits_of(i)
        one = float(random.random())
        order = sorted(range(N), key=lambda t: (-float(logits[t]), t))
        share = softmax([float(logits[t]) / 0.9 for t in order])
        kept = [p for p in share if -math.log2(p) <= bound] or share[:1]
        kept = [p / math.fsum(kept) for p in kept]
        total, at = 0.0, 0
        while at < len(kept) - 1 and total + kept[at] <= one:
            total += kept[at]
            at += 1
        assert draw.draw(logits, None, [], (0.9, 5, 0.1, 0.5), one, 1.0) == order[at]
        bound -= 0.2 * (-math.log2(kept[at]) - 3.0)
        assert draw._surprise == pytest.approx(bound, rel=1e-6)


def test_mirostat_1_draws_among_as_many_as_its_formula_says() -> None:
    chain = Chain(mirostat=1, mirostat_tau=2.5, mirostat_eta=0.1)
    draw = ChainDraw(chain, lambda _: b"")
    bound = 5.0
    random = np.random.default_rng(4)
    for i in range(200):
        logits = logits_of(i, 300)
        one = float(random.random())
        order = sorted(range(300), key=lambda t: (-float(logits[t]), t))
        share = softmax([float(logits[t]) for t in order])
        top = bottom = 0.0
        for j in range(100):
            t = math.log((j + 2) / (j + 1))
            top += t * math.log(share[j] / share[j + 1])
            bottom += t * t
        steep = top / bottom
        over = steep - 1
        k = int(((over * 2**bound) / (1 - 300**-over)) ** (1 / steep))
        kept = share[: max(1, min(k, 300))]
        kept = [p / math.fsum(kept) for p in kept]
        total, at = 0.0, 0
        while at < len(kept) - 1 and total + kept[at] <= one:
            total += kept[at]
            at += 1
        assert draw.draw(logits, None, [], (1.0, 5, 0.1, 0.5), one, 1.0) == order[at]
        bound -= 0.1 * (-math.log2(kept[at]) - 2.5)


# -- penalties in their place


def test_penalties_apply_where_they_stand_in_the_order() -> None:
    rules = Rules(presence=3.0, frequency=1.0, repetition=1.5, bias={2: 1.0})
    adjuster = Adjuster(rules, [1], ())
    for token in (0, 0, 4):
        adjuster.take(token)
    logits = np.array([5.0, 4.0, 3.0, 2.0, -1.0], np.float32)
    at = np.arange(5)
    biased = logits.copy()
    ids, new = adjuster.adjust(logits, penalties=False)
    biased[ids] = new
    assert biased.tolist() == [5.0, 4.0, 4.0, 2.0, -1.0]
    found = adjuster.penalize(at, biased.astype(np.float64))
    np.testing.assert_allclose(found, [5 / 1.5 - 2 - 3, 4 / 1.5, 4.0, 2.0, -1.5 - 1 - 3], rtol=1e-6)
    first = ChainDraw(Chain(steps=("penalties", "top_k")), lambda _: b"")
    last = ChainDraw(Chain(steps=("top_k", "penalties")), lambda _: b"")
    none = ChainDraw(Chain(steps=("top_k",)), lambda _: b"")
    one = (1.0, 1, 1.0, 0.0)
    assert first.draw(logits, adjuster, [], one, 0.0, 1.0) == 2
    assert last.draw(logits, adjuster, [], one, 0.0, 1.0) == 0
    assert none.draw(logits, adjuster, [], one, 0.0, 1.0) == 0


# -- with a model


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small(tmp_path_factory.mktemp("models") / "small.gguf")


@pytest.fixture
async def model(file: Path) -> AsyncIterator[TextModel]:
    async with aggml.models.load(file, ctx=512, slots=4) as loaded:
        assert isinstance(loaded, TextModel)
        yield loaded


async def ids_of(model: TextModel, **options: Any) -> list[int]:
    return [x.id async for x in model.generate("text", max_tokens=20, ignore_eos=True, **options)]


OPTIONS: list[dict[str, Any]] = [
    {"typical_p": 0.5}, {"top_n_sigma": 1.0}, {"xtc_probability": 0.5, "xtc_threshold": 0.02},
    {"dry_multiplier": 0.8}, {"dynatemp_range": 0.5}, {"mirostat": 1}, {"mirostat": 2},
    {"samplers": ["temperature", "top_k"]}, {"samplers": ["top_k", "typ_p", "temperature"]},
]  # fmt: skip


@pytest.mark.long(cases=1)
async def test_a_seed_gives_the_same_tokens_and_another_seed_others(model: TextModel) -> None:
    for more in OPTIONS:
        one = await ids_of(model, temperature=1.0, seed=5, **more)
        assert await ids_of(model, temperature=1.0, seed=5, **more) == one, more
        assert await ids_of(model, temperature=1.0, seed=6, **more) != one, more


@pytest.mark.long(cases=1)
async def test_the_usual_order_given_by_name_draws_what_the_device_draws(model: TextModel) -> None:
    for seed in range(5):
        options: dict[str, Any] = {"temperature": 0.8, "seed": seed, "frequency_penalty": 0.3,
                                   "top_k": 8, "min_p": 0.01}  # fmt: skip
        wanted = await ids_of(model, **options)
        # xtc at a probability that never comes makes the host draw, by the same steps.
        found = await ids_of(model, xtc_probability=1e-12, xtc_threshold=0.0, **options)
        assert found == wanted


async def test_who_uses_none_of_them_keeps_the_way_by_the_device(model: TextModel) -> None:
    stream = model.generate("text", max_tokens=4, temperature=1.0, dry_allowed_length=3,
                            xtc_threshold=0.2, mirostat_tau=2.0, samplers=list(STEPS))  # fmt: skip
    await anext(stream)
    request = stream._request
    assert request is not None
    assert not request.needs_logits
    assert isinstance(request.sampler, Sampler)
    assert request.sampler.chain is None
    await stream.aclose()


@pytest.mark.parametrize(
    "chain",
    [Chain(), Chain(typical_p=0.7), Chain(top_n_sigma=1.0), Chain(xtc_probability=1.0)],
)
def test_chances_are_those_with_which_tokens_are_drawn(chain: Chain) -> None:
    logits = logits_of(7)
    numbers = (0.7, 12, 0.9, 0.02)
    xtc = chain.xtc_probability > 0
    wanted = by_hand(logits.astype(float).tolist(), chain, *numbers, xtc=xtc)
    draw = ChainDraw(replace(chain, tells=True), lambda _: b"")
    token = draw.draw(logits, None, [], numbers, 0.6, 0.0, 5)
    ids, shares = draw.take_chances(5)
    assert token in ids
    assert dict(zip(ids.tolist(), shares, strict=True)) == pytest.approx(wanted, rel=1e-5)
    assert shares.tolist() == sorted(shares, reverse=True)


async def test_probabilities_after_sampling_are_told_if_they_are_asked_for(
    model: TextModel,
) -> None:
    options: dict[str, Any] = {"max_tokens": 6, "logprobs": 64, "post_sampling_probs": True}
    async for token in model.generate("a", **options, temperature=1.0, top_k=5, top_p=1.0, seed=3):
        assert token.top is not None
        chances = {x: math.exp(p) for x, p in token.top}
        assert len(chances) == 5
        assert math.fsum(chances.values()) == pytest.approx(1)
        assert token.logprob == dict(token.top)[token.id]
    async for token in model.generate("a", **options):  # the best token alone can be drawn
        assert (token.logprob, token.top) == (0.0, [(token.id, 0.0)])
    async for token in model.generate("a", **options, temperature=1.0, choices=["xyz"]):
        assert token.logprob == pytest.approx(0)
    plain = [x async for x in model.generate("a", max_tokens=2, logprobs=3)]
    assert all(len(x.top or ()) == 3 for x in plain)
