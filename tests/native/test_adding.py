"""The files that must be changed to add an op, a type, an instruction set, a device or a model.

Here: one of each is added to a copy of the sources, only in the files that CONTRIBUTING names. The
copy is compiled with only the plain kernels, and computes. Not here: the existing rows of the
tables (test_tables.py).
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import aggml
from aggml.devices.cuda.plain import Plain, heads
from aggml.models.catalogue import FILES
from aggml.native import _native

ROOT = Path(__file__).resolve().parents[2]
HERE = "X86" if platform.machine() in {"x86_64", "AMD64"} else "ARM"

#: file -> the text that is added at its end, or before the line that has the mark
Changes = dict[str, str]

OP: Changes = {
    # the builder is added to aggml/ops/unary.py, below
    "aggml/native/table/ops.def": "AGK_OP(twice, twice, EACH, 60, 1, ALONE, 0)\n",
    "aggml/native/lower/twice.c": """
/* twice: each element of rows of f32 without gaps, two times. */
#include "table/kernel_types.h"
#include "refuse.h"
#include "strided.h"
#include "units.h"

static agk_status run(const agk_task *task, const agk_node *node, int64_t chunk)
{
    float *y = agk_data(task, &node->dst);
    const float *x = agk_data(task, &node->src[0]);
    const agk_range units = agk_units_of(node, chunk);
    for (int64_t i = units.first; i < units.last; ++i) y[i] = 2.0f * x[i];
    return AGK_OK;
}

agk_status agk_lower_twice(agk_lowering *lowering)
{
    const agk_node *node = lowering->node;
    const agk_status status = agk_expect_like(lowering, &node->dst, &node->src[0]);
    if (status != AGK_OK) return status;
    agk_add_units(lowering, run, agk_nelements(&node->dst), 0.1);
    return AGK_OK;
}
""",
    "aggml/devices/cuda/kernels/twice.cu": """
// twice: each element, two times.
// computes: twice by twice of 1 operand, for each element
#include "common.cuh"

KERNEL(twice, 256, Node<1>)
{
    const i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n.dst.ne[0]) ((float *)n.dst.data)[i] = 2.0f * ((const float *)n.src[0].data)[i];
}
""",
}

TYPE: Changes = {
    "aggml/native/table/types.def": (
        "AGK_TYPE(TOY, 43, toy, toy, NONE, 32, 32, 1, LEGACY, NONE, VARIANTS, ONE, NO, 2, 32, 0)\n"
    ),
    "aggml/native/formats/toy.c": """
/* toy: 32 codes of 8 bits, the quarters of a number. */
#include "quant.h"

void agk_toy_to_f32_scalar(const void *src, float *dst, int64_t n)
{
    const int8_t *x = src;
    for (int64_t i = 0; i < n; ++i) dst[i] = (float)x[i] / 4.0f;
}

void agk_f32_to_toy(const float *src, void *dst, int64_t n)
{
    int8_t *y = dst;
    for (int64_t i = 0; i < n; ++i) y[i] = (int8_t)(src[i] * 4.0f);
}
""",
    "aggml/native/table/kernels.def": "AGK_VARIANT(toy_to_f32, scalar, 0)\n",
    "aggml/devices/cuda/kernels/quant_low_bits.cuh": """
UNPACK(toy)
{
    scale_all(o, 0.25f);
    for (int k = 0; k < 8; ++k) o.q[k] = (int)word1(p + 4 * k);
}
""",
    "aggml/devices/cuda/kernels/quantize_low_bits.cuh": """
DEV void put_toy(const float *x, char *y)
{
    for (int i = 0; i < 32; ++i) y[i] = (char)(int)(x[i] * 4.0f);
}
""",
}

ISA: Changes = {
    "aggml/native/table/isas.def": f"AGK_ISA(bare, {HERE}, 0, 0, 0, -O1)\n",
    "aggml/native/kernels/bare/to_f32.c": """
/* f16 to f32 on an instruction set that has nothing. */
#include "table/kernel_types.h"

void agk_f16_to_f32_bare(const void *src, float *dst, int64_t n)
{
    agk_f16_to_f32_scalar(src, dst, n);
}
""",
    "aggml/native/table/kernels.def": """#ifdef AGK_BUILD_BARE
AGK_VARIANT(f16_to_f32, bare, 0)
#endif
""",
}

# Only these two functions depend on the type: the functions that call them in kernels serve all
# types.
TOY_ON_CUDA = """
#include "shim.h"
#include "quant.cuh"
#include "quantize.cuh"

int main()
{
    float x[32];
    char block[32];
    Group o;
    for (int i = 0; i < 32; ++i) x[i] = (float)(i - 16) / 4.0f;
    put_block<TOY>(x, block);
    unpack_row<TOY>(block, 0, o);
    for (int i = 0; i < 32; ++i) {
        if (code_at(o, i) * o.d[i / 16] + o.m[i / 16] != x[i]) return 1;
    }
    return Block<TOY>::n == 32 && Block<TOY>::bytes == 32 ? 0 : 2;
}
"""

PROGRAM = """
#include "lower/node.h"
#include "table/kernel_types.h"
#include "tests/native/check.h"

