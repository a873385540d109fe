"""Gradients: graphs that compute, besides their results, the gradients of a loss.

rules.py has the rule of differentiation of each op, views.py the gradient through a view,
backward.py builds the graph. Not here: ops that compute gradients (ops/), training (opt/).
"""

from aggml.gradients.backward import build_backward_expand
from aggml.gradients.rules import DIFFERENTIABLE, WITHOUT_EFFECT

__all__ = ["DIFFERENTIABLE", "WITHOUT_EFFECT", "build_backward_expand"]


def __dir__() -> list[str]:
    return __all__
