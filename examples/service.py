"""A service over HTTP in your own program: ``python examples/service.py [MODEL.gguf [PORT]]``.

`aggml serve` does the same from a shell; docs/serve.md shows requests. Without a file it serves a
small model of random weights. Ctrl-C ends it.
"""

import sys
import tempfile
from pathlib import Path

from aggml.models.small import write_small
from aggml.serve import Limits
from aggml.serve.http import Address, Options, run


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        given = [Path(x) for x in sys.argv[1:2]]
        models = given or [write_small(Path(folder) / "small.gguf")]
        port = int(sys.argv[2]) if len(sys.argv) > 2 else 8000
        return run(Options(models, limits=Limits(slots=8)), Address(port=port))


if __name__ == "__main__":
    sys.exit(main())
