"""Bounded: jinja2's sandbox, in which also the time and the size of values are limited.

A template comes from a model file. The sandbox keeps it from leaving; this keeps it from running
for ever, and from taking all memory. Here: the limits, and where the code of a template is checked.
Not here: what templates get and give (template.py). Importing this module imports jinja2.
"""

from __future__ import annotations

import ast
import re
import time
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import TYPE_CHECKING, Any, Final

from jinja2 import pass_context
from jinja2.runtime import Context, markup_join, str_join
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import CodeType

    from jinja2 import Template

__all__ = ["Bounded", "TooMuchError", "limits"]

SECONDS: Final = 2.0  # of the processor; trained templates take 0.1 to 10 ms
LARGEST: Final = 1 << 24  # characters or elements of one value
PRODUCED: Final = 1 << 30  # characters and elements of all values that were made
EACH: Final = 256  # steps between two looks at the clock, which takes 0.3 us
BITS: Final = 1 << 16  # of a whole number
ELEMENTS: Final = 1 << 18  # that a value contains when it becomes text, or is compared
DEPTH: Final = 200  # of such a value

# Methods and filters whose result may be far longer than their arguments: they take a width.
WIDE: Final = frozenset(
    {"center", "ljust", "rjust", "zfill", "expandtabs", "indent", "batch", "slice", "wordwrap",
     "truncate", "tojson"}
)  # fmt: skip
# Filters that walk through all that a value contains: the same list in it twice counts twice.
DEEP: Final = frozenset(
    {"string", "tojson", "pprint", "sort", "unique", "groupby", "min", "max", "join", "urlencode",
     "xmlattr", "dictsort", "format", "escape", "e", "forceescape", "upper", "lower", "sum",
     "replace"}
)  # fmt: skip


class TooMuchError(Exception):
    """A template takes too long, or makes a value that is too large."""


class _Budget:
    """What one rendering may still take."""

    def __init__(self) -> None:
        self._until = time.thread_time() + SECONDS
        self._steps = 0
        self._produced = 0

    def step(self) -> None:
        """Count a turn of a loop, a call, or an element that is looked at."""
        self._steps += 1
        if self._steps % EACH == 0 and time.thread_time() > self._until:
            raise TooMuchError(f"it takes more than {SECONDS:g} seconds")

    def produce(self, n: int) -> None:
        """Count ``n`` characters or elements of a value that is about to be made."""
        self._produced += n
        if n > LARGEST:
            raise TooMuchError(f"it makes a value of {n} characters, at most {LARGEST} are allowed")
        if self._produced > PRODUCED:
            raise TooMuchError(f"it makes values of more than {PRODUCED} characters in all")
        self.step()

    def look(self, value: object) -> int:
        """Count all that a value contains, as often as it contains it; returns how much that is."""
        before = self._steps
        self._look(value, before + ELEMENTS, 0)
        return self._steps - before

    def _look(self, value: object, most: int, depth: int) -> None:
        self.step()
        if depth > DEPTH:
            raise TooMuchError("it makes values that contain each other too deeply")
        if self._steps > most:
            raise TooMuchError(f"it makes a value of more than {ELEMENTS} elements")
        if isinstance(value, Namespace):
            value = object.__getattribute__(value, "_Namespace__attrs")
        if isinstance(value, dict):
            for key, held in value.items():
                self._look(key, most, depth + 1)
                self._look(held, most, depth + 1)
        elif isinstance(value, list | tuple | set | frozenset):
            for held in value:
                self._look(held, most, depth + 1)


_budgets: ContextVar[_Budget] = ContextVar("budget")


@contextmanager
def limits() -> Iterator[None]:
    """Limit all templates that are rendered, or read, in the block, together."""
    token = _budgets.set(_Budget())
    try:
        yield
    finally:
        _budgets.reset(token)


def _budget() -> _Budget:
    return _budgets.get()


def _length(value: object) -> int:
    return len(value) if isinstance(value, str | bytes | list | tuple | dict) else 1


def _concat(parts: Iterable[str]) -> str:
    """The pieces of an output in one text."""
    budget, found, n = _budget(), [], 0
    for part in parts:
        n += len(part)
        if n > LARGEST:
            break
        budget.step()
        found.append(part)
    budget.produce(n)
    return "".join(found)


