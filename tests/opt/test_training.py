"""Training step by step against numpy; accumulation, evaluation, cancellation, what is refused.

On the CPU, the simulated device and a scheduler over both. Not here: data sets, losses and
optimizers by themselves (test_parts.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import numpy as np
import pytest
from opt.small_network import Network, Numpy

import aggml
from aggml import Scheduler, new_tensor, ops, opt

if TYPE_CHECKING:
    from aggml.devices.cpu import CPUBackend
    from aggml.devices.sim import SimBackend

pytestmark = pytest.mark.anyio

OPTIMIZERS = (
    opt.AdamW(alpha=0.05, wd=0.1),
    opt.AdamW(alpha=0.01, beta1=0.5, beta2=0.9, eps=1e-3),
    opt.SGD(alpha=0.1),
    opt.SGD(alpha=0.05, wd=0.2),
)
LOSSES = ("cross_entropy", "mean_squared_error", "mean", "sum")


def labels_for(loss: str, labels: Any) -> Any:
    return labels if loss in {"cross_entropy", "mean_squared_error"} else None


async def compare(net: Network, on: Any, loss: str, optimizer: Any, period: int) -> None:
    trainer = opt.Trainer(
        on, net.inputs, net.outputs, loss=loss, optimizer=optimizer, opt_period=period
    )
    same = Numpy(net.first, loss, optimizer)
    results, losses = opt.Results(), []
    for k in range(6):
        i = k % 6
        x, y = net.data[4 * i : 4 * i + 4], net.labels[4 * i : 4 * i + 4]
        await trainer.train(x, labels_for(loss, y), results)
        if (k + 1) % period == 0:
            group = range(k + 1 - period, k + 1)
            batches = [(net.data[4 * j : 4 * j + 4], net.labels[4 * j : 4 * j + 4]) for j in group]
            losses += same.step(batches)
            for name, value in (await net.values()).items():
                np.testing.assert_allclose(value, same.p[name], atol=2e-4, err_msg=f"{name}, {k}")
    assert (trainer.steps, trainer.pending) == (6 // period, 0)
    np.testing.assert_allclose(results.losses, losses, atol=1e-4)


@pytest.mark.parametrize("period", [1, 3])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=repr)
async def test_every_step_is_that_of_numpy(
    optimizer: Any, loss: str, period: int, cpu: CPUBackend
) -> None:
    await compare(Network(cpu), cpu, loss, optimizer, period)


@pytest.mark.parametrize("period", [1, 2])
async def test_a_device_with_memory_of_its_own_trains_alike(period: int, sim: SimBackend) -> None:
    await compare(Network(sim), sim, "cross_entropy", OPTIMIZERS[0], period)


@pytest.mark.parametrize("optimizer", OPTIMIZERS[1:3], ids=repr)
@pytest.mark.parametrize("period", [1, 3])
async def test_a_scheduler_trains_alike(
    optimizer: Any, period: int, cpu: CPUBackend, sim: SimBackend
) -> None:
    async with Scheduler([sim, cpu]) as scheduler:
        await compare(Network(sim), scheduler, "cross_entropy", optimizer, period)


async def test_parameters_may_lie_on_several_devices(cpu: CPUBackend, sim: SimBackend) -> None:
    net = Network(sim)
    net.memory.close()
    async with Scheduler([sim, cpu]) as scheduler:
        homes = {"w1": sim, "b1": cpu, "w2": cpu, "b2": sim}
        kept = []
        for name, tensor in net.params.items():
            kept.append(homes[name].alloc([tensor]))
            await homes[name].set(tensor, net.first[name])
        optimizer = opt.AdamW(alpha=0.05)
        trainer = opt.Trainer(
            scheduler, net.inputs, net.outputs, loss="cross_entropy", optimizer=optimizer
        )
        same = Numpy(net.first, "cross_entropy", optimizer)
        for i in range(3):
            x, y = net.data[4 * i : 4 * i + 4], net.labels[4 * i : 4 * i + 4]
            await trainer.train(x, y)
            same.step([(x, y)])
        await scheduler.synchronize()
        for name, tensor in net.params.items():
            value = await homes[name].get(tensor)
            np.testing.assert_allclose(value, same.p[name], atol=2e-4, err_msg=name)


async def test_evaluation_changes_nothing_and_agrees_with_numpy(cpu: CPUBackend) -> None:
    net = Network(cpu)
    trainer = opt.Trainer(cpu, net.inputs, net.outputs, loss="cross_entropy")
    results = opt.Results()
    await trainer.train(net.data[:4], net.labels[:4])
    before = await net.values()
    for i in range(1, 6):
        await trainer.evaluate(net.data[4 * i : 4 * i + 4], net.labels[4 * i : 4 * i + 4], results)
    after = await net.values()
    assert all(np.array_equal(before[name], after[name]) for name in before)
    same = Numpy(before, "cross_entropy", opt.AdamW())
    losses = [same.batch(net.data[i : i + 4], net.labels[i : i + 4])[0] for i in range(4, 24, 4)]
    np.testing.assert_allclose(results.losses, losses, atol=1e-4)
    p = before
    a = net.data[4:] @ p["w1"].T + p["b1"]
    z = (a / (1 + np.exp(-a))) @ p["w2"].T + p["b2"]
    assert np.array_equal(results.predictions, z.argmax(1))
    assert results.n == 20
    assert results.n_correct == int((z.argmax(1) == net.labels[4:].argmax(1)).sum())


async def test_a_reset_forgets_gradients_and_means(cpu: CPUBackend) -> None:
    net = Network(cpu)
    optimizer = opt.AdamW(alpha=0.05)
    trainer = opt.Trainer(
        cpu, net.inputs, net.outputs, loss="cross_entropy", optimizer=optimizer, opt_period=2
    )
    x, y = net.data, net.labels
    for i in (0, 4, 8):  # a step, and a batch that waits for another one
        await trainer.train(x[i : i + 4], y[i : i + 4])
    assert (trainer.steps, trainer.pending) == (1, 1)
    await trainer.reset(optimizer=True)
    assert (trainer.steps, trainer.pending) == (0, 0)
    same = Numpy(await net.values(), "cross_entropy", optimizer)
    for i in (12, 16):
        await trainer.train(x[i : i + 4], y[i : i + 4])
    same.step([(x[i : i + 4], y[i : i + 4]) for i in (12, 16)])
    for name, value in (await net.values()).items():
        np.testing.assert_allclose(value, same.p[name], atol=2e-4)


async def test_the_learning_rate_may_change_with_the_epoch(cpu: CPUBackend) -> None:
    net = Network(cpu)
    asked: list[int] = []

    def schedule(epoch: int) -> opt.SGD:
        asked.append(epoch)
        return opt.SGD(alpha=0.1 / epoch)

    data = opt.Dataset(net.data, net.labels)
    await opt.fit(
        cpu, net.inputs, net.outputs, data, loss="cross_entropy", optimizer=schedule, epochs=3,
        seed=4,
    )  # fmt: skip
    assert sorted(set(asked)) == [1, 2, 3]

    other = Network(cpu)
    same = {e: Numpy(other.first, "cross_entropy", opt.SGD(alpha=0.1 / e)) for e in (1, 2, 3)}
    rng, index = np.random.default_rng(4), np.arange(24)
    rng.shuffle(index)
    p = same[1].p
    for epoch, numpy in same.items():
        numpy.p = p
        rng.shuffle(index)
        for i in range(0, 24, 4):
            at = index[i : i + 4]
            numpy.step([(other.data[at], other.labels[at])])
        assert epoch == len([e for e in same if e <= epoch])
    for name, value in (await net.values()).items():
        np.testing.assert_allclose(value, p[name], atol=2e-4)


async def test_fit_trains_validates_and_reports(cpu: CPUBackend) -> None:
    net = Network(cpu)
    told: list[opt.TrainingProgress] = []
    data = opt.Dataset(net.data, net.labels)
    epochs = await opt.fit(
        cpu, net.inputs, net.outputs, data, loss="cross_entropy",
        optimizer=opt.AdamW(alpha=0.05), epochs=15, batch=8, val_split=0.34, seed=1,
        progress=told.append,
    )  # fmt: skip
    assert [e.epoch for e in epochs] == list(range(1, 16))
    assert {(e.training.n, e.validation.n) for e in epochs} == {(8, 16)} or {
        (e.training.n, e.validation.n) for e in epochs
    } == {(16, 8)}
    assert epochs[-1].training.loss.value < epochs[0].training.loss.value
    assert [(t.training, t.batch, t.n_batches) for t in told[:6]] == [
        (True, i, epochs[0].training.n // 4) for i in range(1, epochs[0].training.n // 4 + 1)
    ] + [(False, i, epochs[0].validation.n // 4) for i in range(1, epochs[0].validation.n // 4 + 1)]
    trainer = told[0].trainer
    assert trainer.steps == 15 * epochs[0].training.n // 8


async def test_the_same_seed_gives_the_same_parameters(cpu: CPUBackend) -> None:
    found = []
    for _ in range(2):
        net = Network(cpu)
        data = opt.Dataset(net.data, net.labels)
        await opt.fit(cpu, net.inputs, net.outputs, data, loss="cross_entropy", epochs=2, seed=3)
        found.append(await net.values())
    assert all(np.array_equal(found[0][name], found[1][name]) for name in found[0])


async def test_a_cancelled_fit_ends_between_batches_and_can_go_on(cpu: CPUBackend) -> None:
    net = Network(cpu)
    optimizer = opt.AdamW(alpha=0.05)
    trainer = opt.Trainer(cpu, net.inputs, net.outputs, loss="cross_entropy", optimizer=optimizer)
    data = opt.Dataset(net.data, net.labels)
    with anyio.CancelScope() as scope:

        def stop(progress: opt.TrainingProgress) -> None:
            if progress.epoch == 2 and progress.batch == 3:
                scope.cancel()

        await opt.fit(trainer, dataset=data, epochs=9, seed=2, progress=stop)
    assert scope.cancelled_caught
    assert trainer.steps == 6 + 3
    same = Numpy(net.first, "cross_entropy", optimizer)
    rng, index = np.random.default_rng(2), np.arange(24)
    rng.shuffle(index)
    for n in (6, 3):
        rng.shuffle(index)
        for i in range(0, 4 * n, 4):
            same.step([(net.data[index[i : i + 4]], net.labels[index[i : i + 4]])])
    for name, value in (await net.values()).items():
        np.testing.assert_allclose(value, same.p[name], atol=2e-4)
    assert np.array_equal(data.order, index)
    await trainer.train(net.data[:4], net.labels[:4])
    same.step([(net.data[:4], net.labels[:4])])
    for name, value in (await net.values()).items():
        np.testing.assert_allclose(value, same.p[name], atol=2e-4)


async def test_a_batch_whose_wait_is_cancelled_is_carried_out(sim: SimBackend) -> None:
    net = Network(sim)
    optimizer = opt.SGD(alpha=0.1)
    trainer = opt.Trainer(sim, net.inputs, net.outputs, loss="cross_entropy", optimizer=optimizer)
    await trainer.train(net.data[:4], net.labels[:4])
    results = opt.Results()
    sim.stream.native.hold()
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(trainer.train, net.data[4:8], net.labels[4:8], results)
            while trainer.steps < 2:
                await anyio.lowlevel.checkpoint()
            scope.cancel()
    sim.stream.native.release()
    assert scope.cancelled_caught
    assert results.n == 0
    same = Numpy(net.first, "cross_entropy", optimizer)
    for i in (0, 4):
        same.step([(net.data[i : i + 4], net.labels[i : i + 4])])
    for name, value in (await net.values()).items():
        np.testing.assert_allclose(value, same.p[name], atol=2e-4)


async def test_two_tasks_in_one_trainer_are_refused(sim: SimBackend) -> None:
    net = Network(sim)
    trainer = opt.Trainer(sim, net.inputs, net.outputs, loss="cross_entropy")
    await trainer.train(net.data[:4], net.labels[:4])
    sim.stream.native.hold()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(trainer.train, net.data[4:8], net.labels[4:8])
        while trainer.steps < 2:
            await anyio.lowlevel.checkpoint()
        with pytest.raises(aggml.InvalidState, match="another task"):
            await trainer.evaluate(net.data[:4], net.labels[:4])
        sim.stream.native.release()


# -- what is refused


async def test_a_model_that_cannot_be_trained_is_refused(cpu: CPUBackend) -> None:
    net = Network(cpu)
    x, y = net.inputs, net.outputs
    cases: list[tuple[type[Exception], str, tuple[Any, ...], dict[str, Any]]] = [
        (aggml.InvalidHandle, "no Backend", (None, x, y), {}),
        (aggml.InvalidHandle, "inputs = 3", (cpu, 3, y), {}),
        (aggml.InvalidHandle, "opt_period = 1.5", (cpu, x, y), {"opt_period": 1.5}),
        (aggml.InvalidArgument, "opt_period = 0", (cpu, x, y), {"opt_period": 0}),
        (aggml.InvalidArgument, "loss = 'hinge'", (cpu, x, y), {"loss": "hinge"}),
        (aggml.InvalidArgument, "optimizer 3", (cpu, x, y), {"optimizer": 3}),
        (aggml.InvalidArgument, "is no leaf of", (cpu, net.params["w1"], y), {}),
        (aggml.InvalidArgument, "is no leaf of", (cpu, new_tensor("f32", 3, "z"), y), {}),
        (aggml.InvalidArgument, "no parameter", (cpu, x, ops.sqr(x)), {}),
        (aggml.Unsupported, "op tanh has no gradient", (cpu, x, ops.tanh(y)), {}),
        (aggml.InvalidArgument, "flagged as a loss", (cpu, x, ops.sum(y).set_loss()), {}),
    ]
    for error, text, args, options in cases:
        with pytest.raises(error, match=text):
            opt.Trainer(*args, **{"loss": "mean", **options})
    other = new_tensor("f32", 2, "other").set_param()
    with pytest.raises(aggml.NotAllocated, match=r"parameter other f32 \[2\] has no memory"):
        opt.Trainer(cpu, x, ops.add(y, other), loss="mean")


async def test_a_fit_of_no_tensor_or_with_a_trainer_and_its_arguments_is_refused(
    cpu: CPUBackend,
) -> None:
    net = Network(cpu)
    data, wrong = opt.Dataset(net.data, net.labels), {"inputs": 3}
    with pytest.raises(aggml.InvalidHandle, match="inputs = 3 is no tensor"):
        await opt.fit(cpu, wrong["inputs"], net.outputs, data, loss="mean", batch=4)  # type: ignore[arg-type]
    trainer = opt.Trainer(cpu, net.inputs, net.outputs, loss="cross_entropy")
    with pytest.raises(aggml.InvalidArgument, match="loss is that of the Trainer"):
        await opt.fit(trainer, dataset=data, loss="mean")


async def test_batches_that_do_not_fit_are_refused_and_change_nothing(cpu: CPUBackend) -> None:
    net = Network(cpu)
    trainer = opt.Trainer(cpu, net.inputs, net.outputs, loss="cross_entropy")
    for data, labels, error in (
        (net.data[:4], None, aggml.InvalidArgument),
        (net.data[:3], net.labels[:4], aggml.LayoutMismatch),
        (net.data[:4], net.labels[:4].astype(np.float64), aggml.LayoutMismatch),
    ):
        with pytest.raises(error):
            await trainer.train(data, labels)
        assert (trainer.steps, trainer.pending) == (0, 0)
    values = await net.values()
    assert all(np.array_equal(values[name], net.first[name]) for name in values)
    mean = opt.Trainer(cpu, *_pair(cpu), loss="mean")
    with pytest.raises(aggml.InvalidArgument, match="takes no labels"):
        await mean.train(net.data[:4], net.labels[:4])


def _pair(cpu: CPUBackend) -> tuple[aggml.Tensor, aggml.Tensor]:
    net = Network(cpu)
    return net.inputs, net.outputs


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"epochs": 0}, aggml.InvalidArgument, "epochs = 0"),
        ({"epochs": 1.5}, aggml.InvalidHandle, "epochs = 1.5"),
        ({"batch": 6}, aggml.InvalidArgument, "batch = 6 is no multiple of the 4"),
        ({"batch": 16}, aggml.InvalidArgument, "steps of 16 data points"),
        ({"val_split": 1.0}, aggml.InvalidArgument, "val_split = 1.0"),
        ({"val_split": 0.99}, aggml.InvalidArgument, "leaves no step"),
        ({"val_split": "half"}, aggml.InvalidHandle, "val_split = 'half'"),
        ({"loss": None}, aggml.InvalidArgument, "give inputs, outputs and loss"),
        ({"dataset": []}, aggml.InvalidHandle, "is no Dataset"),
        ({"seed": "one"}, aggml.InvalidArgument, "seed = 'one'"),
        ({"seed": -1}, aggml.InvalidArgument, "seed = -1"),
        ({"progress": 3}, aggml.InvalidHandle, "progress = 3 is no function"),
        ({"batch": 4.5}, aggml.InvalidHandle, "batch = 4.5"),
        ({"optimizer": opt.AdamW}, aggml.InvalidArgument, "AdamW is a class: pass a value"),
    ],
)
async def test_fits_that_cannot_be_are_refused(
    options: dict[str, Any], error: type[Exception], text: str, cpu: CPUBackend
) -> None:
    net = Network(cpu)
    given = {"dataset": opt.Dataset(net.data, net.labels), "loss": "cross_entropy", **options}
    with pytest.raises(error, match=text):
        await opt.fit(cpu, net.inputs, net.outputs, **given)
