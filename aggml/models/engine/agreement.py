"""Agreement: how often the tokens of a draft model are those of the model.

Not here: the draft model (draft_model.py), what follows from it (speculation.py).
"""

from __future__ import annotations

from typing import Final

__all__ = ["DraftAgreement"]

PRIOR: Final = 0.75  # how often both models choose the same token, before that was measured
WEIGHT: Final = 4.0  # of what is known of all requests, in tokens of one
MEMORY: Final = 64.0  # tokens that are remembered; older ones count less and less
REST: Final = 64  # tokens without a draft after which what was measured counts half


class DraftAgreement:
    """How often a request's tokens were those of the draft model.

    Args:
        prior: of all requests; None: this is it.
    """

    def __init__(self, prior: DraftAgreement | None = None) -> None:
        self._prior = prior
        self._hits = self._tries = 0.0
        self._rest = 0

    def share(self) -> float:
        """The share of draft tokens that were kept, of those after tokens that were kept."""
        prior = PRIOR if self._prior is None else self._prior.share()
        return (self._hits + WEIGHT * prior) / (self._tries + WEIGHT)

    def chances(self, most: int) -> list[float]:
        """Of each of ``most`` tokens of a draft: how likely it and all before it are kept.

        Asked once for each token that comes, whether or not a draft is then made.
        """
        self._idle()
        share = self.share()
        return [share ** (i + 1) for i in range(most)]

    def note(self, accepted: int, proposed: int) -> None:
        """Note how much of a draft was kept."""
        if self._prior is not None:
            self._prior.note(accepted, proposed)
        self._rest = 0
        tries = accepted + (accepted < proposed)
        kept = (1 - 1 / MEMORY) ** tries
        self._hits = self._hits * kept + accepted
        self._tries = self._tries * kept + tries

    def _idle(self) -> None:
        """Note that a token came without a draft: what was measured long ago counts less."""
        self._rest += 1
        if self._rest >= REST:
            self._rest = 0
            self._hits, self._tries = self._hits / 2, self._tries / 2
        if self._prior is not None:
            self._prior._idle()
