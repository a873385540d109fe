"""Architectures: one file each, which says how a model of that name is built.

Each file has a function `describe`, from a model file's hyperparameters to a `Description`, and the
value `ARCHITECTURE`. The catalogue (../catalogue.py) finds the files by itself. Not here: blocks
(../blocks/), reading hyperparameters that most architectures share (../reading.py).
"""