static void op(void)
{
    float x[6] = {1, 2, 3, 4, 5, 6}, y[6] = {0};
    agk_node node = {.op = agk_op_find("twice"), .n_src = 1};
    node.dst = (agk_view){(uintptr_t)y, 0, {6, 1, 1, 1}, {4, 24, 24, 24}, AGK_F32};
    node.src[0] = (agk_view){(uintptr_t)x, 0, {6, 1, 1, 1}, {4, 24, 24, 24}, AGK_F32};
    agk_lowering lowering = {.node = &node};
    CHECK(agk_lower(&lowering) == AGK_OK && lowering.n_steps == 1);
    const agk_task task = {0};
    CHECK(lowering.step[0].run(&task, &node, 0) == AGK_OK);
    for (int i = 0; i < 6; ++i) CHECK(y[i] == 2.0f * x[i]);
    CHECK(agk_ops[node.op].in_place == 1 && agk_ops[node.op].ps == 60);
}

static void type(void)
{
    enum { TOY = 43 };
    float x[64], back[64];
    int8_t blocks[64];
    for (int i = 0; i < 64; ++i) x[i] = (float)(i - 32) / 4.0f;
    CHECK(agk_row_size(TOY, 64) == 64 && strcmp(agk_traits(TOY)->name, "toy") == 0);
    agk_writer(TOY, 0)(x, blocks, 64);
    agk_reader(TOY, 0)(blocks, back, 64);
    CHECK(memcmp(x, back, sizeof x) == 0);
}

static void isa(void)
{
    const uint16_t one = 0x3c00;
    float value = 0;
    bool listed = false;
    for (size_t i = 0; i < agk_n_isas; ++i) listed |= strcmp(agk_isas[i].name, "bare") == 0;
    CHECK(listed);
    CHECK(AGK_PICK(f16_to_f32, 0) == agk_f16_to_f32_bare);
    AGK_PICK(f16_to_f32, 0)(&one, &value, 1);
    CHECK(value == 1.0f);
}

int main(void)
{
    op();
    type();
    isa();
    return 0;
}
"""


def put(tree: Path, changes: Changes) -> None:
    """Add rows after the last of a table, kernel lines before the first, functions at the end."""
    for name, text in changes.items():
        path = tree / name
        if not path.exists():
            path.parent.mkdir(exist_ok=True)
            path.write_text(text.lstrip("\n"))
            continue
        rows = path.read_text().splitlines(keepends=True)
        at = [i for i, row in enumerate(rows) if row.startswith(text.partition("(")[0] + "(")]
        if path.suffix == ".cuh":
            at = [len(rows) - 1]
        if path.name == "kernels.def":
            # After the head of the file, before the first group of lines.
            at = [next(i for i, row in enumerate(rows) if row.startswith("#endif"))]
        rows.insert(at[-1] + 1, text)
        path.write_text("".join(rows))


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources with a toy of each sort; only the plain C kernels, so that they build quickly."""
    tree: Path = tmp_path_factory.mktemp("tree")
    shutil.copytree(ROOT / "cmake", tree / "cmake")
    shutil.copy(ROOT / "CMakeLists.txt", tree)
    left_out = [
        path.name
        for path in (ROOT / "aggml" / "native" / "kernels").iterdir()
        if path.is_dir() and path.name not in {"scalar", "vec"}
    ]
    shutil.copytree(
        ROOT / "aggml" / "native", tree / "aggml" / "native", ignore=lambda at, names: left_out
        if Path(at).name == "kernels" else [n for n in names if n.endswith(".so")],
    )  # fmt: skip
    shutil.copytree(ROOT / "aggml" / "devices" / "cuda", tree / "aggml" / "devices" / "cuda")
    (tree / "tests" / "native").mkdir(parents=True)
    shutil.copy(ROOT / "tests" / "native" / "check.h", tree / "tests" / "native")
    (tree / "tests" / "native" / "toys.c").write_text(PROGRAM)
    for changes in (OP, TYPE, ISA):
        put(tree, changes)
    return tree


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_toy_of_each_kind_is_compiled_and_computes(tree: Path) -> None:
    """No build file is edited for it: CMake reads isas.def and finds new sources."""
    scripts = Path(sysconfig.get_path("scripts"))
    cmake = shutil.which("cmake", path=f"{scripts}{os.pathsep}{os.environ['PATH']}")
    if cmake is None:
        pytest.skip("cmake is not installed")
    ninja = shutil.which("ninja", path=f"{scripts}{os.pathsep}{os.environ['PATH']}")
    built = tree / "build"
    generator = ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"] if ninja is not None else []
    # a build type, as without one CMakeLists.txt takes Release, whose -O3 comes last
    flags = [
        f"-DCMAKE_C_FLAGS=-I{tree}", "-DCMAKE_BUILD_TYPE=Debug", "-DCMAKE_C_FLAGS_DEBUG=-O0 -g0"
    ]  # fmt: skip
    made: list[str | Path] = [
        cmake,
        "-S",
        tree,
        "-B",
        built,
        *generator,
        "-DAGGML_C_TESTS=ON",
        *flags,
    ]
    subprocess.run(made, check=True, stdout=subprocess.DEVNULL)
    target = ["--target", "toys", "--parallel", "2"]
    subprocess.run([cmake, "--build", built, *target], check=True, stdout=subprocess.DEVNULL)
    subprocess.run([built / "toys"], check=True)


