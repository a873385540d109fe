"""``aggml devices``: lists the devices that can compute.

Not here: loading plug-ins (aggml.registry).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

import aggml
from aggml.cli.shared import show
from aggml.registry.inventory import describe, inventory

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["devices"]


@click.command
@click.option("--json", "as_json", is_flag=True, help="One JSON value, for programs.")
@click.option(
    "--path",
    "paths",
    multiple=True,
    metavar="FOLDER",
    help="Also look for plug-ins in this folder; repeatable. [default: none]",
)
def devices(as_json: bool, paths: Sequence[str]) -> None:
    """List families and devices, and plug-ins that failed to load, with the reason.

    Looks at built-in families, entry points, the search path and AGGML_BACKEND_PATH.
    """
    results = {result.source: result for result in aggml.load_all()}
    for path in paths:
        results.update({result.source: result for result in aggml.load_all(path)})
    data = {"aggml": aggml.__version__} | inventory(aggml.LoadReport(results.values()))
    if as_json:
        show(data)
    else:
        click.echo(describe(data))
