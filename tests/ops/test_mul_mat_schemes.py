"""Which scheme computes a product, and that each of its kernels lies where its name says.

Not here: the numbers (test_mul_mat*.py), all gates (tests/native/kernels_choice.c).
"""

from __future__ import annotations

from pathlib import Path

import pytest

import aggml
from aggml import DType
from aggml.native import _native, cpu_mask, isas

KERNELS = Path(aggml.__file__).parent / "native" / "kernels"
PRODUCTS = sorted((k, isa) for k, isa, *_ in _native.variants() if k.startswith("mm_"))


def scheme(dtype: DType, n: int, isa: str, *, weights: bool = False) -> str:
    name, why = _native.mul_mat_scheme(
        dtype.value, DType.F32.value, 64, n, 512, cpu_mask(isa), weights
    )
    assert why  # each row of the table of schemes states its reason
    return name


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16, DType.Q8_0, DType.Q6_K, DType.IQ2_XS])
def test_each_product_has_a_scheme(dtype: DType, isa: str) -> None:
    for n in (1, 2, 8, 9, 16, 31, 32, 512):
        assert scheme(dtype, n, isa)


def test_plain_c_gets_dots_and_blocks_of_floats() -> None:
    assert scheme(DType.Q4_K, 1, "scalar", weights=True) == "dots_f32"
    assert scheme(DType.Q4_K, 512, "scalar", weights=True) == "blocks_f32"


@pytest.mark.skipif("avx2" not in isas(), reason="no AVX2")
def test_few_columns_of_weights_are_packed_and_many_are_panels() -> None:
    assert scheme(DType.Q4_K, 1, "avx2", weights=True) == "packed_lanes"
    assert scheme(DType.Q4_K, 1, "avx2") == "dots_q8"
    assert scheme(DType.Q4_K, 512, "avx2") == "shorts"


def test_a_kernel_lies_in_the_file_of_its_scheme() -> None:
    """mm_<scheme>_..., isa -> kernels/<isa>/mul_mat_<scheme>*.c."""
    texts = {path: path.read_text() for path in KERNELS.glob("*/*.c")}
    for kernel, isa in PRODUCTS:
        homes = set((KERNELS / isa).glob(f"mul_mat_{kernel.split('_')[1]}*.c"))
        assert homes, (kernel, isa)
        symbol = f"\nvoid agk_{kernel}_{isa}("
        defined = {p for p, text in texts.items() if p.parent.name == isa and symbol in text}
        assert defined <= homes, (kernel, isa)
