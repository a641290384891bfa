"""The evaluator: exact where there is a closed form, else to an error that it states; a pure function of (x, y)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.optimize import root
from torch import Tensor
from torch.nn.functional import logsigmoid

from bilevelbench import Constants, Instance, bound, dot, estimated, norm
from bilevelbench.discovery.entry import make
from bilevelbench.discovery.registry import registry
from bilevelbench.engine import curvature
from bilevelbench.engine.evaluator import Evaluation, Evaluator
from bilevelbench.model.lower_curvature import lower_curvatures
from bilevelbench.plan.spec_text import parse_spec

CLOSED_FORMS = [
    "quadratic[dim_x=6,dim_y=9]",
    "quadratic[dim_x=4,dim_y=7,kappa=50,reg=0.1]",
    "tail_anchor",
    "tail_anchor[tails=2,c=0.7,saddle=true]",
    "power_tail",
]


@pytest.fixture(autouse=True)
def float64() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def build(text: str) -> Instance:
    (spec,) = parse_spec(text)
    return make(registry().problem(spec.name), spec.params).build()


def stripped(text: str) -> Instance:
    """The same problem without its closed forms."""
    instance = build(text)
    instance.reference = None
    return instance


def points(instance: Instance, lanes: int = 4, seed: int = 0) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(lanes, instance.dx, generator=rng), torch.randn(lanes, instance.dy, generator=rng)


def same(a: Tensor, b: Tensor) -> bool:
    """Equal to the last bit."""
    return torch.equal(torch.nan_to_num(a, nan=1e300), torch.nan_to_num(b, nan=1e300))


def same_evaluation(a: Evaluation, b: Evaluation) -> bool:
    return all(same(getattr(a, name), getattr(b, name)) for name in ("phi", "grad_phi", "error", "g_y"))


def lanes_of(e: Evaluation, which: list[int]) -> Evaluation:
    return Evaluation(e.phi[which], e.grad_phi[which], e.error[which], e.g_y[which], e.bent[which])


def bent(**rest) -> Instance:
    """g = 1/2 yᵀA y - xᵀB y + Σ log cosh y_i;  f = Σ √(1+(y_i-1)²) + 1/2 ‖x‖² + x_1 y_1: f and g only."""
    rng = torch.Generator().manual_seed(3)
    R = torch.randn(5, 5, generator=rng)
    A, B = R @ R.T / 5 + torch.eye(5), torch.randn(3, 5, generator=rng)
    return Instance(
        f=lambda x, y: (1 + (y - 1) ** 2).sqrt().sum(-1, keepdim=True) + 0.5 * dot(x, x) + x[..., :1] * y[..., :1],
        # by logsigmoid: unlike `cosh`, it has the same bits at every place in a tensor
        g=lambda x, y: 0.5 * dot(y @ A, y) - dot(x @ B, y) + (y - logsigmoid(2 * y)).sum(-1, keepdim=True),
        x0=torch.zeros(1, 3),
        y0=torch.zeros(1, 5),
        **rest,
    )


# ---- the reference solve against the closed form


@pytest.mark.parametrize("problem", [*CLOSED_FORMS, "ridge_abalone"])
def test_reference_solve_finds_the_closed_form(problem):
    exact, solved = build(problem), stripped(problem)
    x, y = points(exact)
    a, b = Evaluator(exact)(x, y), Evaluator(solved)(x, y)
    torch.testing.assert_close(b.phi, a.phi, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(b.grad_phi, a.grad_phi, rtol=1e-8, atol=1e-8)
    gradient = exact.reference.grad_phi(x)
    torch.testing.assert_close(Evaluator(solved).grad_phi(x, y), gradient, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("problem", CLOSED_FORMS)
def test_stated_error_bounds_the_error(problem):
    exact, solved = build(problem), stripped(problem)
    for seed in range(5):
        x, y = points(exact, seed=seed)
        difference = norm(Evaluator(solved).grad_phi(x, y) - exact.reference.grad_phi(x))
        stated = Evaluator(solved)(x, y).error
        rounding = 1e-14 * (1 + norm(exact.reference.grad_phi(x)))
        assert (difference <= stated + rounding).all()


@pytest.mark.parametrize("problem", CLOSED_FORMS)
def test_stated_error_is_small(problem):
    solved = stripped(problem)
    assert (Evaluator(solved)(*points(solved)).error < 1e-7).all()


@pytest.mark.parametrize("tolerance", [1e-1, 1e-3, 1e-6])
def test_stated_error_bounds_the_error_of_a_loose_solve(tolerance, monkeypatch):
    """With a loose tolerance the error is far above rounding, so the bound is put to the test."""
    monkeypatch.setattr("bilevelbench.engine.evaluator.TOLERANCE", {torch.float64: tolerance})
    for problem in ("quadratic", "tail_anchor[tails=2,c=0.7]"):
        exact, solved = build(problem), stripped(problem)
        x, y = points(exact)
        y = exact.reference.y_star(x) + 0.05 * tolerance * y  # so near that the solve ends at once
        difference = norm(Evaluator(solved).grad_phi(x, y) - exact.reference.grad_phi(x))
        assert difference.max() > 1e-12
        assert (difference <= Evaluator(solved)(x, y).error).all()


def test_closed_form_states_no_error():
    instance = build("quadratic")
    assert (Evaluator(instance)(*points(instance)).error == 0).all()


def test_reference_solve_in_float32():
    torch.set_default_dtype(torch.float32)
    exact, solved = build("quadratic"), stripped("quadratic")
    x, y = points(exact)
    a, b = Evaluator(exact)(x, y), Evaluator(solved)(x, y)
    assert b.grad_phi.dtype == torch.float32
    torch.testing.assert_close(b.grad_phi, a.grad_phi, rtol=1e-3, atol=1e-3)


def test_reference_solve_starts_far_away():
    exact, solved = build("tail_anchor[c=0.7]"), stripped("tail_anchor[c=0.7]")
    x, y = points(exact)
    far = Evaluator(solved)(x, 1e4 * y)
    torch.testing.assert_close(far.grad_phi, Evaluator(exact)(x, y).grad_phi, rtol=1e-8, atol=1e-8)


# ---- against scipy


def test_hypergradient_is_the_derivative_of_phi():
    instance = bent()
    x, y = points(instance, lanes=4)

    def phi(point: np.ndarray) -> float:
        at = torch.from_numpy(point)[None]
        eye = torch.eye(instance.dy)

        def g_y(y: np.ndarray) -> np.ndarray:
            return instance.grad_g_y(at, torch.from_numpy(y)[None])[0].numpy()

        def hess(y: np.ndarray) -> np.ndarray:
            lanes = torch.from_numpy(y).expand(instance.dy, -1)
            return instance.hvp_g_yy(at.expand(instance.dy, -1), lanes, eye).numpy()

        found = root(g_y, np.zeros(instance.dy), jac=hess, tol=1e-14)
        assert np.linalg.norm(g_y(found.x)) < 1e-12
        return float(instance.value_f(at, torch.from_numpy(found.x)[None]))

    seen = Evaluator(instance)
    gradient, value = seen.grad_phi(x, y), seen(x, y).phi
    h = 1e-5
    for lane in range(4):
        here = x[lane].numpy()
        assert value[lane].item() == pytest.approx(phi(here), abs=1e-10)
        slopes = [(phi(here + h * e) - phi(here - h * e)) / (2 * h) for e in np.eye(instance.dx)]
        np.testing.assert_allclose(gradient[lane].numpy(), slopes, rtol=1e-7, atol=1e-8)


def test_g_y_is_that_of_the_given_point_not_of_the_solution():
    instance = bent()
    x, y = points(instance)
    torch.testing.assert_close(Evaluator(instance)(x, y).g_y, norm(instance.grad_g_y(x, y)), rtol=0, atol=0)


def test_phi_does_not_depend_on_y():
    instance = bent()
    x, y = points(instance)
    a, b = Evaluator(instance)(x, y), Evaluator(instance)(x, 3 - y)
    torch.testing.assert_close(a.phi, b.phi, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(a.grad_phi, b.grad_phi, rtol=1e-9, atol=1e-9)


# ---- certificates

KNOWN = {"mu": bound(1), "L_f": bound(3), "L_g": bound(9), "rho_g": bound(2)}


def test_certificate_of_a_closed_form():
    assert Evaluator(build("quadratic")).certificate == "closed form"


def test_certificate_is_a_bound_where_the_constants_are_known():
    assert Evaluator(bent(constants=KNOWN)).certificate == "bound"


def weakest(x: Tensor) -> Tensor:
    return torch.ones_like(x[..., :1])


@pytest.mark.parametrize("name", KNOWN)
def test_certificate_without_one_of_the_constants(name):
    expected = "not certified" if name == "mu" else "estimated"
    known = {k: v for k, v in KNOWN.items() if k != name}
    for constants in (known, {**KNOWN, name: estimated(1)}):  # an estimated constant is none
        assert Evaluator(bent(constants=constants)).certificate == expected


def test_strong_convexity_at_x_serves_in_place_of_the_constant():
    known = {k: v for k, v in KNOWN.items() if k != "mu"}
    assert Evaluator(bent(constants=known, mu_at=weakest)).certificate == "bound"
    assert Evaluator(bent(mu_at=weakest)).certificate == "estimated"
    assert Evaluator(bent(constants={"mu": estimated(1)}, mu_at=weakest)).certificate == "estimated"


def test_strong_convexity_at_x_goes_before_the_constant():
    """Twice as convex at this x: the errors are smaller, by a factor between two and four."""
    instance = bent(constants=KNOWN)
    x, y = points(instance)
    twice = bent(constants=KNOWN, mu_at=lambda x: 2 * weakest(x))
    ratio = Evaluator(instance)(x, y).error / Evaluator(twice)(x, y).error
    assert ((ratio > 2) & (ratio < 4)).all()


def test_not_certified_is_nan_and_reaches_no_accuracy():
    """mu unknown: no error, and no certified second-order accuracy either."""
    instance = bent(constants={"rho_phi": bound(10)})
    seen = Evaluator(instance, second_order=True)(*points(instance))
    assert seen.error.isnan().all()
    assert seen.further["second_order_eps"].isnan().all()
    assert seen.further["min_eigenvalue"].isfinite().all()
    known = bent(constants={"rho_phi": bound(10), "mu": bound(1)})
    assert Evaluator(known, second_order=True)(*points(known)).further["second_order_eps"].isfinite().all()


ESTIMATED = [*CLOSED_FORMS, "ridge_abalone", "saddle", "saddle_chain", "chain", "quadratic_agents"]


def estimating(problem: str) -> tuple[Instance, Instance]:
    """The problem, and the same without closed forms and without L_g."""
    exact, solved = build(problem), stripped(problem)
    solved.constants = Constants({k: c for k, c in solved.constants.given.items() if k != "L_g"})
    assert Evaluator(solved).certificate == "estimated"
    return exact, solved


@pytest.mark.parametrize("tolerance", [10.0, 1e-1, 1e-3, 1e-6])
@pytest.mark.parametrize("problem", ESTIMATED)
def test_estimated_error_is_above_the_error_of_a_loose_solve(problem, tolerance, monkeypatch):
    """The solve ends at once or early, at a y that is far from y*: errors from 1e2 to 1e-8, far above rounding."""
    monkeypatch.setattr("bilevelbench.engine.evaluator.TOLERANCE", {torch.float64: tolerance})
    (exact, solved), largest = estimating(problem), 0.0
    for seed in range(5):
        x, y = points(exact, seed=seed)
        y = exact.reference.y_star(x) + 0.3 * tolerance * y
        seen = Evaluator(solved)
        difference = norm(seen.grad_phi(x, y) - exact.reference.grad_phi(x))
        stated = seen(x, y).error
        assert (difference <= stated + 1e-13 * (1 + norm(exact.reference.grad_phi(x)))).all()
        largest = max(largest, float(difference.max()))
    assert largest > 1e-9


@pytest.mark.parametrize("problem", [p for p in ESTIMATED if p != "ridge_abalone"])  # there both are rounding, 1e-11
def test_estimated_error_of_the_usual_solve(problem):
    exact, solved = estimating(problem)
    for seed in range(5):
        x, y = points(exact, seed=seed)
        truth = exact.reference.grad_phi(x)
        stated = Evaluator(solved)(x, y).error
        assert (norm(Evaluator(solved).grad_phi(x, y) - truth) <= stated + 1e-14 * (1 + norm(truth))).all()
        assert (stated < 1e-8).all()


def test_estimated_error_is_the_larger_the_less_convex_the_problem_claims_to_be(monkeypatch):
    """The distance to y* is bounded by |g_y|/mu: a tenth of the mu, ten times the error."""
    monkeypatch.setattr("bilevelbench.engine.evaluator.TOLERANCE", {torch.float64: 1e-3})
    x, y = points(bent())
    errors = [Evaluator(bent(mu_at=lambda x, mu=mu: mu * weakest(x)))(x, y).error for mu in (1.0, 0.1)]
    torch.testing.assert_close(errors[1], 10 * errors[0])


def test_estimated_error_at_the_solution_itself_is_zero_and_finite():
    _, solved = estimating("power_tail")
    x, _ = points(solved)
    assert (Evaluator(solved)(x, build("power_tail").reference.y_star(x)).error < 1e-14).all()


SOLVED = {
    "logcosh": "bound",
    "logreg_breast_cancer": "estimated",
    "logreg_breast_cancer_agents": "estimated",
    "label_cleaning_digits": "estimated",
    "source_cleaning_linear": "estimated",
    "newsgroups_synthetic[documents=400,p=150,classes=4,pretrain=20]": "estimated",
}


@pytest.mark.parametrize("problem", SOLVED)
def test_stated_error_of_every_problem_that_is_solved_for(problem, monkeypatch):
    """Against the usual solve, five to eight digits tighter."""
    instance = build(problem)
    assert Evaluator(instance).certificate == SOLVED[problem]
    rng = torch.Generator().manual_seed(1)
    x = instance.x0 + 0.5 * torch.randn(1, instance.dx, generator=rng)
    y = instance.y0 + 0.1 * torch.randn(1, instance.dy, generator=rng)
    tight = Evaluator(instance).grad_phi(x, y)
    for tolerance in (1e-3, 1e-6):
        monkeypatch.setattr("bilevelbench.engine.evaluator.TOLERANCE", {torch.float64: tolerance})
        loose = Evaluator(instance)
        difference = norm(loose.grad_phi(x, y) - tight)
        assert 1e-13 < difference <= loose(x, y).error


@pytest.mark.whole
def test_every_strongly_convex_problem_is_certified():
    """All built-in ones but those whose lower level trains a network, as far as their data are here."""
    slow = {"logreg_digits", "logreg_digits_agents", "newsgroups", "newsgroups_synthetic"}
    for name, entry in registry().problems.items():
        if (
            name not in slow
            and entry.value.solves_phi
            and all(file.locate() is not None for file in entry.value.data_files)
        ):
            assert Evaluator(make(entry, {}).build()).certificate != "not certified", name


def test_without_phi_the_lower_level_is_not_solved_and_the_rest_is_seen(monkeypatch):
    instance = bent()
    monkeypatch.setattr(Evaluator, "_newton", lambda *_: pytest.fail("the lower level was solved"))
    evaluator = Evaluator(instance, phi=False)
    x, y = points(instance)
    seen = evaluator(x, y)
    assert evaluator.certificate == "none"
    assert torch.cat([seen.phi, seen.grad_phi, seen.error]).isnan().all()
    assert torch.equal(seen.g_y, norm(instance.grad_g_y(x, y)))


def test_a_closed_form_is_free_and_used_also_without_phi():
    instance = build("quadratic")
    x, y = points(instance)
    assert torch.equal(Evaluator(instance, phi=False)(x, y).phi, Evaluator(instance)(x, y).phi)


# ---- lanes do not disturb each other


@pytest.mark.parametrize("problem", ["quadratic[dim_x=3,dim_y=6]", "tail_anchor[c=0.7]", "ridge_abalone"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e200])
def test_lane_that_is_not_finite_does_not_disturb_the_others(problem, value):
    for instance in (build(problem), stripped(problem)):
        x, y = points(instance, lanes=4)
        clean = Evaluator(instance, second_order=True)(x, y)
        x[1], y[2] = value, value
        seen = Evaluator(instance, second_order=True)(x, y)
        assert same_evaluation(lanes_of(seen, [0, 3]), lanes_of(clean, [0, 3]))
        assert same(seen.further["min_eigenvalue"][[0, 3]], clean.further["min_eigenvalue"][[0, 3]])


def test_lane_that_is_not_finite_has_values_that_are_not_finite():
    instance = bent()
    x, y = points(instance)
    x[1] = torch.nan
    seen = Evaluator(instance)(x, y)
    assert not torch.isfinite(seen.phi[1]).any()
    assert not torch.isfinite(seen.grad_phi[1]).any()
    assert torch.isfinite(seen.phi[[0, 2, 3]]).all()


@pytest.mark.parametrize("problem", ["bent", *CLOSED_FORMS, "ridge_abalone"])
def test_evaluation_does_not_depend_on_the_other_lanes(problem):
    """Widths are multiples of four, as the runner makes them."""
    instance = bent() if problem == "bent" else stripped(problem)
    x, y = points(instance, lanes=12)
    y[5:] *= 100  # longer solves than in the lanes above
    everyone = Evaluator(instance)(x, y)
    for which in ([0, 1, 2, 3], [7, 2, 11, 2], [4, 4, 4, 4, 9, 0, 1, 6]):
        assert same_evaluation(Evaluator(instance)(x[which], y[which]), lanes_of(everyone, which))


def test_evaluation_is_repeatable():
    instance = bent()
    x, y = points(instance)
    assert same_evaluation(Evaluator(instance)(x, y), Evaluator(instance)(x, y))


def test_evaluation_leaves_the_point_alone():
    instance = bent()
    x, y = points(instance)
    before = x.clone(), y.clone()
    Evaluator(instance, second_order=True)(x, y)
    assert torch.equal(x, before[0])
    assert torch.equal(y, before[1])


@pytest.mark.parametrize("problem", ["quadratic", "tail_anchor"])
def test_evaluator_is_not_in_the_second_book(problem):
    for instance in (build(problem), stripped(problem)):
        x, y = points(instance)
        instance.grad_f(x, y)
        before = list(instance.passes)
        evaluator = Evaluator(instance, second_order=True)
        evaluator(x, y)
        evaluator.grad_phi(x, y)
        assert instance.passes == before


# ---- curvature


def second_order(instance: Instance, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    return Evaluator(instance, second_order=True)(x, y).further


@pytest.mark.parametrize(
    ("problem", "dense"),
    [*itertools.product(CLOSED_FORMS, (500, 1)), ("ridge_abalone", 500)],  # Lanczos needs two columns
)
def test_smallest_eigenvalue_by_differences_is_that_of_the_closed_form(problem, dense, monkeypatch):
    exact, by_differences = build(problem), stripped(problem)
    monkeypatch.setattr(curvature, "DENSE", dense)
    x, y = points(exact)
    expected = second_order(exact, x, y)["min_eigenvalue"]
    got = second_order(by_differences, x, y)
    assert got["min_eigenvalue"].shape == expected.shape == (4, 1)
    torch.testing.assert_close(got["min_eigenvalue"], expected, rtol=1e-4, atol=1e-4)
    gap = (got["min_eigenvalue"] - expected).abs()
    assert (gap <= torch.nan_to_num(got["min_eigenvalue_error"], nan=torch.inf)).all()


def test_error_of_a_closed_form_is_rounding_and_that_of_differences_is_stated():
    x, y = points(build("tail_anchor"))
    assert (second_order(build("tail_anchor"), x, y)["min_eigenvalue_error"] < 1e-13).all()
    off = second_order(stripped("tail_anchor"), x, y)["min_eigenvalue_error"]
    assert ((off > 1e-9) & (off < 1e-2)).all()


def test_smallest_eigenvalue_at_a_saddle_is_negative():
    instance = build("tail_anchor[saddle=true]")
    x0 = instance.x0.expand(4, -1)
    assert (second_order(instance, x0, instance.y0.expand(4, -1))["min_eigenvalue"] <= -0.5).all()


def test_second_order_accuracy_is_the_smallest_eps_of_both_conditions():
    """At the saddle the curvature decides, (1/2)^2/rho; where phi is convex the gradient does."""
    instance = build("tail_anchor[saddle=true,rotate=false]")
    x = torch.tensor([[0.3, 0.2, 0.0], [0.3, 0.2, 1.0], [0.0, 0.98323, 0.0]])
    found = Evaluator(instance, second_order=True)(x, torch.zeros_like(x))
    accuracy, eigenvalue = found.further["second_order_eps"], found.further["min_eigenvalue"]
    rho = instance.constants.rho_phi
    torch.testing.assert_close(accuracy, torch.maximum(found.grad_phi, (-eigenvalue).clamp(min=0) ** 2 / rho))
    assert accuracy[1] == found.grad_phi[1]
    assert accuracy[0] == found.grad_phi[0]  # 0.25/rho is less than this gradient
    quiet = torch.tensor([[1e4, 0.98323, 0.0]])
    assert Evaluator(instance, second_order=True)(quiet, quiet).further["second_order_eps"].item() == pytest.approx(
        0.25 / rho
    )


def test_certified_accuracy_without_a_closed_form_is_never_below_the_true_one():
    exact, by_differences = build("tail_anchor[saddle=true]"), stripped("tail_anchor[saddle=true]")
    for seed in range(5):
        x, y = points(exact, seed=seed)
        true, certified = (second_order(i, x, y)["second_order_eps"] for i in (exact, by_differences))
        assert (certified >= true * (1 - 1e-12)).all()
        torch.testing.assert_close(certified, true, rtol=1e-2, atol=1e-4)


def test_smallest_eigenvalue_is_nan_where_the_hessian_is_not_finite():
    instance = build("tail_anchor[tails=4,anchors=3]")
    x, y = points(instance)
    x[1, 0] = torch.nan
    got = second_order(instance, x, y)["min_eigenvalue"]
    assert got.isnan().reshape(-1).tolist() == [False, True, False, False]


def test_lanczos_serves_a_hessian_of_many_columns():
    instance = build("tail_anchor[tails=300,anchors=300,saddle=true]")
    x, y = points(instance, lanes=1)
    expected = second_order(instance, x, y)["min_eigenvalue"]
    hessian, instance.reference = instance.reference, replace(instance.reference, hess_phi=None)
    assert hessian.hess_phi is not None
    torch.testing.assert_close(second_order(instance, x, y)["min_eigenvalue"], expected, rtol=1e-4, atol=1e-4)


def test_lanczos_does_not_depend_on_the_other_lanes(monkeypatch):
    monkeypatch.setattr(curvature, "DENSE", 1)
    instance = stripped("tail_anchor[tails=3,anchors=3,saddle=true]")
    x, y = points(instance, lanes=8)
    together = second_order(instance, x, y)["min_eigenvalue"]
    some = torch.tensor([5, 2, 5, 5])
    assert torch.equal(second_order(instance, x[some], y[some])["min_eigenvalue"], together[some])


def test_metrics_are_evaluated_at_the_given_point():
    instance = bent(metrics={"size": lambda x, y: norm(y)})
    x, y = points(instance)
    assert torch.equal(Evaluator(instance)(x, y).further["size"], norm(y))


# ---- a lower level that is not convex


def saddled(dip: float) -> Instance:
    """g = 1/2 yᵀD y - xᵀy with D = diag(3, 2, 1, dip);  f = 1/2 |y - 1|²."""
    D = torch.tensor([3.0, 2.0, 1.0, dip])
    return Instance(
        f=lambda x, y: 0.5 * dot(y - 1, y - 1),
        g=lambda x, y: 0.5 * dot(D * y, y) - dot(x, y),
        x0=torch.zeros(1, 4),
        y0=torch.zeros(1, 4),
    )


@pytest.mark.parametrize(
    ("dip", "is_convex"), [(1e-3, True), (1e-6, True), (-1e-6, False), (-1e-3, False), (-5.0, False)]
)
def test_negative_curvature_is_noticed_and_phi_not_claimed(dip, is_convex):
    instance = saddled(dip)
    seen = Evaluator(instance)(*points(instance))
    assert seen.bent.tolist() == [[not is_convex]] * 4
    assert bool(seen.phi.isfinite().all()) == is_convex
    assert bool(seen.grad_phi.isfinite().all()) == is_convex


def test_only_the_lanes_that_show_it_are_not_claimed():
    """g = (x_1/2) y² + y⁴/4 - y: convex in the lanes with x_1 >= 0."""
    instance = Instance(
        f=lambda x, y: 0.5 * dot(y - 1, y - 1) + dot(x, x),
        g=lambda x, y: 0.5 * x * y**2 + 0.25 * y**4 - y,
        x0=torch.zeros(1, 1),
        y0=torch.zeros(1, 1),
    )
    x = torch.tensor([[1.0], [-1.0], [0.5], [-2.0]])
    seen = Evaluator(instance)(x, torch.full((4, 1), 0.1))
    assert seen.bent.reshape(-1).tolist() == [False, True, False, True]
    assert seen.phi.isfinite().reshape(-1).tolist() == [True, False, True, False]


@pytest.mark.parametrize("problem", CLOSED_FORMS)
def test_no_convex_problem_is_taken_for_another(problem):
    solved = stripped(problem)
    for seed, scale in itertools.product(range(3), (1.0, 30.0)):
        x, y = points(solved, seed=seed)
        assert not Evaluator(solved)(x, scale * y).bent.any()


@pytest.mark.parametrize("dip", [1e-3, -1e-3, -5.0])
def test_extreme_curvatures_at_the_start(dip):
    smallest, largest = lower_curvatures(saddled(dip))
    assert smallest == pytest.approx(dip, abs=1e-9)
    assert largest == pytest.approx(3.0, rel=1e-9)


# ---- on a clock


def test_what_is_solved_on_a_clock_is_what_is_solved_without():
    """Nobody states an error here, and the hypergradient is as near as a curve needs."""
    instance = bent()
    clocked = Evaluator(instance, clocked=True)
    for seed in range(3):
        x, y = points(instance, seed=seed)
        exact, found = Evaluator(instance)(x, y), clocked(x, y)
        torch.testing.assert_close(found.grad_phi, exact.grad_phi, rtol=1e-5, atol=1e-9)
        torch.testing.assert_close(found.phi, exact.phi, rtol=1e-5, atol=1e-9)


def test_small_hypergradients_are_solved_for_as_closely_as_large_ones():
    """Beside a stationary point the terms of grad phi cancel: a residual that does for one point is all of the other."""
    D = torch.tensor([3.0, 1.0, 0.2, 0.05])
    instance = Instance(
        f=lambda x, y: 0.5 * dot(y - 1, y - 1) + 0.5 * dot(x, x),
        g=lambda x, y: 0.5 * dot(D * y, y) - dot(x, y),
        x0=torch.zeros(1, 4),
        y0=torch.zeros(1, 4),
    )
    x = (1 / D / (1 / D**2 + 1) + 1e-7)[None]  # phi = 1/2 |x/D - 1|² + 1/2 |x|²
    y = x / D + 1e-3
    exact, found = Evaluator(instance)(x, y), Evaluator(instance, clocked=True)(x, y)
    assert (exact.grad_phi < 1e-4).all()
    torch.testing.assert_close(found.grad_phi, exact.grad_phi, rtol=1e-4, atol=1e-12)


def test_the_next_evaluation_starts_where_the_last_one_ended():
    instance = bent()
    x, y = points(instance, lanes=1)
    cold, warm = (Evaluator(instance, clocked=True) for _ in range(2))
    warm(x, y)
    products = []
    for evaluator in (cold, warm):
        counter = counting(instance.functions["hvp_g_yy"])
        instance.functions["hvp_g_yy"] = counter
        evaluator(x + 1e-6, y)
        instance.functions["hvp_g_yy"] = counter.function
        products.append(counter.calls)
    assert products[1] < 0.7 * products[0]


class counting:  # noqa: N801 (used like a function)
    def __init__(self, function) -> None:
        self.function, self.calls = function, 0

    def __call__(self, *arguments):
        self.calls += 1
        return self.function(*arguments)


def test_an_evaluation_that_is_out_of_time_is_given_up_and_gone_on_with(monkeypatch):
    instance = bent()
    x, y = points(instance, lanes=1)
    evaluator = Evaluator(instance, clocked=True)
    ticks = itertools.count()
    monkeypatch.setattr("bilevelbench.engine.evaluator.time.perf_counter", lambda: float(next(ticks)))
    seen, attempts = evaluator(x, y, until=6), 1
    assert not seen.solved
    assert seen.phi.isnan().all()
    assert seen.g_y.isfinite().all()
    while not seen.solved:
        seen, attempts = evaluator(x, y, until=next(ticks) + 20), attempts + 1
        assert attempts < 20
    assert attempts > 2  # it did not fit into one of them
    torch.testing.assert_close(seen.grad_phi, Evaluator(instance)(x, y).grad_phi, rtol=1e-5, atol=1e-9)


# ---- x in a set


def test_gradient_mapping_is_the_gradient_inside_and_zero_at_a_constrained_minimum():
    free = build("quadratic[dim_x=2,dim_y=3]")
    x, y = points(free)
    gradient = Evaluator(free).grad_phi(x, y)
    boxed = build("quadratic[dim_x=2,dim_y=3]")
    boxed.project = lambda z: z.clamp(-1e6, 1e6)
    torch.testing.assert_close(Evaluator(boxed)(x, y).grad_phi, norm(gradient), rtol=1e-9, atol=0)
    boxed.project = lambda z: torch.where(
        gradient > 0, torch.maximum(z, x), torch.minimum(z, x)
    )  # -grad points outwards
    assert (Evaluator(boxed)(x, y).grad_phi == 0).all()
    assert Evaluator(boxed).certificate == "closed form; gradient mapping"
