"""Helpers that all builders share: checks with messages, parameters as 64 bytes, enums by name.

Not here: the shape and type rules of any operation.
"""

from __future__ import annotations

import enum
import struct
from operator import index
from typing import TYPE_CHECKING, Final, NoReturn, TypeVar

from aggml.dtype import TYPES, DType
from aggml.errors import InvalidArgument, InvalidHandle, InvalidState, LayoutMismatch, Unsupported
from aggml.tensor import Extents, Tensor, change, describe, new_view

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from aggml.tensor import Extents

__all__ = [
    "BF16",
    "DOT_TYPES",
    "F16",
    "F32",
    "FLOATS",
    "HALF_OR_SINGLE",
    "I32",
    "I64",
    "READ_ONLY",
    "Prec",
    "all_tensors",
    "by_name",
    "gaps",
    "list_values",
    "member",
    "mismatch",
    "need_dense",
    "need_f32_rows",
    "need_node",
    "need_rows",
    "pack",
    "product_of",
    "refuse_type",
    "rename_builder",
    "set_param",
    "set_sinks",
    "suffix",
    "two_tensors",
    "view_of",
    "whole",
    "wider",
]

# In Python 3.11, looking up a member through its class costs four times as much as a global.
F32: Final = DType.F32
F16: Final = DType.F16
BF16: Final = DType.BF16
I32: Final = DType.I32
I64: Final = DType.I64
FLOATS: Final = frozenset((F32, F16, BF16))
HALF_OR_SINGLE: Final = frozenset((F32, F16))
# Quantized types that no op writes: they have a quantizer for weights only, or are the types to
# which the other operand of a product is converted.
READ_ONLY: Final = frozenset(
    dtype
    for dtype, row in TYPES.items()
    if dtype.is_quantized and (not row.writes or row.group == "DOT")
)

# By the type of the first operand of a product: the type to which rows of the second are converted.
DOT_TYPES: Final = {dtype: DType(row.dot) for dtype, row in TYPES.items() if row.dot >= 0}

E = TypeVar("E", bound=enum.Enum)
Builder = TypeVar("Builder", bound="Callable[..., Tensor]")


class Prec(enum.IntEnum):
    """The least precision in which a device may compute (enum ``ggml_prec``).

    `prec_set_acc` sets it for the sums of a product, `prec_set_src` for its second operand. A
    device may always be more precise. UNDEFINED lets the device choose; DEFAULT is its old name.
    """

    UNDEFINED = 0
    DEFAULT = 0
    F32 = 10
    BF16 = 15
    F16 = 20
    Q8 = 30  # 8-bit types such as q8_0, q8_1 and q8_K; for operands, not for sums
    Q4 = 40  # 4-bit types such as q4_0, q4_K, mxfp4 and nvfp4; for operands, not for sums


def by_name(enum: type[E]) -> Mapping[object, E]:
    """A table from member, value and lower-case name to the member, for one look-up per call."""
    table: dict[object, E] = {}
    for name, member in enum.__members__.items():
        table[member] = table[member.value] = table[name.lower()] = member
    return table


def rename_builder(build: Builder, module: str, name: str, told: str) -> Builder:
    """A builder out of a table, with its own name in messages, traces and help."""
    build.__module__, build.__doc__ = module, told
    build.__name__ = build.__qualname__ = name
    build.__code__ = build.__code__.replace(co_name=name)
    return build


def member(op: str, argument: str, given: object, table: Mapping[object, E]) -> E:
    """The member that ``given`` names in a table of `by_name`.

    Raises:
        InvalidArgument: it names none.
    """
    found = table.get(given)
    if found is None:
        names = sorted(name for name in table if isinstance(name, str))
        raise InvalidArgument(f"[{op}] {argument} = {given!r}, which is none of {', '.join(names)}")
    return found


def need_node(op: str, a: Tensor, of: str, *, to_change: bool = True) -> None:
    """Check that ``ops.<of>`` made the node ``a``, and with ``to_change`` that it may be changed.

    Raises:
        InvalidArgument: it comes from another op.
        InvalidHandle: it is no tensor.
        InvalidState: it is in a Graph.
    """
    if a.__class__ is not Tensor:
        all_tensors(op, a=a)
    if a.op != of:
        raise InvalidArgument(f"[{op}] {describe(a)} comes from {a.op}, not from {of}")
    if to_change and a.frozen:
        raise InvalidState(
            f"[{op}] {describe(a)} is part of a Graph: change it before the Graph is made"
        )


def set_param(op: str, a: Tensor, at: int, *values: int) -> Tensor:
    """Change the 32-bit parameters of the node ``a`` from slot ``at`` on; returns ``a``.

    Raises:
        InvalidArgument: a value does not fit 32 bits.
    """
    new = pack(op, struct.Struct(f"<{len(values)}i"), *values)
    old = a.op_params
    change(a, "op_params", old[: 4 * at] + new + old[4 * at + len(new) :])
    return a


def set_sinks(op: str, a: Tensor, sinks: Tensor | None, heads: int, at: int) -> Tensor:
    """Set ``a.src[at]`` to a tensor with one logit per head, or remove it; returns ``a``.

    Raises:
        InvalidHandle: it is no tensor.
        InvalidState: ``a`` has sinks already.
        LayoutMismatch: not one for each of ``heads``, or gaps.
        Unsupported: another type than f32.
    """
    if sinks is None:
        kept = a.src[:at]
        change(a, "src", kept[:-1] if kept[-1] is None else kept)
        return a
    if sinks.__class__ is not Tensor:
        all_tensors(op, sinks=sinks)
    if len(a.src) > at:
        raise InvalidState(
            f"[{op}] {describe(a)} has sinks already: pass None first, which removes them"
        )
    if sinks.dtype is not F32:
        raise refuse_type(op, "sinks of f32", sinks=sinks)
    if sinks.ne != (heads, 1, 1, 1) or not sinks.is_contiguous:
        raise mismatch(op, f"expected one sink per head, a contiguous [{heads}]", sinks=sinks)
    change(a, "src", (*a.src, *[None] * (at - len(a.src)), sinks))
    return a


