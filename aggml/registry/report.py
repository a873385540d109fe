"""LoadReport: for each possible plug-in, whether it was loaded, and if not, why.

Here: the record and its text. Not here: loading (loading.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from aggml.backend.family import Family
    from aggml.errors import BackendLoadError

__all__ = ["LoadReport", "LoadResult"]


@dataclass(frozen=True)
class LoadResult:
    """One candidate.

    Attributes:
        name: the family that it was thought to be.
        source: a path, a module, or "entry point NAME of PACKAGE".
        status: "loaded"; "skipped" if another was better or it is disabled; "failed".
        reason: why it is not loaded; empty if it is.
        score: the score that it gave itself; None if it was not asked, or gives none.
        family: the family that it gave, if it was loaded.
        error: the exception with its cause, if it failed.
    """

    name: str
    source: str
    status: Literal["loaded", "skipped", "failed"]
    reason: str = ""
    score: int | None = None
    family: Family | None = None
    error: BackendLoadError | None = None

    def __str__(self) -> str:
        score = "" if self.score is None else f", score {self.score}"
        reason = f": {self.reason}" if self.reason else ""
        return f"{self.name} {self.status} ({self.source}{score}){reason}"


class LoadReport(tuple[LoadResult, ...]):
    """The candidates in the order in which they were looked at; prints one per line."""

    __slots__ = ()

    @property
    def loaded(self) -> list[Family]:
        """The families that were loaded."""
        return [result.family for result in self if result.family is not None]

    @property
    def failed(self) -> list[LoadResult]:
        """The candidates that should have been loaded but failed."""
        return [result for result in self if result.status == "failed"]

    def __str__(self) -> str:
        return "\n".join(map(str, self)) or "nothing found"
