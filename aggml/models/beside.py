"""What lies in memory beside a model: a draft model, a head that predicts tokens, a mmproj file.

Only the heads of files are read. Here: how much these take. Not here: which context and how many
sequences then fit (fitting.py), loading them (drafting.py, vision/).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import anyio.to_thread

from aggml import InvalidArgument, Unsupported
from aggml.devices.cpu import CPUDevice
from aggml.models.checking import describe_checked
from aggml.models.description import Description
from aggml.models.drafting import LOOKUP, MTP, NGRAM, NgramFile, check_head, head_weights, rewind_of
from aggml.models.engine.speculation import WIDTHS
from aggml.models.footprint import copies, footprint_of, packed_bytes, steps_of_text
from aggml.models.kv.caches import sizes
from aggml.models.kv.rows import round_up
from aggml.models.kv.state_rows import Rewind
from aggml.models.text_model import TextModel
from aggml.models.vision import picture_program, read_projector
from aggml.models.weights import open_model

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aggml import Device, DType, Tensor
    from aggml.models.drafting import Draft
    from aggml.models.weights import ModelFile

__all__ = ["Beside", "read_beside"]


@dataclass(frozen=True, slots=True)
class Beside:
    """What is computed beside a model.

    Attributes:
        draft: whether steps verify drafts.
        model: what makes them, if it has weights; None: nothing has.
        tensors: what it computes with.
        own: those of these tensors that are not the model's.
        pictures: bytes of a mmproj file and of its steps.
    """

    draft: bool = False
    model: Description | None = None
    tensors: Mapping[str, Tensor] | None = None
    own: tuple[str, ...] = ()
    pictures: int = 0

    @property
    def weights(self) -> int:
        """Bytes of the weights of `model`."""
        return 0 if self.tensors is None else sum(self.tensors[x].nbytes for x in self.own)

    def rewind(self, model: Description, slots: int) -> Rewind:
        """How far the states of the model itself go back."""
        return rewind_of(model, slots) if self.draft else Rewind()

    def width_to_verify(self, rewind: Rewind) -> int:
        """How many tokens of a sequence a step verifies, at most; 0: none."""
        if not self.draft:
            return 0
        return rewind.tokens + 1 if rewind.tokens else WIDTHS[-1]

    async def bytes_of_draft(self, device: Device, *, ctx: int, slots: int, cache: DType) -> int:
        """Bytes of all that makes drafts, at most.

        Args:
            device: which computes it.
            ctx: positions of each sequence.
            slots: sequences at a time.
            cache: element type of keys and values.
        """
        model, tensors = self.model, self.tensors
        if model is None or tensors is None:
            return 0
        length = min(ctx, round_up(model.context_length)) if not model.predicts else ctx
        rewind = rewind_of(model, slots)
        rows = sizes(model, cache, length, slots + 1, ring=False, rewind=rewind)
        steps = await steps_of_text(
            model, tensors, device, ctx=length, slots=slots, cache=cache, rewind=rewind,
            verified=rewind.tokens and rewind.tokens + 1,  # tokens that a draft model lacks
        )  # fmt: skip
        packed = 0
        if isinstance(device, CPUDevice):
            own = {x: tensors[x] for x in self.own}
            packed = sum(packed_bytes(own, steps.multiplied).values())
        return self.weights + packed + sum(rows) + steps.scratch + steps.graphs


async def read_beside(
    place: str,
    model: object,
    file: ModelFile,
    draft: Draft | None,
    mmproj: Path | None,
    device: Device,
) -> Beside:
    """What is to lie beside a model.

    Args:
        place: which function was called.
        model: the description of the model.
        file: of the model.
        draft: what makes drafts.
        mmproj: the path of a mmproj file.
        device: which computes pictures.

    Raises:
        InvalidArgument: a draft or a mmproj file for a model that does not continue text.
        ModelError: a file cannot be read or does not belong to the model.
        Unsupported: the draft model does not continue text.
    """
    if draft is None and mmproj is None:
        return Beside()
    if not isinstance(model, Description):
        raise InvalidArgument(
            f"[{place}] {'mmproj' if draft is None else 'draft'} is given, but the model does not "
            "continue text"
        )
    found = Beside(draft=draft is not None)
    if draft == MTP:
        head = check_head(model, file.tensors)
        own = tuple(x for x in file.tensors if head.uses(x) and x.startswith("blk."))
        found = replace(found, model=head, tensors=head_weights(head, file.tensors), own=own)
    elif isinstance(draft, TextModel):  # its weights are there already
        other = draft.engine.decoder
        found = replace(found, model=other.model, tensors=other.weights)
    elif not (draft is None or isinstance(draft, NgramFile) or draft in (LOOKUP, NGRAM)):
        with await open_model(Path(draft), "draft") as other_file:
            tensors = other_file.tensors
            described = await anyio.to_thread.run_sync(
                describe_checked, other_file.metadata, tensors
            )
            if not isinstance(described, Description):
                raise Unsupported(
                    f"[{place}] draft is {str(draft)!r}, but a {described.architecture} does not "
                    "continue text"
                )
            own = tuple(x for x in tensors if described.uses(x))
            found = replace(found, model=described, tensors=tensors, own=own)
    if mmproj is not None:
        found = replace(found, pictures=await _bytes_of_pictures(mmproj, model, device))
    return found


async def _bytes_of_pictures(path: Path, model: Description, device: Device) -> int:
    """Bytes of the weights of a mmproj file, and of a step with the largest view."""
    with await open_model(path, "mmproj file") as file:
        projector, forms = read_projector(file, path, model)
        weights = copies({name: file.tensors[name] for name in forms})
        program = await anyio.to_thread.run_sync(
            picture_program, projector, weights, projector.largest()
        )
        found = await footprint_of([program.graph], weights, device)
        packed = 0
        if isinstance(device, CPUDevice):
            packed = sum(packed_bytes(weights, found.multiplied).values())
        return sum(x.nbytes for x in weights.values()) + packed + found.scratch + found.graphs
