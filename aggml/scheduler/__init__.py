"""The scheduler: one graph over several backends. Decides first, then acts.

Here: the names. assign.py and split.py say what runs where, copies.py, order.py, program.py and
layout.py how, run.py enqueues, scheduler.py is the public class.
"""

from aggml.scheduler.deciding.show import SchedulePlan
from aggml.scheduler.running.evaluate import Evaluation
from aggml.scheduler.scheduler import Scheduler

__all__ = ["Evaluation", "SchedulePlan", "Scheduler"]
