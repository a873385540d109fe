"""Which processor features the machine code of an object needs, function by function.

    python tools/instructions.py FILE.o [FUNCTION]    # each function and its features beyond x86-64

Read from objdump's listing: the name of an instruction and its registers tell the feature. A
function needs what the functions of the same object need that it calls. Not here: what a row of
kernels.def says (tests/native/test_instructions.py compares).
"""

from __future__ import annotations

import functools
import re
import subprocess
import sys
from pathlib import Path

#: By the beginning of an instruction's name, the first match counts; None: of every x86-64.
#: Vectors of 512 bits, masks and registers above 15 need AVX512 besides.
_BY_NAME: tuple[tuple[str, str | None], ...] = (
    (r"tdpbf16ps", "AMX_BF16"),
    (r"tdpb[su][su]d", "AMX_INT8"),
    (r"ldtilecfg|sttilecfg|tile(load|store|zero|release)", "AMX"),
    (r"vdpbf16ps|vcvtne2?ps2bf16", "AVX512_BF16"),
    (r"vpermb|vpermi2b|vpermt2b|vpmultishiftqb", "AVX512_VBMI"),
    (r"vpdp(bu|ws)s?ds?", "VNNI"),
    (r"vfn?m(add|sub)", "FMA"),
    (r"vcvtph2ps|vcvtps2ph", "F16C"),
    (r"k(mov|and|or|x?n?or|shift|test|ortest|unpck|add|not)\w*[bwdq]$", "AVX512"),
    (r"v", "AVX2"),
    # SSE3 to SSE4.2 and POPCNT, which every processor with AVX has, and compilers take to be there.
    (
        (
            r"popcnt|crc32|phadd|phsub|pmaddubsw|pmulhrsw|pabs|psign|palignr|pshufb|ptest|round[sp][sd]"
            r"|blendv?p[sd]|pblend|pmulld|pmuldq|pminu[wd]|pmins[bd]|pmaxu[wd]|pmaxs[bd]|pmov[sz]x"
            r"|pinsr[bdq]|pextr[bdq]|pcmpeqq|pcmpgtq|packusdw|insertps|extractps|dpp[sd]|mpsadbw"
            r"|phminposuw|movs[hl]dup|movddup|lddqu|haddp|hsubp|addsubp"
        ),
        "AVX2",
    ),
    (r"prefetchw", None),  # of every processor that has AVX2
)
#: Extensions that no object is compiled for.
_FOREIGN = re.compile(
    r"lzcnt|andn$|bextr|bls(i|r|msk)|pdep|pext$|mulx|rorx|sarx|shlx|shrx|adcx|adox|movbe|aes|sha1|sha256"
    r"|pclmul|rdrand|rdseed|clwb|clflushopt|vaes|vpclmul|v?gf2p8|vp2intersect|vpopcnt|vpshrd|vpshld"
    r"|vpcompress[bw]|vpexpand[bw]|vpmadd52|vpdpb[su][su]ds?$(?<!vpdpbusd)(?<!vpdpbusds)"
)
_WIDE = re.compile(r"%zmm|%k[1-7]\b|%[xy]mm(1[6-9]|2\d|3[01])\b")
_FUNCTION = re.compile(r"^[0-9a-f]+ <([\w.$]+)>:$")
_LINE = re.compile(r"^\s+[0-9a-f]+:\t(?:\{(\w+)\} )?(\S+)(?:\s+(.*))?$")
_TARGET = re.compile(r"<([\w.$]+)(?:\+0x[0-9a-f]+)?>")
_PREFIXES = {"rep", "repz", "repnz", "lock", "bnd", "notrack", "data16", "cs", "ds", "es", "rex.W"}


def feature_of(name: str, operands: str, encoding: str = "") -> str | None:
    """The feature that an instruction needs beyond x86-64; None: it needs none.

    Raises:
        ValueError: it belongs to an extension that no kernel is compiled for.
    """
    feature = _feature_of_name(name)
    if feature == "":
        raise ValueError(f"{name} {operands}")
    if feature == "VNNI":
        return "AVX_VNNI" if encoding == "vex" else "AVX512_VNNI"
    if feature in {"FMA", "F16C", "AVX2"} and _WIDE.search(operands) is not None:
        return "AVX512"
    return feature


@functools.cache
def _feature_of_name(name: str) -> str | None:
    """What `_BY_NAME` says; empty: of `_FOREIGN`. A listing has some 300 names a million times."""
    if _FOREIGN.match(name):
        return ""
    for beginning, feature in _BY_NAME:
        if re.match(beginning, name):
            return feature
    return None


def functions_of(path: Path) -> dict[str, set[str]]:
    """Each function of an object and the features that it and the functions that it calls need."""
    listing = subprocess.run(
        ["objdump", "-dr", "--no-show-raw-insn", str(path)],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    own: dict[str, set[str]] = {}
    calls: dict[str, set[str]] = {}
    function = ""
    for line in listing.splitlines():
        if match := _FUNCTION.match(line):
            function = match[1]
            own[function], calls[function] = set(), set()
        elif match := _LINE.match(line):
            encoding, name, operands = match[1] or "", match[2], match[3] or ""
            while name in _PREFIXES:
                name, _, operands = operands.partition(" ")
            if feature := feature_of(name, operands, encoding):
                own[function].add(feature)
            if "<" in operands and (target := _TARGET.search(operands)):
                calls[function].add(target[1])
        elif match := re.search(r"R_X86_64_\w+\s+([\w.$]+)", line):
            calls[function].add(match[1])
    for _ in own:  # until nothing is added: no chain of calls is longer
        before = sum(map(len, own.values()))
        for caller, targets in calls.items():
            for callee in targets & own.keys():
                own[caller] |= own[callee]
        if sum(map(len, own.values())) == before:
            break
    return own


def main() -> None:
    """Run the command line."""
    for name, features in sorted(functions_of(Path(sys.argv[1])).items()):
        if name in sys.argv[2:] or not sys.argv[2:]:
            print(f"{name:60} {' '.join(sorted(features)) or '-'}")


if __name__ == "__main__":
    main()
