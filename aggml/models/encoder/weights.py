"""EncoderFile: a model file with the tensors that an encoder computes with.

Queries, keys and values are one matrix; token type 0, which all tokens have, is added to the
positions; matrices have another element type if the caller asks for one. Here: these changes. Not
here: reading files (../checkpoints/, aggml.gguf), where weights go (../weights.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Self

import anyio.to_thread
import ml_dtypes
import numpy as np
from anyio.lowlevel import checkpoint

import aggml
from aggml import BufferUsage, DType

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    import numpy.typing as npt

    from aggml import Backend, Buffer, Device, Tensor
    from aggml.models.encoder.description import EncoderDescription
    from aggml.models.weights import ModelFile

__all__ = ["ELEMENTS", "EncoderFile"]

#: What matrices may become when they are loaded. "q8_0" leaves the matrices that matter most in
#: bf16; "throughout" does not; with "row scales" all elements of a row have one scale.
ELEMENTS: Final = ("f32", "f16", "bf16", "q8_0", "q8_0 throughout", "q8_0 row scales")
MATRICES: Final = (
    "attn_q", "attn_k", "attn_v", "attn_qkv", "attn_output", "ffn_up", "ffn_gate", "ffn_down",
)  # fmt: skip


class EncoderFile:
    """The interface of a `ModelFile` with other tensors.

    Args:
        file: an open model file; closed by its owner.
        model: its description.
        element: one of `ELEMENTS`; None: as the file has them.

    Attributes:
        metadata: as in the file.
        tensors: leaves by name.
    """

    def __init__(self, file: ModelFile, model: EncoderDescription, element: str | None) -> None:
        self._file = file
        self._row_scales = element == "q8_0 row scales"
        self.metadata: Mapping[str, Any] = file.metadata
        self.tensors: dict[str, Tensor] = dict(file.tensors)
        self._sources: dict[str, tuple[str, ...]] = {}  # of tensors that are made
        layers = len(model.layers)
        for i in range(layers):
            self._join(f"blk.{i}.")
            if element is not None:
                for name in MATRICES:
                    self._convert(f"blk.{i}.{name}.weight", element, matters=i == layers - 2)
        self._add_types(model)

    def _join(self, at: str) -> None:
        """One tensor for queries, keys and values, if they differ in nothing."""
        ends: list[tuple[str, tuple[str, ...], list[Tensor | None]]] = []
        for end in ("weight", "bias"):
            names = tuple(f"{at}attn_{part}.{end}" for part in "qkv")
            ends.append((end, names, [self.tensors.get(name) for name in names]))
        there = [[None if x is None else x.dtype for x in three] for _, _, three in ends]
        normed = any(f"{at}attn_{part}_norm.weight" in self.tensors for part in "qk")
        if len({None if x is None else x.ne for x in ends[0][2]}) > 1:
            return  # fewer heads of keys and values than of queries
        if normed or there[0][0] is None or any(len(set(three)) > 1 for three in there):
            return
        for end, names, three in ends:
            first = three[0]
            if first is not None:
                for name in names:
                    del self.tensors[name]
                name = f"{at}attn_qkv.{end}"
                ne = (*first.ne[: first.ndim - 1], 3 * first.ne[first.ndim - 1])
                self.tensors[name] = aggml.new_tensor(first.dtype, ne=ne, name=name)
                self._sources[name] = names

    def _convert(self, name: str, element: str, *, matters: bool) -> None:
        """Another element type for a matrix.

        With all matrices of all-MiniLM-L6-v2 in q8_0, the vector of a text of one odd word may have
        a cosine of only 0.9976 to the exact one. The matrices of queries, keys and values, and the
        last layer but one, matter most: with bf16 there, the worst of 3000 texts has 0.9993.
        """
        tensor = self.tensors.get(name)
        if tensor is None:
            return
        to = DType.parse(element.split()[0])
        matters |= ".attn_" in name and ".attn_output" not in name
        if element == "q8_0" and matters:
            to = DType.BF16
        if tensor.ne[0] % to.blck_size:
            to = DType.BF16
        if to is not tensor.dtype or (self._row_scales and to is DType.Q8_0):
            self.tensors[name] = aggml.new_tensor(to, ne=tensor.ne[: tensor.ndim], name=name)
            self._sources.setdefault(name, (name,))

    def _add_types(self, model: EncoderDescription) -> None:
        """Token type 0 becomes a part of the positions, unless pairs have a type for the second."""
        names = ("position_embd.weight", "token_types.weight")
        two = [self.tensors.get(name) for name in names]
        ranks = "cls.weight" in self.tensors or "cls.output.weight" in self.tensors
        if ranks and two[1] is not None and two[1].ne[1] > 1:
            return
        if model.positions and all(x is not None and x.dtype is DType.F32 for x in two):
            del self.tensors[names[1]]
            table = self.tensors[names[0]]
            self.tensors[names[0]] = aggml.new_tensor(DType.F32, ne=table.ne[:2], name=names[0])
            self._sources[names[0]] = names

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors together."""
        return sum(tensor.nbytes for tensor in self.tensors.values())

    def _read(self, name: str) -> npt.NDArray[Any]:
        """The elements of a tensor of the file; quantized ones as (rows, bytes)."""
        file: Any = self._file
        tensor = file.tensors[name]
        if hasattr(file, "array"):
            found: npt.NDArray[Any] = file.array(name)
        else:
            found = file.data(name)
            if not tensor.dtype.is_quantized:
                found = found.view(tensor.dtype.numpy)
        rows = (tensor.ne[1], -1) if tensor.ndim > 1 else (-1,)
        return found.reshape(rows)

    def _make(self, name: str) -> npt.NDArray[Any]:
        """The elements of a tensor that is made. Blocks meanwhile."""
        sources, to = self._sources[name], self.tensors[name].dtype
        arrays = [self._read(source) for source in sources]
        if name == "position_embd.weight":
            return np.ascontiguousarray(arrays[0] + arrays[1][0], np.float32)
        whole = np.concatenate(arrays)
        source = self._file.tensors[sources[0]].dtype
        if to is source and not self._row_scales:
            return whole
        ne = self.tensors[name].ne
        if source.is_quantized:
            whole = aggml.dequantize(np.ascontiguousarray(whole), source, ne=ne)
        values = np.ascontiguousarray(whole, np.float32).reshape(-1, ne[0])
        if to is DType.Q8_0:
            return _with_row_scales(values) if self._row_scales else aggml.quantize(values, to)
        if to is DType.BF16:
            return values.astype(ml_dtypes.bfloat16)
        if to is source:
            return whole
        with np.errstate(over="ignore"):
            return values.astype(np.float16) if to is DType.F16 else values

    async def load(
        self,
        backend: Backend,
        *,
        names: Iterable[str] | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> list[Buffer]:
        """Make the tensors that are made, and copy or map the others.

        Cancellation: takes effect after the current tensor; no tensor of these is placed.
        """
        wanted = list(self.tensors if names is None else dict.fromkeys(names))
        made = [name for name in wanted if name in self._sources]
        kept = [name for name in wanted if name not in self._sources]
        total = sum(self.tensors[name].nbytes for name in wanted)
        done = sum(self.tensors[name].nbytes for name in kept)

        def report(part: int, _: int) -> None:
            if progress is not None:
                progress(part, total)

        if not await anyio.to_thread.run_sync(self._map, backend.device, kept):
            await self._file.load(backend, names=kept, progress=report)
        if not made:
            return []
        buffer = await backend.alloc_async([self.tensors[name] for name in made])
        try:
            for name in made:
                array = await anyio.to_thread.run_sync(self._make, name)
                await backend.set(self.tensors[name], array)
                done += self.tensors[name].nbytes
                report(done, total)
                await checkpoint()
        except BaseException:
            buffer.close()
            raise
        buffer.usage = BufferUsage.WEIGHTS
        return [buffer]

    def _map(self, device: Device, names: list[str]) -> bool:
        try:
            self._file.map(device, names)
        except (aggml.Unsupported, aggml.Misaligned):
            return False
        return True

    def map(self, device: Device, names: Iterable[str] | None = None) -> object:
        """Not supported: not all tensors can be mapped. `load` maps those that can.

        Raises:
            Unsupported: always.
        """
        raise aggml.Unsupported("[EncoderFile.map] some tensors are made: use load")

    def close(self) -> None:
        """Does nothing: the owner of the file closes it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _with_row_scales(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
    """q8_0 blocks of rows, (rows, bytes): each row has one scale, that of its largest element."""
    rows, k = values.shape
    scales = (np.abs(values).max(axis=1, keepdims=True) / 127).astype(np.float16)
    inverse = 1 / np.where(scales == 0, 1, scales).astype(np.float32)
    codes = np.rint(values * inverse).clip(-127, 127).astype(np.int8)
    blocks = np.empty((rows, k // 32, DType.Q8_0.type_size), np.uint8)
    blocks[:, :, :2] = scales.view(np.uint8)[:, None]
    blocks[:, :, 2:] = codes.view(np.uint8).reshape(rows, -1, 32)
    return blocks.reshape(rows, -1)
