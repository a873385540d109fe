"""ModelFolder: a folder of Hugging Face with GGUF's names and the interface of a GGUFFile.

Here: metadata, making tensors and bringing them to a device. Not here: which tensors there are
(planning.py), the files (shards.py), the vocabulary (vocabularies.py).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import anyio.to_thread
import numpy as np
from anyio.lowlevel import checkpoint as breath

import aggml
from aggml import Tensor
from aggml.models.checkpoints.card import card_keys
from aggml.models.checkpoints.config import UNREADABLE, Config, read_json
from aggml.models.checkpoints.keys import Number, rope_keys
from aggml.models.checkpoints.planning import Translation, choose_architecture, rows_of
from aggml.models.checkpoints.pooling import (
    NORMALIZE,
    RANK,
    modules_of,
    pooling_keys,
    predicts_words,
)
from aggml.models.checkpoints.rerankers import QWEN3_TEMPLATE, answer_tokens, is_reranker
from aggml.models.checkpoints.settings import refuse_unread
from aggml.models.checkpoints.shards import Shards
from aggml.models.checkpoints.vocabularies import for_file, vocabulary_keys
from aggml.models.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from aggml import Backend, Buffer, Device
    from aggml.models.checkpoints.planning import Made
    from aggml.models.checkpoints.recipes import Array, Checkpoint

__all__ = ["ModelFolder"]

#: Keys without which no architecture can be built, if its map has them.
NEEDED: Final = (
    "context_length", "embedding_length", "block_count", "attention.head_count",
    "attention.layer_norm_rms_epsilon",
)  # fmt: skip


HEAD: Final = "cls.output.weight"
#: Architectures of which there are rerankers that answer "yes" or "no".
ANSWERING: Final = ("qwen3", "qwen3moe", "qwen3vl")


class ModelFolder:
    """An open folder, with the part of the interface of `aggml.GGUFFile` that models use.

    Attributes:
        path: of the folder.
        metadata: values by GGUF's keys.
        tensors: leaves by GGUF's names; not placed until `load`.
    """

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, Tensor]
    _config: Config
    _map: Checkpoint
    _shards: Shards
    _made: dict[str, Made]

    @classmethod
    def open(cls, path: Path, checkpoints: Sequence[tuple[str, Checkpoint]]) -> Self:
        """Read the folder's small files and the headers of its weights. Blocks meanwhile.

        Args:
            path: the folder.
            checkpoints: names and maps of all known architectures, from `catalogue.checkpoints`.

        Raises:
            ModelError: a file is missing or damaged; an unknown architecture; a tensor that the map
                does not name.
        """
        self = object.__new__(cls)
        self.path = Path(path)
        values = read_json(self.path / "config.json")
        if not values:
            raise ModelError(f"{str(path)!r} has no config.json: it is no folder of a model")
        self._config = config = Config(values)
        with config.reading("an architecture"):
            name, self._map = choose_architecture(config, checkpoints)
        self._shards = Shards(self.path)
        with config.reading("the names of its tensors"):
            translation = Translation(config, self._map, self._shards)
            self._made = translation.tensors()
        modules = modules_of(self.path)
        if modules is not None and not predicts_words(modules):
            self._made = {x: made for x, made in self._made.items() if not x.startswith("mlm.")}
        self.tensors = {
            name: aggml.new_tensor(x.dtype, ne=x.shape[::-1] or (1,), name=name)
            for name, x in self._made.items()
        }
        self.metadata = {"general.architecture": name}
        self.metadata |= {f"{name}.{key}": value for key, value in self._keys().items()}
        self.metadata |= translation.numbers()
        multi = self._made.get("multi.weight")
        if multi is not None:  # bge-m3 leaves the first token out, ColBERT does not
            self.metadata[f"{name}.multi.left_out"] = int("colbert_linear.weight" in multi.sources)
        if self.metadata.get(f"{name}.attention.causal") is False:
            kinds = self._made.get("token_types.weight")  # llama.cpp needs the number in any case
            self.metadata["tokenizer.ggml.token_type_count"] = (
                1 if kinds is None else kinds.shape[0]
            )
        if modules is not None and predicts_words(modules) and "mlm.dense.weight" not in self._made:
            raise ModelError(
                "modules.json has a module SpladePooling, but the folder has no head that predicts "
                "masked words, or config.json does not name a class ...ForMaskedLM"
            )
        rows = self._rows_of_embeddings()
        told = config.get("vocab_size")
        if told is not None and rows and told != rows:
            raise ModelError(
                f"config.json has vocab_size = {told}, but the embeddings have {rows} rows"
            )
        self.metadata |= vocabulary_keys(self.path, config, rows)
        if self.metadata.get(f"{name}.attention.causal") is not False:
            self._add_rank_head(name)
        refuse_unread(config.values, config.read, self._map.harmless, name)
        return self

    def _add_rank_head(self, architecture: str) -> None:
        """Give a decoder that ranks the tensor and the keys that GGUF has for it.

        Either the folder has a matrix of scores (``ForSequenceClassification``), or the rows of
        "yes" and "no" are taken from the matrix of the logits.
        """
        labels: list[str] = []
        if HEAD in self._made:
            told = self._config.get("id2label", default={"0": "LABEL_0"})
            labels = [str(x) for x in told.values()]
        elif architecture in ANSWERING:
            modules = modules_of(self.path)
            if not is_reranker(self.path, modules):
                return
            pieces = self.metadata.get("tokenizer.ggml.tokens", ())
            tokens = answer_tokens(self.path, modules, pieces)
            of = self._made.get("output.weight") or self._made["token_embd.weight"]
            self._made[HEAD] = rows_of(of, (tokens.yes, tokens.no))
            self.metadata.setdefault("tokenizer.chat_template.rerank", QWEN3_TEMPLATE)
            labels = ["yes", "no"]
            made = self._made[HEAD]
            self.tensors[HEAD] = aggml.new_tensor(made.dtype, ne=made.shape[::-1], name=HEAD)
        if labels:
            self.metadata[f"{architecture}.pooling_type"] = RANK
            self.metadata[f"{architecture}.classifier.output_labels"] = labels

    def file_metadata(self) -> dict[str, Any]:
        """The metadata of a GGUF file that is made of this folder.

        Raises:
            ModelError: GGUF cannot say how the folder's tokenizer works.
        """
        return for_file(self.metadata | card_keys(self.path, self._config.values))

    @property
    def checkpoint(self) -> Checkpoint:
        """The map of its architecture, from names in the folder to GGUF's."""
        return self._map

    @property
    def config(self) -> Config:
        """Its config.json."""
        return self._config

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors together."""
        return sum(tensor.nbytes for tensor in self.tensors.values())

    def _rows_of_embeddings(self) -> int:
        found = self._made.get("token_embd.weight")
        return 0 if found is None else found.shape[0]

    def _keys(self) -> dict[str, Any]:
        """GGUF's keys of the architecture, without its prefix, as far as config.json has values."""
        found: dict[str, Any] = {}
        for key, where in self._map.keys.items():
            if callable(where):
                with self._config.reading(key):
                    value = where(self._config)
            else:
                value = self._config.get(*((where,) if isinstance(where, str) else where))
            if value is not None:
                found[key] = value
            elif key in NEEDED and not (callable(where) and not isinstance(where, Number)):
                names = where.names if isinstance(where, Number) else where
                one = (names,) if isinstance(names, str) else names
                raise ModelError(f"config.json has no {' or '.join(one)}")
        ranks = any(name.startswith("cls.") for name in self._made)
        causal = bool(found.get("attention.causal", True))
        with self._config.reading("the pooling of vectors"):
            pooled = pooling_keys(
                self.path, self._config, ranks=ranks and not causal, causal=causal
            )
        if causal:
            pooled.pop(NORMALIZE, None)  # vectors of decoders have length 1 in any case
        with self._config.reading("rotary positions"):
            rope = rope_keys(self._config, self._map.tensors)
        return rope | found | pooled

    def array(self, name: str) -> Array:
        """A tensor's elements, or its quantized blocks as bytes, in numpy's order.

        Blocks while it makes the tensor.

        Raises:
            KeyError: there is no such tensor.
        """
        made = self._made[name]
        arrays = [self._shards[source] for source in made.sources]
        try:
            found = arrays[0] if made.recipe is None else made.recipe.make(arrays, self._config)
        except ModelError:
            raise
        except UNREADABLE as error:
            shapes = ", ".join(f"{x!r} {list(self._shards[x].shape)}" for x in made.sources)
            raise ModelError(f"tensor {name!r} cannot be made of {shapes}: {error}") from error
        assert found is not None
        if made.dtype.is_quantized:
            return np.ascontiguousarray(found)
        with np.errstate(over="ignore"):
            return np.ascontiguousarray(found, made.dtype.numpy)

    async def load(
        self,
        backend: Backend,
        *,
        names: Iterable[str] | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> list[Buffer]:
        """Bring tensors to a backend.

        If the device reads host memory, tensors that can be used as they lie in a file are mapped.
        The others are made one by one and copied.

        Returns:
            Buffers with usage WEIGHTS.

        Cancellation: takes effect after the current tensor; no tensor is placed.
        """
        wanted = list(self.tensors if names is None else dict.fromkeys(names))
        buffers: list[Buffer] = []
        try:
            rest = self._map_tensors(backend, wanted, buffers)
            total, done = sum(self.tensors[x].nbytes for x in rest), 0
            if rest:
                buffers.append(await backend.alloc_async([self.tensors[x] for x in rest]))
            for name in rest:
                array = await anyio.to_thread.run_sync(self.array, name)
                await backend.set(self.tensors[name], array)
                done += self.tensors[name].nbytes
                if progress is not None:
                    progress(done, total)
                await breath()
        except BaseException:
            for buffer in buffers:
                buffer.close()
            raise
        for buffer in buffers:
            buffer.usage = aggml.BufferUsage.WEIGHTS
        return buffers

    def _map_tensors(self, backend: Backend, wanted: list[str], buffers: list[Buffer]) -> list[str]:
        """Place the tensors that can be used as they lie in a file; returns the others' names."""
        rest: list[str] = []
        maps: dict[Path, Buffer | None] = {}
        for opened in self._shards.files:
            try:
                maps[opened.path] = backend.device.buffer_from_host(opened.bytes)
            except (aggml.Unsupported, aggml.Misaligned):
                maps[opened.path] = None
        buffers += [x for x in maps.values() if x is not None]
        for name in wanted:
            made = self._made[name]
            file = self._shards.of.get(made.sources[0]) if made.sources else None
            into = None if file is None else maps[file.path]
            if made.recipe is not None or file is None or into is None:
                rest.append(name)
                continue
            at = file.stored[made.sources[0]]
            if at.dtype != made.dtype.numpy:
                rest.append(name)
                continue
            try:
                into.place(self.tensors[name], at.begin)
            except aggml.Misaligned:
                rest.append(name)
        return rest

    def map(self, device: Device, names: Iterable[str] | None = None) -> Buffer:
        """Not supported: not all tensors of a folder can be mapped. `load` maps those that can.

        Raises:
            Unsupported: always.
        """
        raise aggml.Unsupported(
            f"[ModelFolder.map] {str(self.path)!r} has tensors that cannot be mapped: use load"
        )

    def close(self) -> None:
        """Does nothing: mapped files are freed with the last buffer that refers to them."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return (
            f"<ModelFolder {self.path.name!r}, {len(self.tensors)} tensors of {self.nbytes} bytes>"
        )
