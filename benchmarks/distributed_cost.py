"""What a step over agents costs: measured here on 1, 2 and 4 processes, fitted, and carried over to larger networks.

    python benchmarks/distributed_cost.py            a minute of computing; --quick takes fewer sizes

    seconds of a step = calls x seconds of a call + rounds x (latency + bytes of a round x seconds of a byte)

docs/internet-scale.md says what the numbers mean. Seconds are those of the quickest of many steps: other work only adds.
"""

from __future__ import annotations

import argparse
import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from pydantic import PositiveInt
from torch import Tensor

from bilevelbench import Distributed, Oracle
from bilevelbench.discovery.entry import make
from bilevelbench.discovery.registry import registry
from bilevelbench.engine.agents import leader
from bilevelbench.engine.setup import PreparedPack
from bilevelbench.model.rounding import one_thread
from bilevelbench.model.torch_state import default_dtype
from bilevelbench.plan.spec_text import parse_spec
from bilevelbench.plan.trial import Budget
from bilevelbench.plan.trials import make_trial

F64 = npt.NDArray[np.float64]

ROUNDS, STEPS, K, DX = 200, 50, 10, 10
SIZES = (100, 1_000, 10_000, 100_000, 1_000_000)
DIMENSIONS = (20, 100, 400)


@dataclass(frozen=True)
class Still:
    x: Tensor
    y: Tensor


class Probe(Distributed):
    """A round of a given size and nothing else."""

    name = "probe"
    uses = frozenset()

    numbers: PositiveInt = 1
    """length of a message"""

    def init(self, x0: Tensor, y0: Tensor, oracle: Oracle) -> Still:
        return Still(x0, y0)

    def step(self, s: Still, oracle: Oracle) -> Still:
        oracle.mean(torch.zeros(1, self.numbers, dtype=oracle.dtype))
        return s


# ---------------------------------------------------------------------------------------------------- measuring


def seconds_of_a_step(method: str, problem: str, steps: int) -> float:
    """The least over the steps of one trial, on the leader's clock."""
    (algorithm,), (where,) = parse_spec(method), parse_spec(problem)
    trial = make_trial(registry(), algorithm, where, budget=Budget(steps=steps))
    with default_dtype(torch.float64):
        instance = make(registry().problem(where.key), where.params).build()
        chosen = make(registry().algorithm(algorithm.key), algorithm.params).resolve(instance.constants)
        part = leader.join(chosen, instance, trial)
    assert part is not None
    pack = PreparedPack(instance, [chosen], [0], part=part)
    times = []
    with one_thread():
        state = pack.init()
        for step in range(1, steps + 1):
            began = time.perf_counter()
            state = pack.step(step, state)
            times.append(time.perf_counter() - began)
    part.network.end()
    return min(times)


def measured_rounds(agents: int, sizes: Sequence[int]) -> F64:
    """Seconds of a round for each length of the message."""
    problem = f"quadratic_agents[agents={agents},dim_x=2,dim_y=2]"
    probe = f"{Path(__file__).resolve()}:Probe"
    return np.array([seconds_of_a_step(f"{probe}[numbers={n}]", problem, ROUNDS) for n in sizes])


def line(x: Sequence[float], seconds: F64) -> tuple[float, float]:
    """Least squares of relative errors: seconds = a + b x, both at least 0."""
    from scipy.optimize import nnls

    columns = np.stack([np.ones(len(x)), np.array(x, dtype=float)], 1) / seconds[:, None]
    scale = np.linalg.norm(columns, axis=0)
    a, b = nnls(columns / scale, np.ones(len(x)))[0] / scale
    return float(a), float(b)


@dataclass(frozen=True)
class Network:
    """A round of an all-reduce between `agents`, as a function of the bytes that each of them puts in."""

    agents: int
    latency: float  # seconds of an empty round
    per_byte: float  # seconds

    def round(self, size: float) -> float:
        return self.latency + self.per_byte * size


def measure(sizes: Sequence[int], dimensions: Sequence[int]) -> None:
    alone = measured_steps(1, dimensions)
    calls = 3 * K + 3
    print(f"a step of F2BA, K = {K}, dx = {DX}: {calls} calls, {K + 1} rounds")
    for dy, t in alone.items():
        print(f"  1 agent, dy = {dy:>4}: {1e3 * t:8.2f} ms, {1e6 * t / calls:6.1f} us a call")
    for agents in (2, 4):
        seconds = measured_rounds(agents, sizes)
        network = Network(agents, *line([8 * n for n in sizes], seconds))
        print(
            f"\n{agents} processes: an all-reduce takes {1e6 * network.latency:.0f} us "
            f"+ bytes/({1e-9 / network.per_byte:.2f} GB/s)"
        )
        for n, t in zip(sizes, seconds, strict=True):
            print(f"  {8 * n:>9,} bytes: {1e6 * t:7.0f} us measured, {1e6 * network.round(8 * n):7.0f} us fitted")
        for dy, t in measured_steps(agents, dimensions).items():
            up = K * network.round(16 * dy) + network.round(8 * DX)
            print(
                f"  a step, dy = {dy:>4}: {1e3 * t:8.2f} ms measured, {1e3 * (alone[dy] + up):8.2f} ms predicted "
                f"({1e3 * alone[dy]:.2f} calls + {1e3 * up:.2f} rounds)"
            )
    leader.dismiss()


