"""Which rows of a batch are computed together.

Not here: how sentences share rows (aggml.models.encoder.packing).
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from aggml.models.encoder.packing import Shape

#: With so many tokens a layer's results, from its first product to its last, stay in a core's L2.
#: 64 sentences of 122 tokens in such parts take two thirds of the time of one graph.
PART_TOKENS: Final = 512
#: A part with fewer tokens loses more by reading the weights again than it saves in waiting for
#: other threads after each node.
FEWEST_TOKENS: Final = 128


def parts_of(shape: Shape, workers: int) -> list[range]:
    """Rows of a batch in parts that are computed separately, equally many for each worker.

    A part has at most `PART_TOKENS` tokens unless a row is longer, and not many less. Parts differ
    by at most one row.
    """
    tokens = shape.rows * shape.tokens
    count = -(-tokens // PART_TOKENS)
    count = min(-(-count // workers) * workers, tokens // FEWEST_TOKENS, shape.rows)
    ends = [shape.rows * i // max(count, 1) for i in range(max(count, 1) + 1)]
    return [range(first, end) for first, end in itertools.pairwise(ends)]
