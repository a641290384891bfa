"""D5: the Hessian of Lstar_lam is D5-Lipschitz for lam >= 2 L_f/mu. The proof is in docs/hessian-lipschitz.md."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from bilevelbench_problems import LogCosh, Saddle, SaddleChain, TailAnchor
from bilevelbench_problems.separable import LOG_COSH
from torch import Tensor
from torch.autograd.functional import hessian, jacobian

from bilevelbench import Instance, dot
from bilevelbench.errors import MissingConstant
from bilevelbench.model.constants import Constants
from bilevelbench.model.derivatives import derive

GIVEN = {"mu": 0.5, "L_f": 2.0, "L_g": 3.0, "rho_g": 0.7, "rho_f": 0.1, "C_f": 1.5, "nu_g": 0.2}


@pytest.fixture(autouse=True)
def float64() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def waves(seed: int, mu: float = 0.5, dx: int = 2, dy: int = 3) -> Instance:
    """f = Σ_j a_j sin(l_jᵀz), g = 1/2 yᵀAy - xᵀBy + 1/2 Σ_j log cosh(k_jᵀz), z = (x, y): no block of a derivative is zero."""
    rng = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=rng)

    a, far, K = 0.5 * normal(3), normal(3, dx + dy), 0.6 * normal(3, dx + dy)
    Q, B = torch.linalg.qr(normal(dy, dy)).Q, 0.5 * normal(dx, dy)
    A = (Q * torch.linspace(mu, 2, dy)) @ Q.T
    flat = torch.cat([torch.cat([torch.zeros(dx, dx), -B], 1), torch.cat([-B.T, A], 1)])
    size, long = far.norm(dim=1), K.norm(dim=1)
    steep = torch.linalg.eigvalsh(flat + 0.5 * K.T @ K)[-1]

    def grad_f(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        both = (a * torch.cos(torch.cat([x, y], -1) @ far.T)) @ far
        return both[..., :dx], both[..., dx:]

    def grad_g(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        both = 0.5 * torch.tanh(torch.cat([x, y], -1) @ K.T) @ K
        return both[..., :dx] - y @ B.T, both[..., dx:] + y @ A - x @ B

    return Instance(
        f=lambda x, y: (a * torch.sin(torch.cat([x, y], -1) @ far.T)).sum(-1, keepdim=True),
        g=lambda x, y: (
            0.5 * dot(y @ A, y)
            - dot(x @ B, y)
            + 0.5 * LOG_COSH.value(torch.cat([x, y], -1) @ K.T).sum(-1, keepdim=True)
        ),
        x0=normal(1, dx),
        y0=normal(1, dy),
        constants={
            "mu": mu,
            "L_gy": 2 + 0.5 * float(torch.linalg.matrix_norm(K[:, dx:], 2)) ** 2,
            "L_g": max(float(steep), -float(torch.linalg.eigvalsh(flat)[0])),
            "rho_g": 0.5 * 4 / (3 * math.sqrt(3)) * float((long**3).sum()),
            "nu_g": 0.5 * 2 * float((long**4).sum()),
            "C_f": float((a.abs() * far[:, dx:].norm(dim=1)).sum()),
            "L_f": float((a.abs() * size**2).sum()),
            "rho_f": float((a.abs() * size**3).sum()),
        },
        grad_f=grad_f,
        grad_g=grad_g,
        points="stack",
    )


FAMILY: dict[str, Callable[[], Instance]] = {
    "tail_anchor": lambda: TailAnchor(tails=2, anchors=1, c=0.5).build(),
    "tail_anchor, mu = 0.2": lambda: TailAnchor(mu=0.2, c=0.3, saddle=True).build(),
    "logcosh": lambda: LogCosh(dim_x=3, dim_y=4).build(),
    "logcosh, c = 3": lambda: LogCosh(dim_x=2, dim_y=2, c=3.0, kappa=10.0, data_seed=1).build(),
    "saddle": lambda: Saddle(stable=2, c=0.5).build(),
    "saddle_chain": lambda: SaddleChain(stable=1, saddles=2, c=0.5).build(),
    "waves 0": lambda: waves(0),
    "waves 1": lambda: waves(1, mu=0.2),
    "waves 2": lambda: waves(2, mu=1.0),
}
family = pytest.mark.parametrize("name", FAMILY)


@dataclass
class Penalty:
    """Lstar_lam of an instance, its lower levels solved by gradient descent until rounding stops it."""

    instance: Instance
    lam: float

    def solve(self, x: Tensor, weight: float) -> Tensor:
        """argmin over y of weight f + g."""
        c = self.instance.constants
        step = 1 / (c.L_gy + weight * c.L_f)
        y = torch.zeros(*x.shape[:-1], self.instance.dy)
        for _ in range(100):
            for _ in range(50):
                force = self.instance.grad_g_y(x, y) + weight * self.instance.grad_f_y(x, y)
                y = y - step * force
            if force.abs().max() <= 1e-13 * (1 + y.abs().max()):
                break
        assert force.abs().max() <= 1e-13 * (1 + y.abs().max())
        return y

    def gradient(self, x: Tensor) -> Tensor:
        y, z, g_x = self.solve(x, 1 / self.lam), self.solve(x, 0), self.instance.grad_g_x
        return self.instance.grad_f_x(x, y) + self.lam * (g_x(x, y) - g_x(x, z))

    def hessian(self, x: Tensor, h: float = 1e-3) -> Tensor:
        """(L, dx, dx), by differences of the fourth order: all points of the stencil at once."""
        steps = h * torch.eye(x.shape[-1]).unsqueeze(1)
        at = self.gradient(torch.cat([x + k * steps for k in (1, -1, 2, -2)])).reshape(4, x.shape[-1], *x.shape)
        difference = (8 * (at[0] - at[1]) - (at[2] - at[3])) / (12 * h)
        return difference.movedim(0, -1)


def pairs(instance: Instance, n: int = 40, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Points x and their partners at distances from 0.03 to 3."""
    rng = torch.Generator().manual_seed(seed)
    x = 1.5 * torch.randn(n, instance.dx, generator=rng)
    away = torch.nn.functional.normalize(torch.randn(n, instance.dx, generator=rng), dim=-1)
    return x, x + torch.logspace(-1.5, 0.5, n).unsqueeze(-1) * away


