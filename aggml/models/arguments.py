"""Arguments of the public calls of models: checked at the call, and refused by name.

Here: numbers, texts, token ids, paths. Each function returns the value in the form in which it is
used. Not here: limits that depend on the context (decoder/batch.py).
"""

from __future__ import annotations

import itertools
import json
import math
import numbers
import operator
import os
import time
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from aggml import InvalidArgument
from aggml.pipeline.urgency import current_urgency
from aggml.process.foreign import fit_line

__all__ = [
    "MOST_POSITIONS", "MOST_SLOTS", "file_path", "flag", "integer", "is_text", "iterate_ids",
    "json_text", "json_value", "number", "one_text", "prompt_of", "recordings_of", "sequences_of",
    "show", "stop_ids_of", "text_list", "token_ids", "urgency_of",
]  # fmt: skip

PRIORITY = 1 << 31  # the highest
MOST_POSITIONS = 1 << 30  # of a sequence: positions are int32
MOST_SLOTS = 1 << 16
DEEPEST = 64  # levels of a value of JSON
LEAVES = frozenset({str, int, float, bool, type(None)})  # values of JSON without others in them
SHOWN = 60  # characters of a wrong value in a message


def show(value: object) -> str:
    """Show a value in a message: short, whatever it is."""
    try:
        text = repr(value)
    except Exception:
        text = "a value that cannot be shown"
    text = fit_line(text, SHOWN)
    return text if isinstance(value, str) or value is None else f"{text} ({type(value).__name__})"


def integer(
    place: str, name: str, value: Any, least: int, most: int | None = None  # noqa: ANN401
) -> int:  # fmt: skip
    """A whole number of Python or numpy within ``least`` and ``most``; True is none."""
    found: int | None = None
    if not isinstance(value, (bool, np.bool_)):
        try:
            found = operator.index(value)
        except TypeError:
            found = None
    if found is None:
        raise InvalidArgument(f"[{place}] {name} is {show(value)}, expected a whole number")
    if found < least or (most is not None and found > most):
        if most is not None:
            wanted = f"within {least} and {most}"
        else:
            wanted = "not negative" if least == 0 else f"at least {least}"
        raise InvalidArgument(f"[{place}] {name} is {_digits(found)}, must be {wanted}")
    return found


def _digits(value: int) -> str:
    """A whole number for a message; Python refuses to write those of thousands of digits."""
    return str(value) if abs(value) < 1 << 128 else show(value)


def number(
    place: str, name: str, value: Any, least: float, most: float = math.inf, *,  # noqa: ANN401
    above: bool = False,
) -> float:  # fmt: skip
    """A finite number within ``least`` and ``most``; with ``above``, greater than ``least``."""
    if type(value) not in (float, int) and (  # a question to an abstract class takes 1 us
        isinstance(value, (bool, np.bool_)) or not isinstance(value, numbers.Real)
    ):
        raise InvalidArgument(f"[{place}] {name} is {show(value)}, expected a number")
    try:
        found = float(value)
    except OverflowError:
        raise InvalidArgument(
            f"[{place}] {name} is {show(value)}, which is beyond the range of a number (float)"
        ) from None
    if not math.isfinite(found):
        raise InvalidArgument(f"[{place}] {name} is {found}, expected a finite number")
    if found < least or found > most or (above and found == least):
        if most < math.inf:
            begin = f"above {least:g} and at most" if above else f"within {least:g} and"
            wanted = f"{begin} {most:g}"
        else:
            wanted = "not negative" if least == 0 else f"at least {least:g}"
            wanted = f"above {least:g}" if above else wanted
        raise InvalidArgument(f"[{place}] {name} is {found:g}, must be {wanted}")
    return found


def urgency_of(place: str, priority: Any, deadline: Any) -> tuple[int, float | None]:  # noqa: ANN401
    """Priority, and seconds until the deadline, of a request.

    What the caller leaves open (0, None) is that of the item on which a stage of a pipeline works
    now.
    """
    found = integer(place, "priority", priority, -PRIORITY, PRIORITY)
    seconds = None if deadline is None else number(place, "deadline", deadline, 0)
    item = current_urgency()
    if seconds is None and item.until is not None:
        seconds = max(0.0, item.until - time.monotonic())
    return found or item.priority, seconds


def iterate_ids(place: str, name: str, value: Any) -> Iterable[Any]:  # noqa: ANN401
    """Token ids that may still come: a list, an array, an iterator."""
    if isinstance(value, (str, bytes, bytearray, Mapping)) or not isinstance(value, Iterable) or (
        isinstance(value, np.ndarray) and value.ndim == 0
    ):  # fmt: skip
        raise InvalidArgument(f"[{place}] {name} is {show(value)}, expected a list of token ids")
    return value


