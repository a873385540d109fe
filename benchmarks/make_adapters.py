"""Makes tests/models/reference_adapters.npz: logits of llama.cpp with adapters and control vectors.

Run by hand (``python -m benchmarks.make_adapters``) where llama-cpp-python is installed, when
tests/models/adapter_files.py changes. Not here: the comparison (tests/models/).
"""

from __future__ import annotations

import ctypes
import json
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.llamacpp import Session

TESTS: Final = Path(__file__).resolve().parent.parent / "tests"
CASES: Final = (
    ("llama", "lora", 1.0), ("llama", "lora", -0.5), ("phi3", "lora", 1.0), ("qwen2", "lora", 0.7),
    ("qwen3moe", "lora", 1.0), ("gptneox", "lora", 1.0), ("llama", "control", 1.0),
    ("qwen2", "control", -0.5),
)  # fmt: skip
LAST: Final = 4  # positions of each prompt whose logits are recorded


def _set(session: Session, kind: str, path: Path, scale: float, layers: int, width: int) -> None:
    """Give a context an adapter or a control vector."""
    c = session.c
    if kind == "lora":
        adapter: Any = c.llama_adapter_lora_init(session.model, str(path).encode())
        assert adapter
        status = c.llama_set_adapters_lora(
            session.context, ctypes.byref(adapter), 1, (ctypes.c_float * 1)(scale)
        )
        assert status == 0
        return
    from models import adapter_files

    directions = adapter_files.example_directions(layers, width)
    data = np.zeros((layers, width), np.float32)
    for layer, vector in directions.items():
        data[layer - 1] = vector * np.float32(scale)
    pointer = data.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
    status = c.llama_set_adapter_cvec(session.context, pointer, data.size, width, 1, layers)
    assert status == 0


def main() -> None:
    sys.path.append(str(TESTS))
    from models import adapter_files, random_models

    told: list[dict[str, Any]] = []
    found: dict[str, np.ndarray[Any, Any]] = {}
    ids = random_models.prompt()
    with tempfile.TemporaryDirectory() as folder:
        for layout, kind, scale in CASES:
            name = f"{layout} {kind} {scale}"
            base = random_models.write(Path(folder, f"{layout}.gguf"), layout)
            path = Path(folder, "adapter.gguf")
            if kind == "lora":
                adapter_files.example_adapter(path, layout)
            session = Session(str(base), threads=1, ctx=512, packing="none")
            weights = random_models.weights(layout)
            layers = random_models.LAYOUTS[layout].layers
            _set(session, kind, path, scale, layers, len(weights["output_norm.weight"]))
            session.decode(ids, range(len(ids)), [0] * len(ids), len(ids))
            rows = [session.logits(i) for i in range(len(ids) - LAST, len(ids))]
            found[name] = np.stack(rows).astype(np.float32)
            told.append({"name": name, "layout": layout, "kind": kind, "scale": scale})
            print(name, found[name][-1, :4])
    np.savez_compressed(
        TESTS / "models" / "reference_adapters.npz", allow_pickle=False, told=json.dumps(told),
        **found,
    )  # fmt: skip


if __name__ == "__main__":
    main()
