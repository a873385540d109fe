"""Tokens per second with files as people use them: llama.cpp's mixtures of types, real shapes.

aggml is compared with llama.cpp and ik_llama.cpp, in turns on the same files. ik_llama.cpp runs
twice: with weights as stored, and repacked (its option -rtr). generation.py measures and makes the
rows. Not here: which matrix has which type (model_files.py), how peers are called (llamacpp.py,
ik_llamacpp.py).
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

from benchmarks import model_files
from benchmarks.generation import PACKINGS, PEER, Case, Measurement, Peer
from benchmarks.timing import progress

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from benchmarks.model_files import Shape
    from benchmarks.roofline import Roofline
    from benchmarks.timing import Row

PART: Final = "files"
# Name, module, packings: packings to try in turn, and a note for the row if that one is used.
PEERS: Final[tuple[tuple[str, str, Mapping[str, str]], ...]] = (
    (PEER, "benchmarks.llamacpp", PACKINGS),
    ("ik_llama.cpp", "benchmarks.ik_llamacpp", {"none": ""}),
    ("ik_llama.cpp -rtr", "benchmarks.ik_llamacpp", {"all": ""}),
)


async def measure(
    threads: int,
    roofline: Roofline,
    *,
    quick: bool,
    match: str,
    missing: list[str],
) -> list[Row]:
    """Three rows for each file whose name, such as "0.5B Q4_K_M", contains ``match``."""
    rows: list[Row] = []
    for size, whole in model_files.REAL.items():
        shape = model_files.SMALL if quick else whole
        for mixture in model_files.MIXTURES:
            name = f"{size} {mixture}"
            if match.lower() not in name.lower():
                continue
            progress(f"{PART}: {name}")
            path = model_files.llama_file(mixture, shape)
            case = Case(PART, name, mixture, shape, path)
            with ExitStack() as stack:
                peers = _peers(path, threads, shape, stack, missing)
                rows += await Measurement(case, threads, peers, roofline, quick).rows()
    return rows


def _peers(
    path: Path, threads: int, shape: Shape, stack: ExitStack, missing: list[str]
) -> dict[str, Peer]:
    """The peers that could load the file; the others are noted as missing."""
    found: dict[str, Peer] = {}
    for name, module, packings in PEERS:
        peer = Peer(path, threads, shape, packings, module=module, name=name)
        stack.callback(peer.close)
        if peer.child is not None:
            found[name] = peer
        elif peer.note not in missing:
            missing.append(peer.note)
    return found
