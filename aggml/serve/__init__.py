"""A service: any number of requests on one model, batched continuously.

Here: the public names. ``Engine`` computes ``Job``s and knows nothing of HTTP. steps.py decides
which tokens a step computes; staging.py lets several prompts share a step. `opened` makes an
engine, an embedder or a transcriber from a file. Not here: OpenAI's routes over HTTP (http/), which
need the extra ``serve``.
"""

from __future__ import annotations

from aggml.models.engine.engine import STAGED, Engine
from aggml.models.engine.jobs import EngineError, FullError, Job, TooLongError
from aggml.serve.embedder import Embedder
from aggml.serve.opening import Completer, Limits, opened
from aggml.serve.transcriber import Transcriber

__all__ = [
    "STAGED", "Completer", "Embedder", "Engine", "EngineError", "FullError", "Job", "Limits",
    "TooLongError", "Transcriber", "opened",
]  # fmt: skip


def __dir__() -> list[str]:
    return __all__