def steepness(hess: Callable[[Tensor], Tensor], x1: Tensor, x2: Tensor) -> float:
    change = torch.linalg.matrix_norm(hess(x1) - hess(x2), 2)
    return float((change / (x1 - x2).norm(dim=-1)).max())


@pytest.mark.parametrize("name", [name for name in FAMILY if name.startswith("waves")])
def test_derivatives_of_the_waves(name: str) -> None:
    """By autograd; the solver and the differences below rely on them."""
    instance = FAMILY[name]()
    x, y = torch.randn(5, 2, generator=torch.Generator().manual_seed(0)), instance.y0.expand(5, -1)
    by_autograd = derive(instance.functions["value_f"], instance.functions["value_g"], {})
    for query in ("grad_f", "grad_g"):
        torch.testing.assert_close(instance.functions[query](x, y), by_autograd[query](x, y))


@family
@pytest.mark.parametrize("factor", [1.0, 100.0])
def test_hessian_of_the_penalty_form_is_D5_lipschitz(name: str, factor: float) -> None:
    instance = FAMILY[name]()
    c = instance.constants
    penalty = Penalty(instance, factor * 2 * c.L_f / c.mu)
    ratio = steepness(penalty.hessian, *pairs(instance)) / c.D5
    print(f"\nlargest ratio / D5: {ratio:.2e} ({name}, lam = {penalty.lam:.3g})")
    assert 0 < ratio <= 1


def of_one_point(instance: Instance, query: str) -> Callable[[Tensor], Tensor]:
    """f or g of z = (x, y)."""
    return lambda z: instance.functions[query](z[: instance.dx].unsqueeze(0), z[instance.dx :].unsqueeze(0)).sum()


def graph(instance: Instance, x: Tensor, weight: float) -> tuple[Tensor, Tensor, Callable[[Tensor], Tensor]]:
    """z = (x, y_s(x)), P = (I, Jac y_s) and h = g + s f, at one x (dx,)."""
    f, g = of_one_point(instance, "value_f"), of_one_point(instance, "value_g")

    def h(z: Tensor) -> Tensor:
        return g(z) + weight * f(z)

    dx = instance.dx
    z = torch.cat([x, Penalty(instance, 1.0).solve(x.unsqueeze(0), weight)[0]])
    H = hessian(h, z)
    return z, torch.cat([torch.eye(dx), -torch.linalg.solve(H[dx:, dx:], H[dx:, :dx])]), h


def third(function: Callable[[Tensor], Tensor], z: Tensor) -> Tensor:
    return jacobian(lambda at: hessian(function, at, create_graph=True), z)


