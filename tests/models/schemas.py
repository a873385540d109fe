"""JSON schemas of many shapes, for tests of answers that must match one. No tests here."""
# ruff: noqa: RUF001 - texts in other letters are what is tested

from __future__ import annotations

from typing import Any, Final

TREE: Final = {
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "value": {"type": "integer", "minimum": 0, "maximum": 9},
                "children": {
                    "type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 2,
                },
            },
            "required": ["value", "children"],
            "additionalProperties": False,
        }
    },
    "$ref": "#/$defs/node",
}  # fmt: skip


def an_object(properties: dict[str, Any], required: list[str] | None = None) -> dict[str, Any]:
    """An object with these properties and no others."""
    names = list(properties) if required is None else required
    return {"type": "object", "properties": properties, "required": names,
            "additionalProperties": False}  # fmt: skip


SHORT: Final = {"type": "string", "maxLength": 8}

SCHEMAS: Final[dict[str, Any]] = {
    "anything": {},
    "true": True,
    "null": {"type": "null"},
    "boolean": {"type": "boolean"},
    "integer": {"type": "integer"},
    "number": {"type": "number"},
    "string": {"type": "string"},
    "a short string": SHORT,
    "no short string": {"type": "string", "minLength": 3, "maxLength": 5},
    "integer with bounds": {"type": "integer", "minimum": -7, "maximum": 112},
    "integer above": {"type": "integer", "exclusiveMinimum": 99, "maximum": 1000},
    "number with bounds": {"type": "number", "minimum": -1.5, "maximum": 2.25},
    "number below": {"type": "number", "exclusiveMaximum": 0, "minimum": -10},
    "multiple": {"type": "integer", "multipleOf": 7, "minimum": 0, "maximum": 1000},
    "several types": {"type": ["integer", "null", "boolean"]},
    "enum": {"enum": ["red", "green", 3, None, {"a": 1}]},
    "enum of unicode": {"enum": ["größe", "日本", "😀", 'a"b\\c', "line\nfeed"]},
    "const": {"const": {"kind": "é", "n": [1, 2.5]}},
    "pattern": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"},
    "pattern inside": {"type": "string", "pattern": "ab+c", "maxLength": 12},
    "pattern with classes": {"type": "string", "pattern": r"^[\d.]{1,3}-\d\w\w$"},
    "pattern of unicode": {"type": "string", "pattern": "^[α-ω]{1,4}$"},
    "pattern with quotes": {"type": "string", "pattern": '^"[\\\\/]"$'},
    "date": {"type": "string", "format": "date"},
    "time": {"type": "string", "format": "date-time"},
    "uuid": {"type": "string", "format": "uuid"},
    "email": {"type": "string", "format": "email", "maxLength": 40},
    "list": {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 4},
    "list of anything": {"type": "array", "maxItems": 3},
    "tuple": {
        "type": "array", "prefixItems": [{"type": "integer"}, SHORT], "items": False,
        "minItems": 2,
    },
    "object": an_object({"name": SHORT, "age": {"type": "integer", "minimum": 0, "maximum": 150}}),
    "optional property": an_object({"a": SHORT, "b": {"type": "boolean"}}, ["b"]),
    "names of unicode": an_object({"größe": {"type": "boolean"}, "日": {"type": "null"}}),
    "names with quotes": an_object({'a"b': {"type": "null"}, "c\\d": {"type": "null"}}),
    "further properties": {
        "type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"],
        "additionalProperties": {"type": "boolean"}, "maxProperties": 3,
    },
    "properties by pattern": {
        "type": "object", "patternProperties": {"^x[a-z]$": {"type": "integer"}},
        "additionalProperties": False,
    },
    "nested": an_object({"a": an_object({"b": an_object({"c": {"type": "array", "items": SHORT,
                                                               "maxItems": 2}})})}),
    "anyOf": {"anyOf": [{"type": "integer"}, SHORT, an_object({"x": {"type": "null"}})]},
    "anyOf with null": an_object({"a": {"anyOf": [SHORT, {"type": "null"}]}}),
    "oneOf": {"oneOf": [an_object({"kind": {"const": "a"}, "n": {"type": "integer"}}),
                        an_object({"kind": {"const": "b"}, "s": SHORT})]},
    "allOf": {"allOf": [
        {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
        {"properties": {"b": {"type": "boolean"}}, "required": ["b"]}],
        "maxProperties": 2},
    "ref": {"$defs": {"short": SHORT}, **an_object({"a": {"$ref": "#/$defs/short"},
                                                    "b": {"$ref": "#/$defs/short"}})},
    "definitions": {"definitions": {"n": {"type": "integer", "maximum": 5, "minimum": 1}},
                    "type": "array", "items": {"$ref": "#/definitions/n"}, "maxItems": 3},
    "recursion": TREE,
    "recursion of a list": {"$defs": {"list": an_object({"head": {"type": "integer"}, "tail": {
        "anyOf": [{"type": "null"}, {"$ref": "#/$defs/list"}]}})}, "$ref": "#/$defs/list"},
    "ref of unicode": {"$defs": {"Größe 1": an_object({"a": SHORT})},
                       "type": "array", "items": {"$ref": "#/$defs/Größe 1"}, "maxItems": 2},
    "property named default": an_object({"default": {"type": "string", "pattern": r"^\d{2}$"}}),
    "comments": {"title": "T", "description": "d", "default": 1, "examples": [2],
                 "type": "integer", "$schema": "https://json-schema.org/draft/2020-12/schema"},
}  # fmt: skip

