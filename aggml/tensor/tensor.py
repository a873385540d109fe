"""Tensor: dtype, extents, strides, the operation it comes from, its sources, the storage it views.

Here: layout, flags, names, the way from a tensor to its bytes. Not here: what the operations mean
(ops/), where bytes come from (allocator/, buffer.py), how tensors are made (making.py).
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any, Final

from aggml.dtype import DType
from aggml.errors import (
    InvalidArgument,
    InvalidHandle,
    InvalidState,
    NotAllocated,
    ReadOnly,
    Unsupported,
)
from aggml.process import html
from aggml.tensor.dlpack import CPU_DLPACK, dlpack_of, host_view
from aggml.tensor.layout import Extents, checked_name, describe
from aggml.tensor.operators import Operators
from aggml.tensor.strided import Strided

if TYPE_CHECKING:
    import numpy as np

    from aggml.tensor.placement import Holder, Placement

__all__ = ["INPUT", "LOSS", "OUTPUT", "PARAM", "Tensor", "TensorFlag", "change"]


class TensorFlag(enum.IntFlag):
    """The use of a tensor (enum ``ggml_tensor_flag``)."""

    NONE = 0
    INPUT = 1
    OUTPUT = 2
    PARAM = 4
    LOSS = 8
    COMPUTE = 16


#: Bits of `Tensor.flag_bits`. With a `TensorFlag` a test takes a microsecond: it builds an enum.
INPUT: Final = 1
OUTPUT: Final = 2
PARAM: Final = 4
LOSS: Final = 8

_put = object.__setattr__
_CURE = {
    "name": ": set_name() names it",
    "flags": ": set_input(), set_output(), ... flag it",
    "placement": ": buffers place tensors",
    "shape": ": ops.reshape makes a view of another shape",
    "ne": ": ops.reshape makes a view of another shape",
    "dtype": ": ops.cast converts",
}


def change(tensor: Tensor, name: str, value: object) -> None:
    """Set a field. For this package only: no graph and no plan may depend on the field."""
    _put(tensor, name, value)


class Tensor(Operators, Strided):
    """A value: a leaf, or the result of an operation. It describes the value and holds no data.

    Made by `new_tensor` and the builders of `aggml.ops`; compared and hashed by identity.
    Attributes are read-only: an assignment raises `InvalidState`. `set_name` and its like are
    methods. ``a + b``, ``a @ b``, ``x[:, 1]`` and so on make nodes: see `Operators`.

    Attributes:
        dtype: element type.
        ne: four extents, ``ne[0]`` innermost, unused ones 1; 0 makes an empty tensor.
        ndim: the rank that was built, 1 to 4, whatever the extents: so a batch of one keeps its
            axis. The rule is in docs/tensors.md.
        nb: four strides in bytes; ``nb[0]`` is that of an element, of a block if the type is
            quantized.
        nbytes: bytes from the first to the end of the last element, gaps of a strided view
            included.
        op: lower-case name of the operation ("mul_mat"), "none" for leaves.
        op_params: 64 bytes, 16 little-endian slots of 32 bits; native/table/ops.def lays them out.
        src: the operands; None where an optional operand was not given.
        view_src: the tensor whose storage this one views, never itself a view; None if it has its
            own.
        view_offs: where this view begins in that storage, in bytes.
        name: at most 63 bytes of UTF-8.
        flag_bits: `flags` as an int.
        frozen: whether it is in a Graph, so that its name and flags can no longer change.
        placement: where the storage lies, None until allocated; only that of ``root`` is used.
    """

    __slots__ = (
        "__weakref__",
        "_array",
        "_span",
        "dtype",
        "flag_bits",
        "frozen",
        "name",
        "nb",
        "nbytes",
        "ndim",
        "ne",
        "op",
        "op_params",
        "placement",
        "src",
        "view_offs",
        "view_src",
    )

    dtype: DType
    ne: Extents
    ndim: int
    nb: Extents
    nbytes: int
    op: str
    op_params: bytes
    src: tuple[Tensor | None, ...]
    view_src: Tensor | None
    view_offs: int
    name: str
    placement: Placement | None
    flag_bits: int
    frozen: bool
    _span: tuple[object, object] | None  # what transfers made of the placement (spans.py)
    _array: tuple[np.dtype[Any], tuple[int, ...]] | None  # of the array that holds it (checking.py)

    def __init__(self, *_: object, **__: object) -> None:
        raise InvalidState("[Tensor] tensors are made by new_tensor and by the builders in ops")

    def __setattr__(self, name: str, value: object) -> None:
        if name[0] != "_":  # what this package keeps with it
            cure = _CURE.get(name, "")
            raise ReadOnly(f"[Tensor.{name}] {describe(self)} cannot be changed{cure}")
        _put(self, name, value)

    def __delattr__(self, name: str) -> None:
        raise ReadOnly(f"[Tensor.{name}] {describe(self)} cannot be changed")

    # -- copies

    def __getstate__(self) -> dict[str, object]:
        """For deepcopy and pickle: everything except the placement. A copy has no memory yet."""
        slots = [name for cls in type(self).__mro__ for name in getattr(cls, "__slots__", ())]
        state: dict[str, object] = {x: getattr(self, x) for x in slots if x != "__weakref__"}
        state.update(placement=None, _span=None, _array=None)
        return state

    def __setstate__(self, state: dict[str, object]) -> None:
        for name, value in state.items():
            object.__setattr__(self, name, value)

    # -- storage

    @property
    def root(self) -> Tensor:
        """The tensor that has the storage: itself unless it is a view."""
        return self.view_src or self

    @property
    def buffer(self) -> Holder | None:
        """The buffer that holds the bytes, None until allocated."""
        placement = self.root.placement
        return None if placement is None else placement.buffer

    @property
    def address(self) -> int | None:
        """Address of the first element in the memory of its device, None until allocated."""
        placement = self.root.placement
        return None if placement is None else placement.address + self.view_offs

    def host_view(self) -> np.ndarray[Any, Any]:
        """The memory as a numpy array with the same strides; quantized types as bytes. No copy.

        It is in no order with queued work, which may be writing there: ``await`` that first. The
        array keeps the memory, also when the buffer is closed. It is read-only if the buffer is.

        Raises:
            NotAllocated: no memory, or none that outlives a run (flag a node with `set_output`).
            Unsupported: not host memory.
        """
        return host_view(self, "Tensor.host_view")

    def __array__(self, *_: object, **__: object) -> np.ndarray[Any, Any]:
        """Refused: numpy would read the memory out of order with queued work.

        Raises:
            InvalidHandle: always; the text names the functions to use.
        """
        raise InvalidHandle(
            f"[Tensor] {self!r} is no array: `await backend.get(tensor)` copies what it holds, in "
            "order with queued work; `tensor.host_view()` shows its memory"
        )

    def __dlpack__(self, **options: Any) -> Any:  # noqa: ANN401 - a capsule
        """The same by DLPack: ``np.from_dlpack(tensor)``, ``torch.from_dlpack(tensor)``.

        Raises:
            InvalidArgument: the memory is read-only.
            NotAllocated, Unsupported: as `host_view`; a type or an option that DLPack, or numpy's
                part of it, does not have: bf16, another device.
        """
        return dlpack_of(self, "Tensor.__dlpack__", **options)

    def __dlpack_device__(self) -> tuple[int, int]:
        """The CPU.

        Raises:
            NotAllocated: no memory.
            Unsupported: not host memory.
        """
        placement = self.root.placement
        if placement is None:
            raise NotAllocated(
                f"[Tensor.__dlpack_device__] {self!r} has no memory: call Backend.alloc first"
            )
        if not placement.buffer.is_host:
            raise Unsupported(
                f"[Tensor.__dlpack_device__] {self!r} lies in {placement.buffer!r}, "
                "which the host cannot read"
            )
        return CPU_DLPACK

    @property
    def is_view(self) -> bool:
        """Whether the bytes belong to another tensor."""
        return self.view_src is not None

    # -- names and flags

    @property
    def flags(self) -> TensorFlag:
        """The flags that say what the tensor is used for."""
        return TensorFlag(self.flag_bits)

    def _check_open(self, place: str) -> None:
        if self.frozen:
            raise InvalidState(
                f"[{place}] {describe(self)} is part of a Graph: change it before the Graph is made"
            )

    def _flag(self, bit: int) -> None:
        _put(self, "flag_bits", self.flag_bits | bit)

    def set_name(self, name: str) -> Tensor:
        """Name the tensor: at most 63 bytes of UTF-8, as ggml has room for.

        Names that builders form of other names, such as "w (transposed)", are cut there.

        Raises:
            InvalidArgument: the name is longer.
            InvalidHandle: it is no text.
            InvalidState: the tensor is in a Graph.
        """
        self._check_open("Tensor.set_name")
        _put(self, "name", checked_name(name, "Tensor.set_name"))
        return self

    def set_input(self) -> Tensor:
        """Flag the tensor as set by the user before a computation (``ggml_set_input``).

        Raises:
            InvalidState: the tensor is in a Graph.
        """
        self._check_open("Tensor.set_input")
        self._flag(INPUT)
        return self

    def set_output(self) -> Tensor:
        """Flag the tensor, and the one it views, as read after a computation (``ggml_set_output``).

        A leaf that is viewed, and already in a Graph, stays as it is: nothing reuses its memory.

        Raises:
            InvalidState: the tensor, or the node whose storage it views, is in a Graph.
        """
        self._check_open("Tensor.set_output")
        root = self.view_src
        if (
            root is not None
            and not root.flag_bits & OUTPUT
            and not (root.frozen and root.op == "none")
        ):
            root._check_open("Tensor.set_output")
            root._flag(OUTPUT)
        self._flag(OUTPUT)
        return self

    def set_param(self) -> Tensor:
        """Flag a leaf as a parameter to be trained (``ggml_set_param``).

        Raises:
            InvalidArgument: the tensor is the result of an operation.
            InvalidState: the tensor is in a Graph.
        """
        self._check_open("Tensor.set_param")
        if self.op != "none":
            raise InvalidArgument(
                f"[Tensor.set_param] {describe(self)} is no leaf: parameters are tensors of "
                "new_tensor"
            )
        self._flag(PARAM)
        return self

    def set_loss(self) -> Tensor:
        """Flag a scalar as a loss (``ggml_set_loss``).

        Raises:
            InvalidArgument: the tensor is not one f32.
            InvalidState: the tensor is in a Graph.
        """
        self._check_open("Tensor.set_loss")
        if not self.is_scalar or self.dtype is not DType.F32:
            raise InvalidArgument(
                f"[Tensor.set_loss] {describe(self)} is not a single f32: ops.sum adds up many"
            )
        self._flag(LOSS)
        return self

    def __repr__(self) -> str:
        words = [describe(self)]
        if self.op != "none":
            words.append(f"= {self.op}")
        if self.view_src is not None:
            words.append(f"at {self.view_src.name or 'storage'} + {self.view_offs}")
        if not self.is_contiguous:
            words.append(f"nb {list(self.nb)}")
        words += [
            flag.name.lower() for flag in TensorFlag if flag and flag & self.flag_bits and flag.name
        ]
        if self.root.placement is not None:
            words.append("placed")
        return f"<Tensor {' '.join(words)}>"

    def _repr_html_(self) -> str:
        """For notebooks."""
        placement = self.root.placement
        rows = [
            ("name", self.name),
            ("type", self.dtype.type_name),
            ("shape", self.shape),
            ("ne", self.ne),
            ("op", self.op),
            ("operands", ", ".join(x.name or "?" for x in self.src if x is not None)),
            ("bytes", f"{self.nbytes:,}"),
            ("lies in", "no memory yet" if placement is None else repr(placement.buffer)),
        ]
        return html.table("Tensor", (), [row for row in rows if row[1] not in ("", "none")])
