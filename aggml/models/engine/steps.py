"""Which tokens the next step of the engine computes: of running sequences and of prompts.

Here: plain functions that decide this from values. Not here: carrying a step out (engine.py), the
places of prompts in the rows that they share (staging.py).
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from aggml.models.decoder import Batch, Group
from aggml.models.decoder.batch import GivenEmbeddings, TokenAdapters
from aggml.models.engine.staging import Chunk, Piece, mask, place
from aggml.models.kv.paging import PAGE
from aggml.models.kv.rows import ROWS_STEP

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import numpy.typing as npt

    from aggml.models.engine.requests import TextRequest
    from aggml.models.engine.speculation import Verification
    from aggml.models.kv.paging import Pages

__all__ = [
    "Intake", "Rows", "checkpoints_of", "common", "next_prompt", "next_prompts", "next_tokens",
    "plan_arrays", "plan_step", "room_for_prompts", "rows_to_read", "shared_prefix_length", "size",
    "slots_of",
]  # fmt: skip

# Graphs are built for these sizes; smaller batches are padded. A graph of 16 layers takes 1 MB and
# some 30 ms the first time, so steps with a chunk of prompts come in few sizes.
SEQUENCES: Final = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128)
BESIDE: Final = (0, 4, 8, 16, 32, 64, 128)  # sequences that run beside a chunk
TOKENS: Final = (32, 64, 96, 128, 192, 256, 384, 512)  # of running sequences and the chunk
# Without running sequences a short prompt, such as the next turn of a conversation, is not padded
# to 32 tokens: its first token comes up to six times as soon.
SHORT: Final = (4, 8, 12, 16, 24, 32, 48, *TOKENS[1:])
ENDS: Final = (4, 16, 64)  # prompts that are complete after a chunk
# Tokens of a prompt in one step, for models with states. Their steps have no padding, because it
# would change the state. There are few sizes here, too, so a prompt takes a few more steps.
PIECES: Final = (512, 384, 256, 192, 128, 96, 64, 48, 32, 16, 8, 4, 2, 1)
LEAST: Final = 16  # tokens of prompts in a step, however many sequences run
LEAST_SHARED: Final = 512  # positions that sequences must have in common to be read once
LEAST_STORED: Final = 64  # tokens of a prompt that are worth a checkpoint before its end
APART: Final = 32  # tokens between two checkpoints of a prompt, at least
REOPENED: Final = 8  # last tokens of a prompt that the next turn may have otherwise
CHECKPOINTS: Final = 4  # of a prompt, at most: each may be a step more, and stores all states


@dataclass(frozen=True, slots=True)
class Rows:
    """Which rows of the cache serve which purpose.

    Attributes:
        ctx: rows of each slot.
        slots: sequences at a time; the shared rows begin after their rows.
        shared: rows that all prompts share while they are processed. If there are any, the row
            after them is for padding, and nobody reads it.
        states: whether sequences have states. Slot ``slots`` then belongs to no sequence: slots
            that do not run write their state there.
        grows: whether there are rows at all.
    """

    ctx: int
    slots: int
    shared: int
    states: bool = False
    grows: bool = True

    @property
    def nowhere(self) -> int:
        """The row for padding."""
        return self.slots * self.ctx + self.shared


@dataclass(frozen=True, slots=True)
class Intake:
    """What one step computes.

    Attributes:
        batch: what the model computes.
        follows: each request that gets a token, and the row of logits from which it is drawn.
        every: whether a request needs all logits, not only the drawn token.
    """

    batch: Batch
    follows: list[tuple[TextRequest, int]]
    every: bool


def room_for_prompts(chunk: int, beside: int, *, running: bool) -> int:
    """How many tokens of prompts the next step may compute.

    Args:
        chunk: tokens in one step of running sequences and prompts together.
        beside: sequences that run beside the prompts.
        running: whether any sequence runs; while none does, a step takes 512 tokens of prompts.
    """
    limit = chunk if running else max(chunk, TOKENS[-1])
    return max(_at_most(limit), size(beside + LEAST, TOKENS)) - beside


def next_prompts(
    prompts: Sequence[TextRequest],
    room: int,
    rows: Rows,
    pages: Pages,
    begin: Callable[[TextRequest], None],
    awaits: Callable[[TextRequest], bool],
    others: Sequence[tuple[int, int]] = (),
) -> list[tuple[TextRequest, Piece]]:
    """The oldest prompts, as many as fit into ``room`` tokens; each gets its place in the rows.

    Only the last prompt may be cut; its rest comes first in the next chunk. A prompt whose first
    pages are being computed for an older prompt waits until they can be copied.

    A prompt for which there is no place waits until prompts that have one are complete. Younger
    prompts get no place before it, or it might wait for ever; those that have one go on, because
    it waits for them. So if there is any prompt, the chunk is not empty. If there is a prompt that
    has to be alone, the chunk has no other.

    The rows that prompts share count as pages, too. A prompt for which no pages are left is
    processed in its slot, without any other prompt.

    Args:
        prompts: requests whose prompts are not complete, the next one first.
        room: tokens, at least one.
        rows: the rows of the cache.
        pages: the count of all pages.
        begin: is called before the first tokens of a prompt are computed; it may load a stored
            beginning, and then raises the number of computed tokens.
        awaits: whether the beginning of a prompt is being stored at present.
        others: shared rows of prompts that are not among these: the first, and the one after the
            last.
    """
    # The first prompt says whether this step has one that has to be alone, or none of those.
    going = [x for x in prompts if not (x.in_place or x.alone)]
    if prompts[0] not in going:
        going = [prompts[0]]
    held = [(x.staged, x.staged + len(x.tokens)) for x in prompts if x.staged is not None]
    held += others
    chunk: list[tuple[TextRequest, Piece]] = []
    full = False
    for i, one in enumerate(going):
        if room <= 0:
            break
        if one.staged is None and not one.in_place:
            if full or any(_computes_beginning(x, one) for x in going[:i]) or awaits(one):
                continue
            one.staged = _place(one, held, rows, pages)
            if one.staged is None and any(x.staged is not None for x in going):
                full = True
                continue
            one.in_place = one.staged is None
            begin(one)
        assert one.slot is not None
        end = one.end_of_piece(one.computed + room)
        if chunk and end > one.computed + room:
            break  # a picture that is computed at once, for which the next step has more room
        ids = one.tokens[one.computed : end]
        whole = one.whole_within(one.computed, end)
        chunk.append((one, Piece(ids, one.computed, one.slot, one.staged, whole)))
        if one.staged is None:
            break
        held.append((one.staged, one.staged + len(one.tokens)))
        room -= len(ids)
    return chunk


def _computes_beginning(older: TextRequest, one: TextRequest) -> bool:
    """Whether an older prompt is computing whole pages with which a prompt begins, too."""
    if not (older.keeps and one.keeps and older.shares_with(one)):
        return False
    if older.computed >= len(older.tokens):
        return False
    n = min(len(older.tokens), len(one.tokens) - 1) // PAGE * PAGE
    return n > 0 and older.tokens[:PAGE] == one.tokens[:PAGE]


def _place(one: TextRequest, held: list[tuple[int, int]], rows: Rows, pages: Pages) -> int | None:
    """A place for a prompt in the shared rows; these get as many pages as that takes, if any."""
    most = min(rows.shared - 1, (pages.free + pages.shared) * PAGE)
    at = place(len(one.tokens), held, most)
    if at is not None:
        pages.shared = max(pages.shared, pages.of(at + len(one.tokens)))
    return at


def next_prompt(
    prompts: Sequence[TextRequest],
    room: int,
    rows: Rows,
    pages: Pages,
    begin: Callable[[TextRequest], None],
    stop: Callable[[TextRequest], int],
) -> list[tuple[TextRequest, Piece]]:
    """A piece of the oldest prompt, for models with states: no mask can separate prompts there.

    Args:
        prompts: requests whose prompts are not complete, the next one first.
        room: tokens.
        rows: the rows of the cache.
        pages: the count of all pages.
        begin: as for `next_prompts`.
        stop: the position behind which the piece must not go on: a checkpoint, or the end.
    """
    for one in prompts[:1]:
        assert one.slot is not None
        if one.staged is None and not one.in_place:
            # A prompt of a lower priority may have begun, and its rows are still needed.
            if rows.grows and rows.shared:
                held = [
                    (x.staged, x.staged + len(x.tokens)) for x in prompts if x.staged is not None
                ]
                one.staged = _place(one, held, rows, pages)
            one.in_place = one.staged is None
            begin(one)
        left = stop(one) - one.computed
        n = next(size for size in PIECES if size <= min(left, room))
        ids = one.tokens[one.computed : one.computed + n]
        return [(one, Piece(ids, one.computed, one.slot, one.staged))]
    return []


def checkpoints_of(n: int, computed: int, known: Iterable[int]) -> list[int]:
    """Where states are stored while a prompt is computed, in order.

    A state cannot go back. So without them nobody could use a prompt that does not go on with all
    of its tokens: the same prompt again, another question behind the same instructions, a
    conversation whose template writes the last tokens of a prompt otherwise in the next turn.

    One checkpoint is shortly before the end, where a piece ends in any case, mostly. The others are
    where other prompts leave this one: those of the most tokens that these need not compute.

    Args:
        n: tokens of the prompt.
        computed: of these, those that need not be computed.
        known: how many first tokens each of some other prompts has in common with this one.
    """
    if n - computed < LEAST_STORED:
        return []
    last = computed + (n - computed - REOPENED - 1) // LEAST * LEAST
    found = [last]
    gains = Counter(min(x, last) for x in known)
    for at, _ in sorted(gains.items(), key=lambda x: (x[0] - computed) * -x[1]):
        if len(found) == CHECKPOINTS:
            break
        if at - computed >= APART and all(abs(at - x) >= APART for x in found):
            found.append(at)
    return sorted(found)


def plan_step(
    running: Sequence[TextRequest],
    chunk: list[tuple[TextRequest, Piece]],
    beside: int,
    rows: Rows,
    shared: int = 0,
    verification: Verification | None = None,
) -> Intake:
    """One more token for each request of ``running``; the first for prompts that become complete.

    A request with a draft may get several tokens: its rows of logits follow each other.

    Args:
        running: requests of which only the last token is to be computed.
        chunk: pieces of prompts, as `next_prompts` gives them.
        beside: for how many slots of running sequences a step with a chunk has room.
        rows: the rows of the cache.
        shared: how many first tokens all running sequences have in common.
        verification: drafts of running sequences; None: there are none.
    """
    groups = []
    first, width = 0, 1 if verification is None else verification.width
    if running:
        if beside:
            n = beside
        elif verification is not None:
            first, n = slots_of(running, rows)
        else:
            n = min(size(max(x.slot for x in running if x.slot is not None) + 1), rows.slots)
        group = next_tokens(running, first, n, rows, shared, verification=verification)
        groups.append(group)
    follows = [(x, (x.slot - first) * width) for x in running if x.slot is not None]
    beside *= width  # from here on it is a number of tokens
    last = staged = None
    if chunk:
        prompts, staged, ends = _prompts(chunk, beside, rows)
        groups.append(prompts)
        follows += [(x, beside + i) for i, (x, _) in enumerate(ends)]
        n = size(len(ends), ENDS)
        last = np.arange(beside + n, dtype=np.int32)
        last[beside:] = beside
        last[beside : beside + len(ends)] = [beside + at for _, at in ends]
    every = any(x.needs_logits for x, _ in follows)
    return Intake(Batch(tuple(groups), last, staged), follows, every)


def slots_of(running: Sequence[TextRequest], rows: Rows) -> tuple[int, int]:
    """The first slot of a step of running sequences alone, and how many slots it computes."""
    used = [x.slot for x in running if x.slot is not None]
    return (used[0], 1) if len(used) == 1 else (0, min(size(max(used) + 1), rows.slots))


def plan_arrays(chunk: list[tuple[TextRequest, Piece]], rows: Rows) -> Intake:
    """Plan a chunk of prompts whose tokens' logits or hidden states are all wanted."""
    prompts, staged, _ = _prompts(chunk, 0, rows)
    return Intake(Batch((prompts,), None, staged), [], every=False)


