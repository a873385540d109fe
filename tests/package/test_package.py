"""The package as a whole: exact __all__, heads of files, examples with --help.

Sources are read, not imported, where that is enough. Not here: behaviour, which room may import
which (test_rooms.py).
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import subprocess
import sys
import types
from itertools import chain, takewhile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import aggml
from aggml import errors

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "aggml"
PYTHON_FILES = sorted(PACKAGE.rglob("*.py"))
EXAMPLES = sorted((ROOT / "examples").rglob("*.py"))
PROGRAMS = [path for path in EXAMPLES if "argparse" in path.read_text()]

LOOPS = {"asyncio", "trio"}


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in PYTHON_FILES}


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def walk_run_time(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes except those under ``if TYPE_CHECKING``, whose imports are never run."""
    for child in ast.iter_child_nodes(tree):
        if is_type_checking(child):
            continue
        yield child
        yield from walk_run_time(child)


def imports(name: str) -> Iterator[str]:
    """The modules that module ``name`` imports at run time, as absolute names."""
    path = MODULES[name]
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in walk_run_time(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, *([base] if base else [])])
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                yield inner if inner in MODULES or inner.endswith("._native") else base


@pytest.mark.long
def test_nothing_imports_testing() -> None:
    users = {
        name
        for name in MODULES
        if not name.startswith("aggml.testing")
        and any(other.startswith("aggml.testing") for other in imports(name))
    }
    assert users == set()


@pytest.mark.long
def test_only_the_reactor_and_the_parker_import_event_loops() -> None:
    users = {name for name in MODULES if LOOPS & {other.split(".")[0] for other in imports(name)}}
    # Actors of Ray and of Ray Serve run on asyncio. The driver's end of their connections has a
    # loop of its own.
    of_ray = {f"aggml.ray.{name}" for name in ("clocks", "front", "link", "neighbours", "wire")}
    ours = {"aggml.stream.reactor", "aggml.stream.waits", "aggml.stream.parker"}
    # The portal has a loop of its own; uvicorn, whose connections serve extends, runs on asyncio.
    assert users == {*ours, "aggml.models.portal", "aggml.serve.http.connections", *of_ray}


@pytest.mark.long
def test_only_one_file_knows_the_gpu_package() -> None:
    users = {name for name in MODULES if any(other.startswith("cuda.") for other in imports(name))}
    assert users <= {"aggml.devices.cuda.driver"}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: str(path.relative_to(ROOT)))
def test_examples_use_the_public_face_only(path: Path) -> None:
    tree = ast.parse(path.read_text())
    private = [
        ast.unparse(node)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        and (node.module or "").startswith("aggml.")
        and not (node.module or "").startswith("aggml.models")
        and not (node.module or "").startswith("aggml.serve")
        and node.module not in {"aggml.pipeline", "aggml.ray"}
        and node.module not in {"aggml.devices", "aggml.devices.sim"}
    ]
    assert private == []


def test_rooms_that_few_programs_use_are_imported_when_one_of_their_names_is_asked_for() -> None:
    program = """if True:
        import sys, aggml
        rooms = {"aggml.compare", "aggml.gguf", "aggml.models", "aggml.scheduler", "aggml.tracing"}
        names = sorted(rooms & {*sys.modules})
        print(names, aggml.Scheduler.__name__, aggml.gguf.GGUFFile.__name__)
        from aggml import trace
        print(sorted(rooms & {*sys.modules}))
    """
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.splitlines() == [
        "[] Scheduler GGUFFile",
        "['aggml.gguf', 'aggml.scheduler', 'aggml.tracing']",
    ], done.stderr


def test_all_of_the_face_is_exact() -> None:
    for name in aggml.__all__:
        getattr(aggml, name)  # imports the room that defines the name, if that is done lazily
    names = {
        name
        for name, value in vars(aggml).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    } - {"annotations"}
    modules = {name for name in aggml.__all__ if isinstance(getattr(aggml, name), types.ModuleType)}
    assert names == set(aggml.__all__) - modules - {"__version__"}
    assert modules <= {"devices", "errors", "gguf", "models", "ops", "testing", "unsafe"}


def test_dir_has_what_programs_type_and_the_rest_is_found_by_name() -> None:
    """Each name is the object that its module has, and is not listed unless programs type it."""
    assert len(dir(aggml)) < 60
    for name, module in aggml._LATER_BY_NAME.items():
        assert getattr(aggml, name) is getattr(importlib.import_module(module), name)
    for name in errors.__all__:
        assert hasattr(aggml, name) or not inspect.isclass(getattr(errors, name)), name
    with pytest.raises(AttributeError, match="nonesuch"):
        aggml.nonesuch  # noqa: B018


def test_the_contract_is_in_the_face() -> None:
    names = [
        *("AggmlError", "BufferUsage", "DType", "Future", "Graph", "GraphAllocator", "Stream"),
        *("Tensor", "as_completed", "best_device", "compile_plan", "dequantize", "gather"),
        *("get_device", "list_devices", "new_tensor", "ops", "quantize"),
    ]
    assert [name for name in names if name not in aggml.__all__] == []


def test_devices_are_found_as_the_contract_writes_them() -> None:
    code = "import aggml; d = aggml.devices; print(d.sim.SimDevice('s').name, dir(d.cuda) != [])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("s True\n", "")
    with pytest.raises(AttributeError, match="no attribute 'nonesuch'"):
        aggml.devices.nonesuch  # noqa: B018


