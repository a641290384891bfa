"""`logcosh`: its constants hold and are attained; its minimisers and curvatures are those of the evaluator."""

from __future__ import annotations

import math

import pytest
import torch
from bilevelbench_problems import LogCosh
from bilevelbench_problems.logcosh import ROBUST
from bilevelbench_problems.separable import peak
from helpers import assert_conforms
from tensors import check_bits, close, joint_hessian, lower_hessian, normal
from torch import Tensor

from bilevelbench import Additive, Exact, Instance, Reference
from bilevelbench.engine.evaluator import Evaluator

PROBLEMS = [
    LogCosh(),
    LogCosh(dim_x=4, dim_y=3, kappa=20.0, L=2.0, c=0.3, reg=3.0),
    LogCosh(dim_x=1, dim_y=1, data_seed=4),
    LogCosh(dim_x=3, dim_y=5, c=5.0, data_seed=2),
]
parametrize = pytest.mark.parametrize("problem", PROBLEMS, ids=repr)


def with_reference(problem: LogCosh) -> Instance:
    """The instance with what `build` knows for its constants: solutions by Newton's method, the formula of ∇²φ."""
    instance, data = problem.build(), problem._draw()

    def y_star(x: Tensor) -> Tensor:
        return data.y_star(x.reshape(-1, data.x0.shape[-1])).reshape(*x.shape[:-1], -1)

    def grad_phi(x: Tensor) -> Tensor:
        y = y_star(x)
        v = torch.linalg.solve(lower_hessian(instance, x, y), instance.grad_f_y(x, y).unsqueeze(-1)).squeeze(-1)
        return instance.grad_f_x(x, y) - instance.jvp_g_xy(x, y, v)

    instance.reference = Reference(
        y_star=y_star,
        phi=lambda x: instance.value_f(x, y_star(x)),
        grad_phi=grad_phi,
        hess_phi=lambda x: data.hess_phi(x.reshape(-1, x.shape[-1])).reshape(*x.shape, -1),
    )
    return instance


class Solved(LogCosh):
    """With the reference that `build` leaves out, so that the kit looks at it."""

    name = "logcosh_solved"

    def build(self) -> Instance:
        return with_reference(LogCosh(**dict(self)))


@parametrize
def test_conformance(problem: LogCosh) -> None:
    assert_conforms(Solved(**dict(problem)))


@parametrize
def test_lower_constants_are_attained(problem: LogCosh) -> None:
    instance = problem.build()
    x, data, constants = normal(1, instance.dx), problem._draw(), instance.constants
    bent, flat = -x @ data.N, torch.full((1, instance.dy), 1e3)  # w = 0, and w far away
    assert torch.linalg.eigvalsh(lower_hessian(instance, x, flat)[0])[0] == pytest.approx(constants.mu)
    assert torch.linalg.eigvalsh(lower_hessian(instance, x, bent)[0])[-1] == pytest.approx(constants.L_gy)
    assert constants.L_gy == pytest.approx(problem.L + problem.c)
    norms = [torch.linalg.matrix_norm(joint_hessian(instance.functions["value_g"], x, y), 2) for y in (bent, flat)]
    assert max(map(float, norms)) == pytest.approx(constants.L_g)


@parametrize
def test_upper_constants_are_attained(problem: LogCosh) -> None:
    instance, t = problem.build(), problem._draw().t
    x, constants = normal(1, instance.dx), instance.constants
    assert instance.grad_f_y(x, t + 1 / math.sqrt(3)).norm() == pytest.approx(constants.C_f)
    hessian = joint_hessian(instance.functions["value_f"], x, t.unsqueeze(0))
    assert torch.linalg.matrix_norm(hessian, 2) == pytest.approx(constants.L_f)
    u = torch.linspace(0, 1, 100001)
    assert ROBUST.third(u).abs().max() == pytest.approx(constants.rho_f, rel=1e-6)


