"""Runs a command that compiles, and says how far it is, as in `progress.py pip install -v .`.

Of its output only the count of compiled files is shown: on a terminal in one line that changes,
elsewhere at each tenth. Everything else is kept, and printed if the command fails. So pip has to be
told to be verbose.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time

COUNT = re.compile(r"\s*\[(\d+)/(\d+)\] ")


def main(command: list[str]) -> int:
    """Run it; its exit status."""
    kept: list[str] = []
    live = sys.stdout.isatty()
    tenth = 0
    began = time.monotonic()
    try:
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        ) as process:
            for line in process.stdout or ():
                kept.append(line)
                if not (found := COUNT.match(line)):
                    continue
                done, all_ = map(int, found.groups())
                text = f"compiled {done} of {all_} files, {time.monotonic() - began:.0f} s"
                if live:
                    print(f"\r{text}", end="", flush=True)
                elif 10 * done // all_ > tenth:
                    tenth = 10 * done // all_
                    print(text, flush=True)
    except KeyboardInterrupt:
        return 130
    if live and any(map(COUNT.match, kept)):
        print()
    if process.returncode != 0:
        sys.stdout.write("".join(kept))
    return process.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
