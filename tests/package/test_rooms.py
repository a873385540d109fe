"""The rooms of the package: imports run downwards and in no circle; the drawing is up to date.

Here: tools/rooms.py, run on the package and on small packages with one fault each.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent


def rooms(*args: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, ROOT / "tools" / "rooms.py", *args]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.mark.long
def test_imports_run_downwards_and_in_no_circle() -> None:
    done = rooms()
    assert (done.returncode, done.stderr) == (0, "")
    assert "buffers, allocators" in done.stdout


@pytest.mark.long
def test_the_drawing_in_the_docs_is_up_to_date(tmp_path: Path) -> None:
    rooms("--svg", tmp_path / "rooms.svg")
    drawn, kept = (tmp_path / "rooms.svg").read_text(), (ROOT / "docs" / "rooms.svg").read_text()
    assert drawn == kept, "python tools/rooms.py --svg docs/rooms.svg"


def test_the_service_ray_and_the_program_use_the_public_objects_of_models() -> None:
    """What they need is exported by `aggml.models`, or by one of these of its modules."""
    found = set()
    for room in ("serve", "ray", "cli"):
        for path in (ROOT / "aggml" / room).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ImportFrom) and node.module:
                    found.add(node.module)
    assert {x for x in found if x.startswith("aggml.models.")} <= {
        "aggml.models.chat", "aggml.models.engine.interface", "aggml.models.engine.text",
        "aggml.models.kv.rows",
        "aggml.models.speech", "aggml.models.stages", "aggml.models.tokenizers",
    }  # fmt: skip


TYPES_ONLY = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    "


@pytest.mark.parametrize(
    ("files", "fault"),
    [
        ({"errors.py": "import aggml.tensor", "tensor.py": ""}, "upwards, errors to tensor"),
        (
            {"errors.py": TYPES_ONLY + "from aggml.tensor import x", "tensor.py": ""},
            "upwards, errors to tensor",
        ),
        (
            {"dtype.py": "def f():\n    from aggml import tensor", "tensor.py": ""},
            "upwards, dtype to tensor",
        ),
        (
            {"devices/cpu.py": "import aggml.devices.sim", "devices/sim.py": ""},
            "upwards, devices.cpu to devices.sim",
        ),
        (
            {"stream/a.py": "import aggml.stream.b", "stream/b.py": "from aggml.stream import a"},
            "a circle: aggml.stream.a, aggml.stream.b",
        ),
        ({"attic.py": ""}, "attic has no row"),
    ],
)
def test_each_fault_is_found(tmp_path: Path, files: dict[str, str], fault: str) -> None:
    package = tmp_path / "aggml"
    for name, text in ({"__init__.py": ""} | files).items():
        path = package / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    done = rooms(package)
    assert done.returncode == 1
    assert fault in done.stderr


def test_a_package_without_faults_passes(tmp_path: Path) -> None:
    package = tmp_path / "aggml"
    package.mkdir()
    (package / "errors.py").write_text("")
    (package / "tensor.py").write_text("from aggml import errors")
    done = rooms(package)
    assert (done.returncode, done.stderr) == (0, "")