def test_no_public_function_shares_its_name_with_a_module() -> None:
    here = {name.split(".")[1] for name in MODULES if name.count(".") == 1}
    shared = {name for name in here & set(aggml.__all__) if callable(getattr(aggml, name))}
    assert shared == set()


#: Modules of libraries that are in no extra of the tests.
NEEDS = {
    "aggml.integrations.haystack": "haystack",
    "aggml.integrations.langchain": "langchain_core",
    "aggml.integrations.llama_index": "llama_index.core",
    "aggml.integrations.pydantic_ai": "pydantic_ai",
}


def imported(name: str) -> types.ModuleType:
    """A module; the test skips if its library is missing."""
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    return importlib.import_module(name)


def check_all(name: str, module: types.ModuleType) -> None:
    """Every public class or function of a module is in its __all__; every name there exists."""
    listed: list[str] | None = getattr(module, "__all__", None)
    defined = {
        key
        for key, value in vars(module).items()
        if not key.startswith("_")
        and (inspect.isclass(value) or inspect.isfunction(value))
        and value.__module__ == name
    }
    if listed is None:
        assert defined == set(), f"{name} defines public names and has no __all__"
    else:
        assert sorted(set(listed)) == sorted(listed), name
        assert [key for key in listed if not hasattr(module, key)] == [], name
        assert sorted(defined - set(listed)) == [], name


def room_of(name: str) -> str:
    return ".".join(name.split(".")[:2])


NAMED = [name for name in MODULES if name.split(".")[-1] != "__main__"]


@pytest.mark.long(cases=8)
@pytest.mark.parametrize("room", sorted({room_of(name) for name in NAMED}))
def test_all_names_what_is_defined(room: str) -> None:
    for name in NAMED:
        if room_of(name) == room and name not in NEEDS:
            check_all(name, importlib.import_module(name))


@pytest.mark.parametrize("name", [name for name in NAMED if name in NEEDS])
def test_all_names_what_is_defined_where_a_library_is_needed(name: str) -> None:
    check_all(name, imported(name))


PACKAGES = [name for name, path in MODULES.items() if path.name == "__init__.py"]


@pytest.mark.parametrize("name", PACKAGES)
def test_dir_of_a_package_is_its_names(name: str) -> None:
    """``dir()`` of a package is its ``__all__``; if it has none, only its modules."""
    package = importlib.import_module(name)
    listed: list[str] | None = getattr(package, "__all__", None)
    if listed is None:
        shown = {key: getattr(package, key) for key in dir(package) if not key.startswith("_")}
        assert [key for key, value in shown.items() if f"{name}.{key}" not in MODULES] == []
    else:
        assert dir(package) == sorted(listed)


def header(path: Path) -> list[str]:
    """The lines of the comment or docstring at the top of a source, without blank ones."""
    text = path.read_text()
    if path.suffix == ".py":  # the docstring; only comments may come before it
        match = re.match(r'(?:#.*\n|\n)*r?"""(.*?)"""', text, re.DOTALL)
        lines = match[1].splitlines() if match else []
    elif match := re.match(r"/\*(.*?)\*/", text, re.DOTALL):
        lines = match[1].splitlines()
    else:
        mark = "#" if path.suffix == ".cmake" else "//"
        lines = list(takewhile(lambda line: line.startswith(mark), text.splitlines()))
    return [line for line in lines if line.strip(" *#/")]


SOURCES = sorted(
    path
    for folder in ("aggml", "benchmarks", "cmake", "examples", "tests", "tools")
    for path in chain.from_iterable(
        (ROOT / folder).rglob(f"*.{suffix}")
        for suffix in ("py", "c", "h", "cpp", "def", "cu", "cuh", "cmake")
    )
    if path.stat().st_size > 0
)


@pytest.mark.parametrize(
    "folder", sorted({x.parent for x in SOURCES}), ids=lambda path: str(path.relative_to(ROOT))
)
def test_files_begin_with_what_is_here(folder: Path) -> None:
    lengths = {x.name: len(header(x)) for x in SOURCES if x.parent == folder}
    assert lengths
    assert {name: n for name, n in lengths.items() if not 1 <= n <= 8} == {}


@pytest.mark.long(cases=1)
@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: str(path.relative_to(ROOT)))
def test_examples_answer_help(path: Path) -> None:
    done = subprocess.run([sys.executable, path, "--help"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "usage:" in done.stdout


#: A file name in a head. Patterns such as ``quant*.c`` and placeholders do not count.
FILE_NAME = re.compile(
    r"(?<![\w*./{<-])((?:[\w.-]+/)*[\w-]+\.(?:py|pyi|c|h|cpp|def|cu|cuh|cmake|md))\b(?![*\w])"
)
#: Names of projects that look like files, and a file of ggml.
NOT_OURS = {"llama.cpp", "ik_llama.cpp", "whisper.cpp", "ggml.h"}
ALL_FILES = {
    f"/{path.relative_to(ROOT).as_posix()}"
    for folder in ("aggml", "benchmarks", "cmake", "docs", "examples", "tests", "tools")
    for path in (ROOT / folder).rglob("*.*")
} | {f"/{path.name}" for path in ROOT.glob("*.*")}


def exists(name: str) -> bool:
    """Whether a file has this name; ``_bytes.h`` stands for any file whose name ends so."""
    ending = name if name.startswith("_") else f"/{name}"
    return any(known.endswith(ending) for known in ALL_FILES)


@pytest.mark.long
def test_files_that_heads_name_exist() -> None:
    missing = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in SOURCES
        for name in FILE_NAME.findall("\n".join(header(path)).replace("../", ""))
        if name not in NOT_OURS and not exists(name)
    ]
    assert missing == []
