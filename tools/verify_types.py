"""Checks that type checkers know the type of every public name of the installed package.

Runs `pyright --verifytypes` with the Python whose path is given. Not checked: rooms that need
packages of extras, which may not be installed; and two rooms that programs do not import, whose
types pyright infers but calls ambiguous (attributes that narrow those of a base, functions that
`at_once` makes).

    python tools/verify_types.py build/wheel-venv/bin/python
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

EXTRAS = ("aggml.cli.", "aggml.integrations.", "aggml.ray.", "aggml.serve.")
INFERRED = ("aggml.devices.", "aggml.memory.allocator.")


def main(python: Path) -> int:
    """Print the names whose type is unknown; 1 if there are any."""
    # It looks for the package with the first `python` on the path, not with --pythonpath.
    path = f"{python.absolute().parent}{os.pathsep}{os.environ['PATH']}"
    command = [sys.executable, "-m", "pyright", "--verifytypes", "aggml", "--ignoreexternal"]
    with tempfile.TemporaryDirectory() as folder:  # no aggml to import, no settings
        run = subprocess.run(
            [*command, "--outputjson"], cwd=folder, env={**os.environ, "PATH": path}, text=True,
            stdout=subprocess.PIPE, check=False,
        )  # fmt: skip
    found = json.loads(run.stdout)["typeCompleteness"]
    public = [x for x in found["symbols"] if x["isExported"]]
    if not public:
        print(f"{python} has no package aggml with a file py.typed")
        return 1
    left_out = (*EXTRAS, *INFERRED)
    faults = [x for x in public if not x["isTypeKnown"] and not x["name"].startswith(left_out)]
    for fault in faults:
        why = [x["message"].split("\n")[0] for x in fault["diagnostics"]]
        print(f"{fault['name']}: {'; '.join(why) or 'depends on one of the others'}")
    print(f"{len(public)} public names, {len(faults)} without a known type")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
