"""Makes the rows of a case of the part "ops": one with data outside of L2, one in cache."""

from __future__ import annotations

from typing import Final, TypeAlias

from benchmarks.op_cases import Build, OpCase, Operand

LARGE: Final = (4096, 1024)  # 16 MB of f32
COPIES: Final = 16

Cases: TypeAlias = dict[str, OpCase]


def both(
    found: Cases,
    name: str,
    inputs: list[Operand],
    build: Build,
    *,
    small: bool = True,
    tiny: list[Operand] | None = None,
) -> None:
    """Add a row with these inputs, and one in cache: ``tiny``, or (1024, 4) for LARGE inputs."""
    found[f"{name} {shape(inputs[0].ne)}"] = OpCase(tuple(inputs), build)
    if tiny is None and small:
        tiny = [Operand(x.dtype, _smaller(x.ne), x.fill) for x in inputs]
        if "repeat" in name and "rows repeated" not in name:
            return
    if tiny is not None:
        found[f"{name} {shape(tiny[0].ne)}"] = OpCase(tuple(tiny), build, COPIES)


def _smaller(ne: tuple[int, ...]) -> tuple[int, ...]:
    table = {4096: 1024, 1024: 4, 1: 1}
    if ne == (1024, 1024):
        return (256, 4)
    return tuple(table[n] for n in ne)


def shape(ne: tuple[int, ...]) -> str:
    """A shape as text, for names."""
    return " x ".join(map(str, ne))
