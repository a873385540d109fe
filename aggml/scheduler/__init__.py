"""The scheduler: one graph over several backends. It decides first, then acts.

Here: the names. deciding/ decides which backend runs which node, and why. layout/ adds memory,
plans and an order of operations. planner.py keeps the results of both. running/ enqueues.
scheduler.py is the public class.
"""

from aggml.scheduler.deciding.show import SchedulePlan
from aggml.scheduler.running.evaluate import Evaluation
from aggml.scheduler.scheduler import Scheduler

__all__ = ["Evaluation", "SchedulePlan", "Scheduler"]


def __dir__() -> list[str]:
    return __all__
