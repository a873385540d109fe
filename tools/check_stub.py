"""Compares aggml/native/_native*.pyi with the module: names by stubtest, arguments by signatures.

stubtest does not recognize the functions of nanobind as functions and reports each of them. These
reports are ignored; names, order and defaults of arguments are compared here instead. Not here:
types, which nanobind erases.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from aggml.native import _native

if TYPE_CHECKING:
    from collections.abc import Iterator

STUBS = sorted((Path(__file__).resolve().parent.parent / "aggml" / "native").glob("_native*.pyi"))
NATURE_OF_NANOBIND = re.compile(
    r"is not a function$|metaclass differs$|is a disjoint base at runtime"
    r"|stub does not have \*args parameter|stub is a staticmethod but runtime is not$"
    r"|__buffer__ is not present at runtime$"  # before Python 3.12
)


def stubtest() -> Iterator[str]:
    """The reports of stubtest that are not caused by nanobind."""
    command = [sys.executable, "-m", "mypy.stubtest", "--concise", _native.__name__]
    done = subprocess.run(command, capture_output=True, text=True)
    for line in (done.stdout + done.stderr).splitlines():
        if line and not NATURE_OF_NANOBIND.search(line):
            yield line


def arguments(function: ast.FunctionDef) -> list[str]:
    """The names of arguments in order, "=" after one with a default, and the marks "/" and "*"."""
    given = function.args
    plain = [*given.posonlyargs, *given.args]
    needed = len(plain) - len(given.defaults)
    names = [arg.arg + "=" * (i >= needed) for i, arg in enumerate(plain)]
    if given.posonlyargs:
        names.insert(len(given.posonlyargs), "/")
    if given.vararg or given.kwonlyargs:
        names.append("*" + (given.vararg.arg if given.vararg else ""))
    for arg, default in zip(given.kwonlyargs, given.kw_defaults, strict=True):
        names.append(arg.arg + "=" * (default is not None))
    # Unnamed arguments of nanobind are called arg, arg0, ...; nobody can pass them by name.
    return ["_" if re.fullmatch(r"arg\d*", name) else name for name in names if name != "/"]


def signatures(tree: ast.Module) -> Iterator[str]:
    """Functions and methods whose arguments differ between stub and module."""
    scopes: list[ast.Module | ast.ClassDef] = [tree]
    scopes += [node for node in tree.body if isinstance(node, ast.ClassDef)]
    for scope in scopes:
        owner = getattr(_native, scope.name, None) if isinstance(scope, ast.ClassDef) else _native
        for stub in (node for node in scope.body if isinstance(node, ast.FunctionDef)):
            function = getattr(owner, stub.name, None)
            overloads: tuple[tuple[str, ...], ...] = getattr(function, "__nb_signature__", ())
            if len(overloads) != 1 or stub.decorator_list:
                continue
            # In the text \0, \1, ... stand for the defaults.
            text = re.sub(r"\\\d+", "...", overloads[0][0])
            real = ast.parse(text + ": ...").body[0]
            assert isinstance(real, ast.FunctionDef)
            if arguments(real) != arguments(stub):
                name = f"{scope.name}.{stub.name}" if isinstance(scope, ast.ClassDef) else stub.name
                yield f"{name}: module {arguments(real)}, stub {arguments(stub)}"


def main() -> None:
    """Print all differences; the exit status tells whether there are any."""
    found = [
        *stubtest(),
        *(line for stub in STUBS for line in signatures(ast.parse(stub.read_text()))),
    ]
    names = ", ".join(stub.name for stub in STUBS)
    print(*found, f"{names}: {len(found)} differences from the module", sep="\n")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
