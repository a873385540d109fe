"""The operators of tensors: the builder that each operator calls, and views by index.

Here: operands that are numbers, products and indices as numpy has them. Not here: which operators
there are (tensor/operators.py), shapes and checks of the builders.
"""

from __future__ import annotations

import numbers
import struct
from operator import index as integer
from typing import TYPE_CHECKING, ClassVar, NamedTuple, NoReturn

import numpy as np

from aggml.errors import InvalidArgument, InvalidHandle, LayoutMismatch, OutOfBounds
from aggml.ops._common import DOT_TYPES, F32, FLOATS, pack, suffix
from aggml.ops.binary import add, div, mul, scale, scale_bias, sub
from aggml.ops.cpy import cast, cont
from aggml.ops.mul_mat import mul_mat
from aggml.ops.out_prod import out_prod
from aggml.ops.shape import permute, reshape_1d, reshape_2d, reshape_3d, transpose
from aggml.ops.shape_repeat import repeat_4d
from aggml.ops.unary import abs as abs_
from aggml.ops.unary import ceil, floor, neg, sqr, sqrt, trunc
from aggml.ops.unary import round as round_
from aggml.tensor import Tensor, change, describe, new_view
from aggml.tensor.operators import Operators

if TYPE_CHECKING:
    from collections.abc import Callable

    from aggml.tensor import Extents

__all__ = ["Transposed"]  # no builders: the operators of Tensor call these functions

_OFFSET = struct.Struct("<q56x")


def _refuse(sign: str, a: Tensor, other: object, cure: str) -> NoReturn:
    of = type(other).__name__
    if isinstance(other, np.ndarray):
        cure += "; what the tensor holds comes by await backend.get(tensor), or host_view()"
    raise InvalidHandle(f"[{sign}] {describe(a)} and {of} {other!r:.60}: {cure}")


def _number(sign: str, a: Tensor, other: object, op: str) -> float:
    if isinstance(other, numbers.Real):
        return float(other)
    cure = f"ops.{op} takes tensors; arrays come in by Backend.set, into a leaf of new_tensor"
    _refuse(sign, a, other, cure)


def _binary(
    sign: str,
    builder: Callable[[Tensor, Tensor], Tensor],
    scaled: Callable[[Tensor, float], Tensor],
) -> Callable[[Tensor, object], Tensor]:
    def make(a: Tensor, b: object) -> Tensor:
        if isinstance(b, Tensor):
            return builder(a, b)
        return scaled(a, _number(sign, a, b, builder.__name__))

    return make


def _divide(a: Tensor, by: float) -> Tensor:
    if by == 0:
        raise InvalidArgument(f"[a / b] {describe(a)} is divided by 0; ops.div divides by a tensor")
    return scale(a, 1 / by)


def _power(a: Tensor, exponent: object) -> Tensor:
    if exponent == 2:
        return sqr(a)
    if exponent == 0.5:
        return sqrt(a)
    _refuse(
        "a ** b", a, exponent, "ops.sqr squares, ops.sqrt is ** 0.5; others are ops.exp of ops.log"
    )


class Transposed:
    """``w.T`` of a quantized tensor, whose blocks cannot be turned: only ``@`` takes it.

    Attributes:
        T: the tensor itself; ``mT`` is another name.
        shape: with the last two axes exchanged.
    """

    __slots__ = ("T", "shape")
    __array_ufunc__: ClassVar[None] = None

    def __init__(self, original: Tensor) -> None:
        self.T = original
        self.shape: tuple[int, ...] = (
            *original.shape[:-2],
            original.shape[-1],
            original.shape[-2],
        )

    @property
    def mT(self) -> Tensor:
        """The tensor itself."""
        return self.T

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    def __matmul__(self, other: object) -> Tensor:
        return _product(self, other)

    def __repr__(self) -> str:
        return f"<{describe(self.T)}, transposed: shape {self.shape}>"


def _transpose(a: Tensor) -> Tensor | Transposed:
    """``a.T``: the axes in reverse order, as numpy has it."""
    if a.ndim == 1:
        return a
    if a.ndim == 2:
        return _matrix_turned(a)
    if a.dtype.is_quantized:
        raise LayoutMismatch(
            f"[a.T] {describe(a)}: axis 0 of quantized blocks cannot move; .mT exchanges the last "
            "two axes, for a @ b"
        )
    last = a.ndim - 1
    order = [*range(last, -1, -1), *range(a.ndim, 4)]
    return permute(a, *order)


