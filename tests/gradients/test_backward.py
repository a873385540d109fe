"""build_backward_expand: what has a gradient, accumulators, what is refused, the order of nodes.

Not here: the formulas (test_rules.py), training (tests/opt).
"""

from __future__ import annotations

import copy
import pickle
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from ops.recorded import build, recorded_calls

import aggml
from aggml import Graph, Tensor, build_backward_expand, new_tensor, ops
from aggml.gradients import DIFFERENTIABLE, WITHOUT_EFFECT
from aggml.ops.table import OPS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from corpus_loader import Case


def leaf(name: str, *ne: int, dtype: str = "f32") -> Tensor:
    return new_tensor(dtype, ne or (3,), name)


@pytest.fixture(scope="module")
def backend() -> Iterator[aggml.Backend]:
    with aggml.get_device("CPU").backend(n_threads=2) as be:
        yield be


class Line:
    """The squared error of a linear layer: two parameters, an input, the labels."""

    def __init__(self) -> None:
        self.w = leaf("w", 3, 2).set_param()
        self.b = leaf("b", 2).set_param()
        self.x = leaf("x", 3, 4).set_input()
        self.y = leaf("y", 2, 4).set_input()
        self.out = ops.add(ops.mul_mat(self.w, self.x), self.b).set_name("out")
        self.loss = ops.sum(ops.sqr(ops.sub(self.out, self.y))).set_name("loss").set_loss()
        self.graph = Graph(self.loss)
        rng = np.random.default_rng(7)
        self.values = {t: rng.normal(size=t.shape).astype(np.float32) for t in self.leafs}

    @property
    def leafs(self) -> tuple[Tensor, ...]:
        return self.w, self.b, self.x, self.y

    def expected(self) -> dict[str, Any]:
        w, b, x, y = (self.values[t].astype(np.float64) for t in self.leafs)
        error = 2 * (x @ w.T + b - y)
        return {"w": error.T @ x, "b": error.sum(0), "out": error, "x": error @ w}


def test_gradients_of_flagged_parameters_are_found_and_computed(backend: aggml.Backend) -> None:
    line = Line()
    back = build_backward_expand(line.graph)
    assert back.uid != line.graph.uid
    assert back.nodes[: len(line.graph)] == line.graph.nodes
    assert back.losses == (line.loss,)
    gradients = {t: back.grad(t) for t in (line.w, line.b)}
    assert [t.name for t in gradients.values() if t] == ["grad for w", "grad for b"]
    backend.alloc_graph(back)
    assert backend.graph_reset(back).wait(60)
    found = backend.run(back, line.values, ["grad for w", "grad for b"]).get(60)
    np.testing.assert_allclose(found[0], line.expected()["w"], rtol=1e-4)
    np.testing.assert_allclose(found[1], line.expected()["b"], rtol=1e-4)


def test_the_forward_graph_has_no_gradients_and_inputs_have_none() -> None:
    line = Line()
    assert line.graph.grad(line.w) is line.graph.grad_acc(line.w) is None
    assert line.graph.losses == ()
    back = build_backward_expand(line.graph)
    assert back.grad(line.x) is back.grad(line.y) is None
    assert back.grad_acc(line.w) is None
    assert back.grad_acc(line.loss) is not None


def test_a_loss_and_parameters_can_be_named_instead_of_flagged(backend: aggml.Backend) -> None:
    x = leaf("x", 3, 2)
    y = ops.sqr(x)
    total = ops.sum(y)
    graph = Graph(total)
    back = build_backward_expand(graph, loss=total, params=[x])
    gradient = back.grad(x)
    assert gradient is not None
    backend.alloc_graph(back)
    backend.graph_reset(back)
    value = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert np.array_equal(backend.run(back, {x: value}, gradient).get(60), 2 * value)


def test_gradients_of_nodes_that_are_kept_can_be_read(backend: aggml.Backend) -> None:
    line = Line()
    back = build_backward_expand(line.graph, keep=[line.out])
    gradient = back.grad(line.out)
    assert gradient in back.ends
    assert gradient is not None
    backend.alloc_graph(back)
    backend.graph_reset(back)
    found = backend.run(back, line.values, gradient).get(60)
    np.testing.assert_allclose(found, line.expected()["out"], rtol=1e-4)


def test_a_run_whose_first_gradient_was_never_set_is_refused(backend: aggml.Backend) -> None:
    line = Line()
    back = build_backward_expand(line.graph)
    gradient = back.grad(line.w)
    assert gradient is not None
    backend.alloc_graph(back)
    with pytest.raises(aggml.NotAllocated, match="grad acc for loss"):
        backend.run(back, line.values, gradient)
    first = back.grad_acc(line.loss)
    assert first is not None
    # a run may bring it instead: here twice the gradient
    given = {**line.values, first: np.full(1, 2, np.float32)}
    found = backend.run(back, given, gradient).get(60)
    np.testing.assert_allclose(found, 2 * line.expected()["w"], rtol=1e-4)


