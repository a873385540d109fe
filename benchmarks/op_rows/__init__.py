"""The rows of the part "ops", by group of ops. Not here: cases and their data (op_cases.py).

Products and attention of models' sizes have parts of their own (kernels.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.op_rows import convolutions, copies, elementwise, products, rows, sequences

if TYPE_CHECKING:
    from benchmarks.op_rows.row import Cases

__all__ = ["all_cases"]


def all_cases() -> Cases:
    """The name and the case of each row."""
    found: Cases = {}
    for add in (
        elementwise.binary,
        elementwise.unary,
        elementwise.glu,
        rows.norms,
        rows.reductions,
        copies.copies,
        copies.shapes,
        copies.padded_and_cut,
        copies.positions_and_masks,
        copies.rows_by_number,
        rows.softmax_and_rope,
        convolutions.convolutions,
        convolutions.strided_and_deep,
        convolutions.transposed,
        convolutions.im2col,
        convolutions.pools_and_sizes,
        rows.order,
        sequences.sequences,
        sequences.training,
        products.products,
        products.experts,
        products.attention,
    ):
        add(found)
    return found
