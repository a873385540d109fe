"""Writes docs/cuda-ops.md: for which ops and element types there are CUDA kernels.

It asks `CudaKernels.supports` about each node of the recorded cases. A test compares the page with
the answers, so it notices if a type is lost. Not here: whether results are right
(tests/devices/cuda/test_kernels.py).

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

Which ops have CUDA kernels, and for which element types (operands -> result). "Cases" is the number
of recorded results of ggml that the kernels are compared with; it is 0 for ops that ggml does not
have. Combinations under "done" have kernels; a scheduler computes those under "missing" on another
device. `tools/cuda_table.py` writes this page. The kernels pass all cases on the CPU, compiled for
it with a shim (`tests/devices/cuda`). None has run on a GPU yet. These have no recorded cases and
no kernels: `flash_attn_back`, `map_custom*`, `custom_*`, quantizing with an importance matrix.

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
        if "prec_set_src" in case.modify:  # it leaves some products to other devices (ops.md)
            continue
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
