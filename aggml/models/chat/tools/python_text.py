"""Calls written as in Python, ``f(a="x", n=1)``: read as a tree, and never run.

Not here: the marks around them (pythonic.py, llama.py).
"""

from __future__ import annotations

import ast
from typing import Any, Final

__all__ = ["end_of_call", "read_python_call", "read_python_calls"]

LONGEST: Final = 1 << 20
_WORDS: Final[dict[str, Any]] = {"true": True, "false": False, "null": None, "none": None}


def end_of_call(text: str, at: int) -> int | None:
    """The place after the brackets that open first; None: they are not closed yet."""
    depth, quote, i = 0, "", at
    while i < len(text):
        sign = text[i]
        if quote:
            if sign == "\\":
                i += 1
            elif sign == quote:
                quote = ""
        elif sign in "\"'":
            quote = sign
        elif sign in "([{":
            depth += 1
        elif sign in ")]}":
            depth -= 1
            if depth <= 0:
                return i + 1
        i += 1
    return None


def read_python_call(text: str) -> tuple[str, dict[str, Any]] | None:
    """The name and the arguments of one call; None: it is none."""
    found = read_python_calls(f"[{text}]")
    return found[0] if found and len(found) == 1 else None


def read_python_calls(text: str) -> list[tuple[str, dict[str, Any]]] | None:
    """The calls of a list; None: it is none, or has something else in it."""
    if len(text) > LONGEST:
        return None
    try:
        tree = ast.parse(text.strip().replace("\0", ""), mode="eval").body
        if not isinstance(tree, ast.List) or not tree.elts:
            return None
        return [_call(x) for x in tree.elts]
    except (SyntaxError, ValueError, RecursionError, MemoryError, TypeError):
        return None


def _call(node: ast.expr) -> tuple[str, dict[str, Any]]:
    if not isinstance(node, ast.Call) or node.args:
        raise ValueError("no call with named arguments")
    found = {}
    for keyword in node.keywords:
        if keyword.arg is None:
            raise ValueError("arguments without a name")
        found[keyword.arg] = _value(keyword.value)
    return ast.unparse(node.func), found


def _value(node: ast.expr) -> Any:  # noqa: ANN401 JSON
    if isinstance(node, ast.Constant):
        if node.value is None or isinstance(node.value, str | int | float):
            return node.value
    elif isinstance(node, ast.List | ast.Tuple):
        return [_value(x) for x in node.elts]
    elif isinstance(node, ast.Dict):
        keys = [None if x is None else _value(x) for x in node.keys]
        if all(isinstance(x, str) for x in keys):
            return dict(zip(keys, map(_value, node.values), strict=True))
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        number = _value(node.operand)
        if isinstance(number, int | float):
            return -number
    elif isinstance(node, ast.Name) and node.id in _WORDS:
        return _WORDS[node.id]
    raise ValueError("no value of JSON")