@pytest.mark.parametrize("name", ["waves 0", "waves 1", "logcosh", "saddle"])
@pytest.mark.quick_cases(2)
def test_steps_of_the_proof(name: str) -> None:
    """The formula for the third derivative, and each bound that enters D5, at random points and weak and strong lam."""
    instance = FAMILY[name]()
    c = instance.constants
    k = c.L_g / c.mu
    for seed, lam in enumerate([2 * c.L_f / c.mu, 20 * c.L_f / c.mu]):
        x = torch.randn(instance.dx, generator=torch.Generator().manual_seed(seed))
        z0, P0, g = graph(instance, x, 0)
        zs, Ps, h = graph(instance, x, 1 / lam)

        def on(T: Tensor, P: Tensor) -> Tensor:
            return torch.einsum("abc,ai,bj,ck->ijk", T, P, P, P)

        formula = lam * (on(third(h, zs), Ps) - on(third(g, z0), P0))
        e, step = torch.eye(instance.dx), 1e-2
        hess = Penalty(instance, lam).hessian
        by_differences = [
            (8 * (hess((x + step * v)[None]) - hess((x - step * v)[None]))
             - (hess((x + 2 * step * v)[None]) - hess((x - 2 * step * v)[None]))) / (12 * step)
            for v in e
        ]  # fmt: skip
        torch.testing.assert_close(torch.cat(by_differences).movedim(0, -1), formula, rtol=0, atol=1e-4 * c.rho_f)

        norm = torch.linalg.matrix_norm
        assert norm(P0, 2) <= k * (1 + 1e-12)
        assert norm(Ps, 2) <= 1 + 2 * k
        assert (zs - z0).norm() <= c.C_f / (lam * c.mu) * (1 + 1e-12)
        closer = 2 * c.L_g / c.mu**2 * (c.L_f + c.C_f * c.rho_g / c.mu)
        assert norm(Ps - P0, 2) <= closer / lam
        assert closer <= c.D2


def test_first_term_of_D5_is_nearly_attained() -> None:
    """g with the Hessian [[-m, b], [b, m]], f a wide wave with f_yy = -L_f and a tiny one with the third derivative."""
    mu, b, L_f, wide, short, tiny = 0.1, 2.0, 1.0, 1e-4, 300.0, 1e-8
    direction = np.array([1.0, -2 * b / mu]) / math.hypot(1, 2 * b / mu)
    a, l_x, l_y = tiny, *(short * direction)
    c = Constants(
        {
            "mu": mu,
            "L_g": math.hypot(mu, b),
            "L_f": L_f + a * short**2,
            "rho_f": L_f * wide + a * short**3,
            "rho_g": 0.0,
            "nu_g": 0.0,
            "C_f": L_f / wide + a * short,
        }
    )
    lam = 2 * c.L_f / mu

    def hess(x: float) -> float:
        """f = (L_f/w²) cos(wy) + a sin(l_x x + l_y y); m'' = h_xx - h_xy²/h_yy for h = g + f/lam, minus that of g."""
        y = 0.0
        for _ in range(100):
            phase = l_x * x + l_y * y
            force = b * x + mu * y + (-L_f / wide * math.sin(wide * y) + a * l_y * math.cos(phase)) / lam
            y -= force / (mu - (L_f * math.cos(wide * y) + a * l_y**2 * math.sin(phase)) / lam)
        phase = l_x * x + l_y * y
        bump = -a * math.sin(phase)
        h_xx, h_xy = -mu + bump * l_x**2 / lam, b + bump * l_x * l_y / lam
        h_yy = mu + (-L_f * math.cos(wide * y) + bump * l_y**2) / lam
        return lam * (h_xx - h_xy**2 / h_yy - (-mu - b**2 / mu))

    delta = 1e-6
    ratio = abs(hess(delta) - hess(-delta)) / (2 * delta) / c.D5
    print(f"\nratio / D5: {ratio:.3f}")
    assert 0.85 <= ratio <= 1


@pytest.mark.parametrize("seed", range(5))
def test_order_is_ell_kappa_to_the_fifth(seed: int) -> None:
    def at(kappa: float) -> float:
        share = np.random.default_rng(seed).uniform(0.2, 1, 6)
        share[0] = 1  # ell is L_g
        names = ("L_g", "L_f", "rho_f", "rho_g", "nu_g", "C_f")
        return Constants({"mu": 3 / kappa, **dict(zip(names, 3 * share, strict=True))}).D5

    slopes = [math.log10(at(10.0 ** (p + 1)) / at(10.0**p)) for p in range(6)]
    assert all(abs(later - 5) <= abs(earlier - 5) + 1e-9 for earlier, later in itertools.pairwise(slopes))
    assert slopes[-1] == pytest.approx(5, abs=1e-3)
    assert all(at(10.0**p) <= 158 * 3 * 10.0 ** (5 * p) for p in range(7))