def test_accumulators_add_up_several_runs_until_they_are_reset(backend: aggml.Backend) -> None:
    line = Line()
    mine = leaf("sum for b", 2)
    back = build_backward_expand(line.graph, {line.w: leaf("sum for w", 3, 2), line.b: mine})
    assert back.grad_acc(line.b) is mine
    backend.alloc_graph(back)
    gradients = [back.grad(line.w), back.grad(line.b)]
    for _ in range(2):
        backend.graph_reset(back)
        for n in (1, 2, 3):
            found = backend.run(back, line.values, gradients).get(60)  # type: ignore[arg-type]
            np.testing.assert_allclose(found[0], n * line.expected()["w"], rtol=1e-4)
            np.testing.assert_allclose(found[1], n * line.expected()["b"], rtol=1e-4)
    np.testing.assert_allclose(backend.get(mine).get(60), 3 * line.expected()["b"], rtol=1e-4)


def test_accumulators_are_made_where_none_are_given(backend: aggml.Backend) -> None:
    line = Line()
    back = build_backward_expand(line.graph, [line.w])
    made = back.grad_acc(line.w)
    assert made is not None
    assert (made.name, made.ne, made.op) == ("grad acc for w", line.w.ne, "none")
    backend.alloc_graph(back)
    backend.graph_reset(back)
    gradient = back.grad(line.w)
    assert gradient is not None
    assert gradient.root is made
    for n in (1, 2):
        found = backend.run(back, line.values, gradient).get(60)
        np.testing.assert_allclose(found, n * line.expected()["w"], rtol=1e-4)


def test_a_view_of_a_parameter_adds_to_its_accumulator_in_place(backend: aggml.Backend) -> None:
    w = leaf("w", 6).set_param()
    loss = ops.sum(ops.sqr(ops.add(ops.view_1d(w, 3), ops.view_1d(w, 3, 12)))).set_loss()
    back = build_backward_expand(Graph(loss), [w])
    backend.alloc_graph(back)
    backend.graph_reset(back)
    x = np.arange(6, dtype=np.float32)
    gradient = back.grad(w)
    assert gradient is not None
    for n in (1, 2):
        found = backend.run(back, {w: x}, gradient).get(60)
        assert np.array_equal(found, n * 2 * np.tile(x[:3] + x[3:], 2))


def test_the_gradients_of_several_losses_add_up(backend: aggml.Backend) -> None:
    x = leaf("x", 4).set_param()
    one = ops.sum(ops.sqr(x)).set_loss()
    two = ops.scale(one, 3.0).set_loss()  # depends on the first
    back = build_backward_expand(Graph(one, two))
    gradient = back.grad(x)
    assert gradient is not None
    backend.alloc_graph(back)
    backend.graph_reset(back)
    value = np.arange(4, dtype=np.float32)
    for _ in range(2):  # the same again: losses do not accumulate
        found = backend.run(back, {x: value}, gradient).get(60)
        np.testing.assert_allclose(found, (1 + 3) * 2 * value)


def test_a_gradient_of_a_gradient(backend: aggml.Backend) -> None:
    x = leaf("x", 4).set_param()
    graph = Graph(ops.sum(ops.mul(ops.sqr(x), x)).set_loss())
    back = build_backward_expand(graph)
    first = back.grad(x)
    assert first is not None
    total = ops.sum(first)
    again = build_backward_expand(Graph(total), loss=total, params=[x])
    second = again.grad(x)
    assert second is not None
    backend.alloc_graph(again)
    backend.graph_reset(again)
    start = back.grad_acc(graph.ends[0])
    assert start is not None
    value = np.arange(4, dtype=np.float32)
    found = backend.run(again, {x: value, start: np.ones(1, np.float32)}, second).get(60)
    np.testing.assert_allclose(found, 6 * value)


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_parameters_of_16_bits_have_gradients_of_f32(dtype: str, backend: aggml.Backend) -> None:
    w = leaf("w", 3, 2, dtype=dtype).set_param()
    x = leaf("x", 3, 4)
    shift = leaf("shift", 2, dtype=dtype).set_param()
    loss = ops.sum(ops.sqr(ops.add(ops.mul_mat(w, x), ops.cast(shift, "f32")))).set_loss()
    back = build_backward_expand(Graph(loss))
    gradients = [back.grad(w), back.grad(shift)]
    assert [g.dtype.type_name for g in gradients if g] == ["f32", "f32"]
    rng = np.random.default_rng(3)
    a, b, c = (rng.integers(-4, 5, t.shape).astype(np.float32) for t in (w, x, shift))
    backend.alloc_graph(back)
    backend.graph_reset(back)
    given = {w: aggml.convert(a, dtype), x: b, shift: aggml.convert(c, dtype)}
    found = backend.run(back, given, gradients).get(60)  # type: ignore[arg-type]
    error = 2 * (b @ a.T + c)
    np.testing.assert_allclose(found[0], error.T @ b)
    np.testing.assert_allclose(found[1], error.sum(0))


