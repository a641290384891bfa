"""`chain`: its formulas, its bounds, and that no gradient sees further than one coordinate."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from bilevelbench_problems import Chain, chain
from helpers import assert_conforms
from pydantic import ValidationError
from scipy.integrate import quad
from tensors import check_bits, close, normal

from bilevelbench import Additive, Exact
from bilevelbench.testing.checks.bounds import bounds_between_pairs


def unit(dim: int, **fields: float) -> Chain:
    """With sig = 1, so that random normal points lie where F bends."""
    return Chain(dim=dim, Delta=12 * dim / 152, **fields)


PROBLEMS = [unit(1), unit(6), unit(5, rotate=False), unit(4, mu=0.3, L=3.0, L_f=1.0), Chain(dim=7, L_f=2.0, Delta=3.0)]
parametrize = pytest.mark.parametrize("problem", PROBLEMS, ids=repr)


@parametrize
def test_conformance(problem: Chain) -> None:
    assert_conforms(problem)


@parametrize
def test_bounds_hold_where_F_bends(problem: Chain) -> None:
    bounds_between_pairs(problem, scale=problem.sig)


def test_data_seed_turns_the_chain() -> None:
    x = normal(1, 6)
    one, other = (unit(6, data_seed=seed).build() for seed in (1, 2))
    assert float(one.reference.phi(x)) != float(other.reference.phi(x))
    assert one.constants.given == other.constants.given


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("problem", [unit(128), unit(129), unit(5), unit(6, rotate=False)], ids=repr)
def test_bits_do_not_depend_on_the_pack(problem: Chain, dtype: torch.dtype) -> None:
    torch.set_default_dtype(dtype)
    check_bits(problem.build())


def test_float32_sees_the_same_data() -> None:
    double = unit(6).build()
    torch.set_default_dtype(torch.float32)
    single = unit(6).build()
    assert single.constants.given == double.constants.given
    x = normal(4, 6)
    assert single.reference.grad_phi(x).dtype == torch.float32
    torch.testing.assert_close(
        single.reference.grad_phi(x).double(), double.reference.grad_phi(x.double()), rtol=1e-3, atol=1e-5
    )


def test_psi_and_phi() -> None:
    t = torch.tensor([0.6, 0.8, 1.0, 1.7, 30.0])
    close(chain.psi(t), torch.exp(1 - 1 / (2 * t - 1) ** 2))
    assert float(chain.psi(torch.tensor(1.0))) == 1
    for u in (-3.0, 0.0, 1.2):
        integral, _ = quad(lambda s: math.exp(0.5 - s * s / 2), -math.inf, u)
        assert float(chain.phi(torch.tensor(u))) == pytest.approx(integral, rel=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_psi_is_safe_around_one_half(dtype: torch.dtype) -> None:
    """Value and three derivatives are finite everywhere, and zero up to 1/2; autograd agrees."""
    near = 0.5 + torch.tensor([-1e9, -1.0, -1e-3, 0.0, 1e-300, 1e-12, 1e-3, 0.01, 0.02, 0.05, 0.1, 0.5, 1e9])
    t = near.to(dtype).requires_grad_(True)
    functions = [chain.psi, chain.psi_slope, chain.psi_curvature, chain.psi_third]
    for function in functions:
        assert torch.isfinite(function(t)).all()
        assert (function(t)[t <= 0.5] == 0).all()
    for function, derivative in itertools.pairwise(functions):
        (by_autograd,) = torch.autograd.grad(function(t).sum(), t)
        torch.testing.assert_close(by_autograd, derivative(t.detach()))
    u = t.detach().expand(1, -1).clone().requires_grad_(True)
    (gradient,) = torch.autograd.grad(chain.value(u).sum(), u)
    torch.testing.assert_close(gradient, chain.gradient(u.detach()))
    assert torch.isfinite(chain.hessian(u.detach())).all()


def test_value_is_the_sum_as_written() -> None:
    def psi(t: float) -> float:
        return math.exp(1 - 1 / (2 * t - 1) ** 2) if t > 0.5 else 0.0

    def phi(t: float) -> float:
        return math.sqrt(2 * math.pi * math.e) * 0.5 * math.erfc(-t / math.sqrt(2))

    for seed in range(5):
        u = (1.5 * normal(6, seed=seed)).tolist()
        total = -psi(1) * phi(u[0])
        total += sum(psi(-u[i - 1]) * phi(-u[i]) - psi(u[i - 1]) * phi(u[i]) for i in range(1, 6))
        assert float(chain.value(torch.tensor([u]))) == pytest.approx(total, rel=1e-12)


def test_the_constants_of_the_lower_bound() -> None:
    """23 for the gradient's entries and 152 for the Hessian, by the sums of the docstring; neither is far off."""
    top, psi_slope = math.sqrt(2 * math.pi * math.e), math.sqrt(54 / math.e)
    assert chain.peak(chain.psi_slope) == pytest.approx(psi_slope)
    assert math.e**1.5 + psi_slope * top < 23
    assert chain.peak(chain.psi_curvature) * top + math.e + 2 * math.sqrt(54) < 152
    line = torch.linspace(-2, 2, 81)
    u = torch.cartesian_prod(line, line, line)
    assert 18 < chain.gradient(u).abs().max() < 23
    assert 100 < torch.linalg.eigvalsh(chain.hessian(u)).abs().max() < 152


