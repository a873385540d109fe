"""The service over HTTP: ``application(Options(model=path))`` is an ASGI application.

Here: the public names. app.py has the routes, service.py the models, running.py the servers;
schema.py and fields.py read requests, forms.py, choice.py and vectors.py write answers, speech.py
does both for recordings, streams.py sends answers, pacing.py keeps the loop punctual. Not here: the
computation (../engine.py).
"""

from __future__ import annotations

from aggml.serve.http.app import application
from aggml.serve.http.running import Address, run
from aggml.serve.http.service import Options, Service

__all__ = ["Address", "Options", "Service", "application", "run"]


def __dir__() -> list[str]:
    return __all__
