"""Every method makes, step by step, the iterates of its pseudo-code: twenty steps against plain numpy."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import numpy as np
import plain
import pytest
import torch
from helpers import iterates
from plain import Point
from plain_problems import Plain, bent, quadratic, wavy

from bilevelbench import Instance, Oracle
from bilevelbench.discovery.entry import make
from bilevelbench.discovery.registry import registry
from bilevelbench.plan.spec_text import parse_spec

STEPS = 20


#: the plugin's parameters, and the same run from the specification
RUNS: dict[str, Callable[[Plain], Iterator[Point]]] = {
    "ba[a=0.4,eta_x=0.05]": lambda p: plain.ba(p, a=0.4, eta_x=0.05),
    "ba[n0=3,a=0.4,eta_x=0.05]": lambda p: plain.ba(p, a=0.4, eta_x=0.05, n0=3),
    "ba[n0=3,warm_start=true,a=0.4,eta_x=0.05]": lambda p: plain.ba(p, a=0.4, eta_x=0.05, n0=3, warm=True),
    "ba[n0=2,dense=0,a=0.4,eta_x=0.05]": lambda p: plain.ba(p, a=0.4, eta_x=0.05, n0=2, dense=False),
    "aid[solver=cg,D=3,N=2,a=0.3,eta_x=0.05]": lambda p: plain.aid(p, 3, 2, 0.3, 0.05, "cg"),
    "aid[solver=richardson,D=3,N=4,a=0.3,eta_x=0.05]": lambda p: plain.aid(p, 3, 4, 0.3, 0.05, "richardson"),
    "aid[solver=neumann,D=3,N=4,a=0.3,eta_x=0.05]": lambda p: plain.aid(p, 3, 4, 0.3, 0.05, "neumann"),
    "itd[D=1,a=0.3,eta_x=0.05]": lambda p: plain.itd(p, 1, 0.3, 0.05),
    "itd[D=7,a=0.3,eta_x=0.05]": lambda p: plain.itd(p, 7, 0.3, 0.05),
    "itd[D=7,truncate=3,a=0.3,eta_x=0.05]": lambda p: plain.itd(p, 7, 0.3, 0.05, truncate=3),
    "itd[D=2,truncate=9,a=0.3,eta_x=0.05]": lambda p: plain.itd(p, 2, 0.3, 0.05),
    "bome[K=4,eta=0.7,xi_x=0.02,xi_y=0.03,a=0.3]": lambda p: plain.bome(p, 4, 0.7, 0.02, 0.03, 0.3, gap=False),
    "bome[K=4,eta=0.7,xi_x=0.02,a=0.3,barrier=gap]": lambda p: plain.bome(p, 4, 0.7, 0.02, 0.02, 0.3, gap=True),
    "pbgd[gam=8,K=3,alpha=0.02,b=0.3]": lambda p: plain.pbgd(p, 8.0, 3, 0.02, 0.3, warm=False),
    "pbgd[gam=8,K=3,alpha=0.02,b=0.3,start=warm]": lambda p: plain.pbgd(p, 8.0, 3, 0.02, 0.3, warm=True),
    "g_pbgd[gam=8,alpha=0.01]": lambda p: plain.g_pbgd(p, 8.0, 0.01),
    "f2sa[lam=7,T_in=3,a_y=0.2,a_z=0.3]": lambda p: plain.f2sa(
        p, c_a=0.2 / 7, c_g=0.3, T_in=3, xi=1.0, lam=7.0, k0=1.0, a=0.0, c=0.0
    ),
    "f2sa[lam=2,T_in=3,xi=1.5,a_y=0.2,a_z=0.3,lam_power=0.3333333333333333]": lambda p: plain.f2sa(
        p, c_a=0.2 / 2, c_g=0.3, T_in=3, xi=1.5, lam=2.0, k0=1.0, a=1 / 3, c=0.0
    ),
    "f2sa[lam=2,T_in=3,a_y=0.2,a_z=0.4,lam_power=0.2,step_power=0.4,k0=5]": lambda p: plain.f2sa(
        p, c_a=0.2 / 2 * 5**0.6, c_g=0.4 * 5**0.4, T_in=3, xi=1.0, lam=2.0, k0=5.0, a=0.6, c=0.4
    ),
    "f2ba[lam=50,K=4,a_y=0.2,a_z=0.3,eta_x=0.05]": lambda p: plain.f2ba(p, 50.0, 4, 0.2 / 50, 0.3 / 50, 0.05),
    "f2ba[lam=5000,K=1,a_y=0.2,a_z=0.3,eta_x=0.001]": lambda p: plain.f2ba(p, 5e3, 1, 0.2 / 5e3, 0.3 / 5e3, 1e-3),
    "f2ba_released[lam=50,K=4,a=0.2,eta_x=0.05]": lambda p: plain.f2ba_released(p, 50.0, 4, 0.2, 0.05),
    "meha[c0=5,power=0.3,gam=0.7,eta=0.3,beta=0.2,alpha=0.1]": lambda p: plain.meha(p, 5.0, 0.3, 0.7, 0.3, 0.2, 0.1),
    **{
        f"f2sa_p[p={order},lam=8,K=4,a=0.2,eta_x=0.05,B_in=none,B_out=none]": lambda p, order=order: plain.f2sa_p(
            p, order, 1 / 8, 4, 0.2, 0.05
        )
        for order in plain.NODES
    },
    "f2sa_p[p=3,lam=8,K=4,a=0.2,eta_x=0.05,B_in=none,B_out=none,normalise=true]": lambda p: plain.f2sa_p(
        p, 3, 1 / 8, 4, 0.2, 0.05, normalise=True
    ),
    "pzobo[Q=3,D=5,h=0.01,a=0.3,eta_x=0.02]": lambda p: plain.pzobo(p, 3, 5, 0.01, 0.3, 0.02),
    "pzobo[Q=3,D=5,h=0.5,a=0.3,eta_x=0.02,warm_start=false]": lambda p: plain.pzobo(
        p, 3, 5, 0.5, 0.3, 0.02, warm=False
    ),
}  # fmt: skip


#: the same with steps that are small enough for `bent`
GENTLE: dict[str, Callable[[Plain], Iterator[Point]]] = {
    "f2ba[lam=50,K=4,a_y=0.2,a_z=0.2,eta_x=0.05]": lambda p: plain.f2ba(p, 50.0, 4, 0.2 / 50, 0.2 / 50, 0.05),
    "f2sa[lam=7,T_in=3,a_y=0.2,a_z=0.2]": lambda p: plain.f2sa(
        p, c_a=0.2 / 7, c_g=0.2, T_in=3, xi=1.0, lam=7.0, k0=1.0, a=0.0, c=0.0
    ),
    "aid[solver=cg,D=3,N=2,a=0.2,eta_x=0.05]": lambda p: plain.aid(p, 3, 2, 0.2, 0.05, "cg"),
    "aid[solver=richardson,D=3,N=2,a=0.2,eta_x=0.05]": lambda p: plain.aid(p, 3, 2, 0.2, 0.05, "richardson"),
    "itd[D=1,a=0.2,eta_x=0.05]": lambda p: plain.itd(p, 1, 0.2, 0.05),
    "itd[D=4,a=0.2,eta_x=0.05]": lambda p: plain.itd(p, 4, 0.2, 0.05),
}  # fmt: skip
CASES = [(text, problem) for text in RUNS for problem in (quadratic, wavy)] + [(text, bent) for text in GENTLE]


@pytest.mark.parametrize(("text", "problem"), CASES, ids=lambda part: getattr(part, "__name__", part))
def test_iterates_are_those_of_the_specification(text, problem):
    p, instance = problem()
    (spec,) = parse_spec(text)
    got = iterates(make(registry().algorithm(spec.name), spec.params), instance, STEPS)
    expected = list(itertools.islice((RUNS | GENTLE)[text](p), STEPS + 1))
    assert np.linalg.norm(got[-1][0] - got[0][0]) > 1e-2, "a run that stands still shows nothing"
    for mine, theirs in zip(got, expected, strict=True):
        for a, b in zip(mine, theirs, strict=True):
            assert np.linalg.norm(a - b) <= 1e-10 * (1 + np.linalg.norm(b))


@pytest.mark.parametrize("problem", [wavy, bent])
def test_hand_written_derivatives_are_those_of_autograd(problem):
    """The two sides of the test above share no derivative: here is why a mistake in one of them would be seen."""
    p, instance = problem()
    rng = np.random.default_rng(1)
    x, y, v = (rng.standard_normal(d) for d in (instance.dx, instance.dy, instance.dy))
    X, Y, V = (torch.from_numpy(part)[None] for part in (x, y, v))
    for got, expected in (
        (instance.grad_f_x(X, Y), p.f_x(x, y)),
        (instance.grad_f_y(X, Y), p.f_y(x, y)),
        (instance.grad_g_x(X, Y), p.g_x(x, y)),
        (instance.grad_g_y(X, Y), p.g_y(x, y)),
        (instance.value_g(X, Y), p.g(x, y)),
        (instance.hvp_g_yy(X, Y, V), p.H(x, y) @ v),
        (instance.jvp_g_xy(X, Y, V), p.J(x, y) @ v),
    ):
        np.testing.assert_allclose(got.numpy().reshape(-1), expected, rtol=1e-12)


@pytest.mark.parametrize("step", [1, 2, 40])
@pytest.mark.parametrize("seed", [0, 5])
def test_reproduced_directions_are_the_oracles(seed, step):
    oracle = Oracle(wavy()[1], frozenset({"grad_g_y"}), seeds=[seed])
    oracle.begin_step(step)
    np.testing.assert_array_equal(oracle.normal(3, 4)[:, 0].numpy(), plain.directions(seed, step, 3, 4))


def test_f2ba_answers_with_the_visited_point_of_the_smallest_estimate():
    """Of the points at which d was formed, with the y that d was formed with."""
    p, instance = quadratic()
    lam, K, a, eta_x = 50.0, 4, 0.2, 0.4  # a step that overshoots: the last point is not the best
    visited = []
    x, y, z = p.x0, p.y0, p.y0
    for _ in range(STEPS):
        y, z, d = plain.penalty(p, x, y, z, lam, K, a / lam, a / lam)
        visited.append((np.linalg.norm(d), x, y))
        x = x - eta_x * d
    place = int(np.argmin([size for size, _, _ in visited]))
    assert place < STEPS - 1
    method = make(registry().algorithm("f2ba"), {"lam": lam, "K": K, "a_y": a, "a_z": a, "eta_x": eta_x})
    got = _answer(method, instance, STEPS)
    for mine, theirs in zip(got, visited[place][1:], strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-10, atol=1e-10)


def _answer(method, instance: Instance, steps: int) -> tuple[np.ndarray, ...]:
    oracle = Oracle(instance, method.uses, seeds=[0])
    with torch.no_grad():
        state = method.init(instance.x0.reshape(1, -1), instance.y0.reshape(1, -1), oracle)
        for step in range(1, steps + 1):
            oracle.begin_step(step)
            state = method.step(state, oracle)
    return tuple(part[0].numpy() for part in method.answer(state))
