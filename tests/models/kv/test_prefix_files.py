"""Stored beginnings in files: found by later processes, and never used unless all of it is good.

Here: each byte changed, each length, other models, two processes, the size of the folder, a full
disk, cancellation. Not here: which beginnings are stored (test_prefixes.py).
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import numpy as np
import pytest
from models.kv.running import PLACES, decoding, generated, prompt
from models.kv.test_prefixes import FakeDecoder, check_restored, keep

import aggml
from aggml.models.kv import page_files
from aggml.models.kv.page_files import SUFFIX, PageFiles, PageHead, identity_of
from aggml.models.kv.paging import PAGE
from aggml.models.kv.prefixes import Prefixes

if TYPE_CHECKING:
    from collections.abc import Iterator

ROWS = "llama-wide-heads"
KINDS = [ROWS, "mamba2", "granitehybrid"]
FORMS = [(True, False), (False, True), (True, True)]


class Messages(logging.Handler):
    """Collects the texts of log records."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


@pytest.fixture
def log() -> Iterator[list[str]]:
    """The warnings of the package."""
    messages = Messages()
    logging.getLogger("aggml").addHandler(messages)
    yield messages.texts
    logging.getLogger("aggml").removeHandler(messages)


def small(folder: Path, *, rows: bool = True, states: bool = False, about: str = "m") -> Any:
    """A fake decoder and its store."""
    fake: Any = FakeDecoder(rows=rows, states=states)
    return fake, Prefixes(fake, 1 << 20, folder, about=about)


def files_in(folder: Path) -> list[Path]:
    return sorted(folder.glob("*"))


async def check(fake: FakeDecoder, stored: Prefixes, tokens: list[int]) -> int:
    """Fetch and restore a prompt; all that is restored must be right."""
    await stored.fetch(tokens)
    fake.loaded, fake.state = {}, None
    n = stored.restore(tokens, 0)
    check_restored(fake, tokens, "", n)
    assert all(node.pins == 0 for node in stored._nodes.values())
    return n


@pytest.mark.long(cases=2)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("layout", KINDS)
async def test_a_later_process_goes_on_with_the_same_tokens(
    tmp_path: Path, layout: str, place: str
) -> None:
    begin, folder = prompt(150, 1), tmp_path / "kept"
    async with decoding(tmp_path, layout, place=place) as decoder:
        stored = Prefixes(decoder, 16 << 20, folder, about="model")
        first = await generated(decoder, 0, begin, 0, 7)
        turn = [*begin, *first, *prompt(20, 2)]
        stored.keep([*begin, *first[:-1]], 0, states=True)
        await stored.flush()
        wanted = await generated(decoder, 1, turn, 0, 10)
    async with decoding(tmp_path, layout, place=place) as decoder:
        stored = Prefixes(decoder, 16 << 20, folder, about="model")
        n = 156 if decoder.has_states else 128
        assert stored.match(turn) == 0
        await stored.fetch(turn)
        assert stored.match(turn) == stored.restore(turn, 2) == n
        assert await generated(decoder, 2, turn[n:], n, 10) == wanted
        other = Prefixes(decoder, 16 << 20, folder, about="another model")
        await other.fetch(turn)
        assert other.match(turn) == 0


