"""Operators of tensors: ``a + b``, ``-a``, ``a @ b``, ``x[:, 1]``.

Here: which of Python's operators tensors have. ops/operators.py names the builder of `aggml.ops`
for each, and registers it here, because the room of tensors knows no operation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final, NoReturn, Self

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["REFUSED", "Operators"]


class Operators:
    """The operators that `Tensor` has; each makes a node, and computes nothing.

    - ``a + b``, ``a - b``, ``a * b``, ``a / b``: `ops.add`, `ops.sub`, `ops.mul`, `ops.div`; ``b``
      is repeated to the extents of ``a``. With a number: `ops.scale`, `ops.scale_bias`.
    - ``-a``, ``abs(a)``, ``round(a)``, ``math.floor(a)``, ``math.ceil(a)``, ``math.trunc(a)``:
      `ops.neg`, `ops.abs`, `ops.round`, `ops.floor`, `ops.ceil`, `ops.trunc`.
    - ``a @ b``: the product of matrices, as numpy has it. ``x @ w.T`` is `ops.mul_mat(w, x)`,
      which copies nothing, and ``w`` may be quantized. Other products transpose or copy an operand
      where `ops.mul_mat` needs rows; a quantized ``b`` of ``a @ b`` is an `ops.out_prod`. More than
      two axes: matrices are repeated as in numpy, and as in ggml, where each matrix of ``b`` serves
      several of ``a``. An operand with one axis is a row on the left, a column on the right.
    - ``a.T``: a view with the axes in reverse order; ``a.mT``: with the last two exchanged. Of a
      quantized tensor only ``@`` takes them.
    - ``x[i, a:b, ::s, ...]``: a view, by axes in the order of `Tensor.shape`, as numpy has it.
    - ``a == b`` and ``a != b``: whether they are the same tensor.

    All other operators raise `TypeError` or `InvalidArgument`; the text names the op to use.
    """

    __slots__ = ()

    #: By the name of the method; from ops/operators.py.
    made_by: ClassVar[dict[str, Callable[..., Any]]] = {}

    __iter__: ClassVar[None] = None  # else Python would index until an error ends it
    __contains__: ClassVar[None] = None
    __array_ufunc__: ClassVar[None] = None  # arrays leave ``array + tensor`` to the tensor

    def __add__(self, other: Self | float) -> Self:
        return self.made_by["add"](self, other)  # type: ignore[no-any-return]

    def __radd__(self, other: float) -> Self:
        return self.made_by["radd"](self, other)  # type: ignore[no-any-return]

    def __sub__(self, other: Self | float) -> Self:
        return self.made_by["sub"](self, other)  # type: ignore[no-any-return]

    def __rsub__(self, other: float) -> Self:
        return self.made_by["rsub"](self, other)  # type: ignore[no-any-return]

    def __mul__(self, other: Self | float) -> Self:
        return self.made_by["mul"](self, other)  # type: ignore[no-any-return]

    def __rmul__(self, other: float) -> Self:
        return self.made_by["rmul"](self, other)  # type: ignore[no-any-return]

    def __truediv__(self, other: Self | float) -> Self:
        return self.made_by["truediv"](self, other)  # type: ignore[no-any-return]

    def __rtruediv__(self, other: float) -> Self:
        return self.made_by["rtruediv"](self, other)  # type: ignore[no-any-return]

    @property
    def T(self) -> Self:
        """A view with the axes in reverse order."""
        return self.made_by["T"](self)  # type: ignore[no-any-return]

    @property
    def mT(self) -> Self:
        """A view with the last two axes exchanged.

        Raises:
            LayoutMismatch: there is one axis.
        """
        return self.made_by["mT"](self)  # type: ignore[no-any-return]

    def __matmul__(self, other: Self) -> Self:
        return self.made_by["matmul"](self, other)  # type: ignore[no-any-return]

    def __rmatmul__(self, other: object) -> Self:
        return self.made_by["rmatmul"](self, other)  # type: ignore[no-any-return]

    def __pow__(self, other: float) -> Self:
        return self.made_by["pow"](self, other)  # type: ignore[no-any-return]

    def __neg__(self) -> Self:
        return self.made_by["neg"](self)  # type: ignore[no-any-return]

    def __abs__(self) -> Self:
        return self.made_by["abs"](self)  # type: ignore[no-any-return]

    def __round__(self, digits: int | None = None) -> Self:
        if digits is not None:
            self.made_by["refuse"](self, "round(a, digits)", digits)
        return self.made_by["round"](self)  # type: ignore[no-any-return]

    def __floor__(self) -> Self:
        return self.made_by["floor"](self)  # type: ignore[no-any-return]

    def __ceil__(self) -> Self:
        return self.made_by["ceil"](self)  # type: ignore[no-any-return]

    def __trunc__(self) -> Self:
        return self.made_by["trunc"](self)  # type: ignore[no-any-return]

    def __getitem__(self, index: Any) -> Self:  # noqa: ANN401 - as numpy takes it
        return self.made_by["getitem"](self, index)  # type: ignore[no-any-return]


def _make_refusal(sign: str) -> Callable[..., NoReturn]:
    def refuse(self: Operators, *other: object) -> NoReturn:
        self.made_by["refuse"](self, sign, *other)
        raise AssertionError

    return refuse


#: The operators that no tensor has, by method: what a message calls them.
REFUSED: Final = {
    **dict.fromkeys(("lt", "gt"), "a < b"),
    **dict.fromkeys(("le", "ge"), "a <= b"),
    **dict.fromkeys(("floordiv", "rfloordiv"), "a // b"),
    **dict.fromkeys(("mod", "rmod"), "a % b"),
    **dict.fromkeys(("divmod", "rdivmod"), "divmod(a, b)"),
    "rpow": "a ** b",
    **dict.fromkeys(("and", "rand"), "a & b"),
    **dict.fromkeys(("or", "ror"), "a | b"),
    **dict.fromkeys(("xor", "rxor"), "a ^ b"),
    **dict.fromkeys(("lshift", "rlshift"), "a << b"),
    **dict.fromkeys(("rshift", "rrshift"), "a >> b"),
    "invert": "~a",
    "pos": "+a",
    "setitem": "x[...] = b",
    "delitem": "del x[...]",
    **dict.fromkeys(("float", "int", "complex"), "number of a"),
}
for _name, _sign in REFUSED.items():  # assigned here: type checkers tell of their use, too
    setattr(Operators, f"__{_name}__", _make_refusal(_sign))
