"""The documentation site: its order names every page, its pages are those that the code gives.

Links, names and blocks of code of all pages are checked by test_names.py and test_code.py, without
building the site; `make docs` builds it, and there every warning is an error. Here is also what
only the built site needs: files outside docs/ to which pages link. Not here: how it looks.
"""

from __future__ import annotations

import importlib.util
import posixpath
import re
import subprocess
import sys
from functools import cache
from typing import TYPE_CHECKING

import docs_site
import pytest
import reference
from docs.pages import ROOT, blocks, text_of

import aggml
from aggml.cli import main
from aggml.models import errors as model_errors
from aggml.native import _native

if TYPE_CHECKING:
    from pathlib import Path

#: What a browser would fetch from another host.
FOREIGN = re.compile(r"<(?:script|link|img|iframe)[^>]*?(?:src|href)=[\"']?(?://|https?:)")
MKDOCS = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
DOCS = sorted(path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md"))


@cache
def navigation() -> list[str]:
    """The pages of the site's order; read without YAML, which tests do not need."""
    nav = MKDOCS[MKDOCS.index("\nnav:") :]
    return re.findall(r"(?:- |: )([\w./-]+\.md)$", nav, re.MULTILINE)


@cache
def outside() -> dict[str, str]:
    """The files outside docs/ that are pages of the site."""
    pages = {f"docs/{name}": text_of(f"docs/{name}") for name in DOCS}
    named = [name.removeprefix("source/") for name in navigation() if name.startswith("source/")]
    return docs_site.outside(pages, named)


def test_the_order_of_the_site_names_every_page_once() -> None:
    inside = sorted(name for name in navigation() if not name.startswith("source/"))
    assert inside == DOCS


def test_the_order_names_files_that_exist() -> None:
    made = {docs_site.site_path(path) for path in outside()}
    assert [x for x in navigation() if x.startswith("source/") and x not in made] == []


def test_links_of_all_pages_lead_to_pages_of_the_site() -> None:
    """Also those of files outside docs/, as far as their targets are in the repository."""
    pages = {f"docs/{name}": text_of(f"docs/{name}") for name in DOCS} | outside()
    there = {docs_site.site_path(path) for path in pages}
    there |= {p.relative_to(ROOT / "docs").as_posix() for p in (ROOT / "docs").rglob("*.svg")}
    lost = []
    for path, text in pages.items():
        file = f"{path}/README.md" if (ROOT / path).is_dir() else path
        here = posixpath.dirname(docs_site.site_path(path))
        for target in docs_site.links(docs_site.rewritten(text, file)):
            to = posixpath.normpath(posixpath.join(here, target.partition("#")[0]))
            if to not in there:
                lost.append(f"{path}: {target}")
    assert lost == []


def test_a_link_out_of_the_pages_leads_to_the_page_of_that_file() -> None:
    text = "[a](../examples/hello.py) `[b](../x)` [c](async.md#order) [d](https://example.org)"
    assert docs_site.rewritten(text, "docs/tensors.md") == (
        "[a](source/examples/hello.py.md) `[b](source/../x.md)` [c](async.md#order) "
        "[d](https://example.org)"
    ).replace("source/../x.md", docs_site.site_path("x"))
    code = "```text\n[a](../examples/hello.py)\n```\n"
    assert docs_site.rewritten(code, "docs/tensors.md") == code
    back = docs_site.rewritten("[a](docs/async.md)", "CONTRIBUTING.md")
    assert back == "[a](../async.md)"


def test_pages_of_the_reference_are_those_of_the_code() -> None:
    found = reference.pages()
    stale = [
        str(path.relative_to(ROOT))
        for path, text in found.items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    assert stale == [], "python tools/reference.py writes them"
    kept = {*reference.FOLDER.rglob("*.md")}
    assert kept == set(found)


def test_the_reference_has_every_public_name() -> None:
    shown = {(module, name) for page in reference.API for module, name in reference.shown(page)}
    names = {name for _, name in shown}
    later = {name for names_of in aggml._LATER.values() for name in names_of}
    elsewhere = {*aggml.errors.__all__, "devices", "errors", "gguf", "models", "ops", "API_VERSION"}
    assert {*aggml.__all__, *later} - names - elsewhere == set()


def test_variables_of_the_environment_are_those_that_the_code_reads() -> None:
    read = set()
    for path in (ROOT / "aggml").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        read |= set(re.findall(r"environ\.get\(\s*\"(\w+)\"|envvar=\"(\w+)\"", text))
    assert {a or b for a, b in read} == set(reference.VARIABLES)


def test_every_exception_has_a_cause_and_a_remedy() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", text_of("docs/errors.md"), re.MULTILINE))
    raised = {
        name
        for module in (aggml.errors, model_errors)
        for name in module.__all__
        if issubclass(getattr(module, name), Exception)
    } - {"AggmlError", "ReadOnly"}
    assert raised - set(rows) == set()
    assert all(len(row.split(" | ")) == 3 and row.split(" | ")[2].strip() for row in rows.values())


def test_every_command_is_in_the_reference() -> None:
    page = text_of("docs/reference/command-line.md")
    for path, command in reference.commands(main, "aggml"):
        assert f"## {path}\n" in page
        for option in command.params:
            assert all(name in page for name in option.opts if name.startswith("--"))


def test_a_row_of_a_native_table_is_read_with_its_expressions() -> None:
    rows = {row[0]: row for row in reference.defined("isas.def", "AGK_ISA")}
    assert list(rows) == [name for name, *_ in _native.isas()]
    assert rows["avx2"][1:5] == ["X86", "AGK_AVX2 | AGK_FMA | AGK_F16C", "0", "0"]


def test_the_first_page_has_three_short_programs() -> None:
    programs = [block.code for block in blocks("README.md") if block.language == "python"]
    assert len(programs) == 3
    for program in programs:
        assert len([line for line in program.splitlines() if line.strip()]) <= 12


def test_what_watches_hostile_input_exists() -> None:
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    for line in text.splitlines():
        cells = line.split("|")
        if len(cells) == 7 and "---" not in line and "fuzzers" not in line:
            for name in re.findall(r"`(\w+)`", cells[4]):
                fuzzer = ROOT / "tests" / "fuzz" / f"{name}.py"
                assert "Report" in fuzzer.read_text(), name
            for path in re.findall(r"`(tests/[\w./]+)`", cells[5]):
                assert (ROOT / path).exists(), path


@pytest.mark.slow
def test_the_site_is_built_without_warnings_and_asks_no_host(tmp_path: Path) -> None:
    for name in ("mkdocs", "material", "mkdocstrings"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed (make .venv/has-docs)")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", tmp_path],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert {*tmp_path.glob("*.html")} >= {tmp_path / "index.html", tmp_path / "limits.html"}
    for page in tmp_path.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        asked = FOREIGN.findall(text)
        assert asked == [], page
    index = (tmp_path / "search" / "search_index.json").read_text(encoding="utf-8")
    assert "aggml.models.load" in index
