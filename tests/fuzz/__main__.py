"""``make fuzz ARGS="schedules --seed 7 --programs 5000"``: runs a fuzzer, or all of them.

Not here: the fuzzers (the other modules), the interface of a fuzzer (rounds.py).
"""

from __future__ import annotations

import argparse
import secrets
import sys
import time
import traceback

from fuzz.rounds import LOOPS, Absent, Failure, fuzzers, loops_of
from memory_bound import bound_memory


def main() -> int:
    known = fuzzers()
    parser = argparse.ArgumentParser(prog="fuzz", description="Runs fuzzers, or all of them.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(known)}; or all")
    parser.add_argument("--seed", type=int, help="of the round; left out, a new one")
    parser.add_argument("--programs", type=int, default=1000, help="how many on each loop")
    parser.add_argument("--first", type=int, default=0, help="number of the first program")
    parser.add_argument("--loop", choices=LOOPS, help="left out, both")
    given = parser.parse_args()
    unknown = [name for name in given.names if name not in known]
    if unknown:
        parser.error(f"no fuzzer {unknown[0]!r}; there are {', '.join(known)}")
    bound_memory()
    seed = secrets.randbelow(1 << 31) if given.seed is None else given.seed
    failed = 0
    for name in given.names or known:
        if isinstance(absent := known[name], Absent):
            print(f"{name}: not run, {absent.package} is not installed", flush=True)
            failed += name in given.names
        for loop in loops_of(known[name]):
            if given.loop not in (None, loop):
                continue
            began = time.monotonic()
            try:
                told = str(known[name].run(seed, given.programs, loop, given.first))
            except Failure as failure:
                failed, told = failed + 1, "FAILED: " + "".join(traceback.format_exception(failure))
            took = time.monotonic() - began
            print(f"{name}, {loop}, seed {seed}: {told} ({took:.0f} s)", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
