"""Which tokens the next step of the engine computes: of running sequences and of prompts.

Here: plain functions that decide this from values. Not here: carrying a step out (engine.py), the
places of prompts in the rows that they share (staging.py).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from aggml.models.decoder import Batch, Group
from aggml.models.engine.staging import Chunk, Piece, mask, place
from aggml.models.kv.paging import PAGE
from aggml.models.kv.rows import ROWS_STEP

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy.typing as npt

    from aggml.models.engine.jobs import Job
    from aggml.models.engine.prefixes import Prefixes
    from aggml.models.kv.paging import Pages

__all__ = [
    "Intake", "Rows", "next_prompt", "next_prompts", "planned", "room_for_prompts", "shared_by",
    "size",
]  # fmt: skip

# Graphs are built for these sizes; smaller batches are padded. A graph of 16 layers takes 1 MB and
# some 30 ms the first time, so steps with a chunk of prompts come in few sizes.
SEQUENCES: Final = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128)
BESIDE: Final = (0, 4, 8, 16, 32, 64, 128)  # sequences that run beside a chunk
TOKENS: Final = (32, 64, 96, 128, 192, 256, 384, 512)  # of running sequences and the chunk
ENDS: Final = (4, 16, 64)  # prompts that are complete after a chunk
# Tokens of a prompt in one step, for models with states. Their steps have no padding, because it
# would change the state. There are few sizes here, too, so a prompt takes a few more steps.
PIECES: Final = (512, 384, 256, 192, 128, 96, 64, 48, 32, 16, 8, 4, 2, 1)
LEAST: Final = 16  # tokens of prompts in a step, however many sequences run
LEAST_SHARED: Final = 512  # positions that sequences must have in common to be read once


@dataclass(frozen=True, slots=True)
class Rows:
    """Which rows of the cache serve which purpose.

    Attributes:
        ctx: rows of each slot.
        slots: sequences at a time; the shared rows begin after their rows.
        shared: rows that all prompts share while they are processed.
        states: whether sequences have states. Slot ``slots`` then belongs to no sequence: slots
            that do not run write their state there.
        grows: whether there are rows at all.
    """

    ctx: int
    slots: int
    shared: int
    states: bool = False
    grows: bool = True


@dataclass(frozen=True, slots=True)
class Intake:
    """What one step computes.

    Attributes:
        batch: what the model computes.
        follows: each job that gets a token, and the row of logits from which the token is drawn.
        every: whether a job needs the logits of the whole vocabulary, not only the drawn token.
    """

    batch: Batch
    follows: list[tuple[Job, int]]
    every: bool


def room_for_prompts(chunk: int, beside: int, *, running: bool) -> int:
    """How many tokens of prompts the next step may compute.

    Args:
        chunk: tokens in one step of running sequences and prompts together.
        beside: sequences that run beside the prompts.
        running: whether any sequence runs; while none does, a step takes 512 tokens of prompts.
    """
    limit = chunk if running else max(chunk, TOKENS[-1])
    return size(max(limit, beside + LEAST), TOKENS) - beside


def next_prompts(
    taking_in: Iterable[Job], room: int, rows: Rows, prefixes: Prefixes
) -> list[tuple[Job, Piece]]:
    """The oldest prompts, as many as fit into ``room`` tokens; each gets its place in the rows.

    Only the last prompt may be cut; its rest comes first in the next chunk. A prompt begins after
    its stored pages. While a page that it needs is being computed for an older prompt, it waits.

    A prompt for which there is no place waits until prompts that have one are complete. Younger
    prompts get no place before it, or it might wait for ever; those that have one go on, because
    it waits for them. So if there is any prompt, the chunk is not empty. If there is a prompt that
    has to be alone, the chunk has no other.

    The rows that prompts share count as pages, too. A prompt for which no pages are left is
    processed in its slot, without any other prompt.

    Args:
        taking_in: jobs whose prompts are not complete, the oldest first.
        room: tokens, at least one.
        rows: the rows of the cache.
        prefixes: the stored pages, and the count of all pages.
    """
    jobs = list(taking_in)
    jobs = [job for job in jobs if job.in_place or job.alone][:1] or jobs
    held = [(job.staged, job.staged + len(job.prompt)) for job in jobs if job.staged is not None]
    chunk: list[tuple[Job, Piece]] = []
    coming: set[bytes] = set()
    full = False
    for job in jobs:
        if room == 0:
            break
        if job.staged is None and not job.in_place:
            if full or prefixes.awaits(job, coming):
                continue
            job.staged = _place(job, held, rows, prefixes.pages)
            if job.staged is None and held:
                full = True
                continue
            job.in_place = job.staged is None
            begin = None if job.staged is None else rows.slots * rows.ctx + job.staged
            prefixes.begin(job, begin)
        coming.update(prefixes.coming(job))
        assert job.slot is not None
        ids = job.prompt[job.taken_in : job.taken_in + room]
        chunk.append((job, Piece(ids, job.taken_in, job.slot, job.staged)))
        if job.staged is None:
            break
        held.append((job.staged, job.staged + len(job.prompt)))
        room -= len(ids)
    return chunk


def _place(job: Job, held: list[tuple[int, int]], rows: Rows, pages: Pages) -> int | None:
    """A place for a prompt in the shared rows; these get as many pages as that takes, if any."""
    most = min(rows.shared - 1, (pages.free + pages.shared) * PAGE)
    at = place(len(job.prompt), held, most)
    if at is not None:
        pages.shared = max(pages.shared, pages.of(at + len(job.prompt)))
    return at


def next_prompt(
    taking_in: Iterable[Job], room: int, rows: Rows, pages: Pages
) -> list[tuple[Job, Piece]]:
    """A piece of the oldest prompt, for models with states: no mask can separate prompts there.

    Args:
        taking_in: jobs whose prompts are not complete, the oldest first.
        room: tokens.
        rows: the rows of the cache.
        pages: the count of all pages.
    """
    for job in taking_in:
        assert job.slot is not None
        if job.staged is None and not job.in_place:
            job.staged = _place(job, [], rows, pages) if rows.grows else 0
            job.in_place = job.staged is None
        left = len(job.prompt) - job.taken_in
        n = next(size for size in PIECES if size <= min(left, room))
        ids = job.prompt[job.taken_in : job.taken_in + n]
        return [(job, Piece(ids, job.taken_in, job.slot, job.staged))]
    return []


def planned(running: list[Job], chunk: list[tuple[Job, Piece]], beside: int, rows: Rows) -> Intake:
    """One more token for each job of ``running``; the first one for prompts that become complete.

    Args:
        running: jobs whose prompts are complete.
        chunk: pieces of prompts, as `next_prompts` gives them.
        beside: how many first rows of the logits belong to running sequences.
        rows: the rows of the cache.
    """
    groups = []
    if running:
        highest = max(job.slot for job in running if job.slot is not None)
        n = beside or min(size(highest + 1), rows.slots)
        groups.append(_next_tokens(running, n, rows))
    follows = [(job, job.slot) for job in running if job.slot is not None]
    last = staged = None
    if chunk:
        prompts, staged, ends = _prompts(chunk, beside, rows)
        groups.append(prompts)
        follows += [(job, beside + i) for i, (job, _) in enumerate(ends)]
        n = size(len(ends), ENDS)
        last = np.arange(beside + n, dtype=np.int32)
        last[beside:] = beside
        last[beside : beside + len(ends)] = [beside + at for _, at in ends]
    every = any(job.told is not None for job, _ in follows)
    return Intake(Batch(tuple(groups), last, staged), follows, every)


def _next_tokens(jobs: list[Job], n: int, where: Rows) -> Group:
    """One token of each of the first ``n`` slots; slots that do not run get any token.

    The keys of those tokens go to the next row of a sequence that runs, which writes it before it
    reads it: rows of other slots would take memory that nobody was promised. Their states go to the
    slot that belongs to no sequence. Their position is the one after those that the running
    sequences share, so they see the same shared keys as the others.
    """
    ctx = where.ctx
    shared = shared_by(jobs)
    one = jobs[0]
    assert one.slot is not None
    ids = np.full((n, 1), one.made[-1], np.int32)
    positions = np.full((n, 1), shared, np.int32)
    rows = np.full((n, 1), one.slot * ctx + len(one.prompt) + len(one.made), np.int32)
    for job in jobs:
        assert job.slot is not None
        position = len(job.prompt) + len(job.made) - 1
        ids[job.slot] = job.made[-1]
        positions[job.slot] = position
        rows[job.slot] = job.slot * ctx + position
    kv = _seen(int(positions.max()) + 1, ctx) if where.grows else ROWS_STEP
    kept = None
    if where.states:
        kept = np.full(n, where.slots, np.int32)
        running = [job.slot for job in jobs if job.slot is not None]
        kept[running] = running
    first = min(job.slot for job in jobs if job.slot is not None) if shared else 0
    return Group(ids, positions, rows, 0, kv, kept=kept, shared=shared, shared_from=first)


def shared_by(jobs: Sequence[Job]) -> int:
    """How many first positions hold the same tokens in all of these sequences, rounded down.

    The number is rounded to the steps of `_step`, so that there are few graphs; it is 0 where
    sharing would not pay. The hash of a page covers all tokens before it as well, so the last equal
    page is found by bisection.
    """
    first, low, high = jobs[0].keys, 0, min(len(job.keys) for job in jobs)
    if len(jobs) < 2:
        return 0
    while low < high:
        page = (low + high) // 2
        if all(job.keys[page] == first[page] for job in jobs):
            low = page + 1
        else:
            high = page
    n = low * PAGE
    return 0 if n < LEAST_SHARED else n - n % _step(n)


def _prompts(
    chunk: list[tuple[Job, Piece]], beside: int, rows: Rows
) -> tuple[Group, npt.NDArray[np.int32] | None, list[tuple[Job, int]]]:
    """A chunk, the shared rows that hold its keys, and the last tokens of complete prompts.

    The keys of the padding go to the next row of a prompt, which writes it before it reads it. If
    the prompt has no shared rows, keys are written to its slot alone.
    """
    pieces = [piece for _, piece in chunk]
    wanted = sum(len(piece.ids) for piece in pieces)
    tokens = wanted if rows.states else size(beside + wanted, TOKENS) - beside
    laid = Chunk.of(pieces, tokens, ctx=rows.ctx, staging=rows.slots * rows.ctx, rows=rows.shared)
    last = pieces[-1]
    laid.ids[0, wanted:] = last.ids[-1]
    for to in (laid.rows, laid.staged):
        to[0, wanted:] = last.slot * rows.ctx + last.first + len(last.ids)
    in_place = last.at is None
    most = rows.ctx if in_place else rows.shared
    kv = _seen(max(piece.end for piece in pieces), most) if rows.grows else ROWS_STEP
    ends, at = [], -1
    for job, piece in chunk:
        at += len(piece.ids)
        if piece.first + len(piece.ids) == len(job.prompt):
            ends.append((job, at))
    alone = len(pieces) == 1 and not last.begin and tokens == wanted
    hidden = None if alone else functools.partial(mask, pieces, tokens, kv)
    kept = np.array([pieces[0].slot], np.int32) if rows.states else None
    slot = last.slot if in_place else rows.slots
    group = Group(laid.ids, laid.positions, laid.rows, slot, kv, hidden, kept)
    return group, None if in_place else laid.staged[0], ends


def size(n: int, sizes: Sequence[int] = SEQUENCES) -> int:
    """The least of the sizes that is at least ``n``; beyond them the next multiple of 32."""
    return next((size for size in sizes if size >= n), -(-n // 32) * 32)


def _seen(n: int, most: int) -> int:
    """How many positions attention looks at in order to see ``n``: up to half more from 513 on.

    Rounding up keeps the number of different graphs small.
    """
    step = _step(n)
    return min(-(-n // step) * step, most)


def _step(n: int) -> int:
    """The unit to which ``n`` positions are rounded: less than half of ``n``, from 513 on."""
    step = ROWS_STEP
    while step * 4 < n:
        step *= 2
    return step
