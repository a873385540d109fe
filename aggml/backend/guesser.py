"""ExpertGuesser: what a backend adds so that experts are copied before their router names them.

Not here: which experts, and when (../scheduler/layout/script.py); the copy itself
(../native/runtime/experts.c).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aggml.native import _native
    from aggml.stream.future import Future
    from aggml.tensor import Tensor

__all__ = ["ExpertGuesser"]


class ExpertGuesser(ABC):
    """A backend whose stream copies the experts of the last run, and then those that are missing.

    Copies of one stack are on one stream, first the guess, then the correction.
    """

    @abstractmethod
    def _guess_experts(
        self, src: Tensor, dst: Tensor, history: _native.ExpertHistory
    ) -> Future[None]:
        """Copy the matrices of ``src`` that the last run named, as long as the ids are not noted.

        Later work on ``dst`` fails if a copy fails.
        """

    @abstractmethod
    def _correct_experts(
        self, src: Tensor, dst: Tensor, ids: Tensor, history: _native.ExpertHistory
    ) -> Future[None]:
        """Copy those matrices that ``ids``, in host memory, names and that were not guessed."""

    @abstractmethod
    def _note_experts(self, histories: tuple[_native.ExpertHistory, ...]) -> Future[None]:
        """Note, when the stream gets there, that the ids are known: nothing more is guessed."""
