"""The gradients that ggml 0.25.3 computed of small programs, and the ops it computed them with.

tools/ggml_gradients.py recorded them. Not here: gradients against differences (test_rules.py).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from gradients.ggml_programs import PROGRAMS, Program, values

import aggml
from aggml import Graph, Tensor, new_tensor, ops

if TYPE_CHECKING:
    from aggml.devices.cpu import CPUBackend

RECORDED: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parent / "ggml_gradients.json").read_text()
)
#: Ops that move, add, negate or scale. A gradient is contiguous here, a view of another tensor in
#: ggml, which also makes zeros by scaling.
LIGHT = {"acc", "add", "arange", "cont", "neg", "repeat", "scale", "sub"}
LIGHT |= {"permute", "reshape", "transpose", "view"}


def build(program: Program) -> dict[str, Tensor]:
    """The tensors of a program by name."""
    found: dict[str, Tensor] = {}
    for name, ne in program.leafs.items():
        found[name] = new_tensor("i32" if name.startswith("i_") else "f32", ne, name)
        if name[0].isupper():
            found[name].set_param()
    for name, op, operands, args in program.calls:
        result = getattr(ops, op)(*[found[operand] for operand in operands], *args)
        found[name] = result.set_name(name)
    return found


def test_every_program_is_recorded() -> None:
    assert RECORDED.keys() == PROGRAMS.keys()


@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients_are_those_of_ggml(name: str, cpu: CPUBackend) -> None:
    program, recorded = PROGRAMS[name], RECORDED[name]
    tensors = build(program)
    loss = tensors[program.calls[-1][0]].set_loss()
    forward = Graph(loss)
    back = aggml.build_backward_expand(forward)
    cpu.alloc_graph(back)
    cpu.graph_reset(back)
    given = {tensors[leaf]: value for leaf, value in values(program).items()}
    given = {t: v for t, v in given.items() if t in back.leaf_set}
    params = [leaf for leaf in program.leafs if leaf[0].isupper()]
    wanted = [back.grad(tensors[leaf]) for leaf in params]
    assert None not in wanted
    found = cpu.run(back, given, [loss, *[g for g in wanted if g is not None]]).get(60)
    np.testing.assert_allclose(found[0].item(), recorded["loss"], rtol=1e-4)
    for leaf, gradient in zip(params, found[1:], strict=True):
        expected = np.array(recorded["gradients"][leaf])
        scale = np.abs(expected).max()
        np.testing.assert_allclose(gradient.ravel(), expected, atol=1e-4 * scale, err_msg=leaf)


@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients_are_computed_with_the_ops_of_ggml(name: str) -> None:
    program = PROGRAMS[name]
    loss = build(program)[program.calls[-1][0]].set_loss()
    forward = Graph(loss)
    added = [n.op for n in aggml.build_backward_expand(forward).nodes[len(forward) :]]
    expected = RECORDED[name]["added"]
    assert sorted(op for op in added if op not in LIGHT) == sorted(
        op for op in expected if op not in LIGHT
    )