def flag(place: str, name: str, value: Any) -> bool:  # noqa: ANN401
    """True or False."""
    if not isinstance(value, (bool, np.bool_)):
        raise InvalidArgument(f"[{place}] {name} is {show(value)}, expected True or False")
    return bool(value)


def one_text(place: str, name: str, value: Any) -> str:  # noqa: ANN401
    """A text that can be encoded as UTF-8."""
    if not isinstance(value, str):
        raise InvalidArgument(f"[{place}] {name} is {show(value)}, expected a text (str)")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgument(
            f"[{place}] {name} has a lone surrogate at character {error.start}, which is no text"
        ) from None
    return value


def is_text(value: object, *texts: str) -> bool:
    """Whether a value is one of these texts; comparing may fail for what is no text."""
    return isinstance(value, str) and value in texts


def json_text(place: str, name: str, value: Any) -> str:  # noqa: ANN401
    """A value of JSON as a text, with at most `DEEPEST` levels."""
    _check_depth(place, name, value, 0)
    try:
        text = json.dumps(_plain(value) if isinstance(value, Mapping) else value,
                          ensure_ascii=False, allow_nan=False, default=_plain)  # fmt: skip
        text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidArgument(f"[{place}] {name} cannot be written as JSON: {error}") from None
    return text


def json_value(place: str, name: str, value: Any) -> Any:  # noqa: ANN401
    """A copy of a value of JSON, made of dicts, lists, texts, numbers, True, False and None."""
    return json.loads(json_text(place, name, value))


def _plain(value: object) -> dict[Any, Any]:
    """Mappings that are no dict."""
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{show(value)} is no JSON value")


def _check_depth(place: str, name: str, value: object, depth: int) -> None:
    inner: Collection[object] = ()
    if type(value) is dict or isinstance(value, Mapping):
        inner = value.values()
    elif isinstance(value, (list, tuple)):
        inner = value
    if depth > DEEPEST or (depth == DEEPEST and inner):
        raise InvalidArgument(f"[{place}] {name} has more than {DEEPEST} levels")
    for one in inner:
        if type(one) not in LEAVES:  # a call for each text of an enum takes 1 us
            _check_depth(place, name, one, depth + 1)


def text_list(
    place: str, name: str, value: Any, what: str = "a list of texts", *, ordered: bool = True  # noqa: ANN401
) -> list[str]:  # fmt: skip
    """A list of texts. A single text is refused: its characters would become a list of texts.

    Args:
        place: the call.
        name: of the argument.
        value: as it was given.
        what: was expected.
        ordered: whether the order matters, so that a set is refused.
    """
    value = value if ordered else _list_of_set(value)
    if isinstance(value, str):
        raise InvalidArgument(
            f"[{place}] {name} is one text, {show(value)}, expected a list of texts: put brackets "
            "around it"
        )
    items = _items(place, name, value, what)
    for i, x in enumerate(items):
        if type(x) is not str or not x.isascii():  # else it is fine, and its name need not be made
            items[i] = one_text(place, f"{name}[{i}]", x)
    return items


def _list_of_set(value: Any) -> Any:  # noqa: ANN401
    """A set as a list, which is the same each time; anything else as it is."""
    return sorted(value, key=show) if isinstance(value, (set, frozenset)) else value


def _items(place: str, name: str, value: Any, what: str = "a list of texts") -> list[Any]:  # noqa: ANN401
    """The elements of a list, a tuple, an array or the like; a set has no order."""
    if type(value) is list or type(value) is tuple:  # a question to an abstract class takes 1 us
        return list(value)
    if (
        isinstance(value, (bytes, bytearray, memoryview, Mapping, set, frozenset))
        or not isinstance(value, Iterable)
        or (isinstance(value, np.ndarray) and value.ndim == 0)
    ):
        raise InvalidArgument(f"[{place}] {name} is {show(value)}, expected {what}")
    return list(value)


