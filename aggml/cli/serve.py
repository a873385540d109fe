"""``aggml serve``: models over HTTP, with the routes of OpenAI and others.

Not here: the service (aggml.serve).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from aggml.cli.shared import UserPath, bar, device_options, draft_option, named_paths, tell
from aggml.process.extras import install_command

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aggml.serve import Limits

__all__ = ["serve"]


def _named_values(
    _context: click.Context, option: click.Parameter, given: tuple[str, ...]
) -> dict[str, Any]:
    """Values by name, from texts NAME=VALUE.

    Raises:
        BadParameter: a text has no name.
    """
    found: dict[str, Any] = {}
    for text in given:
        name, sign, value = text.partition("=")
        if not sign or not name:
            raise click.BadParameter(f"{text!r} is not of the form FIELD=VALUE", param=option)
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found


@click.command
@click.argument(
    "models", nargs=-1, required=True, metavar="MODEL...",
    type=UserPath(exists=True, path_type=Path),
)  # fmt: skip
@click.option(
    "--host", default="127.0.0.1", show_default=True,
    help="Address to listen on; several are divided by commas, as in 127.0.0.1,::1.",
)  # fmt: skip
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8000, show_default=True,
    help="Port to listen on; 0: a free one, which the log names.",
)  # fmt: skip
@click.option(
    "--json", "as_json", is_flag=True,
    help="Print a line with a JSON object for each event: listening, request, stopped.",
)  # fmt: skip
@click.option(
    "--api-key", envvar="AGGML_API_KEY", show_envvar=True, metavar="KEY", multiple=True,
    help="Answer only requests that bring this key, or another one that is given. [default: answer "
    "all]",
)  # fmt: skip
@click.option(
    "--api-key-file", type=UserPath(exists=True, dir_okay=False, path_type=Path), metavar="FILE",
    help="Further keys: lines of a key, or of a name for records and a key. [default: none]",
)  # fmt: skip
@click.option(
    "--alias", "aliases", multiple=True, metavar="NAME[=MODEL]",
    help="Another name of the first model, or of the MODEL of that name; the first alias is the "
    "one in answers; *: any name that no model has. [default: the file's name without ending]",
)  # fmt: skip
@click.option(
    "--tag", "tags", multiple=True, metavar="TAG[=MODEL]",
    help="A word about the first model, or about the MODEL of that name, which the list of models "
    "tells. [default: none]",
)  # fmt: skip
@click.option(
    "--adapter", "adapters", multiple=True, metavar="NAME=PATH[:SCALE]", callback=named_paths,
    help="LoRA adapter of the first model: a GGUF file or a folder of PEFT. Requests choose it by "
    "the field adapter, or by its name as that of the model. [default: none]",
)  # fmt: skip
@click.option(
    "--default", "defaults", multiple=True, metavar="FIELD=VALUE", callback=_named_values,
    help="Value of a field that a request leaves out, such as temperature=0 or max_tokens=256; in "
    "JSON, or a text. [default: those of the documentation]",
)  # fmt: skip
@click.option(
    "--chat-template", metavar="TEXT|FILE",
    help="A chat template instead of those of the files. [default: theirs]",
)  # fmt: skip
@click.option(
    "--mmproj", type=UserPath(exists=True, dir_okay=False, path_type=Path), metavar="FILE",
    help="File that makes embeddings of pictures for MODEL, so that messages may have pictures. "
    "[default: none]",
)  # fmt: skip
@click.option(
    "--strict", is_flag=True,
    help="Refuse fields that nobody knows, instead of ignoring and telling them.",
)  # fmt: skip
@click.option(
    "--max-body", type=click.IntRange(1), default=16, show_default=True, metavar="MB",
    help="Megabytes of a request's body, before and after it is decompressed.",
)  # fmt: skip
@click.option(
    "--max-inputs", type=click.IntRange(1), default=2048, show_default=True,
    help="Most prompts, or texts to embed, in one request.",
)  # fmt: skip
@click.option(
    "--header-timeout", type=click.FloatRange(0, min_open=True), default=30.0, show_default=True,
    metavar="S", help="Seconds in which the head of a request must be complete.",
)  # fmt: skip
@click.option(
    "--body-timeout", type=click.FloatRange(0, min_open=True), default=60.0, show_default=True,
    metavar="S", help="Seconds in which the next part of a request's body must come.",
)  # fmt: skip
@click.option(
    "--ping", type=click.FloatRange(0), default=15.0, show_default=True, metavar="S",
    help="Seconds after which a silent stream gets a comment, so that it is not taken for dead; "
    "0: never.",
)  # fmt: skip
@click.option(
    "--rate", type=click.IntRange(1), metavar="N",
    help="Requests that a client may begin in a minute; further ones are answered 429. A client is "
    "known by its key, without keys by its address. [default: any number]",
)  # fmt: skip
@click.option(
    "--concurrency", type=click.IntRange(1), metavar="N",
    help="Requests that a client may have under way. [default: any number]",
)  # fmt: skip
@click.option(
    "--cors", multiple=True, metavar="ORIGIN",
    help="Let pages of this origin ask, such as https://chat.example; localhost: those of this "
    "machine, of any port; *: of all. [default: none]",
)  # fmt: skip
@click.option(
    "--memory", type=click.IntRange(1), metavar="MB",
    help="Megabytes for all models together: each is loaded when it is asked for, and unloaded "
    "when others need its room. [default: all are loaded at once and stay]",
)  # fmt: skip
@click.option(
    "--idle", type=click.FloatRange(0, min_open=True), metavar="S",
    help="With --memory: seconds after which a model that nobody uses is unloaded. "
    "[default: never]",
)  # fmt: skip
@click.option(
    "--sessions", type=click.IntRange(1), default=256, show_default=True, metavar="N",
    help="Most sessions of live speech at a time; further ones are answered 503.",
)  # fmt: skip
@click.option(
    "--session-idle", type=click.FloatRange(0, min_open=True), default=300.0, show_default=True,
    metavar="S", help="Seconds after which a session from which nothing came is ended.",
)  # fmt: skip
@click.option(
    "--without", multiple=True, metavar="PATH",
    help="Answer the route of this path with 501, such as /slots or /metrics. [default: none]",
)  # fmt: skip
@click.option("--no-page", is_flag=True, help="Do not show the page with a chat at /.")
@device_options
@click.option(
    "--slots", type=click.IntRange(1),
    help="Most sequences that are computed at the same time. [default: 16; 4 windows of speech]",
)  # fmt: skip
@click.option(
    "--kv-memory", type=click.IntRange(1), metavar="MB",
    help="Megabytes of memory for the keys and values of all sequences. [default: 512; of a device "
    "with memory of its own what fits]",
)  # fmt: skip
@click.option(
    "--prefix-cache", type=click.IntRange(0), metavar="MB",
    help="Megabytes of --kv-memory for the beginnings of recent prompts, which then need not be "
    "computed again; 0: none. [default: half of --kv-memory]",
)  # fmt: skip
@click.option(
    "--chunk", type=click.IntRange(1), default=128, show_default=True,
    help="Most tokens in one decoding step, those of prompts included.",
)  # fmt: skip
@draft_option
@click.option(
    "--queue", type=click.IntRange(1), default=256, show_default=True,
    help="Most requests that wait; further ones are answered 503.",
)  # fmt: skip
@click.option(
    "--deadline", type=click.IntRange(1), default=120, show_default=True, metavar="S",
    help="Seconds after which a request that is not answered is ended.",
)  # fmt: skip
@click.option(
    "--drain", type=click.IntRange(1), default=30, show_default=True, metavar="S",
    help="Seconds that requests under way have to end after the server is told to stop.",
)  # fmt: skip
@click.option(
    "--loop", type=click.Choice(["asyncio", "trio"]), default="asyncio", show_default=True,
    help="The event loop; uvicorn serves on asyncio, hypercorn on trio.",
)  # fmt: skip
@click.option(
    "--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info",
    show_default=True, help="Least level that is logged; debug logs each request, too.",
)  # fmt: skip
@click.option(
    "--ray", "on_ray", is_flag=True,
    help="Serve from replicas on a Ray cluster: that of RAY_ADDRESS, or one that is started here.",
)  # fmt: skip
@click.option(
    "--replicas", default="1", show_default=True, metavar="N|MIN:MAX",
    help="Number of replicas with --ray; MIN:MAX: Ray Serve starts as many as the requests need.",
)  # fmt: skip
def serve(
    models: Sequence[Path],
    loop: Literal["asyncio", "trio"],
    *,
    as_json: bool,
    on_ray: bool,
    replicas: str,
    **given: Any,  # noqa: ANN401 the options
) -> None:
    """Answer requests over HTTP for each MODEL, as clients of OpenAI and others send them.

    The protocols are those of OpenAI, Anthropic, llama-server and Ollama. Files whose models
    continue text serve completions and chats; encoders serve embeddings. SIGTERM and Ctrl-C let
    requests under way end; a second one cuts them off.
    """
    try:
        from aggml.serve.http import Address, Options, run
    except ModuleNotFoundError as error:
        raise click.ClickException(f"{error}; get it with: {install_command('serve')}") from error
    from aggml.serve import Limits

    draft = given["draft"]
    if draft not in (
        None,
        "lookup",
        "ngram",
        "mtp",
    ):  # replicas of Ray have another working directory
        kind = "ngram:" if draft.startswith("ngram:") else ""
        draft = kind + str(Path(draft.removeprefix(kind)).expanduser().resolve())
    limits = Limits(
        slots=given["slots"],
        ctx=given["ctx"],
        cache=given["cache"],
        kv_memory=None if given["kv_memory"] is None else given["kv_memory"] << 20,
        chunk=given["chunk"],
        max_waiting=given["queue"],
        prefix_cache=None if given["prefix_cache"] is None else given["prefix_cache"] << 20,
        chat_template=given["chat_template"],
        draft=draft,
        mmproj=None if given["mmproj"] is None else str(given["mmproj"]),
    )
    if limits.mmproj is not None and len(models) > 1:
        raise click.UsageError("--mmproj belongs to one MODEL, and there are several")
    if on_ray:
        if as_json:
            raise click.UsageError(
                "--json cannot be used with --ray: it reports requests of this process, but "
                "replicas run in other processes"
            )
        _replicate(models, limits, replicas, given)
        return
    with bar("loading") as progress:
        options = Options(
            models=models,
            devices=given["device"],
            threads=given["threads"],
            limits=limits,
            collect_seldom=True,
            progress=None if progress is None else lambda _, done, total: progress(done, total),
            **_service_options(given),
        )
        where = Address(
            given["host"], given["port"], loop, given["log_level"], tell if as_json else None
        )
        status = run(options, where)
    raise click.exceptions.Exit(status)


def _service_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a service, here or in a replica, as `aggml.serve.http.Options` has them."""
    same = (
        "deadline", "drain", "api_key", "api_key_file", "aliases", "tags", "adapters",
        "defaults",
        "strict", "max_inputs", "header_timeout", "body_timeout", "ping", "rate", "concurrency",
        "cors", "idle", "sessions", "session_idle", "without",
    )  # fmt: skip
    return {name: given[name] for name in same} | {
        "max_body": given["max_body"] << 20,
        "memory": None if given["memory"] is None else given["memory"] << 20,
        "page": not given["no_page"],
    }


def _replicate(
    models: Sequence[Path], limits: Limits, replicas: str, given: Mapping[str, Any]
) -> None:
    """Run the service on Ray until it is told to stop."""
    try:
        from ray import serve as of_ray

        from aggml.ray import service
    except ModuleNotFoundError as error:
        raise click.ClickException(f"{error}; get it with: {install_command('ray')}") from error
    fewest, _, most = replicas.partition(":")
    try:
        number = int(fewest), int(most or fewest)
    except ValueError as error:
        raise click.BadParameter(
            f"{replicas!r} is neither a number nor a range MIN:MAX", param_hint="--replicas"
        ) from error
    application = service(
        models,
        replicas=number,
        threads=given["threads"] or 1,
        devices=given["device"],
        limits=limits,
        **_service_options(given),
    )
    of_ray.start(http_options={"host": given["host"], "port": given["port"]})
    of_ray.run(application, blocking=True)
