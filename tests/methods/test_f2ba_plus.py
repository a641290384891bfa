"""F2BA+ and AccF2BA+: iterates against plain numpy, and what momentum in the lower level is worth; MEHA beside them."""

from __future__ import annotations

import itertools
import math

import numpy as np
import plain
import pytest
import torch
from bilevelbench_methods.penalty.acc_f2ba_plus import AccF2BAPlus
from bilevelbench_methods.penalty.f2ba import F2BA
from bilevelbench_methods.penalty.f2ba_plus import F2BAPlus
from bilevelbench_methods.penalty.meha import MEHA
from helpers import iterates, prepared, states_of
from plain_problems import quadratic, wavy

import bilevelbench
from bilevelbench import Constants, Instance, InvalidInput, MissingConstant, dot
from bilevelbench.discovery.entry import make
from bilevelbench.discovery.registry import registry
from bilevelbench.engine.setup import PreparedPack
from bilevelbench.plan.spec_text import parse_spec

STEPS = 20


def method(text):
    (spec,) = parse_spec(text)
    return make(registry().algorithm(spec.name), spec.params)


@pytest.mark.parametrize("problem", [quadratic, wavy])
@pytest.mark.parametrize("text", ["f2ba_plus[{}]", "f2ba[momentum=nesterov,{}]"])
def test_iterates_are_those_of_the_specification(text, problem):
    p, instance = problem()
    found = iterates(method(text.format("lam=50,K=4,a_y=0.2,a_z=0.3,eta_x=0.05")), instance, STEPS)
    twin = plain.f2ba(p, 50.0, 4, 0.2 / 50, 0.3 / 50, 0.05, mu=instance.constants.mu)
    for mine, theirs in zip(found, itertools.islice(twin, STEPS + 1), strict=True):
        for a, b in zip(mine, theirs, strict=True):
            assert np.linalg.norm(a - b) <= 1e-10 * (1 + np.linalg.norm(b))
    without = iterates(method("f2ba[lam=50,K=4,a_y=0.2,a_z=0.3,eta_x=0.05]"), instance, STEPS)
    assert np.linalg.norm(found[-1][0] - without[-1][0]) > 1e-4


def test_switched_off_they_are_f2ba_and_acc_f2ba_to_the_last_bit():
    _, instance = wavy(analytic=True)
    for plus, base in (("f2ba_plus", "f2ba"), ("acc_f2ba_plus", "acc_f2ba")):
        off, plain_run = (
            states_of(prepared(method(f"{name}[eta_x=0.05,momentum=off]"), instance), 10)[-1] for name in (plus, base)
        )
        assert torch.equal(off.x, plain_run.x)


def test_defaults_converge_and_steps_of_their_own_for_z_do_not():
    """lam times what y and z are off: it cancels only where both follow x alike."""
    runs = {}
    for text in ("f2ba_plus", "f2ba_plus[a_z=1]"):  # 1/(2 L_g), and 1/L_g
        (runs[text],) = bilevelbench.run(text, "quadratic", steps=100).runs.itertuples()
    assert (runs["f2ba_plus"].status, runs["f2ba_plus[a_z=1]"].status) == ("budget", "diverged")
    assert runs["f2ba_plus"].grad_phi < 1


# ---- what momentum is worth


def ill_conditioned(kappa: float) -> Instance:
    """g = 1/2 (y - x)ᵀ diag(1/kappa, .., 1) (y - x);  f = 1/2 |y - 1|² + 1/2 |x|², in four dimensions.

    At x0 = (1, .., 1) both y* and y_lam* are x0, at distance 2 from y0.
    """
    h = torch.logspace(-math.log10(kappa), 0, 4, dtype=torch.float64)
    one = torch.ones(4, dtype=torch.float64)
    return Instance(
        f=lambda x, y: 0.5 * dot(y - 1, y - 1) + 0.5 * dot(x, x),
        g=lambda x, y: 0.5 * dot(h * (y - x), y - x),
        grad_f_x=lambda x, y: x.clone(),
        grad_f_y=lambda x, y: y - 1,
        grad_g_x=lambda x, y: h * (x - y),
        grad_g_y=lambda x, y: h * (y - x),
        x0=one,
        y0=0 * one,
        constants={"mu": 1 / kappa, "L_g": 2.0, "L_gy": 1.0, "L_f": 1.0, "L_phi": 2.0},
    )


def lower_steps_needed(cls, kappa):
    """The fewest K of a grid of ratio 1.1 that bring y and z to a quarter of their distance from 1 in one outer step."""
    instance, lam = ill_conditioned(kappa), 10 * kappa
    first, many = {F2BA: (0.9 * kappa, 6), F2BAPlus: (math.sqrt(kappa), 20)}[cls]
    grid = [math.ceil(first * 1.1**i) for i in range(many)]
    lanes = [cls(K=K, lam=lam, eta_x=1e-9).resolve(instance.constants) for K in grid]
    state = states_of(PreparedPack(instance, lanes, [0] * len(lanes)), 1)[-1]
    done = torch.maximum((state.z - 1).norm(dim=-1), (state.y - 1).norm(dim=-1)) <= 0.25 * 2
    reached = [K for K, ok in zip(grid, done.tolist(), strict=True) if ok]
    assert reached
    assert reached[0] > grid[0], "the grid begins too late"
    return reached[0]


