"""Benchmarks: aggml compared with its peers in the same run. ``python -m benchmarks --help``."""
