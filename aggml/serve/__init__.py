"""A service: any number of requests on one model, batched continuously.

Here: the names of the engine, which knows nothing of HTTP: ``Engine`` computes ``Job``s. steps.py
says what a step takes in, staging.py how prompts share one. `opened` makes an engine or an embedder
of a file. Not here: OpenAI's routes over HTTP (http/), which need the extra ``serve``.
"""

from __future__ import annotations

from aggml.serve.embedder import Embedder
from aggml.serve.engine import STAGED, Engine
from aggml.serve.jobs import EngineError, FullError, Job, TooLongError
from aggml.serve.opening import Completer, Limits, opened
from aggml.serve.transcriber import Transcriber

__all__ = [
    "STAGED", "Completer", "Embedder", "Engine", "EngineError", "FullError", "Job", "Limits",
    "TooLongError", "Transcriber", "opened",
]  # fmt: skip


def __dir__() -> list[str]:
    return __all__
