"""Presets and defaults give runs that work, and what cannot work ends as a sentence: never a traceback, never a NaN."""

from __future__ import annotations

import math
import re

import pytest
import torch
from plain_problems import Wavy

import bilevelbench
from bilevelbench import Constants, Instance, InvalidInput, MissingConstant, Problem, dot
from bilevelbench.discovery.entry import make
from bilevelbench.discovery.registry import registry
from bilevelbench.model.torch_state import default_dtype
from bilevelbench.plan.trial import Schedule

METHODS = [
    "aid", "ba", "bome", "f2ba", "f2ba_released", "f2sa", "g_pbgd", "itd", "pbgd", "pzobo", "f2ba_plus", "hjfbio", "meha",
]  # fmt: skip
THEORY = ["aid", "f2ba", "f2sa", "itd", "pbgd", "f2ba_plus"]
RATE = ["aid", "ba", "f2ba", "f2sa", "itd", "pbgd", "pzobo", "f2ba_plus", "hjfbio"]
HORIZON = ["bome", "pzobo"]
DECLARED = {"quadratic": {}, "tail_anchor": {"c": 0.5}, "power_tail": {}}


class Bare(Problem):
    """f and g and nothing else; y* = x."""

    name = "bare"

    def build(self) -> Instance:
        return Instance(
            f=lambda x, y: 0.5 * dot(y, y) + 0.5 * dot(x, x),
            g=lambda x, y: 0.5 * dot(y - x, y - x),
            x0=torch.ones(2),
            y0=torch.zeros(2),
        )


class Steep(Problem):
    """g = (y - 10x)²/2: the lower level is as round as can be, but g is 101 times steeper jointly in (x, y)."""

    name = "steep"

    def build(self) -> Instance:
        return Instance(
            f=lambda x, y: 0.5 * dot(y, y) + 0.5 * dot(x, x),
            g=lambda x, y: 0.5 * dot(y - 10 * x, y - 10 * x),
            x0=torch.ones(1),
            y0=torch.zeros(1),
            constants={"mu": 1.0, "L_gy": 1.0, "L_g": 101.0, "L_f": 1.0, "rho_g": 0.0, "C_f": 10.0, "L_phi": 101.0},
        )


class Indefinite(Problem):
    """The lower Hessian is diag(1, -s): what is declared about it is not true."""

    name = "indefinite"
    s: float = 1.0

    def build(self) -> Instance:
        return Instance(
            f=lambda x, y: 0.5 * dot(y - 1, y - 1) + 0.5 * dot(x, x),
            g=lambda x, y: 0.5 * (y[..., :1] ** 2 - self.s * y[..., 1:] ** 2) - dot(x, y),
            x0=torch.ones(2),
            y0=torch.zeros(2),
            constants={"mu": 1.0, "L_gy": 1.0, "L_g": 2.0, "L_f": 1.0, "rho_g": 0.0, "C_f": 1.0, "L_phi": 1.0},
        )


def cls(name: str) -> type[bilevelbench.Algorithm]:
    return registry().algorithm(name).value


def constants(problem: str) -> Constants:
    with default_dtype(torch.float64):
        found = make(registry().problem(problem), DECLARED[problem]).build().constants
    found.problem = problem
    return found


def row(method, problem, **rest):
    """The only row of `run`."""
    (only,) = bilevelbench.run(method, problem, **rest).runs.itertuples()
    return only


# ---- presets on problems with declared constants


@pytest.mark.parametrize("problem", DECLARED)
@pytest.mark.parametrize("eps", [1.0, 0.1, 1e-3])
@pytest.mark.parametrize("name", THEORY)
def test_theory_preset_is_a_complete_method(name, eps, problem):
    method = cls(name).from_theory(constants(problem), eps)
    given = {k: v for k, v in method.given().items() if k not in ("truncate", "batch")}
    assert None not in given.values()
    assert type(method).model_validate(method.given()) == method
    assert all(math.isfinite(v) and v >= 0 for v in given.values() if isinstance(v, float))