def test_eps_and_dim_are_linked() -> None:
    problem = Chain(dim=200, L_f=3.0, Delta=5.0)
    assert problem.Delta * problem.L_f / (1824 * problem.eps**2) == pytest.approx(200)
    constants = problem.build().constants
    assert constants.given["eps_chain"].value == problem.eps
    assert 0.9 * problem.Delta < constants.Delta < problem.Delta
    far, near = Chain(dim=400).build().constants, Chain(dim=100).build().constants
    assert (far.C_f, far.L_f) == (pytest.approx(near.C_f), near.L_f)
    assert far.rho_f == pytest.approx(2 * near.rho_f)


def test_delta_is_the_distance_to_the_infimum() -> None:
    instance = Chain(dim=5, rotate=False).build()
    end = torch.full((1, 5), 1e5)
    assert float(instance.reference.phi(instance.x0) - instance.reference.phi(end)) == pytest.approx(
        instance.constants.Delta
    )


def test_a_gradient_sees_one_more_coordinate() -> None:
    problem = Chain(dim=9, rotate=False)
    instance = problem.build()
    x = instance.x0
    for known in range(9):
        seen = instance.reference.grad_phi(x)[0] != 0
        assert seen.tolist() == [i <= known for i in range(9)]
        x = x.clone()
        x[0, known] = problem.sig * (-1.5) ** known  # of either sign: the next one follows


@pytest.mark.parametrize("rotate", [True, False])
def test_the_gradient_is_large_until_the_chain_is_walked(rotate: bool) -> None:
    problem = Chain(dim=8, rotate=rotate)
    instance = problem.build()
    grad_phi, progress = instance.reference.grad_phi, instance.metrics["progress"]
    x, steps, seen = instance.x0, 0, []
    while float(grad_phi(x).norm()) > problem.eps:
        seen.append(float(progress(x, x)))
        x, steps = x - grad_phi(x) / problem.L_f, steps + 1
    assert float(grad_phi(instance.x0).norm()) == pytest.approx(math.sqrt(math.e) * problem.eps)
    assert float(progress(x, x)) == 8
    assert seen == sorted(seen)
    assert set(seen) >= set(range(8))
    assert 8 < steps < 1000
    u = 3 * problem.sig * normal(1000, 1, 8)
    stuck = progress(u, u) < 8
    assert (grad_phi(u).norm(dim=-1, keepdim=True)[stuck] > problem.eps).all()


def test_noise_and_refusals() -> None:
    assert Chain(dim=3).build().noise == Exact()
    assert Chain(dim=3, sigma_g=0.5).build().noise == Additive(sigma_g=0.5)
    with pytest.raises(ValidationError):
        Chain(mu=3.0)
