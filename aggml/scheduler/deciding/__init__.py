"""Decisions: which backend computes which node, where a graph is cut, what is copied.

Here: pure functions. assign.py and split.py decide, program.py holds their result, match.py
compares a graph with one that was seen before, show.py prints the result. Not here: memory
(layout/), running (running/).
"""
