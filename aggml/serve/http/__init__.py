"""The service over HTTP: ``application(Options(model=path))`` is an ASGI application.

Here: the names. app.py has the routes, schema.py and fields.py read requests, forms.py, choice.py
and vectors.py write answers, streams.py sends them, pacing.py keeps the loop punctual. Not here:
the computation (../engine.py).
"""

from __future__ import annotations

from aggml.serve.http.app import Options, Service, application

__all__ = ["Options", "Service", "application"]
