"""The page at / in a real browser: a chat that streams, tools and their results, both widths.

A picture of each state is kept if AGGML_PICTURES names a folder. Not here: what the page may load
(test_operating.py).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from serve.browser import browsing
from serve.support import started

from aggml.models.small import write_small

if TYPE_CHECKING:
    from collections.abc import Iterator

    from serve.browser import Browser

TOOLS = (
    '[{"type":"function","function":{"name":"look","parameters":{"type":"object","properties":'
    '{"n":{"type":"integer","minimum":1,"maximum":9}},"required":["n"]}}}]'
)
# A model of random weights calls nothing if it need not.
REQUIRE = """(() => { const real = window.fetch; window.fetch = (url, options) => {
  const body = options?.body && JSON.parse(options.body);
  if (body?.tools) options.body = JSON.stringify({ ...body, tool_choice: "required" });
  return real(url, options); }; })()"""
IDLE = "document.getElementById('send').hidden === false"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    file = write_small(tmp_path_factory.mktemp("models") / "small.gguf")
    more = ["--ctx", "1024", "--default", "seed=1", "--default", "parallel_tool_calls=false"]
    with started([file], "uvicorn", more=more) as (_, url):
        yield url


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with browsing() as found:
        yield found


def keep(browser: Browser, name: str) -> None:
    """Keep a picture, and check that nothing is wider than the window."""
    wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert browser.script(wide) == 0
    picture = browser.picture()
    assert picture.startswith(b"\x89PNG")
    if folder := os.environ.get("AGGML_PICTURES"):
        (Path(folder) / f"{name}.png").write_bytes(picture)


def write(browser: Browser, text: str, tokens: int = 12) -> None:
    browser.script(
        f"document.getElementById('tokens').value = {tokens};"
        f"document.getElementById('text').value = {text!r};"
        "document.getElementById('form').requestSubmit()"
    )


@pytest.mark.long
@pytest.mark.parametrize(("name", "width", "height"), [("desktop", 1200, 800), ("phone", 390, 760)])
def test_a_chat_streams_and_tools_are_shown(
    browser: Browser, address: str, name: str, width: int, height: int
) -> None:
    browser.said.clear()
    browser.open(f"{address}/", width, height)
    browser.until("document.getElementById('model').value === 'small'")
    browser.until("document.getElementById('figures').children.length > 0")
    assert browser.script("document.getElementById('live').open") is (name == "desktop")
    keep(browser, f"{name}-begin")
    write(browser, "hello")
    browser.until(f"{IDLE} && document.querySelector('.assistant .text')")
    told = browser.script("document.querySelector('.assistant').title")
    assert told.endswith(" 12 written")
    keep(browser, f"{name}-answer")

    browser.script(REQUIRE)
    browser.script(f"document.getElementById('tools').value = {TOOLS!r}")
    write(browser, "look", tokens=100)
    browser.until("document.querySelector('.result input')")
    assert browser.script("document.querySelector('.call').textContent").startswith('look({"n": ')
    keep(browser, f"{name}-call")
    browser.script("document.getElementById('tools').value = ''")
    browser.script(
        "document.querySelector('.result input').value = 'seen';"
        "document.querySelector('.result button').click()"
    )
    browser.until(f"{IDLE} && document.querySelectorAll('.assistant').length === 3")
    roles = browser.script("messages.map((x) => x.role).join(' ')")
    assert roles == "user assistant user assistant tool assistant"
    assert browser.script("document.querySelectorAll('.error').length") == 0
    keep(browser, f"{name}-result")
    assert not [x for x in browser.said if '"level": "error"' in x or "exception" in x]


@pytest.mark.long
def test_code_between_fences_is_set_apart_and_a_stopped_answer_stays(
    browser: Browser, address: str
) -> None:
    browser.open(f"{address}/", 1200, 800)
    browser.until("document.getElementById('model').value === 'small'")
    text = "see:\\n```python\\nx = 1\\n```\\ndone <b>"
    shown = f'(() => {{ const box = show("assistant", ""); write(box, "{text}"); return box; }})()'
    assert browser.script(f"{shown}.querySelector('pre').textContent") == "x = 1\n"
    assert browser.script(f"{shown}.querySelector('b') === null")
    browser.script("document.getElementById('clear').click()")
    write(browser, "hello", tokens=900)
    browser.until("messages.length === 2 && messages[1].content.length > 0")
    browser.script("document.getElementById('stop').click()")
    browser.until(IDLE)
    assert browser.script("messages.length") == 2
    assert browser.script("document.querySelectorAll('.error').length") == 0
