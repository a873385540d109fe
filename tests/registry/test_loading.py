"""Plug-ins from files, modules and entry points: scores, versions, variants, reports.

Not here: unloading (test_unloading.py).
"""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import TYPE_CHECKING, Any

import pytest
from registry.plugins import status, write
from support import child

import aggml

if TYPE_CHECKING:
    from types import ModuleType


@pytest.mark.feature("RG-17")
def test_a_file_is_loaded_and_its_devices_registered(tmp_path: Path) -> None:
    family = aggml.load(write(tmp_path, "aggml_filed.py"))
    assert family.name == "FILED"
    assert aggml.get_family("filed") is family
    assert aggml.get_device("FILED0").family is family
    assert family.device(0) is aggml.get_device("FILED0")


@pytest.mark.feature("RG-17")
def test_a_file_twice_yields_the_same_family_once(tmp_path: Path) -> None:
    path = write(tmp_path, "aggml_filed.py")
    family = aggml.load(path)
    count = len(aggml.list_families())
    (tmp_path / "link.py").symlink_to(path)
    for again in (path, str(path), tmp_path / "link.py", os.path.relpath(path)):
        assert aggml.load(again) is family
    assert len(aggml.list_families()) == count


@pytest.mark.feature("RG-17")
def test_threads_that_load_the_same_file_at_once(tmp_path: Path) -> None:
    path, together = write(tmp_path, "aggml_filed.py"), Barrier(8)

    def load(path: Path) -> aggml.Family:
        together.wait(60)
        return aggml.load(path)

    with ThreadPoolExecutor(8) as threads:
        families = list(threads.map(load, [path] * 8))
    assert len({id(family) for family in families}) == 1
    assert [f.name for f in aggml.list_families()].count("FILED") == 1


@pytest.mark.feature("RG-17")
def test_a_folder_is_loaded_as_a_package(tmp_path: Path) -> None:
    package = tmp_path / "aggml_filed"
    package.mkdir()
    write(package, "family.py")
    (package / "__init__.py").write_text("from .family import aggml_backend_init\n")
    assert aggml.load(package).name == "FILED"
    assert not any(name.startswith("aggml_filed") for name in sys.modules)


@pytest.mark.feature("RG-17")
def test_a_module_by_name_and_as_an_object(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "some_module_of_ours.py", name="NAMED")
    monkeypatch.syspath_prepend(tmp_path)
    family = aggml.load("some_module_of_ours")
    assert family.name == "NAMED"
    module: ModuleType = sys.modules.pop("some_module_of_ours")
    assert aggml.load(module) is family
    assert aggml.load("aggml.devices.cpu") is aggml.get_family("CPU")


FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "another version": ({"version": 2}, "api_version 2, but this aggml has 1"),
    "no version": ({"version": None}, "api_version None"),
    "raises": ({"init": "raise RuntimeError('no driver')"}, "RuntimeError: no driver"),
    "exits": ({"init": "raise SystemExit(3)"}, "SystemExit: 3"),
    "its own refusal": (
        {"init": "raise aggml.BackendLoadError('[toast] no bread')"},
        r"\[toast\] no bread",
    ),
    "gives nothing": ({"init": "return None"}, "returned None"),
    "score 0": ({"score": 0}, "not supported on this system"),
    "score of the wrong kind": ({"score": "'much'"}, "much"),
    "score raises": ({"score": "1 // 0"}, "ZeroDivisionError"),
    "a name that is taken": ({"name": "CPU"}, "named 'CPU'"),
}


@pytest.mark.feature("RG-17")
@pytest.mark.parametrize("fault", FAULTS)
def test_what_cannot_be_loaded_says_why(tmp_path: Path, fault: str) -> None:
    options, told = FAULTS[fault]
    path = write(tmp_path, "aggml_faulty.py", **options)
    families, devices, modules = aggml.list_families(), aggml.list_devices(), set(sys.modules)
    with pytest.raises(aggml.BackendLoadError, match=told) as caught:
        aggml.load(path)
    assert str(path) in str(caught.value)
    assert aggml.list_families() == families
    assert aggml.list_devices() == devices
    assert set(sys.modules) == modules
    result = status(aggml.load_report(), "aggml_faulty.py")
    assert result.status == "failed"
    assert result.error is caught.value
    assert result.reason in str(caught.value)


@pytest.mark.feature("RG-17")
def test_a_missing_or_broken_file(tmp_path: Path) -> None:
    with pytest.raises(aggml.BackendLoadError, match=r"aggml_none\.py"):
        aggml.load(tmp_path / "aggml_none.py")
    with pytest.raises(aggml.BackendLoadError, match="no_such_module"):
        aggml.load("no_such_module")
    broken = tmp_path / "aggml_broken.py"
    broken.write_text("def (")
    with pytest.raises(aggml.BackendLoadError, match="SyntaxError") as caught:
        aggml.load(broken)
    assert isinstance(caught.value.__cause__, SyntaxError)
    empty = tmp_path / "aggml_empty.py"
    empty.write_text("")
    with pytest.raises(aggml.BackendLoadError, match="exports no aggml_backend_init"):
        aggml.load(empty)
    library = tmp_path / "aggml_library.so"
    library.write_bytes(b"no library")
    with pytest.raises(aggml.BackendLoadError, match="ImportError"):
        aggml.load(library)
    other = tmp_path / "aggml_text.txt"
    other.write_text("")
    with pytest.raises(aggml.BackendLoadError, match="neither a Python file"):
        aggml.load(other)
    with pytest.raises(aggml.InvalidHandle, match="3"):
        aggml.load(3)  # type: ignore[arg-type]


