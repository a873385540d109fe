"""CUDA kernels: `<group>.cu` has their sources, `<group>.py` makes launches of them for a node."""
