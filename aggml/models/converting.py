"""convert: writes a model's file or folder as a GGUF file, in other types if asked.

Here: which tensor gets which type, importance matrices, progress. Not here: reading the model
(checkpoints/, aggml.gguf), the quantizers.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import anyio.to_thread
import numpy as np

import aggml
from aggml import DType, GGUFFile, GGUFWriter
from aggml.gguf.parts import SPLIT_KEYS, GGUFParts
from aggml.gguf.parts_writer import GGUFPartsWriter
from aggml.models.adapters.given import GivenAdapters, refusal, scaled_files
from aggml.models.adapters.reading import read_adapters
from aggml.models.arguments import file_path, flag, integer, one_text, show
from aggml.models.checking import describe_checked
from aggml.models.checkpoints import ModelFolder
from aggml.models.description import Description
from aggml.models.errors import ModelError
from aggml.models.imatrix import read_imatrix
from aggml.models.weights import open_model

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping, Sequence

    import numpy.typing as npt

    from aggml import Tensor
    from aggml.models.adapters.given import ScaledFile
    from aggml.models.adapters.low_rank import LowRank
    from aggml.models.weights import ModelFile

    Imatrix = Mapping[str, npt.NDArray[np.float32]]

__all__ = ["Converted", "convert"]

GGUF: Final = (GGUFFile, GGUFParts)
#: Used if rows are no multiple of 256: a type of about the same size with blocks of 32.
SMALLER: Final = {
    DType.Q2_K: DType.IQ4_NL, DType.Q3_K: DType.IQ4_NL, DType.Q4_K: DType.Q5_0,
    DType.Q5_K: DType.Q5_1, DType.Q6_K: DType.Q8_0, DType.IQ4_XS: DType.IQ4_NL,
    DType.IQ3_XXS: DType.IQ4_NL, DType.IQ3_S: DType.IQ4_NL, DType.IQ2_XXS: DType.IQ4_NL,
    DType.IQ2_XS: DType.IQ4_NL, DType.IQ2_S: DType.IQ4_NL, DType.IQ1_S: DType.IQ4_NL,
    DType.IQ1_M: DType.IQ4_NL, DType.TQ1_0: DType.Q4_0, DType.TQ2_0: DType.Q4_0,
}  # fmt: skip
#: Types that need an importance matrix. It has no entry for embeddings, so these become q2_K.
NEED_IMATRIX: Final = (DType.IQ2_XXS, DType.IQ2_XS, DType.IQ1_S)
#: Small tensors that stay as they are, as in llama.cpp, which adds or compares their values.
KEPT: Final = re.compile(
    r"norm|token_types|position_embd|ffn_gate_inp|rope_|attn_rel_b|ssm_conv1d|shortconv|time_mix"
    r"|indexer|\.bias$"
)
ENDS: Final = ("output.", "token_embd.")


@dataclass(frozen=True, slots=True)
class Converted:
    """What `convert` has written.

    Attributes:
        tensors: how many tensors.
        changed: how many of them have another type than in the source.
        nbytes_before, nbytes: bytes of the source (its file, or the tensors of its folder), and of
            the written file.
        types: bytes of tensors by the name of their type.
        paths: the file that was written, or all parts of it, the first one first.
    """

    tensors: int
    changed: int
    nbytes_before: int
    nbytes: int
    types: dict[str, int]
    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Wanted:
    """Decides which types the tensors of a file get."""

    element: DType | None
    ends: DType | None
    keep: re.Pattern[str] | None
    imatrix: Imatrix

    def of(self, name: str, tensor: Tensor) -> DType:
        """The type of one tensor."""
        to = self.ends if name.startswith(ENDS) else self.element
        kept = self.keep is not None and self.keep.search(name)
        matrix = sum(n > 1 for n in tensor.ne) >= 2 and name.endswith(".weight")
        if to is None or kept or not matrix or KEPT.search(name):
            return tensor.dtype
        if to in NEED_IMATRIX and name not in self.imatrix:
            to = DType.Q2_K if self.imatrix and name.startswith(ENDS) else to
        if tensor.ne[0] % to.blck_size:
            to = SMALLER.get(to, tensor.dtype)
        return tensor.dtype if tensor.ne[0] % to.blck_size else to


async def convert(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    dtype: DType | str | None = None,
    *,
    ends: DType | str | None = None,
    keep: str | None = None,
    imatrix: str | os.PathLike[str] | None = None,
    adapters: Sequence[Any] | None = None,
    split_max_size: int | None = None,
    no_tensor_first_split: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Converted:
    """Write a model as a GGUF file: from "folder" to "model.gguf", with matrices of "q4_K".

    The file is written under another name and renamed when it is complete.

    Args:
        source: a folder of Hugging Face, or a GGUF file.
        target: the file to write; an existing one is replaced.
        dtype: type of the matrices; None: unchanged. Vectors, routers and positions never change.
        ends: type of the output and the embeddings; None: ``dtype``.
        keep: a regular expression of names of tensors that stay as they are.
        imatrix: an importance matrix, a file of llama.cpp that says how much each column matters.
        adapters: LoRA adapters that become part of the matrices, ``[(path, scale), ...]``, as for
            `load`. A matrix of blocks is rounded once more; its type stays, unless ``dtype`` is
            given.
        split_max_size: write parts of at most so many bytes, "model-00001-of-00003.gguf" and so on
            for a target "model.gguf"; a tensor that has more is a part of its own. None: one file.
        no_tensor_first_split: whether the first part has metadata only; else it does if nothing
            else fits into it.
        progress: called with bytes of the source done so far and bytes in all.

    Raises:
        ModelError: the source cannot be read, or is no model; the importance matrix or an adapter
            belongs to another model.
        Unsupported: there is no quantizer for the type.
        InvalidArgument: an argument has another type; ``keep`` is no regular expression; the type
            cannot be made without an importance matrix; ``adapters`` is no list of adapters, or the
            source does not continue text; there would be too many parts.
        OSError: the target cannot be written.

    Cancellation: takes effect after the current piece; an old ``target`` stays, nothing else does.
    """
    element = None if dtype is None else DType.parse(dtype)
    last = element if ends is None else DType.parse(ends)
    weighs = {} if imatrix is None else await anyio.to_thread.run_sync(read_imatrix, imatrix)
    wanted = _Wanted(element, last, _pattern(keep), weighs)
    given = scaled_files("convert", "adapters", adapters)
    part = None if split_max_size is None else integer(
        "convert", "split_max_size", split_max_size, 1
    )  # fmt: skip
    bare = flag("convert", "no_tensor_first_split", no_tensor_first_split)
    if bare and part is None:
        raise aggml.InvalidArgument("[convert] no_tensor_first_split needs split_max_size")
    source, where = file_path("convert", "source", source), file_path("convert", "target", target)
    if progress is not None and not callable(progress):
        raise aggml.InvalidArgument(f"[convert] progress is {show(progress)}, expected a function")
    types, changed = dict[str, int](), 0
    with await open_model(source) as opened:
        total = opened.nbytes
        from_file = anyio.Path(source)  # which may be the target
        before = (await from_file.stat()).st_size if await from_file.is_file() else total
        changes = await _changes(opened, given) if given else {}
        align = opened.alignment if isinstance(opened, GGUF) else 32
        metadata = opened.metadata
        if isinstance(opened, ModelFolder):
            metadata = await anyio.to_thread.run_sync(opened.file_metadata)
        writer = GGUFWriter(where, alignment=align) if part is None else GGUFPartsWriter(
            where, alignment=align
        )  # fmt: skip
        try:
            for key, value in metadata.items():
                if key != "general.alignment" and key not in SPLIT_KEYS:
                    told = opened.types[key] if isinstance(opened, GGUF) else None
                    if key.endswith(".merges") and not len(value):
                        told = told or "string"  # an empty list does not say of what
                    writer.add(key, value, told)
            done = 0
            sizes = {x: _size(wanted.of(x, t), t) for x, t in opened.tensors.items()}
            if isinstance(writer, GGUFPartsWriter):
                writer.plan(sizes, part or 1, no_tensor_first_split=bare)
            for name, tensor in opened.tensors.items():
                to = wanted.of(name, tensor)
                await _write_tensor(opened, writer, name, to, weighs.get(name), changes.get(name))
                changed += to is not tensor.dtype
                types[to.type_name] = types.get(to.type_name, 0) + sizes[name]
                done += tensor.nbytes
                if progress is not None:
                    progress(done, total)
            await writer.aclose()
        except BaseException:
            writer.abandon()
            raise
        count = len(opened.tensors)
    paths = writer.paths if isinstance(writer, GGUFPartsWriter) else [where]
    size = sum([(await anyio.Path(path).stat()).st_size for path in paths])
    return Converted(count, changed, before, size, types, tuple(map(str, paths)))


def _pattern(keep: str | None) -> re.Pattern[str] | None:
    if keep is None:
        return None
    try:
        return re.compile(one_text("convert", "keep", keep))
    except re.error as error:
        raise aggml.InvalidArgument(
            f"[convert] keep is {show(keep)}, which is no regular expression: {error}"
        ) from None


def _size(to: DType, tensor: Tensor) -> int:
    """Bytes of a tensor that has become another type."""
    return to.row_size(tensor.ne[0]) * math.prod(tensor.ne[1:])


async def _write_tensor(
    source: ModelFile,
    writer: GGUFWriter | GGUFPartsWriter,
    name: str,
    to: DType,
    weighs: npt.NDArray[np.float32] | None,
    change: LowRank | None,
) -> None:
    """Write one tensor, converted to type ``to`` if it has another one.

    Args:
        source: the model.
        writer: of the target.
        name: of the tensor.
        to: its type in the target.
        weighs: the importance of its columns, if it is known.
        change: what adapters add to it; None: nothing.
    """
    tensor = source.tensors[name]
    own = to is tensor.dtype and change is None
    if isinstance(source, GGUF):
        data: Any = source.data(name)
        if not own:
            data = await aggml.dequantize_async(data, tensor.dtype, ne=tensor.ne)
            data = data.reshape(tensor.shape)
    else:
        assert isinstance(source, ModelFolder)
        data = await anyio.to_thread.run_sync(source.array, name)
    if change is not None:
        data = await anyio.to_thread.run_sync(_merge_change, data, change)
    if own or weighs is None or not to.is_quantized:
        extents = tensor.ne[: tensor.ndim] if isinstance(source, GGUF) and own else None
        await writer.add_tensor_async(name, data, to, ne=extents)
        return
    await writer.add_tensor_async(name, await _quantize_weighed(name, data, to, weighs), to)


def _merge_change(data: npt.NDArray[Any], change: LowRank) -> npt.NDArray[np.float32]:
    """A matrix with what adapters add to it."""
    found: npt.NDArray[np.float32] = data.astype(np.float32) + change.whole
    return found


async def _changes(source: ModelFile, given: Sequence[ScaledFile]) -> Mapping[str, LowRank]:
    """What adapters add to the matrices of a model, by their names.

    Raises:
        InvalidArgument: the model does not continue text.
        ModelError: an adapter cannot be read, or belongs to another model.
    """
    wanted = GivenAdapters(always=tuple(given))
    model = await anyio.to_thread.run_sync(describe_checked, source.metadata, source.tensors)
    if not isinstance(model, Description):
        raise refusal("convert", wanted, model.architecture)
    found = await read_adapters(model, source, wanted)
    assert found is not None
    return found.adapters[0]


async def _quantize_weighed(
    name: str, data: npt.NDArray[Any], to: DType, weighs: npt.NDArray[np.float32]
) -> npt.NDArray[np.uint8]:
    """Quantize with ``weighs``, the importance of each column, or of each column and expert."""
    values = np.ascontiguousarray(data, np.float32)
    experts = values.shape[0] if values.ndim == 3 else 1
    columns = values.shape[-1]
    if weighs.size not in (columns, columns * experts):
        raise ModelError(
            f"the importance matrix has {weighs.size} columns for {name!r}, which has "
            f"{columns} in {experts} matrices"
        )
    each = np.broadcast_to(weighs.reshape(-1, columns), (experts, columns))
    parts = values.reshape(experts, -1, columns)
    try:
        made = [
            await aggml.quantize_async(part, to, np.ascontiguousarray(row))
            for part, row in zip(parts, each, strict=True)
        ]
    except aggml.InvalidArgument as error:  # a number of either is not finite
        raise aggml.InvalidArgument(f"[convert] tensor {name!r}: {error}") from error
    return np.stack(made).reshape(*values.shape[:-1], -1)
