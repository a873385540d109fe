"""The description of the API, made from the schema: /openapi.json, /docs, the table of fields.

Not here: the schema itself (schema.py).
"""

from __future__ import annotations

import html
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from aggml import __version__
from aggml.serve.http.schema import (
    ALIASES,
    FORMS,
    OTHERS,
    RealtimeEvent,
    Transcription,
    components,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from msgspec import Struct

    from aggml.serve.http.exchange import Endpoint

__all__ = ["Row", "description", "documentation", "rows", "table"]

#: Words for JSON's types.
KINDS: Final = {
    "integer": "whole number", "boolean": "true or false", "string": "text", "array": "list",
}  # fmt: skip
_ERRORS: Final = {
    "400": "the request is malformed, or does not fit the model",
    "401": "the key is missing or wrong",
    "403": "the route needs a key",
    "404": "there is no such model or route",
    "408": "the body came too slowly",
    "413": "the body is too large",
    "415": "an encoding or charset is unknown",
    "429": "the client asks too much",
    "500": "the computation failed",
    "501": "the model has not what the route needs",
    "503": "too many requests wait, or the server is stopping",
    "504": "the deadline has passed",
}


def description(endpoints: Sequence[Endpoint]) -> dict[str, Any]:
    """All routes and fields, as OpenAPI 3.1 describes them."""
    parts = _parts()
    forms = {x.form.__name__ for x in endpoints if x.form is not None}
    parts = {name: _with_null(x) if name in forms else x for name, x in parts.items()}
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        for path in (endpoint.path, *endpoint.aliases):
            plain = path.replace("{name:path}", "{name}")
            paths.setdefault(plain, {})[endpoint.method.lower()] = _operation(endpoint, plain)
    return {
        "openapi": "3.1.0",
        "info": {"title": "aggml", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": parts,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "X-Api-Key"},
            },
        },
    }


@cache
def _parts() -> dict[str, Any]:
    """The schemas of all forms and of what is in them, by name; making them takes long."""
    return components()[1]


def _with_null(form: dict[str, Any]) -> dict[str, Any]:
    """The schema of a request, in which null stands for a field that is left out."""
    fields = {
        name: field
        if name in form.get("required", ()) or _takes_null(field)
        else {"anyOf": [{k: v for k, v in field.items() if k not in _BESIDE}, {"type": "null"}],
              **{k: v for k, v in field.items() if k in _BESIDE}}
        for name, field in form.get("properties", {}).items()
    }  # fmt: skip
    return {**form, "properties": fields}


_BESIDE: Final = ("description", "default", "title")


def _takes_null(field: dict[str, Any]) -> bool:
    """Whether the schema of a field takes null as it is."""
    if "anyOf" in field:
        return any(map(_takes_null, field["anyOf"]))
    told = {x for x in field if x not in _BESIDE}
    return field.get("type") == "null" or not told or None in field.get("enum", ())


def _operation(endpoint: Endpoint, path: str) -> dict[str, Any]:
    found: dict[str, Any] = {
        "summary": endpoint.about,
        "responses": {"200": {"description": "the answer"}},
    }
    for status, why in _ERRORS.items():
        found["responses"][status] = {"description": why}
    if not endpoint.open:
        found["security"] = [{"bearer": []}, {"key": []}, {}]
    if "{name}" in path:
        found["parameters"] = [
            {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}
        ]
    if endpoint.form is RealtimeEvent:
        found["responses"] = {
            "101": {"description": "the session begins; each message of the client is an event"},
            "426": {"description": "the request asks for no WebSocket"},
            **{x: {"description": _ERRORS[x]} for x in ("400", "401", "403", "404", "429", "503")},
        }
        found["x-websocket-message"] = {"$ref": "#/components/schemas/RealtimeEvent"}
    elif endpoint.form is not None:
        reference = {"$ref": f"#/components/schemas/{endpoint.form.__name__}"}
        media = "multipart/form-data" if endpoint.form is Transcription else "application/json"
        found["requestBody"] = {"required": True, "content": {media: {"schema": reference}}}
    return found


class Row(NamedTuple):
    """A field of a form, for people.

    Attributes:
        name, state: of the field: "built", "alias", "harmless" or "refused".
        values: its type and bounds.
        default: its default, as JSON; empty: it has none.
        about: its meaning.
    """

    name: str
    state: str
    values: str
    default: str
    about: str