def _widths(form: str) -> int:
    """The sum of all numbers in a format."""
    return sum(int(x) if len(x) < 9 else LARGEST + 1 for x in re.findall("[0-9]+", form))


def _weigh(name: str, args: list[Any], named: dict[str, Any], held: int = 1) -> None:
    """Refuse a call of a method or filter whose result would be too large.

    Args:
        name: of the method or filter.
        args: its arguments; the first is the value that it is called on.
        named: its arguments by name.
        held: how much the first argument contains.
    """
    budget = _budget()
    budget.step()
    given = [*args, *named.values()]
    if name in WIDE:
        width = max((abs(x) for x in given if isinstance(x, int)), default=0)
        width = max(width, *(len(x) for x in given[1:] if isinstance(x, str)), 0)
        lines = held
        if isinstance(args[0], str):
            lines += sum(args[0].count(x) for x in "\n\t") + args[0].count(" ") * (
                name == "wordwrap"
            )
        budget.produce(_length(args[0]) + lines * width)
    elif name == "replace" and len(args) > 2 and isinstance(args[0], str):
        old, new = str(args[1]), str(args[2])
        budget.produce(len(args[0]) + args[0].count(old) * len(new))
    elif name in ("format", "format_map") and isinstance(args[0], str):
        more = 0
        if "*" in args[0] or "{" in args[0].replace("{", "", 1):
            more = sum(abs(x) for x in given if isinstance(x, int))
        budget.produce(_widths(args[0]) + more)
    elif name == "join":
        separator, items = (args[0], args[1:2]) if isinstance(args[0], str) else ("", args[:1])
        separator = next((x for x in given[1:] if isinstance(x, str)), separator)
        for held in items:
            if isinstance(held, list | tuple):
                budget.produce(sum(_length(x) for x in held) + len(held) * len(separator))
    elif name == "translate" and len(args) > 1 and isinstance(args[1], dict):
        longest = max((_length(x) for x in args[1].values()), default=0)
        budget.produce(len(args[0]) * max(1, longest))
    elif name == "to_bytes":
        budget.produce(max((abs(x) for x in given[1:] if isinstance(x, int)), default=0))
    elif name == "sum" and isinstance(args[0], list | tuple):
        budget.produce(sum(_length(x) for x in args[0]))


