"""Small programs whose gradients ggml computed, too: leafs, calls of builders, a loss.

A call is (result, builder, operands, further arguments). The arguments are those of ggml's function
of that name. tools/ggml_gradients.py runs the programs with ggml and records its gradients. Not
here: the comparison (test_ggml_gradients.py).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

__all__ = ["PROGRAMS", "Program", "values"]


class Program(NamedTuple):
    """A function from leafs to a loss.

    Attributes:
        leafs: extents by name; a name in upper case is a parameter, one in ``i_`` has indices.
        calls: in order; the result of the last is the loss.
    """

    leafs: dict[str, tuple[int, ...]]
    calls: tuple[tuple[str, str, tuple[str, ...], tuple[Any, ...]], ...]


def values(program: Program) -> dict[str, np.ndarray[Any, Any]]:
    """The values of the leafs, in numpy's order of axes; the same each time."""
    rng = np.random.default_rng(19)
    found: dict[str, np.ndarray[Any, Any]] = {}
    for name, ne in program.leafs.items():
        if name.startswith("i_"):
            found[name] = (np.arange(int(np.prod(ne))) % 3).astype(np.int32).reshape(ne[::-1])
        elif name == "labels":
            x = np.exp(rng.normal(size=ne[::-1]))
            found[name] = (x / x.sum(-1, keepdims=True)).astype(np.float32)
        else:
            found[name] = (0.5 + np.abs(rng.normal(size=ne[::-1]))).astype(np.float32)
    return found


PROGRAMS = {
    "classifier": Program(
        {"W1": (4, 6), "B1": (6,), "W2": (6, 3), "B2": (3,), "x": (4, 5), "labels": (3, 5)},
        (
            ("a", "mul_mat", ("W1", "x"), ()),
            ("b", "add", ("a", "B1"), ()),
            ("c", "relu", ("b",), ()),
            ("d", "mul_mat", ("W2", "c"), ()),
            ("e", "add", ("d", "B2"), ()),
            ("loss", "cross_entropy_loss", ("e", "labels"), ()),
        ),
    ),
    "regression": Program(
        {"W": (4, 3), "S": (3,), "x": (4, 5), "y": (3, 5)},
        (
            ("a", "mul_mat", ("W", "x"), ()),
            ("b", "mul", ("a", "S"), ()),
            ("c", "sub", ("b", "y"), ()),
            ("d", "sqr", ("c",), ()),
            ("e", "sum", ("d",), ()),
            ("loss", "scale", ("e",), (0.25,)),
        ),
    ),
    "attention": Program(
        {"Q": (8, 2, 3), "K": (8, 2, 3), "V": (3, 8, 2), "G": (8,), "i_pos": (3,)},
        (
            ("n", "rms_norm", ("Q",), (0.01,)),
            ("g", "mul", ("n", "G"), ()),
            ("q", "rope", ("g", "i_pos"), (8, 0)),
            ("k", "rope", ("K", "i_pos"), (8, 2)),
            ("qp", "permute", ("q",), (0, 2, 1, 3)),
            ("kp", "permute", ("k",), (0, 2, 1, 3)),
            ("s", "mul_mat", ("kp", "qp"), ()),
            ("t", "scale", ("s",), (0.35,)),
            ("m", "diag_mask_inf", ("t",), (0,)),
            ("p", "soft_max", ("m",), ()),
            ("o", "mul_mat", ("V", "p"), ()),
            ("r", "permute", ("o",), (0, 2, 1, 3)),
            ("u", "cont", ("r",), ()),
            ("w", "sqr", ("u",), ()),
            ("loss", "sum", ("w",), ()),
        ),
    ),
    "gates": Program(
        {"T": (6, 4), "A": (6, 3), "B": (6, 3), "i_rows": (3,)},
        (
            ("r", "get_rows", ("T", "i_rows"), ()),
            ("g", "swiglu_split", ("A", "r"), ()),
            ("h", "silu", ("B",), ()),
            ("d", "div", ("g", "B"), ()),
            ("e", "add", ("d", "h"), ()),
            ("f", "softplus", ("e",), ()),
            ("l", "log", ("f",), ()),
            ("x", "expm1", ("A",), ()),
            ("y", "exp", ("B",), ()),
            ("z", "mul", ("x", "y"), ()),
            ("q", "sqrt", ("z",), ()),
            ("k", "sub", ("l", "q"), ()),
            ("n", "neg", ("k",), ()),
            ("b", "abs", ("n",), ()),
            ("s", "sin", ("b",), ()),
            ("c", "cos", ("s",), ()),
            ("m", "sum_rows", ("c",), ()),
            ("loss", "sum", ("m",), ()),
        ),
    ),
    "parts": Program(
        {"A": (6, 4), "B": (3, 2), "C": (2, 2), "like": (4, 6)},
        (
            ("a", "acc", ("A", "B"), (24, 96, 96, 28)),
            ("s", "set", ("a", "C"), (24, 96, 96, 8)),
            ("v", "view_2d", ("s",), (3, 2, 24, 12)),
            ("w", "sqr", ("v",), ()),
            ("t", "transpose", ("w",), ()),
            ("c", "cont", ("t",), ()),
            ("r", "repeat", ("c", "like"), ()),
            ("h", "reshape_2d", ("r",), (8, 3)),
            ("m", "mul", ("h", "h"), ()),
            ("z", "sum_rows", ("m",), ()),
            ("loss", "sum", ("z",), ()),
        ),
    ),
}
