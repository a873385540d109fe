"""The client of docs/serve.md speaks to a real server, on each of the two."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from docs.pages import blocks
from serve.support import started

from aggml.models.small import write_small

if TYPE_CHECKING:
    from pathlib import Path

PAGE = "docs/serve.md"


@pytest.mark.parametrize("server", ["uvicorn", "hypercorn"])
def test_the_client_of_the_page_gets_an_answer(
    server: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (code,) = (block.code for block in blocks(PAGE) if block.language == "python")
    with started(write_small(tmp_path / "small.gguf"), server) as (_, address):
        names: dict[str, Any] = {}
        exec(code.replace("http://localhost:8000", address), names)
        names["client"].close()
    assert capsys.readouterr().out.strip()
