"""Prefixes: a stored beginning is that of the prompt, whatever was stored and given up before.

Here: against a naive model, with caches that hold what each position must hold; then with real
ones. Storing and restoring are synchronous, so no cancellation can come in between. Not here:
snapshots as such (test_snapshots.py), files (test_prefix_files.py).
"""

from __future__ import annotations

import threading
import zlib
from array import array
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from models.kv.running import PLACES, decoding, generated, prompt

import aggml
from aggml.models.kv import prefixes as prefixes_module
from aggml.models.kv.paging import PAGE
from aggml.models.kv.prefixes import LEAST_END, Prefixes
from aggml.models.kv.snapshots import CacheForm, Snapshot, blank

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

ROWS = "llama-wide-heads"
KINDS = [ROWS, "gemma3", "deepseek2", "mamba2", "rwkv7", "qwen3next", "granitehybrid"]


class Read:
    """A future that the test ends, by setting ``over``."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self.error: Exception | None = None

    @property
    def over(self) -> bool:
        return self._event.is_set()

    @over.setter
    def over(self, _: bool) -> None:
        self._event.set()

    def wait(self) -> bool:
        return self._event.wait(60)

    def done(self) -> bool:
        return self.over

    def exception(self) -> Exception | None:
        return self.error


def value(tokens: Sequence[int], about: str) -> int:
    """What a row holds, a byte: it depends on all tokens so far."""
    return zlib.crc32(array("i", tokens).tobytes(), len(about)) & 255


class FakeDecoder:
    """Caches of two layers; a position's bytes tell which tokens came before it.

    Args:
        rows: whether there are keys and values.
        states: whether there are states.
    """

    def __init__(self, *, rows: bool, states: bool) -> None:
        self.form = CacheForm((("f16", 8), ("f16", 4)) if rows else (), (16, 32) if states else ())
        self.kept_as = "fake"
        self.grows, self.has_states = rows, states
        self.now: tuple[list[int], str] = ([], "")  # what the slot has processed
        self.reads: list[Read] = []
        self.loaded: dict[int, int] = {}  # position: byte
        self.state: tuple[int, int] | None = None  # position, byte
        self.lost = 1 << 60  # rows from there on are not good

    def savable(self, slot: int, n: int) -> int:
        return min(n, self.lost)

    def state_at(self, slot: int, at: int) -> bool:
        return self.has_states and at == len(self.now[0]) and at <= self.lost

    def save(
        self, slot: int, first: int, n: int, *, states: bool = False, into: Any = None
    ) -> Snapshot:
        tokens, about = self.now
        rows, kept = blank(self.form, n if into is None else 0, states=states)
        rows = rows if into is None else into
        for i in range(n):
            byte = value(tokens[: first + i + 1], about)
            for piece, (_, row) in zip(rows, self.form.rows, strict=True):
                piece[i * row : (i + 1) * row] = byte
        for state in kept or ():
            state[:] = value(tokens[: first + n], about)
        self.reads.append(Read())
        reads: Any = [self.reads[-1]]
        return Snapshot(self.form, first, n, rows, kept, reads)

    def load(self, slot: int, snapshot: Snapshot) -> list[Any]:
        assert snapshot.good
        for i in range(snapshot.n):
            found = {
                byte
                for piece, (_, row) in zip(snapshot.rows, self.form.rows, strict=True)
                for byte in piece[i * row : (i + 1) * row].tolist()
            }
            if found:
                (self.loaded[snapshot.first + i],) = found
        if snapshot.states is not None:
            (byte,) = {x for state in snapshot.states for x in state.tolist()}
            self.state = snapshot.end, byte
        return []


prompts = st.tuples(
    st.lists(st.sampled_from([0, 1]), min_size=0, max_size=5),  # which block comes next
    st.integers(0, 70),  # how many more tokens
    st.sampled_from(["", "adapter"]),
)
acts = st.one_of(
    st.tuples(st.just("keep"), prompts, st.booleans()),
    st.tuples(st.just("ask"), prompts, st.booleans()),
    st.tuples(st.just("end"), st.integers(0, 3), st.booleans()),
    st.tuples(st.just("clear"), st.integers(0, 3), st.booleans()),
)


def tokens_of(drawn: tuple[list[int], int, str]) -> list[int]:
    """Blocks of 45 tokens, so that ends lie anywhere in a page, and a few more."""
    blocks, more, _ = drawn
    return [t for block in blocks for t in [block] * 45] + [7] * more


def check_restored(fake: FakeDecoder, tokens: list[int], about: str, n: int) -> None:
    """What was loaded is what these tokens give, all of it and nothing else."""
    if fake.grows:
        assert sorted(fake.loaded) == [*range(n)]
    for at, byte in fake.loaded.items():
        assert byte == value(tokens[: at + 1], about), at
    if fake.has_states:
        assert fake.state == ((n, value(tokens[:n], about)) if n else None)


@pytest.mark.long(cases=3)
@pytest.mark.parametrize(
    ("rows", "states"), [(True, False), (False, True), (True, True)], ids=["rows", "states", "both"]
)
@pytest.mark.parametrize("budget", [0, 900, 3000, 8000, 1 << 30])
@settings(max_examples=60)
@given(done=st.lists(acts, max_size=30))
def test_it_finds_what_a_naive_model_finds(
    rows: bool, states: bool, budget: int, done: list[tuple[str, Any, bool]]
) -> None:
    fake: Any = FakeDecoder(rows=rows, states=states)
    stored = Prefixes(fake, budget)
    naive: list[tuple[list[int], str, list[Read]]] = []  # beginnings that may be restored
    for act, what, flag in done:
        if act == "keep":
            tokens, about = tokens_of(what), what[2]
            fake.now = tokens, about
            before = len(fake.reads)
            n = stored.keep(tokens, 0, states=flag, tail=flag, about=about)
            assert n <= len(tokens)
            new = fake.reads[before:]
            if states:
                if flag and tokens:
                    naive.append((tokens, about, new))
            else:
                naive += [(tokens[:end], about, new) for end in range(PAGE, len(tokens) + 1, PAGE)]
                if flag:
                    behind = len(tokens) // PAGE * PAGE + LEAST_END
                    naive += [(tokens[:n], about, new) for n in range(behind, len(tokens) + 1)]
            if budget == 1 << 30:
                for read in new:
                    read.error = ValueError() if what[1] == 70 else None
                    read.over = True
        elif act == "ask":
            tokens, about = tokens_of(what), what[2]
            fake.loaded, fake.state = {}, None
            found = stored.match(tokens, about=about)
            assert stored.restore(tokens, 0, about=about) == found
            check_restored(fake, tokens, about, found)
            fits = [
                len(begin)
                for begin, of, _ in naive
                if of == about and len(begin) < len(tokens) and tokens[: len(begin)] == begin
            ]
            assert found in (0, *fits)
            assert found <= max(len(tokens) - 1, 0)
        elif act == "end":
            for read in fake.reads:
                if not read.over:
                    read.error = ValueError() if flag else None
                    read.over = True
                    break
        elif flag:
            stored.clear()
            naive.clear()
            assert len(stored) == stored.nbytes == 0
        assert stored.nbytes <= budget
        assert stored.nbytes == sum(node.nbytes for node in stored._nodes.values())
        used = [node.page for node in stored._nodes.values() if node.page is not None]
        assert len(used) == len({*used})
        assert len(used) + stored._memory.free == budget // stored._page_bytes
        assert all(node.pins == 0 for node in stored._nodes.values())
        assert all(
            node.parent is not None and node in node.parent.children
            for node in stored._nodes.values()
        )


@pytest.mark.long(cases=1)
@pytest.mark.parametrize(
    ("rows", "states"), [(True, False), (False, True), (True, True)], ids=["rows", "states", "both"]
)
@settings(max_examples=80)
@given(kept=st.lists(prompts, max_size=8), asked=st.lists(prompts, min_size=1, max_size=8))
def test_the_longest_match_wins(
    rows: bool, states: bool, kept: list[Any], asked: list[Any]
) -> None:
    """With room for all, and all of it read."""
    fake: Any = FakeDecoder(rows=rows, states=states)
    stored = Prefixes(fake, 1 << 30)
    for drawn in kept:
        fake.now = tokens_of(drawn), drawn[2]
        n = stored.keep(fake.now[0], 0, states=True, tail=True, about=drawn[2])
        assert len(fake.now[0]) - n < (1 if states else LEAST_END)
        for read in fake.reads:
            read.over = True
    for drawn in [*asked, *((x[0], x[1] + 1, x[2]) for x in kept)]:
        tokens, about = tokens_of(drawn), drawn[2]
        wanted = 0
        for begin, of in ((tokens_of(x), x[2]) for x in kept):
            behind = len(begin) // PAGE * PAGE + LEAST_END
            pages = [*range(0, len(begin) + 1, PAGE), *range(behind, len(begin) + 1)]
            for end in [len(begin)] if states else pages:
                if of == about and end < len(tokens) and tokens[:end] == begin[:end]:
                    wanted = max(wanted, end)
        assert stored.match(tokens, about=about) == wanted
        fake.loaded, fake.state = {}, None
        assert stored.restore(tokens, 0, about=about) == wanted
        check_restored(fake, tokens, about, wanted)
    assert stored.hits <= stored.queries


def kept_in(budget: int, *, rows: bool = True, states: bool = False) -> tuple[Any, Prefixes]:
    fake: Any = FakeDecoder(rows=rows, states=states)
    return fake, Prefixes(fake, budget)


def keep(fake: FakeDecoder, stored: Prefixes, tokens: list[int], **options: Any) -> None:
    """Store a beginning, and let all of it be read."""
    fake.now = tokens, options.get("about", "")
    stored.keep(tokens, 0, **options)
    for read in fake.reads:
        read.over = True


def test_the_last_token_is_always_computed() -> None:
    fake, stored = kept_in(1 << 20)
    tokens = prompt(4 * PAGE, 1)
    keep(fake, stored, tokens)
    assert stored.match(tokens) == 3 * PAGE
    assert stored.match([*tokens, 5]) == 4 * PAGE
    assert stored.match(tokens[:PAGE]) == stored.match([]) == 0
    both, exact = kept_in(1 << 20, states=True)
    keep(both, exact, tokens, states=True)
    assert exact.match(tokens) == 0  # the only end is behind its last token
    assert exact.match([*tokens, 5]) == 4 * PAGE


def test_tails_go_before_heads_and_the_least_recently_used_beginning_first() -> None:
    fake, stored = kept_in(6 * PAGE * 16)
    a, b, c = (prompt(3 * PAGE + 1, seed) for seed in (1, 2, 3))
    keep(fake, stored, a)
    keep(fake, stored, b)
    assert [stored.match(x) for x in (a, b, c)] == [3 * PAGE, 3 * PAGE, 0]
    stored.restore(a, 0)
    keep(fake, stored, c[: 2 * PAGE])
    assert [stored.match(x) for x in (a, b, c)] == [3 * PAGE, PAGE, 2 * PAGE]
    keep(fake, stored, prompt(9 * PAGE, 4))  # more than the budget: its head is stored
    assert [stored.match(x) for x in (a, b, c)] == [0, 0, 0]
    assert stored.match(prompt(9 * PAGE, 4)) == 6 * PAGE
    assert stored.nbytes == stored.budget


def test_an_end_without_states_serves_as_far_as_a_prompt_has_its_tokens() -> None:
    """It takes the place of shorter ones, is not kept twice, and goes when memory is short."""
    fake, stored = kept_in(1 << 20)
    tokens = prompt(PAGE + 50, 1)
    keep(fake, stored, tokens[: PAGE + 30], tail=True)
    assert stored.match([*tokens[: PAGE + 20], 1, 2]) == PAGE + 20
    assert stored.match([*tokens[: PAGE + LEAST_END - 1], 1, 2]) == PAGE
    keep(fake, stored, tokens, tail=True)
    assert len(stored) == 2  # the page and the longer end
    reads = len(fake.reads)
    keep(fake, stored, tokens[: PAGE + 40], tail=True)
    assert len(fake.reads) == reads
    assert stored.match([*tokens, 1]) == PAGE + 50
    stored.shrink(stored.nbytes - 1)
    assert stored.match([*tokens, 1]) == PAGE
    keep(fake, stored, prompt(LEAST_END - 1, 2), tail=True)  # too short to be worth it
    assert len(stored) == 1
    stored.shrink(0)
    assert not stored._tails


def test_what_is_being_read_is_pending_and_not_matched() -> None:
    fake, stored = kept_in(1 << 20)
    tokens = fake.now[0]
    tokens += prompt(3 * PAGE, 1)
    stored.keep(tokens[: 2 * PAGE], 0)
    stored.keep(tokens, 0)
    asked = [*tokens, 3]
    assert stored.match(asked) == stored.restore(asked, 0) == 0
    first = stored.pending(asked)
    assert first is not None
    fake.reads[0].over = True
    assert not first.good
    assert stored.match(asked) == 2 * PAGE
    last = stored.pending(asked)
    assert last is first  # the one that is done last
    fake.reads[1].error = ValueError("lost")
    fake.reads[1].over = True
    assert stored.match(asked) == 2 * PAGE
    assert stored.pending(asked) is None
    keep(fake, stored, tokens)  # once more
    assert stored.match(asked) == 3 * PAGE


def test_rows_that_a_failed_step_left_are_not_stored() -> None:
    fake, stored = kept_in(1 << 20, states=True)
    tokens = prompt(3 * PAGE, 1)
    fake.lost = 2 * PAGE + 5
    keep(fake, stored, tokens, states=True)
    assert len(stored) == 2  # pages; no states
    assert stored.match([*tokens, 1]) == 0


def test_tokens_are_compared_even_if_all_hashes_are_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefixes_module, "_hash", lambda parent, own: b"h" * len(own[:3]))
    for rows, states in ((True, False), (False, True), (True, True)):
        fake, stored = kept_in(1 << 20, rows=rows, states=states)
        for seed in range(6):
            tokens = prompt(PAGE + 9 * seed, seed)
            keep(fake, stored, tokens, states=True, tail=True)
            for other in range(6):
                asked = prompt(PAGE + 9 * other, other)
                fake.loaded, fake.state = {}, None
                n = stored.restore([*asked, 1], 0)
                check_restored(fake, asked, "", n)


def test_consecutive_pages_are_loaded_with_one_transfer() -> None:
    fake, stored = kept_in(1 << 20)
    tokens = prompt(8 * PAGE + 1, 1)
    loads = []

    def load(slot: int, snapshot: Snapshot) -> list[Any]:
        loads.append(snapshot.n)
        return []

    fake.load = load
    for end in (2 * PAGE, 5 * PAGE, 8 * PAGE):  # as the prompt proceeds
        keep(fake, stored, tokens[:end])
    assert len(fake.reads) == 3
    assert stored.restore(tokens, 0) == 8 * PAGE
    assert loads == [8 * PAGE]


@pytest.mark.parametrize("states", [False, True])
def test_a_beginning_of_many_pages_is_stored_and_given_up(states: bool) -> None:
    fake, stored = kept_in(2 << 20, rows=not states, states=states)
    tokens = [1] * (1100 * PAGE + 1)
    fake.now = tokens, ""

    def save(slot: int, first: int, n: int, **_: Any) -> Snapshot:
        fake.reads.append(Read())
        rows, kept = blank(fake.form, n, states=states)
        return Snapshot(fake.form, first, n, rows, kept, [fake.reads[-1]])

    fake.save = save
    stored.keep(tokens, 0, states=states)
    assert len(stored) == 1100 + states
    fake.reads[0].error = ValueError("lost")
    fake.reads[0].over = True
    assert stored.match([*tokens, 1]) == 0
    keep(fake, stored, tokens, states=states)
    assert stored.match([*tokens, 1]) == (1100 * PAGE + 1 if states else 1100 * PAGE)
    assert stored._make_room(stored.budget)
    assert len(stored) == stored.nbytes == 0


def test_a_budget_below_zero_is_refused() -> None:
    with pytest.raises(aggml.InvalidArgument, match=r"budget=-1 is negative"):
        kept_in(-1)


# -- with a model


@pytest.mark.long(cases=3)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("layout", KINDS)
async def test_a_restored_beginning_gives_the_tokens_that_computing_gives(
    tmp_path: Path, layout: str, place: str
) -> None:
    begin = prompt(150, 1)
    async with decoding(tmp_path, layout, place=place) as decoder:
        stored = Prefixes(decoder, 16 << 20)
        first = await generated(decoder, 0, begin, 0, 7)
        turn = [*begin, *first, *prompt(20, 2)]  # the next turn of a conversation
        wanted = await generated(decoder, 1, turn, 0, 10)
        assert await generated(decoder, 0, begin, 0, 7) == first
        processed = [*begin, *first[:-1]]
        stored.keep(processed, 0, states=True)
        pending = stored.pending(turn)
        if pending is not None:
            await pending.wait_until_done()
        n = 156 if decoder.has_states else 128
        assert stored.match(turn) == n
        assert stored.restore(turn, 2) == n
        assert await generated(decoder, 2, turn[n:], n, 10) == wanted
        assert (stored.queries, stored.hits) == (len(turn), n)


@pytest.mark.long(cases=1)
@pytest.mark.parametrize("cache", ["f16", "f32", "q8_0"])
async def test_beginnings_share_pages_and_stay_whole(tmp_path: Path, cache: str) -> None:
    """Random prompts with common beginnings through a small store; all tokens as computed."""
    random = np.random.default_rng(5)
    begins = [prompt(n, n) for n in (70, 130, 200)]
    async with decoding(tmp_path, ROWS, cache=cache) as decoder:
        stored = Prefixes(decoder, 5 * (decoder.page_bytes() + 256))
        for _ in range(30):
            begin = begins[random.integers(3)]
            ids = [
                *begin[: random.integers(1, len(begin) + 1)],
                *prompt(5, int(random.integers(9))),
            ]
            wanted = await generated(decoder, 0, ids, 0, 3)
            n = stored.restore(ids, 1)
            assert await generated(decoder, 1, ids[n:], n, 3) == wanted
            stored.keep([*ids, *wanted[:-1]], 1)
            assert stored.nbytes <= stored.budget
        assert stored.hits > 0
