"""SentenceEncoder: a model with the methods of sentence-transformers' `SentenceTransformer`.

``SentenceEncoder(model).encode(["a text"])``; ``aencode`` and the like await the model.

Needs no package but aggml. Not here: what makes the vectors (aggml.models).
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from aggml import InvalidArgument
from aggml.integrations.opened import DOCUMENT, QUERY, open_given, prompt_for

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import ArrayLike, NDArray

    F32 = NDArray[np.float32]

__all__ = ["SentenceEncoder"]

SIMILARITIES: Final = ("cosine", "dot", "euclidean", "manhattan")


class SentenceEncoder:
    """A model of aggml in the place of a `SentenceTransformer`.

    Args:
        model: a model of `aggml.models.load` or `aggml.models.blocking.load`, which stays its
            owner's; or the path of a file or of a folder of sentence-transformers, which is loaded
            now, and is freed by `close`.
        load_options: for a path: options of `aggml.models.load`.
        truncate_dim: keep only the first so many elements; None: all.
        similarity_fn_name: what `similarity` computes: "cosine", "dot", "euclidean", "manhattan".

    Raises:
        InvalidArgument: it is no model and no path; there is no such similarity.
    """

    def __init__(
        self,
        model: object,
        *,
        load_options: Mapping[str, Any] | None = None,
        truncate_dim: int | None = None,
        similarity_fn_name: str = "cosine",
    ) -> None:
        if similarity_fn_name not in SIMILARITIES:
            raise InvalidArgument(
                f"[SentenceEncoder] similarity_fn_name is {similarity_fn_name!r}, expected one of "
                + ", ".join(map(repr, SIMILARITIES))
            )
        self._opened = open_given("SentenceEncoder", model, load_options, None)
        self.truncate_dim = truncate_dim
        self.similarity_fn_name = similarity_fn_name

    @property
    def prompts(self) -> dict[str, str]:
        """What the folder puts before texts, by name."""
        return self._opened.model.prompts

    @property
    def max_seq_length(self) -> int:
        """Tokens that a text may have; a longer one is cut."""
        return self._opened.model.ctx

    def get_sentence_embedding_dimension(self) -> int:
        """Elements of a vector."""
        return self.truncate_dim or self._opened.model.width

    def close(self) -> None:
        """Free the model, if this object has loaded it."""
        if self._opened.owned:
            self._opened.face.close()

    # -- vectors

    def encode(
        self,
        sentences: str | Sequence[str],
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        output_value: str = "sentence_embedding",
        *,
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
    ) -> Any:
        """The vectors of texts; of one text its vector.

        Args:
            sentences: texts, or one text.
            prompt_name: the name of one of `prompts`, which is put before each text; None: the one
                that the folder names as its default, if any.
            prompt: a text that is put before each, in place of any of `prompts`.
            batch_size: how many texts are computed at a time.
            show_progress_bar: whether standard error says how many texts are done.
            output_value: "sentence_embedding"; or "token_embeddings": for each text the vectors of
                its tokens.
            convert_to_numpy: one array; else a list of arrays.
            convert_to_tensor: one tensor of torch, which must be installed.
            normalize_embeddings: whether vectors have length 1; False: as the file says. A file
                that says nothing, as most GGUF files, has vectors of length 1.
            truncate_dim: in place of that of the object.

        Returns:
            float32 (len(sentences), width), or (width,) for one text.

        Raises:
            InvalidArgument: there is no such prompt; an argument out of its range.
            Other errors are those of `EncoderModel.embed`.
        """
        wanted = self._read_options(output_value, batch_size, normalize_embeddings, truncate_dim)
        texts, single = _texts_of(sentences)
        found: list[Any] = []
        for part in _parts(texts, batch_size):
            name, call, given = self._call(part, prompt_name, prompt, wanted)
            found += list(getattr(self._opened.face, name)(given, **call))
            _tell(show_progress_bar, len(found), len(texts))
        return self._result(found, single, wanted, convert_to_numpy, convert_to_tensor)

    async def aencode(
        self,
        sentences: str | Sequence[str],
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        output_value: str = "sentence_embedding",
        *,
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
    ) -> Any:
        """`encode`, awaited.

        Cancellation: takes the texts back.
        """
        wanted = self._read_options(output_value, batch_size, normalize_embeddings, truncate_dim)
        texts, single = _texts_of(sentences)
        found: list[Any] = []
        for part in _parts(texts, batch_size):
            name, call, given = self._call(part, prompt_name, prompt, wanted)
            found += list(await getattr(self._opened.model, name)(given, **call))
            _tell(show_progress_bar, len(found), len(texts))
        return self._result(found, single, wanted, convert_to_numpy, convert_to_tensor)

    def encode_query(
        self,
        sentences: str | Sequence[str],
        prompt_name: str | None = None,
        prompt: str | None = None,
        **options: Any,
    ) -> Any:
        """`encode` with the prompt named "query", if there is one and no other is asked for."""
        name = self._choose_prompt(prompt_name, prompt, QUERY)
        return self.encode(sentences, name, prompt, **options)

    def encode_document(
        self,
        sentences: str | Sequence[str],
        prompt_name: str | None = None,
        prompt: str | None = None,
        **options: Any,
    ) -> Any:
        """`encode` with the prompt named "document", "passage" or "corpus", likewise."""
        name = self._choose_prompt(prompt_name, prompt, DOCUMENT)
        return self.encode(sentences, name, prompt, **options)

    async def aencode_query(
        self,
        sentences: str | Sequence[str],
        prompt_name: str | None = None,
        prompt: str | None = None,
        **options: Any,
    ) -> Any:
        """`encode_query`, awaited.

        Cancellation: takes the texts back.
        """
        name = self._choose_prompt(prompt_name, prompt, QUERY)
        return await self.aencode(sentences, name, prompt, **options)

    async def aencode_document(
        self,
        sentences: str | Sequence[str],
        prompt_name: str | None = None,
        prompt: str | None = None,
        **options: Any,
    ) -> Any:
        """`encode_document`, awaited.

        Cancellation: takes the texts back.
        """
        name = self._choose_prompt(prompt_name, prompt, DOCUMENT)
        return await self.aencode(sentences, name, prompt, **options)

    def _choose_prompt(
        self, prompt_name: str | None, prompt: str | None, names: Sequence[str]
    ) -> str | None:
        if prompt_name is not None or prompt is not None:
            return prompt_name
        return prompt_for(self._opened.model, names)

    def _read_options(
        self, output_value: str, batch_size: int, unit: bool, truncate_dim: int | None
    ) -> dict[str, Any]:
        """What is asked: of `embed_multi` "tokens", of `embed` how vectors are cut, "normalize"."""
        if batch_size < 1:
            raise InvalidArgument(f"[encode] batch_size is {batch_size}, must be at least 1")
        if output_value == "token_embeddings":
            return {"tokens": True, "normalize": unit}
        if output_value != "sentence_embedding":
            raise InvalidArgument(
                f"[encode] output_value is {output_value!r}, expected 'sentence_embedding' or "
                "'token_embeddings'"
            )
        dimensions = self.truncate_dim if truncate_dim is None else truncate_dim
        return {"normalize": True if unit else None, "cut": (dimensions, unit)}

    def _call(
        self,
        texts: list[str],
        prompt_name: str | None,
        prompt: str | None,
        wanted: Mapping[str, Any],
    ) -> tuple[str, dict[str, Any], Any]:
        """The method of the model, its options, its first argument."""
        model = self._opened.model
        options = {name: value for name, value in wanted.items() if name == "normalize"}
        name = "embed_multi" if "tokens" in wanted else "embed"
        if prompt is None:
            return name, options | {"prompt": prompt_name}, texts
        given = [prompt + text for text in texts]
        if model.prompt is None:
            return name, options, given
        if name == "embed_multi":
            raise InvalidArgument(
                "[encode] prompt is given with output_value='token_embeddings', but the folder "
                "has a default prompt: give prompt_name"
            )
        # The model would put its default prompt before them, so they are given as tokens.
        found = [model.tokenizer.encode_prompt(text) for text in given]
        return "embed_ids", options, [
            x if len(x) <= model.ctx else [*x[: model.ctx - 1], x[-1]] for x in found
        ]  # fmt: skip

    def _result(
        self,
        found: list[Any],
        single: bool,
        wanted: Mapping[str, Any],
        convert_to_numpy: bool,
        convert_to_tensor: bool,
    ) -> Any:
        dimensions, unit = wanted.get("cut", (None, False))
        if dimensions is not None:
            # Cut as they are: they get length 1 anew only if that is asked for.
            found = [x[:dimensions] for x in found]
            found = [_unit(x) for x in found] if unit else found
        if convert_to_tensor:
            import torch

            found = [torch.from_numpy(np.ascontiguousarray(x)) for x in found]
        if single:
            return found[0]
        if "tokens" in wanted:
            return found
        if convert_to_tensor:
            import torch

            return torch.stack(found) if found else torch.empty(0)
        if convert_to_numpy:
            return np.stack(found) if found else np.empty((0, 0), np.float32)
        return found

    # -- similarities

    def similarity(self, embeddings1: ArrayLike, embeddings2: ArrayLike) -> F32:
        """How near each of the first vectors is to each of the second; greater is nearer."""
        a, b = _rows(embeddings1), _rows(embeddings2)
        if self.similarity_fn_name == "dot":
            return a @ b.T
        if self.similarity_fn_name == "cosine":
            return _unit(a) @ _unit(b).T
        apart = a[:, None, :] - b[None, :, :]
        return -_length(apart, self.similarity_fn_name)

    def similarity_pairwise(self, embeddings1: ArrayLike, embeddings2: ArrayLike) -> F32:
        """How near each of the first vectors is to the second vector in its place."""
        a, b = _rows(embeddings1), _rows(embeddings2)
        if self.similarity_fn_name == "dot":
            dots: F32 = np.einsum("ij,ij->i", a, b)
            return dots
        if self.similarity_fn_name == "cosine":
            angles: F32 = np.einsum("ij,ij->i", _unit(a), _unit(b))
            return angles
        return -_length(a - b, self.similarity_fn_name)


def _texts_of(sentences: str | Sequence[str]) -> tuple[list[str], bool]:
    """The texts, and whether it was one text alone."""
    return ([sentences], True) if isinstance(sentences, str) else (list(sentences), False)


def _parts(texts: list[str], size: int) -> Iterator[list[str]]:
    return (texts[i : i + size] for i in range(0, len(texts), size))


def _tell(wanted: bool | None, done: int, total: int) -> None:
    if wanted:
        sys.stderr.write(f"\r{done} of {total} texts" + ("\n" if done == total else ""))
        sys.stderr.flush()


def _rows(vectors: ArrayLike) -> F32:
    found = np.asarray(vectors, np.float32)
    return found[None] if found.ndim == 1 else found


def _unit(vectors: F32) -> F32:
    found: F32 = vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)
    return found


def _length(vectors: F32, name: str) -> F32:
    found: F32 = np.linalg.norm(vectors, ord=1 if name == "manhattan" else 2, axis=-1)
    return found
