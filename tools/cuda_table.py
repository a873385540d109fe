"""Writes docs/cuda-ops.md: every recorded op and combination of types, done or missing on CUDA.

It asks `CudaKernels.supports` about each node. A test compares the page with the answers, so the
loss of a type is noticed. Not here: whether results are right (tests/devices/cuda/test_kernels.py).

    python tools/cuda_table.py          write the page
    python tools/cuda_table.py --check  fail if it is out of date
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from corpus_loader import op_cases  # noqa: E402 - the path is set above
from ops.recorded import build  # noqa: E402
from written import written  # noqa: E402

from aggml import Graph, Tensor, new_tensor, ops  # noqa: E402
from aggml.devices.cuda.lowering import CudaKernels  # noqa: E402
from aggml.ops.table import IDLE  # noqa: E402

PAGE = ROOT / "docs" / "cuda-ops.md"
HEAD = """# Ops on CUDA

The nodes of the recorded cases, and of ops that ggml has not (0 cases), by op and by types
(operands -> result). "Done" has the nodes that have CUDA kernels; a scheduler leaves those under
"missing" to other devices. This page is written by `tools/cuda_table.py`. The kernels pass these
cases on the CPU, under a shim (`tests/devices/cuda`). None has run on a GPU yet. Not recorded, and
missing: `flash_attn_back`, `map_custom*`, `custom_*`, quantizing with an importance matrix.

| op | cases | done | missing |
| --- | --- | --- | --- |
"""


def own() -> list[Tensor]:
    """Nodes of ops that ggml does not have: there are no recorded cases of these."""
    a, ids = new_tensor("f32", ne=(9, 2)), new_tensor("i32", ne=(4, 2))
    return [
        ops.sample(a, ids, new_tensor("f64", ne=(5, 2))),
        ops.penalize(a, ids, new_tensor("f32", ne=(4, 5, 2))),
    ]


def page() -> str:
    """The text of the page."""
    kernels = CudaKernels()
    cases: dict[str, int] = defaultdict(int)
    kinds: dict[str, dict[str, bool]] = defaultdict(dict)

    def enter(node: Tensor, n: int) -> None:
        sources = " ".join("-" if src is None else src.dtype.type_name for src in node.src)
        types = f"{sources} -> {node.dtype.type_name}".strip()
        cases[node.op] += n
        kinds[node.op][types] = kinds[node.op].get(types, True) and kernels.supports(node)

    for case in op_cases():
        for node in Graph(build(case).out).nodes:
            if node.op not in IDLE:
                enter(node, 1)
    for node in own():
        enter(node, 0)
    lines = [HEAD]
    for op in sorted(kinds):
        done = "; ".join(types for types, there in sorted(kinds[op].items()) if there)
        missing = "; ".join(types for types, there in sorted(kinds[op].items()) if not there)
        lines.append(f"| {op} | {cases[op]} | {done} | {missing} |\n")
    return "".join(lines)


def main() -> int:
    """Write the page, or compare it."""
    return written(PAGE, page())


if __name__ == "__main__":
    sys.exit(main())
