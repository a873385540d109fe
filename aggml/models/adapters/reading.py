"""The adapters and control vectors of a model, read and checked, and brought to its devices.

Not here: their formats (files.py, peft.py, control_vectors.py), their use (stacks.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import anyio.to_thread
import numpy as np

import aggml
from aggml import DType
from aggml.models.adapters.adaptable import adaptable
from aggml.models.adapters.control_vectors import read_control_vector
from aggml.models.adapters.files import check_fits, read_adapter_file
from aggml.models.adapters.low_rank import add_up
from aggml.models.adapters.peft import base_of, read_adapter_folder
from aggml.models.adapters.stacks import AdapterChoice, Adapters, ScaledAdapter, Stack
from aggml.models.kv.caches import CHUNK
from aggml.models.kv.page_files import identity_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from aggml import Backend, Tensor
    from aggml.models.adapters.given import GivenAdapters, ScaledFile
    from aggml.models.adapters.low_rank import F32, Adapter, LowRank
    from aggml.models.description import Description
    from aggml.models.site import Site
    from aggml.models.weights import ModelFile

__all__ = ["AdapterArrays", "read_adapter", "read_adapters"]


@dataclass(frozen=True, slots=True, eq=False)
class AdapterArrays:
    """The adapters of a model in host memory, before they are brought to devices.

    Attributes:
        names: of the adapters that requests choose.
        abouts: for each of them what tells its content from that of others.
        adapters: those of ``names``; if there are none, at most one, which every request has.
        directions: of control vectors, by layer.
        about: what tells the content of all that every request has; "": there is nothing.
    """

    names: tuple[str, ...]
    abouts: tuple[str, ...]
    adapters: tuple[Adapter, ...]
    directions: Mapping[int, F32]
    about: str

    @property
    def nbytes(self) -> int:
        """Bytes that they take on devices."""
        found = sum(x.nbytes for x in self.directions.values())
        for name in self._names_of_changed():
            (rank, columns), rows = self._rank(name)[0], self._rank(name)[1]
            found += 4 * self._count * rank * (columns + rows)
        return found

    @property
    def scratch(self) -> int:
        """Bytes, at most, for what the products with them add to the results of a step."""
        rows_and_columns = (
            rank + columns + rows
            for (rank, columns), rows in map(self._rank, self._names_of_changed())
        )  # fmt: skip
        return 2 * 4 * CHUNK * max(rows_and_columns, default=0)  # two of them at a time

    @property
    def _count(self) -> int:
        """How many matrices a stack has."""
        return len(self.names) + 1 if self.names else 1

    def _names_of_changed(self) -> list[str]:
        """The names of all matrices that any of the adapters changes."""
        return list(dict.fromkeys(name for x in self.adapters for name in x))

    def _of(self, name: str) -> list[LowRank | None]:
        """The change of one matrix by each adapter."""
        return [x.get(name) for x in self.adapters]

    def _rank(self, name: str) -> tuple[tuple[int, int], int]:
        """The greatest rank of a matrix' changes and its columns; its rows."""
        changes = [x for x in self._of(name) if x is not None]
        return (max(len(x.a) for x in changes), changes[0].a.shape[1]), len(changes[0].b)

    def stack(self, name: str) -> tuple[F32, F32]:
        """All changes of a matrix: (adapters, rank, columns) and (adapters, rows, rank)."""
        (rank, columns), rows = self._rank(name)
        a = np.zeros((self._count, rank, columns), np.float32)
        b = np.zeros((self._count, rows, rank), np.float32)
        for i, change in enumerate(self._of(name), self._count - len(self.adapters)):
            if change is not None:
                a[i, : len(change.a)] = change.a
                b[i, :, : len(change.a)] = change.b
        return a, b

    async def place(self, site: Site, weights: Mapping[str, Tensor]) -> Adapters:
        """Bring them to devices, each beside the matrix that it changes.

        Args:
            site: where the model is computed.
            weights: of the model, where they lie.

        Cancellation: nothing stays in memory.
        """
        wanted: dict[Backend, list[tuple[Tensor, Any]]] = {}
        stacks: dict[str, Stack] = {}
        for name in self._names_of_changed():
            a, b = await anyio.to_thread.run_sync(self.stack, name)
            short = name.removesuffix(".weight")
            made = Stack(
                aggml.new_tensor(DType.F32, ne=a.shape[::-1], name=f"{short}.lora_a"),
                aggml.new_tensor(DType.F32, ne=b.shape[::-1], name=f"{short}.lora_b"),
            )
            stacks[name] = made
            wanted.setdefault(site.beside(weights[name]), []).extend([(made.a, a), (made.b, b)])
        directions: dict[int, Tensor] = {}
        for layer, vector in self.directions.items():
            made_one = aggml.new_tensor(DType.F32, ne=len(vector), name=f"direction.{layer}")
            directions[layer] = made_one
            first = next((x for n, x in weights.items() if n.startswith(f"blk.{layer}.")), None)
            wanted.setdefault(site.beside(first), []).append((made_one, vector))
        for backend, pairs in wanted.items():
            buffer = await backend.alloc_async([tensor for tensor, _ in pairs])
            for tensor, array in pairs:
                await backend.set(tensor, array)
            buffer.usage = aggml.BufferUsage.WEIGHTS
        choices = {
            name: AdapterChoice((ScaledAdapter(i),), about)
            for i, (name, about) in enumerate(zip(self.names, self.abouts, strict=True), 1)
        }
        return Adapters(choices, stacks, not self.names, directions)


