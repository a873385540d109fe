"""The inventory: families, devices and what failed to load, as data and as text.

Here: what `python -m aggml devices` shows. Not here: its arguments (__main__.py), loading
(registry/).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aggml.backend.family import API_VERSION
from aggml.process.foreign import describe as describe_error
from aggml.registry import list_devices, list_families, search_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from aggml.backend.backend import Device
    from aggml.backend.family import Family
    from aggml.registry import LoadReport

__all__ = ["describe", "inventory"]

Data = dict[str, Any]


def _attempt(ask: Callable[[], Any]) -> tuple[Any, str | None]:
    """(answer, None), or (None, what went wrong): one broken device must not hide the others."""
    try:
        return ask(), None
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a plug-in may raise anything
        return None, describe_error(error)


def _device(device: Device) -> Data:
    props, error = _attempt(lambda: device.props)
    data: Data = {"name": device.name, "description": device.description}
    data |= {"type": device.type.value, "device_id": device.device_id}
    if props is None:
        return data | {"error": error}
    caps = {name.rstrip("_"): value for name, value in props.caps._asdict().items()}
    return data | {
        "memory_free": props.memory_free,
        "memory_total": props.memory_total,
        "caps": caps,
        "buffer_type": device.buffer_type.name,
        "alignment": device.buffer_type.alignment,
    }


def _family(family: Family) -> Data:
    features, error = _attempt(lambda: dict(family.features()))
    data: Data = {"name": family.name, "description": family.description}
    data |= {"devices": [device.name for device in family.devices], "features": features}
    return data if error is None else data | {"error": error}


def inventory(report: LoadReport) -> Data:
    """Families, devices and failures to load, as values that JSON can hold.

    Args:
        report: the result of each candidate, from `load_all`.
    """
    return {
        "api_version": API_VERSION,
        "families": [_family(family) for family in list_families()],
        "devices": [_device(device) for device in list_devices()],
        "candidates": [
            {
                "name": result.name,
                "source": result.source,
                "status": result.status,
                "score": result.score,
                "reason": result.reason,
            }
            for result in report
        ],
        "search_path": [str(folder) for folder in search_path()],
    }


def _gib(size: int) -> str:
    return f"{size / (1 << 30):.1f} GiB"


def _columns(rows: Iterable[Sequence[str]]) -> list[str]:
    """Rows as text in aligned columns; the last column is not padded."""
    table = list(rows)
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in table
    ]


def _device_row(device: Data) -> tuple[str, ...]:
    if "error" in device:
        return (device["name"], device["type"], "?", "", f"{device['error']}")
    known = device["memory_total"] > 0
    memory = f"{_gib(device['memory_free'])} of {_gib(device['memory_total'])}" if known else "?"
    caps = " ".join(name for name, value in device["caps"].items() if value)
    return (device["name"], device["type"], memory, caps, device["description"])


def describe(data: Data) -> str:
    """The inventory as text: families with features, devices, and failures to load with reasons."""
    lines = _columns(
        [
            ("FAMILY", "DEVICES", "FEATURES"),
            *(
                (
                    family["name"],
                    str(len(family["devices"])),
                    family.get("error") or _features(family["features"]),
                )
                for family in data["families"]
            ),
        ]
    )
    head = ("DEVICE", "TYPE", "FREE MEMORY", "CAPS", "DESCRIPTION")
    lines += ["", *_columns([head, *map(_device_row, data["devices"])])]
    missing = [c for c in data["candidates"] if c["status"] != "loaded"]
    if missing:
        lines += ["", "NOT LOADED"]
        for candidate in missing:
            lines.append(
                f"{candidate['name'] or '-'} ({candidate['source']}): {candidate['reason']}"
            )
    return "\n".join(lines)


def _features(features: dict[str, str]) -> str:
    return " ".join(name if value == "1" else f"{name}={value}" for name, value in features.items())
