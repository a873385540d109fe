"""Functions of the user as nodes: map_custom1 to 3 with their variants in place, custom_4d.

Here: shapes, checks, the record that a node keeps of its function. Not here: calling it
(plan/call.py, native/lower/custom.c).

A function in Python is called as ``fun(dst, *sources, ith, nth, userdata)`` by the stream's own
Python thread. It gets tensors as numpy arrays over their memory, with the shape `Tensor.shape`
(quantized types as bytes); sources are read-only. It writes into ``dst`` and may not wait for the
stream that runs it. A function in C, given as an object of ctypes, has the signature of ggml's
header and gets tensors in the layout of that header. Worker threads run it, several at once.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from aggml.dtype import DType, DTypeLike
from aggml.errors import InvalidArgument, InvalidHandle
from aggml.ops._common import all_tensors, suffix, whole
from aggml.tensor import Tensor, new_node, new_view

if TYPE_CHECKING:
    from typing import SupportsIndex

__all__ = [
    "N_TASKS_MAX",
    "CustomParams",
    "custom_4d",
    "custom_inplace",
    "map_custom1",
    "map_custom1_inplace",
    "map_custom2",
    "map_custom2_inplace",
    "map_custom3",
    "map_custom3_inplace",
]

#: As many tasks as fit (GGML_N_TASKS_MAX): one call of a Python function, for one in C as many as
#: the elements of the result fill.
N_TASKS_MAX: Final = -1
MAX_TASKS: Final = 512

#: In Python, or in C: an instance of what `ctypes.CFUNCTYPE` makes, or a function of a library.
Function: TypeAlias = Callable[..., object]

_LAYOUT = struct.Struct("<iiQQ40x")
_C_FUNCTION: Final[Any] = ctypes.CFUNCTYPE(None).__base__  # of all that ctypes can call


class CustomParams(bytes):
    """Parameters of a node that calls a function, and what the function needs to stay alive.

    Attributes:
        function: what is called.
        userdata: its last argument.
        n_calls: how often a Python function is called, 0 if it is in C.
    """

    function: Function
    userdata: object
    n_calls: int

    def __deepcopy__(self, memo: dict[int, object]) -> CustomParams:
        """Return itself: a copied node calls the same function with the same data."""
        return self

    def __reduce__(self) -> tuple[object, ...]:
        """Refuse to be pickled: it holds the address of a function of this process."""
        raise InvalidHandle(
            f"[pickle] a node that calls {self.function!r} cannot be pickled: its function lies in "
            "this process; build the graph again where it is needed"
        )


def _address(op: str, userdata: object) -> int:
    """The address that a function in C gets as its user data."""
    if userdata is None:
        return 0
    if isinstance(userdata, ctypes.c_void_p):
        return userdata.value or 0
    if isinstance(userdata, ctypes._Pointer):
        return ctypes.cast(userdata, ctypes.c_void_p).value or 0
    if isinstance(userdata, ctypes._SimpleCData | ctypes.Structure | ctypes.Union | ctypes.Array):
        return ctypes.addressof(userdata)
    if isinstance(userdata, int) and 0 <= userdata < 1 << 64:
        return userdata
    raise InvalidHandle(
        f"[{op}] userdata = {userdata!r}: a function in C takes None, an address, or an object of "
        "ctypes"
    )


def _params(op: str, fun: Function, n_tasks: SupportsIndex, userdata: object) -> CustomParams:
    (tasks,) = whole(op, n_tasks)
    if tasks != N_TASKS_MAX and not 0 < tasks < 1 << 31:
        raise InvalidArgument(f"[{op}] n_tasks = {tasks}: give 1 or more, or N_TASKS_MAX (-1)")
    if isinstance(fun, _C_FUNCTION):
        pointer: Any = fun
        function = ctypes.cast(pointer, ctypes.c_void_p).value or 0
        if not function:
            raise InvalidHandle(f"[{op}] fun is a null pointer")
        packed = _LAYOUT.pack(tasks, 1, function, _address(op, userdata))
        n_calls = 0
    elif callable(fun):
        packed = _LAYOUT.pack(tasks, 0, id(fun), id(userdata))
        n_calls = 1 if tasks < 0 else min(tasks, MAX_TASKS)
    else:
        raise InvalidHandle(
            f"[{op}] fun = {fun!r} cannot be called; aggml.unsafe.c_function makes a function of "
            "an address"
        )
    params = CustomParams(packed)
    params.function, params.userdata, params.n_calls = fun, userdata, n_calls
    return params


def _map(
    op: str,
    src: tuple[Tensor, ...],
    fun: Function,
    n_tasks: SupportsIndex,
    userdata: object,
    inplace: bool,
) -> Tensor:
    name = f"{op}_inplace" if inplace else op
    for operand in src:
        if operand.__class__ is not Tensor:
            all_tensors(name, **dict(zip("abc", src, strict=False)))
    params = _params(name, fun, n_tasks, userdata)
    a = src[0]
    if inplace:
        return new_view(op, a, a.ne, a.nb, 0, src, params, suffix(a, "view"))
    return new_node(op, a.dtype, a.ne, src, params)


def map_custom1(
    a: Tensor, fun: Function, n_tasks: SupportsIndex = N_TASKS_MAX, userdata: object = None
) -> Tensor:
    """Call a function of the user with ``a``; it fills the result (``ggml_map_custom1``).

    Args:
        a: any type, any strides.
        fun: ``fun(dst, a, ith, nth, userdata)``, see the head of this file.
        n_tasks: how often it is called, with ``ith`` from 0 to ``nth - 1``; `N_TASKS_MAX`: aggml
            chooses. It does not depend on the number of threads.
        userdata: handed to the function; for one in C an address, or an object of ctypes.

    Returns:
        A new tensor of the type and extents of ``a``.

    Raises:
        InvalidArgument: ``n_tasks`` is 0, or negative and not `N_TASKS_MAX`.
        InvalidHandle: ``a`` is no tensor, ``fun`` no function, ``userdata`` cannot be passed to C.
    """
    return _map("map_custom1", (a,), fun, n_tasks, userdata, False)


def map_custom1_inplace(
    a: Tensor, fun: Function, n_tasks: SupportsIndex = N_TASKS_MAX, userdata: object = None
) -> Tensor:
    """`map_custom1` in place: ``dst`` is ``a`` (``ggml_map_custom1_inplace``)."""
    return _map("map_custom1", (a,), fun, n_tasks, userdata, True)


def map_custom2(
    a: Tensor,
    b: Tensor,
    fun: Function,
    n_tasks: SupportsIndex = N_TASKS_MAX,
    userdata: object = None,
) -> Tensor:
    """Call ``fun(dst, a, b, ith, nth, userdata)``; it fills ``dst`` (``ggml_map_custom2``).

    ``b`` may have any type and extents. Otherwise like `map_custom1`.
    """
    return _map("map_custom2", (a, b), fun, n_tasks, userdata, False)


def map_custom2_inplace(
    a: Tensor,
    b: Tensor,
    fun: Function,
    n_tasks: SupportsIndex = N_TASKS_MAX,
    userdata: object = None,
) -> Tensor:
    """`map_custom2` in place: the result overwrites ``a`` (``ggml_map_custom2_inplace``)."""
    return _map("map_custom2", (a, b), fun, n_tasks, userdata, True)


def map_custom3(
    a: Tensor,
    b: Tensor,
    c: Tensor,
    fun: Function,
    n_tasks: SupportsIndex = N_TASKS_MAX,
    userdata: object = None,
) -> Tensor:
    """Call ``fun(dst, a, b, c, ith, nth, userdata)``; it fills ``dst`` (``ggml_map_custom3``).

    ``b`` and ``c`` may have any type and extents. Otherwise like `map_custom1`.
    """
    return _map("map_custom3", (a, b, c), fun, n_tasks, userdata, False)


def map_custom3_inplace(
    a: Tensor,
    b: Tensor,
    c: Tensor,
    fun: Function,
    n_tasks: SupportsIndex = N_TASKS_MAX,
    userdata: object = None,
) -> Tensor:
    """`map_custom3` in place: the result overwrites ``a`` (``ggml_map_custom3_inplace``)."""
    return _map("map_custom3", (a, b, c), fun, n_tasks, userdata, True)


def _sources(op: str, args: Sequence[Tensor], n_args: SupportsIndex | None, most: int) -> list[Any]:
    try:
        given = list(args)
    except TypeError:
        raise InvalidHandle(f"[{op}] args = {args!r} is no list of tensors") from None
    (n,) = (len(given),) if n_args is None else whole(op, n_args)
    if not 0 <= n <= min(most, len(given)):
        raise InvalidArgument(
            f"[{op}] n_args = {n}, but args has {len(given)} tensors, and {most} is the most"
        )
    for i, arg in enumerate(given[:n]):
        if arg.__class__ is not Tensor:
            all_tensors(op, **{f"args[{i}]": arg})
    return given[:n]


def custom_4d(
    type: DTypeLike,  # noqa: A002 - the C name
    ne0: SupportsIndex,
    ne1: SupportsIndex,
    ne2: SupportsIndex,
    ne3: SupportsIndex,
    args: Sequence[Tensor],
    n_args: SupportsIndex | None,
    fun: Function,
    n_tasks: SupportsIndex = N_TASKS_MAX,
    userdata: object = None,
) -> Tensor:
    """A tensor of any type and extents that a function of the user fills (``ggml_custom_4d``).

    Args:
        type: of the result.
        ne0: the innermost extent of the result.
        ne1: the next.
        ne2: the next.
        ne3: the outermost.
        args: the tensors that the function reads, 0 to 9, of any types and strides.
        n_args: how many of them; None: all.
        fun: in Python ``fun(dst, *args, ith, nth, userdata)``; in C
            ``void fun(struct ggml_tensor *dst, int ith, int nth, void *userdata)``, which finds the
            operands in ``dst->src``.
        n_tasks: as for `map_custom1`.
        userdata: as for `map_custom1`.

    Returns:
        A new tensor.

    Raises:
        InvalidArgument: no such type; a negative extent, or one that is not a multiple of the
            type's block; too many operands, or ``n_tasks`` as in `map_custom1`.
        InvalidHandle: as `map_custom1`.
    """
    op = "custom_4d"
    dtype = type if isinstance(type, DType) else DType.parse(type)
    src = _sources(op, args, n_args, 9)
    extents = whole(op, ne0, ne1, ne2, ne3)
    if min(extents) < 0:
        raise InvalidArgument(f"[{op}] ne = {list(extents)} has a negative extent")
    params = _params(op, fun, n_tasks, userdata)
    return new_node("custom", dtype, extents, tuple(src), params, ndim=4)  # type: ignore[arg-type]


def custom_inplace(
    a: Tensor,
    args: Sequence[Tensor],
    n_args: SupportsIndex | None,
    fun: Function,
    n_tasks: SupportsIndex = N_TASKS_MAX,
    userdata: object = None,
) -> Tensor:
    """`custom_4d` in place, over ``a``, the first operand (``ggml_custom_inplace``).

    There may be 8 more operands. A Python function is called ``fun(dst, a, *args, ith, nth,
    userdata)``.
    """
    op = "custom_inplace"
    if a.__class__ is not Tensor:
        all_tensors(op, a=a)
    src = _sources(op, args, n_args, 8)
    params = _params(op, fun, n_tasks, userdata)
    return new_view("custom", a, a.ne, a.nb, 0, (a, *src), params, suffix(a, "view"))
