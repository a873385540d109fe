"""Write the table of docs/models.md: each layout of each architecture compared with llama.cpp.

    python tools/models_table.py

It runs the models of random weights of tests/models, for which llama.cpp's logits and tokens are
recorded. Not here: the bounds that tests check (tests/models/test_architectures.py).
"""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path

import anyio
import numpy as np

import aggml

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "models.md"
TABLE = re.compile(r"(?<=\| --- \| --- \| --- \| --- \|\n)(?:\|[^\n]*\n)*")


async def rows() -> list[str]:
    """A line for each layout."""
    from models import random_models

    found = []
    with tempfile.TemporaryDirectory() as folder:
        for name, layout in random_models.LAYOUTS.items():
            path = random_models.write(Path(folder, "model.gguf"), name)
            recorded, ids = random_models.recorded(name), random_models.prompt()
            wanted, taken = recorded["logits"], recorded["ids"].tolist()
            async with await aggml.models.load(path, ctx=256) as model:
                got = (await model.logits(ids))[-len(wanted) :]
                made = [token.id async for token in model.generate(ids, max_tokens=len(taken))]
            error = float(np.square(got - wanted).sum() / np.square(wanted).sum())
            same = sum(a == b for a, b in zip(made, taken, strict=True))
            found.append(
                f"| {layout.architecture} | {name} | {error:.0e} | {same} of {len(taken)} |\n"
            )
    return sorted(found)


def main() -> None:
    """Write the table."""
    sys.path.append(str(ROOT / "tests"))
    text = PAGE.read_text(encoding="utf-8")
    table = "".join(anyio.run(rows))
    PAGE.write_text(TABLE.sub(lambda _: table, text, count=1), encoding="utf-8")


if __name__ == "__main__":
    main()
