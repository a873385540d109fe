"""Activations: what the columns of a step's matrices are multiplied by, as sums of squares.

The sums are further nodes of the step's graph, so that only they leave the device: a row for each
matrix, whatever the number of tokens. Not here: running the graph (decoder.py), adding up over a
text (../measuring.py).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

import aggml
from aggml import DType, Graph, ops

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from aggml import Tensor
    from aggml.models.decoder.step import Step

__all__ = ["Activations", "activations_of"]

#: A product with fewer rows than this says nothing about a text: llama.cpp leaves it out, too.
FEWEST_ROWS: Final = 16
OUTPUT: Final = "output.weight"


@dataclass(frozen=True, slots=True)
class _Sums:
    """The sums of one matrix in a graph.

    Attributes:
        name: of the matrix.
        sums: [columns, matrices] or [1, columns, matrices, more]; f32.
        counts: [1, experts], how many rows each expert has taken; None: all took ``rows``.
        rows: of each matrix.
        matrices: extents 2 and 3 of a matrix without experts.
    """

    name: str
    sums: Tensor
    counts: Tensor | None
    rows: int
    matrices: tuple[int, int]

    @property
    def results(self) -> list[Tensor]:
        """The tensors to bring to the host."""
        return [self.sums] if self.counts is None else [self.sums, self.counts]

    def read(
        self, sums: npt.NDArray[np.float32], counts: npt.NDArray[np.float32] | None
    ) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Sums (matrices, columns), and how many rows they have: (experts,) or (1,)."""
        if counts is not None:
            columns = self.sums.ne[0]
            return sums.reshape(-1, columns).astype(np.float64), counts.reshape(-1).astype(float)
        columns = self.sums.ne[1]
        each = sums.reshape(self.sums.ne[3], self.sums.ne[2], columns).astype(np.float64)
        two, three = self.matrices  # one matrix may serve several planes
        folded = each.reshape(-1, three, each.shape[1], columns).sum(0)
        folded = folded.reshape(three, -1, two, columns).sum(1)
        return folded.reshape(-1, columns), np.array([self.rows], np.float64)


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Activations:
    """A step whose graph computes sums of squares, and no more than they need.

    Attributes:
        step: has the graph.
        inputs: of the graph beside those of the step.
    """

    step: Step
    inputs: Mapping[Tensor, Any]
    _sums: tuple[_Sums, ...]

    @property
    def results(self) -> list[Tensor]:
        """The tensors to bring to the host."""
        return [tensor for one in self._sums for tensor in one.results]

    def read(
        self, arrays: list[npt.NDArray[np.float32]]
    ) -> list[tuple[str, npt.NDArray[np.float64], npt.NDArray[np.float64]]]:
        """Name, sums and counts of each product, of the arrays of `results`."""
        found, left = [], iter(arrays)
        for one in self._sums:
            sums = np.asarray(next(left))
            counts = None if one.counts is None else np.asarray(next(left))
            found.append((one.name, *one.read(sums, counts)))
        return found


def activations_of(step: Step, *, output: bool) -> Activations:
    """Add the sums to the graph of a step.

    Args:
        step: neither prepared nor kept; all of its tokens get a result.
        output: whether the matrix of the logits is measured, too; else logits are not computed.
    """
    graph = step.graph
    wanted = [node for node in graph.nodes if _measures(node, output=output)]
    squares: dict[Tensor, Tensor] = {}
    planes: dict[tuple[Tensor, Tensor], Tensor] = {}
    eyes: dict[int, Tensor] = {}
    found: list[_Sums] = []
    seen: set[tuple[str, Tensor]] = set()
    for node in wanted:
        matrix, x = node.src[0], node.src[1]
        assert matrix is not None
        assert x is not None
        name = matrix.root.name
        if (name, x) in seen:  # several views of one matrix take the same rows
            continue
        seen.add((name, x))
        square = squares.get(x)
        if square is None:
            square = squares[x] = ops.sqr(x if x.view_src is None else ops.cont(x))
        if node.op == "mul_mat_id":
            ids = node.src[2]
            assert ids is not None
            found.append(_of_experts(name, square, ids, matrix.ne[2], eyes, planes))
            continue
        sums = ops.sum_rows(ops.cont(ops.transpose(square))).set_output()
        two, three = matrix.ne[2], matrix.ne[3]
        rows = x.ne[1] * x.ne[2] * x.ne[3] // (two * three)
        found.append(_Sums(name, sums, None, rows, (two, three)))
    results = [tensor for one in found for tensor in one.results]
    ends = [end for end in graph.ends if output or end not in step.results]
    made = replace(step, graph=Graph(*ends, *results), result=results)
    inputs = {eye: np.eye(n, dtype=np.float32) for n, eye in eyes.items()}
    return Activations(made, inputs, tuple(found))


def _measures(node: Tensor, *, output: bool) -> bool:
    """Whether a node is a product with a matrix of the file that is measured."""
    if node.op not in ("mul_mat", "mul_mat_id"):
        return False
    matrix, x = node.src[0], node.src[1]
    if matrix is None or x is None or matrix.root.op != "none" or x.dtype is not DType.F32:
        return False
    name = matrix.root.name
    if not name.endswith(".weight"):
        return False
    if not name.startswith("blk.") and not (output and name == OUTPUT):
        return False
    many = x.ne[1] * x.ne[2] * x.ne[3] // max(1, matrix.ne[2] * matrix.ne[3])
    return node.op == "mul_mat_id" or many >= FEWEST_ROWS


def _of_experts(
    name: str,
    square: Tensor,
    ids: Tensor,
    experts: int,
    eyes: dict[int, Tensor],
    planes: dict[tuple[Tensor, Tensor], Tensor],
) -> _Sums:
    """The sums for each expert: squares times a matrix of 1 where a row went to an expert.

    Args:
        name: of the matrix.
        square: [columns, 1 or used, tokens].
        ids: [used, tokens].
        experts: how many there are.
        eyes: inputs, each a unit matrix, by its size.
        planes: results by squares and ids: gate and up have the same.
    """
    used, tokens = ids.ne[0], ids.ne[1]
    columns, n = square.ne[0], used * tokens
    if experts not in eyes:
        eye = aggml.new_tensor(DType.F32, ne=(experts, experts), name=f"eye {experts}")
        eyes[experts] = eye.set_input()
    flat = ops.reshape_1d(ops.cont(ids), n)
    chosen = ops.cont(ops.transpose(ops.get_rows(eyes[experts], flat)))  # [n, experts]
    counts = ops.sum_rows(chosen).set_output()
    key = (square, ids)
    sums = planes.get(key)
    if sums is None:
        if square.ne[1] != used:
            square = ops.repeat_4d(square, columns, used, tokens, 1)
        rows = ops.cont(ops.transpose(ops.reshape_2d(square, columns, n)))  # [n, columns]
        sums = planes[key] = ops.mul_mat(rows, chosen).set_output()
    return _Sums(name, sums, counts, 0, (1, 1))