@pytest.mark.feature("RG-17")
def test_a_file_that_failed_may_be_tried_again(tmp_path: Path) -> None:
    path = write(tmp_path, "aggml_filed.py", version=7)
    with pytest.raises(aggml.BackendLoadError):
        aggml.load(path)
    path = write(tmp_path, "aggml_filed.py", name="MENDED")
    assert aggml.load(path).name == "MENDED"
    assert status(aggml.load_report(), "aggml_filed.py").status == "loaded"


# -- several plug-ins


@pytest.mark.feature("RG-20")
def test_of_variants_the_best_wins_from_whatever_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    write(first, "aggml_filed.py", variant="plain")
    write(first, "aggml_filed-slow.py", score=1, variant="slow")
    write(first, "aggml_filed-mute.py", variant="mute")
    write(second, "aggml_filed-fast.py", score=40, variant="fast")
    write(second, "aggml_filed-odd.py", score=0, variant="odd")
    write(second, "aggml_filed-equal.py", score=40, variant="equal")
    write(second, "filed.py", name="NOT_LOOKED_AT")
    monkeypatch.setenv("AGGML_BACKEND_DIRS", os.pathsep.join(map(str, (first, second))))
    report = aggml.load_all()
    # "equal" comes before "fast" by name: of equal scores the first wins.
    assert aggml.get_family("FILED").features() == {"VARIANT": "equal"}
    found = {Path(r.source).name: (r.status, r.score) for r in report if "aggml_filed" in r.source}
    assert found == {
        "aggml_filed.py": ("skipped", None),
        "aggml_filed-slow.py": ("skipped", 1),
        "aggml_filed-mute.py": ("skipped", None),
        "aggml_filed-fast.py": ("skipped", 40),
        "aggml_filed-odd.py": ("skipped", 0),
        "aggml_filed-equal.py": ("loaded", 40),
    }
    assert "no aggml_backend_score" in status(report, "aggml_filed-mute.py").reason
    assert "not supported" in status(report, "aggml_filed-odd.py").reason
    assert "FILED is loaded already" in status(report, "aggml_filed-slow.py").reason
    assert "NOT_LOOKED_AT" not in [f.name for f in report.loaded]


@pytest.mark.feature("RG-20")
def test_without_a_variant_that_runs_the_plain_file_is_taken(tmp_path: Path) -> None:
    write(tmp_path, "aggml_filed-odd.py", score=0)
    write(tmp_path, "aggml_filed-bad.py", score="1 // 0")
    write(tmp_path, "aggml_filed.py", variant="plain")
    report = aggml.load_all(tmp_path)
    assert aggml.get_family("FILED").features() == {"VARIANT": "plain"}
    assert status(report, "aggml_filed-bad.py").status == "failed"
    assert [r.source for r in report.failed] == [str(tmp_path / "aggml_filed-bad.py")]


@pytest.mark.feature("RG-20")
def test_if_the_best_variant_fails_the_next_is_tried(tmp_path: Path) -> None:
    write(tmp_path, "aggml_filed-best.py", score=9, init="raise OSError('no')")
    write(tmp_path, "aggml_filed-good.py", score=5, variant="good")
    report = aggml.load_all(tmp_path)
    assert aggml.get_family("FILED").features() == {"VARIANT": "good"}
    assert status(report, "aggml_filed-best.py").reason == "OSError: no"


@pytest.mark.feature("RG-20")
def test_loading_all_twice_changes_nothing(tmp_path: Path) -> None:
    write(tmp_path, "aggml_filed.py")
    write(tmp_path, "aggml_other-x.py", name="OTHER", score=3)
    first = aggml.load_all(tmp_path)
    families = aggml.list_families()
    second = aggml.load_all(tmp_path)
    assert aggml.list_families() == families
    assert [(r.source, r.status) for r in first] == [(r.source, r.status) for r in second]
    assert [f.name for f in second.loaded] == ["FILED", "OTHER"]


@pytest.mark.feature("RG-19")
@pytest.mark.feature("RG-20")
def test_the_file_of_the_environment_comes_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    write(folder, "aggml_filed.py")
    single = write(tmp_path, "of_any_name.py", name="SINGLE")
    monkeypatch.setenv("AGGML_BACKEND_PATH", str(single))
    report = aggml.load_all(folder)
    assert [f.name for f in report.loaded] == ["FILED", "SINGLE"]
    monkeypatch.setenv("AGGML_BACKEND_PATH", str(tmp_path / "none.so"))
    report = aggml.load_all()
    assert report[-1].status == "failed"
    assert "AGGML_BACKEND_PATH" in report[-1].reason
    assert "none.so" in report[-1].reason


