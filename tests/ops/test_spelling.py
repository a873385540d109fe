"""Options of convolutions have the same names in all builders, beside those that C gives them.

The names in C: test_builders.py.
"""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest

from aggml import DType, Tensor, new_tensor, ops
from aggml.ops import _spelling

#: Arguments by position with which each builder makes a node, all options different where possible.
CALLS: dict[str, tuple[Any, ...]] = {
    "conv_1d": ((3, 2, 4), (20, 2), 2, 1, 3),
    "conv_1d_ph": ((3, 2, 4), (20, 2), 2, 3),
    "conv_1d_dw": ((3, 1, 2), (20, 2), 2, 1, 3),
    "conv_1d_dw_ph": ((3, 1, 2), (20, 2), 2, 3),
    "conv_2d": ((3, 3, 2, 4), (20, 20, 2, 1), 2, 3, 1, 2, 4, 5),
    "conv_2d_dw": ((3, 3, 1, 2), (20, 20, 2, 1), 2, 3, 1, 2, 4, 5),
    "conv_2d_direct": ((3, 3, 2, 4), (20, 20, 2, 1), 2, 3, 1, 2, 4, 5),
    "conv_2d_dw_direct": ((3, 3, 1, 2), (20, 20, 2, 1), 2, 3, 1, 2, 4, 5),
    "conv_3d": ((2, 2, 2, 8), (20, 20, 20, 2), 2, 2, 3, 4, 1, 2, 3, 5, 6, 7),
    "conv_3d_direct": ((2, 2, 2, 8), (20, 20, 20, 2), 2, 3, 4, 1, 2, 3, 5, 6, 7, 2, 1, 4),
    "conv_transpose_1d": ((3, 4, 2), (20, 2), 2, 0, 1),
    "conv_transpose_2d_p0": ((3, 3, 4, 2), (20, 20, 2, 1), 3),
    "col2im_1d": ((12, 20), 2, 4, 1),
    "im2col": ((3, 3, 2, 4), (20, 20, 2, 1), 2, 3, 1, 2, 4, 5, True, DType.F32),
    "im2col_3d": ((2, 2, 2, 8), (20, 20, 20, 2), 2, 2, 3, 4, 1, 2, 3, 5, 6, 7, DType.F32),
    "im2col_back": ((18, 18, 18, 1), (3, 3, 2, 4), (20, 20, 2, 1), 1, 1, 0, 0, 1, 1, True),
    "pool_1d": ((20, 2), "max", 3, 2, 1),
    "pool_2d": ((20, 20, 2), "avg", 3, 4, 2, 3, 1, 2),
    "pool_2d_back": ((10, 7, 2), (20, 20, 2), "avg", 3, 4, 2, 3, 1, 2),
}
#: What builders call one option; whoever adds another name adds it to a family.
SYNONYMS = re.compile(
    r"(s|stride|strides|step|p|pad|padding|d|dilation|dilate|IC|n_channels|OC|oc|n_channels_out)\d?"
)
#: These names mean something else there.
OTHERWISE = {
    *("arange", "flash_attn_back", "pad", "pad_circular", "pad_reflect_1d", "scale", "ssm_scan"),
    *("scale_inplace", "scale_bias", "scale_bias_inplace"),
}


def operands(name: str) -> list[Any]:
    shapes = iter(CALLS[name])
    found = []
    for parameter in inspect.signature(getattr(ops, name)).parameters:
        given = next(shapes)
        is_shape = isinstance(given, tuple) and parameter != "ne"
        dtype = "f16" if (name, parameter) == ("conv_2d_dw", "a") else "f32"
        found.append(new_tensor(dtype, ne=given, name=parameter) if is_shape else given)
    return found


def facts(node: Tensor) -> object:
    """What a tensor says, down to its leaves."""
    sources = [x if x is None or x.op == "none" else facts(x) for x in node.src]
    return (node.op, node.op_params, node.ne, node.nb, node.dtype, *sources)


def test_every_builder_with_such_an_option_is_in_this_table() -> None:
    found = {
        name
        for name in ops.__all__
        if inspect.isfunction(builder := getattr(ops, name))
        and any(SYNONYMS.fullmatch(p) for p in inspect.signature(builder).parameters)
    }
    assert found - OTHERWISE == set(CALLS)


@pytest.mark.parametrize("name", CALLS)
def test_every_option_goes_by_each_name_of_its_family(name: str) -> None:
    builder = getattr(ops, name)
    arguments = operands(name)
    expected = facts(builder(*arguments))
    parameters = list(inspect.signature(builder).parameters)
    others = _spelling.other_names(builder)
    for family in _spelling.FAMILIES:
        renamed = {p: o for o, p in others.items() if o.rstrip("0123") in family}
        by_name = {renamed.get(p, p): x for p, x in zip(parameters, arguments, strict=True)}
        assert facts(builder(**by_name)) == expected
    for other, parameter in others.items():
        keywords = dict(zip(parameters, arguments, strict=True))
        keywords[other] = keywords[parameter]
        with pytest.raises(TypeError, match=f"'{parameter}'.*'{other}'"):
            builder(**keywords)
    for parameter in parameters:  # the first name of a family is that of all builders
        for family in _spelling.FAMILIES:
            if parameter.rstrip("0123") in family:
                assert any(re.fullmatch(rf"{family[0]}\d", n) for n in (*parameters, *others))