def next_tokens(
    requests: Sequence[TextRequest],
    first: int,
    n: int,
    where: Rows,
    shared: int,
    ahead: int = 0,
    verification: Verification | None = None,
) -> Group:
    """One token of each of ``n`` slots from ``first`` on; slots that do not run get any token.

    With a verification it is ``width`` tokens of each slot: the last token and those of its draft.
    What is left over is padded with any token.

    The keys of those tokens go to a row that nobody reads: rows of other slots would take memory
    that nobody was promised. Their states go to the slot that belongs to no sequence. Their
    position is the one after those that the running sequences share, so they see the same shared
    keys as the others.

    Args:
        requests: those that run.
        first: the first slot.
        n: how many slots.
        where: the rows of the cache.
        shared: how many first tokens all of them have in common.
        ahead: how many tokens of each are being computed before this one.
        verification: the drafts; None: there are none.
    """
    ctx = where.ctx
    width = 1 if verification is None else verification.width
    # Attention reads what sequences share once only if each has one token in the step.
    shared = _read_once(shared) if len(requests) > 1 and width == 1 else 0
    one = requests[0]
    assert one.slot is not None
    ids = np.full((n, width), one.tokens[-1], np.int32)
    positions = np.full((n, width), shared, np.int32)
    rows = np.full((n, width), where.nowhere, np.int32)
    for request in requests:
        assert request.slot is not None
        position = request.computed + ahead
        at = request.slot - first
        ids[at] = request.tokens[-1]
        positions[at] = position
        rows[at, 0] = request.slot * ctx + position
        draft = None if verification is None else verification.drafts.get(request)
        if draft:
            end = 1 + len(draft)
            ids[at, 1:end] = draft
            positions[at, :end] = np.arange(position, position + end)
            positions[at, end:] = position + end - 1
            rows[at, :end] = request.slot * ctx + positions[at, :end]
            if not where.shared:  # the next step writes this row before it reads it
                rows[at, end:] = request.slot * ctx + position + end
    kv = rows_to_read(int(positions.max()) + 1, ctx) if where.grows else ROWS_STEP
    kept = None
    if where.states:
        kept = np.full(n, where.slots, np.int32)
        for request in requests:
            assert request.slot is not None
            kept[request.slot - first] = request.slot
    begin = min(x.slot for x in requests if x.slot is not None) - first if shared else 0
    begins = [(x.slot - first) * width for x in requests if x.slot is not None]
    adapters = _adapters_of(requests, [slice(x, x + width) for x in begins], n * width)
    rotary = None
    if any(x.shift for x in requests):
        rotary = positions.copy()[None]
        for request in requests:
            assert request.slot is not None
            rotary[0, request.slot - first] -= request.shift
    return Group(
        ids, positions, rows, first, kv, kept=kept, shared=shared, shared_from=begin,
        adapters=adapters, rotary=rotary, history=width if where.states else 1,
    )  # fmt: skip


