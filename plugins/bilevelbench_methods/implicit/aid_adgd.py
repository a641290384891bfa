"""AID-AdGD: approximate implicit differentiation with an x-step that follows the curvature of phi as it is met.

    y <- y - u,  u from D products of conjugate gradients on H(x, y) u = g_y(x, y)             at x = x_k
    v and d as in AID
    eta_k <- min(sqrt(1 + theta) eta_{k-1},  |x_k - x_{k-1}| / (2 |d_k - d_{k-1}|));   theta <- eta_k/eta_{k-1}
    x_{k+1} <- x_k - eta_k d_k

from eta_0 = eta_x and theta = 1. The step is that of Malitsky, Mishchenko, "Adaptive gradient descent without descent", ICML
2020, for a convex function with exact gradients; with the estimates d no rate is claimed. It costs no call. An x that goes back
and forth between two sides of a valley sees a d that changes by much, and slows down.

Our choices: a truncated Newton step (`newton_step`) for y, since x-steps that grow leave behind a y that follows by gradient
descent (`lower = gd`: D steps of it, as in AID); theta = 1 at the start, so that no step is more than 1.62 times the one
before, where the paper's second step may have any length; where |d| has not doubled, no step is less than half of the one
before, since d also changes as y and v become more accurate, which would say of a short step that it was too long, and so on;
where x has not moved the step stays.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from bilevelbench import Oracle, newton_step, norm
from bilevelbench_methods.implicit import aid


@dataclass(frozen=True)
class State(aid.State):
    """`last_x` and `last_d` are those of the step before."""

    last_x: Tensor
    last_d: Tensor
    eta: Tensor
    theta: Tensor


class AIDAdGD(aid.AID):
    name = "aid_adgd"
    title = "AID-AdGD"
    paper = "https://arxiv.org/abs/1910.09529"
    claims = ()
    tuned = {"eta_x": "upper_step"}

    lower: Literal["newton", "gd"] = "newton"
    """a Newton step with D products, or D gradient steps"""

    def init(self, x0: Tensor, y0: Tensor, oracle: Oracle) -> State:
        eta = self.eta_x * torch.ones_like(x0[..., :1])
        zero = torch.zeros_like(x0)
        return State(
            x=x0, y=y0, v=torch.zeros_like(y0), k=0, last_x=x0, last_d=zero, eta=eta, theta=torch.ones_like(eta)
        )

    def step(self, s: aid.State, oracle: Oracle) -> State:
        assert isinstance(s, State)
        y, v, d = self.hypergradient(s, oracle)
        moved, changed = norm(s.x - s.last_x), norm(d - s.last_d)
        longest = torch.minimum((1 + s.theta).sqrt() * s.eta, moved / (2 * changed))
        shortest = torch.where(norm(d) <= 2 * norm(s.last_d), s.eta / 2, torch.zeros_like(s.eta))
        eta = torch.where(moved > 0, torch.maximum(longest, shortest), s.eta)
        return State(
            x=s.x - eta * d, y=y, v=v, k=s.k + 1, last_x=s.x, last_d=d, eta=eta, theta=eta / s.eta,
        )  # fmt: skip

    def lower_level(self, s: aid.State, oracle: Oracle) -> Tensor:
        if self.lower == "gd":
            return super().lower_level(s, oracle)
        x, y = s.x, s.y

        def gradient(y: Tensor) -> Tensor:
            return oracle.grad_g_y(x, y)

        return newton_step(oracle, gradient, lambda u: oracle.hvp_g_yy(x, y, u), y, gradient(y), self.D, self.a)[0]

    def extras(self, s: State) -> dict[str, Tensor]:
        return {"eta": s.eta}

    def x_step(self) -> float | None:
        return None  # it is not constant
