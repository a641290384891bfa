"""The evaluator: exact where there is a closed form, else to an error that it states; a pure function of (x, y)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from scipy.optimize import root
from torch import Tensor
from torch.nn.functional import logsigmoid

from bilevelbench import Instance, bound, dot, estimated, norm
from bilevelbench.errors import InvalidInput
from bilevelbench.evaluate import Evaluation, Evaluator
from bilevelbench.registry import make, registry
from bilevelbench.trial import parse_spec

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
    return Evaluation(e.phi[which], e.grad_phi[which], e.error[which], e.g_y[which])


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
    monkeypatch.setattr("bilevelbench.evaluate.TOLERANCE", {torch.float64: tolerance})
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


@pytest.mark.parametrize("name", KNOWN)
def test_certificate_is_a_residual_without_one_of_the_constants(name):
    known = {k: v for k, v in KNOWN.items() if k != name}
    assert Evaluator(bent(constants=known)).certificate == "residual"


@pytest.mark.parametrize("name", KNOWN)
def test_estimated_constants_certify_nothing(name):
    assert Evaluator(bent(constants={**KNOWN, name: estimated(1)})).certificate == "residual"


def test_error_is_nan_without_constants():
    instance = bent()
    assert Evaluator(instance)(*points(instance)).error.isnan().all()


# ---- lanes do not disturb each other


@pytest.mark.parametrize("problem", ["quadratic[dim_x=3,dim_y=6]", "tail_anchor[c=0.7]", "ridge_abalone"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e200])
def test_lane_that_is_not_finite_does_not_disturb_the_others(problem, value):
    for instance in (build(problem), stripped(problem)):
        x, y = points(instance, lanes=4)
        clean = Evaluator(instance, eigenvalue=True)(x, y)
        x[1], y[2] = value, value
        seen = Evaluator(instance, eigenvalue=True)(x, y)
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
    Evaluator(instance, eigenvalue=True)(x, y)
    assert torch.equal(x, before[0])
    assert torch.equal(y, before[1])


@pytest.mark.parametrize("problem", ["quadratic", "tail_anchor"])
def test_evaluator_is_not_in_the_second_book(problem):
    for instance in (build(problem), stripped(problem)):
        x, y = points(instance)
        instance.grad_f(x, y)
        before = list(instance.passes)
        evaluator = Evaluator(instance, eigenvalue=True)
        evaluator(x, y)
        evaluator.grad_phi(x, y)
        evaluator.smallest_eigenvalue(x, y)
        assert instance.passes == before


# ---- curvature


@pytest.mark.parametrize("problem", [*CLOSED_FORMS, "ridge_abalone"])
def test_smallest_eigenvalue_by_differences_is_that_of_the_closed_form(problem):
    exact, by_differences = build(problem), stripped(problem)
    x, y = points(exact)
    expected = Evaluator(exact).smallest_eigenvalue(x, y)
    got = Evaluator(by_differences).smallest_eigenvalue(x, y)
    assert got.shape == expected.shape == (4, 1)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


def test_smallest_eigenvalue_at_a_saddle_is_negative():
    instance = build("tail_anchor[saddle=true]")
    x0 = instance.x0.expand(4, -1)
    assert (Evaluator(instance).smallest_eigenvalue(x0, instance.y0.expand(4, -1)) <= -0.5).all()


def test_smallest_eigenvalue_is_nan_where_the_hessian_is_not_finite():
    instance = build("tail_anchor[tails=4,anchors=3]")
    x, y = points(instance)
    x[1, 0] = torch.nan
    got = Evaluator(instance).smallest_eigenvalue(x, y)
    assert got.isnan().reshape(-1).tolist() == [False, True, False, False]


def test_smallest_eigenvalue_of_a_large_hessian_needs_a_closed_form():
    instance = stripped("quadratic[dim_x=501,dim_y=4]")
    with pytest.raises(InvalidInput, match="501 columns needs a closed form"):
        Evaluator(instance).smallest_eigenvalue(*points(instance))


def test_metrics_are_evaluated_at_the_given_point():
    instance = bent(metrics={"size": lambda x, y: norm(y)})
    x, y = points(instance)
    assert torch.equal(Evaluator(instance)(x, y).further["size"], norm(y))
