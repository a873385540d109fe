"""Makes tests/models/reference_pictures/: what llama.cpp's mtmd computes of pictures.

Run by hand (``MTMD_CPP_LIB=FOLDER python -m benchmarks.make_pictures [KIND ...]``) where
llama-cpp-python is installed, and its library mtmd: some builds have none, then it has to be
compiled of the same sources. The files have random weights (tests/models/picture_files.py). Not
here: the comparison (tests/models/).
"""

from __future__ import annotations

import ctypes
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.llamacpp import Session
from benchmarks.peers import module

TESTS: Final = Path(__file__).resolve().parent.parent / "tests"
FOLLOWED: Final = 12  # greedy tokens of llama.cpp after the prompt


class Projector:
    """A mmproj file beside its text model."""

    def __init__(self, path: str, session: Session) -> None:
        self.m = m = module("llama_cpp.mtmd_cpp")
        params = m.mtmd_context_params_default()
        params.use_gpu, params.n_threads, params.warmup = False, 1, False
        params.flash_attn_type = 0  # attention in f32
        self.session = session
        self.context = m.mtmd_init_from_file(path.encode(), session.model, params)
        if not self.context:
            raise RuntimeError(f"llama.cpp cannot load {path}")
        self.width = session.c.llama_model_n_embd_inp(session.model)

    def chunks(self, text: str, pictures: list[np.ndarray]) -> Any:
        """A prompt with a marker for each picture, as chunks."""
        m = self.m
        maps = []
        for rgb in pictures:
            data = np.ascontiguousarray(rgb)
            pointer = data.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
            maps.append(m.mtmd_bitmap_init(rgb.shape[1], rgb.shape[0], pointer))
        found = m.mtmd_input_chunks_init()
        given = m.mtmd_input_text()
        given.text, given.text_len = text.encode(), len(text.encode())
        given.add_special = given.parse_special = True
        array = (ctypes.c_void_p * max(1, len(maps)))(*maps)
        status = m.mtmd_tokenize(self.context, found, ctypes.byref(given), array, len(maps))
        if status:
            raise RuntimeError(f"mtmd_tokenize gives {status}")
        return [m.mtmd_input_chunks_get(found, i) for i in range(m.mtmd_input_chunks_size(found))]

    def rows(self, chunk: Any) -> np.ndarray:
        """The embeddings of a chunk."""
        m = self.m
        if m.mtmd_encode_chunk(self.context, chunk):
            raise RuntimeError("mtmd_encode_chunk fails")
        n = m.mtmd_input_chunk_get_n_tokens(chunk)
        found = m.mtmd_get_output_embd(self.context)
        return np.ctypeslib.as_array(found, shape=(n, self.width)).copy()

    def ids(self, chunk: Any) -> list[int] | None:
        """The tokens of a chunk of text; None: it is a picture's."""
        m = self.m
        if m.mtmd_input_chunk_get_type(chunk) != m.MTMD_INPUT_CHUNK_TYPE_TEXT:
            return None
        n = ctypes.c_size_t()
        found = m.mtmd_input_chunk_get_tokens_text(chunk, ctypes.byref(n))
        return [int(found[i]) for i in range(n.value)]


def record(text: str, mmproj: str, files: Any, kind: str) -> dict[str, np.ndarray]:
    """The rows of each picture; ids, logits and greedy tokens of a prompt with two of them."""
    session = Session(text, threads=1, ctx=1024, packing="none")
    projector = Projector(mmproj, session)
    m, marker = projector.m, projector.m.mtmd_default_marker().decode()
    found: dict[str, np.ndarray] = {}
    pictures = [files.picture(i) for i in range(len(files.SIZES))]
    for i, rgb in enumerate(pictures):
        parts = [x for x in projector.chunks(marker, [rgb]) if projector.ids(x) is None]
        found[f"rows{i}"] = np.concatenate([projector.rows(x) for x in parts])
    size = files.KINDS[kind].large
    if size is not None:
        chunks = projector.chunks(marker, [files.picture(0, size)])
        rows = [projector.rows(x) for x in chunks if projector.ids(x) is None]
        found["large"] = np.concatenate(rows)[:: files.LARGE_STEP]
        found["large_ids"] = np.array([i for x in chunks for i in projector.ids(x) or [-1]])
    a, b, c = files.TEXTS
    session.clear()
    ids: list[int] = []
    n = 0
    at = ctypes.c_int32(0)
    for chunk in projector.chunks(f"{a}{marker}{b}{marker}{c}", pictures[:2]):
        tokens = projector.ids(chunk)
        if tokens is None:
            values = projector.rows(chunk)
            pointer = values.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
            none = m.mtmd_helper_post_decode_callback(0)
            status = m.mtmd_helper_decode_image_chunk(
                projector.context, session.context, chunk, pointer, at, 0, 512, ctypes.byref(at),
                none, None,
            )  # fmt: skip
            if status:
                raise RuntimeError(f"mtmd_helper_decode_image_chunk gives {status}")
            ids += [-1] * len(values)
            continue
        n = len(tokens)
        session.decode(tokens, range(at.value, at.value + n), [0] * n, n)
        at.value += n
        ids += tokens
    found["logits"] = np.stack([session.logits(i) for i in range(n)])
    taken: list[int] = []
    for _ in range(FOLLOWED):
        taken.append(int(np.argmax(session.logits())))
        session.decode(taken[-1:], [at.value], [0], 1)
        at.value += 1
    return found | {"ids": np.array(ids, np.int32), "next": np.array(taken, np.int32)}


def main() -> None:
    sys.path.append(str(TESTS))
    from models import picture_files as files

    files.REFERENCE.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        for kind in sys.argv[1:] or files.KINDS:
            text = files.write_text(Path(folder, f"{kind}.gguf"), kind)
            path = Path(folder, f"{kind}-mmproj.gguf")
            mmproj = files.write_eyes(path, kind, for_llama_cpp=True)
            found = record(str(text), str(mmproj), files, kind)
            np.savez_compressed(files.REFERENCE / f"{kind}.npz", allow_pickle=False, **found)
            print(kind, {k: x.shape for k, x in found.items()}, found["next"][:8])


if __name__ == "__main__":
    main()