@pytest.mark.feature("RG-19")
def test_the_default_search_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGGML_BACKEND_DIRS", os.pathsep.join(["", "/x", str(tmp_path)]))
    assert aggml.search_path() == [Path("/x"), tmp_path, Path(sys.prefix, "lib", "aggml")]
    write(tmp_path, "aggml_filed.py")
    report = aggml.load_all()
    names = [f.name for f in report.loaded]
    assert "CPU" in names
    assert names[-1] == "FILED"
    monkeypatch.delenv("AGGML_BACKEND_DIRS")
    monkeypatch.chdir(tmp_path)
    assert tmp_path not in aggml.search_path()  # files of the current folder are not trusted


@pytest.mark.feature("RG-20")
def test_a_family_can_be_switched_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, "aggml_filed.py")
    monkeypatch.setenv("AGGML_DISABLE_BACKENDS", "other, Filed")
    result = status(aggml.load_all(tmp_path), "aggml_filed.py")
    assert result.status == "skipped"
    assert "AGGML_DISABLE_BACKENDS" in result.reason
    assert aggml.load(path).name == "FILED"  # a plug-in that is asked for by name is loaded


@pytest.mark.feature("RG-20")
def test_a_folder_that_is_missing_is_told_not_raised(tmp_path: Path) -> None:
    report = aggml.load_all(tmp_path / "none")
    assert [(r.status, r.source) for r in report] == [("skipped", str(tmp_path / "none"))]
    assert "no such folder" in str(report)
    with pytest.raises(aggml.InvalidHandle, match="3"):
        aggml.load_all(3)  # type: ignore[arg-type]
    assert list(aggml.load_all(tmp_path)) == []


def test_a_report_prints_one_line_for_each(tmp_path: Path) -> None:
    write(tmp_path, "aggml_a.py", name="A", version=9)
    write(tmp_path, "aggml_b.py", name="B", score=7)
    refused = "[register_family] A was written for api_version 9, but this aggml has 1"
    lines = str(aggml.load_all(tmp_path)).splitlines()
    assert lines == [
        f"a failed ({tmp_path}/aggml_a.py): {refused}",
        f"B loaded ({tmp_path}/aggml_b.py, score 7)",
    ]


ENTRY = """
import sys
sys.path[:0] = {paths!r}
import aggml
print([f.name for f in aggml.list_families()])
print(aggml.get_device("filed0").family.features())
for result in aggml.load_all():
    print(result)
"""


@pytest.mark.feature("RG-19")
def test_installed_plug_ins_are_found_by_their_entry_points(tmp_path: Path) -> None:
    """With the metadata of an installed package, in an interpreter of its own."""
    write(tmp_path, "filed_module.py", variant="installed")
    write(tmp_path, "bad_module.py", name="BAD", init="raise RuntimeError('no driver')")
    info = tmp_path / "filed_pkg-1.5.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: filed-pkg\nVersion: 1.5\n")
    (info / "entry_points.txt").write_text(
        "[aggml.backends]\nfiled = filed_module\nbad = bad_module\ngone = no_such_module_at_all\n"
    )
    env = {k: v for k, v in os.environ.items() if not k.startswith("AGGML_")}
    code = ENTRY.format(paths=[str(tmp_path)])
    done = subprocess.run(child(code), capture_output=True, text=True, env=env, timeout=100)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].endswith("'CPU', 'FILED']")
    assert lines[1] == "{'VARIANT': 'installed'}"
    assert "FILED loaded (entry point filed of filed-pkg 1.5)" in lines
    assert "bad failed (entry point bad of filed-pkg 1.5): RuntimeError: no driver" in lines
    assert any("gone failed" in line and "no_such_module_at_all" in line for line in lines)


def test_looking_for_the_cpu_by_name_loads_nothing_else(tmp_path: Path) -> None:
    write(tmp_path, "filed_module.py")
    info = tmp_path / "filed_pkg-1.5.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: filed-pkg\nVersion: 1.5\n")
    (info / "entry_points.txt").write_text("[aggml.backends]\nfiled = filed_module\n")
    code = (
        f"import sys; sys.path[:0] = [{str(tmp_path)!r}]; import aggml\n"
        "assert not any(m.startswith(('aggml.devices.cuda', 'cuda')) for m in sys.modules)\n"
        "aggml.get_device('cpu'); aggml.get_family('CPU')\n"
        "assert 'filed_module' not in sys.modules\n"
        "assert not any(m.startswith(('aggml.devices.cuda', 'cuda')) for m in sys.modules)\n"
        "aggml.list_devices()\n"
        "assert 'filed_module' in sys.modules\n"
    )
    done = subprocess.run(child(code), capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
