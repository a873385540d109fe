"""Plug-ins that raise exceptions whose own methods fail: each is reported, and hides no other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hostile import HOSTILE
from registry.plugins import status, write

import aggml
from aggml.registry.inventory import describe, inventory

if TYPE_CHECKING:
    from pathlib import Path

RAISES = "raise __import__('hostile').HOSTILE[{!r}]()"
NAMES = [name for name in HOSTILE if name != "KeyboardInterrupt"]


@pytest.mark.parametrize("place", ["init", "score", "features"])
@pytest.mark.parametrize("name", NAMES)
def test_a_plug_in_that_raises_is_reported(tmp_path: Path, name: str, place: str) -> None:
    raises = RAISES.format(name)
    if place == "init":
        path = write(tmp_path, "aggml_bad.py", init=raises)
    elif place == "score":
        path = write(tmp_path, "aggml_bad.py")
        path.write_text(path.read_text() + f"\ndef aggml_backend_score():\n    {raises}\n")
    else:
        path = write(tmp_path, "aggml_bad.py")
        text = path.read_text()
        begin = text.index("    def features")
        end = text.index("def aggml_backend_init")
        path.write_text(f"{text[:begin]}    def features(self):\n        {raises}\n\n{text[end:]}")
    report = aggml.load_all(tmp_path)
    result = status(report, "aggml_bad.py")
    if place == "features":
        assert result.status == "loaded"
        (family,) = [f for f in inventory(report)["families"] if f["name"] == "FILED"]
        assert family["features"] is None
        assert family["error"]
        assert "FILED" in describe(inventory(report))
    else:
        assert result.status == "failed"
        assert result.reason


def test_ctrl_c_in_a_plug_in_is_no_failure_of_it(tmp_path: Path) -> None:
    write(tmp_path, "aggml_bad.py", init="raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        aggml.load_all(tmp_path)
