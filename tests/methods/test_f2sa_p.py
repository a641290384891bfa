"""F2SA-p: its differences, how its bias falls with the order and with nu, presets and bad input."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from bilevelbench_methods.penalty.f2sa_p import F2SAp, differences
from helpers import prepared, states_of
from plain import NODES
from plain_problems import wavy

from bilevelbench import Constants, InvalidInput
from bilevelbench.discovery.entry import make
from bilevelbench.discovery.registry import registry
from bilevelbench.plan.spec_text import parse_spec

ORDERS = range(1, 7)
GIVEN = {"mu": 0.5, "L_f": 2.0, "L_g": 3.0, "L_gy": 1.5, "C_f": 1.5, "L_phi": 8.0, "sigma_f": 1.0, "sigma_g": 1.0}


@pytest.mark.parametrize("p", ORDERS)
def test_weights_are_those_of_the_table_and_exact_for_polynomials_of_their_degree(p):
    assert differences(p) == pytest.approx(NODES[p], abs=1e-15)
    for degree in range(p + 2):
        slope = sum(w * j**degree for j, w in differences(p).items())
        if degree <= p:
            assert slope == pytest.approx(float(degree == 1), abs=1e-12)
    assert next(iter(differences(p))) == (0 if p % 2 else -p // 2)


def bias(p, lam):
    """|d - grad phi| at x0, with a lower level that is solved to rounding."""
    world, instance = wavy(analytic=True)
    method = F2SAp(p=p, lam=lam, K=250, B_in=None, B_out=None, eta_x=1.0, a=0.3)
    state = states_of(prepared(method, instance), 1)[-1]
    d = world.x0 - state.x[0].numpy()
    return np.linalg.norm(d - world.grad_phi(world.x0))


def test_bias_falls_with_the_order():
    """nu = 0.05. Here order 4 happens to be better than 5, whose nodes reach farther; both are far below order 3."""
    one, two, three, *others = (bias(p, 20.0) for p in ORDERS)
    assert 1e-2 < one < 1e-1
    assert two < one / 10
    assert three < two / 3
    assert max(others) < three / 10


@pytest.mark.parametrize("p", [1, 2, 3, 4])
def test_bias_is_of_the_order_p_in_nu(p):
    coarse, fine = bias(p, 100.0), bias(p, 200.0)
    assert np.log2(coarse / fine) == pytest.approx(p, abs=0.25)


def test_first_order_is_the_penalty_gradient_of_f2ba():
    _, instance = wavy(analytic=True)
    mine = F2SAp(p=1, lam=30.0, K=4, B_in=None, B_out=None, eta_x=0.05, a=0.2)
    (spec,) = parse_spec("f2ba[lam=30,K=4,a_y=0.2,a_z=0.2,eta_x=0.05]")
    theirs = make(registry().algorithm("f2ba"), spec.params)
    for a, b in zip(*(states_of(prepared(m, instance), 10) for m in (mine, theirs)), strict=True):
        torch.testing.assert_close(a.x, b.x, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(a.y, b.z, rtol=1e-12, atol=1e-12)


def test_normalised_steps_have_the_length_of_eta_x():
    _, instance = wavy(analytic=True)
    states = states_of(prepared(F2SAp(normalise=True, eta_x=0.03, a=0.2), instance), 5)
    for before, after in itertools.pairwise(states):
        assert float((after.x - before.x).norm()) == pytest.approx(0.03)
    assert F2SAp(normalise=True, eta_x=0.03).x_step() is None
    assert F2SAp(eta_x=0.03).x_step() == 0.03


@pytest.mark.parametrize("p", [1, 2, 3, 4])
def test_rate_preset_has_the_powers_of_the_theorem(p):
    """Samples of a step ~ eps^-(2 + 2/p), with eps^-2 steps that makes 4 + 2/p; and no node below 0 loses convexity."""
    coarse, fine = (F2SAp.from_rate(Constants(GIVEN), eps, p=p) for eps in (1e-2, 1e-3))
    assert coarse.p == p
    assert fine.lam / coarse.lam == pytest.approx(10 ** (1 / p))
    assert fine.B_out / coarse.B_out == pytest.approx(10 ** (2 + 2 / p), rel=1e-2)
    assert fine.B_in == pytest.approx(4 * fine.B_out, rel=1e-3)
    assert fine.eta_x == coarse.eta_x
    assert (p // 2) * GIVEN["L_f"] / coarse.lam < GIVEN["mu"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("f2sa_p[p=7]", "p = 7: input should be less than or equal to 6"),
        ("f2sa_p[p=0]", "p = 0: input should be greater than or equal to 1"),
        ("f2sa_p[lam=0]", "lam = 0: input should be greater than 0"),
        ("f2sa_p[K=0]", "K = 0: input should be greater than 0"),
        ("f2sa_p[B_in=0]", "B_in = 0: input should be greater than 0"),
    ],
)
def test_parameters_out_of_range_are_a_sentence(text, said):
    (spec,) = parse_spec(text)
    with pytest.raises(InvalidInput, match=said):
        make(registry().algorithm("f2sa_p"), spec.params)


def test_batch_that_cannot_be_counted_is_refused_by_its_name():
    with pytest.raises(InvalidInput, match=r"f2sa_p: eps = 1e-09 asks for a batch of .* choose a larger eps"):
        F2SAp.from_rate(Constants(GIVEN), 1e-9)
