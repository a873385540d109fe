"""The rope of the queries, the rope of the keys with its rows, and the rows of the values as one.

Here: which three launches become one, and when that is safe: the first two are put off until the
third. Not here: the rope that writes rows (fusion_pair.py), the kernel (rope_and_rows of rope.cu).
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from aggml.devices.cuda.launch import ALWAYS, Launch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from aggml.devices.cuda.once import Lowered

__all__ = ["fuse_rope_with_rows"]

#: Kernels that write their first operand and scratch, and read nothing but operands, scratch and
#: what a word of their aux points to. A rope is put off past these alone.
_PASSED: Final = ("vec_", "tiles_", "add_parts", "quantize_columns", "norm_rows")
_WINDOW: Final = 24  # launches that are looked at
_OPERAND: Final = struct.Struct("<10q")  # data, ne, nb, type
_TAIL: Final = 64 + 64 + 24  # op_params, aux, scratch, fault, op

#: Whether it counts from scratch, the first byte, the byte behind the last one.
_Span = tuple[bool, int, int]


def fuse_rope_with_rows(nodes: Sequence[list[Lowered]]) -> int:
    """Make one launch of three wherever rows of values are written behind two ropes.

    Args:
        nodes: the launches of each node, in order; changed in place.

    Returns:
        How many launches are left out.
    """
    flat = [(launches, one) for launches in nodes for one in launches]
    left_out = 0
    for end, (launches, rows) in enumerate(flat):
        if rows[0].kernel != "set_rows":
            continue
        found = _before(flat[max(0, end - _WINDOW) : end], rows)
        if found is None:
            continue
        for of_node, one in found:
            of_node[:] = [each for each in of_node if each is not one]
        (_, queries), (_, keys) = found
        launches[:] = [_three(queries, keys, rows) if x is rows else x for x in launches]
        left_out += 2
    return left_out


def _before(
    earlier: Sequence[tuple[list[Lowered], Lowered]], rows: Lowered
) -> list[tuple[list[Lowered], Lowered]] | None:
    """The ropes of queries and of keys, each with the launches of its node; None: not both."""
    found: dict[str, tuple[list[Lowered], Lowered]] = {}
    passed = [rows]
    for of_node, one in reversed(earlier):
        if not any(one is each for each in of_node):
            continue  # it is a part of an earlier launch already
        name = one[0].kernel
        if name == "check_ids":
            continue  # it reads indices, and writes none but the word of its fault
        if name in ("rope_f32", "rope_to_rows") and name not in found:
            if not all(_independent(one, other) for other in passed):
                return None
            found[name] = of_node, one
            if len(found) == 2:
                return [found["rope_f32"], found["rope_to_rows"]]
        elif one[0].gemm or one[0].when != ALWAYS or not name.startswith(_PASSED):
            return None
        passed.append(one)
    return None


def _spans(lowered: Lowered) -> Iterator[_Span]:
    """The bytes of each operand, of which the first one is written."""
    _, args, relative = lowered
    for at in range(0, len(args) - _TAIL, _OPERAND.size):
        data, *extents, _ = _OPERAND.unpack_from(args, at)
        ne, nb = extents[:4], extents[4:]
        size = max(n * step for n, step in zip(ne, nb, strict=True))
        if data or at in relative:
            yield at in relative, data, data + size


def _aux_spans(lowered: Lowered) -> Iterator[_Span]:
    """The byte that each word of aux would point to: fusion_chain.py puts addresses there."""
    _, args, relative = lowered
    for at in range(len(args) - _TAIL + 64, len(args) - 24, 8):
        (word,) = struct.unpack_from("<Q", args, at)
        yield at in relative, word, word + 1


def _independent(one: Lowered, other: Lowered) -> bool:
    """Whether neither launch touches what the other one writes."""
    mine, theirs = list(_spans(one)), list(_spans(other))
    read, also_read = [*mine, *_aux_spans(one)], [*theirs, *_aux_spans(other)]
    return not any(_overlap(mine[0], x) for x in also_read) and not any(
        _overlap(theirs[0], x) for x in read
    )


def _overlap(a: _Span, b: _Span) -> bool:
    return a[0] == b[0] and a[1] < b[2] and b[1] < a[2]


def _three(queries: Lowered, keys: Lowered, rows: Lowered) -> Lowered:
    """One launch with the parameters of all three, one behind the other."""
    args, relative = b"", []
    for _, mine, at in (queries, keys, rows):
        relative += [len(args) + offset for offset in at]
        args += mine
    each = queries[0].grid, keys[0].grid
    grid = max(x for x, _, _ in each), max(y for _, y, _ in each), 3
    return Launch("rope", "rope_and_rows", grid, (32, 8, 1), 0, args), args, relative
