"""Write the names of the element types into aggml/dtype.py, for type checkers and editors.

At run time `DType` is made from native/table/types.def, which a type checker cannot read.

    python tools/type_names.py          write them
    python tools/type_names.py --check  fail if they are out of date
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from written import written

from aggml.dtype import TYPES

FILE = Path(__file__).resolve().parent.parent / "aggml" / "dtype.py"
LIST = re.compile(r"(?<=tools/type_names.py.\n)(?:        \w+ = \d+\n)*")


def main() -> int:
    """Write the list, or compare it."""
    names = "".join(f"        {row.key} = {row.id}\n" for row in TYPES.values())
    return written(FILE, LIST.sub(names, FILE.read_text(), count=1))


if __name__ == "__main__":
    sys.exit(main())
