"""The tables of aggml/native/table, row by row: each row is complete and true.

Here: a kernel, a test, a benchmark and a line of the docs exist for each row; facts that used to
have several copies. Not here: whether results are right (tests/ops), whether a row is all that has
to be added (test_adding.py).
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from corpus_loader import op_cases, type_table
from ops.recorded import build

import aggml
from aggml import DType, Graph, new_tensor, ops
from aggml.devices.cuda.lowering import HOSTS
from aggml.devices.cuda.plain import PLAIN
from aggml.dtype import TYPES
from aggml.memory.allocator import INPLACE
from aggml.native import ISAS, _native, isas
from aggml.ops import table
from aggml.ops.table import IDLE, OPS

ROOT = Path(__file__).resolve().parents[2]
NATIVE = ROOT / "aggml" / "native"
COMPUTED = sorted(OPS.keys() - IDLE)
#: Ops without CUDA kernels: docs/cuda-ops.md names them, too.
NOT_ON_CUDA = {"flash_attn_back", "quantize", *table.with_trait("WRITES_ANY")}


def text_of(pattern: str) -> str:
    return "\n".join(path.read_text(encoding="utf-8") for path in sorted(ROOT.glob(pattern)))


# -- ops


def test_an_op_has_a_lowering_in_the_file_of_its_group() -> None:
    for group in sorted({OPS[op].group for op in COMPUTED}):
        files = list(NATIVE.glob(f"lower/**/{group}.c"))
        assert len(files) == 1, group
        assert re.search(rf"^agk_status agk_lower_{group}\(", files[0].read_text(), re.MULTILINE)


def test_an_op_has_kernels_of_cuda_or_is_known_not_to() -> None:
    for op in COMPUTED:
        assert (op in PLAIN) + (op in HOSTS) == (op not in NOT_ON_CUDA), op


def test_an_op_is_tested_and_documented() -> None:
    nodes = re.findall(r"^\| \w+ \| ([^|]*) \|", text_of("docs/ops.md"), re.MULTILINE)
    built = {op for names in nodes for op in names.split()}
    recorded = {case.node for case in op_cases()}
    for op in COMPUTED:
        word = re.compile(rf"\b{op}")
        assert op in recorded or word.search(text_of("tests/ops/test_*.py")), op
        assert op in built or op == "quantize", op  # no builder makes that op
        assert op in NOT_ON_CUDA or f"\n| {op} |" in text_of("docs/cuda-ops.md"), op


def test_leaves_and_views_are_all_that_computes_nothing() -> None:
    assert {op for op, row in OPS.items() if row.units == "NOTHING"} == IDLE
    assert {"view", "reshape", "permute", "transpose"} == table.VIEWS  # the ops of ggml_is_view_op
    assert {"none"} == IDLE - table.VIEWS


def test_the_result_may_lie_where_ggml_lets_it() -> None:
    """As ggml_op_can_inplace says; UNARY stands for the functions that share one op in ggml."""
    alone = {"sin", "cos", "leaky_relu"}  # functions that are ops of their own in ggml
    unary = {op for op, row in OPS.items() if row.group == "unary"} - alone
    named = (
        "fill scale diag_mask_zero diag_mask_inf add add_id add1 sub mul div rope rope_back "
        "silu_back rms_norm rms_norm_back soft_max soft_max_back"
    )
    assert set(INPLACE) == unary | set(named.split())


def test_what_an_op_writes_is_seen_in_its_nodes() -> None:
    """An op's target is the source that its result is a view of."""
    for case in (c for c in op_cases() if not c.steps and OPS[c.node].targets):
        node = next(n for n in Graph(build(case).out).nodes if n.op == case.node)
        for i in OPS[case.node].targets:
            source = node.src[i] if i < len(node.src) else None  # cast makes another node than cpy
            if source is not None:
                assert node.root is source.root, case.node


def test_a_step_of_sgd_writes_its_result_alone_and_one_of_adamw_more() -> None:
    assert table.UPDATES == {"opt_step_adamw": (2, 3)}
    assert "opt_step_sgd" not in table.WRITES_MORE
    assert {"opt_step_adamw", "custom", "map_custom1"} <= table.WRITES_MORE