@pytest.mark.parametrize("hard", [1e3, pytest.param(1e4, marks=pytest.mark.slow)])
def test_lower_steps_grow_as_the_root_of_the_condition_number_instead_of_as_it(hard):
    powers = {}
    for cls in (F2BA, F2BAPlus):
        few, many = (lower_steps_needed(cls, kappa) for kappa in (1e2, hard))
        powers[cls] = math.log(many / few, hard / 1e2)
    assert powers[F2BA] == pytest.approx(1, abs=0.1)
    assert powers[F2BAPlus] == pytest.approx(0.5, abs=0.1)


GIVEN = {"L_f": 2.0, "L_g": 3.0, "L_gy": 1.5, "rho_g": 0.7, "rho_f": 0.1, "nu_g": 0.1, "C_f": 1.5, "L_phi": 8.0}


def test_presets_take_the_root_of_the_condition_number_and_the_steps_of_momentum():
    mild, hard = Constants({**GIVEN, "mu": 1.5e-2}), Constants({**GIVEN, "mu": 1.5e-6})
    root = {cls: [cls.from_rate(c, 0.1).K for c in (mild, hard)] for cls in (F2BA, F2BAPlus, AccF2BAPlus)}
    assert root[F2BA][1] / root[F2BA][0] == pytest.approx(1e4, rel=0.01)
    for cls in (F2BAPlus, AccF2BAPlus):
        assert root[cls][1] / root[cls][0] == pytest.approx(100 * math.log(4e6) / math.log(400), rel=0.2)
    k = 4 * 1.5 / 1.5e-2
    made = F2BAPlus.from_rate(mild, 0.1)
    assert math.ceil(math.sqrt(k) * (math.log(20) / 2 + math.log1p(k))) == made.K
    assert (made.a_y, made.a_z, made.momentum) == (1 / 3, 1 / 3, "nesterov")
    theory, exact = F2BAPlus.from_theory(mild, 0.1), F2BA.from_theory(mild, 0.1)
    assert (theory.lam, theory.eta_x) == (exact.lam, exact.eta_x)
    assert theory.K < exact.K / 5
    assert type(theory).model_validate(theory.given()) == theory
    assert math.ceil(math.sqrt(k) * (2 + math.log1p(k))) == AccF2BAPlus.from_theory(mild, 0.1).K


def test_momentum_without_mu_is_a_sentence():
    lacking = Constants({name: GIVEN[name] for name in ("L_gy", "L_phi")}, "made_up")
    assert F2BA().resolve(lacking).a_z == 1 / 3
    with pytest.raises(MissingConstant, match="f2ba_plus's lower-level momentum"):
        F2BAPlus().resolve(lacking)
    with pytest.raises(InvalidInput, match="momentum = 'heavy': input should be 'off' or 'nesterov'"):
        method("f2ba[momentum=heavy]")


# ---- MEHA


@pytest.mark.whole
def test_bias_of_meha_falls_as_one_over_its_penalty():
    """With power = 0 the penalty stays, and so does the bias."""
    _, instance = wavy(analytic=True)
    ends = []
    for c0 in (50.0, 100.0):
        state = states_of(prepared(MEHA(c0=c0, power=0, eta=0.3, beta=0.3, alpha=5.0, gam=2.0), instance), 6000)[-1]
        ends.append(np.linalg.norm(wavy()[0].grad_phi(state.x[0].numpy())))
    assert ends[0] / ends[1] == pytest.approx(2, rel=0.15)


def test_meha_goes_on_where_the_lower_level_is_merely_convex_and_implicit_differentiation_does_not():
    """y_b is in no term of g, and only f moves it."""
    ends = {}
    for name in ("meha[c0=1]", "hjfbio[b=0.2]"):  # its own b asks for mu
        (row,) = bilevelbench.run(name, "convex_toy", steps=3000).runs.itertuples()
        assert row.status == "budget"
        ends[name] = row.grad_phi
    assert ends["meha[c0=1]"] < 0.1 * ends["hjfbio[b=0.2]"], ends


def test_horizon_preset_of_meha_ends_where_its_schedule_does():
    c = Constants({**GIVEN, "mu": 0.5})
    short, long = (MEHA.from_horizon(c, steps) for steps in (100, 1600))
    assert long.c0 == pytest.approx(2 * short.c0)
    assert long.power == 0
    assert long.x_step() == pytest.approx(long.alpha / long.c0)
    assert MEHA(alpha=0.1).x_step() is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("meha[power=0.5]", "power = 0.5: input should be less than 0.5"),
        ("meha[c0=0]", "c0 = 0: input should be greater than 0"),
        ("meha[gam=-1]", "gam = -1: input should be greater than 0"),
    ],
)
def test_parameters_out_of_range_are_a_sentence(text, said):
    with pytest.raises(InvalidInput, match=said):
        method(text)
