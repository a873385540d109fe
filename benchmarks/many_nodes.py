"""``python -m benchmarks.many_nodes``: the limits of pipelines and replicas on 8 to 1,000 nodes.

A simulation, event by event, from measured constants: no cluster of that size was at hand. Not
here: what a pipeline costs on this machine (many_machines.py).
"""

from __future__ import annotations

import argparse
import heapq
import itertools
from dataclasses import dataclass, replace

HOP = 0.78e-3  # seconds that a stage adds to a token: stages on four Ray nodes of one Zen 4
SUBMIT = 0.68e-3  # seconds of the driver for a step: it sends, receives, and draws a token
WIRE = 1.25e9  # bytes/s between nodes: 10 Gbit/s
READ = 40e9  # bytes/s at which a node reads weights
FLOPS = 4e12  # operations/s of a node, on int8


@dataclass(frozen=True)
class Case:
    """A model on a pipeline.

    Attributes:
        nbytes: bytes of all weights.
        parameters: number of weights; each takes two operations for a token.
        width: f32 elements of the vector that goes from stage to stage for a token.
        stages: nodes of a pipeline.
        sequences: sequences at a time; the steps under way share them.
        micro_batches: steps that are under way at a time.
    """

    nbytes: float
    parameters: float
    width: int
    stages: int
    sequences: int
    micro_batches: int

    @property
    def batch(self) -> int:
        """Sequences in one step."""
        return -(-self.sequences // self.micro_batches)

    @property
    def compute(self) -> float:
        """Seconds that a stage computes for a step, bound by reading weights or by arithmetic."""
        share = 1 / self.stages
        return share * max(self.nbytes / READ, 2 * self.parameters * self.batch / FLOPS)

    @property
    def transfer(self) -> float:
        """Seconds from one stage to the next one."""
        return HOP + 4 * self.width * self.batch / WIRE


def simulate(case: Case, steps: int = 400) -> tuple[float, float]:
    """Tokens per second of all sequences, and seconds from token to token of one of them."""
    order = itertools.count()
    free = [0.0] * case.stages  # when each stage is done with its work so far
    driver = 0.0
    done: list[float] = []
    events = [(0.0, next(order), i, -1) for i in range(case.micro_batches)]
    heapq.heapify(events)
    while len(done) < steps:
        now, _, step, stage = heapq.heappop(events)
        if stage == case.stages - 1:
            done.append(now)
            stage = -1
        if stage == -1:  # the driver sends the step of the next token
            driver = max(driver, now) + SUBMIT
            then, stage = driver + case.transfer, 0
        else:
            stage += 1
            then = now + case.transfer
        begin = max(then, free[stage])
        free[stage] = begin + case.compute
        heapq.heappush(events, (free[stage], next(order), step, stage))
    took = done[-1] - done[len(done) // 2]
    each = took / (len(done) - 1 - len(done) // 2)
    return case.batch / each, each * case.micro_batches


def bound(case: Case) -> str:
    """The resource that limits a step."""
    shares = {
        "weights": case.nbytes / READ / case.stages,
        "arithmetic": 2 * case.parameters * case.batch / FLOPS / case.stages,
        "driver": SUBMIT,
        "latency": (case.compute + case.transfer) * case.stages / case.micro_batches,
    }
    if shares["latency"] <= case.compute * case.stages / case.micro_batches * 1.01:
        del shares["latency"]
    return max(shares, key=lambda name: shares[name])


def main() -> None:
    argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None).parse_args()
    large = Case(40e9, 70e9, 8192, 8, 16, 9)  # 70 B parameters, 4.5 bits each
    print("| nodes | pipelines x stages | sequences | tokens/s | ms a token | bound by |")
    print("| ---: | --- | ---: | ---: | ---: | --- |")
    for nodes, stages, sequences in [
        (8, 8, 1), (8, 8, 9), (8, 8, 144), (40, 40, 41), (80, 80, 81), (80, 8, 1440),
        (200, 8, 3600), (1000, 8, 18000), (1000, 40, 10250),
    ]:  # fmt: skip
        pipelines = nodes // stages
        each = sequences // pipelines
        case = replace(large, stages=stages, sequences=each, micro_batches=min(each, stages + 1))
        tokens, pace = simulate(case, steps=40 * case.micro_batches)
        print(
            f"| {nodes} | {pipelines} x {stages} | {sequences} | {tokens * pipelines:.0f} | "
            f"{1e3 * pace:.0f} | {bound(case)} |"
        )


if __name__ == "__main__":
    main()
