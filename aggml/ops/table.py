"""What each op is: the rows of native/table/ops.def, and the sets that readers ask for.

Here: facts that hold for every node of an op. Not here: shape rules (the builders beside this
file), prices (native/runtime/plan_cost.c).
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
        units: what its arithmetic is counted in: "EACH" element, "DOTS" of a product, ...
        ps: picoseconds that a unit takes on one thread.
        in_place: how many of the first operands the result may lie on.
        stage: the part it can take in a chain of fused nodes, "ALONE" if none.
        traits: the rest by name: "VIEW", "CHECKS", ...
        targets: sources that say where the result goes: they are written and not read.
        updates: sources that are written besides the result.
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


#: By name, in the order of the table.
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
    """The ops of which a trait is true."""
    return frozenset([name for name, op in OPS.items() if trait in op.traits])


#: Ops that look at the bytes of their source in another way, and compute nothing.
VIEWS: Final = with_trait("VIEW")
#: Those, and "none", the op of leaves: a node of them needs no step.
IDLE: Final = VIEWS | with_trait("LEAF")
#: Ops whose source 0 may be weights, of which kernels keep a packed copy.
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
