"""``aggml fit``: says which context and how many sequences of a model fit into memory.

Not here: the decision (aggml.models).
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from aggml.cli.shared import CACHES, UserPath, device_names, draft_option, run_on_loop, show

if TYPE_CHECKING:
    from aggml.models import Fit

__all__ = ["fit"]


@click.command
@click.argument("model", type=UserPath(exists=True, path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="One JSON value, for programs.")
@click.option(
    "--memory", type=click.IntRange(1), metavar="MB",
    help="Megabytes for all of the model. [default: what is free]",
)  # fmt: skip
@click.option(
    "--ctx", type=click.IntRange(1), metavar="N",
    help="Tokens of a sequence. [default: the most that fit, as the model was trained, at most "
    "4096]",
)  # fmt: skip
@click.option(
    "--slots", type=click.IntRange(1), metavar="N",
    help="Sequences at a time. [default: as many as fit at full length, at most 16]",
)  # fmt: skip
@click.option(
    "--device", metavar="NAME", multiple=True, shell_complete=device_names,
    help="Device of `aggml devices`; several share the model. [default: the best]",
)  # fmt: skip
@click.option(
    "--cache", default="f16", show_default=True, type=click.Choice(CACHES),
    help="Element type of the cached keys and values.",
)  # fmt: skip
@draft_option
@click.option(
    "--mmproj", type=UserPath(exists=True, dir_okay=False, path_type=Path), metavar="PATH",
    help="GGUF file that makes embeddings of pictures. [default: none]",
)  # fmt: skip
@run_on_loop
async def fit(
    model: Path,
    as_json: bool,
    memory: int | None,
    ctx: int | None,
    slots: int | None,
    device: tuple[str, ...],
    cache: str,
    draft: str | None,
    mmproj: Path | None,
) -> None:
    """Print what of MODEL fits into memory, and the bytes of each part; nothing is loaded.

    Fails if it does not fit, and says what would.
    """
    from aggml import models
    from aggml.models import computing

    wanted: dict[str, Any] = {"ctx": ctx, "slots": slots, "cache": cache}
    wanted |= {"draft": draft, "mmproj": mmproj}
    wanted["memory"] = None if memory is None else memory << 20
    if device:
        async with computing(device, None) as on:
            found = await models.fit(model, on, **wanted)
    else:
        found = await models.fit(model, **wanted)
    if as_json:
        show(_as_json(found))
    else:
        click.echo(str(found))


def _as_json(found: Fit) -> dict[str, Any]:
    """A fit for JSON."""
    return asdict(found) | {"cache": None if found.cache is None else found.cache.type_name}
