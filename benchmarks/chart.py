"""A picture of a run: how many times as fast as each peer, and how near to the roofline.

Not here: the measurements.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from benchmarks.peers import module, need

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from benchmarks.timing import Row

LESS_IS_BETTER: Final = ("us", "ms")
COLOURS: Final = {
    "ggml": "#4c78a8", "llama.cpp": "#4c78a8", "numpy": "#72b7b2", "PyTorch": "#f58518",
    "onnxruntime": "#54a24b",
}  # fmt: skip
OTHER: Final = "#9d755d"
WIDEST: Final = 1.2  # largest share that is drawn


def draw(rows: Sequence[Row], title: str, path: Path) -> None:
    """Write a PNG.

    Raises:
        MissingPeerError: matplotlib is not installed.
    """
    need("matplotlib")
    module("matplotlib").use("Agg")
    plt = module("matplotlib.pyplot")
    rows = [row for row in rows if row.part != "ops"]  # hundreds of rows: too many to read
    # Rows of "%" and of "lag" are no speeds, so ratios to peers make no sense there.
    speeds = [row for row in rows if row.unit != "%" and row.part != "lag"]
    beside = [(row, name) for row in speeds for name in row.peers]
    shares = [(row, name) for row in rows for name in row.roofs]
    height = max(3.0, 0.2 * max(len(beside), len(shares)) + 1.5)
    figure, (left, right) = plt.subplots(1, 2, figsize=(17, height), layout="constrained")
    figure.suptitle(title)
    _ratios(left, beside)
    _shares(right, shares)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _ratios(axes: Any, beside: list[tuple[Row, str]]) -> None:
    axes.set_title("times as fast as the peer (right of 1: aggml is faster)")
    for y, (row, name) in enumerate(beside):
        ratio = row.value / row.peers[name]
        ratio = 1 / ratio if row.unit in LESS_IS_BETTER else ratio
        colour = next((c for known, c in COLOURS.items() if name.startswith(known)), OTHER)
        axes.barh(y, ratio - 1, left=1, color=colour)  # on a log axis bars begin at ratio 1
        axes.text(max(ratio, 1) * 1.03, y, f"{ratio:.2g}", va="center", fontsize=6)
        limit = next((b.limit for b in row.budgets if b.of == name), None)
        if limit is not None:
            at = 1 / limit if row.unit in LESS_IS_BETTER else limit
            axes.plot([at, at], [y - 0.45, y + 0.45], color="black", linewidth=1)
    axes.set_xscale("log")
    axes.axvline(1, color="black", linewidth=0.6)
    _label(axes, [f"{row.what}  |  {name}" for row, name in beside])


def _shares(axes: Any, shares: list[tuple[Row, str]]) -> None:
    axes.set_title("share of what the machine can do (line: demanded)")
    for y, (row, name) in enumerate(shares):
        share = row.value / row.roofs[name]
        axes.barh(y, share, color="#b279a2" if name in ("read", "a copy") else "#e45756")
        # Text beyond the axes would make the bars shorter.
        axes.text(min(share + 0.01, WIDEST - 0.07), y, f"{share:.0%}", va="center", fontsize=6)
        limit = next((b.limit for b in row.budgets if b.of == name), None)
        if limit is not None:
            axes.plot([limit, limit], [y - 0.45, y + 0.45], color="black", linewidth=1)
    axes.set_xlim(0, WIDEST)
    _label(axes, [f"{row.what}  |  {name}" for row, name in shares])


def _label(axes: Any, names: list[str]) -> None:
    axes.set_yticks(range(len(names)), names, fontsize=6)
    axes.set_ylim(-0.7, max(len(names), 1) - 0.3)
    axes.invert_yaxis()
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
