"""A group of ops has one name in every room: its builders, its C, its CUDA kernels, its tests.

Files are looked for, not read. Not here: single ops (test_vocabulary.py).
"""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
#: For each room: where the file of a group may lie, and the groups that have none, with the reason.
ROOMS: dict[str, tuple[list[str], dict[str, str]]] = {
    "lower": (
        ["aggml/native/lower/{}.c", "aggml/native/lower/*/{}.c"],
        {
            "conv_im2col": "conv.c lowers both",
            "rope_multi": "rope.c lowers both",
            "unary_params": "unary.c lowers both",
        },
    ),
    "cuda": (
        ["aggml/devices/cuda/kernels/{}.cu", "aggml/devices/cuda/kernels/{}.py"],
        {
            "conv_im2col": "conv.cu computes it",
            "custom": "a function in Python is called by the CPU alone",
            "flash_attn_back": "the CPU alone computes it",
            "mul_mat_id": "mul_mat.py launches both",
            "rope_multi": "rope.cu computes both",
            "rows_back": "rows.cu computes both",
            "unary_params": "unary.cu computes both",
        },
    ),
    "tests": (
        ["tests/ops/test_{}.py"],
        {
            "conv_im2col": "test_conv.py has its cases",
            "flash_attn_back": "test_gradients.py has its cases",
            "unary_params": "test_unary.py has its cases",
        },
    ),
}
GROUPS = sorted(
    path.stem
    for path in (ROOT / "aggml" / "ops").glob("[!_]*.py")
    if path.stem not in {"operators", "table"}  # what tensors have as +, *, ...; facts, no builders
)


def files(room: str, group: str) -> list[Path]:
    return [path for pattern in ROOMS[room][0] for path in ROOT.glob(pattern.format(group))]


@pytest.mark.parametrize("room", ROOMS)
@pytest.mark.parametrize("group", GROUPS)
def test_a_group_has_one_name_in_every_room(group: str, room: str) -> None:
    none = ROOMS[room][1]
    if group in none:
        assert files(room, group) == [], f"no reason any more: {none[group]}"
    else:
        assert files(room, group) != [], f"{room} has no file of the name {group}"


def test_the_exceptions_are_groups() -> None:
    assert {group for _, none in ROOMS.values() for group in none} <= set(GROUPS)