def token_ids(place: str, name: str, value: Any, vocabulary: int) -> list[int]:  # noqa: ANN401
    """Token ids of one sequence, each within the vocabulary."""
    if isinstance(value, str):
        raise InvalidArgument(
            f"[{place}] {name} is the text {show(value)}, expected a list of token ids: "
            "model.tokenizer.encode(text) makes one"
        )
    whole = isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype.kind in "iu"
    items = value.tolist() if whole else _items(place, name, value, "a list of token ids")
    if isinstance(value, np.ndarray) and not whole:
        raise InvalidArgument(
            f"[{place}] {name} is an array of {value.dtype} with the shape {value.shape}, expected "
            "token ids: integers in one dimension"
        )
    if not whole and {*map(type, items)} != {int}:
        for i, x in enumerate(items):
            try:
                items[i] = integer(place, f"{name}[{i}]", x, -(1 << 63))
            except InvalidArgument:
                raise InvalidArgument(
                    f"[{place}] {name}[{i}] is {show(x)}, expected a token id"
                ) from None
    if items:
        if whole:
            least, most = int(value.min()), int(value.max())
        else:
            least, most = min(items), max(items)
        if not 0 <= least <= most < vocabulary:
            raise InvalidArgument(
                f"[{place}] {name}: token ids are 0 to {vocabulary - 1}, "
                f"given were {_digits(least)} to {_digits(most)}"
            )
    return items


def sequences_of(place: str, name: str, value: Any, vocabulary: int) -> list[list[int]]:  # noqa: ANN401
    """A list of sequences of token ids, of which none is empty."""
    if isinstance(value, str):
        token_ids(place, name, value, vocabulary)  # raises
    items = _items(place, name, value, "a list of lists of token ids")
    # 3,000 sequences checked one by one hold up the event loop for 4.1 ms, together for 1.4.
    if all(type(x) is list and x for x in items):
        kinds = {*map(type, itertools.chain.from_iterable(items))}
        if kinds == {int} and min(map(min, items)) >= 0 and max(map(max, items)) < vocabulary:
            return [x.copy() for x in items]
    for i, x in enumerate(items):
        if isinstance(x, (int, np.integer)):
            raise InvalidArgument(
                f"[{place}] {name}[{i}] is {show(x)}, expected a list of token ids: for one "
                "sequence put brackets around it"
            )
    found = [token_ids(place, f"{name}[{i}]", x, vocabulary) for i, x in enumerate(items)]
    for i, ids in enumerate(found):
        if not ids:
            raise InvalidArgument(
                f"[{place}] {name}[{i}] has no tokens, there must be at least one"
            )
    return found


def prompt_of(place: str, value: Any, vocabulary: int) -> str | list[int]:  # noqa: ANN401
    """A prompt: a text, or token ids."""
    if isinstance(value, str):
        return one_text(place, "prompt", value)
    wanted = "a text or a list of token ids"
    items: Any = value
    if isinstance(value, np.ndarray) and value.ndim:
        first = value.flat[0] if value.size else None
    else:
        items = _items(place, "prompt", value, wanted)
        first = items[0] if items else None
    if isinstance(first, Mapping):
        raise InvalidArgument(
            f"[{place}] prompt is a list of messages, expected {wanted}: "
            "model.template.render(messages) makes a text of them"
        )
    if isinstance(first, str):
        raise InvalidArgument(
            f"[{place}] prompt is a list of texts, expected {wanted}: continue each in a task of "
            "its own"
        )
    return token_ids(place, "prompt", items, vocabulary)


def file_path(place: str, name: str, value: Any) -> Path:  # noqa: ANN401
    """A path; ``~`` at its beginning is the home directory."""
    try:
        given = os.fspath(value)
    except TypeError:
        given = None
    if not isinstance(given, str) or not given or "\0" in given:
        raise InvalidArgument(f"[{place}] {name} is {show(value)}, expected the path of a file")
    try:
        os.fsencode(given)
    except UnicodeEncodeError:
        raise InvalidArgument(
            f"[{place}] {name} is {show(value)}, expected the path of a file: it has a lone "
            "surrogate, which no file's name can have"
        ) from None
    try:
        return Path(given).expanduser()
    except RuntimeError as error:  # there is no such user
        raise InvalidArgument(f"[{place}] {name} is {show(value)}: {error}") from None


def stop_ids_of(place: str, value: Any, vocabulary: int) -> frozenset[int]:  # noqa: ANN401
    """Tokens that end a text; their order does not matter, so it may be a set."""
    return frozenset(token_ids(place, "stop_ids", _list_of_set(value), vocabulary))


def recordings_of(place: str, value: Any) -> list[Any]:  # noqa: ANN401
    """A list of recordings. The samples of a single one are refused."""
    items = _items(place, "recordings", value, "a list of recordings")
    if any(isinstance(x, (numbers.Number, np.generic)) for x in items):
        raise InvalidArgument(
            f"[{place}] recordings holds numbers, expected a list of recordings: for one recording "
            "put brackets around it"
        )
    return items
