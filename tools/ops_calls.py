"""Writes aggml/cli/calls.json: for each op some recorded calls of its builders, without the data.

`aggml ops` builds the calls again with other types and asks a device about each node. Of calls that
take the same operands with the same types one is kept, preferably with rows that blocks of
quantized types divide. Not here: asking a device (aggml/cli/ops.py).

    python tools/ops_calls.py          write the file
    python tools/ops_calls.py --check  fail if it is out of date
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from corpus_loader import op_cases  # noqa: E402 - the path is set above
from written import written  # noqa: E402

from aggml import ops  # noqa: E402
from aggml.ops.table import OPS  # noqa: E402

if TYPE_CHECKING:
    from corpus_loader import Case

FILE = ROOT / "aggml" / "cli" / "calls.json"
MOST = 3  # most calls of an op
#: Calls written by hand. ggml aborts in flash_attn_back, so none is recorded; the recorded calls of
#: cpy have views; the last two are no ops of ggml.
OURS: dict[str, dict[str, Any]] = {
    "flash_attn_back": {
        "builder": "flash_attn_back",
        "inputs": {
            "q": ["f32", [16, 5, 2, 1]],
            "k": ["f32", [16, 7, 2, 1]],
            "v": ["f32", [7, 16, 2, 1]],
            "d": ["f32", [16, 5, 2, 1]],
        },
        "args": {"masked": True},
    },
    "cpy": {
        "builder": "cpy",
        "inputs": {"a": ["f32", [256, 3, 1, 1]], "b": ["f32", [256, 3, 1, 1]]},
        "args": {},
    },
    "sample": {
        "builder": "sample",
        "inputs": {
            "a": ["f32", [32, 3, 1, 1]],
            "ids": ["i32", [8, 3, 1, 1]],
            "how": ["f64", [5, 3, 1, 1]],
        },
        "args": {},
    },
    "penalize": {
        "builder": "penalize",
        "inputs": {
            "a": ["f32", [32, 3, 1, 1]],
            "ids": ["i32", [8, 3, 1, 1]],
            "how": ["f32", [8, 5, 3, 1]],
        },
        "args": {},
    },
}


def plain(case: Case) -> bool:
    """Whether no operand is a view, and the case is nothing but one call of a builder."""
    whole = all(not value.via and value.storage == value.name for value in case.inputs)
    return whole and not case.steps and not case.modify and hasattr(ops, case.op)


def worth(case: Case) -> tuple[int, ...]:
    """How good a call is: not in place, many f32 operands, rows that quantized blocks divide."""
    rows = [math.gcd(value.ne[0], 256) for value in case.inputs if value.type != "i32"]
    plain = sum(value.type == "f32" for value in case.inputs)
    return (not case.inplace, plain, len(case.inputs), min(rows, default=0))


def chosen() -> dict[str, list[dict[str, Any]]]:
    """The calls of each op, in the order of ops.def."""
    found: dict[str, list[dict[str, Any]]] = {}
    for op in OPS:
        cases = sorted((x for x in op_cases() if x.node == op and plain(x)), key=worth)[::-1]
        kept: dict[object, Case] = {}
        for case in cases:
            kept.setdefault(tuple((value.name, value.type) for value in case.inputs), case)
        if op in OURS:
            found[op] = [OURS[op]]
        elif kept:
            found[op] = [
                {
                    "builder": case.op,
                    "inputs": {x.name: [x.type, list(x.ne)] for x in case.inputs},
                    "args": case.args,
                }
                for case in [*kept.values()][:MOST]
            ]
    return found


def page() -> str:
    """The text of the file: a line for each op."""
    lines = [f"{json.dumps(op)}: {json.dumps(calls)}" for op, calls in chosen().items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def main() -> int:
    """Write or compare; returns the exit status."""
    return written(FILE, page())


if __name__ == "__main__":
    sys.exit(main())