#: Schemas that cannot be served, each with what the error names.
REFUSED: Final[dict[str, tuple[Any, str]]] = {
    "not": ({"not": {"type": "null"}}, r"schema\.not "),
    "if": (an_object({"a": {"if": {}, "then": {}}}), r"schema\.properties\.a\.if "),
    "uniqueItems": ({"type": "array", "uniqueItems": True}, r"schema\.uniqueItems "),
    "contains": ({"type": "array", "items": {"contains": {}}}, r"schema\.items\.contains "),
    "lookahead": (
        an_object({"a": {"type": "string", "pattern": "^x"}, "b": {"type": "string",
                                                                   "pattern": "(?=a)b"}}),
        r"schema\.properties\.b\.pattern .*look-around",
    ),
    "format": ({"type": "string", "format": "of my own"}, r"schema\.format .*of my own"),
    "oneOf": ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, r"schema\.oneOf "),
    "type": ({"type": "text"}, r"schema\.type .*text"),
    "ref": ({"$ref": "#/$defs/none"}, r"schema\.\$ref .*none"),
    "remote": ({"$ref": "http://localhost/x"}, r"schema\.\$ref "),
    "bounds": ({"type": "integer", "minimum": 5, "maximum": 2}, r"schema\.minimum "),
    "format beside patterns": (
        an_object({"a": {"type": "string", "pattern": "^x"},
                   "b": {"type": "string", "format": "regex"}}),
        r"schema\.properties\.b\.format .*regex",
    ),
    "no choice": (an_object({"a": {"enum": []}}), r"schema\.properties\.a\.enum "),
    "two types": ({"anyOf": [{"type": "string", "const": 1}]}, r"schema\.anyOf\[0\]\.const "),
    "beyond numbers": ({"items": {"type": "number", "minimum": 1e20, "maximum": 1e21}},
                       r"schema\.items\.minimum "),
    "properties beside bounds": (
        an_object({"a": {"type": "object", "properties": {"b": {}}, "maxProperties": 1}}),
        r"schema\.properties\.a\.maxProperties ",
    ),
    "itself": ({"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
               r"schema\.\$ref cannot be served: no answer can begin"),
    "endless": ({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
                "the grammar cannot go on after 1 tokens: it never ends"),
    "nothing": (False, "schema is false"),
    "text": ("{", "schema is no JSON"),
    "number": (5, r"schema is 5 \(int\), expected a JSON schema"),
    "list": ([], "schema is"),
}  # fmt: skip

_DRAFT_7: Final = {"$schema": "http://json-schema.org/draft-07/schema#"}
_A: Final = {"properties": {"a": {"type": "integer"}}}

#: Each keyword of JSON Schema that restricts values, alone and beside others: a schema, and a value
#: that it does not allow. Formats are not here.
RESTRICTING: Final[dict[str, tuple[dict[str, Any], Any]]] = {
    "type": ({"type": ["integer", "null"]}, "a"),
    "enum": ({"enum": [1, "a"]}, 2),
    "enum beside type": ({"enum": [1, "a"], "type": "string"}, 1),
    "const": ({"const": {"a": 1}}, {"a": 2}),
    "const beside enum": ({"enum": [1, 2], "const": 2}, 1),
    "multipleOf": ({"type": "integer", "multipleOf": 7}, 8),
    "multipleOf of a fraction": ({"type": "number", "multipleOf": 0.5}, 0.3),
    "minimum": ({"minimum": 5}, 4),
    "maximum": ({"maximum": 5}, 6),
    "exclusiveMinimum": ({"exclusiveMinimum": 5}, 5),
    "exclusiveMaximum": ({"exclusiveMaximum": 5}, 5),
    "minLength": ({"minLength": 2}, "\U0001f600"),
    "maxLength": ({"maxLength": 1}, "ab"),
    "pattern": ({"pattern": "^a$"}, "b"),
    "minItems": ({"minItems": 2}, [1]),
    "maxItems": ({"maxItems": 1}, [1, 2]),
    "items": ({"items": {"type": "null"}}, [1]),
    "items that are false": ({"type": "array", "prefixItems": [{}], "items": False}, [1, 2]),
    "prefixItems": ({"prefixItems": [{"type": "null"}]}, [1]),
    "items of draft 7": (_DRAFT_7 | {"items": [{"type": "null"}]}, [1]),
    "additionalItems": (_DRAFT_7 | {"items": [{}], "additionalItems": False}, [1, 2]),
    "uniqueItems": ({"uniqueItems": True}, [1, 1]),
    "contains": ({"contains": {"const": 7}}, [1]),
    "minContains": ({"contains": {"const": 7}, "minContains": 2}, [7]),
    "maxContains": ({"contains": {"const": 7}, "maxContains": 1}, [7, 7]),
    "unevaluatedItems": ({"prefixItems": [{}], "unevaluatedItems": False}, [1, 2]),
    "properties": (_A, {"a": "x"}),
    "required": ({"required": ["a"]}, {"b": 1}),
    "additionalProperties": (_A | {"additionalProperties": False}, {"b": 1}),
    "patternProperties": ({"patternProperties": {"^a": {"type": "null"}}}, {"ab": 1}),
    "propertyNames": ({"propertyNames": {"maxLength": 1}}, {"ab": 1}),
    "minProperties": ({"minProperties": 2}, {"a": 1}),
    "maxProperties": ({"maxProperties": 0}, {"a": 1}),
    "dependentRequired": ({"dependentRequired": {"a": ["b"]}}, {"a": 1}),
    "dependentSchemas": ({"dependentSchemas": {"a": {"required": ["b"]}}}, {"a": 1}),
    "dependencies": (_DRAFT_7 | {"dependencies": {"a": ["b"]}}, {"a": 1}),
    "unevaluatedProperties": (_A | {"unevaluatedProperties": False}, {"b": 1}),
    "anyOf": ({"anyOf": [{"type": "null"}, {"const": 1}]}, 2),
    "anyOf beside a type": ({"type": "integer", "anyOf": [{"minimum": 3}, {"maximum": -3}]}, 0),
    "anyOf beside properties": (_A | {"anyOf": [{"required": ["a"]}, {"required": ["b"]}]}, {}),
    "oneOf": ({"oneOf": [{"type": "null"}, {"const": 1}]}, 2),
    "allOf": ({"allOf": [{"minimum": 1}, {"maximum": 2}]}, 3),
    "not": ({"not": {"type": "integer"}}, 1),
    "if": ({"if": {"type": "integer"}, "then": {"minimum": 5}}, 1),
    "else": ({"if": {"type": "integer"}, "else": {"type": "null"}}, "a"),
    "$ref": ({"$ref": "#/$defs/a", "$defs": {"a": {"type": "null"}}}, 1),
    "$ref beside others": ({"$ref": "#/$defs/a", "maximum": 3, "$defs": {"a": {}}}, 4),
    "$ref to an anchor": ({"$ref": "#x", "$defs": {"a": {"$anchor": "x", "type": "null"}}}, 1),
    "$dynamicRef": (
        {"$dynamicRef": "#x", "$defs": {"a": {"$dynamicAnchor": "x", "type": "null"}}}, 1,
    ),
}  # fmt: skip