def _adapters_of(
    requests: Sequence[TextRequest], places: Sequence[slice], tokens: int
) -> TokenAdapters | None:
    """The adapters of the tokens of a group; None: no token has one.

    Args:
        requests: whose tokens they are.
        places: where the tokens of each request lie in the group.
        tokens: of the group.
    """
    most = max(len(x.adapter.parts) for x in requests)
    if not most:
        return None
    numbers = np.zeros((tokens, most), np.int32)
    scales = np.ones((tokens, most), np.float32)
    for request, at in zip(requests, places, strict=True):
        for i, part in enumerate(request.adapter.parts):
            numbers[at, i], scales[at, i] = part
    return TokenAdapters(numbers, None if (scales == 1).all() else scales)


def common(one: Sequence[int], other: Sequence[int], most: int | None = None) -> int:
    """How many first elements two lists have in common, at most ``most``."""
    low, high = 0, min(len(one), len(other), len(one) if most is None else most)
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def shared_prefix_length(requests: Sequence[TextRequest]) -> int:
    """How many first tokens all of these sequences have in common, their last tokens excluded."""
    if len(requests) < 2:
        return 0
    first = requests[0].tokens
    if not all(x.shares_with(requests[0]) for x in requests):
        return 0
    n = min(x.computed for x in requests)
    for other in requests[1:]:
        n = common(first, other.tokens, n)
    return n


