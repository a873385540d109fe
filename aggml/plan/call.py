"""PlanCall: the step of a plan that calls a Python function of the user.

Here: its operands as arrays, calling it, checking its return value. Not here: the thread that runs
it (stream/call_thread.py), the record of the function in the node (ops/custom.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from aggml.errors import InvalidArgument
from aggml.ops.custom import CustomParams
from aggml.tensor import array_over

if TYPE_CHECKING:
    from aggml.tensor import Tensor

__all__ = ["PlanCall"]


class _Bytes:
    """Memory with numpy's array interface; every array made from it keeps ``owner`` alive."""

    def __init__(self, address: int, size: int, owner: object, *, readonly: bool) -> None:
        self.__array_interface__ = {
            "version": 3,
            "typestr": "|u1",
            "shape": (size,),
            "data": (address, readonly),
        }
        self.owner = owner


class PlanCall:
    """One call, with operands as addresses or as offsets into the arena.

    Args:
        node: the node that the function fills.
        places: (address, whether it is an offset into the arena) of ``node`` and of its sources.
    """

    __slots__ = ("name", "node", "op", "params", "places")

    def __init__(self, node: Tensor, places: list[tuple[int, bool]]) -> None:
        assert isinstance(node.op_params, CustomParams)
        self.node: Tensor = node
        self.name: str = node.name
        self.op: str = node.op
        self.params: CustomParams = node.op_params
        self.places: list[tuple[int, bool]] = places

    def __call__(self, arena: int, owner: object) -> None:
        """Run the function once for each of its tasks.

        Args:
            arena: address of this run's scratch.
            owner: keeps scratch and operands alive; arrays that the function keeps refer to it.

        Raises:
            InvalidArgument: the function returned something.
            BaseException: whatever the function raises.
        """
        tensors = (self.node, *[src for src in self.node.src if src is not None])
        arrays: list[np.ndarray[Any, Any]] = []
        for i, (tensor, (at, in_arena)) in enumerate(zip(tensors, self.places, strict=True)):
            base = at + arena if in_arena else at
            memory = _Bytes(base, tensor.nbytes, owner, readonly=i > 0)
            arrays.append(array_over(tensor, np.asarray(memory), 0))
        params, dst = self.params, arrays[0]
        for ith in range(params.n_calls):
            result = params.function(*arrays, ith, params.n_calls, params.userdata)
            if result is not None and result is not dst:
                raise InvalidArgument(
                    f"[{self.op}] {params.function!r} returned {type(result).__name__}: "
                    "it must write its result into dst, its first argument, and return None"
                )
