"""Routes of models with a rank head: rerank, score, classify.

Rerank is in the form of Cohere and Jina, or of text-embeddings-inference; score and classify are in
that of vLLM. Not here: fields (schema.py), the head (`aggml.models`).
"""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING, Any, Final

import anyio
import numpy as np
from anyio.lowlevel import checkpoint

from aggml.models import EncoderModel, EngineError, TextModel, rank
from aggml.serve.http.exchange import Endpoint, Exchange
from aggml.serve.http.forms import DAMAGED, as_json
from aggml.serve.http.generating import encode, encode_texts
from aggml.serve.http.openai import vectors_of
from aggml.serve.http.schema import Classify, ModelRequest, RequestError, Rerank, Score
from aggml.serve.http.streams import hung_up_cancels

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    import numpy.typing as npt
    from starlette.responses import Response

    F32 = npt.NDArray[np.float32]
    F64 = npt.NDArray[np.float64]

__all__ = ["ENDPOINTS", "classify", "rerank", "score"]

YES_NO: Final = ("yes", "no")  # rows of a head whose score is the probability of the first one


async def rerank(exchange: Exchange) -> Response:
    """Sort documents by how well they answer a query."""
    given = await exchange.read(Rerank)
    texts = given.found
    if not texts:
        raise RequestError(400, "the field 'documents' is missing", field="documents")
    model = await exchange.ranker(given)
    most = model.ctx if given.truncate or given.max_tokens_per_doc else None
    pairs = await _encode_pairs(
        model, [(given.query, x) for x in texts], "documents",
        most=_most(given.truncate_prompt, model.ctx) or most, each=given.max_tokens_per_doc or None,
    )  # fmt: skip
    if given.texts is not None and given.documents is None:
        logits = _logits(await _numbers(exchange, model, given, pairs), model.labels)
        scores = logits if given.raw_scores else _sigmoid(logits)
        return as_json(
            [
                {"index": x.index, "score": x.score}
                | ({"text": texts[x.index]} if given.return_text else {})
                for x in rank(scores.tolist(), given.top_n)
            ]
        )
    found = rank(await _scores(exchange, model, given, pairs), given.top_n)
    results: list[dict[str, object]] = []
    for one in found:
        result: dict[str, object] = {"index": one.index, "relevance_score": one.score}
        if given.return_documents:
            result["document"] = {"text": texts[one.index]}
        results.append(result)
    return as_json({
        "id": f"rerank-{secrets.token_hex(12)}", "object": "list", "model": exchange.model,
        "results": results, "usage": _usage(pairs),
    })  # fmt: skip


async def score(exchange: Exchange) -> Response:
    """Score pairs of texts: by the rank head, or by the cosine of their vectors."""
    given = await exchange.read(Score)
    one, two = ([x] if isinstance(x, str) else x for x in (given.text_1, given.text_2))
    if len(one) == 1:
        one = one * len(two)
    if len(one) != len(two):
        raise RequestError(
            400, f"text_1: has {len(one)} texts and text_2 {len(two)}; there must be as many, or "
            "one text_1", field="text_1",
        )  # fmt: skip
    model = await exchange.scorer(given)
    if model.ranks:
        if len(model.labels) != 1 and model.labels != YES_NO:
            raise RequestError(
                400, f"model: {exchange.model!r} has {len(model.labels)} classes, and no score of "
                "a pair: /classify tells them", field="model",
            )  # fmt: skip
        together = list(zip(one, two, strict=True))
        most = _most(given.truncate_prompt, model.ctx)
        ids = await _encode_pairs(model, together, "text_2", most=most)
        logits = _logits(await _numbers(exchange, model, given, ids), model.labels)
        scores = _sigmoid(logits) if given.activated else logits
    else:
        most = _most(given.truncate_prompt, model.ctx)
        ids = await _encode_each(model, [*one, *two], len(one), most)
        vectors = await vectors_of(exchange, model, given, ids, normalize=True)
        scores = np.einsum("ij,ij->i", *np.split(vectors.astype(np.float64), 2))
    data = [{"index": i, "object": "score", "score": x} for i, x in enumerate(scores.tolist())]
    return as_json(_list("score", exchange, data, ids))


async def classify(exchange: Exchange) -> Response:
    """Classify texts: the most probable class of each, and how probable all are."""
    given = await exchange.read(Classify)
    model = await exchange.classifier(given)
    cut = given.truncate_prompt
    most = None if cut is None or cut < 1 else cut
    ids = await encode_texts(model, given.input, "input", exchange, cut=bool(cut), most=most)
    numbers = await _numbers(exchange, model, given, ids)
    probable = _probabilities(numbers) if given.activated else numbers
    data = []
    for i, each in enumerate(probable):
        best = model.labels[int(np.argmax(each))]
        told = {"label": best, "probs": each.tolist(), "num_classes": len(each)}
        data.append({"index": i} | told)
        await checkpoint()
    return as_json(_list("classify", exchange, data, ids))


def _most(given: int | None, ctx: int) -> int | None:
    """How many tokens are taken, as a request says it; None: all."""
    if not given:
        return None
    return ctx if given < 0 else min(given, ctx)


