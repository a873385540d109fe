"""What belongs to the process as a whole: locks across a fork, signals, who is still alive.

Here: what every room above may use, none of which knows a tensor or a stream.
"""
