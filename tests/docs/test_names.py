"""What README, CONTRIBUTING and the guides name exists: links, paths, names of aggml, commands.

Pages of the notebook are dated. On these only links are checked: files that they measured may have
moved since.
"""

from __future__ import annotations

import importlib
import re
import sys

import click
import pytest
from docs.pages import PAGES, ROOT, blocks, prose, text_of

from aggml.cli import main

sys.path.insert(0, str(ROOT / "tools"))

GUIDES = [page for page in PAGES if not page.startswith("docs/notebook/")]
FOLDERS = {path.name for path in ROOT.iterdir() if path.is_dir()}
MAKEFILE = "\n".join(
    path.read_text() for path in [ROOT / "Makefile", *sorted(ROOT.glob("tools/*/Makefile"))]
)


def slug(title: str) -> str:
    """The anchor that GitHub makes for a heading."""
    return re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-")


def anchors(page: str) -> set[str]:
    return {slug(found) for found in re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)}


def resolved(name: str) -> bool:
    """Whether a dotted name can be followed from the package through modules and attributes."""
    parts = name.split(".")
    found: object = importlib.import_module(parts[0])
    for i, part in enumerate(parts[1:], 2):
        if hasattr(found, part):
            found = getattr(found, part)
            continue
        if part in getattr(found, "__annotations__", {}):
            return i == len(parts)
        try:
            found = importlib.import_module(".".join(parts[:i]))
        except ImportError:
            return False
    return True


def spans(page: str) -> list[str]:
    """The texts between backquotes."""
    return re.findall(r"`([^`\n]+)`", prose(page))


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        target, _, anchor = link.partition("#")
        if target.startswith(("http:", "https:")):
            continue
        path = ((ROOT / page).parent / target).resolve() if target else ROOT / page
        lost = not path.exists()
        if lost or (anchor and anchor not in anchors(str(path.relative_to(ROOT)))):
            broken.append(link)
    assert broken == []


@pytest.mark.parametrize("page", GUIDES)
def test_paths_exist(page: str) -> None:
    named = {
        found
        for span in spans(page)
        for found in re.findall(r"(?:^|(?<= ))(?:\./)?([\w.]+/[\w./\-]*)", span)
        if found.split("/")[0] in FOLDERS and "NAME" not in found
    }
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []


@pytest.mark.long(cases=19)
@pytest.mark.parametrize("page", GUIDES)
def test_names_of_aggml_exist(page: str) -> None:
    named = {
        found
        for span in spans(page)
        for found in re.findall(r"(?<![\w./\"-])aggml(?:\.[A-Za-z_]\w*)+(?!\w*[\"/])", span)
        if not found.endswith((".py", ".so"))
    } - {"aggml.backends", "aggml.architectures"}  # names of groups of entry points
    # Adapters need libraries that may be missing here, so their files are looked for.
    named -= {x for x in named if ROOT.joinpath(*x.split(".")).with_suffix(".py").exists()}
    assert [name for name in sorted(named) if not resolved(name)] == []


@pytest.mark.parametrize("page", GUIDES)
def test_targets_of_make_exist(page: str) -> None:
    named = set(re.findall(r"\bmake ([a-z][\w-]+)", " ".join([*spans(page), text_of(page)])))
    words = {"a", "it", "the", "sure", "an", "tokens", "arrays", "one", "pools"}
    targets = set(re.findall(r"^([\w-]+):", MAKEFILE, re.MULTILINE))
    shown = {name for name in named - words if f"make {name}" in " ".join(spans(page))}
    assert shown <= targets


@pytest.mark.parametrize("page", GUIDES)
def test_modules_that_are_run_exist(page: str) -> None:
    for module in re.findall(r"python -m ((?:aggml|benchmarks)[\w.]*)", text_of(page)):
        path = ROOT.joinpath(*module.split("."))
        assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), module


@pytest.mark.parametrize("page", GUIDES)
def test_commands_of_the_program_exist(page: str) -> None:
    shell = [block.code for block in blocks(page) if block.language == "sh"]
    lines = [*spans(page), *(line for code in shell for line in code.splitlines())]
    for line in lines:
        if found := re.match(r"(?:python -m )?aggml((?: [a-z]+)+)", line):
            command: click.Command = main
            for word in found[1].split():
                if not isinstance(command, click.Group):
                    break
                assert word in command.commands, line
                command = command.commands[word]


def test_parts_of_the_benchmarks_exist() -> None:
    main = importlib.import_module("benchmarks.__main__")
    parts = set(main.PARTS)
    for page in GUIDES:
        named = set(re.findall(r"python -m benchmarks ([a-z]\w*)", text_of(page)))
        assert named <= parts, page


def test_the_index_names_every_guide() -> None:
    linked = set(re.findall(r"\]\(([\w\-]+\.md)\)", text_of("docs/README.md")))
    guides = {path.name for path in (ROOT / "docs").glob("*.md")} - {"README.md"}
    assert linked == guides


def test_the_index_of_the_notebook_names_every_page() -> None:
    linked = set(re.findall(r"\]\(([\w\-]+\.md)\)", text_of("docs/notebook/README.md")))
    pages = {path.name for path in (ROOT / "docs" / "notebook").glob("*.md")} - {"README.md"}
    assert linked == pages


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.startswith("docs/notebook/") and "README" not in page]
)
def test_a_page_of_the_notebook_begins_with_its_question_and_date(page: str) -> None:
    first, _, second = text_of(page).splitlines()[:3]
    assert first.startswith("# ")
    assert first.endswith("?")
    assert re.match(r"\d{4}-\d{2}-\d{2}", second)
