"""The methods do what their pseudo-code says, and converge as their theory says.

The reference implementations are plain numpy for one lane, written from the pseudo-code and not from the plugins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from helpers import iterates, packed, trial

from bilevelbench import Instance
from bilevelbench.discovery.entry import make
from bilevelbench.discovery.registry import registry
from bilevelbench.model.torch_state import default_dtype
from bilevelbench.plan.spec_text import parse_spec

Vector = np.ndarray
Point = tuple[Vector, Vector]
STEPS = 20


@dataclass(frozen=True)
class Functions:
    """Derivatives by hand, and the same problem for torch."""

    f_x: Callable[[Vector, Vector], Vector]
    f_y: Callable[[Vector, Vector], Vector]
    g_x: Callable[[Vector, Vector], Vector]
    g_y: Callable[[Vector, Vector], Vector]
    H: Callable[[Vector, Vector], np.ndarray]
    J: Callable[[Vector, Vector], np.ndarray]
    instance: Instance

    @property
    def start(self) -> Point:
        return self.instance.x0.numpy().reshape(-1), self.instance.y0.numpy().reshape(-1)


def quadratic() -> Functions:
    """The plugin's; its matrices are read off its derivatives."""
    with default_dtype(torch.float64):
        instance = make(registry().problem("quadratic"), {"dim_x": 4, "dim_y": 6}).build()
    x0, y0 = torch.zeros(1, 4, dtype=torch.float64), torch.zeros(1, 6, dtype=torch.float64)
    A = np.stack([instance.grad_g_y(x0, e[None])[0].numpy() for e in torch.eye(6, dtype=torch.float64)])
    B = -np.stack([instance.grad_g_y(e[None], y0)[0].numpy() for e in torch.eye(4, dtype=torch.float64)])
    c = -instance.grad_f_y(x0, y0)[0].numpy()
    instance.passes[:] = [0] * len(instance.passes)
    return Functions(
        f_x=lambda x, y: x,
        f_y=lambda x, y: y - c,
        g_x=lambda x, y: -B @ y,
        g_y=lambda x, y: A @ y - B.T @ x,
        H=lambda x, y: A,
        J=lambda x, y: -B,
        instance=instance,
    )