@parametrize
def test_rho_g_and_nu_g_where_log_cosh_bends_most(problem: LogCosh) -> None:
    """Along the direction in which the bounds were made, third and fourth derivative of g are not far off."""
    instance, data, constants = problem.build(), problem._draw(), problem.build().constants
    K = torch.cat([data.N, torch.eye(instance.dy)])
    columns = K.norm(dim=0).argmax()
    d = K[:, columns] / K[:, columns].norm()
    found = []
    for w in (0.0, math.atanh(1 / math.sqrt(3))):  # of tanh''' and of tanh''
        y = torch.zeros(instance.dy)
        y[columns] = w
        tau = torch.zeros((), requires_grad=True)
        derivative = instance.value_g(
            (tau * d[: instance.dx]).unsqueeze(0), (y + tau * d[instance.dx :]).unsqueeze(0)
        ).sum()
        orders = []
        for _ in range(4):
            (derivative,) = torch.autograd.grad(derivative, tau, create_graph=True)
            orders.append(abs(derivative.item()))
        found.append(orders)
    rho, nu = max(orders[2] for orders in found), max(orders[3] for orders in found)
    assert constants.rho_g / 3 < rho <= constants.rho_g * (1 + 1e-9)
    assert constants.nu_g / 3 < nu <= constants.nu_g * (1 + 1e-9)


def test_constants_of_the_robust_loss() -> None:
    assert peak(ROBUST.slope) == pytest.approx(3 * math.sqrt(3) / 8)
    assert peak(ROBUST.curvature) == pytest.approx(2)
    u = torch.linspace(-4, 4, 41, requires_grad=True)
    for function, derivative in [
        (ROBUST.value, ROBUST.slope),
        (ROBUST.slope, ROBUST.curvature),
        (ROBUST.curvature, ROBUST.third),
    ]:
        (by_autograd,) = torch.autograd.grad(function(u).sum(), u)
        torch.testing.assert_close(by_autograd, derivative(u.detach()))


def test_phi_is_not_convex() -> None:
    problem = LogCosh()
    data = problem._draw()
    eigenvalues = torch.linalg.eigvalsh(data.hess_phi(data.cloud))
    assert (eigenvalues[:, 0] < -0.1).double().mean() > 0.5
    assert eigenvalues.abs().max() == pytest.approx(problem.build().constants.L_phi)


def test_the_lower_level_bends() -> None:
    """y*(x) is far from linear."""
    data = LogCosh()._draw()
    x = 2 * normal(50, 10)
    middle = (data.y_star(x) + data.y_star(-x)) / 2 - data.y_star(0 * x)
    assert data.y_star(0 * x).abs().max() < 1e-12  # odd in x, so look between x and 0
    assert middle.abs().max() < 1e-10
    assert (data.y_star(x) - 2 * data.y_star(x / 2)).norm(dim=-1).mean() > 0.1 * data.y_star(x).norm(dim=-1).mean()


@parametrize
def test_the_evaluator_finds_the_same_and_bounds_its_error(problem: LogCosh) -> None:
    known, instance = with_reference(problem), problem.build()
    assert instance.reference is None
    evaluator = Evaluator(instance)
    assert evaluator.certificate == "bound"
    x, y = 2 * normal(8, instance.dx), 3 * normal(8, instance.dy, seed=1)
    seen = evaluator(x, y)
    close(seen.phi, known.reference.phi(x))
    close(evaluator.grad_phi(x, y), known.reference.grad_phi(x))
    assert (seen.error < 1e-5).all()
    assert ((seen.grad_phi - known.reference.grad_phi(x).norm(dim=-1, keepdim=True)).abs() <= seen.error + 1e-12).all()


def test_kinds() -> None:
    kinds = {name: constant.kind for name, constant in LogCosh().build().constants.given.items()}
    assert {name for name, kind in kinds.items() if kind == "estimated"} == {"L_phi"}
    assert {name for name, kind in kinds.items() if kind == "bound"} == {"rho_g", "nu_g", "Delta"}


@parametrize
def test_data_seed_changes_the_data(problem: LogCosh) -> None:
    other = problem.model_copy(update={"data_seed": 99}).build()
    assert other.constants.Delta != problem.build().constants.Delta


def test_float32_sees_the_same_data() -> None:
    double = LogCosh().build()
    torch.set_default_dtype(torch.float32)
    single = LogCosh().build()
    assert single.x0.dtype == single.grad_g_y(single.x0, single.y0).dtype == torch.float32
    assert single.constants.given == double.constants.given
    expected = double.grad_g_y(double.x0, double.y0).float()
    torch.testing.assert_close(single.grad_g_y(single.x0, single.y0), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@parametrize
def test_bits_do_not_depend_on_the_pack(problem: LogCosh, dtype: torch.dtype) -> None:
    torch.set_default_dtype(dtype)
    check_bits(problem.build(), scale=2.0)


def test_noise() -> None:
    assert LogCosh().build().noise == Exact()
    assert LogCosh(sigma_f=0.5).build().noise == Additive(sigma_f=0.5)