@pytest.mark.parametrize(("rows", "states"), FORMS)
async def test_memory_gives_up_what_files_keep(tmp_path: Path, rows: bool, states: bool) -> None:
    fake, stored = small(tmp_path, rows=rows, states=states)
    asked = [prompt(n, n) for n in (70, 200, 300)]
    for tokens in asked:
        keep(fake, stored, tokens, states=states)
    await stored.flush()
    stored.clear()
    for tokens in asked:
        assert await check(fake, stored, [*tokens, 1]) == (
            len(tokens) if states else len(tokens) // PAGE * PAGE
        )
        shorter = [*tokens[:-1], tokens[-1] ^ 1]
        assert await check(fake, stored, shorter) == (0 if states else len(tokens) // PAGE * PAGE)


@pytest.mark.parametrize(("rows", "states"), FORMS)
async def test_a_file_with_any_byte_changed_is_not_used(
    tmp_path: Path, rows: bool, states: bool, log: list[str]
) -> None:
    fake, stored = small(tmp_path, rows=rows, states=states)
    tokens = prompt(PAGE + 3, 1)
    keep(fake, stored, tokens, states=states)
    await stored.flush()
    for path in files_in(tmp_path):
        good = path.read_bytes()
        for at in [*range(0, len(good), 97), len(good) - 1]:
            path.write_bytes(good[:at] + bytes([good[at] ^ (1 << at % 8)]) + good[at + 1 :])
            fake, stored = small(tmp_path, rows=rows, states=states)
            log.clear()
            for _ in range(2):
                assert await check(fake, stored, [*tokens, 1]) == 0
            assert len(log) == 1  # told once
            assert path.name in log[0]
        path.write_bytes(good)
    fake, stored = small(tmp_path, rows=rows, states=states)
    assert await check(fake, stored, [*tokens, 1]) == (len(tokens) if states else PAGE)


def test_no_byte_of_a_file_can_change_and_none_can_be_missing(
    tmp_path: Path, log: list[str]
) -> None:
    """Each byte, each length, some more bytes; and each fact of the head."""
    head = PageHead("r", "p", "k", 64, [5, 6])
    blobs = [np.arange(n, dtype=np.uint8) for n in (40, 0, 9)]
    PageFiles(tmp_path, 1 << 20).write("k", head, blobs)
    path = tmp_path / "k"
    good = path.read_bytes()

    def read(changed: bytes, wanted: PageHead = head, sizes: tuple[int, ...] = (40, 0, 9)) -> bool:
        path.write_bytes(changed)
        into = [np.full(n, 99, np.uint8) for n in sizes]
        found = PageFiles(tmp_path, 1 << 20).read("k", wanted, into)
        assert not found or all(map(np.array_equal, into, blobs))
        return found

    assert read(good)
    for at in range(len(good)):
        for bits in (1 << at % 8, 255):
            assert not read(good[:at] + bytes([good[at] ^ bits]) + good[at + 1 :])
        assert not read(good[:at])
        assert not read(good[:at] + good[at + 1 :])
    assert not read(good + b"x")
    other = {"root": "R", "parent": "P", "key": "K", "first": 0, "tokens": [5, 7]}
    for name, value in other.items():
        assert not read(good, head._replace(**{name: value}))  # type: ignore[arg-type]
    for sizes in ((40, 0), (40, 0, 9, 0), (39, 1, 9), (0, 40, 9)):
        assert not read(good, sizes=sizes)
    assert read(good)
    log.clear()
    files = PageFiles(tmp_path, 1 << 20)
    path.write_bytes(good[:-1])
    for _ in range(3):
        files.read("k", head, [np.empty(n, np.uint8) for n in (40, 0, 9)])
    assert len(log) == 1


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"null",
        b"5",
        b"{}",
        b'{"sums":5}',
        b"[" * 50_000,
        b"\xff",
        b'{"sums":null}',
        b"NaN",
    ],
    ids=lambda text: repr(text[:12]),
)
@pytest.mark.parametrize("fits", [False, True])
def test_a_head_that_somebody_made_up_is_refused(
    tmp_path: Path, text: bytes, fits: bool, log: list[str]
) -> None:
    """Its own checksum is right, and with ``fits`` all facts but the checksums of the parts."""
    head = PageHead("r", "p", "k", 0, [1])
    if fits:
        with suppress(ValueError, RecursionError):
            sums = json.loads(text)
            text = json.dumps({**page_files._facts(head, [3]), "sums": sums}).encode()
    made = page_files.MAGIC + page_files.LENGTH.pack(len(text)) + text + page_files._sum(text)
    (tmp_path / "k").write_bytes(made + b"abc")
    assert not PageFiles(tmp_path, 1).read("k", head, [np.empty(3, np.uint8)])
    assert len(log) == 1


async def test_a_damaged_file_is_written_anew(tmp_path: Path, log: list[str]) -> None:
    fake, stored = small(tmp_path)
    tokens = prompt(PAGE + 1, 1)
    keep(fake, stored, tokens)
    await stored.flush()
    (path,) = files_in(tmp_path)
    good = path.read_bytes()
    path.write_bytes(good[:-1])
    fake, stored = small(tmp_path)
    assert await check(fake, stored, tokens) == 0
    keep(fake, stored, tokens)
    await stored.flush()
    assert path.read_bytes() == good
    assert len(log) == 1


