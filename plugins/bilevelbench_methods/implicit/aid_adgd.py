"""AID-AdGD: approximate implicit differentiation with an x-step that follows the curvature of phi as it is met.

    y, v, d as in AID, at x_k
    eta_k <- min(sqrt(1 + theta) eta_{k-1},  |x_k - x_{k-1}| / (2 |d_k - d_{k-1}|));   theta <- eta_k/eta_{k-1}
    x_{k+1} <- x_k - eta_k d_k

from eta_0 = eta_x and theta = 0. The step is that of Malitsky, Mishchenko, "Adaptive gradient descent without descent", ICML
2020, for a convex function with exact gradients; with the estimates d no rate is claimed. It costs no call. Where the lower
level lags behind, d changes by more than x explains, so x slows down until y has caught up; an x that goes back and forth
between two sides of a valley does the same.

Our choices: theta = 0 at the start, so that no step is more than 1.62 times the one before, where the paper's second step may
have any length; where x has not moved the step stays.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bilevelbench import Oracle, norm
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
    claims = ()

    def init(self, x0: Tensor, y0: Tensor, oracle: Oracle) -> State:
        eta = self.eta_x * torch.ones_like(x0[..., :1])
        zero = torch.zeros_like(x0)
        return State(
            x=x0, y=y0, v=torch.zeros_like(y0), k=0, last_x=x0, last_d=zero, eta=eta, theta=torch.zeros_like(eta)
        )

    def step(self, s: aid.State, oracle: Oracle) -> State:
        assert isinstance(s, State)
        y, v, d = self.hypergradient(s, oracle)
        moved, changed = norm(s.x - s.last_x), norm(d - s.last_d)
        longest = torch.minimum((1 + s.theta).sqrt() * s.eta, moved / (2 * changed))
        eta = torch.where(moved > 0, longest, s.eta)
        return State(
            x=s.x - eta * d, y=y, v=v, k=s.k + 1, last_x=s.x, last_d=d, eta=eta, theta=eta / s.eta,
        )  # fmt: skip

    def extras(self, s: State) -> dict[str, Tensor]:
        return {"eta": s.eta}

    def x_step(self) -> float | None:
        return None  # it is not constant
