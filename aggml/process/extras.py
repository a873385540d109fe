"""The command that installs an extra of aggml into the environment of this interpreter.

For messages about a package that is missing. Not here: which package an extra brings
(pyproject.toml).
"""

from __future__ import annotations

import importlib.util
import shlex
import shutil
import sys
from pathlib import Path

__all__ = ["install_command"]


def install_command(extra: str) -> str:
    """The shell command that installs the packages of ``aggml[extra]`` here.

    It names this interpreter unless ``python`` already means it: the ``pip`` that the shell finds
    may belong to another environment, in which aggml is not installed, and no index may have it.
    """
    found = shutil.which("python")
    same = found is not None and Path(found).absolute() == Path(sys.executable).absolute()
    python = "python" if same else shlex.quote(sys.executable)
    if importlib.util.find_spec("pip") is None:  # an environment that was made by uv
        return f"uv pip install --python {python} 'aggml[{extra}]'"
    return f"{python} -m pip install 'aggml[{extra}]'"