async def test_a_file_of_another_beginning_is_not_used(tmp_path: Path, log: list[str]) -> None:
    """All of it is good, but it lies at the place of another one."""
    a, b = prompt(2 * PAGE + 1, 1), prompt(2 * PAGE + 1, 2)
    fake, stored = small(tmp_path)
    keep(fake, stored, a)
    await stored.flush()
    of_a = files_in(tmp_path)
    keep(fake, stored, b)
    await stored.flush()
    of_b = [path for path in files_in(tmp_path) if path not in of_a]
    for path in of_b:
        path.write_bytes(of_a[0].read_bytes())
    fake, stored = small(tmp_path)
    assert await check(fake, stored, b) == 0
    assert "is not that of this model and prompt" in log[0]
    assert await check(fake, stored, a) == 2 * PAGE


@pytest.mark.parametrize("kind", ["folder", "pipe", "nothing", "unreadable link"])
async def test_what_is_no_file_is_not_used(tmp_path: Path, kind: str, log: list[str]) -> None:
    fake, stored = small(tmp_path)
    tokens = prompt(PAGE + 1, 1)
    keep(fake, stored, tokens)
    await stored.flush()
    (path,) = files_in(tmp_path)
    path.unlink()
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "unreadable link":
        path.symlink_to(path)
    fake, stored = small(tmp_path)
    assert await check(fake, stored, tokens) == 0
    assert len(log) == (kind != "nothing")


async def test_the_folder_keeps_its_size_and_the_files_used_last(tmp_path: Path) -> None:
    head = PageHead("r", "p", "k", 0, [1] * PAGE)
    blob = np.zeros(4000, np.uint8)
    files = PageFiles(tmp_path, 10 * 4600)
    for i in range(40):
        files.write(f"{i:02}{SUFFIX}", head, [blob])
        for path in files_in(tmp_path):
            os.utime(path, (1, int(path.name[:2])))  # a clock of its own
        if i > 5:
            os.utime(tmp_path / f"05{SUFFIX}")
            assert files.read(f"05{SUFFIX}", head, [blob])
        files._size = None
        assert sum(path.stat().st_size for path in files_in(tmp_path)) <= files.most
    assert [path.name[:2] for path in files_in(tmp_path)] == ["05", *map(str, range(31, 40))]
    files.write(f"large{SUFFIX}", head, [np.zeros(50_000, np.uint8)])
    assert not (tmp_path / f"large{SUFFIX}").exists()
    assert len(files_in(tmp_path)) == 10


async def test_files_that_a_dead_process_left_aside_are_deleted(tmp_path: Path) -> None:
    old, new = (tmp_path / f"{name}{SUFFIX}.1-2.writing" for name in ("old", "new"))
    for path in (old, new):
        path.write_bytes(b"half of it")
    os.utime(old, (1, 1))
    fake, stored = small(tmp_path)
    keep(fake, stored, prompt(PAGE + 1, 1))
    await stored.flush()
    assert not old.exists()
    assert new.exists()  # somebody may be writing it
    assert len(files_in(tmp_path)) == 2


async def test_a_failed_read_of_the_device_is_not_written(tmp_path: Path) -> None:
    fake, stored = small(tmp_path)
    tokens = prompt(2 * PAGE, 1)
    fake.now = tokens, ""
    save = fake.save

    def failing(*given: Any, **options: Any) -> Any:
        snapshot = save(*given, **options)
        fake.reads[-1].error = ValueError("lost")
        fake.reads[-1].over = True
        return snapshot

    fake.save = failing
    stored.keep(tokens, 0)
    await stored.flush()
    assert files_in(tmp_path) == []
    assert await check(fake, stored, [*tokens, 1]) == 0


