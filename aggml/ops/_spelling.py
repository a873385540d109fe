"""One name for one option: strides, padding and dilations of convolutions have the same names.

C calls them ``s0, p0, d0`` in most functions, ``stride0, pad0, dilation0`` in one, ``s, d`` or
``stride`` in others. Builders have exactly the names of C, and take the first ones everywhere.
"""

from __future__ import annotations

import functools
import inspect
import re
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from aggml.tensor import Tensor

__all__ = ["FAMILIES", "accept_other_names", "other_names"]

Builder = TypeVar("Builder", bound="Callable[..., Tensor]")

#: Names of one thing, the one to use first. A digit follows: the dimension.
FAMILIES: Final = (("s", "stride"), ("p", "pad"), ("d", "dilation"))
_WHOLE: Final = (("IC", "n_channels"), ("OC", "oc", "n_channels_out"))


def other_names(builder: Callable[..., Tensor]) -> dict[str, str]:
    """The parameter of a builder that each further name stands for."""
    parameters = list(inspect.signature(builder).parameters)
    found: dict[str, str] = {}
    for parameter in parameters:
        root, digit = re.fullmatch(r"(.*?)(\d?)", parameter, re.DOTALL).groups()  # type: ignore[union-attr]
        for family in FAMILIES:
            if root in family:
                found |= {f"{name}{digit or 0}": parameter for name in family}
        for names in _WHOLE:
            if parameter in names:
                found |= dict.fromkeys(names, parameter)
    return {name: parameter for name, parameter in found.items() if name not in parameters}


def accept_other_names(builder: Builder) -> Builder:
    """Let parameters be given by their `other_names`, too."""
    others = other_names(builder)

    @functools.wraps(builder)
    def call(*args: Any, **kwargs: Any) -> Tensor:  # noqa: ANN401 - as the builder takes them
        for name in others.keys() & kwargs:
            parameter = others[name]
            if parameter in kwargs:
                raise TypeError(f"{builder.__name__}() got both {parameter!r} and {name!r}")
            kwargs[parameter] = kwargs.pop(name)
        return builder(*args, **kwargs)

    return call  # type: ignore[return-value]
