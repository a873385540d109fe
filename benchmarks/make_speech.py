"""Makes tests/models/speech.npz: results of whisper.cpp and faster-whisper for test sounds.

Run by hand, in a Python that can import both (`pip install --no-deps pywhispercpp==1.5.1
faster-whisper==1.2.1`), after ``make .venv/has-weights``:

    PYTHONPATH=tests python -m benchmarks.make_speech

Here: logits of whisper.cpp by its C functions, features of faster-whisper. Not here: the
comparison (tests/models/test_speech.py).
"""

from __future__ import annotations

import ctypes
import importlib.util
import tempfile
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np
from models import speech_file, weights

from aggml.models import read_wav

TOKENS: Final = {"first": [50258, 50259, 50359, 50363], "then": [1000, 2000, 3000]}
TESTS: Final = Path(__file__).resolve().parent.parent / "tests" / "models"
KEPT: Final = slice(0, None, 29)  # every 29th token's logit is compared


class _Options(ctypes.Structure):
    """whisper_context_params."""

    _fields_: ClassVar = [
        ("use_gpu", ctypes.c_bool), ("flash_attn", ctypes.c_bool), ("gpu_device", ctypes.c_int),
        ("dtw_token_timestamps", ctypes.c_bool), ("dtw_aheads_preset", ctypes.c_int),
        ("dtw_n_top", ctypes.c_int), ("n_heads", ctypes.c_size_t), ("heads", ctypes.c_void_p),
        ("dtw_mem_size", ctypes.c_size_t),
    ]  # fmt: skip


def _library() -> ctypes.CDLL:
    """The library of whisper.cpp that pywhispercpp carries."""
    found = importlib.util.find_spec("_pywhispercpp")
    assert found is not None, "pywhispercpp is not installed"
    assert found.origin is not None
    whisper = ctypes.CDLL(str(Path(found.origin).with_name("libwhisper.so")))
    whisper.whisper_context_default_params.restype = _Options
    whisper.whisper_init_from_file_with_params.restype = ctypes.c_void_p
    whisper.whisper_init_from_file_with_params.argtypes = [ctypes.c_char_p, _Options]
    whisper.whisper_get_logits.restype = ctypes.POINTER(ctypes.c_float)
    return whisper


def logits(path: Path, samples: speech_file.F32, vocabulary: int) -> list[Any]:
    """Logits after the first tokens, and after each further token."""
    c = _library()
    options = c.whisper_context_default_params()
    # Its flash attention looks at 1536 keys, not 1500; the other 36 are zeros and get weights, too.
    options.flash_attn = False
    opened = c.whisper_init_from_file_with_params(str(path).encode(), options)
    whisper = ctypes.c_void_p(opened)
    assert opened, path
    at = samples.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
    assert c.whisper_pcm_to_mel(whisper, at, len(samples), 2) == 0
    assert c.whisper_encode(whisper, 0, 2) == 0
    found, past = [], 0
    for ids in (TOKENS["first"], *([x] for x in TOKENS["then"])):
        given = (ctypes.c_int * len(ids))(*ids)
        assert c.whisper_decode(whisper, given, len(ids), past, 2) == 0
        past += len(ids)
        rows = c.whisper_get_logits(whisper)  # only the last row has logits
        found.append(np.ctypeslib.as_array(rows, (len(ids), vocabulary))[-1, KEPT].copy())
    return found


def main() -> None:
    """Write the file."""
    spec = importlib.util.find_spec("faster_whisper")
    assert spec is not None, "faster-whisper is not installed"
    assert spec.submodule_search_locations
    file = Path(spec.submodule_search_locations[0]) / "feature_extractor.py"  # needs numpy only
    told = importlib.util.spec_from_file_location("feature_extractor", file)
    assert told is not None
    assert told.loader is not None
    module = importlib.util.module_from_spec(told)
    told.loader.exec_module(module)
    samples = speech_file.sound(3)
    made: dict[str, Any] = {
        f"features_{bands}": module.FeatureExtractor(feature_size=bands)(samples)[:, ::7]
        for bands in (80, 128)
    }
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "random.bin"
        speech_file.write_bin(path)
        made["random"] = np.stack(logits(path, speech_file.sound(30), speech_file.VOCABULARY))
    trained = weights.PLACE / "ggml-tiny.bin"
    recording, _ = read_wav((weights.PLACE / "a13.wav").read_bytes())
    made["tiny"] = np.stack(logits(trained, recording, speech_file.VOCABULARY))
    np.savez_compressed(TESTS / "speech.npz", **made)


if __name__ == "__main__":
    main()
