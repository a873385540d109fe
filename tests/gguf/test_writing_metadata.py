"""GGUFWriter's metadata: the gguf package and GGUFFile read what was written.

Invalid values are refused. Not here: tensors (test_writing.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
import pytest

import aggml
from aggml.gguf import GGUFFile, GGUFWriter

if TYPE_CHECKING:
    from pathlib import Path


NUMBERS: dict[str, tuple[Any, Any]] = {
    "uint8": (0, 255),
    "int8": (-128, 127),
    "uint16": (0, 65535),
    "int16": (-32768, 32767),
    "uint32": (0, (1 << 32) - 1),
    "int32": (-(1 << 31), (1 << 31) - 1),
    "uint64": (0, (1 << 64) - 1),
    "int64": (-(1 << 63), (1 << 63) - 1),
    "float32": (-0.5, 3.0e38),
    "float64": (-1e-300, 1e300),
}


def kinds_of(path: Path) -> dict[str, list[str]]:
    """The types of a value that the package gguf reports, the outermost first."""
    fields = gguf.GGUFReader(path).fields
    return {
        key: [kind.name.lower() for kind in field.types]
        for key, field in fields.items()
        if not key.startswith("GGUF.")
    }


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_of_every_type_alone_and_in_arrays(path: Path, name: str) -> None:
    low, high = NUMBERS[name]
    with GGUFWriter(path) as w:
        w.add("low", low, name)
        w.add("high", high, name)
        w.add("both", [low, high], name)
        w.add("none", [], name)
        w.add("numpy", np.array([low, high], name))
        w.add("scalar", np.array(high, name)[()])
    assert kinds_of(path) == {
        **{key: [name] for key in ("low", "high", "scalar")},
        **{key: ["array", name] for key in ("both", "numpy")},
        "none": ["array"],
    }
    with GGUFFile.open(path) as file:
        stored = [float(np.float32(x)) if name == "float32" else x for x in (low, high)]
        assert [file.metadata["low"], file.metadata["high"]] == stored
        assert file.metadata["both"].tolist() == file.metadata["numpy"].tolist() == stored
        assert file.metadata["both"].dtype == file.metadata["none"].dtype == np.dtype(name)
        assert set(file.types.values()) == {name}


def test_python_values_get_the_types_that_llama_cpp_reads(path: Path) -> None:
    given_values: dict[str, tuple[Any, list[str]]] = {
        "count": (4096, ["uint32"]),
        "negative": (-1, ["int32"]),
        "large": (1 << 32, ["uint64"]),
        "very_negative": (-(1 << 31) - 1, ["int64"]),
        "eps": (1e-5, ["float32"]),
        "infinite": (float("inf"), ["float32"]),
        "yes": (True, ["bool"]),
        "text": ("blåbær 天", ["string"]),
        "bytes": (b"\xff\x00a", ["string"]),
        "heads": ([4, 8, 0], ["array", "int32"]),
        "wide": ([4, 1 << 31], ["array", "uint32"]),
        "wider": ([-1, 1 << 31], ["array", "int64"]),
        "mixed": ((1, 0.5), ["array", "float32"]),
        "scores": ([0.0, -1.0], ["array", "float32"]),
        "flags": ([True, False], ["array", "bool"]),
        "tokens": (["<s>", "", "▁the"], ["array", "string"]),
        "enum": (gguf.PoolingType.MEAN, ["uint32"]),
        "np_bool": (np.True_, ["bool"]),
        "np_texts": (np.array(["a", "bc"]), ["array", "string"]),
    }
    with GGUFWriter(path) as w:
        for key, (value, _) in given_values.items():
            w.add(key, value)
    assert kinds_of(path) == {key: kinds for key, (_, kinds) in given_values.items()}
    with GGUFFile.open(path) as file:
        found = file.metadata
        for key in (
            "count",
            "negative",
            "large",
            "very_negative",
            "yes",
            "text",
            "tokens",
            "flags",
        ):
            assert found[key] == given_values[key][0]
            assert type(found[key]) is type(given_values[key][0])
        assert found["bytes"].encode("utf-8", "surrogateescape") == b"\xff\x00a"
        assert found["eps"] == float(np.float32(1e-5))
        assert list(found["heads"]) == [4, 8, 0]


def test_nested_arrays_are_read_back(path: Path) -> None:
    with GGUFWriter(path) as w:
        w.add("nested", [[1, 2], [3]], "uint16")
        w.add("matrix", np.arange(6, dtype=np.int8).reshape(2, 3))
        w.add("texts", [["a"], ["b", "c"]])
    with GGUFFile.open(path) as file:
        first, second = file.metadata["nested"]
        assert (first.tolist(), second.tolist(), first.dtype) == ([1, 2], [3], np.uint16)
        assert [x.tolist() for x in file.metadata["matrix"]] == [[0, 1, 2], [3, 4, 5]]
        assert file.metadata["texts"] == [["a"], ["b", "c"]]


def test_metadata_is_copied_with_its_exact_types(path: Path, tmp_path: Path) -> None:
    with GGUFWriter(path) as w:
        for name, (low, high) in NUMBERS.items():
            w.add(name, low, name)
            w.add(f"{name}s", [low, high], name)
        w.add("texts", ["a", "b"])
        w.add("no_texts", [], "string")
        w.add("bools", [True])
    copied = tmp_path / "copied.gguf"
    with GGUFFile.open(path) as file, GGUFWriter(copied) as w:
        for key, value in file.metadata.items():
            w.add(key, value, file.types[key])
    assert copied.read_bytes() == path.read_bytes()


@pytest.mark.parametrize(
    ("key", "value", "kind", "words"),
    [
        ("k", 256, "uint8", "256 is outside of uint8"),
        ("k", [1, -1], "uint64", "-1 is outside of uint64"),
        ("k", 1 << 64, None, "no integer type holds both"),
        ("k", 1e300, None, 'name the type "float64"'),
        ("k", 10**400, "float32", "too large"),
        ("k", 1.5, "int32", "1.5 is no int32"),
        ("k", True, "int32", "True is no int32"),
        ("k", 1, "bool", "1 is no bool"),
        ("k", 1, "string", "1 is no string"),
        ("k", ["a", 1], None, "is no number, bool, string"),
        ("k", None, None, "None is no number"),
        ("k", {"a": 1}, None, "is no number"),
        ("k", [], None, "for an empty array name the type"),
        ("k", 1, "array", "'array' is none of uint8"),
        ("k", 1, "Uint8", "'Uint8' is none of uint8"),
        ("k", np.float16(1), None, "no values of numpy's float16"),
        ("k", np.zeros(2, np.complex64), None, "no values of numpy's complex64"),
        ("k", [[[[[1]]]]], None, "nested more than 4 deep"),
        ("k", "\ud800", None, "no UTF-8"),
        ("", 1, None, "is no key"),
        (7, 1, None, "is no key"),
        ("k" * 65536, 1, None, "65536 bytes"),
        ("general.alignment", 48, None, "no power of two"),
        ("general.alignment", "32", None, "no power of two"),
        ("general.alignment", 0, None, "no power of two"),
    ],
)
def test_values_that_cannot_be_are_refused(
    path: Path, key: Any, value: Any, kind: str | None, words: str
) -> None:
    with GGUFWriter(path) as w:
        with pytest.raises(aggml.InvalidArgument, match=words):
            w.add(key, value, kind)
        w.add("good", 1)
    with GGUFFile.open(path) as file:
        assert file.metadata == {"good": 1}


def test_a_key_is_used_once(path: Path) -> None:
    with GGUFWriter(path) as w:
        w.add("k", 1)
        with pytest.raises(aggml.InvalidArgument, match="'k' has a value already"):
            w.add("k", 2)
