"""``aggml serve``: models over HTTP, with the routes of OpenAI.

Not here: the service (aggml.serve).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from aggml.cli.shared import UserPath, bar, device_options, tell
from aggml.process.extras import install_command

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aggml.serve import Limits

__all__ = ["serve"]


@click.command
@click.argument(
    "models", nargs=-1, required=True, metavar="MODEL...",
    type=UserPath(exists=True, path_type=Path),
)  # fmt: skip
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8000, show_default=True,
    help="Port to listen on; 0: a free one, which the log names.",
)  # fmt: skip
@click.option(
    "--json", "as_json", is_flag=True,
    help="Print a line with a JSON object for each event: listening, request, stopped.",
)  # fmt: skip
@click.option(
    "--api-key", envvar="AGGML_API_KEY", show_envvar=True, metavar="KEY",
    help="Answer only requests that bring this key. [default: answer all]",
)  # fmt: skip
@device_options
@click.option(
    "--slots", type=click.IntRange(1),
    help="Most sequences that are computed at the same time. [default: 16; 4 windows of speech]",
)  # fmt: skip
@click.option(
    "--kv-memory", type=click.IntRange(1), default=512, show_default=True, metavar="MB",
    help="Megabytes of memory for the keys and values of all sequences.",
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
    """Answer requests over HTTP for each MODEL, as OpenAI's clients send them.

    Files whose models continue text serve completions and chats; encoders serve embeddings. SIGTERM
    and Ctrl-C let requests under way end; a second one cuts them off.
    """
    try:
        from aggml.serve.http import Address, Options, run
    except ModuleNotFoundError as error:
        raise click.ClickException(f"{error}; get it with: {install_command('serve')}") from error
    from aggml.serve import Limits

    limits = Limits(
        slots=given["slots"],
        ctx=given["ctx"],
        cache=given["cache"],
        kv_memory=given["kv_memory"] << 20,
        chunk=given["chunk"],
        max_waiting=given["queue"],
        prefix_cache=None if given["prefix_cache"] is None else given["prefix_cache"] << 20,
    )
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
            deadline=given["deadline"],
            drain=given["drain"],
            api_key=given["api_key"],
            collect_seldom=True,
            progress=None if progress is None else lambda _, done, total: progress(done, total),
        )
        where = Address(
            given["host"], given["port"], loop, given["log_level"], tell if as_json else None
        )
        status = run(options, where)
    raise click.exceptions.Exit(status)


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
        deadline=given["deadline"],
        drain=given["drain"],
        api_key=given["api_key"],
    )
    of_ray.start(http_options={"host": given["host"], "port": given["port"]})
    of_ray.run(application, blocking=True)
