"""Layouts: a program gets memory, native plans and a list of actions, in steps that are values.

Here: rewrite.py -> place.py -> script.py -> layout.py. Not here: what runs where (deciding/),
enqueuing (running/).
"""