def _matrix_turned(a: Tensor) -> Tensor | Transposed:
    """``a.mT``: the last two axes exchanged."""
    if a.ndim == 1:
        raise LayoutMismatch(f"[a.mT] {describe(a)} has one axis, and a matrix has two")
    return Transposed(a) if a.dtype.is_quantized else transpose(a)


def _has_rows(a: Tensor) -> bool:
    """Whether the elements of a row follow one another."""
    return a.nb[0] == a.dtype.type_size and a.nb[0] <= a.nb[1]


def _columns(b: Tensor | Transposed) -> Tensor | None:
    """``b`` with its columns as rows, for `mul_mat`; None: its blocks cannot be turned."""
    if isinstance(b, Transposed):
        return b.T
    if b.op == "transpose" and (of := b.src[0]) is not None and _has_rows(of):
        return of
    if b.dtype.is_quantized:
        return None
    turned = transpose(b)
    return turned if _has_rows(turned) else cont(turned)


def _planes(a: Tensor | Transposed, b: Tensor | Transposed) -> tuple[int, int]:
    """The extents of the result beyond the matrix, ne[2] and ne[3]: numpy's rule, or ggml's.

    ggml's: a plane of ``b`` serves several planes of ``a`` that follow one another.
    """
    found = []
    tensors = [x.T if isinstance(x, Transposed) else x for x in (a, b)]
    for n, m in zip(tensors[0].ne[2:], tensors[1].ne[2:], strict=True):
        if n == m or (m and n % m == 0):
            found.append(n)
        elif n == 1:
            found.append(m)
        else:
            raise LayoutMismatch(
                f"[a @ b] shapes {a.shape} and {b.shape}: {n} matrices of a and {m} of b; there "
                "may be 1 of either, or a multiple of b's"
            )
    return found[0], found[1]


def _product(a: Tensor | Transposed, b: object) -> Tensor:
    """``a @ b`` as numpy has it."""
    if not isinstance(b, Tensor | Transposed):
        original = a.T if isinstance(a, Transposed) else a
        _refuse("a @ b", original, b, "@ takes tensors; ops.scale multiplies by a number")
    k, other = a.shape[-1], b.shape[-2 if b.ndim > 1 else 0]
    if k != other:
        axis = "-2" if b.ndim > 1 else "0"
        raise LayoutMismatch(
            f"[a @ b] shapes {a.shape} and {b.shape}: axis -1 of a has {k} elements, axis {axis} "
            f"of b has {other}; mul_mat(w, x) is x @ w.T"
        )
    if isinstance(b, Tensor) and b.ndim == 1:
        return _with_vector(a, b)
    planes = _planes(a, b)
    if isinstance(a, Transposed) or a.dtype.is_quantized:
        if a.ndim == 2:
            turned = Transposed(a) if isinstance(a, Tensor) else a.T
            return transpose(_rows_by_columns(transpose(_plain(b, a)), turned, planes))
        raise LayoutMismatch(
            f"[a @ b] {a!r} is quantized and has {a.ndim} axes: it may be the right operand, or "
            "ops.cast to f32 first"
        )
    found = _rows_by_columns(a, b, planes)
    if a.ndim > 1:
        return found
    if b.ndim == 2:
        change(found, "ndim", 1)  # the only row
        return found
    return (
        reshape_3d(found, found.ne[0], *planes)
        if b.ndim == 4
        else reshape_2d(found, found.ne[0], planes[0])
    )


def _plain(b: Tensor | Transposed, a: Tensor | Transposed) -> Tensor:
    if isinstance(b, Tensor) and not b.dtype.is_quantized:
        return b
    raise LayoutMismatch(f"[a @ b] {a!r} and {b!r} are both quantized: ops.cast one of them to f32")


