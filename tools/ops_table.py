"""Writes docs/ops.md: every builder, the types of its operands, the devices that compute it.

It finds the types by trying: it builds the recorded calls again with other types, and asks the
CPU's kernels about each node. Not here: what an op does (its docstring).

    python tools/ops_table.py          write the page
    python tools/ops_table.py --check  fail if it is out of date
"""

from __future__ import annotations

import dataclasses
import importlib
import sys
from collections import defaultdict
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from corpus_loader import Case, op_cases  # noqa: E402 - the path is set above
from ops.recorded import build  # noqa: E402
from written import written  # noqa: E402

from aggml import AggmlError, DType, Tensor, ops  # noqa: E402
from aggml.devices.cuda.lowering import CudaKernels  # noqa: E402
from aggml.devices.cuda.plain import PLAIN  # noqa: E402
from aggml.native import _native  # noqa: E402
from aggml.ops.table import OPS  # noqa: E402
from aggml.plan import node_problem  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

PAGE = ROOT / "docs" / "ops.md"
NATIVE = ROOT / "aggml" / "native"
KERNELS = NATIVE / "kernels"
ISAS = [name for name, *_ in _native.isas() if name != "scalar"]
CUDA = CudaKernels()
CALLS = 6  # most recorded calls tried for each builder; their operand types differ
# Builders without recorded calls: the op of their node, and the types of operands.
UNRECORDED = {
    **{
        f"map_custom{n}{suffix}": (f"map_custom{n}", "all: any")
        for n in (1, 2, 3)
        for suffix in ("", "_inplace")
    },
    **dict.fromkeys(("custom_4d", "custom_inplace"), ("custom", "all: any")),
    "flash_attn_back": ("flash_attn_back", "all: f32"),
    "view_tensor": ("view", "src: any"),
    "sample": ("sample", "a: f32; ids: i32; how: f64"),  # ggml has no such op
    "penalize": ("penalize", "a: f32; ids: i32; how: f32"),
}
QUANTIZED = frozenset(kind for kind in DType if kind.is_quantized)
HEAD = """# Ops

Every operation of `aggml.ops`, with the types of its operands and the devices that compute it. This
page is written by `tools/ops_table.py`.

- **Operand types**: the tool builds recorded calls of ggml with other types, and asks the CPU about
  each node. It keeps the extents of the recorded call. So a type does not show if its blocks are
  longer than the rows of that call.
- **Instruction sets**: every node has a scalar kernel. Some have kernels for instruction sets, too.
- **CUDA**: "yes" means that there are kernels for all recorded calls ([cuda-ops.md](cuda-ops.md)
  has the types). They have not run on a GPU yet.

A call refuses the extents, types and layouts that ggml's builders refuse. In some cases ggml's
builder accepts a view with gaps, or a permuted one, and then the kernels of its CPU stop, or read
it wrongly. aggml computes these: operands of `im2col` and the convolutions, of `pool_*`, `win_*`,
`scale`, `clamp`, `leaky_relu`, `diag_mask_*`, `diag`, `cumsum`, `mean`, `argmax`, `argsort`,
`top_k`, `repeat`, `repeat_back`, `get_rel_pos`, `get_rows_back`; the second operand of `set` and
`acc`; the source of a `cpy` that quantizes. It also computes `repeat` of every element type,
`im2col` of f16 images to f32, and `im2col` of any image to bf16.

## Precisions

`prec_set_acc` and `prec_set_src` say how coarse a product may be at most; a device may always be
more precise. In order, the most precise first: f32, bf16, f16, q8, q4. "undefined" leaves it to the
device.

- **Sums** (`prec_set_acc`, of `mul_mat`, `mul_mat_id`, `flash_attn_ext`): the CPU sums in f32, or
  in integers whose sums are added in f32, so it satisfies every precision. q8 and q4 are refused.
- **The second operand** (`prec_set_src(node, prec, 1)`, of `mul_mat` and `mul_mat_id`): undefined,
  the CPU converts f32 columns to 8 bits if the matrix is quantized, to bf16 if it is bf16, to as
  much as f16 if it is f16, and not at all if it is f32. A precision that forbids this (f32, bf16
  or f16 for a quantized matrix, f32 or bf16 for one of f16, f32 for one of bf16) makes it read the
  columns as f32. That takes up to several times as long. A CUDA device does not support such a
  node, so a scheduler gives it to the CPU.
- A ggml device passes both on to its library, as far as the library knows them. The CPU of ggml
  0.25 uses neither.

`flash_attn_ext_set_n_kv_max` promises that a query sees few keys. The CPU then reads only the keys
whose mask is not -inf, if they are at most a third of all keys (an eighth from 9 queries on). It
changes no result: the mask decides. CUDA devices do not use it.

## Builders

| builder | node | operand types | instruction sets | in place | CPU | CUDA |
| --- | --- | --- | --- | --- | --- | --- |
"""


