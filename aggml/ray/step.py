"""A step: what goes through all stages, and whose tokens it holds.

Not here: who makes steps (dispatch.py), the order in which a stage takes them (stage.py).
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Ask", "Step"]


@dataclass(frozen=True, slots=True)
class Ask:
    """Tokens of one slot for a step.

    ``life`` and ``turn`` order the steps of a slot: it takes turn 0, 1, ... of one life, and a new
    life ends the one before it, of which no step is then taken any more.

    Attributes:
        slot: the sequence.
        start: position of the first token.
        ids: the tokens.
        life: begins anew with each failure and each cancelled step.
        turn: counts the steps of a life.
        last: whether results are wanted of the last token alone.
    """

    slot: int
    start: int
    ids: tuple[int, ...]
    life: int
    turn: int
    last: bool


@dataclass(frozen=True, slots=True)
class Step:
    """What goes through all stages: one token or a piece of a prompt of each of some slots.

    Attributes:
        epoch: of the pipeline; a stage that was started anew knows no older one.
        asks: of one or more slots.
        best: how many of the best logits; 0: all of them.
        hidden: whether to give what logits would be made of instead.
    """

    epoch: int
    asks: tuple[Ask, ...]
    best: int = 0
    hidden: bool = False
