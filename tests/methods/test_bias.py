"""Where the methods end: which bias falls with lam, which with the inner loop, which never.

One nonquadratic problem with dx = 4, dy = 6 and |grad phi| = 2.1 at the start. |grad phi| is computed here in numpy, by
Newton's method and a dense solve, and not by the package.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from helpers import iterates, packed, plugins, trial
from plain_problems import Wavy
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor

from bilevelbench import Algorithm, Oracle, PerLane
from bilevelbench.discovery.entry import make
from bilevelbench.discovery.registry import registry
from bilevelbench.plan.spec_text import parse_spec

PROBLEM = Wavy(mu=0.2, analytic=True)
PLAIN = PROBLEM.plain()
STEP = 0.4  # of x, for all methods that take one
SIZES = [1, 5, 10, 30]


@dataclass(frozen=True)
class State:
    x: Tensor
    y: Tensor


class ResetZ(Algorithm):
    """F2BA whose z starts at y in every step, and nothing else changed."""

    name = "reset_z"
    uses = frozenset({"grad_f_x", "grad_f_y", "grad_g_x", "grad_g_y"})

    lam: PositiveFloat = 1000.0
    K: PerLane[PositiveInt] = 10
    eta_x: PositiveFloat = 0.1
    a: PositiveFloat = 0.1

    def init(self, x0: Tensor, y0: Tensor, oracle: Oracle) -> State:
        return State(x0, y0)

    def step(self, s: State, oracle: Oracle) -> State:
        x, y, z = s.x, s.y, s.y
        for _ in oracle.repeat(self.K):
            z = z - self.a * oracle.grad_g_y(x, z)
            y = y - self.a * (oracle.grad_f_y(x, y) / self.lam + oracle.grad_g_y(x, y))
        d = oracle.grad_f_x(x, y) + self.lam * (oracle.grad_g_x(x, y) - oracle.grad_g_x(x, z))
        return State(x - self.eta_x * d, y)


@functools.cache
def final(text: str, steps: int) -> float:
    """|grad phi| at the last x."""
    (spec,) = parse_spec(text)
    method = ResetZ(**spec.params) if spec.name == "reset_z" else make(registry().algorithm(spec.name), spec.params)
    x, _ = iterates(method, PROBLEM.build(), steps)[-1]
    return float(np.linalg.norm(PLAIN.grad_phi(x)))


def f2ba(lam: float, K: int) -> float:
    return final(f"f2ba[lam={lam},K={K},eta_x={STEP},a_y=0.2,a_z=0.2]", 150)


def released(lam: float, K: int) -> float:
    return final(f"f2ba_released[lam={lam},K={K},eta_x={STEP if K < 30 else STEP / 4},a=0.2]", 150)


def reset_z(K: int) -> float:
    return final(f"reset_z[lam=1000,K={K},eta_x={STEP},a=0.2]", 150)


def pbgd(K: int, start: str) -> float:
    return final(f"pbgd[gam=60,K={K},alpha=0.005,b=0.2,start={start}]", 1500)


def test_f2ba_ends_at_a_floor_proportional_to_1_over_lam():
    scaled = [lam * f2ba(lam, 10) for lam in (1e2, 1e3, 1e4)]
    assert max(scaled) < 1.02 * min(scaled)
    assert scaled[0] == pytest.approx(0.645, rel=0.01)


@pytest.mark.parametrize("K", SIZES)
def test_floor_of_f2ba_does_not_depend_on_K(K):
    """Both lower variables are warm, so even one lower step a step is enough."""
    assert f2ba(1e3, K) == pytest.approx(f2ba(1e3, 10), rel=1e-3)


@pytest.mark.parametrize("K", SIZES)
def test_released_script_stays_orders_of_magnitude_above_whatever_lam_is(K):
    low, high = released(1e2, K), released(1e5, K)
    assert high == pytest.approx(low, rel=0.05)
    assert high > 0.3
    assert high > 400 * f2ba(1e3, K)


def test_bias_of_the_released_script_does_not_fall_with_K():
    assert released(1e5, 30) > released(1e5, 10) > released(1e5, 1)


def test_resetting_z_alone_leaves_a_bias_that_falls_with_K():
    bias = [reset_z(K) for K in SIZES]
    assert all(more < less for less, more in itertools.pairwise(bias))
    assert bias[0] > 500 * f2ba(1e3, 1)
    assert bias[-1] > 5 * f2ba(1e3, 30)
    assert bias[-1] < bias[0] / 20


def test_resetting_z_at_K_1_is_the_released_script():
    """The first lower step has y = z, so g_y(x, z) is g_y(x, y)."""
    one = [ResetZ(lam=50.0, K=1, eta_x=0.1, a=0.2), make(registry().algorithm("f2ba_released"), _released(50.0, 1))]
    (x, y), (u, v) = (iterates(method, PROBLEM.build(), 20)[-1] for method in one)
    np.testing.assert_allclose(x, u, rtol=1e-12)
    np.testing.assert_allclose(y, v, rtol=1e-12)


def _released(lam: float, K: int) -> dict[str, float]:
    return {"lam": lam, "K": K, "eta_x": 0.1, "a": 0.2}


def test_pbgd_from_y_is_biased_and_warm_with_one_step_is_not():
    floor = f2ba(60.0, 10)
    assert pbgd(1, "warm") == pytest.approx(floor, rel=0.05)
    assert pbgd(10, "y") > 5 * floor


def test_bias_of_itd_falls_with_the_unrolled_steps_and_never_with_the_steps():
    bias = {D: final(f"itd[D={D},eta_x={STEP},a=0.4]", 120) for D in (1, 3, 10, 30)}
    assert bias[1] > 2 * bias[3] > 10 * bias[10] > 1000 * bias[30] > 1e-3
    assert final(f"itd[D=10,eta_x={STEP},a=0.4]", 200) == pytest.approx(bias[10], rel=1e-6)


def test_truncated_itd_is_as_biased_as_the_steps_that_it_differentiates():
    """The forward loop is warm: at the limit all Y[t] are y*, and only the backward loop's length is left."""
    short, full = (final(f"itd[D={D},truncate={h},eta_x={STEP},a=0.4]", 120) for D, h in ((10, 3), (10, 10)))
    assert short > 5 * full


