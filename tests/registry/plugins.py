"""Plug-ins for tests: families and devices made in the test, files that are loaded by path.

Here: fakes and sources. No tests here.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import aggml
from aggml.devices.sim import SimDevice

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aggml.devices.sim import SimBackend


class ParamsDevice(SimDevice):
    """A device that keeps the parameters of `name:params`."""

    seen: str | None = None

    def backend_from_params(self, params: str = "") -> SimBackend:
        self.seen = params
        return self.backend()


class FakeFamily(aggml.Family):
    """A family of simulated devices, with any version."""

    def __init__(self, name: str = "FAKE", n: int = 1, *, version: int = 1, **options: Any) -> None:
        self.name = name
        self.api_version = version
        self.closed = 0
        self._devices = [ParamsDevice(f"{name}{i}", **options) for i in range(n)]

    @property
    def devices(self) -> Sequence[aggml.Device]:
        return self._devices

    def features(self) -> dict[str, str]:
        return {"FAKERY": "1"}

    def extension(self, name: str) -> Callable[..., Any] | None:
        return {"ggml_backend_double": lambda x: 2 * x}.get(name)

    def close(self) -> None:
        self.closed += 1


SOURCE = """
import aggml
from aggml.devices.sim import SimDevice

LOADS = []

class Family(aggml.Family):
    name = {name!r}
    api_version = {version}

    def __init__(self):
        self._devices = (SimDevice({name!r} + "0"),)

    @property
    def devices(self):
        return self._devices

    def features(self):
        return {{"VARIANT": {variant!r}}}

def aggml_backend_init():
    {init}
"""


def write(
    folder: Path,
    file: str,
    *,
    name: str = "FILED",
    version: object = 1,
    score: object = None,
    variant: str = "",
    init: str = "return Family()",
) -> Path:
    """Write a plug-in of one file. ``score`` is the expression that its score function returns."""
    text = SOURCE.format(name=name, version=version, variant=variant, init=init)
    if score is not None:
        text += f"\ndef aggml_backend_score():\n    return {score}\n"
    path = folder / file
    path.write_text(text)
    return path


def status(report: aggml.LoadReport, file: str) -> aggml.LoadResult:
    """The result of loading the file of that name."""
    (result,) = [r for r in report if Path(r.source).name == file]
    return result
