"""Prefixes: beginnings of prompts that are stored, so that later prompts need not compute them.

What is stored is a tree. A node is a page of `PAGE` tokens, with its keys and values, or an end:
the keys and values behind the last whole page, and the states at one exact position if there are
any.

Here: which beginnings are stored, and restoring them. Not here: their memory (page_memory.py,
snapshots.py), the format of files (page_files.py), when the engine stores and restores
(../engine/engine.py).
"""

from __future__ import annotations

import hashlib
import struct
import sys
from array import array
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from aggml import InvalidArgument
from aggml.models.errors import ModelError
from aggml.models.kv.page_files import SUFFIX, FileReading, FileThread, PageFiles, PageHead
from aggml.models.kv.page_memory import PageMemory
from aggml.models.kv.paging import PAGE
from aggml.models.kv.snapshots import Snapshot, blank
from aggml.process.locks import new_rlock
from aggml.stream.waits import CHECKPOINT

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from aggml.models.kv.paging import PagedDecoder

__all__ = ["Prefixes"]

DIGEST: Final = 16  # bytes; a collision of two hashes is expected after 2^64 nodes
TOKEN: Final = 4  # bytes
LEAST_END: Final = PAGE // 4  # tokens behind the last page that are worth an end without states
_OF_PAGE: Final = struct.Struct(f"={PAGE}i")


class _Node:
    """A page, or an end.

    Attributes:
        key: its hash; that of the root stands for the model.
        parent: the node of the page before it; None: it is the root.
        tokens: its own tokens as bytes: those of a whole page, or of an end fewer.
        children: pages and ends that follow it.
        page: its page of the memory; None: it has none.
        snapshot: its bytes, alone or with those of other pages; None: it has none, as a page of a
            model that keeps states alone.
        nbytes: memory that it takes.
        pins: how many need it to stay.
    """

    __slots__ = ("children", "key", "nbytes", "page", "parent", "pins", "snapshot", "tokens")

    def __init__(
        self,
        key: bytes,
        parent: _Node | None,
        tokens: bytes,
        *,
        page: int | None = None,
        snapshot: Snapshot | None = None,
        nbytes: int = 0,
    ) -> None:
        self.key = key
        self.parent = parent
        self.tokens = tokens
        self.children: set[_Node] = set()
        self.page = page
        self.snapshot = snapshot
        self.nbytes = nbytes
        self.pins = 0

    @property
    def is_end(self) -> bool:
        return len(self.tokens) < PAGE * TOKEN

    @property
    def good(self) -> bool:
        return self.snapshot is None or self.snapshot.good

    @property
    def failed(self) -> bool:
        return self.snapshot is not None and self.snapshot.failed is not None