def _read_once(shared: int) -> int:
    """Of the positions that sequences have in common, those that attention reads once.

    The number is rounded to the steps of `_step`, so that there are few graphs; it is 0 where
    sharing would not pay.
    """
    n = shared // PAGE * PAGE
    return 0 if n < LEAST_SHARED else n - n % _step(n)


def _prompts(
    chunk: list[tuple[TextRequest, Piece]], beside: int, rows: Rows
) -> tuple[Group, npt.NDArray[np.int32] | None, list[tuple[TextRequest, int]]]:
    """A chunk, the shared rows that hold its keys, and the last tokens of complete prompts.

    The keys of the padding go to a row that nobody reads; if there is none, to the next row of the
    prompt, which writes it before it reads it. If the prompt has no shared rows, keys are written
    to its slot alone.
    """
    pieces = [piece for _, piece in chunk]
    wanted = sum(len(piece.ids) for piece in pieces)
    sizes = TOKENS if beside else SHORT
    tokens = wanted if rows.states else size(beside + wanted, sizes) - beside
    if not rows.shared and pieces[-1].first + len(pieces[-1].ids) >= rows.ctx:
        tokens = wanted  # there is no next row
    laid = Chunk.of(pieces, tokens, ctx=rows.ctx, staging=rows.slots * rows.ctx, rows=rows.shared)
    last = pieces[-1]
    laid.ids[0, wanted:] = last.ids[-1]
    for to in (laid.rows, laid.staged):
        following = last.slot * rows.ctx + last.first + len(last.ids)
        to[0, wanted:] = rows.nowhere if rows.shared else following
    in_place = last.at is None
    most = rows.ctx if in_place else rows.shared
    kv = rows_to_read(max(piece.end for piece in pieces), most) if rows.grows else ROWS_STEP
    ends, at = [], -1
    for request, piece in chunk:
        at += len(piece.ids)
        if piece.first + len(piece.ids) == len(request.tokens):
            ends.append((request, at))
    alone = len(pieces) == 1 and not last.begin and tokens == wanted and not last.whole
    hidden = None if alone else functools.partial(mask, pieces, tokens, kv)
    kept = np.array([pieces[0].slot], np.int32) if rows.states else None
    slot = last.slot if in_place else rows.slots
    stops = list(itertools.accumulate(len(piece.ids) for piece in pieces))
    places = [slice(x - len(piece.ids), x) for x, piece in zip(stops, pieces, strict=True)]
    adapters = _adapters_of([x for x, _ in chunk], places, laid.ids.size)
    group = Group(
        laid.ids, laid.positions, laid.rows, slot, kv, hidden, kept, adapters=adapters,
        given=_gather_embeddings(chunk, laid), rotary=_rotary(chunk, laid),
    )  # fmt: skip
    return group, None if in_place else laid.staged[0], ends


