"""``aggml serve --ray``, run as a command."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import httpx
import pytest
import ray_cluster  # noqa: F401 skips all of it where Ray is missing
from waiting import wait_until

from aggml.models.small import write_small

if TYPE_CHECKING:
    from pathlib import Path

PROGRAM = [sys.executable, "-m", "aggml", "serve"]


@pytest.mark.long
def test_replicas_are_a_number_or_a_range(tmp_path: Path) -> None:
    path = write_small(tmp_path / "small.gguf")
    done = subprocess.run(
        [*PROGRAM, path, "--ray", "--replicas", "few"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "'few' is neither a number nor a range MIN:MAX" in done.stderr


@pytest.mark.slow
def test_the_program_serves_on_ray_until_it_is_interrupted(tmp_path: Path) -> None:
    path = write_small(tmp_path / "small.gguf")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = {k: v for k, v in os.environ.items() if k != "RAY_ADDRESS"}
    program = subprocess.Popen(
        [*PROGRAM, path, "--ray", "--replicas", "1:2", "--port", str(port)],
        env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        names = _names(f"http://127.0.0.1:{port}/v1/models", program)
        answer = httpx.post(
            f"http://127.0.0.1:{port}/v1/completions",
            json={"model": names[0], "prompt": "a", "max_tokens": 4},
            timeout=60,
        )
        assert answer.status_code == 200, answer.text
        assert answer.json()["usage"]["completion_tokens"] == 4
    finally:
        program.send_signal(signal.SIGINT)
        assert program.wait(60) is not None


def _names(url: str, program: subprocess.Popen[bytes]) -> list[str]:
    """The names of the models, as soon as the service answers."""
    found: list[str] = []

    def answers() -> bool:
        assert program.poll() is None
        try:
            answer = httpx.get(url, timeout=60)
        except httpx.TransportError:
            return False
        if answer.status_code != 200:
            return False
        found.extend(x["id"] for x in answer.json()["data"])
        return True

    wait_until(answers, seconds=550, pause=0.4)
    return found
