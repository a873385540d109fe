"""SchedulePlan: a printable schedule: splits, copies, the backend of each node and why.

Here: text, a drawing, Graphviz source. Not here: deciding any of it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from aggml.ops.table import VIEWS
from aggml.process import html
from aggml.process.picture import DrawnRow, draw_rows, save_svg
from aggml.tensor import describe

if TYPE_CHECKING:
    import os

    from aggml.scheduler.deciding.program import SplitGraph
    from aggml.scheduler.deciding.split import Copy, Split
    from aggml.tensor import Tensor

__all__ = ["SchedulePlan"]

# Colours of ColorBrewer's "Set3", one for each backend.
_COLOURS = ("#8dd3c7", "#ffffb3", "#bebada", "#fb8072", "#80b1d3", "#fdb462", "#b3de69", "#fccde5")


#: What the causes mean. The tags are ggml's: the number is that of the pass that decided.
CAUSES: Final = {
    "usr": "set_tensor_backend pinned it to this backend",
    "1.dst": "its memory is on this backend",
    "1.vsrc": "it is a view of memory on this backend",
    "1.inp": "it is an input: those are on the last backend",
    "1.wgtN": "its source N is a weight on this backend",
    "1.off": "its weight is in host memory, but this backend offers to compute it (offload_op)",
    "2.sup": "the node before or after it is on this backend, which supports it",
    "3.best": "this backend reaches most of its sources",
    "3.upg": "this backend comes earlier than the first choice, and has the same memory",
    "4.vsrc": "it is a view of a tensor on this backend",
    "4.cur": "the node that reads it is on this backend",
    "4.any": "this is the first backend that supports it",
}


class SchedulePlan:
    """A schedule to ``print``: which backend runs which node. The text ends with its legend."""

    def __init__(self, program: SplitGraph) -> None:
        self._program = program

    @property
    def splits(self) -> list[Split]:
        """In order."""
        return list(self._program.splits)

    def cause(self, tensor: Tensor) -> str:
        """Why the tensor is on its backend; empty if it is not in the graph."""
        return self._program.found.cause.get(tensor, "")

    def _name(self, b: int) -> str:
        return f"{b} {self._program.q.backends[b].name}"

    def __str__(self) -> str:
        program = self._program
        backend, cause = program.found
        lines = [repr(self)]
        lines += [
            f"leaf {describe(leaf)}: {self._name(backend[leaf])} [{cause[leaf]}]"
            for leaf in program.leafs
        ]
        for i, split in enumerate(program.splits):
            lines.append(f"split {i} on {self._name(split.backend)}, {len(split.inputs)} copied in")
            lines += [
                f"  <- {describe(copy.tensor)}, {copy.tensor.nbytes} bytes, "
                f"from {self._name(program.at(copy.tensor))}"
                for copy in split.inputs
            ]
            for k in range(split.start, split.end):
                node = program.nodes[k]
                sources = ", ".join(
                    s.name + ("*" if s in split.swaps else "") for s in node.src if s is not None
                )
                lines.append(
                    f"  {k:4} {node.op:14} {describe(node)} ({sources}) [{cause.get(node, '')}]"
                )
        return "\n".join([*lines, *self._signs()])

    def _signs(self) -> list[str]:
        """The legend: the meaning of the signs that occur in the text."""
        found = {re.sub(r"wgt\d+", "wgtN", cause) for cause in self._program.found.cause.values()}
        lines = [f"[{sign}] {text}" for sign, text in CAUSES.items() if sign in found]
        if any(split.swaps for split in self._program.splits):
            lines.append("*  read from a copy")
        return lines

    def __repr__(self) -> str:
        program = self._program
        return (
            f"<SchedulePlan of graph {program.uid}: {len(program.nodes)} nodes in "
            f"{len(program.splits)} splits>"
        )

    def _repr_html_(self) -> str:
        """For notebooks: the splits, and why each node is where it is."""
        return html.plain(str(self))

    def plot(self, path: str | os.PathLike[str], *, title: str = "") -> None:
        """Draw the schedule as SVG: a colour for each backend, dashed lines from values to copies.

        Args:
            path: ends with ``.svg``.
            title: above it; if empty, ``repr(plan)``.

        Raises:
            InvalidArgument: another suffix.
            OSError: the file cannot be written.
        """
        program = self._program
        rows: list[DrawnRow] = []
        place: dict[Tensor, int] = {}
        copied: dict[Copy, int] = {}
        for i, split in enumerate(program.splits):
            band = split.backend
            rows.append(
                DrawnRow(f"split {i} on {self._name(split.backend)}", heading=True, band=band)
            )
            for copy in split.inputs:
                source = place.get(copy.tensor)
                sources = () if source is None else (source,)
                copied[copy] = len(rows)
                text = f"{'copy':14} {describe(copy.tensor)}, {copy.tensor.nbytes} bytes, from "
                text += self._name(program.at(copy.tensor))
                rows.append(DrawnRow(text, sources, band=band, copied=frozenset(sources)))
            for node in program.nodes[split.start : split.end]:
                if node.op == "none":
                    continue
                reads = [
                    copied.get(split.swaps[x], place.get(x)) if x in split.swaps else place.get(x)
                    for x in node.src
                    if x is not None
                ]
                cause = program.found.cause.get(node, "")
                place[node] = len(rows)
                rows.append(
                    DrawnRow(
                        f"{node.op:14} {describe(node)} "
                        f"({', '.join(x.name for x in node.src if x is not None)}) [{cause}]",
                        tuple(dict.fromkeys(x for x in reads if x is not None)),
                        band=band,
                        about=CAUSES.get(re.sub(r"wgt\d+", "wgtN", cause), ""),
                    )
                )
        notes = [sign for sign in self._signs() if not sign.startswith("*")]
        save_svg(path, draw_rows(title or repr(self), rows, notes), "SchedulePlan.plot")

    def dot(self) -> str:
        """The schedule as source of Graphviz: splits are boxes, copies dashed edges."""
        program = self._program
        number = {t: f"t{i}" for i, t in enumerate((*program.leafs, *program.nodes))}
        lines = ["digraph schedule {", "  rankdir=TB;", "  node [shape=box, style=filled];"]

        def colour(b: int) -> str:
            return _COLOURS[b % len(_COLOURS)]

        def label(text: str) -> str:
            return text.replace("\\", "\\\\").replace('"', '\\"')

        for leaf in program.leafs:
            fill = colour(program.found.backend[leaf])
            lines.append(
                f'  {number[leaf]} [label="{label(describe(leaf))}", shape=ellipse, '
                f'fillcolor="{fill}"];'
            )
        for i, split in enumerate(program.splits):
            title = label(f"split {i}: {self._name(split.backend)}")
            lines.append(f"  subgraph cluster_{i} {{")
            lines.append(f'    label="{title}"; color="{colour(split.backend)}";')
            for node in program.nodes[split.start : split.end]:
                if node.op == "none":
                    continue
                why = program.found.cause.get(node, "")
                lines.append(
                    f'    {number[node]} [label="{label(node.op)} {label(node.name)}\\n[{why}]", '
                    f'fillcolor="{colour(split.backend)}"];'
                )
            lines.append("  }")
            for node in program.nodes[split.start : split.end]:
                for source in node.src:
                    if source is not None and source in number:
                        dashed = source in split.swaps and node.op not in VIEWS
                        style = " [style=dashed]" if dashed else ""
                        lines.append(f"  {number[source]} -> {number[node]}{style};")
        lines.append("}")
        return "\n".join(lines)