def bent() -> Functions:
    """g = 1/2 yᵀA y - xᵀB y + (1/2 + 1/4 sin x_1) Σ log cosh y_i;  f = Σ √(1+(y_i-c_i)²) + xᵀC y + Σ log(1+x_i²).

    f and g only: all derivatives by autograd.
    """
    rng = np.random.default_rng(0)
    dx, dy = 3, 5
    R = rng.standard_normal((dy, dy))
    A = R @ R.T / dy + np.eye(dy)
    B, C = rng.standard_normal((dx, dy)) / 2, rng.standard_normal((dx, dy)) / 4
    c, x0, y0 = rng.standard_normal(dy), rng.standard_normal(dx), rng.standard_normal(dy)
    At, Bt, Ct, ct = map(torch.from_numpy, (A, B, C, c))

    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        smooth = (1 + (y - ct) ** 2).sqrt().sum(-1, keepdim=True) + (1 + x**2).log().sum(-1, keepdim=True)
        return smooth + ((x @ Ct) * y).sum(-1, keepdim=True)

    def g(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        bend = y.cosh().log().sum(-1, keepdim=True)
        return 0.5 * ((y @ At) * y).sum(-1, keepdim=True) - ((x @ Bt) * y).sum(-1, keepdim=True) + weight(x) * bend

    def weight(x: torch.Tensor) -> torch.Tensor:
        return 0.5 + 0.25 * x[..., :1].sin()

    def w(x: Vector) -> float:
        return 0.5 + 0.25 * np.sin(x[0])

    e = np.eye(dx)[0]
    return Functions(
        f_x=lambda x, y: C @ y + 2 * x / (1 + x**2),
        f_y=lambda x, y: (y - c) / np.sqrt(1 + (y - c) ** 2) + C.T @ x,
        g_x=lambda x, y: -B @ y + 0.25 * np.cos(x[0]) * np.log(np.cosh(y)).sum() * e,
        g_y=lambda x, y: A @ y - B.T @ x + w(x) * np.tanh(y),
        H=lambda x, y: A + w(x) * np.diag(1 - np.tanh(y) ** 2),
        J=lambda x, y: -B + 0.25 * np.cos(x[0]) * np.outer(e, np.tanh(y)),
        instance=Instance(f=f, g=g, x0=torch.from_numpy(x0), y0=torch.from_numpy(y0)),
    )


PROBLEMS = {"quadratic": quadratic, "bent": bent}


# ---- the methods in numpy: (x, y) at the start and after each step


def f2ba(p: Functions, lam: float, K: int, a: float, eta_x: float) -> Iterator[Point]:
    x, y = p.start
    z = y
    while True:
        yield x, y
        for _ in range(K):
            z = z - a * p.g_y(x, z)
            y = y - a * (p.f_y(x, y) / lam + p.g_y(x, y))
        x = x - eta_x * (p.f_x(x, y) + lam * (p.g_x(x, y) - p.g_x(x, z)))


def f2sa(p: Functions, lam: float, K: int, a: float) -> Iterator[Point]:
    """F2BA on a single time scale: the x-step is the step of y in the paper's form, a/lam."""
    return f2ba(p, lam, K, a, eta_x=a / lam)


def aid(p: Functions, D: int, N: int, a: float, eta_x: float, solver: str) -> Iterator[Point]:
    x, y = p.start
    v = np.zeros_like(y)
    while True:
        yield x, y
        for _ in range(D):
            y = y - a * p.g_y(x, y)
        b, A = p.f_y(x, y), p.H(x, y)
        if solver == "cg":
            v = cg(A, b, v, N)
        else:
            for _ in range(N):
                v = v - a * (A @ v - b)
        x = x - eta_x * (p.f_x(x, y) - p.J(x, y) @ v)


def cg(A: np.ndarray, b: Vector, v: Vector, n: int) -> Vector:
    r = b - A @ v
    q, s = r, r @ r
    for _ in range(n):
        if s == 0:
            break
        w = A @ q
        c = s / (q @ w)
        v, r = v + c * q, r - c * w
        s_new = r @ r
        q, s = r + (s_new / s) * q, s_new
    return v


def itd(p: Functions, D: int, a: float, eta_x: float) -> Iterator[Point]:
    x, y = p.start
    while True:
        yield x, y
        Y = [y]
        for t in range(D):
            Y.append(Y[t] - a * p.g_y(x, Y[t]))
        q, d = p.f_y(x, Y[D]), p.f_x(x, Y[D])
        for t in range(D - 1, -1, -1):
            d = d - a * p.J(x, Y[t]) @ q
            if t > 0:
                q = q - a * p.H(x, Y[t]) @ q
        x, y = x - eta_x * d, Y[D]


def assert_iterates_agree(text: str, problem: Functions, expected: Iterator[Point]) -> None:
    (spec,) = parse_spec(text)
    got = iterates(make(registry().algorithm(spec.name), spec.params), problem.instance, STEPS)
    travelled = np.linalg.norm(got[-1][0] - got[0][0])
    assert travelled > 1e-2
    for (x, y), (x_expected, y_expected) in zip(got, expected, strict=False):
        np.testing.assert_allclose(x, x_expected, rtol=0, atol=1e-10)
        np.testing.assert_allclose(y, y_expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("problem", PROBLEMS)
def test_f2ba_makes_the_iterates_of_its_pseudo_code(problem):
    p = PROBLEMS[problem]()
    expected = f2ba(p, lam=50.0, K=4, a=0.2, eta_x=0.05)
    assert_iterates_agree("f2ba[lam=50,K=4,a_y=0.2,a_z=0.2,eta_x=0.05]", p, expected)


@pytest.mark.parametrize("problem", PROBLEMS)
def test_f2sa_makes_the_iterates_of_its_pseudo_code(problem):
    p = PROBLEMS[problem]()
    assert_iterates_agree("f2sa[lam=7,T_in=3,a_y=0.2,a_z=0.2]", p, f2sa(p, lam=7.0, K=3, a=0.2))


@pytest.mark.parametrize("solver", ["cg", "richardson"])
@pytest.mark.parametrize("problem", PROBLEMS)
def test_aid_makes_the_iterates_of_its_pseudo_code(problem, solver):
    p = PROBLEMS[problem]()
    expected = aid(p, D=3, N=2, a=0.2, eta_x=0.05, solver=solver)
    assert_iterates_agree(f"aid[solver={solver},D=3,N=2,a=0.2,eta_x=0.05]", p, expected)


@pytest.mark.parametrize("D", [1, 4])
@pytest.mark.parametrize("problem", PROBLEMS)
def test_itd_makes_the_iterates_of_its_pseudo_code(problem, D):
    p = PROBLEMS[problem]()
    assert_iterates_agree(f"itd[D={D},a=0.2,eta_x=0.05]", p, itd(p, D=D, a=0.2, eta_x=0.05))


# ---- where they end

CONVERGING = "quadratic[dim_x=5,dim_y=8,kappa=2]"


def test_f2ba_reaches_the_bias_floor_of_order_1_over_lam():
    lams = [1e2, 1e3, 1e4]
    runs = packed([trial(f"f2ba[lam={lam},K=20]", CONVERGING, steps=400) for lam in lams]).runs
    scaled = runs.grad_phi.to_numpy() * lams
    assert scaled.max() <= 1.1 * scaled.min()


def test_the_bias_floor_of_f2ba_is_where_its_theory_puts_it():
    """The quadratic problem's penalty form is quadratic too, so its stationary point is a linear solve."""
    lam = 1e3
    run = packed([trial(f"f2ba[lam={lam},K=20]", CONVERGING, steps=400)]).runs.iloc[0]
    with default_dtype(torch.float64):
        instance = make(registry().problem("quadratic"), {"dim_x": 5, "dim_y": 8, "kappa": 2}).build()
    eye = torch.eye(5, dtype=torch.float64)
    A = instance.hvp_g_yy(instance.x0, instance.y0, torch.eye(8, dtype=torch.float64))
    B = -instance.jvp_g_xy(instance.x0, instance.y0, torch.eye(8, dtype=torch.float64)).T
    zero = torch.zeros(1, 8, dtype=torch.float64)
    c = -instance.grad_f_y(instance.x0, zero)
    P = torch.linalg.inv(lam * A + torch.eye(8, dtype=torch.float64))

    def penalty_gradient(x: torch.Tensor) -> torch.Tensor:
        """x + lam (g_x(y_lam*) - g_x(y*)) with y_lam* = (lam A + I)⁻¹ (lam Bᵀx + c), y* = A⁻¹Bᵀx."""
        y_lam, y = (lam * x @ B + c) @ P, x @ B @ torch.linalg.inv(A)
        return x - lam * (y_lam - y) @ B.T

    offset = penalty_gradient(torch.zeros(1, 5, dtype=torch.float64))
    x = -offset @ torch.linalg.inv(penalty_gradient(eye) - offset)
    floor = float(instance.reference.grad_phi(x).norm())
    assert run.grad_phi == pytest.approx(floor, rel=1e-3)


@pytest.mark.parametrize("solver", ["cg", "richardson"])
def test_aid_reaches_1e_10(solver):
    (run,) = packed([trial(f"aid[solver={solver}]", CONVERGING, steps=400, targets=(1e-10,))]).runs.itertuples()
    assert run.status == "target"
    assert run.grad_phi <= 1e-10


def test_itd_stops_at_its_own_bias_which_falls_with_D():
    some = [trial(f"itd[D={D},a=0.5]", CONVERGING, steps=400) for D in (2, 12)]
    few, many = (packed([t]).runs.last_grad_phi[0] for t in some)
    assert 1e-6 < many < few / 10
