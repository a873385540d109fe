"""A virtual environment that sees the packages of this one, but not its editable installs.

It serves to check another build of aggml (sanitizers, the wheel) without a second copy of the other
packages. A path in a .pth file is added to sys.path, but .pth files in that path are not read. So
the editable install of this environment is not seen. If this one is layered itself, the packages
below it are seen as well.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

PTH = "layered.pth"  # read in the order of names; those of editable installs have others


def main(folder: str) -> None:
    """Make it in ``folder``, anew."""
    venv.create(folder, clear=True, symlinks=True)
    asked = "import sysconfig; print(sysconfig.get_path('purelib'))"
    python = Path(folder, "bin", "python")
    done = subprocess.run([python, "-c", asked], check=True, capture_output=True, text=True)
    own = Path(sysconfig.get_path("purelib"))
    below = own / PTH
    text = f"{own}\n" + (below.read_text() if below.exists() else "")
    Path(done.stdout.strip(), PTH).write_text(text)


if __name__ == "__main__":
    main(sys.argv[1])
