"""A group of ops has one name in every room: its builders, its C, its CUDA kernels, its tests.

Files are looked for, not read. A file may serve several groups: a group belongs to the file whose
name is the longest prefix of the group's name, so rope.c lowers rope_multi, too. Not here: single
ops (test_vocabulary.py, tests/native/test_tables.py).
"""

from __future__ import annotations

from pathlib import Path

import pytest
from ops.recorded import group_cases

from aggml.devices.cuda.lowering import HOSTS
from aggml.devices.cuda.plain import PLAIN
from aggml.ops.table import in_group

ROOT = Path(__file__).resolve().parents[2]
#: For each room: where the file of a group may lie.
ROOMS = {
    "lower": ["aggml/native/lower/{}.c", "aggml/native/lower/*/{}.c"],
    "tests": ["tests/ops/test_{}.py"],
}
GROUPS = sorted(
    path.stem
    for path in (ROOT / "aggml" / "ops").glob("[!_]*.py")
    # no builders: the operators of Tensor (+, *, ...), what changes a node, a table of facts
    if path.stem not in {"operators", "precision", "table"}
)


def files(room: str, group: str) -> list[Path]:
    """The files whose name is the longest prefix of the group's name that has any."""
    words = group.split("_")
    for n in range(len(words), 0, -1):
        name = "_".join(words[:n])
        found = [path for pattern in ROOMS[room] for path in ROOT.glob(pattern.format(name))]
        if found:
            return found
    return []


@pytest.mark.parametrize("group", GROUPS)
def test_the_file_that_lowers_a_group_has_its_name(group: str) -> None:
    assert files("lower", group)


@pytest.mark.parametrize("group", GROUPS)
def test_the_file_with_the_cuda_kernels_of_a_group_has_its_name(group: str) -> None:
    for op in in_group(group):
        if op in PLAIN or op in HOSTS:
            file = PLAIN[op].module if op in PLAIN else HOSTS[op].__name__.rpartition(".")[2]
            assert f"{group}_".startswith(f"{file}_")


@pytest.mark.parametrize("group", GROUPS)
def test_a_group_is_tested_in_a_file_of_its_name_or_by_recorded_calls(group: str) -> None:
    assert files("tests", group) or group_cases(group)
