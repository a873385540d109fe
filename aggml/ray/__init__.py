"""Many machines: a model's layers in stages on the nodes of a Ray cluster.

``async with await aggml.ray.pipeline("model.gguf", stages=2) as model: ...``

Here: the names; they need the extra ``aggml[ray]``. README.md of this room says what lies in which
file. Not here: models (aggml.models), tensor parallelism (docs/distributed.md says why).
"""

from __future__ import annotations

from aggml.ray.cutting import cut
from aggml.ray.errors import StageLost
from aggml.ray.futures import result
from aggml.ray.pipeline import PipelineModel, pipeline

__all__ = ["PipelineModel", "StageLost", "cut", "pipeline", "result"]