def _rotary(chunk: list[tuple[TextRequest, Piece]], laid: Chunk) -> npt.NDArray[np.int32] | None:
    """The rotary positions of a chunk; None: they are the positions."""
    found, begin = None, 0
    for request, piece in chunk:
        n = len(piece.ids)
        own = request.rotary(piece.first, n)
        if own is not None:
            if found is None:
                found = np.repeat(laid.positions[None], 4, axis=0)
            found[:, 0, begin : begin + n] = own
        begin += n
    if found is None or (found == found[0]).all():
        return None if found is None else found[:1]
    return found


def _gather_embeddings(
    chunk: list[tuple[TextRequest, Piece]], laid: Chunk
) -> GivenEmbeddings | None:
    """The embeddings of pictures in a chunk; their positions get some token instead of their key.

    None: there are no pictures.
    """
    seen = laid.ids[0] < 0
    if not seen.any():
        return None
    laid.ids[0, seen] = 0
    begin, values = 0, None
    for request, piece in chunk:
        for picture in request.pictures:
            low = max(picture.first, piece.first)
            high = min(picture.end, piece.first + len(piece.ids))
            if low >= high:
                continue
            if values is None:
                values = np.zeros((laid.ids.shape[1], picture.values.shape[1]), np.float32)
            row = begin + low - piece.first
            rows = picture.values[low - picture.first : high - picture.first]
            values[row : row + len(rows)] = rows
        begin += len(piece.ids)
    seen[begin:] = False  # padding repeats the last token
    if values is None:
        return None
    return GivenEmbeddings(np.where(seen, 0, 1).astype(np.float32)[:, None], values)


def size(n: int, sizes: Sequence[int] = SEQUENCES) -> int:
    """The least of the sizes that is at least ``n``; beyond them the next multiple of 32."""
    return next((size for size in sizes if size >= n), -(-n // 32) * 32)


def _at_most(n: int) -> int:
    """The largest of `TOKENS` and the multiples of 32 beyond them that is at most ``n``, or 32."""
    if n > TOKENS[-1]:
        return n // 32 * 32
    return max((x for x in TOKENS if x <= n), default=TOKENS[0])


def rows_to_read(n: int, most: int) -> int:
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