@pytest.mark.parametrize("problem", DECLARED)
@pytest.mark.parametrize("eps", [0.5, 1e-2])
@pytest.mark.parametrize("name", RATE)
@pytest.mark.quick_cases(20)
def test_rate_preset_takes_steps_that_do_not_diverge(name, eps, problem):
    method = cls(name).from_rate(constants(problem), eps)
    problem_of = make(registry().problem(problem), DECLARED[problem])
    run = row(method, problem_of, steps=48, schedule=Schedule(ratio=4))
    assert run.status == "budget"
    assert run.last_grad_phi < 30


@pytest.mark.parametrize("steps", [10, 1000])
@pytest.mark.parametrize("name", HORIZON)
def test_horizon_preset_shrinks_its_step_as_the_root_of_the_horizon(name, steps):
    one, four = (cls(name).from_horizon(constants("tail_anchor"), n) for n in (steps, 4 * steps))
    field = "eta_x" if name == "pzobo" else "xi_x"
    assert getattr(one, field) == pytest.approx(2 * getattr(four, field))


@pytest.mark.parametrize("preset", ["from_theory", "from_rate", "from_horizon"])
@pytest.mark.parametrize("name", METHODS)
def test_preset_that_a_method_does_not_have_is_refused_in_words(name, preset):
    has = {"from_theory": THEORY, "from_rate": RATE, "from_horizon": {*HORIZON, "f2sa", "meha"}}[preset]
    if name not in has:
        with pytest.raises(InvalidInput, match=f"{name} has no .*preset"):
            getattr(cls(name), preset)(constants("quadratic"), 0.1)


@pytest.mark.parametrize("name", ["f2ba", "f2sa", "pbgd"])
def test_penalty_of_the_presets_grows_as_1_over_eps(name):
    field = "gam" if name == "pbgd" else "lam"
    few, many = (getattr(cls(name).from_rate(constants("tail_anchor"), eps), field) for eps in (0.1, 0.01))
    assert many == pytest.approx(10 * few)


def test_theory_preset_of_f2ba_is_the_formula_worked_out_by_hand():
    """The theorem with mu = 0.5, L_f = 2, L_g = 3, rho_g = 0.7, C_f = 1.5, Delta = 1e-3, R = 1e-8."""
    given = {"mu": 0.5, "L_f": 2.0, "L_g": 3.0, "rho_g": 0.7, "C_f": 1.5}
    D0 = (1.5 + 1.5 * 3 / 1.0) * 1.5 / 0.5
    D1 = (2 + 2 * 3 / 0.5 + 1.5 * 3 * 0.7 / 0.5 + 1.5 * 0.7 / 1.0) * 1.5 / 0.5
    D2 = (1 / 0.5 + 3 * 3 / 0.25) * (2 + 1.5 * 0.7 / 0.5)
    D3 = 2 + 4 * 2 * 3 / 0.5 + 1.5 * 0.7 / 0.5 + 1.5 * 3 * 0.7 / 0.25 + 3 * D2
    for more, lam in (
        ({}, max(2 * 2 / 0.5, 2 * D1 / 0.1)),
        ({"Delta": 1e-3}, D0 / 1e-3),
        ({"R": 1e-8}, 1.5 / (0.5 * 1e-4)),
        ({"Delta": 1e-3, "R": 1e-8}, max(D0 / 1e-3, 1.5 / (0.5 * 1e-4))),
    ):
        method = cls("f2ba").from_theory(Constants({**given, **more}), 0.1)
        eta_x = 1 / (2 * D3)
        inside = lam**2 * 9 * max(1360 * eta_x**2 * 9 / 0.25, 5 * eta_x)
        assert method.lam == pytest.approx(lam, rel=1e-12)
        assert method.eta_x == pytest.approx(eta_x, rel=1e-12)
        assert method.a_y == method.a_z == pytest.approx(1 / 6, rel=1e-12)
        assert math.ceil(4 * 6 * math.log(inside)) == method.K


