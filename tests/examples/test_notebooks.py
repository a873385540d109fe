"""The example notebooks run from top to bottom, and their cells show what they promise.

A kernel of Jupyter runs them, by nbclient. Not here: what objects show
(tests/package/test_html.py).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "examples" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


def test_there_are_four_notebooks() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["devices", "graphs", "model", "timeline"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_shows_its_objects(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nbclient: Any = pytest.importorskip(
        "nbclient", reason="nbclient is not installed (aggml[docs])"
    )
    pytest.importorskip("ipykernel", reason="ipykernel is not installed (aggml[docs])")
    nbformat: Any = pytest.importorskip("nbformat")
    for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(FOLDER.parents[1])]))
    notebook = nbformat.read(path, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), (
        "notebooks are kept without outputs"
    )
    folder = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=100, resources=folder).execute()
    shown = "".join(
        output["data"].get("text/html", "")
        for cell in notebook.cells
        for output in cell.get("outputs", ())
        if output.output_type in ("execute_result", "display_data")
    )
    expected = {
        "devices": ["split 0 on", "<svg", ">relu<"],
        "graphs": ["<th>op</th>", "mul_mat", "<pre>", "(2, 3)"],
        "model": ["TextModel", "<td>llama</td>", "<td>slots</td>"],
        "timeline": ["<svg", "graph_compute"],
    }[path.stem]
    assert [text for text in expected if text not in shown] == []
