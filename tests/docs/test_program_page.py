"""The commands of docs/program.md run one after the other, as they are printed."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

from docs.pages import blocks

from aggml.models.small import write_small

if TYPE_CHECKING:
    from pathlib import Path


def test_the_commands_of_the_page_run(tmp_path: Path) -> None:
    shutil.copy(write_small(tmp_path / "small.gguf"), tmp_path / "MODEL.gguf")
    (code,) = (block.code for block in blocks("docs/program.md") if block.language == "sh")
    commands = [shlex.split(line, comments=True) for line in code.splitlines()]
    assert len(commands) == 6
    for name, *arguments in commands:
        assert name == "aggml"
        done = subprocess.run(
            [sys.executable, "-m", "aggml", *arguments],
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip()
    assert (tmp_path / "SMALLER.gguf").exists()