def test_theory_preset_of_f2ba_never_takes_fewer_than_8_kappa_lower_steps():
    """Where the logarithm is small or negative."""
    c = Constants({"mu": 1.0, "L_f": 1e-6, "L_g": 3.0, "rho_g": 0.0, "C_f": 1e-6, "L_star": 1.0})
    assert cls("f2ba").from_theory(c, 10.0).K == 24


@pytest.mark.parametrize("name", ["aid", "itd"])
def test_theory_preset_reaches_its_eps(name):
    """F2BA and PBGD do too, after 320 100 and 101 980 calls: too slow for a test."""
    problem = make(registry().problem("tail_anchor"), {"c": 0.5})
    run = row(cls(name).from_theory(constants("tail_anchor"), 0.5), problem, targets=(0.5,), budget=10_000)
    assert run.status == "target"
    assert run.cost < 1000


@pytest.mark.parametrize("name", ["f2ba", "pbgd"])
def test_theory_preset_reaches_its_eps_with_a_round_lower_level(name):
    problem = make(registry().problem("tail_anchor"), {"L": 1.0})
    with default_dtype(torch.float64):
        method = cls(name).from_theory(problem.build().constants, 1.0)
    run = row(method, problem, targets=(1.0,), budget=50_000, schedule=Schedule(ratio=1.3))
    assert run.status == "target"


# ---- defaults


@pytest.mark.parametrize("name", [name for name in METHODS if name != "f2sa"])
@pytest.mark.quick_cases(6)
def test_default_steps_are_stable_where_g_is_steep_in_x(name):
    """A joint step needs the joint constant L_g, 101 here, and not that of y alone, 1. F2SA's x-step is a_y/lam."""
    run = row(name, Steep(), steps=100, schedule=Schedule(ratio=4))
    assert run.status == "budget"
    assert run.last_grad_phi < 101


@pytest.mark.parametrize("problem", DECLARED)
@pytest.mark.parametrize("name", METHODS)
def test_defaults_run_on_problems_with_declared_constants(name, problem):
    run = row(name, make(registry().problem(problem), DECLARED[problem]), steps=32, schedule=Schedule(ratio=4))
    assert run.status == "budget"
    assert math.isfinite(run.last_grad_phi)


# ---- constants that are missing


@pytest.mark.parametrize("name", METHODS)
def test_default_that_needs_a_missing_constant_is_an_error_row_that_names_it(name):
    run = row(name, Bare(), steps=5)
    assert run.status == "error"
    assert run.message.startswith("could not be set up: problem 'bare' declares no constant 'L_")
    assert f"needed for {name}'s default " in run.message
    assert "set the parameter that depends on it yourself" in run.message


@pytest.mark.parametrize(
    ("text", "constant"),
    [("f2ba[eta_x=0.1]", "L_g"), ("pbgd[b=0.1]", "L_f"), ("g_pbgd", "L_f"), ("bome", "L_g"), ("ba[eta_x=0.1]", "mu")],
)
def test_error_row_names_the_first_constant_that_is_missing(text, constant):
    assert f"declares no constant '{constant}'" in row(text, Bare(), steps=5).message


@pytest.mark.parametrize(
    "text",
    [
        "aid[eta_x=0.1,a=0.5]", "ba[eta_x=0.1,a=0.5]", "bome[a=0.5]", "f2ba[eta_x=0.1,a_y=0.3,a_z=0.3]",
        "f2ba_released[eta_x=0.1,a=0.3]", "f2sa[a_y=0.3,a_z=0.3]", "g_pbgd[alpha=0.01]", "itd[eta_x=0.1,a=0.5]",
        "pbgd[alpha=0.01,b=0.5]", "pzobo[eta_x=0.1,a=0.5]",
    ],
)  # fmt: skip
def test_method_whose_steps_are_all_given_needs_no_constant(text):
    assert row(text, Bare(), steps=5).status == "budget"


@pytest.mark.parametrize("preset", ["from_theory", "from_rate", "from_horizon"])
@pytest.mark.parametrize("name", METHODS)
def test_preset_names_the_constant_that_it_lacks(name, preset):
    if name in {"from_theory": THEORY, "from_rate": RATE, "from_horizon": HORIZON}[preset]:
        with pytest.raises(MissingConstant, match=r"problem 'bare' declares no constant '(L_g|L_f|mu|L_phi|dim_x)'"):
            getattr(cls(name), preset)(Constants({}, "bare"), 10)


