"""PipelineStep: the message that goes through all stages, with the tokens of some slots.

Not here: making steps (dispatch.py), the order in which a stage takes them (stage.py).
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Ask", "PipelineStep"]


@dataclass(frozen=True, slots=True)
class Ask:
    """Tokens of one slot for a step.

    ``life`` and ``turn`` order the steps of a slot: a stage takes turn 0, 1, ... of one life. A new
    life ends the previous one, of which the stage then takes no further steps.

    Attributes:
        slot: the sequence.
        start: position of the first token.
        ids: the tokens.
        life: number of the slot's life; each failed or cancelled step begins a new one.
        turn: number of the step within its life.
        last: whether only the last token needs results.
    """

    slot: int
    start: int
    ids: tuple[int, ...]
    life: int
    turn: int
    last: bool


@dataclass(frozen=True, slots=True)
class PipelineStep:
    """A step through all stages: for each of some slots one token or a piece of a prompt.

    Attributes:
        epoch: of the pipeline; a restarted stage refuses steps of older epochs.
        asks: of one or more slots.
        best: how many of the best logits to return; 0: all of them.
        hidden: whether to return hidden states instead of logits.
    """

    epoch: int
    asks: tuple[Ask, ...]
    best: int = 0
    hidden: bool = False
