"""Nodes that a backend of ggml claims to run, but does not run or computes wrong.

Recorded calls showed these cases.

Here: cases of Vulkan in ggml 0.25.3, seen on Mesa 26.2, each kind on 22.3 too. Not here: functions
that libraries of other versions lack (native/ggml/builders.def).
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from aggml.dtype import DType

if TYPE_CHECKING:
    from aggml.tensor import Tensor

__all__ = ["find_known_fault"]

_HEAD: Final = 64  # head size that the shader of rwkv_wkv6 assumes, whatever the tensor has


def find_known_fault(kind: str, node: Tensor) -> str | None:
    """Why a node is refused although the library accepts it; None if it is not refused.

    Args:
        kind: ggml's name of the backend.
        node: the node to be computed.
    """
    if kind != "Vulkan":
        return None
    first, second = (*node.src, None, None)[:2]
    if node.op in {"mul_mat", "mul_mat_id"} and second is not None:
        if second.dtype not in {DType.F32, DType.F16}:
            return f"Vulkan ends in an assertion for a second operand of {second.dtype}"
    elif node.op == "rwkv_wkv6" and first is not None and first.ne[0] != _HEAD:
        return f"Vulkan takes heads of {first.ne[0]} for heads of {_HEAD}"
    elif node.op == "sum" and first is not None and not first.is_contiguous:
        return "Vulkan sums memory, not the elements of a view with gaps"
    elif node.op == "group_norm" and first is not None:
        (groups,) = struct.unpack_from("i", node.op_params)
        if first.ne[2] % groups:
            return "Vulkan takes a last group that is smaller for a whole one"
    return None
