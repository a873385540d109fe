"""Write quant_iq_grid_2.def and quant_iq_grid_3.def: codebooks of the IQ types, from gguf.

Each point is one number. The level of its first element is in the lowest bits: two bits for each
level (iq2, iq1), or three (iq3). Points keep their order, because blocks store their indices.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf.quants
import numpy as np

BOOKS = {
    "AGK_IQ2_XXS": (gguf.quants.IQ2_XXS, 2),
    "AGK_IQ2_XS": (gguf.quants.IQ2_XS, 2),
    "AGK_IQ2_S": (gguf.quants.IQ2_S, 2),
    "AGK_IQ1": (gguf.quants.IQ1_S, 2),
    "AGK_IQ3_XXS": (gguf.quants.IQ3_XXS, 3),
    "AGK_IQ3_S": (gguf.quants.IQ3_S, 3),
}
HEAD = """\
/* Codebooks of the IQ types with levels of %d bits, written by tools/iq_grids.py.
 *
 * P(levels of a point), element 0 in the lowest bits. Who includes this defines P and the name of a
 * book, which is undefined at the end. */
"""
WIDTH = 120


def section(macro: str, book: Any, bits: int) -> str:  # noqa: ANN401 - gguf types no grids
    """The points of one book between its #ifdef and #endif."""
    book.init_grid()
    values = np.asarray(book.grid).reshape(book.grid_shape)
    levels = np.searchsorted(np.asarray(book.grid_map, np.float32), values)
    points = (levels << bits * np.arange(values.shape[1])).sum(axis=1)
    words = [f"P(0x{point:04x})" for point in points]
    per_line = (WIDTH + 1) // (len(words[0]) + 1)
    lines = [" ".join(words[i : i + per_line]) for i in range(0, len(words), per_line)]
    return "\n".join([f"#ifdef {macro}", *lines, f"#undef {macro}", "#endif"])


def main() -> None:
    """Write the files anew."""
    formats = Path(__file__).resolve().parent.parent / "aggml" / "native" / "formats"
    for width in (2, 3):
        sections = [
            section(macro, book, bits) for macro, (book, bits) in BOOKS.items() if bits == width
        ]
        target = formats / f"quant_iq_grid_{width}.def"
        target.write_text(HEAD % width + "\n".join(sections) + "\n")


if __name__ == "__main__":
    main()
