"""docs/ggml-api.md has a row for each public function of ggml's headers, and each row is true.

The names come from tests/docs/ggml_functions.json, which tools/ggml_api.py makes of the headers.
Not here: the 248 features of the backend interface (tests/package/test_features.py).
"""

from __future__ import annotations

import importlib
import sys
from collections import Counter
from typing import Any

import pytest
from docs.pages import ROOT, text_of

sys.path.insert(0, str(ROOT / "tools"))
ggml_api: Any = importlib.import_module("ggml_api")

PAGE = text_of("docs/ggml-api.md")
NAMES: dict[str, list[str]] = ggml_api.recorded()


def test_no_function_is_missing_and_each_counterpart_exists() -> None:
    assert ggml_api.faults(PAGE, NAMES) == []


def test_the_names_are_those_of_all_headers() -> None:
    assert list(NAMES) == list(ggml_api.HEADERS)
    assert sum(map(len, NAMES.values())) == 761
    listed = [name for names in NAMES.values() for name in names]
    assert [name for name, n in Counter(listed).items() if n > 1] == []
    assert {"ggml_add", "ggml_opt_fit", "gguf_init_empty", "ggml_backend_sched_new"} <= {*listed}


def test_every_row_of_the_page_is_of_a_function_that_there_is_or_was() -> None:
    listed = {name for names in NAMES.values() for name in names}
    features, functions = PAGE.split("## Functions of the headers")
    assert ggml_api.rows(functions).keys() <= listed
    assert ggml_api.rows(features).keys() & listed


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        ("", "ggml_add has no row"),
        ("| `ggml_add` | `aggml.ops.plus` | nothing |", "aggml.ops.plus does not exist"),
        ("| `ggml_add` | aggml.ops.add | nothing |", "no name in backquotes"),
        ("| `ggml_add` | none: | nothing |", "no reason"),
        ("| `ggml_add` | `aggml.ops.add` |  |", "the last column is empty"),
    ],
)
def test_a_row_that_is_wrong_is_found(row: str, fault: str) -> None:
    (found,) = ggml_api.faults(row, {"ggml.h": ["ggml_add"]})
    assert fault in found


@pytest.mark.parametrize(
    "row",
    [
        "| `ggml_add` | `aggml.ops.add` | nothing |",
        "| `ggml_add` | none: numpy adds | nothing |",
        "| `ggml_add` | `aggml.Tensor.ne` | a field |",
        "| BE-01 | `ggml_add` | `aggml.ops.add` | nothing |",
    ],
)
def test_a_row_that_is_right_passes(row: str) -> None:
    assert ggml_api.faults(row, {"ggml.h": ["ggml_add"]}) == []


def test_functions_are_found_in_a_header() -> None:
    header = """
    #define GGML_API extern  // GGML_API int ggml_no(void);
    /* GGML_API int ggml_not_this(void); */
    GGML_API struct ggml_tensor * ggml_add(
            struct ggml_context * ctx,
            struct ggml_tensor  * a);
    GGML_API const char * ggml_name(int a); // GGML_API int ggml_nor_this(void);
    GGML_BACKEND_API void ggml_backend_x(void (*f)(int));
    GGML_DEPRECATED(GGML_API bool ggml_old(int a), "use another");
    GGML_NORETURN GGML_ATTRIBUTE_FORMAT(3, 4) GGML_API void gguf_stop(int x);
    typedef void (*ggml_callback)(int);
    """
    assert ggml_api.functions(header) == [
        "ggml_add",
        "ggml_name",
        "ggml_backend_x",
        "ggml_old",
        "gguf_stop",
    ]
