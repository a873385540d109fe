"""A kernel's name leads to its file: every variant of kernels.def is defined where its symbol says.

Here: the rule of native/README.md, as implemented by tools/native_rooms.py, is checked on the
preprocessed files, so that functions made by macros count as well. Not here: which rooms may use
which (test_native_rooms.py), what kernels compute (the C programs beside this file).
"""

from __future__ import annotations

import functools
import os
import re
import shutil
from typing import TYPE_CHECKING

import native_rooms
import pytest

if TYPE_CHECKING:
    from pathlib import Path

CC = shutil.which(os.environ.get("CC", "cc"))
#: System headers of other architectures, which are empty here: only the package's own text matters.
FOREIGN = ("arm_neon.h", "immintrin.h", "emmintrin.h")
VARIANTS = native_rooms.variants() if CC else []
ISAS = sorted({isa for _, isa in VARIANTS})


@pytest.fixture(scope="module")
def stubs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with empty headers of other architectures."""
    folder = tmp_path_factory.mktemp("stubs")
    for name in FOREIGN:
        (folder / name).write_text("")
    return folder


@functools.cache
def defined(path: Path, stubs: Path) -> set[str]:
    """The names of the functions that a file defines: those with a body after the parameters."""
    text = native_rooms.preprocessed(path, stubs)
    return set(re.findall(r"\b(agk_\w+)\s*\([^;{]*\)\s*{", text))


@pytest.mark.long(cases=1)
@pytest.mark.skipif(CC is None, reason="needs the C preprocessor")
@pytest.mark.parametrize("isa", ISAS)
def test_every_variant_is_defined_where_its_name_leads(isa: str, stubs: Path) -> None:
    wrong = {}
    kernels = [kernel for kernel, of in VARIANTS if of == isa]
    for kernel in kernels:
        files = native_rooms.files_of(kernel, isa)
        found = [path for path in files if f"agk_{kernel}_{isa}" in defined(path, stubs)]
        if len(found) != 1:
            wrong[kernel] = ([path.name for path in files], [path.name for path in found])
    assert kernels
    assert wrong == {}


def test_a_name_leads_to_few_files() -> None:
    """All files of formats/ for a conversion in plain C; else at most a file per sort of types."""
    for kernel, isa in VARIANTS:
        files = native_rooms.files_of(kernel, isa)
        assert files, (kernel, isa)
        assert len(files) <= 4 or files[0].parent.name == "formats", (kernel, isa, files)


@pytest.mark.parametrize(
    ("symbol", "file"),
    [
        ("agk_norm_rms_f32_avx2", "kernels/avx2/norm.c"),
        ("agk_mm_pairs_rows_avx512", "kernels/avx512/mul_mat_pairs.c"),
        ("agk_q4_0_to_f32_avx2", "kernels/avx2/to_f32.c"),
        ("agk_f32_to_f16_neon", "kernels/neon/f32_to.c"),
        ("agk_flash_pairs_block_avx512", "kernels/avx512/flash_pairs.c"),
    ],
)
def test_the_examples_of_the_readme(symbol: str, file: str) -> None:
    assert native_rooms.address(symbol) == [native_rooms.NATIVE / file]
    assert symbol in (native_rooms.NATIVE / "README.md").read_text() or "flash" in symbol


def test_no_kernel_has_a_name_that_leads_nowhere() -> None:
    assert native_rooms.files_of("nothing_f32", "avx2") == []