def test_infinities_outside_of_a_view_stay_there(backend: aggml.Backend) -> None:
    x = leaf("x", 4).set_param()
    back = build_backward_expand(Graph(ops.sum(ops.view_1d(x, 2)).set_loss()))
    gradient = back.grad(x)
    assert gradient is not None
    backend.alloc_graph(back)
    backend.graph_reset(back)
    value = np.array([1, 2, np.inf, np.nan], np.float32)
    assert np.array_equal(backend.run(back, {x: value}, gradient).get(60), [1, 1, 0, 0])


def test_copies_keep_their_gradients() -> None:
    back = build_backward_expand(Line().graph, keep=())
    for other in (copy.copy(back), copy.deepcopy(back), pickle.loads(pickle.dumps(back))):
        w = other.find("w")
        gradient = other.grad(w)
        assert gradient is other.find("grad for w")
        assert other.grad_acc(other.losses[0]) in other.leafs


# -- what is refused


def test_a_graph_without_loss_or_parameters_is_refused() -> None:
    x = leaf("x")
    with pytest.raises(aggml.InvalidArgument, match="no parameter: call set_param"):
        build_backward_expand(Graph(ops.sum(x).set_loss()))
    with pytest.raises(aggml.InvalidArgument, match="no loss: call set_loss"):
        build_backward_expand(Graph(ops.sum(leaf("w").set_param())))


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"loss": 3}, aggml.InvalidHandle, "loss = 3"),
        ({"params": [None]}, aggml.InvalidHandle, "params: None is no tensor"),
        ({"params": [leaf("strange")]}, aggml.InvalidArgument, "strange"),
        ({"keep": [leaf("strange")]}, aggml.InvalidArgument, "strange"),
        ({"grad_accs": [leaf("strange")]}, aggml.InvalidArgument, "strange"),
        ({"grad_accs": 7}, aggml.InvalidHandle, "grad_accs = 7"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(
    options: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=rf"\[build_backward_expand\].*{text}"):
        build_backward_expand(Line().graph, **options)


def test_only_tensors_have_gradients() -> None:
    back = build_backward_expand(Line().graph)
    wrong: Any = []
    with pytest.raises(aggml.InvalidHandle, match=r"^\[Graph.grad\] \[\] is no tensor"):
        back.grad(wrong)
    with pytest.raises(aggml.InvalidHandle, match=r"^\[Graph.grad_acc\] \[\] is no tensor"):
        back.grad_acc(wrong)


def test_no_graph_is_refused(backend: aggml.Backend) -> None:
    with pytest.raises(aggml.InvalidHandle, match="is no Graph"):
        build_backward_expand(leaf("x"))  # type: ignore[arg-type]
    with pytest.raises(aggml.InvalidHandle, match="is no Graph"):
        backend.graph_reset(leaf("x"))  # type: ignore[arg-type]
    with pytest.raises(aggml.InvalidArgument, match="build_backward_expand makes"):
        backend.graph_reset(Line().graph)
    with pytest.raises(aggml.NotAllocated):
        backend.graph_reset(build_backward_expand(Line().graph))


def test_accumulators_and_losses_are_checked() -> None:
    line = Line()
    with pytest.raises(aggml.LayoutMismatch, match=r"acc f32 \[2\] for w f32 \[3, 2\]: expected"):
        build_backward_expand(line.graph, {line.w: leaf("acc", 2)})
    with pytest.raises(aggml.Unsupported, match="acc"):
        build_backward_expand(line.graph, {line.w: leaf("acc", 3, 2, dtype="f16")})
    with pytest.raises(aggml.InvalidArgument, match=r"out.* is not a single f32"):
        build_backward_expand(line.graph, loss=line.out)
    with pytest.raises(aggml.InvalidArgument, match="keep: no loss depends on x"):
        build_backward_expand(line.graph, keep=[line.x])
    w = leaf("blocks", 32, 2, dtype="q8_0").set_param()
    graph = Graph(ops.sum(ops.mul_mat(w, leaf("x", 32))).set_loss())
    with pytest.raises(aggml.Unsupported, match=r"blocks q8_0.*not of f32, f16 or bf16"):
        build_backward_expand(graph)


REFUSED: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": ops.tanh,
    "gelu": ops.gelu,
    "clamp": lambda x: ops.clamp(x, 0, 1),
    "norm": lambda x: ops.norm(x, 0.1),
    "concat": lambda x: ops.concat(x, x, 0),
    "cumsum": ops.cumsum,
    "geglu": ops.geglu,
    "swiglu": ops.swiglu,
    "relu": ops.relu_inplace,
    "scale": lambda x: ops.scale_inplace(x, 2),
    "cpy": lambda x: ops.cast(ops.cast(x, "q8_0"), "f32"),
    "view": lambda x: ops.cont(ops.view_2d(x, 4, 3, 4)),
    "get_rows": lambda x: ops.get_rows(ops.reshape_3d(x, 4, 4, 2), leaf("i", 2, 2, dtype="i32")),
}