def test_ops_that_may_refuse_say_so_in_their_files() -> None:
    """A step that fails by its data returns one of two statuses; lowering gives a message."""
    failing = {
        path.stem
        for path in NATIVE.glob("lower/**/*.c")
        if re.search(r"return (AGK_OUT_OF_BOUNDS|AGK_INVALID);", path.read_text())
    }
    groups = {OPS[op].group for op in table.CHECKS}
    elsewhere = {"mul_mat_id": "experts"}  # its steps are in another file
    assert {group for group in groups if elsewhere.get(group, group) not in failing} == set()
    # ssm_scan reads ids; the other recurrences of the file read no indices.
    assert {op for op in table.in_group("recurrent") if op in table.CHECKS} == {"ssm_scan"}


# -- types


@pytest.mark.parametrize("row", type_table(), ids=lambda row: row["name"])
def test_a_type_is_as_ggml_has_it(row: dict[str, object]) -> None:
    found = TYPES[DType.parse(row["name"])]
    assert (found.id, found.blck_size, found.type_size) == (
        row["id"],
        row["blck_size"],
        row["type_size"],
    )


def test_there_is_a_member_for_each_type_and_no_other() -> None:
    assert [(kind.name, kind.value) for kind in DType] == [(r.key, r.id) for r in TYPES.values()]


@pytest.mark.parametrize("kind", [t for t in DType if t.is_quantized])
def test_a_quantized_type_is_in_the_docs_and_in_the_formats(kind: DType) -> None:
    assert (
        re.search(rf"\b{kind.type_name}\b", text_of("docs/cuda-ops.md"))
        or TYPES[kind].group == "DOT"
    )
    blocks = text_of("aggml/native/formats/blocks*.h")
    assert re.search(rf"\bagk_block_{kind.name.lower()}\b", blocks)


@pytest.mark.parametrize("kind", [t for t in DType if t.is_quantized])
def test_a_quantized_type_is_unpacked_and_written_on_cuda(kind: DType) -> None:
    kernels = "aggml/devices/cuda/kernels/"
    symbol = kind.name.lower()
    assert text_of(f"{kernels}quant_*.cuh").count(f"\nUNPACK({symbol})") == 1
    put = f"\nDEV void put_{symbol}(const float *x, char *y)"
    assert text_of(f"{kernels}quantize_*.cuh").count(put) == int(TYPES[kind].writes)


@pytest.mark.parametrize("kind", [t for t in DType if TYPES[t].dot >= 0])
def test_a_type_with_products_has_one_that_meets_it(kind: DType) -> None:
    row = TYPES[kind]
    dot = DType(row.dot)
    assert dot is kind or TYPES[dot].writes
    k = max(kind.blck_size, dot.blck_size)
    node = ops.mul_mat(new_tensor(kind, (k, 2)), new_tensor(dot, (k, 3)))
    assert node.ne[:2] == (2, 3)


def test_type_checkers_know_the_names_of_all_types() -> None:
    """If they do not: run python tools/type_names.py."""
    listed = re.findall(r"^        (\w+) = (\d+)$", text_of("aggml/dtype.py"), re.MULTILINE)
    assert [(name, int(number)) for name, number in listed] == [(k.name, k.value) for k in DType]


# -- instruction sets


def test_each_instruction_set_has_a_folder_and_lines() -> None:
    lines = text_of("aggml/native/table/kernels*.def")
    for isa in ISAS.keys() - {"native"}:
        assert list(NATIVE.glob(f"kernels/{isa}/*.c"))
        assert re.search(rf"\(.*, {isa}, (0|AGK_)", lines)
    named = set(re.findall(r"^AGK_\w+\(\w+, (\w+), ", lines, re.MULTILINE))
    assert named <= ISAS.keys()


@pytest.mark.parametrize("isa", sorted({isa for _, isa, _, _ in _native.variants()}))
def test_kernels_need_nothing_that_their_set_does_not_have(isa: str) -> None:
    needs = [needs for _, name, needs, _ in _native.variants() if name == isa]
    assert all(need & ~ISAS[isa] == 0 for need in needs)


def test_nothing_comes_behind_the_plain_kernel() -> None:
    plain: set[str] = set()
    for kernel, isa, _, _ in _native.variants():
        assert kernel not in plain
        if isa == "scalar":
            plain.add(kernel)


def test_no_two_features_share_a_bit() -> None:
    bits = [bit for _, _, bit in _native.features()]
    assert len({*bits}) == len(bits)
    assert all(bit & (bit - 1) == 0 for bit in bits)
    assert isas()[0] == "scalar"
    assert aggml.devices.cpu.isas() == isas()