def test_solve_estimates_what_the_lower_level_needs_and_searches_the_x_step():
    def g(x, y):
        return 0.5 * ((y - x) ** 2).sum()

    def f(x, y):
        return 0.5 * (y**2).sum()

    found = bilevelbench.solve(f, g, torch.ones(2), torch.zeros(2), "f2ba", steps=5)
    assert found.params["eta_x"] > 0
    assert "was the best of" in found.message
    solution = bilevelbench.solve(f, g, torch.ones(2), torch.zeros(2), "f2ba", steps=5, eta_x=0.1)
    assert solution.params["eta_x"] == 0.1
    assert solution.params["a_y"] == pytest.approx(0.5, rel=1e-5)


# ---- parameters that are wrong


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("f2ba[K=0]", "f2ba: K = 0: input should be greater than 0"),
        ("f2ba[lam=-1]", "f2ba: lam = -1: input should be greater than 0"),
        ("f2ba[lam=nan]", "f2ba: lam = nan: input should be greater than 0"),
        ("f2ba[K=1.5]", "K = 1.5: input should be a valid integer"),
        ("f2ba[eta=1]", "f2ba has no parameter 'eta'; did you mean 'eta_x'?"),
        ("f2ba_released[K=-2]", "K = -2: input should be greater than 0"),
        ("f2sa[lam_power=-1]", "lam_power = -1: input should be greater than or equal to 0"),
        ("f2sa[k0=0]", "k0 = 0: input should be greater than 0"),
        ("aid[solver=gmres]", "solver = 'gmres': input should be 'cg', 'richardson' or 'neumann'"),
        ("aid[tol=-1]", "tol = -1: input should be greater than or equal to 0"),
        ("ba[n0=0]", "n0 = 0: input should be greater than 0"),
        ("ba[dense=-1]", "dense = -1: input should be greater than or equal to 0"),
        ("bome[barrier=log]", "barrier = 'log': input should be 'norm' or 'gap'"),
        ("bome[xi_x=0]", "xi_x = 0: input should be greater than 0"),
        ("pbgd[start=z]", "start = 'z': input should be 'y' or 'warm'"),
        ("g_pbgd[gam=0]", "gam = 0: input should be greater than 0"),
        ("itd[D=0]", "D = 0: input should be greater than 0"),
        ("itd[truncate=0]", "truncate = 0: input should be greater than 0"),
        ("pzobo[Q=0]", "Q = 0: input should be greater than 0"),
        ("pzobo[h=-1]", "h = -1: input should be greater than 0"),
    ],
)
def test_bad_parameter_is_refused_in_words_before_the_run(text, sentence):
    with pytest.raises(InvalidInput) as caught:
        bilevelbench.run(text, "quadratic", steps=3)
    assert sentence in str(caught.value)


# ---- lower levels that are not convex


@pytest.mark.parametrize("s", [1.0, 0.3, 1e-3])
@pytest.mark.parametrize("N", [1, 10])
def test_cg_that_meets_non_positive_curvature_makes_no_nan(N, s):
    run = row(f"aid[solver=cg,N={N}]", Indefinite(s=s), steps=30)
    assert run.status == "budget"  # with a NaN in x or y it would have diverged
    assert run.certificate == "not convex"


@pytest.mark.parametrize("dense", [100, 0])
def test_ba_on_an_indefinite_hessian_says_so(dense):
    run = row(f"ba[dense={dense},eta_x=0.1]", Indefinite(), steps=30)
    assert run.status == "error"
    assert "the lower Hessian is not positive definite here: BA needs a strongly convex lower level" in run.message
    assert run.message.startswith("in step ")


# ---- runs that diverge


