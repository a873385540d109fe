"""Which backend has which layers of a model: decided from the sizes of tensors and memories.

Here: plain functions on numbers. Not here: bringing weights there (weights.py), running (site.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

__all__ = ["SHARE", "Division", "by_home", "divide_layers", "layer_of"]

#: Weights and caches take at most this share of a device's free memory; the rest is for the
#: results of a step's operations.
SHARE: Final = 0.85


@dataclass(frozen=True, slots=True)
class Division:
    """The backends of a model's tensors, by their numbers in the scheduler.

    Attributes:
        layers: the backend of each layer.
        ends: the backend of the output norm and the weights of the logits.
        rest: the backend of all else, such as embeddings: the last one, which is a CPU's.
    """

    layers: tuple[int, ...]
    ends: int
    rest: int

    def of(self, name: str) -> int:
        """The backend of a tensor, by its name in the file."""
        layer = layer_of(name)
        if layer is not None and layer < len(self.layers):
            return self.layers[layer]
        return self.ends if name.startswith("output") else self.rest


def layer_of(name: str) -> int | None:
    """The layer of a tensor, by its name in the file; None if it belongs to none."""
    return int(name.split(".", 2)[1]) if name.startswith("blk.") else None


def divide_layers(
    tensors: Mapping[str, int], caches: Sequence[int], free: Sequence[int], first: int = 0
) -> Division:
    """Assign the layers to devices.

    The last backend is a CPU's. As many of the last layers as fit go to the devices before it; the
    first layers stay on the CPU. Layers stay in order, so a step passes from one device to the next
    only once. Each device gets layers in proportion to its memory, so that all devices are used.

    Args:
        tensors: bytes of each tensor by its name.
        caches: bytes of the caches of each layer.
        free: bytes that each backend but the last has for weights and caches.
        first: the number in the file of the first layer.
    """
    sizes = list(caches)
    ends = 0
    for name, size in tensors.items():
        layer = layer_of(name)
        if layer is not None and 0 <= layer - first < len(sizes):
            sizes[layer - first] += size
        elif name.startswith("output"):
            ends += size
    units, host = [*sizes, ends], len(free)
    for stay in range(len(units) + 1):
        homes = _share_out(units[stay:], free)
        if homes is not None:
            homes = [host] * stay + homes
            break
    else:
        raise AssertionError("no layers fit always")
    return Division((*[host] * first, *homes[:-1]), homes[-1], host)


def _share_out(units: Sequence[int], free: Sequence[int]) -> list[int] | None:
    """The device of each unit, in order and in proportion to memory; None if they do not fit."""
    if not units:
        return []
    if sum(units) > sum(free):
        return None
    bounds = [x * sum(units) / sum(free) for x in accumulate(free)]
    homes: list[int] = []
    used, done = [0] * len(free), 0.0
    for unit in units:
        middle = done + unit / 2
        home = next((k for k, bound in enumerate(bounds) if middle < bound), len(free) - 1)
        home = max(home, homes[-1] if homes else 0)
        while home < len(free) and used[home] + unit > free[home]:
            home += 1
        if home == len(free):
            return None
        homes.append(home)
        used[home] += unit
        done += unit
    return homes


def by_home(names: Iterable[str], home: Callable[[str], int]) -> dict[int, list[str]]:
    """Names of tensors by the backend that has them."""
    found: dict[int, list[str]] = {}
    for name in names:
        found.setdefault(home(name), []).append(name)
    return found
