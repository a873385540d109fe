"""The engine: requests of any number of tasks share the steps of one model.

Here: the names that programs import. Not here: one step over the weights (../decoder/), keys and
values (../kv/).
"""
