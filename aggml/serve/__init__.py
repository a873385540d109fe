"""A service: the models of `aggml.models` for programs on other machines.

Here: the names that programs import. `load_served` loads a model within `Limits`; OpenAI's routes
over HTTP are in http/, which needs the extra ``serve``. Not here: batches of requests, which are
the engines' of the models (aggml/models/engine/).
"""

from __future__ import annotations

from aggml.serve.opening import Limits, Served, load_served

__all__ = ["Limits", "Served", "load_served"]


def __dir__() -> list[str]:
    return __all__