class Prefixes:
    """The beginnings of prompts that a model has stored.

    A node is found by a hash of its tokens, of all before them, and of everything else that keys
    and values depend on; its own tokens are compared as well. So it stands for one beginning only.

    A node that has not been read completely, or whose reading failed, is never used. So what a
    failed step left behind is never taken for good. The least recently used node goes first when
    memory is short; whoever uses a node uses all before it, so tails go before heads.

    All methods may be called from any thread. None of them waits, but for those that are async; so
    no cancellation can leave something half stored.

    Args:
        decoder: whose caches are read and written.
        budget: bytes of host memory for all that is stored; 0: nothing is stored.
        folder: where beginnings are also kept in files, for later processes; None: nowhere.
        about: all that keys and values depend on beside the model's architecture and the type of
            the caches: with a folder `identity_of` the model's files, and the adapters that are
            always used.
        folder_bytes: the most bytes of the folder; what was not used for the longest time goes.

    Attributes:
        budget: as given.
        allowed: bytes that may be stored at present, at most ``budget``: the engine gives what its
            sequences do not need.
        nbytes: bytes that are stored, tokens included.
        queries: tokens of all prompts for which `restore` was asked.
        hits: those of them that were restored.
    """

    def __init__(
        self,
        decoder: PagedDecoder,
        budget: int,
        folder: Path | None = None,
        *,
        about: str = "",
        folder_bytes: int = 8 << 30,
    ) -> None:
        if budget < 0:
            raise InvalidArgument(f"[Prefixes] budget={budget} is negative: 0 stores nothing")
        if folder_bytes < 0:
            raise InvalidArgument(f"[Prefixes] folder_bytes={folder_bytes} is negative")
        if folder is not None and not about:
            raise InvalidArgument(
                f"[Prefixes] folder={str(folder)!r} needs about=identity_of(path): without it, the "
                "files of one model would be taken for those of another one"
            )
        self._files = None if folder is None else PageFiles(folder, folder_bytes)
        self._thread = FileThread()
        self._decoder = decoder
        self.budget: int = budget
        self.allowed: int = budget
        self.nbytes: int = 0
        self.queries: int = 0
        self.hits: int = 0
        form = decoder.form
        self._page_bytes = PAGE * (form.position + TOKEN)  # of a page, with its tokens
        known = repr((decoder.kept_as, form, PAGE, about, sys.byteorder))
        self._root = hashlib.blake2b(known.encode(), digest_size=DIGEST).digest()
        self._lock = new_rlock()
        self._begin()

    def _begin(self) -> None:
        """Forget everything."""
        self._memory = PageMemory(self._decoder.form, self.budget // self._page_bytes)
        self._nodes: OrderedDict[bytes, _Node] = OrderedDict()  # the least recently used first
        # Ends without states, by the node before them and their first `LEAST_END` tokens.
        self._tails: dict[tuple[bytes, bytes], set[_Node]] = {}
        self._trees: dict[bytes, _Node] = {}  # roots, by their keys
        self.nbytes = 0

    def __len__(self) -> int:
        """How many pages and ends are stored."""
        return len(self._nodes)

    def clear(self) -> None:
        """Forget all that is stored, and free its memory."""
        with self._lock:
            self._begin()

    # -- finding

    def match(self, tokens: Sequence[int], *, about: str = "") -> int:
        """How many first tokens of a prompt could be restored: at most ``len(tokens) - 1``.

        The last token is always computed, for its logits. It changes nothing, and takes 3 us for
        each page.

        Args:
            tokens: the prompt.
            about: what the keys and values of this prompt depend on besides, such as an adapter.
        """
        with self._lock:
            return self._find(tokens, about)[0]

    def branch(self, tokens: Sequence[int], *, about: str = "") -> int:
        """How many first tokens of a prompt an earlier one had, too: at most ``len(tokens) - 1``.

        It may be more than `match`: of a model with states, those at that position may be missing.
        """
        with self._lock:
            path = self._path(tokens, len(tokens) - 1, about)
            node = path[-1] if path else self._trees.get(self._tree_key(about))
            if node is None:
                return 0
            at = len(path) * PAGE
            rest = _bytes_of(tokens[at : min(at + PAGE, len(tokens) - 1)])
            most = 0
            for child in node.children:
                if child.tokens[: most + TOKEN] == rest[: most + TOKEN]:  # few get beyond this
                    most = _common(rest, child.tokens)
            return at + most // TOKEN

    def pending(self, tokens: Sequence[int], *, about: str = "") -> Snapshot | None:
        """What is being read at present and would lengthen `match`; None: nothing.

        A prompt that waits for it, ``await snapshot.wait_until_done()``, need not compute it.
        """
        with self._lock:
            path = self._path(tokens, len(tokens) - 1, about)
            last = 0 if self._decoder.has_states else len(path)
            for depth in range(len(path), last - 1, -1):
                for end in self._ends(path, tokens, depth, about):
                    if not end.good and not end.failed:
                        return end.snapshot
            # What was queued last is done last.
            return next((node.snapshot for node in reversed(path) if not node.good), None)

    def restore(
        self, tokens: Sequence[int], slot: int, *, row: int | None = None, about: str = ""
    ) -> int:
        """Queue writes of the stored beginning of a prompt to a slot.

        They come behind the steps queued so far, and before all that is queued later. The slot must
        have been promised these positions.

        Args:
            tokens: the prompt.
            slot: the sequence.
            row: of further rows that get the keys and values as well, the first; None: none do.
            about: as for `match`.

        Returns:
            How many positions are restored, as `match`; the prompt goes on from there.
        """
        with self._lock:
            n, path, end = self._find(tokens, about)
            self.queries += len(tokens)
            self.hits += n
            for first, page, count in _runs(path):
                snapshot = Snapshot(
                    self._decoder.form,
                    first * PAGE,
                    count * PAGE,
                    self._memory.rows(page, count),
                )
                writes = self._decoder.load(slot, snapshot)
                if row is not None:
                    writes += self._decoder.load_rows(row, snapshot)
                self._memory.note(page, count, writes)
            if end is not None and end.snapshot is not None:
                snapshot = end.snapshot
                if snapshot.states is None:
                    snapshot = snapshot.part(snapshot.first, n - snapshot.first)
                self._decoder.load(slot, snapshot)
                if row is not None and snapshot.n:  # keys and values behind the last page
                    self._decoder.load_rows(row, snapshot)
            self._touch([*path, end] if end is not None else path)
            return n

    def _find(self, tokens: Sequence[int], about: str) -> tuple[int, list[_Node], _Node | None]:
        """How many tokens are stored; the nodes of their pages; the end behind these, if any."""
        path = self._path(tokens, len(tokens) - 1, about)
        good = next((i for i, node in enumerate(path) if not node.good), len(path))
        if not self._decoder.has_states:
            return self._with_tail(path[:good], tokens, about)
        for depth in range(good, -1, -1):
            ends = [x for x in self._ends(path, tokens, depth, about) if x.good]
            if ends:
                end = max(ends, key=lambda x: len(x.tokens))
                return depth * PAGE + len(end.tokens) // TOKEN, path[:depth], end
        return 0, [], None

    def _with_tail(
        self, path: list[_Node], tokens: Sequence[int], about: str
    ) -> tuple[int, list[_Node], _Node | None]:
        """`_find` for keys and values: of an end the first tokens can be used, too."""
        n, end = len(path) * PAGE, None
        rest = _bytes_of(tokens[n : min(n + PAGE, len(tokens) - 1)])
        before = path[-1] if path else self._trees.get(self._tree_key(about))
        most = 0
        for tail in () if before is None else self._alike(before, rest):
            if tail.good and tail.tokens[: most + TOKEN] == rest[: most + TOKEN]:
                most, end = _common(rest, tail.tokens), tail
        return n + most // TOKEN, path, end

    def _alike(self, before: _Node, own: bytes) -> list[_Node]:
        """The ends without states behind a node that begin as these tokens do."""
        those = self._tails.get((before.key, own[: LEAST_END * TOKEN]), ())
        return [x for x in those if x.parent is before]

    def _ends(
        self, path: Sequence[_Node], tokens: Sequence[int], depth: int, about: str
    ) -> Iterator[_Node]:
        """The ends behind the first pages of a path with which a prompt goes on."""
        node = path[depth - 1] if depth else self._trees.get(self._tree_key(about))
        if node is None:
            return
        rest = _bytes_of(tokens[depth * PAGE : min((depth + 1) * PAGE, len(tokens) - 1)])
        for child in node.children:
            if child.is_end and rest.startswith(child.tokens):
                yield child

    def _path(self, tokens: Sequence[int], n: int, about: str) -> list[_Node]:
        """The nodes of the first whole pages of ``n`` tokens, as far as they are stored."""
        node, path = self._trees.get(self._tree_key(about)), []
        for at in range(0, n - PAGE + 1, PAGE):
            own = _bytes_of(tokens[at : at + PAGE])
            child = self._nodes.get(_hash(node.key, own)) if node is not None else None
            if child is None or child.parent is not node or child.tokens != own:
                break
            if child.failed:
                self._drop_tree(child)
                break
            path.append(child)
            node = child
        return path

    def _tree_key(self, about: str) -> bytes:
        return _hash(self._root, about.encode()) if about else self._root

    def _tree(self, about: str) -> _Node:
        """The root for prompts of which all this is true."""
        key = self._tree_key(about)
        if key not in self._trees:
            self._trees[key] = _Node(key, None, b"")
        return self._trees[key]

    def _touch(self, path: Sequence[_Node]) -> None:
        """Note that a beginning was used. What follows a page is given up before it."""
        for node in reversed(path):
            self._nodes.move_to_end(node.key)

    # -- storing

    def keep(
        self,
        tokens: Sequence[int],
        slot: int,
        *,
        states: bool = False,
        tail: bool = False,
        about: str = "",
    ) -> int:
        """Queue reads of what a slot holds of a beginning and is not stored yet.

        That is the keys and values of all whole pages; with ``states`` also the states, which must
        have processed exactly these tokens, and the keys and values behind the last page. It is
        found by `match` when it has been read. If the budget does not suffice even when all others
        are given up, the head is stored, or nothing. What a failed step left behind is not stored.

        Args:
            tokens: what the slot has processed.
            slot: the sequence.
            states: whether to store the states, if the model has any.
            tail: whether to store the keys and values behind the last page if there are no states.
                They are not kept in files.
            about: as for `match`.

        Returns:
            How many of the tokens are stored, or being read.
        """
        with self._lock:
            decoder, n = self._decoder, len(tokens)
            tail = tail and not decoder.has_states and n % PAGE >= LEAST_END
            states = states and decoder.state_at(slot, n)
            if not n or not (states or decoder.grows):
                return 0
            whole = decoder.savable(slot, n) // PAGE
            root = self._tree(about)
            path = self._path(tokens, whole * PAGE, about)
            held = [root, *path]
            end = None
            for node in held:
                node.pins += 1
            try:
                self._keep_pages(tokens, slot, whole, path, held)
                if (
                    (states or tail) and len(path) == n // PAGE and decoder.savable(slot, n) == n
                ):  # fmt: skip
                    end = self._keep_end(tokens, slot, held[-1], states=states)
                    self._touch([end] if end is not None else [])
                self._touch(path)
            finally:
                for node in held:
                    node.pins -= 1
                self._prune(held)
            if decoder.has_states:
                self._memory.trim()
            return n if end is not None else len(path) * PAGE

    def _keep_pages(
        self, tokens: Sequence[int], slot: int, whole: int, path: list[_Node], held: list[_Node]
    ) -> None:
        """Store the pages of a beginning that follow ``path``; lengthens that and ``held``."""
        pages = self._new_pages(tokens, whole, path, held[-1])
        if not self._decoder.grows:  # its pages only lead to ends
            for key, own in pages:
                if not self._make_room(PAGE * TOKEN):
                    break
                self._add_page(key, own, None, None, path, held)
            return
        room = self._room(len(pages))
        page = path[-1].page if path else None
        for first, count in self._memory.take(room, page):
            at = len(path)
            into = self._memory.rows(first, count)
            try:
                snapshot = self._decoder.save(slot, at * PAGE, count * PAGE, into=into)
            except BaseException:  # the model is closed
                for number in range(first, first + count):
                    self._memory.give_back(number)
                raise
            self._memory.note(first, count, snapshot.waits)
            for number, (key, own) in enumerate(pages[:count], first):
                self._add_page(key, own, number, snapshot, path, held)
                self._write(held[-1], len(path) - 1)
            del pages[:count]

    def _new_pages(
        self, tokens: Sequence[int], whole: int, path: Sequence[_Node], parent: _Node
    ) -> list[tuple[bytes, bytes]]:
        """Keys and tokens of the pages that follow ``path``, up to the page ``whole``.

        It ends before a page whose hash is that of another one. That one stays.
        """
        found: dict[bytes, bytes] = {}
        key = parent.key
        for at in range(len(path) * PAGE, whole * PAGE, PAGE):
            own = _bytes_of(tokens[at : at + PAGE])
            key = _hash(key, own)
            if key in self._nodes or key in found:
                break
            found[key] = own
        return [*found.items()]

    def _room(self, want: int) -> int:
        """Make room for so many pages; returns for how many there is some."""
        room = 0
        while room < want and self._make_room((room + 1) * self._page_bytes):
            room += 1
        return min(room, self._memory.free)

    def _add_page(
        self,
        key: bytes,
        own: bytes,
        page: int | None,
        snapshot: Snapshot | None,
        path: list[_Node],
        held: list[_Node],
    ) -> None:
        nbytes = PAGE * TOKEN if page is None else self._page_bytes
        node = _Node(key, held[-1], own, page=page, snapshot=snapshot, nbytes=nbytes)
        self._add(node)
        path.append(node)
        held.append(node)
        node.pins += 1

    def _keep_end(
        self, tokens: Sequence[int], slot: int, parent: _Node, *, states: bool
    ) -> _Node | None:
        """Store the keys and values of a slot behind the last page, and its states."""
        n, form = len(tokens), self._decoder.form
        begin = n // PAGE * PAGE
        own = _bytes_of(tokens[begin:])
        shorter = []
        for tail in () if states else self._alike(parent, own):
            if tail.tokens.startswith(own) and not tail.failed:
                return tail
            if own.startswith(tail.tokens) and not tail.pins:
                shorter.append(tail)
        for tail in shorter:
            self._drop(tail)
        key = _hash(parent.key, b"states" + own)
        old = self._nodes.get(key)
        if old is not None:
            if old.parent is not parent or old.tokens != own:
                return None  # another one has the same hash, and stays
            if not old.failed:
                return old
            self._drop(old)
        nbytes = (form.state if states else 0) + (n - begin) * form.position + len(own)
        if not self._make_room(nbytes):
            return None
        snapshot = self._decoder.save(slot, begin, n - begin, states=states)
        node = _Node(key, parent, own, snapshot=snapshot, nbytes=nbytes)
        self._add(node)
        if states:
            self._write(node, n // PAGE)
        else:
            self._tails.setdefault((parent.key, own[: LEAST_END * TOKEN]), set()).add(node)
        return node

    def _add(self, node: _Node) -> None:
        self._nodes[node.key] = node
        self.nbytes += node.nbytes
        if node.parent is not None:
            node.parent.children.add(node)

    # -- files

    def _head(self, node: _Node, depth: int) -> PageHead:
        """What the file of a node says; ``depth`` pages lie before it."""
        assert node.parent is not None
        tokens = array("i", node.tokens).tolist()
        root, parent, key = self._root.hex(), node.parent.key.hex(), node.key.hex()
        return PageHead(root, parent, key, depth * PAGE, tokens)

    def _write(self, node: _Node, depth: int) -> None:
        """Have a node written to its file when it has been read; it stays until then."""
        files, snapshot = self._files, node.snapshot
        if files is None or snapshot is None:
            return
        head, page, memory = self._head(node, depth), node.page, self._memory
        node.pins += 1

        def write() -> None:
            try:
                for future in snapshot.waits:
                    future.wait()
                if not snapshot.good:
                    return
                if page is None:
                    files.write(head.end_name, head, [*snapshot.pieces()])
                else:
                    files.write(head.page_name, head, memory.rows(page, 1))
            finally:
                with self._lock:
                    node.pins -= 1

        self._thread.do(write)

    @property
    def has_files(self) -> bool:
        """Whether beginnings are kept in files, too."""
        return self._files is not None

    async def fetch(self, tokens: Sequence[int], *, about: str = "") -> None:
        """Read what files have of a prompt and memory has not, so that `match` finds it.

        Without a folder it does nothing. A thread reads the files.

        Cancellation: abandons the wait; the reading goes on.
        """
        if self._files is None:
            await CHECKPOINT
            return
        await self._thread.wait_for(lambda: self._fetch(tokens, about))

    async def flush(self) -> None:
        """Wait until all that was stored so far has been written to files.

        Cancellation: abandons only the wait.
        """
        await self._thread.wait_for()

    def _fetch(self, tokens: Sequence[int], about: str) -> None:
        """`fetch`, in the thread."""
        files = self._files
        assert files is not None
        names = files.names()
        if not names:
            return
        with self._lock:
            memory, held = self._memory, [self._tree(about)]
            new = self._blanks(names, tokens, about, held)
        good = True
        for node, reading, depth in new:
            good = good and self._read(files, memory, node, depth)
            reading.end(None if good else ModelError("its file, or one before, is not good"))
        with self._lock:
            for node in held:
                node.pins -= 1
            for node, _, _ in new:
                if node.failed and self._nodes.get(node.key) is node:
                    self._drop_tree(node)
            there = [node for node in held[1:] if self._nodes.get(node.key) is node]
            self._touch(there)
            self._prune([held[0], *there])

    def _blanks(
        self, names: set[str], tokens: Sequence[int], about: str, held: list[_Node]
    ) -> list[tuple[_Node, FileReading, int]]:
        """Add nodes without contents, for what is to be read.

        Args:
            names: of all files.
            tokens: the prompt.
            about: as for `match`.
            held: the root; all nodes of the prompt's beginning are appended. They are pinned.

        Returns:
            The nodes to read, and how many pages lie before each.
        """
        decoder, form = self._decoder, self._decoder.form
        path = self._path(tokens, len(tokens) - 1, about)
        held += path
        for node in held:
            node.pins += 1
        pages = self._new_pages(tokens, (len(tokens) - 1) // PAGE, path, held[-1])
        if decoder.grows:
            there = [PageHead("", "", key.hex(), 0, []).page_name in names for key, _ in pages]
            pages = pages[: there.index(False)] if False in there else pages
        depth, end = len(path) + len(pages), None
        if decoder.has_states:
            keys = [node.key for node in held] + [key for key, _ in pages]
            known = self._find(tokens, about)[0]
            end = _longest_end(names, tokens, keys, known)
            if end is None:
                return []
            depth = end[0]
        del pages[max(depth - len(path), 0) :]
        new: list[tuple[_Node, FileReading, int]] = []
        if not decoder.grows:
            for key, own in pages:
                if not self._make_room(PAGE * TOKEN):
                    return []
                self._add_page(key, own, None, None, path, held)
        else:
            room = self._room(len(pages)) if pages else 0
            if end is not None and room < len(pages):
                return []  # the states would be of no use without all pages before
            for first, count in self._memory.take(room, path[-1].page if path else None):
                for page in range(first, first + count):
                    at, reading = len(path), FileReading()
                    waits: Any = (reading,)
                    rows = self._memory.rows(page, 1)
                    snapshot = Snapshot(form, at * PAGE, PAGE, rows, None, waits)
                    self._add_page(*pages.pop(0), page, snapshot, path, held)
                    new.append((held[-1], reading, at))
        if end is not None:
            own = end[1]
            n = len(own) // TOKEN
            nbytes = form.state + n * form.position + len(own)
            key = _hash(held[depth].key, b"states" + own)
            if key not in self._nodes and self._make_room(nbytes):
                rows, states = blank(form, n, states=True)
                reading = FileReading()
                waits = (reading,)
                snapshot = Snapshot(form, depth * PAGE, n, rows, states, waits)
                node = _Node(key, held[depth], own, snapshot=snapshot, nbytes=nbytes)
                self._add(node)
                held.append(node)
                node.pins += 1
                new.append((node, reading, depth))
        return new

    def _read(self, files: PageFiles, memory: PageMemory, node: _Node, depth: int) -> bool:
        """Read a node from its file, in the thread."""
        head, snapshot = self._head(node, depth), node.snapshot
        assert snapshot is not None
        if node.page is None:
            return files.read(head.end_name, head, [*snapshot.pieces()])
        for future in memory.transfers(node.page, 1):  # of another one that had this page before
            future.wait()
        return files.read(head.page_name, head, snapshot.rows)

    # -- giving up

    def _make_room(self, nbytes: int) -> bool:
        """Give up the least recently used nodes until so many bytes fit; False: they cannot."""
        while self.nbytes + nbytes > min(self.budget, self.allowed):
            old = next((x for x in self._nodes.values() if not (x.children or x.pins)), None)
            if old is None:
                return False
            self._drop(old)
        return True

    def shrink(self, nbytes: int) -> None:
        """Give up the least recently used beginnings until at most so many bytes are stored."""
        with self._lock:
            while self.nbytes > nbytes:
                old = next((x for x in self._nodes.values() if not (x.children or x.pins)), None)
                if old is None:
                    break
                self._drop(old)
            self._memory.trim()

    def _drop(self, node: _Node) -> None:
        """Give up a node that nothing follows, and pages without memory that only led to it."""
        while True:
            del self._nodes[node.key]
            self.nbytes -= node.nbytes
            if node.page is not None:
                self._memory.give_back(node.page)
            parent = node.parent
            assert parent is not None
            parent.children.discard(node)
            if node.is_end:
                self._forget_tail(node, parent)
            if parent.children or parent.pins or parent.parent is None or parent.snapshot:
                return
            node = parent

    def _forget_tail(self, node: _Node, parent: _Node) -> None:
        key = parent.key, node.tokens[: LEAST_END * TOKEN]
        those = self._tails.get(key)
        if those is not None:
            those.discard(node)
            if not those:
                del self._tails[key]

    def _drop_tree(self, node: _Node) -> None:
        """Give up a node and all that follows it."""
        found = [node]
        for each in found:  # grows meanwhile
            found.extend(each.children)
        for each in reversed(found):
            if self._nodes.get(each.key) is each:  # else it went with its last child
                self._drop(each)

    def _prune(self, path: Sequence[_Node]) -> None:
        """Forget pages that have no memory and lead to no end, and the root if nothing follows."""
        root, *nodes = path
        last = nodes[-1] if nodes else root
        if last is not root and not (last.children or last.pins or last.snapshot):
            self._drop(last)
        if not (root.children or root.pins) and self._trees.get(root.key) is root:
            del self._trees[root.key]


def _longest_end(
    names: set[str], tokens: Sequence[int], keys: Sequence[bytes], known: int
) -> tuple[int, bytes] | None:
    """The file of states that lie furthest in a prompt, beyond the position ``known``.

    Args:
        names: of all files.
        tokens: the prompt.
        keys: of the root and of the pages of the prompt.
        known: so many tokens are found without files.

    Returns:
        How many pages lie before it, and its own tokens; None: there is none.
    """
    by_parent: dict[str, list[tuple[int, str]]] = {}
    for name in names:
        parts = name.removesuffix(SUFFIX).split("-")
        if len(parts) == 3 and parts[1].isdecimal():
            by_parent.setdefault(parts[0], []).append((int(parts[1]), parts[2]))
    for depth in range(len(keys) - 1, -1, -1):
        at = depth * PAGE
        for n, name in sorted(by_parent.get(keys[depth].hex(), ()), reverse=True):
            if n >= PAGE or not known < at + n < len(tokens):
                continue
            own = _bytes_of(tokens[at : at + n])
            if _hash(keys[depth], b"states" + own).hex() == name:
                return depth, own
    return None


def _runs(path: Sequence[_Node]) -> list[tuple[int, int, int]]:
    """The nodes' pages as runs: the first node's number, its page, and how many."""
    found: list[tuple[int, int, int]] = []
    for i, node in enumerate(path):
        if node.page is None:
            continue
        if found and found[-1][1] + found[-1][2] == node.page:
            found[-1] = (*found[-1][:2], found[-1][2] + 1)
        else:
            found.append((i, node.page, 1))
    return found


def _common(one: bytes, other: bytes) -> int:
    """How many first bytes of two rows of tokens are equal, as whole tokens."""
    n = min(len(one), len(other))
    differ = np.frombuffer(one[:n], np.int32) != np.frombuffer(other[:n], np.int32)
    return int(differ.argmax()) * TOKEN if differ.any() else n


def _bytes_of(tokens: Sequence[int]) -> bytes:
    if len(tokens) == PAGE:
        return _OF_PAGE.pack(*tokens)  # 1 us; an array of them takes 4 us
    return array("i", tokens).tobytes()


def _hash(parent: bytes, own: bytes) -> bytes:
    return hashlib.blake2b(parent + own, digest_size=DIGEST).digest()
