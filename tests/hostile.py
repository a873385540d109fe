"""Exceptions of other people's classes whose methods fail, and those that end threads and tasks.

Not here: the tests, which raise each of them from every place where aggml calls foreign code.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import aggml

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["HOSTILE", "Broken"]


class Broken(Exception):
    """Raised by the methods of the exceptions below."""


class Ending(BaseException):
    """Likewise, where only Exceptions may be expected."""


def broken(*_: object, **__: object) -> NoReturn:
    raise Broken


def ending(*_: object, **__: object) -> NoReturn:
    raise Ending


@dataclass(frozen=True)
class Frozen(Exception):
    code: int = 7


@dataclass(frozen=True)
class FrozenError(aggml.InvalidArgument):
    text: str = "wrong"


class WithoutText(aggml.AggmlError):
    __repr__ = __str__ = broken


class OtherConstructor(aggml.OutOfBounds):
    def __init__(self, path: object, at: int) -> None:
        if not isinstance(path, list):
            raise Broken
        super().__init__(path, at)


class Twice(aggml.AggmlError):
    """A constructor that gives an exception of another class."""

    def __new__(cls, *args: object) -> Any:
        return ValueError(*args) if args else super().__new__(cls)


class NamedAlike(aggml.AggmlError):
    device = property(broken, broken)  # pyright: ignore[reportAssignmentType]


class NoClass(Exception):
    __class__ = property(broken)  # pyright: ignore[reportIncompatibleMethodOverride]


class NoTraceback(Exception):
    __traceback__ = property(broken, broken)  # pyright: ignore[reportAssignmentType]
    __cause__ = property(broken, broken)  # pyright: ignore[reportAssignmentType]
    __context__ = property(broken, broken)  # pyright: ignore[reportAssignmentType]


class NotReadable(Exception):
    def __getattribute__(self, name: str) -> NoReturn:
        raise Broken


class Cyclic(Exception):
    def __init__(self) -> None:
        self.__cause__ = self


class Meta(type):
    def __getattribute__(cls, name: str) -> Any:
        if name in ("__name__", "__module__", "__qualname__", "__mro__"):
            raise Broken
        return super().__getattribute__(name)


class OfMeta(Exception, metaclass=Meta):
    __repr__ = broken


class HidingGroup(ExceptionGroup[Exception]):
    exceptions = property(broken)  # pyright: ignore[reportIncompatibleMethodOverride]


class Rude(str):
    __slots__ = ()
    __radd__ = __format__ = __str__ = broken


def _with(base: type[BaseException] = Exception, **methods: object) -> Callable[[], BaseException]:
    return type("Foreign", (base,), methods)


#: By name: a function that makes the exception.
HOSTILE: dict[str, Callable[[], BaseException]] = {
    "frozen": Frozen,
    "repr raises": _with(__repr__=broken),
    "repr ends": _with(__repr__=ending),
    "repr is interrupted": _with(__repr__=lambda _: (_ for _ in ()).throw(KeyboardInterrupt)),
    "repr exits": _with(__repr__=lambda _: (_ for _ in ()).throw(SystemExit)),
    "repr is no text": _with(__repr__=lambda _: 7),
    "repr is rude": _with(__repr__=lambda _: Rude("rude")),
    "repr is no Unicode": _with(__repr__=lambda _: "\udc80"),
    "repr has a zero": _with(__repr__=lambda _: "a\0b"),
    "repr is long": _with(__repr__=lambda _: "ü" * 100_000),
    "str raises": _with(__str__=broken),
    "repr, str raise": _with(__repr__=broken, __str__=ending),
    "attributes cannot be set": _with(__setattr__=broken),
    "attributes cannot be read": NotReadable,
    "no class": NoClass,
    "no traceback": NoTraceback,
    "of a metaclass": OfMeta,
    "with_traceback, add_note, reduce raise": _with(
        with_traceback=broken, add_note=broken, __reduce__=broken, __reduce_ex__=broken
    ),
    "eq, hash, bool raise": _with(__eq__=broken, __hash__=broken, __bool__=broken, __len__=broken),
    "cause of itself": Cyclic,
    "a group of them": lambda: BaseExceptionGroup("all", [Frozen(), _with(__repr__=broken)()]),
    "a group that hides them": lambda: HidingGroup("all", [Frozen()]),
    "ours, frozen": FrozenError,
    "ours, str raises": WithoutText,
    "ours, constructor raises": lambda: OtherConstructor([], 1),
    "ours, constructor gives another": Twice,
    "ours, device cannot be set": NamedAlike,
    "ours, attributes cannot be set": _with(aggml.Unsupported, __setattr__=broken),
    "KeyboardInterrupt": KeyboardInterrupt,
    "SystemExit": SystemExit,
    "GeneratorExit": GeneratorExit,
    "CancelledError": asyncio.CancelledError,
    "StopIteration": lambda: StopIteration(3),
    "StopAsyncIteration": StopAsyncIteration,
    "BaseException": Ending,
    "MemoryError": MemoryError,
    "RecursionError": RecursionError,
}
