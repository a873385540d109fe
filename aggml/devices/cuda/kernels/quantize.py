"""Launches that write blocks of a quantized type or add to them, by a module for each type."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aggml.devices.cuda.pack import ceil

if TYPE_CHECKING:
    from aggml.devices.cuda.launch import Launch
    from aggml.devices.cuda.pack import NodeSite
    from aggml.dtype import DType

__all__ = ["add", "cpy", "set_rows"]


def _module(dtype: DType) -> str:
    return f"quantize[TYPE={dtype.name}]"


def add(site: NodeSite) -> list[Launch]:
    """A thread for each block of a."""
    a = site.node.src[0]
    assert a is not None
    grid = (min(ceil(a.nelements // a.dtype.blck_size, 64), 1 << 20), 1, 1)
    return [site.launch(_module(a.dtype), "add", grid, (64, 1, 1), 2)]


def cpy(site: NodeSite) -> list[Launch]:
    """A thread for each block of the result."""
    dtype = site.node.dtype
    grid = (min(ceil(site.node.nelements // dtype.blck_size, 64), 1 << 20), 1, 1)
    return [site.launch(_module(dtype), "cpy", grid, (64, 1, 1), 1)]


def set_rows(site: NodeSite) -> list[Launch]:
    """A block for each row of b; the indices are good."""
    b = site.node.src[0]
    assert b is not None
    return [
        site.launch(
            _module(site.node.dtype), "set_rows", (min(b.nrows, 1 << 20), 1, 1), (64, 1, 1), 2
        )
    ]