def measured_steps(agents: int, dimensions: Sequence[int]) -> dict[int, float]:
    """Seconds of a step of F2BA for each dy."""
    problem = f"quadratic_agents[agents={agents},dim_x={DX},dim_y={{}}]"
    return {dy: seconds_of_a_step(f"dist_f2ba[K={K}]", problem.format(dy), STEPS) for dy in dimensions}


# ---------------------------------------------------------------------------------------------------- carrying over


def ring(agents: int, size: float, latency: float, bandwidth: float) -> float:
    """2 (m - 1) hops, each with one m-th of the message."""
    return 2 * (agents - 1) * (latency + size / agents / bandwidth)


def tree(agents: int, size: float, latency: float, bandwidth: float) -> float:
    """Up and down a binary tree, the whole message on each edge."""
    return 2 * int(np.ceil(np.log2(agents))) * (latency + size / bandwidth)


def simulated_ring(agents: int, slowness: Callable[[], F64]) -> float:
    """In hops of a punctual agent: one begins its next hop when it and its left neighbour have ended the last one."""
    clock = np.zeros(agents)
    for _ in range(2 * (agents - 1)):
        clock = np.maximum(clock, np.roll(clock, 1)) + slowness()
    return float(clock.max())


def simulated_tree(agents: int, slowness: Callable[[], F64]) -> float:
    """Pairs at distance 1, 2, 4, ...: the left one waits for the right one, whose hop it is; then back down."""
    clock = np.zeros(agents)
    spans = [1 << level for level in range(int(np.ceil(np.log2(agents))))]
    for span in spans:
        left = np.arange(0, agents - span, 2 * span)
        clock[left] = np.maximum(clock[left], clock[left + span] + slowness()[left + span])
    for span in reversed(spans):
        left = np.arange(0, agents - span, 2 * span)
        clock[left] = clock[left + span] = clock[left] + slowness()[left]
    return float(clock.max())


NETWORKS = {"data centre, 100 Gbit/s, 20 us": (20e-6, 12.5e9), "internet, 100 Mbit/s, 50 ms": (50e-3, 12.5e6)}


def predict(agents: int = 1000, dy: float = 124e6, bytes_of_a_number: int = 4) -> None:
    size = 2 * dy * bytes_of_a_number
    print(
        f"\n{agents} agents, dy = {dy:.3g}, float32: a round of F2BA's lower level is {size / 1e6:.0f} MB from each agent,"
    )
    print(f"a step with K = {K} is {K * size / 1e9:.2f} GB in {K + 1} rounds")
    for name, (latency, bandwidth) in NETWORKS.items():
        for kind, cost in (("ring", ring), ("tree", tree)):
            once, small = cost(agents, size, latency, bandwidth), cost(agents, 8.0 * DX, latency, bandwidth)
            print(
                f"  {name}, {kind}: {once:9.3g} s a round, {K * once + small:9.3g} s a step; an empty round {small:.3g} s"
            )


def stragglers(agents: int = 1000, draws: int = 10, factor: float = 10.0) -> None:
    """How much longer a round takes when some agents are always slow, or any agent is slow now and then."""
    rng = np.random.default_rng(0)
    print(
        f"\n{agents} agents: a round with slow hops over one without ({factor:g} times slower; mean of {draws} simulations)"
    )
    for share in (0.001, 0.01, 0.1):
        told = []
        for kind, simulate in (("ring", simulated_ring), ("tree", simulated_tree)):
            plain = simulate(agents, lambda: np.ones(agents))
            some = functools.partial(_slow, rng, agents, share, factor)
            always = [simulate(agents, functools.partial(np.copy, some())) for _ in range(draws)]
            now_and_then = [simulate(agents, some) for _ in range(draws)]
            told.append(f"{kind} {np.mean(always) / plain:5.2f} and {np.mean(now_and_then) / plain:5.2f}")
        print(f"  {100 * share:>4g} % of the agents always, or of the hops: {'; '.join(told)}")


def _slow(rng: np.random.Generator, agents: int, share: float, factor: float) -> F64:
    return np.where(rng.random(agents) < share, factor, 1.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true", help="fewer sizes")
    quick = parser.parse_args().quick
    measure(SIZES[:3] if quick else SIZES, DIMENSIONS[:1] if quick else DIMENSIONS)
    predict()
    stragglers()


if __name__ == "__main__":
    main()
