"""CUDA devices: not usable yet; so far the seam between kernels and streams (launch.py)."""
