"""python -m aggml devices: a table, JSON, reasons; importing aggml touches no driver."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from registry.plugins import FakeFamily, write
from support import child

import aggml
from aggml.registry.inventory import describe, inventory

if TYPE_CHECKING:
    from pathlib import Path


def run(*arguments: str, **env: str) -> str:
    """The output of ``python -m aggml``."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("AGGML_")}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "aggml", *arguments],
        capture_output=True,
        text=True,
        env=clean | env,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


@pytest.mark.long
def test_help() -> None:
    text = run()
    assert text == run("--help")
    assert "devices" in text
    assert "--json" in run("devices", "--help")
    assert run("--version") == f"aggml {aggml.__version__}\n"


@pytest.mark.long
def test_the_table_tells_what_there_is_and_why_the_rest_is_not(tmp_path: Path) -> None:
    write(tmp_path, "aggml_good.py", name="GOOD")
    write(tmp_path, "aggml_bad.py", name="BAD", init="raise RuntimeError('no driver')")
    text = run("devices", "--path", str(tmp_path))
    lines = text.splitlines()
    assert lines[0].split() == ["FAMILY", "DEVICES", "FEATURES"]
    (cpu,) = [line for line in lines if line.startswith("CPU ") and " cpu " in line]
    assert "GiB of" in cpu
    assert "buffer_from_host" in cpu
    assert aggml.get_device("CPU").description in cpu
    assert any(line.startswith("GOOD0") and "gpu" in line for line in lines)
    at = lines.index("NOT LOADED")
    assert f"bad ({tmp_path}/aggml_bad.py): RuntimeError: no driver" in lines[at:]
    assert max(map(len, lines[:at])) < 200


@pytest.mark.long
def test_json_holds_the_same(tmp_path: Path) -> None:
    write(tmp_path, "aggml_bad.py", name="BAD", version=9)
    data: dict[str, Any] = json.loads(run("devices", "--json", AGGML_BACKEND_DIRS=str(tmp_path)))
    assert data["aggml"] == aggml.__version__
    assert data["api_version"] == aggml.API_VERSION
    (cpu,) = [d for d in data["devices"] if d["name"] == "CPU"]
    assert cpu["type"] == "cpu"
    assert cpu["memory_total"] == aggml.get_device("CPU").memory()[1]
    assert cpu["caps"]["async"] is True
    assert cpu["caps"]["mmap"] is True
    (family,) = [f for f in data["families"] if f["name"] == "CPU"]
    assert family["devices"] == ["CPU"]
    (bad,) = [c for c in data["candidates"] if c["name"] == "bad"]
    assert bad["status"] == "failed"
    assert "api_version 9" in bad["reason"]
    assert data["search_path"][0] == str(tmp_path)


def test_a_broken_device_does_not_hide_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    family = FakeFamily(n=2)
    aggml.register_family(family)

    def fail() -> Any:
        raise RuntimeError("it fell off the bus")

    monkeypatch.setattr(family._devices[0], "memory", fail)
    monkeypatch.setattr(family, "features", fail)
    data = inventory(aggml.LoadReport())
    text = describe(data)
    assert "RuntimeError: it fell off the bus" in text
    assert any(
        line.startswith("FAKE1") and "1.0 GiB of 1.0 GiB" in line for line in text.split("\n")
    )
    assert json.dumps(data)


def test_importing_aggml_loads_nothing() -> None:
    code = (
        "import aggml, sys\n"
        "from aggml.registry.table import table\n"
        "assert table.entries == []\n"
        "assert not [m for m in sys.modules if m.split('.')[0] in ('cuda', 'pytest')]\n"
        "assert 'aggml.devices.cuda' not in sys.modules\n"
        "assert 'aggml.testing' not in sys.modules\n"
    )
    done = subprocess.run(child(code), capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr


@pytest.mark.long
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full here")
def test_a_full_disk_is_told_in_a_line() -> None:
    for arguments in ([], ["devices"], ["devices", "--json"]):
        with open("/dev/full", "w") as full:
            done = subprocess.run(
                [sys.executable, "-m", "aggml", *arguments],
                stdout=full,
                stderr=subprocess.PIPE,
                text=True,
                timeout=60,
            )
        assert done.returncode == 1
        assert done.stderr == "python -m aggml: cannot write the output: No space left on device\n"
