"""Submissions: what a user asks for becomes operations on streams, in one step.

Here: job.py checks what is asked for, run.py enqueues it, prepared.py does so again, evaluate.py
looks at nodes in between. Not here: what is planned for a graph (deciding/, layout/).
"""
