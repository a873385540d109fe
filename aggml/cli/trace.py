"""``aggml trace COMMAND ...``: runs another command and shows what ran on its streams, and when.

Not here: collecting and drawing (aggml.trace).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import aggml
from aggml.cli.shared import UserPath, show

if TYPE_CHECKING:
    from aggml import Trace

__all__ = ["trace"]

FILE = UserPath(dir_okay=False, path_type=Path)


@click.command(
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.option(
    "--picture", type=FILE, default="trace.svg", show_default=True,
    help="File for the timeline: .svg, or .html for a page that zooms.",
)  # fmt: skip
@click.option(
    "--out", type=FILE, default="trace.json", show_default=True,
    help="File for the events, which https://ui.perfetto.dev shows.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print the summary as one JSON value.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.pass_context
def trace(
    context: click.Context, picture: Path, out: Path, as_json: bool, command: tuple[str, ...]
) -> None:
    """Run COMMAND and record what its devices did: aggml trace generate MODEL.gguf -p Hello.

    The summary goes to standard error, since the command writes to standard output. The exit status
    is that of the command. Options of trace come before COMMAND.
    """
    if picture.suffix.lower() not in (".html", ".svg"):
        raise click.BadParameter(
            f"{str(picture)!r} must end with .svg or .html", param_hint="--picture"
        )
    program = context.find_root().command
    if command[0] == "trace":
        raise click.UsageError("trace cannot trace itself: give another command, as generate")
    with aggml.trace() as traced:
        try:
            status = program.main([*command], context.find_root().info_name, standalone_mode=False)
        except SystemExit as end:
            status = end.code
    traced.save(out)
    found = _summary(traced)
    found["files"] = [str(out)]
    if any(row["seconds"] for row in found["streams"].values()):
        traced.plot(picture, title="aggml " + " ".join(command))
        found["files"].append(str(picture))
    if as_json:
        show(found, err=True)
    else:
        for name, row in found["streams"].items():
            told = f"{row['operations']} operations, {row['seconds'] * 1e3:.1f} ms busy"
            click.echo(f"{name}: {told}, {row['bytes']:,} bytes moved", err=True)
        click.echo("written: " + ", ".join(found["files"]), err=True)
    if status:
        raise click.exceptions.Exit(int(status))


def _summary(traced: Trace) -> dict[str, Any]:
    """For each stream the number of operations, the bytes moved, and the seconds of work."""
    rows: dict[str, dict[str, float]] = {}
    names: dict[int, str] = {}
    for event in traced.to_json()["traceEvents"]:
        if event["ph"] == "M":
            names[event["tid"]] = event["args"]["name"]
            continue
        row = rows.setdefault(names[event["tid"]], {"operations": 0, "seconds": 0.0, "bytes": 0})
        row["operations"] += 1
        row["bytes"] += event["args"]["bytes"]
        if event["cat"] == "work":
            row["seconds"] += event["dur"] / 1e6
    return {"streams": rows}
