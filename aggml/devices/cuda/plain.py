"""Ops with a single plain launch: which kernel computes an op, and in what grid.

The head of the kernel file states this, so that such an op needs no other file:

    // computes: OP ... by KERNEL of N operands, for each WHAT

Not here: groups of ops whose host part decides more (kernels/<name>.py).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from aggml.devices.cuda.launch import Launch
    from aggml.devices.cuda.pack import NodeSite

__all__ = ["KERNELS", "PLAIN", "Plain", "heads", "plain"]

#: The kernel files.
KERNELS: Final = Path(__file__).resolve().parent / "kernels"

_COMPUTES: Final = re.compile(
    r"^// computes: ([\w ]+) by (\w+) of (\d) operands?, for each ([\w ]+)$", re.MULTILINE
)


class Plain(NamedTuple):
    """How an op is launched.

    Attributes:
        module: the kernel file.
        kernel: its name in there.
        n_src: number of operands.
        each: the unit of work: an "element" of the node gets a thread; a "row" of the node or a
            "row of source 0" gets a block; a "row of source 0 in a warp" gets a warp.
    """

    module: str
    kernel: str
    n_src: int
    each: str


def heads(folder: Path) -> dict[str, Plain]:
    """How each op is launched, read from the heads of all kernel files of a folder."""
    found: dict[str, Plain] = {}
    for path in sorted(folder.glob("*.cu")):
        head = path.read_text(encoding="utf-8").partition("#include")[0]
        for ops, kernel, n_src, each in _COMPUTES.findall(head):
            found |= dict.fromkeys(ops.split(), Plain(path.stem, kernel, int(n_src), each))
    return found


PLAIN: Final[dict[str, Plain]] = heads(KERNELS)


def plain(site: NodeSite) -> list[Launch]:
    """The launch of an op that the table has."""
    module, kernel, n_src, each = PLAIN[site.node.op]
    if each == "element":
        return site.per_element(module, kernel, site.node.nelements, n_src)
    tensor = site.node if each == "row" else site.node.src[0]
    assert tensor is not None
    if site.node.is_empty:
        return []
    width = 32 if each.endswith("warp") else tensor.ne[0]
    return site.per_row(module, kernel, tensor.nrows, width, n_src)