def test_neumann_series_keeps_its_truncation_error_and_the_warm_solvers_have_none():
    bias = {N: final(f"aid[solver=neumann,D=10,N={N},eta_x={STEP},a=0.4]", 120) for N in (1, 3, 10, 30)}
    assert bias[1] > 2 * bias[3] > 10 * bias[10] > 1000 * bias[30] > 1e-3
    for solver in ("cg", "richardson"):
        assert final(f"aid[solver={solver},D=10,N=3,eta_x={STEP},a=0.4]", 120) < 1e-8


def test_itd_and_the_neumann_series_of_as_many_terms_have_the_same_limit():
    """At a fixed point of the lower level the backward loop is the series a sum_{q<D} (I - aH)^q."""
    unrolled = final(f"itd[D=10,eta_x={STEP},a=0.4]", 200)
    series = final(f"aid[solver=neumann,D=10,N=9,eta_x={STEP},a=0.4]", 200)
    assert unrolled == pytest.approx(series, rel=1e-6)


@pytest.mark.parametrize("lam", [10.0, 1e4])
@pytest.mark.parametrize("K", [1, 6])
def test_released_script_has_y_minus_z_equal_to_a_multiple_of_the_sum_of_f_y(K, lam):
    """y - z = -(a/lam) sum of the K values of f_y, so that d = f_x - a K J f_y up to O(1/lam)."""
    instance, a = PROBLEM.build(), 0.2
    method = make(registry().algorithm("f2ba_released"), {"lam": lam, "K": K, "eta_x": 0.05, "a": a})
    asked: list[tuple[str, Tensor, Tensor, Tensor]] = []

    oracle = Oracle(instance, method.uses, seeds=[0])

    def noting(query, ask):
        """The query, and a note of what `step` asks and gets."""

        def noted(x, y, xi=None):
            out = ask(x, y, xi)
            asked.append((query, x, y, out))
            return out

        return noted

    for query in method.uses:
        setattr(oracle, query, noting(query, getattr(oracle, query)))
    with torch.no_grad():
        state = method.init(instance.x0[None], instance.y0[None], oracle)
        for step in range(1, 4):
            asked.clear()
            oracle.begin_step(step)
            x, state = state.x, method.step(state, oracle)
            total = sum(out for query, _, _, out in asked if query == "grad_f_y")
            y, z = (at for query, _, at, _ in asked if query == "grad_g_x")
            torch.testing.assert_close(y - z, -(a / lam) * total, rtol=1e-9, atol=1e-14)
            d = (x - state.x).numpy()[0] / 0.05
            first = asked[[query for query, *_ in asked].index("grad_f_y")]
            start = first[2].numpy()[0]
            if lam == 1e4 and K == 1:
                at, end = x.numpy()[0], y.numpy()[0]
                claimed = PLAIN.f_x(at, end) - a * K * PLAIN.J(at, end) @ PLAIN.f_y(at, start)
                np.testing.assert_allclose(d, claimed, atol=1e-3)


def test_runner_and_evaluator_see_the_same_floors():
    """The evaluator has no closed form here: its own solve agrees with the one in numpy."""
    among = plugins(Wavy)
    text = f"f2ba[lam=1000,K=10,eta_x={STEP},a_y=0.2,a_z=0.2]"
    (run,) = packed([trial(text, "wavy[mu=0.2,analytic=true]", steps=150, among=among)], among).runs.itertuples()
    assert run.last_grad_phi == pytest.approx(f2ba(1e3, 10), rel=1e-6)
    assert run.certificate == "bound"