def pack(op: str, layout: struct.Struct, *values: object) -> bytes:
    """Parameters of a node, 64 bytes.

    Raises:
        InvalidArgument: a value is no number or does not fit a 32-bit integer or float.
    """
    try:
        return layout.pack(*values)
    except (struct.error, OverflowError) as error:
        raise InvalidArgument(f"[{op}] parameters {list_values(values)}: {error}") from None


def whole(op: str, *values: object) -> tuple[int, ...]:
    """The values as integers.

    Raises:
        InvalidHandle: one of them is no integer.
    """
    try:
        return tuple(map(index, values))  # type: ignore[arg-type]
    except TypeError:
        raise InvalidHandle(f"[{op}] {list_values(values)}: all must be integers") from None


def list_values(values: Iterable[object]) -> str:
    """Values for a message."""
    return ", ".join(map(str, values))


def all_tensors(op: str, **operands: object) -> NoReturn:
    """Raise `InvalidHandle`, naming the operand that is no tensor."""
    for name, value in operands.items():
        if not isinstance(value, Tensor):
            raise InvalidHandle(f"[{op}] {name} is no tensor: {value!r}")
    raise AssertionError("called although all operands are tensors")


def mismatch(op: str, what: str, **operands: Tensor | None) -> LayoutMismatch:
    """The exception that says ``what`` is wrong with which operands."""
    return LayoutMismatch(f"[{op}] {what}: {_name_operands(operands)}")


def refuse_type(op: str, takes: str, **operands: Tensor) -> Unsupported:
    """The exception for types that the operation does not take; it names those that it takes."""
    return Unsupported(f"[{op}] not for these types: {_name_operands(operands)}; it takes {takes}")


def product_of(dot: DType | None) -> str:
    """The pair of types of a product whose second operand is converted to ``dot``, for messages."""
    if dot is None:
        return "a of a float or a quantized type that files have"
    return f"b of f32 or {dot.type_name} with this a"


def gaps(op: str, **operands: Tensor) -> LayoutMismatch:
    """The exception for operands with gaps between the elements of a row."""
    given = ", ".join(f"{name} = {describe(a)}, nb {list(a.nb)}" for name, a in operands.items())
    return LayoutMismatch(
        f"[{op}] rows have gaps between elements: {given}; ops.cont makes a copy without gaps"
    )


def need_dense(op: str, **operands: Tensor) -> None:
    """Check that the elements of each operand lie in order, without gaps.

    Raises:
        LayoutMismatch: an operand has gaps, or another order; `ops.cont` makes a copy without.
    """
    for name, a in operands.items():
        if not a.is_contiguous:
            raise LayoutMismatch(
                f"[{op}] {name} is not contiguous: {describe(a)}, nb {list(a.nb)}; ops.cont makes "
                "a contiguous copy"
            )


def need_rows(op: str, name: str, a: Tensor) -> None:
    """Check that the elements of each row lie without gaps.

    Raises:
        LayoutMismatch: a row has gaps; `ops.cont` makes a copy without.
    """
    if not a.is_contiguous_rows:
        raise gaps(op, **{name: a})


def need_f32_rows(op: str, **operands: Tensor) -> None:
    """Check that all operands are f32 tensors and that the elements of each row lie without gaps.

    Raises:
        InvalidHandle: an operand is no tensor.
        LayoutMismatch: a row has gaps.
        Unsupported: an operand is not f32.
    """
    for operand in operands.values():
        if operand.__class__ is not Tensor:
            all_tensors(op, **operands)
        if operand.dtype is not F32:
            raise refuse_type(op, "f32", **operands)
    for name, operand in operands.items():
        need_rows(op, name, operand)


def suffix(a: Tensor, what: str) -> str:
    """The name of a result made of ``a``, as ggml forms it; empty if ``a`` has no name."""
    return f"{a.name} ({what})" if a.name else ""


def wider(a: Tensor, b: Tensor, least: int = 1) -> int:
    """The larger rank of both, or ``least``."""
    m, n = a.ndim, b.ndim
    if n > m:
        m = n
    return m if m >= least else least  # noqa: FURB136 - max() takes 60 ns, a twentieth of a node


def _name_operands(operands: Mapping[str, Tensor | None]) -> str:
    return ", ".join(f"{name} = {describe(a)}" for name, a in operands.items() if a is not None)


_OFFSET = struct.Struct("<q56x")


def view_of(op: str, a: Tensor, ne: Extents, nb: Extents, offset: int, ndim: int) -> Tensor:
    """Make a view, for all builders of views; ``op`` is for messages, ``ndim`` is the rank."""
    params = pack(op, _OFFSET, offset)
    return new_view("view", a, ne, nb, offset, (a,), params, suffix(a, "view"), ndim)


def two_tensors(op: str, a: Tensor, b: Tensor) -> None:
    """Refuse operands that are no tensors (InvalidHandle)."""
    if a.__class__ is not Tensor or b.__class__ is not Tensor:
        all_tensors(op, a=a, b=b)