async def read_adapters(
    model: Description, file: ModelFile, given: GivenAdapters
) -> AdapterArrays | None:
    """Read all adapters and control vectors of a model; None: none are given.

    Raises:
        ModelError: one of them cannot be read, or belongs to another model.

    Cancellation: takes effect after the present file.
    """
    if not given:
        return None
    able = await adaptable(model, file.tensors) if given.named or given.always else frozenset()
    changes: dict[ScaledFile, Adapter] = {}
    for each in dict.fromkeys([*given.named.values(), *given.always]):
        changes[each] = await anyio.to_thread.run_sync(
            read_adapter, each, file, model.architecture, able
        )
    directions: dict[int, F32] = {}
    for each in given.control_vectors:
        found = await anyio.to_thread.run_sync(
            read_control_vector, each.path, model.width, len(model.layers)
        )
        for layer, vector in found.items():
            scaled = vector * np.float32(each.scale)
            directions[layer] = directions[layer] + scaled if layer in directions else scaled
    abouts = [await anyio.to_thread.run_sync(_about, [x]) for x in given.named.values()]
    for_all = [*given.always, *given.control_vectors]
    about = await anyio.to_thread.run_sync(_about, for_all) if for_all else ""
    if given.named:
        adapters = tuple(changes[x] for x in given.named.values())
    else:
        every = [changes[x] for x in given.always]
        together = await anyio.to_thread.run_sync(add_up, every)
        adapters = (together,) if together else ()
    return AdapterArrays(tuple(given.named), tuple(abouts), adapters, directions, about)


def read_adapter(
    given: ScaledFile, file: ModelFile, architecture: str, able: Collection[str]
) -> dict[str, LowRank]:
    """The changes of one adapter, checked and scaled. Blocks meanwhile.

    Args:
        given: a GGUF file or a folder of PEFT.
        file: the model.
        architecture: of the model.
        able: names of the matrices that can take an adapter.

    Raises:
        ModelError: it cannot be read, or belongs to another model.
    """
    where = f"the adapter {str(given.path)!r}"
    if given.path.is_dir():
        found = read_adapter_folder(given.path, base_of(file))
    else:
        found = read_adapter_file(given.path, architecture)
    check_fits(where, found, file.tensors, able, architecture)
    scaled = {name: x.scale(given.scale) for name, x in found.items()}
    check_fits(where, scaled, file.tensors, able, architecture)  # a large scale may overflow
    return scaled


def _about(files: Sequence[ScaledFile]) -> str:
    """What tells the content of these files, and their scales, from others."""
    return " ".join(f"{identity_of(x.path)}*{x.scale!r}" for x in files)
