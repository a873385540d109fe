"""Snapshots: what is taken out of a slot and put back gives the tokens that staying gives.

Here: `PagedDecoder.save` and `load`, steps and reads that fail, memory that is given back
meanwhile. Both are synchronous, so no cancellation can come in between. Not here: which snapshots
are stored (test_prefixes.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from models.kv.running import CTX, PLACES, contents, decoding, generated, prompt, queue_one

import aggml
from aggml.devices.sim import SimDevice
from aggml.models.engine.engine import Engine
from aggml.models.kv.snapshots import Snapshot
from aggml.models.kv.written import Written

if TYPE_CHECKING:
    from pathlib import Path

    from aggml.models.kv.paging import PagedDecoder

ROWS = "llama-wide-heads"
KINDS = [ROWS, "gemma3", "deepseek2", "mamba2", "rwkv7", "qwen3next", "granitehybrid"]


async def whole(decoder: PagedDecoder, slot: int, n: int) -> Snapshot:
    """A good snapshot of the first ``n`` positions of a slot, states included."""
    snapshot = decoder.save(slot, 0, n, states=True)
    await snapshot.wait_until_done()
    assert snapshot.good
    return snapshot


@pytest.mark.long(cases=5)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("layout", KINDS)
async def test_a_sequence_goes_on_in_another_slot_with_the_same_tokens(
    tmp_path: Path, layout: str, place: str
) -> None:
    ids = prompt(150, 1)
    async with decoding(tmp_path, layout, place=place) as decoder:
        wanted = await generated(decoder, 0, ids, 0, 20)
        begun = await generated(decoder, 0, ids, 0, 9)  # the ninth token is not processed
        snapshot = await whole(decoder, 0, len(ids) + 8)
        assert begun == wanted[:9]
        await generated(decoder, 0, prompt(170, 2), 0, 3)  # somebody else writes all over it
        decoder.load(2, snapshot)
        got = await contents(decoder, 2, 158)
        assert sorted(got) == sorted(piece.tobytes() for piece in snapshot.pieces())
        assert begun + await generated(decoder, 2, begun[-1:], len(ids) + 8, 11) == wanted


@pytest.mark.parametrize("cache", ["f16", "bf16", "f32", "q8_0", "q4_0"])
async def test_each_cache_type_comes_back_bit_for_bit(tmp_path: Path, cache: str) -> None:
    ids = prompt(200, 3)
    async with decoding(tmp_path, ROWS, cache=cache) as decoder:
        wanted = await generated(decoder, 1, ids, 0, 12)
        before = await contents(decoder, 1, 200)
        snapshot = await whole(decoder, 1, 200)
        assert snapshot.nbytes == 200 * decoder.page_bytes() // 64
        decoder.load(0, snapshot)
        assert await contents(decoder, 0, 200) == before
        assert await generated(decoder, 0, ids[199:], 199, 12) == wanted


async def test_parts_of_a_snapshot_are_loaded_without_a_copy(tmp_path: Path) -> None:
    ids = prompt(200, 4)
    async with decoding(tmp_path, ROWS) as decoder:
        await decoder.prefill(0, ids)
        wanted = await contents(decoder, 0, 200)
        snapshot = await whole(decoder, 0, 200)
        for first, n in ((128, 72), (0, 64), (64, 64)):
            part = snapshot.part(first, n)
            assert np.shares_memory(part.rows[0], snapshot.rows[0])
            assert part.good
            decoder.load(1, part)
        assert await contents(decoder, 1, 200) == wanted
        for first, n in ((-1, 2), (199, 2), (0, -1)):
            with pytest.raises(aggml.InvalidArgument, match=r"not among its positions, 0 to 200"):
                snapshot.part(first, n)


@pytest.mark.parametrize("layout", [ROWS, "mamba2", "granitehybrid"])
async def test_reads_come_behind_the_steps_queued_so_far_and_before_later_ones(
    tmp_path: Path, layout: str
) -> None:
    ids = prompt(100, 5)
    async with decoding(tmp_path, layout) as decoder:
        await decoder.prefill(1, ids[:99])
        await (await queue_one(decoder, 99, ids[99], 1))
        wanted = await contents(decoder, 1, 100)
        await decoder.prefill(0, ids[:99])
        with decoder.site.host.stream.hold():
            await queue_one(decoder, 99, ids[99])
            snapshot = decoder.save(0, 0, 100, states=True)
            await queue_one(decoder, 100, 1, chained=True)  # changes the state
            assert not snapshot.done
            assert snapshot.failed is None
            with pytest.raises(aggml.InvalidState, match="wait until it is done"):
                decoder.load(2, snapshot)
        await snapshot.wait_until_done()
        decoder.load(2, snapshot)
        assert await contents(decoder, 2, 100) == wanted


@pytest.mark.parametrize("layout", [ROWS, "mamba2", "granitehybrid"])
async def test_an_aborted_step_spoils_snapshots_of_its_positions_and_no_others(
    tmp_path: Path, layout: str
) -> None:
    ids = prompt(130, 6)
    async with decoding(tmp_path, layout) as decoder:
        await decoder.prefill(0, ids[:100])
        await decoder.prefill(1, ids[:100])
        before = decoder.save(0, 0, 100, states=True)
        with decoder.site.host.stream.hold():
            step = await queue_one(decoder, 100, ids[100])
            step.abort()
            spoiled = decoder.save(0, 0, 101, states=True)
            rows = decoder.save(0, 0, 100)  # the step does not write these
            other = decoder.save(1, 0, 100, states=True)
        await spoiled.wait_until_done()
        await other.wait_until_done()
        assert isinstance(spoiled.failed, aggml.Aborted)
        assert spoiled.part(0, 10).failed is spoiled.failed
        assert before.good
        assert rows.good
        assert other.good
        with pytest.raises(aggml.InvalidState, match="cannot be used"):
            decoder.load(2, spoiled)
        with pytest.raises(aggml.InvalidState, match="lost"):
            decoder.save(0, 0, 101, states=True)
        assert decoder.savable(0, 101) == 100
        assert decoder.savable(0, 90) == 90
        decoder.load(0, before)  # where there was a state before
        await decoder.prefill(0, ids[100:], 100)
        assert decoder.savable(0, 130) == 130
        assert (await whole(decoder, 0, 130)).good


async def test_the_state_must_stand_where_the_snapshot_ends(tmp_path: Path) -> None:
    ids = prompt(20, 7)
    async with decoding(tmp_path, "mamba2") as decoder:
        await decoder.prefill(0, ids)
        for n in (0, 19, 21):
            with pytest.raises(aggml.InvalidState, match="is at position 20 and not at position"):
                decoder.save(0, 0, n, states=True)
        snapshot = await whole(decoder, 0, 20)
        decoder.load(1, snapshot)
        with pytest.raises(aggml.InvalidState, match="taken in 20 positions"):
            await decoder.prefill(1, ids, 19)
        decoder.load(1, Snapshot(decoder.form, 0, 20, snapshot.rows))  # without states
        with pytest.raises(aggml.InvalidState, match="state is lost"):
            await decoder.prefill(1, ids, 20)


async def test_a_snapshot_fits_only_caches_of_its_form(tmp_path: Path) -> None:
    async with decoding(tmp_path, ROWS) as decoder, decoding(tmp_path, ROWS, cache="f32") as other:
        await decoder.prefill(0, prompt(8))
        snapshot = await whole(decoder, 0, 8)
        with pytest.raises(aggml.InvalidArgument, match=r"f16.*f32"):
            other.load(0, snapshot)
        for slot, first, n in ((3, 0, 1), (-1, 0, 1), (0, -1, 2), (0, CTX, 1), (0, 3, -1)):
            with pytest.raises(aggml.InvalidArgument, match=r"\[PagedDecoder.save\]"):
                decoder.save(slot, first, n)
        with pytest.raises(aggml.InvalidArgument, match=r"slot=3"):
            decoder.load(3, snapshot)
        late = Snapshot(decoder.form, CTX - 4, 8, snapshot.rows)
        with pytest.raises(aggml.InvalidArgument, match=r"outside of a context of 512"):
            decoder.load(0, late)
        decoder.close()
        with pytest.raises(aggml.InvalidState, match="closed"):
            decoder.save(0, 0, 8)
        with pytest.raises(aggml.InvalidState, match="closed"):
            decoder.load(0, snapshot)


@pytest.mark.parametrize("which", range(4))
async def test_a_failing_transfer_is_told_and_never_used(tmp_path: Path, which: int) -> None:
    """One of the reads fails; the caches themselves stay good."""
    device = SimDevice("F")
    async with decoding(tmp_path, ROWS, device=device) as decoder:
        await decoder.prefill(0, prompt(70))
        device.fail_at(which + 1, "transfer")
        snapshot = decoder.save(0, 0, 70)
        await snapshot.wait_until_done()
        assert isinstance(snapshot.failed, aggml.AggmlError)
        with pytest.raises(aggml.InvalidState, match="cannot be used"):
            decoder.load(1, snapshot)
        assert (await whole(decoder, 0, 70)).good


@pytest.mark.parametrize("layout", [ROWS, "granitehybrid"])
async def test_a_step_that_fails_on_the_device_spoils_what_is_saved_behind_it(
    tmp_path: Path, layout: str
) -> None:
    device = SimDevice("F")
    async with decoding(tmp_path, layout, device=device) as decoder:
        await decoder.prefill(0, prompt(70))
        with decoder.site.host.stream.hold():
            device.fail_at(0, "compute")
            step = await queue_one(decoder, 70, 1)
            snapshot = decoder.save(0, 0, 71, states=True)
        await snapshot.wait_until_done()
        assert isinstance(step.exception(), aggml.AggmlError)
        assert snapshot.failed is not None
        with pytest.raises(aggml.InvalidState):
            decoder.save(0, 0, 71, states=True)


async def test_memory_is_given_back_only_after_it_was_read(tmp_path: Path) -> None:
    async with decoding(tmp_path, ROWS) as decoder:
        await decoder.prefill(0, prompt(64))
        wanted = await contents(decoder, 0, 64)
        engine = Engine(decoder, slots=1, budget=8)
        engine._give_backs.extend(decoder.forget_parts(0))
        parts = len(engine._give_backs)
        assert parts
        with decoder.site.host.stream.hold():
            snapshot = decoder.save(0, 0, 64, states=True)
            assert decoder.is_moving
            assert not engine._give_back()
            assert len(engine._give_backs) == parts
        while decoder.is_moving:
            await decoder.wait_for_transfer()
        assert snapshot.good
        while not engine._give_back():
            assert not decoder.is_moving
        assert [piece.tobytes() for piece in snapshot.pieces()] == wanted
        assert not any(any(piece) for piece in await contents(decoder, 0, 64))


async def test_snapshots_outlive_the_model(tmp_path: Path) -> None:
    async with decoding(tmp_path, "mamba2") as decoder:
        await decoder.prefill(0, prompt(9))
        wanted = await contents(decoder, 0, 9)
        with decoder.site.host.stream.hold():
            snapshot = decoder.save(0, 0, 9, states=True)
            decoder.close()
        await snapshot.wait_until_done()
        assert [piece.tobytes() for piece in snapshot.pieces()] == wanted


class Step:
    """A future that the test ends."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.over = False

    def done(self) -> bool:
        return self.over

    def exception(self) -> Exception | None:
        return self.error


