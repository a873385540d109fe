"""The table of ops: the rows of native/table/ops.def, and sets of ops derived from them.

Here: facts that hold for every node of an op. Not here: shape rules (the builders in this folder),
the cost of a step (native/runtime/plan_cost.c).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from aggml.native import _native

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "CHECKS",
    "IDLE",
    "NUMBERS",
    "OPS",
    "PACKS",
    "PARTLY",
    "TARGETS",
    "UPDATES",
    "VIEWS",
    "WRITES_MORE",
    "OpTraits",
    "in_group",
    "with_stage",
    "with_trait",
]


class OpTraits(NamedTuple):
    """One row; native/table/ops.def says what the columns mean.

    Attributes:
        name: ggml's lower-case name of the node, the value of `Tensor.op`.
        group: the file of its lowering, native/lower/<group>.c.
        units: the unit in which its arithmetic is counted: "EACH" element, "DOTS" of a product, ...
        ps: picoseconds that a unit takes on one thread.
        in_place: how many of the first operands the result may lie on.
        stage: the part it can take in a chain of fused nodes, "ALONE" if none.
        traits: all other facts by name: "VIEW", "CHECKS", ...
        targets: the sources into which the result is written; they are written and not read.
        updates: the sources that are written in addition to the result.
    """

    name: str
    group: str
    units: str
    ps: int
    in_place: int
    stage: str
    traits: tuple[str, ...]
    targets: tuple[int, ...]
    updates: tuple[int, ...]


#: The rows by name, in the order of the table.
OPS: Final[Mapping[str, OpTraits]] = {row[0]: OpTraits(*row) for row in _native.ops()}
#: The number that C has for an op (agk_op): its place in the table.
NUMBERS: Final[Mapping[str, int]] = {name: i for i, name in enumerate(OPS)}


def in_group(group: str) -> tuple[str, ...]:
    """The ops that one file lowers, in the order of the table."""
    return tuple([name for name, op in OPS.items() if op.group == group])


def with_stage(*stages: str) -> frozenset[str]:
    """The ops that can take one of these parts in a chain of fused nodes."""
    return frozenset([name for name, op in OPS.items() if op.stage in stages])


def with_trait(trait: str) -> frozenset[str]:
    """The ops that have a trait."""
    return frozenset([name for name, op in OPS.items() if trait in op.traits])


#: Ops that view the bytes of their source in another layout, and compute nothing.
VIEWS: Final = with_trait("VIEW")
#: These ops, and "none", the op of leafs: nodes of these ops need no step.
IDLE: Final = VIEWS | with_trait("LEAF")
#: Ops whose source 0 may be weights; kernels may keep a packed copy of these.
PACKS: Final = with_trait("PACKS")
#: Ops that check their data first, such as ids, and may refuse to run.
CHECKS: Final = with_trait("CHECKS")
#: Ops that write a part of their result only.
PARTLY: Final = with_trait("PARTLY")
#: (op, source) for each source into which the result is written; such a source is not read.
TARGETS: Final = frozenset([(name, i) for name, op in OPS.items() for i in op.targets])
#: For each op that writes sources in addition to its result: these sources.
UPDATES: Final = {name: op.updates for name, op in OPS.items() if op.updates}
#: Ops that write more than their result, or call a user's function, which may write anything.
WRITES_MORE: Final = with_trait("WRITES_ANY") | UPDATES.keys()
