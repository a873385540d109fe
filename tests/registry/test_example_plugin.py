"""examples/plugin_device: found by its path and, when installed, by its entry point.

Not here: whether it passes the tests for devices (testing/test_conformance.py).
"""

from __future__ import annotations

import os
import subprocess
import tomllib
from pathlib import Path

import numpy as np
import pytest
from support import child, ramp, sum_on

import aggml

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "plugin_device"


@pytest.fixture
def family() -> aggml.Family:
    return aggml.load(FOLDER / "aggml_numpy")


@pytest.mark.feature("RG-17")
async def test_by_path(family: aggml.Family) -> None:
    assert family.name == "NUMPY"
    device = aggml.get_device("numpy")
    assert device is family.device(0)
    assert device.family is family
    assert family.features()["OPS"].isdigit()
    async with device.backend() as be:
        s = sum_on(be)
        assert np.array_equal(await s.run(be, ramp(), ramp()), 2 * ramp())


@pytest.mark.feature("RG-20")
def test_by_the_folder_it_lies_in() -> None:
    report = aggml.load_all(FOLDER)
    assert [family.name for family in report.loaded] == ["NUMPY"]
    assert report.failed == []


async def test_it_can_be_unloaded_once_nothing_lives(family: aggml.Family) -> None:
    device = family.device(0)
    async with device.backend():
        with pytest.raises(aggml.InvalidState, match="NUMPY is in use"):
            aggml.unload("numpy")
    assert aggml.unload("numpy")
    assert "NUMPY" not in [d.name for d in aggml.list_devices()]


def installed(folder: Path) -> None:
    """The metadata that an installer makes from pyproject.toml, beside a link to the package."""
    project = tomllib.loads((FOLDER / "pyproject.toml").read_text())["project"]
    (folder / "aggml_numpy").symlink_to(FOLDER / "aggml_numpy")
    info = folder / "aggml_numpy_device-0.1.0.dist-info"
    info.mkdir()
    name, version = project["name"], project["version"]
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    lines = [
        f"[{group}]\n" + "".join(f"{key} = {value}\n" for key, value in points.items())
        for group, points in project["entry-points"].items()
    ]
    (info / "entry_points.txt").write_text("\n".join(lines))


CODE = """
import sys
sys.path.insert(0, {folder!r})
import aggml, numpy as np
from aggml import Graph, ops
device = aggml.get_device("NUMPY")
print(device, aggml.load_report()[-1])
a = aggml.new_tensor("f32", ne=(4,))
y = ops.silu(ops.mul(a, a))
graph = Graph(y)
with device.backend() as be:
    be.alloc_graph(graph)
    run = be.run(graph, {{a: np.arange(4, dtype=np.float32)}}, y)
    assert run.wait(60)
    print(run.result().astype(float).round(3).tolist())
"""


@pytest.mark.feature("RG-19")
def test_by_its_entry_point(tmp_path: Path) -> None:
    installed(tmp_path)
    env = {k: v for k, v in os.environ.items() if not k.startswith("AGGML_")}
    code = CODE.format(folder=str(tmp_path))
    done = subprocess.run(child(code), capture_output=True, text=True, env=env, timeout=100)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first.startswith("<Device NUMPY: numpy")
    assert "entry point numpy of aggml-numpy-device 0.1.0" in first
    assert second == "[0.0, 0.731, 3.928, 8.999]"


def test_it_uses_the_public_face_only() -> None:
    for path in FOLDER.rglob("*.py"):
        for line in path.read_text().splitlines():
            if line.lstrip().startswith(("import aggml", "from aggml")):
                assert line.strip() == "import aggml", f"{path.name}: {line}"