@pytest.mark.parametrize("seed", range(60))
def test_rows_that_a_failed_step_left_are_known(seed: int) -> None:
    """Against a table of which row was last written by which step."""
    random = np.random.default_rng(seed)
    written, length = Written(), 12
    rows: list[dict[int, Any]] = [{} for _ in range(2)]  # slot: row: the step that has to succeed
    going: list[Step] = []
    at = [0, 0]
    for _ in range(60):
        act = random.integers(4)
        if act <= 1:
            step: Any = Step()
            taken = []
            for slot in range(2):
                if random.random() < 0.7:
                    first = int(random.integers(0, at[slot] + 1))
                    n = int(random.integers(1, length - first + 1))
                    taken.append((slot, first, n))
                    at[slot] = min(first + n, length - 1)
                    # rows behind were those of another end
                    for row in [row for row in rows[slot] if row >= first]:
                        del rows[slot][row]
                    rows[slot].update(dict.fromkeys(range(first, first + n), step))
            written.note(step, lambda taken=taken: taken)  # type: ignore[misc]
            going.append(step)
        elif act == 2 and going:
            step = going.pop(0)
            step.over = True
            if random.random() < 0.3:
                step.error = ValueError()
                # the engine goes on at or before the first position that failed
                for slot in range(2):
                    lost = [row for row, by in rows[slot].items() if by is step]
                    if lost:
                        at[slot] = min(at[slot], *lost)
        for slot in range(2):
            for end in range(1, length + 1):
                if any(row not in rows[slot] for row in range(end)):
                    continue
                needs, good = written.ahead(slot, end)
                by = {rows[slot][row] for row in range(end)}
                spoiled = any(x.over and x.error is not None for x in by)
                assert (good < end) == spoiled, (slot, end)
                assert {x for x in by if not x.over} <= {*needs}
