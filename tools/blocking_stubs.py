"""Write aggml/models/blocking.pyi: the types of the blocking classes, from the asynchronous ones.

    python tools/blocking_stubs.py           # writes the file
    python tools/blocking_stubs.py --check   # exits with 1 if the file is not what would be written

`aggml.models.blocking` makes its classes when it is imported, which type checkers cannot follow.
Not here: the making (aggml/models/portal.py).
"""

from __future__ import annotations

import argparse
import ast
import builtins
import contextlib
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
STUB: Final = ROOT / "aggml" / "models" / "blocking.pyi"

#: Module and class of each asynchronous class, and the bases of its blocking class.
CLASSES: Final = (
    ("token_stream", "TokenStream", "BlockingStream[Token]"),
    ("chat.answers", "ChatStream", "BlockingStream[ChatDelta]"),
    ("model", "Model", "BlockingObject"),
    ("text_model", "TextModel", "BlockingModel"),
    ("encoder_model", "EncoderModel", "BlockingModel"),
    ("encoder_decoder_model", "EncoderDecoderModel", "BlockingModel"),
    ("speech_model", "SpeechModel", "BlockingModel"),
    ("host", "ModelUse", "BlockingObject"),
    ("host", "Host", "BlockingObject"),
    ("voice_model", "VoiceModel", "BlockingModel"),
)
FUNCTIONS: Final = (
    ("loading", "load", "BlockingModel"),
    ("fitting", "fit", None),
    ("host", "Host", "BlockingHost"),
)
#: Functions that are the same for all classes.
GENERAL: Final = (
    "@overload\ndef wrap(of: Model) -> BlockingModel: ...",
    "@overload\ndef wrap(of: HostType) -> BlockingHost: ...",
    "@overload\ndef wrap(of: _Blocking) -> _Blocking: ...",
    "@overload\ndef unwrap(of: BlockingModel) -> Model: ...",
    "@overload\ndef unwrap(of: BlockingHost) -> HostType: ...",
    "@overload\ndef unwrap(of: _Awaited) -> _Awaited: ...",
)
#: What `with` of a class gives, if that is not the object itself.
ENTERED: Final = {"ModelUse": "BlockingModel"}
#: Types of attributes that the classes set without an annotation.
UNTOLD: Final = {"ctx": "int", "slots": "int", "architecture": "str", "asked_ctx": "int | None"}
#: Methods by which event loops and ``async for`` drive a generator.
DRIVEN: Final = {"asend", "athrow"}
#: Generic types of asynchronous iterators.
ITERATORS: Final = {"AsyncGenerator", "AsyncIterator", "AsyncIterable"}
BLOCKING: Final = {name: f"Blocking{name}" for _, name, _ in CLASSES}


class _Names(ast.NodeVisitor):
    """The names in annotations."""

    def __init__(self) -> None:
        self.found: set[str] = set()

    def visit_Name(self, node: ast.Name) -> None:
        self.found.add(node.id)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str):  # a quoted annotation, or the text of a Literal
            with contextlib.suppress(SyntaxError):
                self.visit(ast.parse(node.value, mode="eval"))


def _returned(annotation: ast.expr | None) -> str:
    """The annotation of the blocking method's result."""
    if annotation is None:
        return "Any"
    if (
        isinstance(annotation, ast.Subscript)
        and isinstance(annotation.value, ast.Name)
        and annotation.value.id in ITERATORS
    ):
        of = annotation.slice
        first = of.elts[0] if isinstance(of, ast.Tuple) else of
        return f"BlockingStream[{ast.unparse(first)}]"
    text = ast.unparse(annotation)
    return BLOCKING.get(text, text)


def _plain(default: ast.expr | None) -> ast.expr | None:
    """A default as a stub shows it: a constant, or dots."""
    if default is None or isinstance(default, ast.Constant):
        return default
    if isinstance(default, ast.Tuple) and not default.elts:
        return default
    return ast.Constant(...)


