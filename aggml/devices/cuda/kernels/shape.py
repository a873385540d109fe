"""Launches of concat and repeat, which are copies."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from aggml.devices.cuda.kernels.cpy import copy
from aggml.dtype import DType
from aggml.ops.table import in_group

if TYPE_CHECKING:
    from aggml.devices.cuda.launch import Launch
    from aggml.devices.cuda.pack import NodeSite

__all__ = ["OPS", "launches"]

#: The ops that are launched here.
OPS = (*in_group("shape"), "repeat")


def launches(site: NodeSite) -> list[Launch]:
    """One copy for repeat, two for concat."""
    dst, a, b = site.dst, site.src(0), site.src(1)
    if site.node.op == "repeat":
        return copy(site, dst, a)
    dim = int.from_bytes(site.node.op_params[:4], "little", signed=True)
    n = a.ne[dim] // (DType(a.type).blck_size if dim == 0 else 1)
    second = replace(dst, ne=b.ne, data=dst.data + n * dst.nb[dim])
    return [*copy(site, replace(dst, ne=a.ne), a), *copy(site, second, b)]
