"""Architectures: one file each, which says how a model of that name is built.

Each has a function from a model file's hyperparameters to a `Description`, and `ARCHITECTURE`.
Nothing else has to know of it: the catalogue (../catalogue.py) finds it. Not here: blocks
(../blocks/), what most architectures read alike (../reading.py).
"""
