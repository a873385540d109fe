"""Memory: what a loaded model takes, in bytes, measured.

Here: `Memory`, and the measuring. Not here: what a model will take (fitting.py), keeping several
models within a bound (host.py).
"""

from __future__ import annotations

import ctypes
import functools
import mmap
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from aggml import Unsupported
from aggml.memory.shortage import amount
from aggml.native import _native

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aggml import Tensor
    from aggml.models.site import Site

__all__ = ["Memory", "Parts", "measure"]

#: `mincore` writes one byte for each page of the system: so many are asked for at a time.
PAGES_AT_ONCE: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes that a model takes at this moment: ``print(model.memory)``.

    Attributes:
        mapped: weights: the part of the file that is mapped, or their copy in a device's memory.
            The system may drop pages of a mapped file when memory is short, and reads them again.
        packed: copies of weights in the order in which the kernels of the CPU read them.
        pages: keys, values and states. In host memory those pages count that were written.
        scratch: results of operations. Models on one backend share it, so each of them tells all.
        graphs: inputs and results of the graphs that are kept.
        total: all of these together.
    """

    mapped: int
    packed: int
    pages: int
    scratch: int
    graphs: int
    total: int

    def __add__(self, other: Memory) -> Memory:
        """Both together."""
        return Memory(*(getattr(self, x) + getattr(other, x) for x in self.__slots__))

    def __str__(self) -> str:
        names = ("mapped", "packed", "pages", "scratch", "graphs", "total")
        return "\n".join(f"{name:8} {amount(getattr(self, name))}" for name in names)


@dataclass(frozen=True, slots=True)
class Parts:
    """What a model has, for `measure`.

    Attributes:
        site: where it is computed.
        weights: all of them.
        caches: tensors of keys, values and states.
    """

    site: Site
    weights: Iterable[Tensor]
    caches: Iterable[Tensor] = ()


def measure(computer: object, *others: object) -> Memory:
    """What the part of a model that computes takes at this moment.

    In host memory the system is asked which pages of caches are there: 1 ms for 4 GiB.

    Args:
        computer: has a method ``parts``, as `Decoder`, `Encoder` and `Listener` have.
        others: more of them that belong to the model.

    Raises:
        Unsupported: it computes on other machines.
    """
    every = [_parts_of(x) for x in (computer, *others)]
    weights = [t for parts in every for t in parts.weights]
    places = {id(t.placement): t for t in weights if t.placement is not None}
    mapped = _extent(places.values())
    packed = sum(_native.packed_of(t.placement.storage) for t in places.values() if t.placement)
    pages = _present(t for parts in every for t in parts.caches if t.placement is not None)
    scratch, known = 0, set[object]()
    for site in (parts.site for parts in every):
        if not known.issuperset(site.backends):  # graphs of a backend share its scratch memory
            scratch += site.scratch
            known.update(site.backends)
    each = (graph for parts in every for graph in parts.site.graphs)
    graphs = sum(graph.memory.size for graph in each if graph.memory is not None)
    return Memory(
        mapped, packed, pages, scratch, graphs, mapped + packed + pages + scratch + graphs
    )


def _parts_of(computer: object) -> Parts:
    parts_of: Any = getattr(computer, "parts", None)
    if parts_of is None:
        raise Unsupported(
            f"[memory] {type(computer).__name__} computes in other processes: each of them tells "
            "its own memory"
        )
    found: Parts = parts_of()
    return found


def _extent(tensors: Iterable[Tensor]) -> int:
    """Bytes of all tensors together; bytes that several of them share count once."""
    return sum(end - begin for begin, end in _ranges(tensors))


def _ranges(tensors: Iterable[Tensor]) -> list[tuple[int, int]]:
    """The address ranges of tensors, in order and apart from each other.

    Memories of different devices may have equal addresses, so they count one by one.
    """
    by_device: dict[int, list[tuple[int, int]]] = {}
    for tensor in tensors:
        place = tensor.placement
        if place is not None and tensor.nbytes:
            begin = place.address
            device = id(place.buffer.type.device)
            by_device.setdefault(device, []).append((begin, begin + tensor.nbytes))
    found: list[tuple[int, int]] = []
    for ranges in by_device.values():
        ends = 0
        for begin, end in sorted(ranges):
            if end > ends:
                found.append((max(begin, ends), end))
                ends = end
    return found


def _present(tensors: Iterable[Tensor]) -> int:
    """Bytes of tensors that have memory: in host memory whole pages of the system."""
    host, total = [], 0
    for tensor in tensors:
        if tensor.placement is not None and tensor.placement.buffer.type.is_host:
            host.append(tensor)
        else:
            total += tensor.nbytes
    pages: dict[int, int] = {}
    for begin, end in _ranges(host):
        first, last = begin // mmap.PAGESIZE, -(-end // mmap.PAGESIZE)
        pages[first] = max(last, pages.get(first, last))
    done = 0
    for first, last in sorted(pages.items()):
        total += _resident(max(first, done), last)
        done = max(done, last)
    return total


@functools.cache
def _mincore() -> Any:  # noqa: ANN401 a function of the C library
    """The system's `mincore`; None if it has none."""
    try:
        found = ctypes.CDLL(None).mincore
    except (AttributeError, OSError, TypeError):
        return None
    found.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
    found.restype = ctypes.c_int
    return found


def _resident(first: int, last: int) -> int:
    """Bytes of the system's pages ``first`` to ``last`` - 1 that are in memory."""
    ask, total = _mincore(), 0
    for at in range(first, last, PAGES_AT_ONCE):
        n = min(last - at, PAGES_AT_ONCE)
        told = np.zeros(n, np.uint8)
        size = n * mmap.PAGESIZE
        if ask is None or ask(at * mmap.PAGESIZE, size, told.ctypes.data) != 0:
            total += size  # the system does not tell
        else:
            total += int(np.count_nonzero(told & 1)) * mmap.PAGESIZE
    return total