def rows(form: type[Struct]) -> list[Row]:
    """The built fields of a form."""
    parts = _parts()
    found = []
    for field in msgspec.structs.fields(form):
        schema = parts[form.__name__]["properties"][field.encode_name]
        default = "" if "default" not in schema else msgspec.json.encode(schema["default"]).decode()
        found.append(
            Row(field.encode_name, "built", _values(schema), default, schema.get("description", ""))
        )
    return found


def _values(schema: dict[str, Any]) -> str:
    """The type and bounds of a value, in words."""
    if "$ref" in schema:
        return "object"
    if "anyOf" in schema:
        kinds = [x for x in map(_values, schema["anyOf"]) if x]
        return " or ".join(dict.fromkeys(kinds))
    if "enum" in schema:
        return ", ".join(msgspec.json.encode(x).decode() for x in schema["enum"])
    if "const" in schema:
        return msgspec.json.encode(schema["const"]).decode()
    given: str = schema.get("type", "any")
    kind: str = KINDS.get(given, given)
    low, high = schema.get("minimum"), schema.get("maximum")
    if "exclusiveMinimum" in schema:
        kind += f" above {schema['exclusiveMinimum']:g}"
    if low is not None and high is not None and high < 1 << 30:
        return f"{kind}, {low:g} to {high:g}"
    return f"{kind}, at least {low:g}" if low is not None else kind


def table() -> str:
    """The table of all fields, for docs/serve.md."""
    lines = ["| field | state | values | meaning |", "| --- | --- | --- | --- |"]
    seen: dict[str, None] = {}
    for form in FORMS:
        for row in rows(form):
            if row.name in seen:
                continue
            seen[row.name] = None
            default = f"; default {row.default}" if row.default not in ("", "null") else ""
            lines.append(f"| `{row.name}` | built | {_cell(row.values + default)} | "
                         f"{_cell(row.about)} |")  # fmt: skip
    for name, targets in ALIASES.items():
        if name not in seen:
            told = " or ".join(f"`{x}`" for x in targets)
            lines.append(f"| `{name}` | alias |  | another name of {told} |")
    for other in OTHERS:
        names = ", ".join(f"`{x}`" for x in other.names)
        neutral = ", ".join(msgspec.json.encode(x).decode() for x in other.neutral or ())
        what = "" if not neutral else f"only {neutral}"
        lines.append(f"| {names} | {other.state} | {_cell(what)} | {_cell(other.why)} |")
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def documentation(endpoints: Sequence[Endpoint]) -> str:
    """A page that shows the routes and the fields; no script, no foreign hosts."""
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8><title>aggml: routes and fields</title>",
        "<meta name=viewport content='width=device-width'><link rel=stylesheet href=/page.css>",
        "<body class=docs><h1>Routes and fields</h1><p><a href=/openapi.json>openapi.json</a></p>",
    ]
    for endpoint in endpoints:
        names = ", ".join(html.escape(x) for x in (endpoint.path, *endpoint.aliases))
        parts.append(f"<h2><code>{endpoint.method} {names}</code></h2>")
        parts.append(f"<p>{html.escape(endpoint.about)}</p>")
        if endpoint.form is None:
            continue
        parts.append("<table><tr><th>field<th>values<th>default<th>meaning</tr>")
        for row in rows(endpoint.form):
            cells = [row.name, row.values, row.default, row.about]
            parts.append("<tr>" + "".join(f"<td>{html.escape(x)}" for x in cells) + "</tr>")
        parts.append("</table>")
    parts.append("<h2>Fields that are not built</h2><table><tr><th>field<th>state<th>why</tr>")
    for other in OTHERS:
        cells = [", ".join(other.names), other.state, other.why]
        parts.append("<tr>" + "".join(f"<td>{html.escape(x)}" for x in cells) + "</tr>")
    parts.append("</table></body></html>")
    return "\n".join(parts)


if __name__ == "__main__":  # writes the table of docs/serve.md
    from pathlib import Path

    path: Path = Path(__file__).parents[3] / "docs" / "serve.md"
    text: str = path.read_text()
    begin: int = text.index("| field | state |")
    path.write_text(text[:begin] + table() + text[text.index("\n\n", begin) + 1 :])
