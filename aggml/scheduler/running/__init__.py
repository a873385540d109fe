"""Submissions: a request of the user becomes operations on streams, enqueued in one step.

Here: job.py checks the request, run.py enqueues it, prepared.py enqueues repeated requests,
evaluate.py shows the values of nodes in between. Not here: planning (deciding/, layout/).
"""
