"""Writes the pages of docs/reference that follow from the code: the program, HTTP, types, ...

The program's options come from its commands, fields of HTTP from the schema of the service, element
types and instruction sets from the native tables. Not here: ops (ops_table.py, cuda_table.py), the
Python API, which `make docs` reads from the docstrings.

    python tools/reference.py          write the pages
    python tools/reference.py --check  fail if one is out of date
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from aggml import DType, errors
from aggml.cli import main as program
from aggml.models import errors as model_errors
from aggml.serve.http.app import ENDPOINTS
from aggml.serve.http.openapi import rows
from aggml.serve.http.schema import OTHERS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ROOT: Final = Path(__file__).resolve().parent.parent
FOLDER: Final = ROOT / "docs" / "reference"
TABLES: Final = ROOT / "aggml" / "native" / "table"
MADE: Final = "This page is written by `tools/reference.py`.\n"

#: Pages of the API: title, what is on the page, and the modules whose public names it shows. Names of
#: `aggml` itself are divided by hand, in ``FACE``.
API: Final = {
    "graphs": ("Tensors and graphs", "Descriptions: they have no memory and compute nothing.", ()),
    "ops": ("Operations", "Builders of nodes, with ggml's names. [Ops](../../ops.md) lists types and devices.", ("aggml.ops",)),
    "backends": ("Backends and futures", "Ordered work on a device. [Streams and futures](../../async.md) has the rules.", ()),
    "memory": ("Memory", "Buffers and their allocators. [Memory](../../explain/memory.md) explains them.", ()),
    "scheduler": ("Scheduler", "One graph over several devices: [devices](../../devices.md).", ("aggml.scheduler",)),
    "models": ("Models", "From a file to tokens, vectors and text of speech. [Generating text](../../generation.md) is the guide.", ("aggml.models",)),
    "blocking": ("Models without await", "The same models with blocking methods, for scripts and threads: [hosting](../../hosting.md#scripts-and-threads). Each method is that of the model in [models](models.md) with the same name.", ("aggml.models.blocking",)),
    "gguf": ("Files", "GGUF files: [the guide](../../gguf.md).", ("aggml.gguf",)),
    "pipeline": ("Pipelines", "Stages with bounded queues: [the guide](../../pipeline.md).", ("aggml.pipeline",)),
    "opt": ("Training", "Data sets, losses, optimizers: [the guide](../../training.md).", ("aggml.opt",)),
    "tracing": ("Traces and races", "What ran when, and what nothing orders: [a tutorial](../../tutorials/trace.md).", ()),
    "plugins": ("Plug-ins and devices", "Finding devices, and writing one: [the guide](../../plugins.md).", ("aggml.registry",)),
}  # fmt: skip
FACE: Final = {
    "graphs": (
        "Tensor", "TensorFlag", "new_tensor", "DType", "Graph", "build_forward_expand",
        "build_forward_order", "build_forward_select", "build_backward_expand", "quantize",
        "dequantize", "quantize_async", "dequantize_async", "convert", "from_dlpack", "empty",
    ),
    "backends": (
        "Backend", "GraphPlan", "Future", "Times", "Event", "Stream", "gather", "as_completed",
        "ThreadPool", "ThreadPoolParams", "ThreadPriority", "Comparison", "NodeComparison",
        "compare_backends", "GraphCopy", "copy_graph",
    ),
    "memory": (
        "Buffer", "BufferType", "BufferUsage", "MultiBuffer", "GraphAllocator", "TensorAllocator",
        "HeapAllocator", "GraphBuffer", "NumaStrategy", "is_numa", "numa_nodes", "numa_pool",
    ),
    "tracing": (
        "trace", "Trace", "TraceEvent", "check_races", "RaceChecker", "Race", "RaceError",
    ),
    "plugins": (
        "API_VERSION", "Family", "Device", "DeviceCaps", "DeviceProps", "DeviceType", "DevicePlan",
        "Plan", "compile_plan",
    ),
}  # fmt: skip

#: Names that come first on a page; the others follow in the order of their module.
FIRST: Final = {
    "models": (
        "load", "TextModel", "TokenStream", "Token", "ChatMessage", "ChatStream", "ChatDelta",
        "EncoderModel", "SpeechModel", "VoiceModel", "Model", "Host", "fit",
    ),
    "blocking": ("load",),
    "pipeline": ("run", "Stage"),
}  # fmt: skip

#: What each variable of the environment does. A test compares the names with those that the code reads.
VARIABLES: Final = {
    "AGGML_ISA": (
        "the instruction set of the CPU's kernels, one of [these](instruction-sets.md), for "
        "comparisons; unset: the best that this machine has"
    ),
    "AGGML_BACKEND_PATH": "one more plug-in that `aggml.registry.load_all()` loads: a file",
    "AGGML_BACKEND_DIRS": (
        "folders in which plug-ins are searched, with `:` between them; `PREFIX/lib/aggml` always "
        "is one, the current folder never"
    ),
    "AGGML_DISABLE_BACKENDS": (
        "families of devices that are not loaded unless the program asks for them, with commas: "
        "`cuda,foo`"
    ),
    "AGGML_API_KEY": "the key of `aggml serve`, as its option `--api-key`",
    "AGGML_CUDA_TF32": "1: products of f32 on an NVIDIA GPU may round operands to 10 bits",
    "AGGML_CUDA_OVERLAP": "0: a kernel does not start before the one before it has ended",
    "AGGML_CUDA_REGISTER": "1: the GPU reads mapped files of models where they lie",
    "AGGML_CUDA_NCCL": "the path of `libnccl`; 0: GPUs send each other their summands instead",
    "AGGML_RAY_CACHE": "the folder for copies of model files on the machines of a cluster",
    "GGML_BACKEND_PATH": "the folder or file of ggml's own backends ([ggml devices](../ggml-devices.md))",
    "CUDA_HOME": "where CUDA's toolkit lies, if cuBLASLt is not installed as a package",
    "CUDA_PATH": "as `CUDA_HOME`, which comes first",
    "XDG_CACHE_HOME": "the folder of caches, `~/.cache` unless set: compiled kernels, tuned numbers",
}  # fmt: skip

GROUPS: Final = {
    "FLOAT": "floating point", "INTEGER": "integer", "DOUBLE": "floating point",
    "LEGACY": "blocks of 32", "K": "blocks of 256", "IQ": "codebook", "IQ4": "codebook",
    "TERNARY": "three values", "FP4": "4-bit floats", "FEW": "few bits",
    "DOT": "second operand of products only",
}  # fmt: skip


def table(head: Iterable[str], lines: Iterable[Iterable[object]]) -> str:
    """A table of Markdown."""
    names = list(head)
    found = [names, ["---"] * len(names), *[list(map(str, line)) for line in lines]]
    return "".join(
        f"| {' | '.join(x.replace('|', chr(92) + '|') for x in row)} |\n" for row in found
    )


def commands(group: click.Group, path: str) -> Iterator[tuple[str, click.Command]]:
    """All commands below a group, with the words that call them."""
    for name, command in group.commands.items():
        yield f"{path} {name}", command
        if isinstance(command, click.Group):
            yield from commands(command, f"{path} {name}")


def prose(text: str) -> str:
    """Help text as paragraphs of Markdown."""
    plain = inspect.cleandoc(text).replace("\b\n", "").replace("\b", "")
    return re.sub(r"([<*_])", r"\\\1", plain)


def command_line() -> str:
    """Every command with its arguments and options, as ``--help`` prints them."""
    out = ["# The command line\n", MADE.rstrip(), "[The program](../program.md) is its guide; each command",
           "prints what stands here with `-h` or `--help`.\n"]  # fmt: skip
    for path, command in commands(program, "aggml"):
        context = click.Context(command, info_name=path, max_content_width=100)
        usage = " ".join(command.collect_usage_pieces(context))
        out += [f"## {path}\n", f"```text\n{path} {usage}\n```\n", prose(command.help or ""), ""]
        # command.params has no --help, whose spelling click takes from the first context that asked.
        given = [p for p in command.params if isinstance(p, click.Option)]
        options = [r for p in given if (r := p.get_help_record(context)) is not None]
        if options:
            lines = [(f"`{name}`", prose(about)) for name, about in options]
            out += [table(("option", "meaning"), lines)]
    return "\n".join(out)


def http() -> str:
    """Every route with the fields of its body."""
    out = ["# HTTP\n", MADE.rstrip(), "[Serve](../serve.md) is its guide. A running service has the same as",
           "`/docs`, and for programs as `/openapi.json`. Each answer to an error has a status: 400 (the",
           "request is malformed or does not fit the model), 401, 403 (the key), 404, 408, 413, 415, 429,",
           "500 (the computation failed), 503 (too many requests wait) or 504 (the deadline has passed).\n"]  # fmt: skip
    for endpoint in ENDPOINTS:
        paths = ", ".join((endpoint.path, *endpoint.aliases))
        out += [f"## {endpoint.method} {paths}\n", prose(endpoint.about), ""]
        if endpoint.form is not None:
            lines = [
                (
                    f"`{r.name}`",
                    prose(r.values),
                    f"`{r.default}`" if r.default else "",
                    prose(r.about),
                )
                for r in rows(endpoint.form)
            ]
            out += [table(("field", "values", "default", "meaning"), lines)]
    out += ["## Fields that are not built\n"]
    others = [(", ".join(f"`{x}`" for x in o.names), o.state, prose(o.why)) for o in OTHERS]
    out += [table(("field", "state", "why"), others)]
    return "\n".join(out)


def defined(name: str, macro: str) -> list[list[str]]:
    """The rows of a native table: the arguments of each use of a macro."""
    text = re.sub(r"/\*.*?\*/", "", (TABLES / name).read_text(encoding="utf-8"), flags=re.DOTALL)
    found = re.findall(rf"^{macro}\((.*?)\)$", text, re.MULTILINE | re.DOTALL)
    return [[part.strip() for part in re.split(r",(?![^(]*\))", row)] for row in found]


def types() -> str:
    """All element types."""
    groups = {row[0]: (row[8], row[11]) for row in defined("types.def", "AGK_TYPE")}
    lines = [
        (
            f"`{x.type_name}`", GROUPS[groups[x.name][0]], x.blck_size, x.type_size,
            f"{8 * x.type_size / x.blck_size:.4g}", "" if x.numpy is None else f"`{x.numpy}`",
            "no" if groups[x.name][1] == "NO" else "yes",
        )
        for x in DType
    ]  # fmt: skip
    head = (
        "type",
        "kind",
        "elements of a block",
        "bytes of a block",
        "bits an element",
        "numpy",
        "ops write it",
    )
    return "\n".join(
        ["# Element types\n", MADE.rstrip(),
         "`aggml.DType.parse(name)` gives a type, `aggml.quantize(array, name)` converts to it. Numbers and",
         "names are ggml's. [Ops](../ops.md) says which op takes which type.\n",
         table(head, lines)]
    )  # fmt: skip


def features(text: str) -> str:
    """Names of processor features, as people write them."""
    found = re.findall(r"AGK_(\w+)", text)
    return ", ".join(x.replace("_", "-") for x in found)


def instruction_sets() -> str:
    """All instruction sets, with what a processor needs for them."""
    lines = []
    for name, architecture, needs, gate, takes, *_ in defined("isas.def", "AGK_ISA"):
        where = {"X86": "x86-64", "ARM": "aarch64", "ANY": "all"}[architecture]
        asked = ", ".join(x for x in (features(needs), features(gate)) if x)
        lines.append((f"`{name}`", where, asked, features(takes)))
    return "\n".join(
        ["# Instruction sets\n", MADE.rstrip(),
         "One build has the kernels of all instruction sets of its architecture. aggml takes the best one that",
         "the processor has; `AGGML_ISA=NAME` or `device.backend(isa=NAME)` takes another one. The rows are in",
         "order of preference, the plainest first. `python -m aggml devices` says what this machine has.\n",
         table(("name", "processors", "needs", "also uses, if there"), lines)]
    )  # fmt: skip


def environment() -> str:
    """All variables of the environment."""
    return "\n".join(
        ["# Variables of the environment\n", MADE.rstrip(),
         "No variable is needed. They are read when the device, the plug-ins or the program start, not later.\n",
         table(("variable", "effect"), [(f"`{k}`", v) for k, v in VARIABLES.items()])]
    )  # fmt: skip


def exceptions() -> str:
    """The tree of exceptions."""
    out = ["# Exceptions\n", MADE.rstrip(),
           "[Errors](../errors.md) says what to do about each. All derive from `aggml.AggmlError` and from the",
           "builtin exception that stands beside them.\n"]  # fmt: skip
    for module, where in ((errors, "aggml.errors"), (model_errors, "aggml.models")):
        lines = []
        for name in module.__all__:
            found = getattr(module, name)
            if not (inspect.isclass(found) and issubclass(found, Exception)):
                continue
            bases = ", ".join(f"`{x.__name__}`" for x in found.__bases__)
            about = (inspect.getdoc(found) or "").partition("\n")[0].replace("``", "`")
            lines.append((f"`{name}`", bases, about))
        out += [f"## {where}\n", table(("exception", "also a", "means"), lines)]
    return "\n".join(out)


def shown(page: str) -> list[tuple[str, str]]:
    """The module and the name of everything on a page of the API."""
    found = [("aggml", name) for name in FACE.get(page, ())]
    for module in API[page][2]:
        names = importlib.import_module(module).__all__
        skipped = {"blocking", "caller"} if module == "aggml.models" else set()
        first = FIRST.get(page, ())
        named = [*first, *(x for x in names if x not in first and x not in skipped)]
        found += [(module, name) for name in named]
    return found


def api(page: str) -> str:
    """A page of the API: a line for each name, which mkdocstrings replaces by its docstring."""
    title, about, _ = API[page]
    out = [f"# {title}\n", MADE, about + "\n"]
    for module, name in shown(page):
        found = getattr(importlib.import_module(module), name)
        if not (inspect.isclass(found) or callable(found)):
            out.append(f"## {module}.{name}\n\n`{found!r}`\n")
            continue
        out.append(f"::: {module}.{name}\n    options: {{toc_label: {name}}}\n")
    return "\n".join(out)


def api_index() -> str:
    """The list of the pages of the API, with all names."""
    out = [
        "# The API\n",
        MADE,
        "`dir(aggml)` has the names that programs type; this list has all public ones.\n",
    ]
    lines = []
    for page, (title, _, _) in API.items():
        names = ", ".join(f"`{name}`" for _, name in shown(page))
        if page == "ops":
            names = f"{len(shown(page))} names, most of them builders of nodes"
        lines.append((f"[{title}]({page}.md)", names))
    out += [table(("page", "names"), lines)]
    out += [
        "Exceptions are [on a page of their own](../exceptions.md), and so are [environment variables](../environment.md)."
    ]
    return "\n".join(out)


def pages() -> dict[Path, str]:
    """The text of each page."""
    made = {
        "command-line": command_line, "http": http, "types": types,
        "instruction-sets": instruction_sets, "environment": environment, "exceptions": exceptions,
    }  # fmt: skip
    texts = {FOLDER / f"{name}.md": make() for name, make in made.items()}
    texts |= {FOLDER / "api" / f"{page}.md": api(page) for page in API}
    texts[FOLDER / "api" / "README.md"] = api_index()
    return {path: text.rstrip() + "\n" for path, text in texts.items()}


def main() -> int:
    """Write or compare; returns the exit status."""
    found = pages()
    if sys.argv[1:] == ["--check"]:
        return int(any(not p.exists() or p.read_text() != text for p, text in found.items()))
    (FOLDER / "api").mkdir(parents=True, exist_ok=True)
    for path, text in found.items():
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
