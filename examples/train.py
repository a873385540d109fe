"""A small network learns which of three spirals a point of the plane belongs to.

The data are generated, a quarter of them only validates. The parameters are leafs flagged by
`set_param`; `aggml.opt.fit` adds the loss, the gradients and the steps of AdamW.
"""

import anyio
import numpy as np

import aggml
from aggml import Tensor, ops, opt

BATCH, HIDDEN = 32, 32


def spirals(n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Points, and the number of the spiral of each as a row with a single 1."""
    spiral = rng.integers(0, 3, n)
    along = rng.uniform(0.2, 1, n)
    angle = 4 * along + 2 * np.pi / 3 * spiral + 0.4 * rng.normal(size=n)
    points = along[:, None] * np.stack((np.cos(angle), np.sin(angle)), axis=1)
    return points.astype(np.float32), np.eye(3, dtype=np.float32)[spiral]


async def main() -> None:
    rng = np.random.default_rng(0)
    first: dict[Tensor, np.ndarray] = {}

    def parameter(name: str, *ne: int) -> Tensor:
        tensor = aggml.new_tensor("f32", ne, name).set_param()
        first[tensor] = (rng.normal(size=tensor.shape) / np.sqrt(2 * ne[0])).astype(np.float32)
        return tensor

    x = aggml.new_tensor("f32", ne=(2, BATCH), name="points")
    hidden = ops.silu(x @ parameter("w1", 2, HIDDEN).T + parameter("b1", HIDDEN))
    hidden = ops.silu(hidden @ parameter("w2", HIDDEN, HIDDEN).T + parameter("b2", HIDDEN))
    y = hidden @ parameter("w3", HIDDEN, 3).T + parameter("b3", 3)

    async with aggml.get_device("CPU").backend() as backend:
        _memory = backend.alloc(first)
        for tensor, value in first.items():
            backend.set(tensor, value)
        adamw = opt.AdamW(alpha=0.01, wd=0.01)
        trainer = opt.Trainer(backend, x, y, loss="cross_entropy", optimizer=adamw)
        data = opt.Dataset(*spirals(1024, rng))
        epochs = await opt.fit(trainer, dataset=data, epochs=30, val_split=0.25, seed=1)
        for number, training, validation in (epochs[0], epochs[9], epochs[-1]):
            loss, error = validation.loss
            print(
                f"epoch {number:2}: training loss {training.loss.value:.3f}, validation loss "
                f"{loss:.3f} ± {error:.3f}, accuracy {100 * validation.accuracy.value:.1f} %"
            )

        test, found = spirals(BATCH, rng), opt.Results()
        await trainer.evaluate(*test, found)
        print("three of the test:", found.predictions[:3], "right:", test[1][:3].argmax(axis=1))


if __name__ == "__main__":
    anyio.run(main)
