"""RankHead: scores of texts and of pairs of them, from the hidden state of a decoder's last token.

Rerankers on decoders have a small matrix behind the last layer: one row for a score, or the rows of
the answers "yes" and "no" (Qwen3-Reranker). Here: reading it, the score, the text of a pair. Not
here: hidden states (engine/), rank heads of encoders (encoder/graph.py).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

import aggml
from aggml.models.site import unplace

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from aggml.models.description import Description
    from aggml.models.tokenizers import Vocabulary
    from aggml.models.weights import ModelFile

    F32 = npt.NDArray[np.float32]

__all__ = ["TEMPLATE", "RankHead", "labels_of", "read_rank_head"]

WEIGHT: Final = "cls.output.weight"
BIAS: Final = "cls.output.bias"
TEMPLATE: Final = "rerank"  # the name of the template of a query and a document
#: Architectures whose head is the rows of "yes" and "no": the score is the probability of "yes".
YES_OR_NO: Final = frozenset({"qwen3", "qwen3moe", "qwen3vl"})
YES_NO: Final = ("yes", "no")


@dataclass(frozen=True, slots=True)
class RankHead:
    """The last step of a reranker: ``llm_graph_context::build_pooling`` of llama.cpp.

    Attributes:
        weight: (scores, width).
        bias: (scores,); None: there is none.
        probability: whether the score is the probability of the first row among all of them, by
            softmax; else it is the number of the first row.
        template: the text of a pair, in which "{query}" and "{document}" stand; None: both texts
            follow each other.
        labels: the names of the rows.
    """

    weight: F32
    bias: F32 | None
    probability: bool
    template: str | None
    labels: tuple[str, ...] = ()

    def numbers(self, hidden: F32) -> F32:
        """The number of each row for one text.

        Args:
            hidden: the hidden state of its last token, (width,).
        """
        found: F32 = self.weight @ hidden
        return found if self.bias is None else found + self.bias

    def score(self, hidden: F32) -> float:
        """The score of one pair.

        Args:
            hidden: the hidden state of its last token, (width,).
        """
        found = self.numbers(hidden)
        if self.probability:
            powers = np.exp(found - found.max())
            return float(powers[0] / powers.sum())
        return float(found[0])

    def encode(self, words: Vocabulary, query: str, document: str, most: int | None) -> list[int]:
        """The tokens of a pair; the document is cut so that there are at most ``most``, if any.

        Names of control tokens in the two texts are text.
        """
        ids = self._encode(words, query, document)
        while most is not None and len(ids) > most and document:
            tokens = words.encode(document, special=False, literal=True)
            kept = words.decode(tokens[: max(0, len(tokens) - (len(ids) - most))])
            document = kept if len(kept) < len(document) else document[:-1]
            ids = self._encode(words, query, document)
        return ids

    def _encode(self, words: Vocabulary, query: str, document: str) -> list[int]:
        if self.template is None:
            begin = [words.bos] if words.add_bos and words.bos is not None else []
            end = [words.eos] if words.add_eos and words.eos is not None else []
            one, two = (words.encode(x, special=False, literal=True) for x in (query, document))
            return [*begin, *one, *end, *two, *end]
        quotes = words.quotes([query, document])
        texts = {"{query}": query, "{document}": document}
        if quotes is not None:
            texts = {name: quotes.quote(text) for name, text in texts.items()}
        text = re.sub(r"\{(query|document)\}", lambda found: texts[found[0]], self.template)
        if quotes is not None:
            return words.encode_quoted(text, quotes, special=False)
        return words.encode(text, special=False)


def labels_of(file: ModelFile, architecture: str, count: int) -> tuple[str, ...]:
    """The names of the numbers of a rank head; those that the file does not name have numbers."""
    given = file.metadata.get(f"{architecture}.classifier.output_labels", ())
    named = [str(x) for x in given] if isinstance(given, (list, tuple)) else []
    if not named and count == 2 and architecture in YES_OR_NO:
        named = list(YES_NO)
    return tuple(named[i] if i < len(named) else f"LABEL_{i}" for i in range(count))


async def read_rank_head(
    file: ModelFile, model: Description, templates: Mapping[str, str] | None
) -> RankHead | None:
    """The rank head of a file; None: it has none.

    Cancellation: nothing is left behind.
    """
    if model.pooling != "rank" or WEIGHT not in file.tensors:
        return None
    names = [name for name in (WEIGHT, BIAS) if name in file.tensors]
    arrays: dict[str, F32] = {}
    async with aggml.get_device("CPU").backend(n_threads=1) as cpu:
        await file.load(cpu, names=names)
        try:
            for name in names:
                tensor = file.tensors[name]
                blocks = await cpu.get(tensor)
                arrays[name] = await aggml.dequantize_async(blocks, tensor.dtype, ne=tensor.ne)
        finally:
            unplace(file.tensors[name] for name in names)
    weight = arrays[WEIGHT].reshape(-1, model.width)
    return RankHead(
        weight,
        arrays[BIAS].reshape(-1) if BIAS in arrays else None,
        probability=model.architecture in YES_OR_NO and len(weight) > 1,
        template=(templates or {}).get(TEMPLATE),
        labels=labels_of(file, model.architecture, len(weight)),
    )
