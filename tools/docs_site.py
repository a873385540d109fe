"""A hook of mkdocs: pages for the files outside docs/ to which pages link.

Pages are written for a reader of the repository, so they link to sources, examples and results. On
the site such a file is a page below source/: Markdown as it is, other text as a block of code. Not
here: what the pages say (docs/), the order of the pages (mkdocs.yml).
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT: Final = Path(__file__).resolve().parent.parent
DOCS: Final = "docs/"
SOURCE: Final = "source/"
_LINK: Final = re.compile(r"(\]\()([^)\s]+)(\))")
_FENCED: Final = re.compile(r"^(```+).*?^\1$", re.MULTILINE | re.DOTALL)
_LANGUAGES: Final = {
    ".py": "python", ".c": "c", ".h": "c", ".def": "c", ".cpp": "cpp", ".cu": "cpp",
    ".json": "json", ".toml": "toml", ".ipynb": "json",
}  # fmt: skip
LARGE: Final = 200_000  # characters of a file that is shown; the rest is cut


def links(text: str) -> Iterator[str]:
    """The targets of links that name files, without those in blocks of code."""
    for found in _LINK.finditer(_FENCED.sub("", text)):
        if not re.match(r"[a-z]+:|#", found[2]):
            yield found[2]


def site_path(path: str) -> str:
    """Where a file of the repository lies on the site.

    Args:
        path: from the root of the repository.
    """
    if path.startswith(DOCS):
        return path[len(DOCS) :]
    if (ROOT / path).is_dir():
        path = f"{path.rstrip('/')}/README.md"
    return SOURCE + (path if path.endswith(".md") else f"{path}.md")


def repository_path(uri: str) -> str:
    """The file of the repository that is at a place of the site."""
    if not uri.startswith(SOURCE):
        return DOCS + uri
    path = uri[len(SOURCE) :]
    return path if (ROOT / path).exists() else path.removesuffix(".md")


def rewritten(text: str, path: str) -> str:
    """The text of a page with the links that it has on the site.

    Args:
        text: of the page.
        path: of its file, from the root of the repository.
    """
    here = posixpath.dirname(site_path(path))

    def there(found: re.Match[str]) -> str:
        target, hash_, anchor = found[2].partition("#")
        if re.match(r"[a-z]+:", target) or not target:
            return found[0]
        to = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
        return f"{found[1]}{posixpath.relpath(site_path(to), here or '.')}{hash_}{anchor}{found[3]}"

    out, last = [], 0
    for block in _FENCED.finditer(text):  # code stays as it is
        out += [_LINK.sub(there, text[last : block.start()]), block[0]]
        last = block.end()
    return "".join([*out, _LINK.sub(there, text[last:])])


def page_of(path: str) -> str:
    """The Markdown of a file outside docs/, with the links that it has in the repository."""
    file = ROOT / path
    if file.is_dir():
        if (file / "README.md").exists():
            return (file / "README.md").read_text(encoding="utf-8")
        lines = [f"- [{x.name}]({x.name})" for x in sorted(file.iterdir()) if _is_shown(x)]
        return f"# {path}\n\n" + "\n".join(lines) + "\n"
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".md":
        return text
    cut = "" if len(text) <= LARGE else f"\nThe rest of {len(text):,} characters is not shown.\n"
    fence = "`" * 5
    language = _LANGUAGES.get(file.suffix, "text")
    return f"# {path}\n\n{fence}{language}\n{text[:LARGE]}\n{fence}\n{cut}"


def _is_shown(path: Path) -> bool:
    return path.is_file() and path.suffix in {*_LANGUAGES, ".md"} and not path.name.startswith(".")


def outside(pages: dict[str, str], named: list[str]) -> dict[str, str]:
    """The files outside docs/ that pages lead to, and those that these lead to.

    Args:
        pages: text of each page, by its path from the root of the repository.
        named: further files outside docs/.

    Returns:
        The Markdown of each, by its path from the root of the repository.
    """
    found: dict[str, str] = {}
    waiting = [*named]

    def look(path: str, text: str) -> None:
        for target in links(text):
            folder = path if (ROOT / path).is_dir() else posixpath.dirname(path)
            to = posixpath.normpath(posixpath.join(folder, target.partition("#")[0]))
            if not to.startswith((DOCS, "../")) and (ROOT / to).exists() and to not in found:
                waiting.append(to)

    for path, text in pages.items():
        look(path, text)
    while waiting:
        path = waiting.pop()
        if path not in found and (ROOT / path).suffix != ".svg":
            found[path] = page_of(path)
            look(path, found[path])
    return found


def _as_file(path: str) -> str:
    """A folder stands for its README.md."""
    return f"{path}/README.md" if (ROOT / path).is_dir() else path


def on_files(files: Any, config: Any) -> Any:  # noqa: ANN401 mkdocs has no types to import here
    """Called by mkdocs: add the pages of files outside docs/."""
    from mkdocs.structure.files import File

    pages = {DOCS + file.src_uri: file.content_string for file in files.documentation_pages()}
    named = re.findall(rf"{SOURCE}(\S+)", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    have = {file.src_uri for file in files}
    for path, text in outside(pages, [x for x in named if "*" not in x]).items():
        uri = site_path(path)
        if uri not in have:
            have.add(uri)
            made = rewritten(text, _as_file(path))
            files.append(File.generated(config, uri, content=made))
    return files


def on_page_markdown(markdown: str, page: Any, **_: object) -> str:  # noqa: ANN401
    """Called by mkdocs: links that lead out of docs/ lead to the pages of these files."""
    if page.file.src_uri.startswith(SOURCE):
        return markdown  # rewritten when it was made
    return rewritten(markdown, DOCS + page.file.src_uri)
