"""Prefixes: beginnings of prompts that are stored, so that later prompts need not compute them.

What is stored is a tree. A node is a page of `PAGE` tokens, with its keys and values, or an end:
the states at one exact position, with the keys and values behind the last whole page. A node is
found by a hash of its tokens and of all before them, and of everything else that keys and values
depend on; its own tokens are compared as well. So it stands for one beginning only.

Nodes that have not been read completely, or whose reading failed, are never used. What is left
behind by a failed step is thus never taken for good, even though the device would copy a page in
the right order before it is complete. The least recently used node goes first when memory is short;
whoever uses a node uses all before it, so the ends of beginnings go before their heads.

Here: which beginnings are stored, and restoring them. Not here: their memory (page_memory.py,
snapshots.py), files (prefix_files.py), when the engine stores and restores (../engine/engine.py).
"""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from aggml import InvalidArgument
from aggml.models.kv.page_memory import PageMemory
from aggml.models.kv.paging import PAGE
from aggml.models.kv.snapshots import Snapshot
from aggml.process.locks import new_rlock

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from aggml.models.kv.paging import PagedDecoder

__all__ = ["Prefixes"]

DIGEST: Final = 16  # bytes; a collision of two hashes is expected after 2^64 nodes
TOKEN: Final = 4  # bytes


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

    All methods may be called from any thread. None of them waits, but for those that are async; so
    no cancellation can leave something half stored.

    Args:
        decoder: whose caches are read and written.
        budget: bytes of host memory for all that is stored; 0: nothing is stored.
        about: all that keys and values depend on beside the model's architecture and the type of
            the caches, such as the names of adapters. A model has one `Prefixes`; this is for what
            is loaded with it.

    Attributes:
        budget: as given.
        allowed: bytes that may be stored at present, at most ``budget``: the engine gives what its
            sequences do not need.
        nbytes: bytes that are stored, tokens included.
        queries: tokens of all prompts for which `restore` was asked.
        hits: those of them that were restored.
    """

    def __init__(self, decoder: PagedDecoder, budget: int, *, about: str = "") -> None:
        if budget < 0:
            raise InvalidArgument(f"[Prefixes] budget={budget} is negative: 0 stores nothing")
        self._decoder = decoder
        self.budget = self.allowed = budget
        self.nbytes = self.queries = self.hits = 0
        form = decoder.form
        self._page_bytes = PAGE * (form.position + TOKEN)  # of a page, with its tokens
        known = repr((decoder.kept_as, form, PAGE, about))
        self._root = hashlib.blake2b(known.encode(), digest_size=DIGEST).digest()
        self._lock = new_rlock()
        self._begin()

    def _begin(self) -> None:
        """Forget everything."""
        self._memory = PageMemory(self._decoder.form, self.budget // self._page_bytes)
        self._nodes: OrderedDict[bytes, _Node] = OrderedDict()  # the least recently used first
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

        The last token is always computed, for its logits. It changes nothing, and takes 2 us for
        each page.

        Args:
            tokens: the prompt.
            about: what the keys and values of this prompt depend on besides, such as an adapter.
        """
        with self._lock:
            return self._found(tokens, about)[0]

    def pending(self, tokens: Sequence[int], *, about: str = "") -> Snapshot | None:
        """What is being read at present and would lengthen `match`; None: nothing.

        A prompt that waits for it, ``await snapshot.settled()``, need not compute it.
        """
        with self._lock:
            path = self._path(tokens, len(tokens) - 1, about)
            for depth in range(len(path), -1, -1):
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
            n, path, end = self._found(tokens, about)
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
                self._decoder.load(slot, end.snapshot)
            self._touch([*path, end] if end is not None else path)
            return n

    def _found(self, tokens: Sequence[int], about: str) -> tuple[int, list[_Node], _Node | None]:
        """How many tokens are stored; the nodes of their pages; the end, if there are states."""
        path = self._path(tokens, len(tokens) - 1, about)
        good = next((i for i, node in enumerate(path) if not node.good), len(path))
        if not self._decoder.has_states:
            return good * PAGE, path[:good], None
        for depth in range(good, -1, -1):
            ends = [x for x in self._ends(path, tokens, depth, about) if x.good]
            if ends:
                end = max(ends, key=lambda x: len(x.tokens))
                return depth * PAGE + len(end.tokens) // TOKEN, path[:depth], end
        return 0, [], None

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
        self, tokens: Sequence[int], slot: int, *, states: bool = False, about: str = ""
    ) -> None:
        """Queue reads of what a slot holds of a beginning and is not stored yet.

        That is the keys and values of all whole pages; with ``states`` also the states, which must
        have processed exactly these tokens, and the keys and values behind the last page. It is
        found by `match` when it has been read. If the budget does not suffice even when all others
        are given up, the head is stored, or nothing. What a failed step left behind is not stored.

        Args:
            tokens: what the slot has processed.
            slot: the sequence.
            states: whether to store the states, if the model has any.
            about: as for `match`.
        """
        with self._lock:
            decoder, n = self._decoder, len(tokens)
            states = states and decoder.state_at(slot, n)
            if not n or not (states or decoder.grows):
                return
            whole = decoder.savable(slot, n) // PAGE
            root = self._tree(about)
            path = self._path(tokens, whole * PAGE, about)
            held = [root, *path]
            for node in held:
                node.pins += 1
            try:
                self._keep_pages(tokens, slot, whole, path, held)
                if states and len(path) == n // PAGE and decoder.savable(slot, n) == n:
                    end = self._keep_end(tokens, slot, held[-1])
                    self._touch([end] if end is not None else [])
                self._touch(path)
            finally:
                for node in held:
                    node.pins -= 1
                self._prune(held)
            if decoder.has_states:
                self._memory.trim()

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

    def _keep_end(self, tokens: Sequence[int], slot: int, parent: _Node) -> _Node | None:
        """Store the states of a slot, and the keys and values behind the last page."""
        n, form = len(tokens), self._decoder.form
        begin = n // PAGE * PAGE
        own = _bytes_of(tokens[begin:])
        key = _hash(parent.key, b"states" + own)
        old = self._nodes.get(key)
        if old is not None:
            if old.parent is not parent or old.tokens != own:
                return None  # another one has the same hash, and stays
            if not old.failed:
                return old
            self._drop(old)
        nbytes = form.state + (n - begin) * form.position + len(own)
        if not self._make_room(nbytes):
            return None
        snapshot = self._decoder.save(slot, begin, n - begin, states=True)
        node = _Node(key, parent, own, snapshot=snapshot, nbytes=nbytes)
        self._add(node)
        return node

    def _add(self, node: _Node) -> None:
        self._nodes[node.key] = node
        self.nbytes += node.nbytes
        if node.parent is not None:
            node.parent.children.add(node)

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
            if parent.children or parent.pins or parent.parent is None or parent.snapshot:
                return
            node = parent

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
        if nodes and not nodes[-1].children and nodes[-1].snapshot is None:
            self._drop(nodes[-1])
        if not root.children:
            self._trees.pop(root.key, None)


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


def _bytes_of(tokens: Sequence[int]) -> bytes:
    return array("i", tokens).tobytes()


def _hash(parent: bytes, own: bytes) -> bytes:
    return hashlib.blake2b(parent + own, digest_size=DIGEST).digest()
