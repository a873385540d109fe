"""The scheduler: one graph over several backends. Decides first, then acts.

Here: the names. deciding/ says what runs where and why, layout/ gives that memory, plans and an
order, planner.py keeps both, running/ enqueues, scheduler.py is the public class.
"""

from aggml.scheduler.deciding.show import SchedulePlan
from aggml.scheduler.running.evaluate import Evaluation
from aggml.scheduler.scheduler import Scheduler

__all__ = ["Evaluation", "SchedulePlan", "Scheduler"]


def __dir__() -> list[str]:
    return __all__
