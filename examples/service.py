"""A service over HTTP with OpenAI's routes: ``python examples/service.py --model MODEL.gguf``.

It is `aggml.serve` as it is; ``--help`` tells the options, docs/serve.md how to ask it.
"""

from __future__ import annotations

import runpy

if __name__ == "__main__":
    runpy.run_module("aggml.serve", run_name="__main__")
