"""The methods converge as their theory says."""

from __future__ import annotations

import pytest
import torch
from helpers import packed, trial

from bilevelbench.discovery.entry import make
from bilevelbench.discovery.registry import registry
from bilevelbench.model.torch_state import default_dtype

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
