"""Which backend has which layers of a model: decided by memory, from sizes alone.

Here: plain functions on numbers. Not here: bringing weights there (weights.py), running (site.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

__all__ = ["SHARE", "Division", "by_home", "divided", "layer_of"]

#: Of the memory that is free on a device weights and caches take this share; the rest is for what
#: steps compute.
SHARE: Final = 0.85


@dataclass(frozen=True, slots=True)
class Division:
    """Which backend, by its number in the scheduler, has what.

    Attributes:
        layers: of each layer.
        ends: of what comes behind the last one: the norm and the weights of the logits.
        rest: of everything else, such as embeddings: the last backend, which is a CPU's.
    """

    layers: tuple[int, ...]
    ends: int
    rest: int

    def of(self, name: str) -> int:
        """Of a tensor by its name in the file."""
        layer = layer_of(name)
        if layer is not None and layer < len(self.layers):
            return self.layers[layer]
        return self.ends if name.startswith("output") else self.rest


def layer_of(name: str) -> int | None:
    """The layer of a tensor, by its name in the file; None if it belongs to none."""
    return int(name.split(".", 2)[1]) if name.startswith("blk.") else None


def divided(
    tensors: Mapping[str, int], caches: Sequence[int], free: Sequence[int], first: int = 0
) -> Division:
    """Give the last layers to the devices before the last one, as many as they have memory for.

    Layers stay in order, so a step crosses from device to device once. Each device gets layers in
    proportion to its memory, so that all of them are used; layers that fit nowhere, the first ones,
    stay on the last backend.

    Args:
        tensors: bytes of each tensor by its name.
        caches: bytes of the caches of each layer.
        free: bytes that each backend but the last has for weights and caches.
        first: the number in the file of the first of the layers.
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
        homes = _shared(units[stay:], free)
        if homes is not None:
            homes = [host] * stay + homes
            break
    else:
        raise AssertionError("no layers fit always")
    return Division((*[host] * first, *homes[:-1]), homes[-1], host)


def _shared(units: Sequence[int], free: Sequence[int]) -> list[int] | None:
    """The device of each unit, in order and in proportion; None if they do not fit."""
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
