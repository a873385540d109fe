"""``aggml ops``: which operations a device computes, and with which element types.

For each op of native/table/ops.def it builds the node of some example calls, with every element
type for every operand, and asks the device whether it computes the node. Nothing is allocated or
run. The calls are in calls.json, which tools/ops_calls.py writes. Not here: what an op does
(docs/ops.md).
"""

from __future__ import annotations

import functools
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

import aggml
from aggml import DType
from aggml.cli.shared import device_names, show
from aggml.ops.table import IDLE, OPS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aggml import Device, Tensor

__all__ = ["find_types", "node_of", "ops"]

CALLS: Final = Path(__file__).with_name("calls.json")
#: For ops without a call: they run a user's function, or only compiling a graph makes them.
NOT_TRIED: Final = "not tried"
FLOATS: Final = ("f32", "f16", "bf16")


@functools.cache
def _calls() -> Mapping[str, Sequence[Mapping[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = json.loads(CALLS.read_text(encoding="utf-8"))
    return found


def node_of(
    call: Mapping[str, Any], types: Mapping[str, str] | None = None, stretch: int = 1
) -> Tensor | None:
    """The node of a call; None if the builder refuses.

    Args:
        call: an entry of calls.json.
        types: element types of some operands, instead of those of the call.
        stretch: makes rows so many times as long: those of the operands named in ``types``, and
            all rows of the same length.
    """
    types = types or {}
    kinds: dict[str, str] = {name: dtype for name, (dtype, _) in call["inputs"].items()} | dict(
        types
    )
    long = {ne[0] for name, (_, ne) in call["inputs"].items() if name in types}
    try:
        given = {
            name: aggml.new_tensor(
                kinds[name],
                ne=(ne[0] * stretch if ne[0] in long else ne[0], *ne[1:]),
            )
            for name, (_, ne) in call["inputs"].items()
        }
        if call["builder"].startswith("opt_step"):
            given["a"].set_param()
        if call["builder"].startswith(("rope_ext", "rope_multi")):
            call = {**call, "args": {"c": None} | call["args"]}
        node: Tensor = getattr(aggml.ops, call["builder"])(**(call["args"] | given))
    except aggml.AggmlError:
        return None
    return node


def find_types(device: Device, op: str) -> dict[str, list[str]] | None:
    """For each operand of an op the types that a device takes; None if the op has no call.

    The other operands keep the types that the call gives them.
    """
    calls = _calls().get(op)
    if calls is None:
        return None
    found: dict[str, set[str]] = {}
    for call in calls:
        for name in call["inputs"]:
            kinds = found.setdefault(name, set())
            for dtype in DType:
                row = call["inputs"][name][1][0]
                stretch = math.lcm(row, dtype.blck_size) // row  # rows of whole blocks
                node = node_of(call, {name: dtype.type_name}, stretch)
                if node is not None and _computes(device, node):
                    kinds.add(dtype.type_name)
        if not call["inputs"] and (node := node_of(call)) is not None and _computes(device, node):
            found.setdefault("", set()).add(node.dtype.type_name)
    order = [dtype.type_name for dtype in DType]
    return {name: sorted(kinds, key=order.index) for name, kinds in found.items() if kinds}


def _computes(device: Device, node: Tensor) -> bool:
    """Whether a device computes a node and all nodes that the builder put before it."""
    rest, seen = [node], set[int]()
    while rest:
        tensor = rest.pop()
        if id(tensor) in seen:
            continue
        seen.add(id(tensor))
        if tensor.op not in IDLE and not device.supports_op(tensor):
            return False
        rest += [source for source in tensor.src if source is not None]
    return True


@click.command
@click.option(
    "--device",
    metavar="NAME",
    shell_complete=device_names,
    help="Device of `aggml devices`. [default: the best one]",
)
@click.option(
    "--type",
    "dtype",
    metavar="TYPE",
    help="List only ops with an operand of this type. [default: all]",
)
@click.argument("names", nargs=-1, metavar="[OP]...")
@click.option("--json", "as_json", is_flag=True, help="One JSON value, for programs.")
def ops(device: str | None, dtype: str | None, names: tuple[str, ...], as_json: bool) -> None:
    """List the operations that a device computes, with the element types of their operands.

    With OP only those. Operands have the names that the builders of aggml.ops give them.
    """
    on = aggml.best_device() if device is None else aggml.get_device(device)
    wanted = None if dtype is None else DType.parse(dtype).type_name
    for name in names:
        if name not in OPS or name in IDLE:
            raise click.BadParameter(
                f"there is no op {name!r}: `aggml ops` lists them", param_hint="OP"
            )
    found: dict[str, dict[str, list[str]] | None] = {}
    for op in names or OPS.keys() - IDLE:
        types = find_types(on, op)
        if wanted is None or (types and any(wanted in of for of in types.values())):
            found[op] = types
    found = {op: found[op] for op in OPS if op in found}
    if as_json:
        show({"device": on.name, "ops": found})
        return
    width = max(map(len, found), default=0)
    for op, types in found.items():
        click.echo(f"{op:{width}}  {_types_line(types)}")
    count = sum(bool(types) for types in found.values())
    click.echo(f"{on.name} computes {count} of these {len(found)} ops", err=True)


def _types_line(types: Mapping[str, Sequence[str]] | None) -> str:
    """The operands and their types in one line."""
    if types is None:
        return NOT_TRIED
    if not types:
        return "no"
    return "; ".join(f"{name}: {_short(of)}" if name else _short(of) for name, of in types.items())


def _short(kinds: Sequence[str]) -> str:
    """Types in words; if most quantized types are among them, only the missing ones are named."""
    every = {dtype.type_name for dtype in DType if dtype.is_quantized}
    missing = every - set(kinds)
    if len(missing) > len(every) / 2:
        return " ".join(kinds)
    plain = [name for name in kinds if name not in every]
    but = f" except {' '.join(sorted(missing))}" if missing else ""
    return " ".join([*plain, f"quantized{but}"])
