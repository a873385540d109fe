"""build_backward_expand: a graph, and behind it the nodes that compute gradients of its losses.

Here: which tensors need a gradient, the walk backwards, accumulators. Not here: the rule of each
op (rules.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from aggml.dtype import DType
from aggml.errors import AggmlError, InvalidArgument, InvalidHandle, LayoutMismatch, Unsupported
from aggml.gradients.rules import RULES, UNMOVED
from aggml.gradients.step import BackwardStep, GradientSums
from aggml.graph import Gradients, Graph, graph_of
from aggml.tensor import Tensor, TensorFlag, cut, describe, new_tensor

__all__ = ["build_backward_expand"]

_PLACE = "build_backward_expand"
_FLOATS = frozenset((DType.F32, DType.F16, DType.BF16))
#: Ops whose result is a view of a source and that can still be differentiated. Other ops that give
#: a view work in place: they overwrite an operand that other nodes' gradients may have to read.
_VIEWS = frozenset({"cpy", "permute", "reshape", "set_rows", "transpose", "view"})


def build_backward_expand(
    graph: Graph,
    grad_accs: Mapping[Tensor, Tensor] | Iterable[Tensor] = (),
    *,
    loss: Tensor | Iterable[Tensor] | None = None,
    params: Iterable[Tensor] | None = None,
    keep: Iterable[Tensor] = (),
) -> Graph:
    """A graph that computes ``graph`` and then gradients of its losses in its parameters.

    It is ``ggml_build_backward_expand``, but ``graph`` stays as it is. `Graph.grad` finds the
    gradients; those of parameters and of ``keep`` can be read after a run. Several losses count as
    their sum. Before the first run `Backend.graph_reset` sets the gradient with which the chain
    rule begins to 1, and accumulators to 0; or a run brings them as inputs:
    ``{back.grad_acc(loss): np.ones(1, np.float32)}``.

    Args:
        graph: the forward computation.
        grad_accs: tensors of ``graph`` whose gradients are added up over several runs, each with
            the f32 leaf for the sum, or without: a leaf is made then.
        loss: single f32 elements of ``graph``; None: the tensors flagged by `Tensor.set_loss`.
        params: tensors of ``graph`` in which gradients are taken; None: the leafs flagged by
            `Tensor.set_param`.
        keep: further tensors whose gradients are read after a run.

    Returns:
        A new graph. Its first nodes are those of ``graph``; each gradient has the extents of its
        tensor and is f32.

    Raises:
        InvalidArgument: no loss or no parameter; a tensor that is not in ``graph``; a loss that is
            not one f32; a tensor of ``keep`` on which no loss depends.
        InvalidHandle: arguments that are no graph or no tensors.
        LayoutMismatch: an accumulator of other extents than its tensor, or with gaps.
        Unsupported: an op between a parameter and a loss has no gradient, or works in place; a
            parameter or an accumulator of another type. The message names op and tensor.
    """
    if not isinstance(graph, Graph):
        raise InvalidHandle(f"[{_PLACE}] {graph!r} is no Graph")
    within = {*graph.nodes, *graph.leafs}
    wanted = (
        _find_flagged(graph, TensorFlag.PARAM)
        if params is None
        else _list_tensors(params, "params")
    )
    losses = _find_flagged(graph, TensorFlag.LOSS) if loss is None else _list_tensors(loss, "loss")
    kept = _list_tensors(keep, "keep")
    accs = _accumulators(grad_accs)
    for name, tensors in (
        ("params", wanted),
        ("loss", losses),
        ("keep", kept),
        ("grad_accs", accs),
    ):
        for tensor in tensors:
            if tensor not in within:
                raise InvalidArgument(f"[{_PLACE}] {name}: {describe(tensor)} is not in {graph!r}")
    _check_ends(graph, wanted, losses)
    needed = _find_needing(graph, {*wanted, *losses})
    sums = GradientSums(graph, needed)
    for tensor, acc in accs.items():
        if tensor in needed:
            sums.begin(tensor, _accumulator(tensor) if acc is None else acc, lasts=True)
    for tensor in losses:
        if tensor not in accs:
            sums.begin(tensor, _accumulator(tensor).set_input(), lasts=False)
    for node in reversed(graph.nodes):
        _differentiate(node, needed, sums)
    return _finish(graph, sums, wanted, losses, kept)


def _list_tensors(given: Tensor | Iterable[Tensor], name: str) -> list[Tensor]:
    tensors = [given] if isinstance(given, Tensor) else given
    try:
        found = [*tensors]
    except TypeError:
        raise InvalidHandle(f"[{_PLACE}] {name} = {given!r}: give tensors") from None
    for tensor in found:
        if not isinstance(tensor, Tensor):
            raise InvalidHandle(f"[{_PLACE}] {name}: {tensor!r} is no tensor")
    return list(dict.fromkeys(found))


def _find_flagged(graph: Graph, flag: TensorFlag) -> list[Tensor]:
    return [tensor for tensor in graph.nodes if tensor.flag_bits & flag] + [
        leaf for leaf in graph.leafs if leaf.flag_bits & flag
    ]


def _accumulators(
    given: Mapping[Tensor, Tensor] | Iterable[Tensor],
) -> dict[Tensor, Tensor | None]:
    """The accumulator of each tensor, checked; None: one is to be made."""
    if not isinstance(given, Mapping):
        return dict.fromkeys(_list_tensors(given, "grad_accs"))
    _list_tensors(given.values(), "grad_accs")
    for tensor in _list_tensors(given, "grad_accs"):
        acc = given[tensor]
        if acc.op != "none" or acc.dtype is not DType.F32:
            raise Unsupported(f"[{_PLACE}] grad_accs: {describe(acc)} is no f32 leaf")
        if acc.ne != tensor.ne or not acc.is_contiguous:
            raise LayoutMismatch(
                f"[{_PLACE}] grad_accs: {describe(acc)} for {describe(tensor)}: expected the same "
                "extents, contiguous"
            )
    return dict(given)


def _accumulator(tensor: Tensor) -> Tensor:
    ne = tensor.ne[: max(tensor.ndim, 1)]
    return new_tensor(DType.F32, ne, cut(f"grad acc for {tensor.name}"))


def _check_ends(graph: Graph, params: list[Tensor], losses: list[Tensor]) -> None:
    if not params:
        raise InvalidArgument(
            f"[{_PLACE}] {graph!r} has no parameter: call set_param() on a leaf before the Graph "
            "is made, or pass params="
        )
    if not losses:
        raise InvalidArgument(
            f"[{_PLACE}] {graph!r} has no loss: call set_loss() on a node before the Graph is "
            "made, or pass loss="
        )
    for tensor in losses:
        if not tensor.is_scalar or tensor.dtype is not DType.F32:
            raise InvalidArgument(
                f"[{_PLACE}] the loss {describe(tensor)} is not a single f32: ops.sum adds up many"
            )
    for tensor in params:
        if tensor.dtype not in _FLOATS:
            raise Unsupported(
                f"[{_PLACE}] the parameter {describe(tensor)} is not of f32, f16 or bf16: no "
                "gradient can be taken in it"
            )


def _find_needing(graph: Graph, ends: set[Tensor]) -> set[Tensor]:
    """The tensors in which a gradient is needed: ``ends``, and what depends on one of them."""
    needed = {leaf for leaf in graph.leafs if leaf in ends}
    for node in graph.nodes:
        if node.dtype is DType.I32:
            continue
        constant = UNMOVED.get(node.op)
        moved = [
            source
            for i, source in enumerate(node.src)
            if source is not None and i != constant and source in needed
        ]
        if not moved and node not in ends:
            continue
        for source in moved:
            if source.dtype not in _FLOATS:
                raise Unsupported(
                    f"[{_PLACE}] op {source.op} has no gradient for node {describe(source)}: "
                    f"{source.dtype} cannot be differentiated, only f32, f16 and bf16"
                )
        if node.view_src is not None and node.op not in _VIEWS:
            raise Unsupported(
                f"[{_PLACE}] op {node.op} has no gradient for node {describe(node)}: it works in "
                "place and overwrites a value that gradients may need"
            )
        needed.add(node)
    return needed


def _differentiate(node: Tensor, needed: set[Tensor], sums: GradientSums) -> None:
    grad = sums.get(node)
    if grad is None:
        return
    constant = UNMOVED.get(node.op)
    wants = tuple(
        [
            source is not None and source in needed and i != constant
            for i, source in enumerate(node.src)
        ]
    )
    if not any(wants):
        return
    step = BackwardStep(node, grad, wants, sums)
    rule = RULES.get(node.op)
    if rule is None:
        raise step.refuse("the op cannot be differentiated")
    try:
        rule(step)
    except Unsupported as error:
        if str(error).startswith(f"[{_PLACE}]"):
            raise
        raise step.refuse(str(error)) from error
    except AggmlError as error:
        raise step.refuse(str(error)) from error


def _finish(
    graph: Graph,
    sums: GradientSums,
    params: list[Tensor],
    losses: list[Tensor],
    kept: list[Tensor],
) -> Graph:
    for tensor in kept:
        if tensor not in sums.found:
            raise InvalidArgument(
                f"[{_PLACE}] keep: no loss depends on {describe(tensor)} by way of a parameter, so "
                "it has no gradient"
            )
    read = [sums.found[t] for t in (*params, *kept) if t in sums.found]
    ends = dict.fromkeys((*graph.ends, *losses, *read))
    order = sums.order
    order.expand(sums.accs.values())  # also those that no node reads
    order.freeze()
    gradients = Gradients(MappingProxyType(sums.found), MappingProxyType(sums.accs), tuple(losses))
    whole = None
    if graph.whole is not graph:
        nodes, leafs = order.nodes[len(graph.nodes) :], order.leafs[len(graph.leafs) :]
        before = graph.whole
        whole = graph_of(
            [*dict.fromkeys((*before.nodes, *nodes))],
            [*dict.fromkeys((*before.leafs, *leafs))],
            [*dict.fromkeys((*before.ends, *ends))],
        )
    return graph_of(order.nodes, order.leafs, [*ends], gradients, whole)
