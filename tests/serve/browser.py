"""A Chromium without a window, driven through a pipe: pages, what scripts answer, pictures.

Not here: the tests of the page (test_page.py).
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import pytest
from waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Browser", "browsing"]

PROGRAMS: Final = ("chromium", "chromium-browser", "google-chrome")
FLAGS: Final = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--no-first-run", "--disable-dev-shm-usage",
    "--remote-debugging-pipe",
)  # fmt: skip
PATIENCE: Final = 90.0  # seconds


class Browser:
    """One page of the browser.

    Args:
        to: file descriptor for commands.
        of: file descriptor of answers.

    Attributes:
        said: what the page wrote to its console, and errors of its scripts.
    """

    def __init__(self, to: int, of: int) -> None:
        self._to, self._of = to, of
        self._rest = b""
        self._last = 0
        self._session: str | None = None
        self.said: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        found = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = found["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command, and give its answer."""
        self._last += 1
        message: dict[str, Any] = {"id": self._last, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._last:
                assert "error" not in answer, answer["error"]
                found: dict[str, Any] = answer["result"]
                return found
            kind = answer.get("method")
            if kind in ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded"):
                self.said.append(json.dumps(answer["params"]))

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            more = os.read(self._of, 1 << 16)
            assert more, "the browser has ended"
            self._rest += more
        line, _, self._rest = self._rest.partition(b"\0")
        found: dict[str, Any] = json.loads(line)
        return found

    def script(self, text: str) -> Any:
        """The value of an expression of JavaScript, in the page."""
        found = self.call(
            "Runtime.evaluate", expression=text, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def until(self, text: str) -> None:
        """Wait until an expression is true."""
        try:
            wait_until(lambda: self.script(f"!!({text})"), PATIENCE, pause=0.05)
        except TimeoutError:
            shown = self.script("document.body?.innerText")
            raise AssertionError(f"{text} stays false: {shown}") from None

    def open(self, address: str, width: int, height: int) -> None:
        """Show a page in a window of that size."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1,
            mobile=width < 600,
        )  # fmt: skip
        self.call("Page.navigate", url=address)
        self.until(f"document.readyState === 'complete' && location.href.startsWith('{address}')")

    def picture(self) -> bytes:
        """What the window shows, as PNG."""
        return base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])


@contextmanager
def browsing() -> Iterator[Browser]:
    """A browser with a folder of its own; skips the test if none is installed."""
    program = next((x for x in map(shutil.which, PROGRAMS) if x), None)
    if program is None:
        pytest.skip("chromium is not installed")
    folder = tempfile.mkdtemp(prefix="browser")
    commands, to = os.pipe()
    of, answers = os.pipe()
    # The browser reads commands from descriptor 3 and writes answers to 4.
    shell = f'exec "$0" "$@" 3<&{commands} 4>&{answers}'
    process = subprocess.Popen(
        ["bash", "-c", shell, program, *FLAGS, f"--user-data-dir={folder}", "about:blank"],
        pass_fds=(commands, answers), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip
    os.close(commands)
    os.close(answers)
    try:
        yield Browser(to, of)
    finally:
        process.kill()
        process.wait()
        os.close(to)
        os.close(of)
        shutil.rmtree(folder, ignore_errors=True)
