"""Decisions: which backend computes which node, where a graph is cut, what is copied. Pure.

Here: assign.py and split.py decide, program.py is what they found, match.py says whether a graph is
like one that was decided before, show.py prints it. Not here: memory (layout/), running (running/).
"""
