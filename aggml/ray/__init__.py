"""Many machines: a model's layers in stages on the nodes of a Ray cluster.

``async with await aggml.ray.pipeline("model.gguf", stages=2) as model: ...``

Here: the names; they need the extra ``aggml[ray]``. README.md in this folder says what lies in
which file. Not here: models (aggml.models), tensor parallelism (docs/distributed.md says why).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from aggml.process.extras import install_command

try:
    import ray  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"aggml.ray needs Ray, which is not installed: {install_command('ray')}", name="ray"
    ) from error

from aggml.ray.cutting import cut
from aggml.ray.errors import StageLost
from aggml.ray.futures import result
from aggml.ray.pipeline import PipelineModel, pipeline

if TYPE_CHECKING:
    from aggml.ray.data import Embed as Embed
    from aggml.ray.data import Generate as Generate
    from aggml.ray.data import Transcribe as Transcribe
    from aggml.ray.replicas import service as service

__all__ = [
    "Embed",
    "Generate",
    "PipelineModel",
    "StageLost",
    "Transcribe",
    "cut",
    "pipeline",
    "result",
    "service",
]

#: Names whose modules import more of Ray; each module is imported when its name is first used.
_OF = {"Embed": "data", "Generate": "data", "Transcribe": "data", "service": "replicas"}


def __getattr__(name: str) -> object:
    if name in _OF:
        return getattr(importlib.import_module(f"aggml.ray.{_OF[name]}"), name)
    raise AttributeError(f"module 'aggml.ray' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