@pytest.mark.parametrize("op", REFUSED)
def test_what_has_no_gradient_is_refused_by_op_and_tensor(op: str) -> None:
    x = leaf("x", 32).set_param()
    bad = REFUSED[op](ops.sqr(x))
    loss = ops.sum(ops.cont(bad)).set_loss()
    graph = Graph(loss)
    nodes = [node.name for node in graph.nodes if node.op == op]
    named = "|".join(map(str, nodes)).replace("(", r"\(").replace(")", r"\)")
    with pytest.raises(
        aggml.Unsupported,
        match=rf"^\[build_backward_expand\] op {op} has no gradient for node ({named})",
    ):
        build_backward_expand(graph)


def test_gradients_in_masks_labels_and_factors_are_refused() -> None:
    mask, x = leaf("mask", 4, 2).set_param(), leaf("x", 4, 2)
    for node, what in (
        (ops.soft_max_ext(x, mask), "the mask, mask"),
        (ops.cross_entropy_loss(x, mask), "the labels, mask"),
    ):
        with pytest.raises(aggml.Unsupported, match=f"none is defined in {what}"):
            build_backward_expand(Graph(ops.sum(node).set_loss()))


def test_ops_off_the_way_to_the_loss_need_no_gradient() -> None:
    x = leaf("x", 4).set_param()
    graph = Graph(ops.tanh(x), ops.sum(ops.sqr(x)).set_loss())
    assert build_backward_expand(graph).grad(x) is not None
    ids = leaf("ids", 4, dtype="i32")
    constant = ops.tanh(leaf("c", 4))
    graph = Graph(ops.sum(ops.mul(ops.add(x, ops.step(x)), constant)).set_loss(), ids)
    assert build_backward_expand(graph).grad(x) is not None


def test_the_tables_name_ops_that_there_are() -> None:
    assert OPS.keys() >= DIFFERENTIABLE | WITHOUT_EFFECT
    assert not DIFFERENTIABLE & WITHOUT_EFFECT


FLOATS = {"f32", "f16", "bf16"}
CALLS: dict[str, list[Case]] = {}
for _call in recorded_calls():
    _case = _call.values[0]
    if all(np.prod(value.storage_ne) <= 5000 for value in _case.inputs):
        CALLS.setdefault(_case.group, []).append(_case)


@pytest.mark.long(cases=4)
@pytest.mark.parametrize("group", CALLS)
def test_every_recorded_call_has_gradients_or_is_refused_by_name(
    group: str, backend: aggml.Backend
) -> None:
    """Whatever the shapes and strides: a gradient of the extents of its leaf, or Unsupported."""
    tried = 0
    for case in CALLS[group]:
        out = build(case).out
        params = [t for t in Graph(out).leafs if t.dtype.type_name in FLOATS]
        if out.dtype.type_name in FLOATS and params and 0 not in out.ne:
            check_gradients(out, params, backend)
            tried += 1
    assert tried or group in {"mul_mat_id", "types"}


def check_gradients(out: Tensor, params: list[Tensor], backend: aggml.Backend) -> None:
    total = ops.sum(out if out.dtype.type_name == "f32" else ops.cast(out, "f32"))
    graph = Graph(out, total)
    refused, back = "", graph
    try:
        back = build_backward_expand(graph, loss=total, params=params)
    except aggml.Unsupported as error:
        refused = str(error)
    if refused:
        assert refused.startswith("[build_backward_expand] op ")
        assert any(f" {t.name} " in f"{refused} " for t in graph.nodes)
        return
    for t in params:
        g = back.grad(t)
        assert g is None or (g.ne, g.ndim, g.dtype) == (t.ne, t.ndim, aggml.DType.F32)
    if any(node.op in {"get_rows", "get_rows_back", "mul_mat_id"} for node in back.nodes):
        return  # their indices are checked when they run, and here they have no values
    if all(backend.device.supports_op(node) for node in back.nodes):
        memory = backend.alloc_graph(back)
        backend.graph_reset(back)
        assert backend.graph_compute(back).wait(60)
        memory.close()