def has_kernel(isa: str, op: str, group: str) -> bool:
    """Whether the folder of an instruction set has a file for the op, or for its group."""
    stem = {"flash_attn_ext": "flash"}.get(group, group)
    if stem == "mul_mat":
        return any(KERNELS.glob(f"{isa}/mul_mat*.c"))
    return any((KERNELS / isa / f"{name}.c").exists() for name in (op, stem))


def nodes_of(end: Tensor) -> Iterator[Tensor]:
    """``end`` and all nodes that it depends on."""
    seen, rest = set[Tensor](), [end]
    while rest:
        node = rest.pop()
        if node not in seen and node.op != "none":
            seen.add(node)
            rest += [src for src in node.src if src is not None]
            yield node


def runs(case: Case) -> bool:
    """Whether a call can be built and the CPU computes all its nodes."""
    try:
        return all(node_problem(node) is None for node in nodes_of(build(case).out))
    except (AggmlError, AssertionError):
        return False


def on_cuda(case: Case) -> bool:
    """Whether CUDA has kernels for all nodes of a call."""
    return all(map(CUDA.supports, nodes_of(build(case).out)))


def with_type(case: Case, name: str, kind: DType) -> Case:
    """The case with another type of one operand, and of all operands that share its storage."""
    inputs = tuple(
        dataclasses.replace(value, type=kind.type_name)
        if name in {value.name, value.storage}
        else value
        for value in case.inputs
    )
    return dataclasses.replace(case, inputs=inputs)


def accepted(cases: Iterable[Case]) -> dict[str, set[DType]]:
    """For each operand the types with which any of the calls runs."""
    found: dict[str, set[DType]] = defaultdict(set)
    for case in cases:
        if any(view.op == "view" for value in case.inputs for view in value.via):
            continue  # strides in bytes fit one type only
        for value in case.inputs:
            for kind in DType:
                if kind not in found[value.name] and runs(with_type(case, value.name, kind)):
                    found[value.name].add(kind)
    return found


def different(cases: Iterable[Case]) -> Iterator[Case]:
    """The first case for each combination of operand types."""
    seen: set[tuple[str, ...]] = set()
    for case in cases:
        types = tuple(value.type for value in case.inputs)
        if types not in seen:
            seen.add(types)
            yield case


def listed(kinds: set[DType]) -> str:
    """Types in a few words: most ops take no quantized type, or all except a few."""
    if kinds == set(DType):
        return "any"
    words = [kind.type_name for kind in DType if kind in kinds and kind not in QUANTIZED]
    quantized, missing = kinds & QUANTIZED, QUANTIZED - kinds
    if len(missing) <= 10 and quantized:
        words.append("quantized")
        if missing:
            words.append("except " + " ".join(sorted(kind.type_name for kind in missing)))
    else:
        words += sorted(kind.type_name for kind in quantized)
    return " ".join(words)


def row(name: str, cases: list[Case], lowered: dict[str, str]) -> str:
    """The line of one builder in the table."""
    place = "yes" if name.endswith("_inplace") or any(case.inplace for case in cases) else ""
    if not cases and name in UNRECORDED:
        node, kinds = UNRECORDED[name]
        cuda = "yes" if node in PLAIN else "not yet"
        return f"| {name} | {node} | {kinds} | | {place} | yes | {cuda} |\n"
    if not cases:
        return f"| {name} | | | | {place} | | |\n"
    chosen = list(islice(different(cases), CALLS))
    types = accepted(chosen)
    operands = "; ".join(f"{operand}: {listed(kinds)}" for operand, kinds in types.items() if kinds)
    made = {node.op for case in chosen[:1] for node in nodes_of(build(case).out)}
    made = {op for op in made if lowered.get(op, "none") != "none"} or {cases[0].node}
    sets = [isa for isa in ISAS if any(has_kernel(isa, op, lowered.get(op, op)) for op in made)]
    computed = "yes" if any(map(runs, chosen)) else "no"
    cuda = "yes" if all(map(on_cuda, cases)) else "in part" if any(map(on_cuda, cases)) else "no"
    return (
        f"| {name} | {' '.join(sorted(made))} | {operands} | {' '.join(sets)} | {place} "
        f"| {computed} | {cuda} |\n"
    )


def page() -> str:
    """The text of the page."""
    by_op: dict[str, list[Case]] = defaultdict(list)
    for case in op_cases():
        if "prec_set_src" in case.modify:  # it says nothing of types; CUDA leaves some to the CPU
            continue
        if not case.steps:
            by_op[case.op].append(case)
    lowered = {name: op.group for name, op in OPS.items()}
    lines = [HEAD]
    modules = sorted(p.stem for p in (ROOT / "aggml" / "ops").glob("[!_]*.py"))
    for module in modules:
        names = importlib.import_module(f"aggml.ops.{module}").__all__
        lines += [
            row(name, by_op[name], lowered)
            for name in sorted(names)
            if hasattr(ops, name) and name[0].islower()
        ]
    return "".join(lines)


def main() -> int:
    """Write the page, or compare it."""
    return written(PAGE, page())


if __name__ == "__main__":
    sys.exit(main())