class _EitherModel(ast.NodeTransformer):
    """A model that is an argument may be an asynchronous or a blocking one."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id not in BLOCKING:
            return node
        return ast.BinOp(node, ast.BitOr(), ast.Name(BLOCKING[node.id]))


def _function(node: ast.FunctionDef | ast.AsyncFunctionDef, name: str, result: str) -> str:
    args = node.args
    args.defaults = [_plain(x) or x for x in args.defaults]
    args.kw_defaults = [_plain(x) for x in args.kw_defaults]
    for arg in (*args.args, *args.kwonlyargs):
        if arg.annotation is not None:
            arg.annotation = _EitherModel().visit(arg.annotation)
    return f"def {name}({ast.unparse(args)}) -> {result}: ..."


def _overrides(node: ast.FunctionDef | ast.AsyncFunctionDef, source: str) -> str:
    """The comment for type checkers that stands beside the method in the source."""
    lines = source.splitlines()
    head = "\n".join(lines[node.lineno - 1 : node.body[0].lineno - 1])
    return "  # type: ignore[override]" if "ignore[override]" in head else ""


def _members(node: ast.ClassDef, source: str) -> list[str]:
    found, told = [], set()
    for item in node.body:
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
            if not item.target.id.startswith("_"):
                found.append(f"{item.target.id}: {ast.unparse(item.annotation)}")
                told.add(item.target.id)
        elif isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef)):
            if item.name == "__init__":
                for name, annotation in _attributes(item):
                    if name not in told and not name.startswith("_"):
                        told.add(name)
                        found.append(f"{name}: {annotation}")
            elif item.name == "__aenter__":
                entered = ENTERED.get(node.name, "Self")
                found.append(f"def __enter__(self) -> {entered}: ...")
            elif item.name == "__aexit__":
                found.append("def __exit__(self, *_: object) -> None: ...")
            elif not item.name.startswith("_") and item.name not in DRIVEN:
                name = "close" if item.name == "aclose" else item.name
                if any(isinstance(x, ast.Name) and x.id == "property" for x in item.decorator_list):
                    found.append("@property")
                made = _function(item, name, _returned(item.returns))
                found.append(made + _overrides(item, source))
    return found


def _attributes(init: ast.FunctionDef | ast.AsyncFunctionDef) -> list[tuple[str, str]]:
    """Attributes that are set in ``__init__``, with their types."""
    found = []
    given = {x.arg: x.annotation for x in (*init.args.args, *init.args.kwonlyargs)}
    for node in ast.walk(init):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Attribute):
            found.append((node.target.attr, ast.unparse(node.annotation)))
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Attribute) and not target.attr.startswith("_"):
                    told = given.get(node.value.id) if isinstance(node.value, ast.Name) else None
                    if told is None and target.attr not in UNTOLD:
                        raise SystemExit(
                            f"annotate {init.name}: {ast.unparse(node)}: the type is not known here"
                        )
                    kind = UNTOLD[target.attr] if told is None else ast.unparse(told)
                    found.append((target.attr, kind))
    return found


def _origins(tree: ast.Module, module: str) -> dict[str, str]:
    """The import statement for each name that a module has."""
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                found[alias.asname or alias.name] = f"from {node.module} import " + (
                    alias.name if alias.asname is None else f"{alias.name} as {alias.asname}"
                )
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.asname is not None:
                    found[alias.asname] = f"import {alias.name} as {alias.asname}"
                else:
                    top = alias.name.split(".")[0]
                    found[top] = f"import {top}"
    inner: list[ast.Module | ast.If] = [tree, *(n for n in tree.body if isinstance(n, ast.If))]
    for block in inner:
        for node in block.body:
            if isinstance(node, ast.ClassDef):
                found[node.name] = f"from {module} import {node.name}"
            elif isinstance(node, ast.Assign):
                for target in node.targets:
                    if isinstance(target, ast.Name):
                        found[target.id] = f"from {module} import {target.id}"
    return found


def stub() -> str:
    """The text of the stub."""
    bodies: list[str] = []
    imports = {
        "Any": "from typing import Any",
        "Self": "from typing import Self",
        "BlockingObject": "from aggml.models.portal import BlockingObject",
        "BlockingStream": "from aggml.models.portal import BlockingStream",
        "HostType": "from aggml.models.host import Host as HostType",
        "Model": "from aggml.models.model import Model",
        "TypeVar": "from typing import TypeVar",
        "overload": "from typing import overload",
    }
    for file, name, base in (*CLASSES, *FUNCTIONS):
        module = f"aggml.models.{file}"
        path = ROOT / "aggml" / "models" / f"{file.replace('.', '/')}.py"
        source = path.read_text(encoding="utf-8")
        tree = ast.parse(source)
        node = next(
            x
            for x in tree.body
            if isinstance(x, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
            and x.name == name
        )
        if isinstance(node, ast.ClassDef) and (file, name, base) in FUNCTIONS:
            init = next(
                x for x in node.body if isinstance(x, ast.FunctionDef) and x.name == "__init__"
            )
            del init.args.args[0]
            text = _function(init, name, base or "Any")
        elif isinstance(node, ast.ClassDef):
            members = _members(node, source)
            head = f"class {BLOCKING[name]}({base}):"
            text = "\n    ".join([head, *(members or ["..."])])
        else:
            text = _function(node, name, base or _returned(node.returns))
        bodies.append(text)
        names = _Names()
        names.visit(ast.parse(text))
        origins = _origins(tree, module)
        known = set(vars(builtins)) | {*BLOCKING.values(), "BlockingStream", "BlockingObject"}
        for used in sorted(names.found - known):
            if used in origins:
                imports.setdefault(used, origins[used])
    every = [f"Blocking{name}" for _, name, _ in CLASSES]
    every += ["BlockingStream", *(name for _, name, _ in FUNCTIONS), "unwrap", "wrap"]
    bodies += [
        '_Blocking = TypeVar("_Blocking", bound=BlockingObject)',
        '_Awaited = TypeVar("_Awaited", bound=Model | HostType)',
        *GENERAL,
    ]
    listed = "\n".join(f'    "{name}",' for name in sorted(every))
    head = (
        "# Written by tools/blocking_stubs.py from the asynchronous classes.\n"
        "# ruff: noqa: ANN401 - options of the asynchronous classes"
    )
    lines = "\n".join(sorted(imports.values()))
    text = "\n\n".join([head, lines, f"__all__ = [\n{listed}\n]", *bodies])
    return _ignored(_formatted(text + "\n"))


IGNORED: Final = "  # type: ignore[override]"


def _ignored(text: str) -> str:
    """The text with the comments of `_overrides` where type checkers look for them."""
    pattern = re.compile(
        rf"(    def (?:(?!    def ).)*?){re.escape(IGNORED)}$", re.MULTILINE | re.DOTALL
    )

    def moved(match: re.Match[str]) -> str:
        first, end, rest = match[1].partition("\n")
        return f"{first}{IGNORED}{end}{rest}"

    return pattern.sub(moved, text)


def _formatted(text: str) -> str:
    """The text as ruff lays it out."""
    ruff = [sys.executable, "-m", "ruff"]
    for command in (["check", "--select", "I", "--fix", "-q"], ["format", "-q"]):
        done = subprocess.run(
            [*ruff, *command, "--stdin-filename", str(STUB), "-"],
            input=text, capture_output=True, text=True, cwd=ROOT,
        )  # fmt: skip
        if done.returncode:
            raise SystemExit(done.stderr or done.stdout)
        text = done.stdout
    return text


def main() -> None:
    """Write or check the stub."""
    parser = argparse.ArgumentParser(description="Write the types of aggml.models.blocking.")
    parser.add_argument("--check", action="store_true", help="only compare; exit with 1")
    text = stub()
    if parser.parse_args().check:
        sys.exit(STUB.read_text(encoding="utf-8") != text)
    STUB.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
