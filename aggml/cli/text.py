"""``aggml generate``, ``embed`` and ``rerank``: continue, embed and rank texts with a model.

Not here: conversations (chat.py), loading (shared.py).
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from aggml.cli.shared import (
    adapter_options,
    draft_option,
    load_model,
    model_options,
    picture_options,
    read_images,
    run_on_loop,
    show,
)
from aggml.models import rank

if TYPE_CHECKING:
    from collections.abc import Callable

    from aggml.cli.shared import ScaledPath

__all__ = ["embed", "generate", "rerank", "sampling_options"]


def _stdin() -> str:
    """The text of standard input; a byte order mark before it is none of its characters."""
    return sys.stdin.read().removeprefix("\ufeff")


def sampling_options(*, max_tokens: int, temperature: float) -> Callable[[Any], Any]:
    """Add the options that say how tokens are chosen.

    Args:
        max_tokens: the default of that option.
        temperature: the default of that option; the others have those of `TextModel.generate`.
    """

    def add(function: Any) -> Any:  # noqa: ANN401 click's decorators
        for option in reversed((
            click.option("-n", "--max-tokens", type=click.IntRange(0), default=max_tokens,
                         show_default=True, help="Most tokens of an answer."),
            click.option(
                "--temperature", type=click.FloatRange(0), default=temperature, show_default=True,
                help="Higher: more random answers; 0: always the most probable token.",
            ),
            click.option(
                "--top-k", type=click.IntRange(0), default=40, show_default=True,
                help="Draw from this many of the most probable tokens; 0: from all.",
            ),
            click.option(
                "--top-p", type=click.FloatRange(0, 1, min_open=True), default=0.95,
                show_default=True,
                help="Draw from the most probable tokens that add up to this probability.",
            ),
            click.option(
                "--min-p", type=click.FloatRange(0, 1), default=0.0, show_default=True,
                help="Do not draw tokens less probable than this times the most probable.",
            ),
            click.option(
                "--seed", type=click.IntRange(0),
                help="The same seed gives the same answer. [default: another seed each time]",
            ),
            click.option(
                "--stop", multiple=True, metavar="TEXT",
                help="End the answer before this text; may be given several times. "
                "[default: none]",
            ),
            click.option(
                "--stop-id", "stop_ids", type=click.IntRange(0), multiple=True, metavar="ID",
                callback=_list_values,
                help="End the answer at this token; may be given several times. "
                "[default: the tokens that the file names]",
            ),
            click.option(
                "--include-stop", is_flag=True,
                help="The text of --stop that ends the answer is part of it.",
            ),
            click.option(
                "--show-special", is_flag=True, help="Show the names of control tokens, too."
            ),
            click.option(
                "--allowed-id", "allowed_ids", type=click.IntRange(0), multiple=True, metavar="ID",
                callback=_list_values,
                help="The answer has no token but this one; may be given several times. "
                "[default: all are allowed]",
            ),
            click.option(
                "--bad-word", "bad_words", multiple=True, metavar="TEXT",
                help="The answer does not have this text; may be given several times. "
                "[default: none]",
            ),
            click.option(
                "--truncate-prompt", type=click.IntRange(1), metavar="N",
                help="Of a longer prompt take the last N tokens. [default: refuse what is too "
                "long]",
            ),
            click.option(
                "--presence-penalty", type=float, default=0.0, show_default=True,
                help="Subtracted from the logits of tokens that the answer has.",
            ),
            click.option(
                "--frequency-penalty", type=float, default=0.0, show_default=True,
                help="The same, for each time that the answer has the token.",
            ),
            click.option(
                "--repetition-penalty", type=click.FloatRange(0, min_open=True), default=1.0,
                show_default=True, help="Divides the logits of tokens of prompt and answer.",
            ),
            click.option(
                "--logit-bias", multiple=True, metavar="ID=BIAS", callback=_biases,
                help="Add BIAS to the logit of the token ID; may be given several times. "
                "[default: none]",
            ),
            click.option(
                "--min-tokens", type=click.IntRange(0), default=0, show_default=True,
                help="The answer has at least this many tokens.",
            ),
            click.option(
                "--ignore-eos", is_flag=True, help="Go on where the model would end the text."
            ),
            click.option(
                "--priority", type=int, default=0, show_default=True,
                help="Greater ones come first, among requests of one model.",
            ),
            click.option(
                "--deadline", type=click.FloatRange(0), metavar="S",
                help="Seconds until the answer must be complete. [default: none]",
            ),
            click.option(
                "--schema", metavar="JSON", callback=_text_or_file,
                help="The answer is JSON that this schema allows; @FILE reads it. [default: none]",
            ),
            click.option(
                "--regex", metavar="TEXT", callback=_text_or_file,
                help="The answer matches this regular expression. [default: none]",
            ),
            click.option(
                "--choice", "choices", multiple=True, metavar="TEXT", callback=_list_values,
                help="The answer is this text; may be given several times. [default: none]",
            ),
            click.option(
                "--grammar", metavar="TEXT", callback=_text_or_file,
                help="The answer is a sentence of this grammar, in GBNF or Lark; @FILE reads it. "
                "[default: none]",
            ),
            click.option(
                "--typical-p", type=click.FloatRange(0, 1, min_open=True), default=1.0,
                show_default=True,
                help="Draw from the tokens whose surprise is nearest to what is expected.",
            ),
            click.option(
                "--top-n-sigma", type=float, default=0.0, show_default=True,
                help="Draw from tokens so many standard deviations below the best; 0: from all.",
            ),
            click.option(
                "--xtc-probability", type=click.FloatRange(0, 1), default=0.0, show_default=True,
                help="How often the most probable tokens are left out.",
            ),
            click.option(
                "--xtc-threshold", type=click.FloatRange(0, 1), default=0.1, show_default=True,
                help="From which probability on.",
            ),
            click.option(
                "--dry-multiplier", type=click.FloatRange(0), default=0.0, show_default=True,
                help="The penalty for tokens with which a text would come again.",
            ),
            click.option(
                "--dry-base", type=click.FloatRange(1), default=1.75, show_default=True,
                help="That penalty grows by this factor with each token of the text.",
            ),
            click.option(
                "--dry-allowed-length", type=click.IntRange(1), default=2, show_default=True,
                help="Texts of fewer tokens may come again.",
            ),
            click.option(
                "--dry-range", type=click.IntRange(-1), metavar="N",
                help="How many last tokens are looked at. [default: all]",
            ),
            click.option(
                "--dry-breaker", "dry_breakers", multiple=True, metavar="TEXT",
                callback=_list_values,
                help="No repetition reaches over this text; may be given several times. "
                "[default: line feed, colon, quote, star]",
            ),
            click.option(
                "--dynatemp-range", type=click.FloatRange(0), default=0.0, show_default=True,
                help="The temperature differs by so much, as the next token is certain or not.",
            ),
            click.option(
                "--dynatemp-exponent", type=click.FloatRange(0), default=1.0, show_default=True,
                help="How.",
            ),
            click.option(
                "--mirostat", type=click.IntRange(0, 2), default=0, show_default=True,
                help="1 or 2: keep the surprise of tokens near --mirostat-tau.",
            ),
            click.option(
                "--mirostat-tau", type=click.FloatRange(0), default=5.0, show_default=True,
                help="That surprise, in bits.",
            ),
            click.option(
                "--mirostat-eta", type=click.FloatRange(0), default=0.1, show_default=True,
                help="How fast it adapts.",
            ),
            click.option(
                "--sampler", "samplers", multiple=True, metavar="NAME", callback=_list_values,
                help="A step between logits and draw; may be given several times, in order. "
                "[default: all of them, as llama.cpp has them]",
            ),
        )):  # fmt: skip
            function = option(function)
        return function

    return add


def _list_values(
    _context: click.Context, _option: click.Parameter, given: tuple[Any, ...]
) -> tuple[Any, ...] | None:
    """The values of an option that may be given several times; None if it was not given."""
    return given or None


def _text_or_file(
    _context: click.Context, _option: click.Parameter, given: str | None
) -> str | None:
    """A text, or that of the file after an at sign."""
    if given is None or not given.startswith("@"):
        return given
    try:
        return Path(given[1:]).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise click.BadParameter(f"{given[1:]!r} cannot be read: {error}") from error


def _biases(
    _context: click.Context, _option: click.Parameter, given: tuple[str, ...]
) -> dict[int, float] | None:
    """Tokens with their biases, from texts ID=BIAS."""
    found = {}
    for text in given:
        token, sign, bias = text.partition("=")
        try:
            found[int(token)] = float(bias)
        except ValueError:
            sign = ""
        if not sign:
            raise click.BadParameter(f"{text!r} is not ID=BIAS, as in 300=-100")
    return found or None


@click.command
@model_options
@adapter_options
@draft_option
@picture_options
@click.option("-p", "--prompt", metavar="TEXT", help="Text to continue. [default: standard input]")
@click.option(
    "--json", "as_json", is_flag=True, help="One JSON object at the end: text, ids, speeds."
)
@click.option(
    "--logprobs", type=click.IntRange(0), metavar="N",
    help="With --json also the probability of each token, and of the N most probable ones. "
    "[default: none]",
)  # fmt: skip
@click.option(
    "--post-sampling-probs", is_flag=True,
    help="With --logprobs: the probabilities with which tokens are drawn, not the model's.",
)  # fmt: skip
@click.option(
    "--prompt-logprobs", type=click.IntRange(0), metavar="N",
    help="With --json also the probability of each token of the prompt, and of the N most probable "
    "ones. [default: none]",
)  # fmt: skip
@sampling_options(max_tokens=24, temperature=0.0)
@run_on_loop
async def generate(
    model: Path,
    device: tuple[str, ...],
    threads: int | None,
    ctx: int | None,
    cache: str,
    adapters: tuple[ScaledPath, ...],
    control_vectors: tuple[ScaledPath, ...],
    draft: str | None,
    mmproj: Path | None,
    images: tuple[Path, ...],
    prompt: str | None,
    as_json: bool,
    logprobs: int | None,
    post_sampling_probs: bool,
    prompt_logprobs: int | None,
    **sampling: Any,  # noqa: ANN401 as `sampling_options` has them
) -> None:
    """Continue a prompt with MODEL, a GGUF file or a folder of Hugging Face."""
    pictures = await read_images(mmproj, images)
    text = _stdin() if prompt is None else prompt
    async with load_model(
        model, device, threads, ctx, cache, adapters=adapters, control_vectors=control_vectors,
        draft=draft, mmproj=mmproj,
    ) as loaded:  # fmt: skip
        ids = loaded.tokenizer.encode_prompt(text)
        if not ids:
            raise click.UsageError("the prompt is empty: give --prompt, or text on standard input")
        made, pieces, told, first = [], [], [], 0.0
        begin = time.perf_counter()
        given: Any = [*pictures, text] if pictures else ids
        stream = loaded.generate(
            given, logprobs=logprobs, post_sampling_probs=post_sampling_probs,
            prompt_logprobs=prompt_logprobs, **sampling,
        )  # fmt: skip
        async for token in stream:
            first = first or time.perf_counter()
            made.append(token.id)
            pieces.append(token.text)
            if logprobs is not None:
                told.append({"logprob": token.logprob, "top": token.top})
            if not as_json:
                click.echo(token.text, nl=False)
        end = time.perf_counter()
    if not as_json:
        click.echo()
        return
    show(
        {
            "architecture": loaded.architecture,
            "prompt_ids": ids,
            "ids": made,
            "text": "".join(pieces),
            "finish": stream.finish_reason,
            **({} if logprobs is None else {"logprobs": told}),
            **(
                {}
                if stream.prompt_logprobs is None
                else {
                    "prompt_logprobs": [
                        {"id": x.id, "logprob": x.logprob, "top": x.top, "rank": x.rank}
                        for x in stream.prompt_logprobs
                    ]
                }
            ),
            "prompt_tokens_per_second": len(ids) / (first - begin) if made else None,
            "tokens_per_second": (len(made) - 1) / (end - first) if len(made) > 1 else None,
        }
    )


@click.command
@model_options
@adapter_options
@click.argument("texts", nargs=-1)
@click.option(
    "--sparse",
    is_flag=True,
    help="Print weights of words instead, as ID:WEIGHT. MODEL must have a head for them (SPLADE).",
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print one JSON list with a list of numbers for each text; with --sparse with an object "
    "of weights by token id.",
)
@run_on_loop
async def embed(
    model: Path,
    device: tuple[str, ...],
    threads: int | None,
    ctx: int | None,
    cache: str,
    adapters: tuple[ScaledPath, ...],
    control_vectors: tuple[ScaledPath, ...],
    texts: tuple[str, ...],
    sparse: bool,
    as_json: bool,
) -> None:
    """Print a vector of length 1 for each of TEXTS, or for each line of standard input."""
    lines = list(texts) or _stdin().splitlines()
    async with load_model(
        model, device, threads, ctx, cache, adapters=adapters, control_vectors=control_vectors
    ) as loaded:
        terms = await loaded.embed_sparse(lines) if sparse else None
        vectors = None if sparse else await loaded.embed(lines)
    if terms is not None:
        if as_json:
            show(terms)
            return
        for one in terms:
            click.echo(" ".join(f"{token}:{weight:.6g}" for token, weight in one.items()))
        return
    assert vectors is not None
    if as_json:
        show(vectors.tolist())
        return
    for vector in vectors:
        click.echo(" ".join(f"{x:.6g}" for x in vector))


@click.command
@model_options
@adapter_options
@click.argument("query")
@click.argument("documents", nargs=-1)
@click.option(
    "--top-n", type=click.IntRange(1), help="Print only this many documents. [default: all]"
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print a JSON list of index and relevance_score, best first.",
)
@run_on_loop
async def rerank(
    model: Path,
    device: tuple[str, ...],
    threads: int | None,
    ctx: int | None,
    cache: str,
    adapters: tuple[ScaledPath, ...],
    control_vectors: tuple[ScaledPath, ...],
    query: str,
    documents: tuple[str, ...],
    top_n: int | None,
    as_json: bool,
) -> None:
    """Print DOCUMENTS (or the lines of standard input), the best answer to QUERY first."""
    lines = list(documents) or _stdin().splitlines()
    async with load_model(
        model, device, threads, ctx, cache, adapters=adapters, control_vectors=control_vectors
    ) as loaded:
        best = rank((await loaded.rerank(query, lines)).tolist(), top_n)
    if as_json:
        show([{"index": x.index, "relevance_score": x.score} for x in best])
        return
    for found in best:
        click.echo(f"{found.score:.4f}  {lines[found.index]}")
