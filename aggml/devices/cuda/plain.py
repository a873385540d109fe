"""Ops whose kernels walk the node as it is: which kernel computes an op, and in what grid.

A kernel file says it in its head, so that an op of this kind is one file here:

    // computes: OP ... by KERNEL of N operands, for each WHAT

Not here: groups whose host part decides more (kernels/<name>.py).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from aggml.devices.cuda.launch import Launch
    from aggml.devices.cuda.pack import Site

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
        each: what gets threads: an "element" or a "row" of the node, or a "row of source 0", by a
            block, or "row of source 0 in a warp".
    """

    module: str
    kernel: str
    n_src: int
    each: str


def heads(folder: Path) -> dict[str, Plain]:
    """What the heads of all kernel files of a folder say, by op."""
    found: dict[str, Plain] = {}
    for path in sorted(folder.glob("*.cu")):
        head = path.read_text(encoding="utf-8").partition("#include")[0]
        for ops, kernel, n_src, each in _COMPUTES.findall(head):
            found |= dict.fromkeys(ops.split(), Plain(path.stem, kernel, int(n_src), each))
    return found


PLAIN: Final[dict[str, Plain]] = heads(KERNELS)


def plain(site: Site) -> list[Launch]:
    """The launch of an op of the table."""
    module, kernel, n_src, each = PLAIN[site.node.op]
    if each == "element":
        return site.per_element(module, kernel, site.node.nelements, n_src)
    tensor = site.node if each == "row" else site.node.src[0]
    assert tensor is not None
    if site.node.is_empty:
        return []
    width = 32 if each.endswith("warp") else tensor.ne[0]
    return site.per_row(module, kernel, tensor.nrows, width, n_src)
