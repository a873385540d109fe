"""Kernels: CUDA C++ texts, `<group>.cu`, and how nodes become launches of them, `<group>.py`."""