async def _encode_pairs(
    model: EncoderModel | TextModel,
    pairs: Sequence[tuple[str, str]],
    field: str,
    *,
    most: int | None = None,
    each: int | None = None,
) -> list[list[int]]:
    """The tokens of each pair.

    Args:
        model: ranks them.
        pairs: queries and documents.
        field: has the documents.
        most: documents are cut so that a pair has so many tokens; None: they are not.
        each: documents are cut to so many tokens; None: they are not.

    Raises:
        RequestError: one has more than the model takes.
    """
    found = []
    for i, (one, two) in enumerate(pairs):
        bound = most
        if each is not None:
            bound = min(most or model.ctx, len(model.encode_pair(one, "")) + each)
        ids = await encode(lambda x, y, n=bound: model.encode_pair(x, y, most=n), one, two)
        if not 0 < len(ids) <= model.ctx:
            raise RequestError(
                400, f"{field}: text {i} and the one that it is compared with have {len(ids)} "
                f"tokens, but the model takes 1 to {model.ctx}", field=field,
                code="context_length_exceeded",
            )  # fmt: skip
        found.append(ids)
        await checkpoint()
    return found


async def _encode_each(
    model: EncoderModel | TextModel, texts: Sequence[str], first: int, most: int | None
) -> list[list[int]]:
    """The tokens of texts, of which the first ones are those of ``text_1``; at most ``most``.

    Raises:
        RequestError: one has more than the model takes.
    """
    found = []
    for i, text in enumerate(texts):
        ids = await encode(model.tokenizer.encode_prompt, text)
        if most is not None and len(ids) > most:
            ids = [*ids[: most - 1], ids[-1]]
        if not 0 < len(ids) <= model.ctx:
            field = "text_1" if i < first else "text_2"
            raise RequestError(
                400, f"{field}: text {i % first} has {len(ids)} tokens, but the model takes 1 to "
                f"{model.ctx}", field=field, code="context_length_exceeded",
            )  # fmt: skip
        found.append(ids)
        await checkpoint()
    return found


async def _numbers(
    exchange: Exchange,
    model: EncoderModel | TextModel,
    given: ModelRequest,
    ids: Sequence[Sequence[int]],
) -> F64:
    """The numbers of the head for each sequence.

    Raises:
        EngineError: one is not finite.
    """
    return await _compute(exchange, given, model.classify_ids, ids)


async def _scores(
    exchange: Exchange,
    model: EncoderModel | TextModel,
    given: Rerank,
    pairs: Sequence[Sequence[int]],
) -> list[float]:
    """The score of each pair, as `TextModel.rerank` says it, or as the request asks for.

    Raises:
        EngineError: one is not finite.
    """
    activated = given.activation if given.use_activation is None else given.use_activation
    if activated is None:
        scores = await _compute(exchange, given, model.rerank_ids, pairs)
    else:
        logits = _logits(await _numbers(exchange, model, given, pairs), model.labels)
        scores = _sigmoid(logits) if activated else logits
    found: list[float] = scores.tolist()
    return found


async def _compute(
    exchange: Exchange,
    given: ModelRequest,
    compute: Callable[..., Awaitable[F32]],
    ids: Sequence[Sequence[int]],
) -> F64:
    options: dict[str, Any] = {"priority": given.priority, "deadline": given.timeout}
    if exchange.adapter is not None:
        options["adapter"] = exchange.adapter
    with anyio.fail_after(exchange.seconds(given)):
        async with hung_up_cancels(exchange.request.receive):
            found = (await compute(ids, **options)).astype(np.float64)
    for i, numbers in enumerate(found):
        if not np.isfinite(numbers).all():
            raise EngineError(f"the score of document {i} is {numbers}: {DAMAGED}")
    return found


def _logits(numbers: F64, labels: Sequence[str]) -> F64:
    """One number for each row, of which a sigmoid makes a probability."""
    found: F64 = numbers[:, 0] - numbers[:, 1] if labels == YES_NO else numbers[:, 0]
    return found


def _sigmoid(numbers: F64) -> F64:
    found: F64 = 1 / (1 + np.exp(-np.clip(numbers, -700.0, 700.0)))
    return found


def _probabilities(numbers: F64) -> F64:
    """Of all classes of each row; a single one has a probability of its own."""
    if numbers.shape[1] == 1:
        return _sigmoid(numbers)
    powers = np.exp(numbers - numbers.max(axis=1, keepdims=True))
    found: F64 = powers / powers.sum(axis=1, keepdims=True)
    return found


def _usage(ids: Sequence[Sequence[int]]) -> dict[str, int]:
    tokens = sum(map(len, ids))
    return {"prompt_tokens": tokens, "total_tokens": tokens}


def _list(
    kind: str, exchange: Exchange, data: list[Any], ids: Sequence[Sequence[int]]
) -> dict[str, Any]:
    """An answer in the form of vLLM."""
    usage = {**_usage(ids), "completion_tokens": 0, "prompt_tokens_details": None}
    return {
        "id": f"{kind}-{secrets.token_hex(12)}", "object": "list", "created": int(time.time()),
        "model": exchange.model, "data": data, "usage": usage,
    }  # fmt: skip


ENDPOINTS: Final = (
    Endpoint(
        "/v1/rerank", rerank, Rerank,
        aliases=("/rerank", "/v2/rerank", "/v1/reranking", "/reranking"),
    ),
    Endpoint("/score", score, Score, aliases=("/v1/score",)),
    Endpoint("/classify", classify, Classify, aliases=("/v1/classify",)),
)  # fmt: skip
