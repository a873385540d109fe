"""Opening a backend by the name or type of its device, or from a text such as "CPU:n_threads=2".

Here: shorthands over get_device and `Device.backend_from_params`. Not here: what the parameters
mean; each device decides that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aggml.errors import InvalidArgument, InvalidHandle
from aggml.registry.finding import best_device, get_device

if TYPE_CHECKING:
    from aggml.backend import Backend
    from aggml.backend.props import DeviceType

__all__ = ["init_backend", "init_best", "init_by_name", "init_by_type", "split_backend_text"]


def init_by_name(name: str | int, params: str = "") -> Backend:
    """A new backend on the device of that name, case ignored (ggml_backend_init_by_name).

    Raises:
        InvalidArgument: there is no such device, or it does not know the parameters.
    """
    return get_device(name).backend_from_params(params)


def init_by_type(type: DeviceType | str, params: str = "") -> Backend:  # noqa: A002 - as get_device
    """A new backend on the first device of that type (ggml_backend_init_by_type).

    Raises:
        InvalidArgument: there is none, or it does not know the parameters.
    """
    return get_device(type=type).backend_from_params(params)


def init_best() -> Backend:
    """A new backend on the best device (ggml_backend_init_best)."""
    return best_device().backend_from_params("")


def split_backend_text(text: str) -> tuple[str, str]:
    """(name, parameters) of ``name[:params]``, split at the first colon.

    Raises:
        InvalidArgument: the name is empty.
    """
    if not isinstance(text, str):
        raise InvalidHandle(f"[split_backend_text] {text!r} is no text")
    name, _, params = text.partition(":")
    if not name:
        raise InvalidArgument(f"[split_backend_text] {text!r} names no device")
    return name, params


def init_backend(text: str) -> Backend:
    """A new backend from ``name[:params]`` (ggml_backend_reg_init_backend_from_str).

    Raises:
        InvalidArgument: the name is empty or unknown, or the device does not know the parameters.
    """
    return init_by_name(*split_backend_text(text))