def _guard(name: str, does: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that is refused if it would make too large a value.

    A filter that takes the context is not computed when the template is read, but when it runs.
    """
    passes = str(getattr(does, "jinja_pass_arg", ""))

    @pass_context
    @wraps(does)
    def call(context: Context, value: object = "", *args: object, **named: object) -> object:
        if name in ("join", "sum") and not isinstance(value, str | list | tuple | dict):
            value = _to_list(value)
        held = 1
        if name in DEEP:
            held = sum(_budget().look(given) for given in (value, *args, *named.values()))
        _weigh(name, [value, *args], named, held)
        before: tuple[object, ...] = ()
        if "eval_context" in passes:
            before = (context.eval_ctx,)
        elif "environment" in passes:
            before = (context.environment,)
        elif "context" in passes:
            before = (context,)
        found = does(*before, value, *args, **named)
        _budget().produce(_length(found))
        return found

    return call


def _to_list(value: Any) -> list[Any]:  # noqa: ANN401 what a template iterates over
    found = []
    for x in value:
        _budget().step()
        found.append(x)
    return found


class _Checks(ast.NodeTransformer):
    """Adds a check to each loop, function and comparison of a template's code."""

    def _step(self) -> ast.stmt:
        return ast.parse("environment.step()").body[0]

    def visit_For(self, node: ast.For) -> ast.For:
        self.generic_visit(node)
        node.body.insert(0, self._step())
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        self.generic_visit(node)
        if node.name != "root" and not node.name.startswith("block_"):
            node.body.insert(0, self._step())
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.Compare:
        self.generic_visit(node)
        if all(isinstance(x, ast.Is | ast.IsNot) for x in node.ops):
            return node
        look = ast.Attribute(ast.Name("environment", ast.Load()), "look", ast.Load())
        sides: list[ast.expr] = [
            x if isinstance(x, ast.Constant | ast.Name) and not _user(x)
            else ast.Call(look, [x], [])
            for x in (node.left, *node.comparators)
        ]  # fmt: skip
        node.left, node.comparators = sides[0], sides[1:]
        return node


def _user(node: ast.expr) -> bool:
    """Whether a name is one of the template's; jinja2's own begin otherwise."""
    return isinstance(node, ast.Name) and node.id.startswith("l_")


class Bounded(ImmutableSandboxedEnvironment):
    """A sandbox whose templates are rendered within `limits`."""

    intercepted_binops: frozenset[str] = frozenset({"+", "*", "**", "%"})
    concat: Any = staticmethod(_concat)

    def __init__(self, **options: Any) -> None:  # noqa: ANN401 jinja2's
        super().__init__(finalize=_check_text, **options)
        del self.globals["lipsum"]
        self.filters: dict[str, Callable[..., Any]] = {
            name: _guard(name, does) for name, does in self.filters.items()
        }

    def add_filter(self, name: str, does: Callable[..., Any]) -> None:
        """Add a filter, with its limits."""
        self.filters[name] = _guard(name, does)

    @staticmethod
    def step() -> None:
        """Count a step of a template."""
        _budget().step()

    @staticmethod
    def look(value: object) -> object:
        """Count what a value contains, and return it."""
        if isinstance(value, list | tuple | dict | Namespace):
            _budget().look(value)
        return value

    def _compile(self, source: str, filename: str) -> CodeType:
        tree = ast.fix_missing_locations(_Checks().visit(ast.parse(source, filename)))
        return compile(tree, filename, "exec")

    def read(self, source: str) -> Template:
        """The template with this source.

        Raises:
            TooMuchError: reading it takes too much.
            Exception: of any class: it is no jinja2.
        """
        with limits():
            found = self.from_string(source)
        # `~` is no operator that a sandbox can intercept.
        names = found.root_render_func.__globals__
        for name, does in (("str_join", str_join), ("markup_join", markup_join)):
            names[name] = _limit_join(does)
        return found

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:  # noqa: ANN401
        """Compute ``left operator right``, unless the result is too large."""
        budget = _budget()
        if operator == "**":
            if isinstance(left, int) and isinstance(right, int) and right > 0:
                bits = left.bit_length() * right
                if bits > BITS:
                    raise TooMuchError(f"it makes a number of {bits} bits")
        elif operator == "%" and isinstance(left, str):
            budget.look(right)
            _weigh("format", [left, *(right if isinstance(right, tuple) else (right,))], {})
        elif operator == "*":
            for many, times in ((left, right), (right, left)):
                if isinstance(many, str | bytes | list | tuple) and isinstance(times, int):
                    budget.produce(len(many) * max(0, times))
            if isinstance(left, int) and isinstance(right, int):
                bits = left.bit_length() + right.bit_length()
                if bits > BITS:
                    raise TooMuchError(f"it makes a number of {bits} bits")
        elif operator == "+":
            budget.produce(_length(left) + _length(right))
        return super().call_binop(context, operator, left, right)

    def call(self, context: Context, obj: Any, *args: Any, **named: Any) -> Any:  # noqa: ANN401
        """Call a function or method of a template, unless it would make too large a value."""
        # The sandbox wraps the method `format` of texts.
        owner = getattr(getattr(obj, "__wrapped__", obj), "__self__", None)
        name = getattr(obj, "__name__", "")
        if isinstance(owner, str | bytes | int):
            if name == "join" and args and not isinstance(args[0], str | list | tuple | dict):
                args = (_to_list(args[0]), *args[1:])
            more = {key: value for key, value in named.items() if not key.startswith("_")}
            for given in (*args, *more.values()):
                _budget().look(given)
            _weigh(name, [owner, *args], more)
        else:
            _budget().step()
        found = super().call(context, obj, *args, **named)
        _budget().produce(_length(found))
        return found


def _limit_join(does: Callable[[Iterable[Any]], str]) -> Callable[[Iterable[Any]], str]:
    """The operator ``~`` for texts that are not too long together."""

    def join(parts: Iterable[Any]) -> str:
        given, budget = tuple(parts), _budget()
        for part in given:
            budget.look(part)
        budget.produce(sum(map(_length, given)))
        found = does(given)
        budget.produce(len(found))
        return found

    return join


def _check_text(value: object) -> object:
    """A value that is about to become text."""
    if not isinstance(value, str):
        _budget().look(value)
    return value