def _with_vector(a: Tensor | Transposed, b: Tensor) -> Tensor:
    """``a @ b`` where ``b`` has one axis: the result has no axis for it."""
    if isinstance(a, Tensor) and a.ndim <= 2 and _has_rows(a):
        rows = cont(b) if b.nb[0] != b.dtype.type_size else b
        found = mul_mat(a, _operand(a, rows))
        change(found, "ndim", 1)
        return found
    found = _product(a, reshape_2d(cont(b), 1, b.ne[0]))  # shape (..., m, 1)
    n = found.shape[:-1]
    if len(n) == 1:
        return reshape_1d(cont(found), n[0])
    return reshape_2d(found, n[1], n[0]) if len(n) == 2 else reshape_3d(found, n[2], n[1], n[0])


def _operand(a: Tensor, x: Tensor) -> Tensor:
    """``x`` in a type that `mul_mat` multiplies with ``a``."""
    if x.dtype is F32 or x.dtype is DOT_TYPES.get(a.dtype) or x.dtype not in FLOATS:
        return x
    return cast(x, F32)


def _rows_by_columns(x: Tensor, b: Tensor | Transposed, planes: tuple[int, int]) -> Tensor:
    """``x @ b`` for matrices: `mul_mat`, or `out_prod` for blocks that cannot be turned."""
    if x.ne[2:] != planes:
        n_axes = max(x.ndim, b.ndim)
        x = repeat_4d(x, x.ne[0], x.ne[1], *planes)
        change(x, "ndim", n_axes)  # that of a repetition is 4
    w = _columns(b)
    if w is None:
        assert isinstance(b, Tensor)
        return out_prod(b, transpose(x if x.dtype is F32 else cast(x, F32)))
    if not _has_rows(x):
        x = cont(x)
    return mul_mat(w, _operand(w, x))


def _no_reverse(sign: str, cure: str) -> Callable[[Tensor, object], Tensor]:
    def refuse(a: Tensor, other: object) -> Tensor:
        _refuse(sign, a, other, cure)

    return refuse


_BITS = "there is no op of bits; ops.mul, ops.add and ops.step combine conditions of 0 and 1"
_READ = "a tensor has no value yet: `await backend.get(tensor)` gives it as an array"
_CURES = {
    "a < b": "ops.step of ops.sub(b, a) is 1 where a < b, else 0",
    "a <= b": "1 - ops.step of ops.sub(a, b) is 1 where a <= b, else 0",
    "a // b": "ops.floor of ops.div",
    "a % b": "a - ops.mul of b and ops.floor of ops.div(a, b)",
    "divmod(a, b)": "ops.floor of ops.div is the first of the two",
    "a ** b": "ops.exp of ops.scale by the logarithm of the base",
    **dict.fromkeys(("a & b", "a | b", "a ^ b", "~a"), _BITS),
    **dict.fromkeys(("a << b", "a >> b"), "ops.scale multiplies by a power of two"),
    "+a": "ops.dup copies",
    "round(a, digits)": "ops.round rounds to integers; ops.scale before and after it for digits",
    "x[...] = b": "ops.set_1d, ..., ops.cpy and ops.set_rows write; Backend.set sets data",
    "del x[...]": "a tensor keeps its extents; a view is a part of it",
    "number of a": _READ,
}


def _refuse_operator(a: Tensor, sign: str, *other: object) -> NoReturn:
    if sign in ("x[...] = b", "del x[...]"):
        other = other[1:]  # not the index
    if other:
        _refuse(sign, a, other[0], _CURES[sign])
    raise InvalidHandle(f"[{sign}] {describe(a)}: {_CURES[sign]}")


# -- views by index


class _Axis(NamedTuple):
    """The part of an axis that an index selects: ``n`` elements from ``start``, ``step`` apart."""

    start: int
    n: int
    step: int
    stays: bool


def _axis(a: Tensor, axis: int, extent: int, index: object) -> _Axis:
    if isinstance(index, slice):
        try:
            start, stop, step = index.indices(extent)
        except (TypeError, ValueError) as error:
            raise InvalidHandle(
                f"[x[...]] {index!r} on axis {axis} of {describe(a)}: {error}"
            ) from None
        if step < 0:
            raise InvalidArgument(
                f"[x[...]] step {step} on axis {axis} of {describe(a)}: a view goes forwards; "
                "ops.get_rows takes rows in any order"
            )
        return _Axis(start, len(range(start, stop, step)), step, stays=True)
    if isinstance(index, bool) or index is None:
        raise InvalidHandle(f"[x[...]] {index!r} is no index: ops.reshape_2d, ... add axes")
    try:
        i = integer(index)  # type: ignore[arg-type]
    except TypeError:
        raise InvalidHandle(
            f"[x[...]] {type(index).__name__} is no index of {describe(a)}: views take integers "
            "and slices; ops.get_rows takes rows by a tensor of int32"
        ) from None
    if not -extent <= i < extent:
        raise OutOfBounds(f"[x[...]] {i} is outside axis {axis} of {describe(a)}, {extent} long")
    return _Axis(i % extent, 1, 1, stays=False)