def test_a_kernel_file_of_cuda_is_all_that_an_op_needs_there(tree: Path) -> None:
    found = heads(tree / "aggml" / "devices" / "cuda" / "kernels")
    assert found["twice"] == Plain("twice", "twice", 1, "element")
    assert found.keys() - {"twice"} == heads(ROOT / "aggml" / "devices" / "cuda" / "kernels").keys()


@pytest.mark.slow
def test_cuda_writes_and_unpacks_blocks_of_a_new_type(tree: Path) -> None:
    """Compiled for the CPU: the code writes a block and unpacks it again."""
    native = tree / "aggml" / "native"
    folders = [ROOT / "tests" / "devices" / "cuda", native / "table", native / "formats"]
    folders.append(tree / "aggml" / "devices" / "cuda" / "kernels")
    flags = ["-std=c++17", "-O1", "-w", "-x", "c++", *(f"-I{folder}" for folder in folders)]
    built = tree / "toy_on_cuda"
    command = ["g++", *flags, "-", "-o", str(built)]
    subprocess.run(command, input=TOY_ON_CUDA.encode(), check=True)
    subprocess.run([built], check=True)


BUILDER = """

def twice(a: Tensor) -> Tensor:
    return aggml.tensor.new_node("twice", a.dtype, a.ne, (a,))


import aggml.tensor
"""
# The copied package with the compiled module of this one, which has the tables as they are here.
SCRIPT = """
import importlib.util, sys
sys.meta_path = [finder for finder in sys.meta_path if "ScikitBuild" not in type(finder).__name__]
sys.path.insert(0, {tree!r})
spec = importlib.util.spec_from_file_location("aggml.native._native", {module!r})
native = sys.modules["aggml.native._native"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(native)
rows = native.types()
toy = (43, "TOY", "toy", None, 32, 32, 1, "LEGACY", -1, True, True, False, False)
native.types = lambda: [*rows, toy]
import aggml
assert aggml.__file__.startswith({tree!r})
x = aggml.new_tensor("toy", (64, 2))
assert x.dtype is aggml.DType.TOY is aggml.DType(43) and x.nbytes == 128
node = aggml.ops.twice(aggml.new_tensor("f32", 8))
assert (node.op, node.ne, "twice" in aggml.ops.__all__) == ("twice", (8, 1, 1, 1), True)
"""


def test_python_knows_a_new_type_by_its_row_and_a_new_builder_by_its_file(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "aggml", tmp_path / "aggml", ignore=shutil.ignore_patterns("*.[ch]"))
    module = _native.__file__
    assert module is not None
    unary = tmp_path / "aggml" / "ops" / "unary.py"
    text = unary.read_text() + BUILDER
    unary.write_text(text.replace('    "trunc",\n', '    "trunc",\n    "twice",\n', 1))
    script = SCRIPT.format(tree=str(tmp_path), module=module)
    subprocess.run([sys.executable, "-c", script], check=True, cwd=tmp_path)


def test_contributing_names_the_files_that_the_toys_touch() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text().partition("## To add")[2]
    for changes in (OP, TYPE, ISA):
        for name in changes:
            path = Path(name)
            place = name if path.suffix == ".def" else f"{path.parent}/".replace("/bare/", "/NAME/")
            assert place.removeprefix("aggml/") in text, name


def test_no_file_of_the_package_names_the_device_of_the_example() -> None:
    """A device comes from outside: by an entry point, or by `aggml.load`."""
    texts = [path.read_text() for path in (ROOT / "aggml").rglob("*.py")]
    assert not any("aggml_numpy" in text for text in texts)


def test_an_architecture_is_named_in_its_own_file_alone() -> None:
    folder = ROOT.joinpath(*FILES.split("."))
    own = {path.stem for path in folder.glob("[!_]*.py")}
    assert len(own) > 50
    named: dict[str, set[str]] = {}
    for path in (ROOT / "aggml").rglob("*.py"):
        if path.parent != folder:
            found = re.findall(r"\barchitectures(?:\.| import )(\w+)", path.read_text())
            if own & set(found):
                named[str(path.relative_to(ROOT))] = own & set(found)
    assert named == {}
    assert aggml is not None