async def test_a_disk_that_takes_nothing_is_told_once(
    tmp_path: Path, log: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    fake, stored = small(tmp_path)
    for seed in range(3):
        tokens = prompt(2 * PAGE, seed)
        keep(fake, stored, tokens)
        await stored.flush()
        assert await check(fake, stored, [*tokens, 1]) == 2 * PAGE  # memory has it
    assert files_in(tmp_path) == []
    assert len(log) == 1
    assert "No space left" in log[0]


async def test_a_folder_that_cannot_be_made_is_told_once(tmp_path: Path, log: list[str]) -> None:
    (tmp_path / "file").touch()
    fake, stored = small(tmp_path / "file" / "folder")
    tokens = prompt(3 * PAGE, 1)
    keep(fake, stored, tokens)
    await stored.flush()
    assert await check(fake, stored, [*tokens, 1]) == 3 * PAGE
    assert len(log) == 1


async def test_many_tasks_fetch_one_prompt_while_others_store(tmp_path: Path) -> None:
    fake, stored = small(tmp_path, states=True)
    asked = [prompt(2 * PAGE + n, n) for n in range(6)]
    for tokens in asked:
        keep(fake, stored, tokens, states=True)
    await stored.flush()
    stored.clear()
    async with anyio.create_task_group() as tasks:
        for tokens in asked * 4:
            tasks.start_soon(stored.fetch, [*tokens, 1])
        for _ in range(20):
            await anyio.lowlevel.checkpoint()
            keep(fake, stored, prompt(PAGE, 99), states=True)
    for tokens in asked:
        assert stored.match([*tokens, 1]) == len(tokens)
    assert stored.nbytes <= stored.budget


async def test_a_cancelled_fetch_leaves_nothing_half_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake, stored = small(tmp_path)
    tokens = prompt(3 * PAGE + 1, 1)
    keep(fake, stored, tokens)
    await stored.flush()
    stored.clear()
    read, begun, may = PageFiles.read, threading.Event(), threading.Event()

    def slow(*given: Any) -> bool:
        begun.set()
        assert may.wait(60)
        return read(*given)

    monkeypatch.setattr(PageFiles, "read", slow)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(stored.fetch, tokens)
        await anyio.to_thread.run_sync(begun.wait, 60)
        tasks.cancel_scope.cancel()
    assert stored.match(tokens) == 0
    pending = stored.pending(tokens)
    assert pending is not None
    may.set()
    await pending.wait_until_done()
    await stored.flush()
    assert await check(fake, stored, tokens) == 3 * PAGE


TESTS = str(Path(__file__).parents[2])

WRITER = """
import sys, asyncio
from pathlib import Path
sys.path.insert(0, {tests!r})
from models.kv.test_prefix_files import small
from models.kv.test_prefixes import keep
from models.kv.running import prompt

async def main():
    for _ in range(3):
        fake, stored = small(Path({folder!r}), states=True)
        for seed in range(5):
            keep(fake, stored, prompt(150 + seed, seed), states=True)
        await stored.flush()

asyncio.run(main())
"""


@pytest.mark.long
async def test_two_processes_share_a_folder(tmp_path: Path, log: list[str]) -> None:
    code = WRITER.format(tests=TESTS, folder=str(tmp_path))
    others = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(2)]  # noqa: ASYNC220
    while any(process.poll() is None for process in others):
        fake, stored = small(tmp_path, states=True)
        for seed in range(5):
            await check(fake, stored, [*prompt(150 + seed, seed), 1])
        await anyio.lowlevel.checkpoint()
    assert [process.returncode for process in others] == [0, 0]
    fake, stored = small(tmp_path, states=True)
    for seed in range(5):
        assert await check(fake, stored, [*prompt(150 + seed, seed), 1]) == 150 + seed
    assert log == []


def test_the_identity_of_a_model_changes_with_its_files(tmp_path: Path) -> None:
    one, two = tmp_path / "m-00001-of-00002.gguf", tmp_path / "m-00002-of-00002.gguf"
    one.write_bytes(b"first")
    two.write_bytes(b"second")
    whole = identity_of(one)
    assert identity_of(one) == whole
    assert identity_of(two) == whole  # all parts count
    times = two.stat()
    two.write_bytes(b"sEcond")
    os.utime(two, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert identity_of(one) != whole
    two.write_bytes(b"second")
    os.utime(two, ns=(times.st_atime_ns, times.st_mtime_ns + 1))
    assert identity_of(one) != whole
    assert identity_of(tmp_path) == identity_of(one)  # a folder of the same files
    (tmp_path / "config.json").touch()
    assert identity_of(tmp_path) != identity_of(one)
    assert identity_of(one, two) != identity_of(two)
    with pytest.raises(aggml.AggmlError, match="cannot tell which model"):
        identity_of(tmp_path / "none.gguf")


def test_a_folder_needs_to_know_the_model(tmp_path: Path) -> None:
    with pytest.raises(aggml.InvalidArgument, match=r"needs about=identity_of"):
        small(tmp_path, about="")
    with pytest.raises(aggml.InvalidArgument, match=r"folder_bytes=-1 is negative"):
        Prefixes(small(tmp_path)[0], 1, tmp_path, about="m", folder_bytes=-1)