def _axes(a: Tensor, index: object) -> list[_Axis]:
    """The part of each axis that an index selects, in the order of ``a.shape``."""
    given = index if isinstance(index, tuple) else (index,)
    shape = a.shape
    dots = [i for i, x in enumerate(given) if x is Ellipsis]
    n = len(given) - len(dots)
    if len(dots) > 1 or n > len(shape):
        raise OutOfBounds(f"[x[...]] {n} indices for {describe(a)}, whose shape is {shape}")
    at = dots[0] if dots else len(given)
    whole = [slice(None)] * (len(shape) - n)
    full = (*given[:at], *whole, *given[at + 1 :])
    return [_axis(a, i, extent, x) for i, (extent, x) in enumerate(zip(shape, full, strict=True))]


def _blocks(a: Tensor, row: _Axis) -> int:
    """The offset of a part of the rows of a quantized tensor."""
    block = a.dtype.blck_size
    if not row.stays or row.step != 1 or row.start % block or row.n % block:
        raise InvalidArgument(
            f"[x[...]] {describe(a)} has blocks of {block}, which cannot be cut: ops.cast or "
            "ops.get_rows make numbers of them"
        )
    return row.start // block * a.dtype.type_size


def _item(a: Tensor, index: object) -> Tensor:
    """A view of ``a``: integers drop their axis, slices keep it, axes without index stay whole."""
    dims = _axes(a, index)[::-1]  # ggml's order, innermost first
    row, strides = dims[0], list(a.nb)
    offset = _blocks(a, row) if a.dtype.is_quantized else row.start * strides[0]
    offset += sum([dim.start * s for dim, s in zip(dims[1:], strides[1:], strict=False)])
    if any(dim.n == 0 for dim in dims):
        offset = 0  # an empty view; its computed offset could lie beyond the end
    kept = [(dim.n, s * dim.step) for dim, s in zip(dims, strides, strict=False) if dim.stays]
    if not kept:
        kept = [(1, strides[0])]
    ne: Extents = (*[n for n, _ in kept], 1, 1, 1)[:4]  # type: ignore[assignment]
    nb = [s for _, s in kept]
    while len(nb) < 4:  # strides of the remaining axes, which have one element
        length = ne[0] // a.dtype.blck_size if len(nb) == 1 else ne[len(nb) - 1]
        nb.append(nb[-1] * max(length, 1))
    params = pack("view", _OFFSET, offset)
    strides4: Extents = (nb[0], nb[1], nb[2], nb[3])
    return new_view("view", a, ne, strides4, offset, (a,), params, suffix(a, "view"), len(kept))


Operators.made_by.update(
    {
        "add": _binary("a + b", add, lambda a, b: scale_bias(a, 1, b)),
        "sub": _binary("a - b", sub, lambda a, b: scale_bias(a, 1, -b)),
        "mul": _binary("a * b", mul, scale),
        "truediv": _binary("a / b", div, _divide),
        "radd": lambda a, b: scale_bias(a, 1, _number("a + b", a, b, "add")),
        "rsub": lambda a, b: scale_bias(a, -1, _number("a - b", a, b, "sub")),
        "rmul": lambda a, b: scale(a, _number("a * b", a, b, "mul")),
        "rtruediv": _no_reverse("a / b", "ops.div takes tensors; ops.fill makes one of a number"),
        "matmul": _product,
        "rmatmul": _no_reverse("a @ b", "@ takes tensors, and arrays come in by Backend.set"),
        "T": _transpose,
        "mT": _matrix_turned,
        "pow": _power,
        "neg": neg,
        "abs": abs_,
        "round": round_,
        "floor": floor,
        "ceil": ceil,
        "trunc": trunc,
        "refuse": _refuse_operator,
        "getitem": _item,
    }
)
