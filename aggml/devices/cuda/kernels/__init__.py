"""Kernels: CUDA C++ texts, `<family>.cu`, and how nodes become launches of them, `<family>.py`."""