@pytest.mark.parametrize(
    "text",
    [
        "aid[eta_x=1e30]", "ba[eta_x=1e30]", "ba[eta_x=1e30,dense=0]", "bome[xi_x=1e30]", "f2ba[eta_x=1e30]",
        "f2ba[lam=1e-300]", "f2ba[a_y=1e10]", "f2ba[a_z=1e10]", "f2ba_released[eta_x=1e30]", "f2sa[xi=1e30]",
        "g_pbgd[alpha=1e30]", "itd[eta_x=1e30]", "pbgd[alpha=1e30]", "pbgd[gam=1e300,alpha=0.1]", "pzobo[eta_x=1e30]",
        "pzobo[eta_x=100]",
    ],
)  # fmt: skip
def test_run_that_diverges_ends_as_diverged_with_a_sentence(text):
    run = row(text, "quadratic[dim_x=5,dim_y=9]", steps=200, schedule=Schedule(ratio=2))
    assert run.status == "diverged"
    assert re.match(r"(x or y is not finite|\|x\| > \S+, that is 1e\+06 \(1 \+ \|x0\|\),) at step \d", run.message)
    assert "try smaller steps (" in run.message


@pytest.mark.parametrize("h", ["1e-300", "1e-320", "1e-20", "1e-17"])
@pytest.mark.parametrize("problem", ["quadratic", "tail_anchor[c=0.5]"])
def test_pzobo_with_a_radius_below_rounding_says_so(problem, h):
    run = row(f"pzobo[h={h}]", problem, steps=20)
    assert run.status == "error"
    assert run.message.startswith("in step 1: h = ")
    assert "is below rounding at |x| = " in run.message
    assert "choose a larger radius h" in run.message


def test_pzobo_with_a_radius_that_is_too_small_only_for_the_points_it_comes_to_says_so_there():
    """x0 = 0 takes any radius; the first step leaves it."""

    class AtZero(Problem):
        name = "at_zero"

        def build(self) -> Instance:
            return Instance(
                f=lambda x, y: dot(y - 1, y - 1),
                g=lambda x, y: 0.5 * dot(y - x, y - x),
                x0=torch.zeros(2),
                y0=torch.zeros(2),
            )

    run = row("pzobo[h=1e-200,a=0.5,eta_x=0.1]", AtZero(), steps=20)
    assert run.status == "error"
    assert run.message.startswith("in step 2: h = 1e-200 is below rounding")


def test_one_lane_with_a_radius_below_rounding_does_not_harm_the_others():
    runs = bilevelbench.run("pzobo[h=1e-2,1e-300,1e-3]", "quadratic", steps=10).runs
    assert sorted(runs.status) == ["budget", "budget", "error"]
    alone = row("pzobo[h=1e-2]", "quadratic", steps=10)
    assert alone.grad_phi in set(runs.grad_phi)


def test_wavy_declares_constants_that_hold():
    """The constants that these files lean on, measured at random points."""
    problem = Wavy()
    c, instance = problem.constants(), problem.build()
    generator = torch.Generator().manual_seed(0)

    def normal(d: int) -> torch.Tensor:
        return 2 * torch.randn(200, d, generator=generator, dtype=torch.float64)

    x, y, u, v = normal(4), normal(6), normal(4), normal(6)
    apart = torch.cat([x - u, y - v], -1).norm(dim=-1)
    for level, bound in (("f", c["L_f"]), ("g", c["L_g"])):
        grad = getattr(instance, f"grad_{level}")
        difference = torch.cat(grad(x, y), -1) - torch.cat(grad(u, v), -1)
        assert (difference.norm(dim=-1) <= bound * apart).all()
    w = normal(6)
    curvature = dot(w, instance.hvp_g_yy(x, y, w)) / dot(w, w)
    assert (curvature >= c["mu"]).all()
    assert (curvature <= c["L_gy"]).all()
    assert (instance.grad_f_y(x, y).norm(dim=-1) <= c["C_f"]).all()
    H, J = (getattr(instance, name) for name in ("hvp_g_yy", "jvp_g_xy"))
    change = torch.cat([J(x, y, w) - J(u, v, w), H(x, y, w) - H(u, v, w)], -1).norm(dim=-1)
    assert (change <= c["rho_g"] * apart * w.norm(dim=-1)).all()