def test_D5_is_below_the_printed_one() -> None:
    """Chen, Ma, Zhang 2025, with their D2 and D4; L_g >= mu always."""
    rng = np.random.default_rng(0)
    for _ in range(2000):
        mu, L_f, rho_f, rho_g, nu_g, C_f = 10 ** rng.uniform(-3, 3, 6)
        L_g = mu * 10 ** rng.uniform(0, 4)
        k = L_g / mu
        D2 = (1 / mu + 2 * L_g / mu**2) * (L_f + C_f * rho_g / mu)
        D4 = (
            2 * rho_g / mu**2 * (1 + k) ** 2 * (L_f + C_f * rho_g / mu)
            + 14 * L_g * rho_g * D2 / mu**2
            + 50 * L_g**2 / mu**3 * (C_f * nu_g / mu + rho_f)
        )
        printed = (
            (1 + 4 * k) ** 2 * (3 * rho_f + 2 * L_f * rho_g / mu)
            + (1 + k) ** 2 * C_f * nu_g / mu
            + (2 + 5 * k) * D2 * rho_g
            + (1 + k) ** 2 * C_f * rho_g**2 / mu**2
            + L_g * D4
        )
        given = {"mu": mu, "L_f": L_f, "L_g": L_g, "rho_f": rho_f, "rho_g": rho_g, "nu_g": nu_g, "C_f": C_f}
        assert Constants(given).rho_phi <= Constants(given).D5 <= printed


def test_values_worked_out_by_hand() -> None:
    c = Constants(GIVEN)
    assert pytest.approx(13.0**3 * 0.7 + 283.0 * 0.7 * 38.0 * 4.1, rel=1e-14) == c.D5
    assert c.rho_phi == pytest.approx(216.0 * (0.7 + 3 * 4.1 * 1.4), rel=1e-14)
    assert c.rho_star == c.D5


def test_declared_values_win() -> None:
    assert Constants({**GIVEN, "rho_star": 0.25}).rho_star == 0.25
    assert Constants({**GIVEN, "D5": 0.25}).rho_star == 0.25
    assert Constants({**GIVEN, "rho_phi": 0.25}).rho_phi == 0.25
    assert pytest.approx(13.0**3 * 0.7) == Constants({**GIVEN, "D2": 0.0}).D5


@pytest.mark.parametrize("name", GIVEN)
@pytest.mark.parametrize("formula", ["D5", "rho_star", "rho_phi"])
def test_formula_names_the_constant_that_it_lacks(name: str, formula: str) -> None:
    lacking = Constants({key: value for key, value in GIVEN.items() if key != name}, "toy")
    with pytest.raises(MissingConstant, match=f"problem 'toy' declares no constant '{name}'"):
        _ = lacking[formula]


@family
def test_formula_for_phi_bounds_the_declared_constant_and_the_hessian(name: str) -> None:
    instance = FAMILY[name]()
    given = instance.constants.given
    formula = Constants({key: value for key, value in given.items() if key != "rho_phi"}).rho_phi
    if "rho_phi" in given:
        assert given["rho_phi"].most <= formula
    near_phi = Penalty(instance, 1e4 * 2 * instance.constants.L_f / instance.constants.mu)
    hess = instance.reference.hess_phi if instance.reference else near_phi.hessian
    assert 0 < steepness(hess, *pairs(instance, seed=1)) <= formula


def test_hessian_of_the_penalty_form_tends_to_that_of_phi() -> None:
    """Like 1/lam; so the limit of the argument for D5 is one for phi."""
    problem = LogCosh(dim_x=3, dim_y=4)
    instance, data = problem.build(), problem._draw()
    x, _ = pairs(instance, n=5)
    exact = data.hess_phi(x)
    gaps = [float((Penalty(instance, lam).hessian(x) - exact).abs().max()) for lam in (1e3, 1e4, 1e5)]
    assert gaps[0] < 0.2
    assert all(earlier / later == pytest.approx(10, rel=0.05) for earlier, later in itertools.pairwise(gaps))
