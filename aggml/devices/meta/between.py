"""Memory between rounds: offsets for the storages that several rounds touch.

Here: first fit by lifetimes. One layout serves all devices: a storage takes as much as its largest
part. Not here: memory within a round, which is the scratch of each backend.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aggml.memory.buffer import align_up

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aggml.devices.meta.round import StorageUse

__all__ = ["lay_out_storages"]


def lay_out_storages(needed: Sequence[StorageUse], alignment: int) -> tuple[list[int], int]:
    """An offset for each storage, and the total bytes. Two alive in one round do not overlap."""
    offsets = [0] * len(needed)
    total = 0
    lying: list[tuple[int, int, int]] = []  # begin, end, last round
    for k in sorted(range(len(needed)), key=lambda k: needed[k].first):
        one = needed[k]
        size = align_up(max(1, *(part.nbytes for part in one.each)), alignment)
        lying = sorted(place for place in lying if place[2] >= one.first)
        at = 0
        for begin, end, _ in lying:
            if at + size <= begin:
                break
            at = max(at, end)
        offsets[k] = at
        lying.append((at, at + size, one.last))
        total = max(total, at + size)
    return offsets, total
