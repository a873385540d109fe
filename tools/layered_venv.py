"""A virtual environment that sees the packages of this one, but not its editable installs.

It serves to check another build of aggml (sanitizers, the wheel) without a second copy of the other
packages. A path in a .pth file is added to sys.path, but .pth files in that path are not read. So
the editable install of this environment is not seen.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
from pathlib import Path


def main(folder: str) -> None:
    """Make it in ``folder``, anew."""
    venv.create(folder, clear=True, symlinks=True)
    asked = "import sysconfig; print(sysconfig.get_path('purelib'))"
    python = Path(folder, "bin", "python")
    done = subprocess.run([python, "-c", asked], check=True, capture_output=True, text=True)
    Path(done.stdout.strip(), "layered.pth").write_text(sysconfig.get_path("purelib") + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
