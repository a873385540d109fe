"""Missing parts: the packages of an extra, or the native module; each error is one line.

Not here: devices whose libraries are missing (tests/registry).
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aggml
from aggml.errors import AggmlError
from aggml.models import EngineError
from aggml.models.small import write_small
from aggml.models.tokenizers import VocabularyError
from aggml.process.extras import install_command

_WITHOUT = (
    "import sys; sys.modules[{0!r}] = None; from aggml.cli import main; main(prog_name='aggml')"
)


def ended(*command: str, **options: Any) -> tuple[int, str]:
    """The exit status, and the text on standard error."""
    words = [sys.executable, *command]
    done = subprocess.run(words, capture_output=True, text=True, check=False, **options)
    return done.returncode, done.stderr.strip()


@pytest.fixture(scope="module")
def byte_level(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a small model whose vocabulary needs the package `tokenizers`."""
    folder = tmp_path_factory.mktemp("missing")
    path = folder / "bytes.gguf"
    with aggml.GGUFFile.open(write_small(folder / "small.gguf")) as small:
        writer = aggml.GGUFWriter(path)
        writer.add_all(small)
        n = len(small.metadata["tokenizer.ggml.tokens"])
        for key in ("model", "tokens", "scores", "token_type"):
            writer.remove(f"tokenizer.ggml.{key}")
        writer.add("tokenizer.ggml.model", "gpt2")
        writer.add("tokenizer.ggml.pre", "gpt-2")
        writer.add("tokenizer.ggml.tokens", ["a", "b", "ab", *[f"t{i}" for i in range(3, n)]])
        writer.add("tokenizer.ggml.merges", ["a b"])
        for name, tensor in small.tensors.items():
            writer.add_tensor(name, small.data(name), tensor.dtype, ne=tensor.ne)
        writer.close()
    return path


@pytest.mark.long
def test_a_package_of_models_that_is_missing_is_one_line(byte_level: Path) -> None:
    program = _WITHOUT.format("tokenizers")
    status, said = ended("-c", program, "generate", str(byte_level), "--prompt", "a")
    assert status == 1
    assert said == (
        f"aggml: the tokenizers package is not installed; get it with: {install_command('models')}"
    )


@pytest.mark.long
def test_a_package_of_the_service_that_is_missing_is_one_line(byte_level: Path) -> None:
    status, said = ended("-c", _WITHOUT.format("starlette"), "serve", str(byte_level))
    assert status == 1
    assert said.endswith(f"get it with: {install_command('serve')}")
    assert "\n" not in said


def test_ray_that_is_missing_is_named() -> None:
    status, said = ended("-c", "import sys; sys.modules['ray'] = None; import aggml.ray")
    assert status == 1
    assert said.splitlines()[-1] == (
        "ModuleNotFoundError: aggml.ray needs Ray, which is not installed: "
        + install_command("ray")
    )


def test_the_command_that_installs_an_extra_names_this_interpreter(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    python = tmp_path / "my python" / "python"
    python.parent.mkdir()
    python.touch(mode=0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert install_command("serve") == f"'{python}' -m pip install 'aggml[serve]'"
    monkeypatch.setenv("PATH", str(python.parent))  # the environment is active
    assert install_command("serve") == "python -m pip install 'aggml[serve]'"
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)  # made by uv, without pip
    assert install_command("serve") == "uv pip install --python python 'aggml[serve]'"


def test_a_checkout_that_was_not_built_says_what_to_do(tmp_path: Path) -> None:
    source = Path(aggml.__file__).parent
    shutil.copytree(source, tmp_path / "aggml", ignore=shutil.ignore_patterns("*.so", "*.c", "*.h"))
    (tmp_path / "aggml" / "native" / "_native.cpython-27.so").touch()
    packages = {"PYTHONPATH": str(Path(np.__file__).parent.parent)}
    status, said = ended("-S", "-c", "import aggml", cwd=tmp_path, env=packages)
    assert status == 1
    assert "has no native module for this Python (found: _native.cpython-27.so)" in said
    assert "`pip install -e .`" in said


@pytest.mark.parametrize("kind", [VocabularyError, EngineError])
def test_what_models_and_the_service_raise_is_an_error_of_aggml(kind: type[Exception]) -> None:
    assert issubclass(kind, AggmlError)
