"""A script, a notebook or a test needs no event loop: `Future.get` waits for the result.

The thread that waits holds no lock of the interpreter, so other threads go on, and Ctrl-C works.
"""

import numpy as np

import aggml
from aggml import Graph, ops


def main() -> None:
    x = aggml.new_tensor("f32", ne=(4,), name="x")
    y = ops.soft_max(x).set_name("y")
    graph = Graph(y)
    with aggml.get_device("CPU").backend() as be:
        be.alloc_graph(graph)
        for scale in (0.0, 1.0, 10.0):
            values = scale * np.arange(4, dtype=np.float32)
            future = be.run(graph, {"x": values}, "y")  # names stand for tensors
            print(scale, future.get(timeout=10).round(3))


if __name__ == "__main__":
    main()
