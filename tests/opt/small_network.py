"""A small network with generated data, and its training in numpy, step by step in float64.

Not here: the tests that compare the two.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

import aggml
from aggml import new_tensor, ops, opt

if TYPE_CHECKING:
    from collections.abc import Sequence

Array = np.ndarray[Any, Any]


class Network:
    """Two layers, ``w2 silu(w1 x + b1) + b2``; the batch has 4 data points."""

    def __init__(self, on: aggml.Backend) -> None:
        n_in, hidden, n_out = 3, 5, 2
        rng = np.random.default_rng(11)
        shapes = {"w1": (n_in, hidden), "b1": (hidden,), "w2": (hidden, n_out), "b2": (n_out,)}
        self.params = {name: new_tensor("f32", ne, name).set_param() for name, ne in shapes.items()}
        self.first = {
            name: rng.normal(size=t.shape).astype(np.float32) for name, t in self.params.items()
        }
        self.inputs = new_tensor("f32", (n_in, 4), "x").set_input()
        p = self.params
        inner = ops.silu(ops.add(ops.mul_mat(p["w1"], self.inputs), p["b1"]))
        self.outputs = ops.add(ops.mul_mat(p["w2"], inner), p["b2"]).set_name("outputs")
        self.memory = on.alloc(list(p.values()))
        for name, tensor in p.items():
            on.set(tensor, self.first[name])
        self.on = on
        self.data = rng.normal(size=(24, n_in)).astype(np.float32)
        self.labels = np.eye(n_out, dtype=np.float32)[(self.data[:, 0] > 0).astype(int)]

    async def values(self) -> dict[str, Array]:
        """The parameters as they are now."""
        return {name: await self.on.get(tensor) for name, tensor in self.params.items()}


class Numpy:
    """The same network in float64: gradients by the chain rule, steps as the papers have them."""

    def __init__(self, first: dict[str, Array], loss: str, optimizer: opt.AdamW | opt.SGD) -> None:
        self.p = {name: value.astype(np.float64) for name, value in first.items()}
        self.m = {name: np.zeros_like(value) for name, value in self.p.items()}
        self.v = {name: np.zeros_like(value) for name, value in self.p.items()}
        self.loss, self.optimizer, self.t = loss, optimizer, 0

    def batch(self, x: Array, y: Array) -> tuple[float, dict[str, Array]]:
        """The loss of a batch, and its gradients."""
        p = self.p
        x, y = x.astype(np.float64), y.astype(np.float64)
        a = x @ p["w1"].T + p["b1"]
        s = 1 / (1 + np.exp(-a))
        h = a * s
        z = h @ p["w2"].T + p["b2"]
        if self.loss == "cross_entropy":
            e = np.exp(z - z.max(axis=1, keepdims=True))
            q = e / e.sum(axis=1, keepdims=True)
            value, dz = float(-(y * np.log(q)).sum() / len(x)), (q - y) / len(x)
        elif self.loss == "mean_squared_error":
            value, dz = float(((z - y) ** 2).mean()), 2 * (z - y) / z.size
        elif self.loss == "mean":
            value, dz = float(z.mean()), np.full_like(z, 1 / z.size)
        else:
            value, dz = float(z.sum()), np.ones_like(z)
        dh = dz @ p["w2"]
        da = dh * (s + a * s * (1 - s))
        return value, {"w1": da.T @ x, "b1": da.sum(0), "w2": dz.T @ h, "b2": dz.sum(0)}

    def step(self, batches: Sequence[tuple[Array, Array]]) -> list[float]:
        """A step with the gradients of some batches: their mean, or their sum for `sum`."""
        found = [self.batch(x, y) for x, y in batches]
        share = 1.0 if self.loss == "sum" else 1 / len(batches)
        self.t += 1
        o = self.optimizer
        for name, w in self.p.items():
            g = sum(gradients[name] for _, gradients in found) * share
            if isinstance(o, opt.SGD):
                w[...] = w * (1 - o.alpha * o.wd) - o.alpha * g
                continue
            m, v = self.m[name], self.v[name]
            m[...] = o.beta1 * m + (1 - o.beta1) * g
            v[...] = o.beta2 * v + (1 - o.beta2) * g * g
            mean, square = m / (1 - o.beta1**self.t), v / (1 - o.beta2**self.t)
            w[...] = w * (1 - o.alpha * o.wd) - o.alpha * mean / (np.sqrt(square) + o.eps)
        return [value for value, _ in found]
