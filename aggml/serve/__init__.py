"""A service: any number of requests on one model, batched continuously.

Here: the names of the engine, which knows nothing of HTTP: ``Engine`` computes ``Job``s. steps.py
says what a step takes in, staging.py how prompts share one. Not here: OpenAI's routes over HTTP
(http/), which need the extra ``serve``; starting a server (__main__.py).
"""

from __future__ import annotations

from aggml.serve.engine import STAGED, Engine
from aggml.serve.jobs import EngineError, FullError, Job, TooLongError

__all__ = ["STAGED", "Engine", "EngineError", "FullError", "Job", "TooLongError"]
