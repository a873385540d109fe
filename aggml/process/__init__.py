"""State of the process as a whole: locks across a fork, signals, objects that are still alive.

Here: helpers that every other package may use. None of them knows tensors or streams.
"""
