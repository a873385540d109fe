"""python -m aggml: what this installation finds on this machine.

Here: the arguments. Not here: what is shown (inventory.py).
"""

from __future__ import annotations

import argparse
import errno
import json
import os
import sys
from typing import TYPE_CHECKING

import aggml
from aggml.registry.inventory import describe, inventory

if TYPE_CHECKING:
    from collections.abc import Sequence


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m aggml", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--version", action="version", version=f"aggml {aggml.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    devices = commands.add_parser(
        "devices",
        help="families, devices, memory, capabilities, and what failed to load and why",
        description="Lists families and devices, and what failed to load and why. Looks at "
        "built-in families, entry points, the search path and AGGML_BACKEND_PATH.",
    )
    devices.add_argument("--json", action="store_true", help="for programs")
    devices.add_argument(
        "--path", action="append", default=[], metavar="FOLDER", help="look for plug-ins here, too"
    )
    return parser


def _devices(*, as_json: bool, paths: Sequence[str]) -> None:
    results = {result.source: result for result in aggml.load_all()}
    for path in paths:
        results.update({result.source: result for result in aggml.load_all(path)})
    data = {"aggml": aggml.__version__} | inventory(aggml.LoadReport(results.values()))
    print(json.dumps(data, indent=2) if as_json else describe(data))


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the arguments say; without any, tell what there is."""
    parser = _parser()
    given = parser.parse_args(arguments)
    try:
        if given.command is None:
            print(parser.format_help(), end="")
            sys.stdout.flush()
            return 0
        _devices(as_json=given.json, paths=given.path)
        sys.stdout.flush()
    except BrokenPipeError:  # `| head`: nobody reads on
        _drop_output()
    except OSError as error:
        if error.errno not in _UNWRITABLE:
            raise
        _drop_output()
        print(f"{parser.prog}: cannot write the output: {error.strerror}", file=sys.stderr)
        return 1
    return 0


# What writing to a full disk, past a quota, or to a device that fails gives.
_UNWRITABLE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}


def _drop_output() -> None:
    """Send what is not written yet nowhere: at exit Python would try, and fail, again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
