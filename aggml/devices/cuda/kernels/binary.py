"""Launches of ops with two operands, of which the second may repeat, and of scale."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from aggml.devices.cuda.kernels import quantize
from aggml.devices.cuda.pack import merge, rows_by_columns
from aggml.dtype import DType
from aggml.ops.table import in_group

if TYPE_CHECKING:
    from aggml.devices.cuda.launch import Launch
    from aggml.devices.cuda.pack import NodeSite

__all__ = ["OPS", "launches"]

#: The ops that are launched here.
OPS = in_group("binary")


def launches(site: NodeSite) -> list[Launch]:
    """One launch."""
    node = site.node
    a, b = site.src(0), site.src(1)
    if node.op == "scale":
        operands = merge([site.dst, a])
        grid, block = rows_by_columns(operands[0].ne)
        return [site.launch("binary", "scale_f32", grid, block, 1, operands=operands)]
    if DType(a.type).is_quantized:
        return quantize.add(site)
    if node.op == "add1":
        b = replace(b, ne=(1, 1, 1, 1))
    operands = merge([site.dst, a, b])
    grid, block = rows_by_columns(operands[0].ne)
    same = all(o.type == DType.F32.value for o in operands)
    kernel = "binary_f32" if same else "binary_any"
    return [site.launch("binary", kernel, grid, block, 2, operands=operands)]
