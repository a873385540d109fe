"""card_keys: what a folder says of the model's name, licence and languages, under GGUF's keys.

Here: the head of README.md, the model card, and names of folders. Not here: settings of the model
(config.py), writing files (../converting.py).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

__all__ = ["card_keys"]

MOST: Final = 1 << 20  # characters of a card that are read
LONGEST: Final = 512  # characters of a value; longer ones are no name
#: GGUF's keys by the names in a card.
TEXTS: Final = {
    "model_name": "general.name", "license": "general.license",
    "license_name": "general.license.name", "license_link": "general.license.link",
}  # fmt: skip
LISTS: Final = {"language": "general.languages", "tags": "general.tags"}
_ENTRY: Final = re.compile(r"^([A-Za-z_][\w-]*):[ \t]*(.*)$")
_ITEM: Final = re.compile(r"^[ \t]*-[ \t]+(.+)$")
_SNAPSHOT: Final = re.compile(r"^[0-9a-f]{40}$")


def card_keys(folder: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """GGUF's keys that say which model it is; they change no result.

    Args:
        folder: of the model.
        config: the values of config.json.
    """
    card = _head(folder)
    found: dict[str, Any] = {"general.type": "model"}
    for name, key in TEXTS.items():
        told = card.get(name, [])
        if len(told) == 1:
            found[key] = told[0]
    for name, key in LISTS.items():
        if card.get(name):
            found[key] = card[name]
    found.setdefault("general.name", _name(folder, config))
    return found


def _name(folder: Path, config: Mapping[str, Any]) -> str:
    """The name of the model: that of its repository, or that of the folder."""
    told = config.get("_name_or_path")
    if isinstance(told, str) and re.fullmatch(r"[\w.-]+/[\w.-]+", told):
        return told.rpartition("/")[2]
    place = folder.resolve()
    if _SNAPSHOT.match(place.name) and place.parent.name == "snapshots":  # as it was downloaded
        return place.parent.parent.name.rpartition("--")[2]
    return place.name or "model"


def _head(folder: Path) -> dict[str, list[str]]:
    """The entries at the head of README.md that are a text or a list of texts."""
    try:
        with (folder / "README.md").open(encoding="utf-8-sig", errors="replace") as file:
            lines = file.read(MOST).splitlines()
    except OSError:
        return {}
    if not lines or lines[0].rstrip() != "---":
        return {}
    ends = [i for i, line in enumerate(lines[1:], 1) if line.rstrip() == "---"]
    return _entries(lines[1 : ends[0]]) if ends else {}


def _entries(lines: Sequence[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    current: list[str] | None = None
    for line in lines:
        entry, item = _ENTRY.match(line), _ITEM.match(line)
        if entry is not None:
            current = found[entry[1]] = _values(entry[2])
        elif item is not None and current is not None:
            current += _values(item[1])
        elif line.strip() and not line.lstrip().startswith("#"):
            current = None  # something else is nested here
    return found


def _values(text: str) -> list[str]:
    """A text, or the texts of a list in brackets; none if it is empty or something else."""
    text = text.strip()
    if text.startswith("[") and text.endswith("]"):
        return [x for part in text[1:-1].split(",") for x in _values(part)]
    quoted = re.fullmatch(r"""(["'])(.*)\1""", text)
    if quoted is not None:
        text = quoted[2]
    elif text.startswith(("|", ">", "{", "&", "*", "[")) or text in ("null", "~"):
        return []
    else:
        text = re.sub(r"\s+#.*$", "", text)
    return [text] if text and len(text) <= LONGEST else []
