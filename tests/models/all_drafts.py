"""All drafts are verified, whether or not they pay: for tests of what drafts change.

Not here: tests of when they pay (engine/test_speculation.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aggml.models.engine import speculation

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest

__all__ = ["verify_all_drafts"]


def verify_all_drafts(monkeypatch: pytest.MonkeyPatch, width: int = 4) -> None:
    """Have each step compute ``width`` tokens of each sequence, and draft models follow all."""

    def widest(chances: Sequence[Sequence[float]], *_: object) -> int:
        return width if any(chances) else 1

    monkeypatch.setattr(speculation, "best_width", widest)
    monkeypatch.setattr(speculation, "width_beside", widest)
    monkeypatch.setattr(speculation, "is_worth_catching_up", lambda *_: True)
