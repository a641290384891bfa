"""F2SA-p: the hypergradient as a finite difference of order p in the weight of f in the lower level.

    all nodes j, K times:  y_j <- y_j - a (j nu f_y(x, y_j; s1) + g_y(x, y_j; s2))          y_j follows argmin g + j nu f
    d <- sum_j w_j (j f_x(x, y_j; s3) + g_x(x, y_j; s4)/nu)                                 nu = 1/lam
    x <- x - eta_x d,   or x - eta_x d/|d| with `normalise`

w_j are the weights of the difference for a first derivative at 0, exact for polynomials of degree p:

    p   nodes                    weights                                          p = 1 is the penalty gradient of F2BSA
    1   0, 1                     -1, 1
    2   -1, 1                    -1/2, 1/2
    3   -1, 0, 1, 2              -1/3, -1/2, 1, -1/6
    4   -2, -1, 1, 2             1/12, -2/3, 2/3, -1/12
    5   -2, -1, 0, 1, 2, 3       1/20, -1/2, -1/3, 1, -1/4, 1/30
    6   -3, -2, -1, 1, 2, 3      -1/60, 3/20, -3/4, 3/4, -3/20, 1/60

so that |d - grad phi| = O(nu^p) where f and g are smooth enough in y. s1 and s2 are fresh for every node and step, s3 and s4
one batch each for all nodes. Nodes below 0 need lam > |j| L_f/mu: else g + j nu f may not be convex. Chen, Li, Chayti, Zhang,
"Faster gradient methods for highly-smooth stochastic bilevel optimization", ICLR 2026. Its x-steps are normalised.

Our choices: x-steps are not normalised by default; all y_j are warm-started, where the authors' program first takes the mean of
those of one sign; the reported y is y_0, or without one the mean of y_-1 and y_1; lam and the batches. In `from_rate` large
batches, as those of F2BSA, take the place of the theorem's long lower loops of single samples with small steps, and a constant
x-step that of the normalised one of length ~ eps: the powers of eps are the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, ClassVar, Self

import torch
from pydantic import Field, PositiveFloat, PositiveInt
from torch import Tensor

from bilevelbench import Algorithm, Claim, Constants, Oracle, PerLane, keep, norm, over_points
from bilevelbench_methods.penalty.f2bsa import batch_out, whole
from bilevelbench_methods.penalty.pair import USES, descent, fresh_f, fresh_g


def differences(p: int) -> dict[int, float]:
    """Weight by node, 0 first where it is one: the slopes at 0 of Lagrange's polynomials for the nodes."""
    others = [j for j in range(-(p // 2), p // 2 + p % 2 + 1) if j]
    weights = {j: math.prod(m / (m - j) for m in others if m != j) / j for j in others}
    return {0: -math.fsum(weights.values()), **weights} if p % 2 else weights


def _column(numbers: Iterable[float], like: Tensor) -> Tensor:
    return torch.tensor(list(numbers), dtype=like.dtype, device=like.device).reshape(-1, 1, 1)


@dataclass(frozen=True)
class State:
    x: Tensor
    y: Tensor
    nodes: Tensor


class F2SAp(Algorithm):
    name = "f2sa_p"
    title = "F²SA-p"
    paper = "https://arxiv.org/abs/2509.02937"
    family = "penalty"
    uses = USES
    tuned = {"eta_x": "upper_step", "a": "lower_step", "lam": "penalty", "B_in": "batch", "B_out": "batch"}
    reports = "random"
    claims: ClassVar[tuple[Claim, ...]] = (
        Claim(
            setting="full", oracle="gradient", eps_exp=5, tilde=True, kappa_exp=10, source="other paper",
            kappa_source="other paper", reference="Chen, Li, Chayti, Zhang 2026",
            footnote="for p = 2, the default, and derivatives of order 2 that are smooth in y; in general "
            "p kappa^(9 + 2/p) eps^(-4 - 2/p) for smoothness of order p",
        ),
    )  # fmt: skip

    p: Annotated[int, Field(ge=1, le=6)] = 2
    """order of the difference"""
    lam: PositiveFloat = 100.0
    """penalty, 1/nu"""
    K: PerLane[PositiveInt] = 10
    """lower-level steps of every node"""
    B_in: PerLane[PositiveInt] | None = 64
    """mini-batch of the lower level, for each node its own; none: gradients are exact"""
    B_out: PerLane[PositiveInt] | None = 64
    """mini-batch of the x-gradient, one for all nodes; none: gradients are exact"""
    normalise: bool = False
    """x-steps of length eta_x"""
    eta_x: PositiveFloat | None = None
    """x-step; default 1/(2 L_phi)"""
    a: PositiveFloat | None = None
    """effective lower-level step; default 1/(2 L_g)"""

    def resolve(self, constants: Constants) -> Self:
        return self.fill(constants, eta_x=lambda c: 1 / (2 * c.L_phi), a=lambda c: 1 / (2 * c.L_gy))

    def init(self, x0: Tensor, y0: Tensor, oracle: Oracle) -> State:
        return State(x=x0, y=y0, nodes=y0.expand(len(differences(self.p)), *y0.shape))

    def step(self, s: State, oracle: Oracle) -> State:
        x, Y, weights = s.x, s.nodes, differences(self.p)
        zero = self.p % 2  # how many nodes do not ask for f: node 0 comes first
        w, j, count = _column(weights.values(), x), _column(weights, x), len(weights)
        for on in oracle.repeat(self.K):
            s1, s2 = fresh_f(oracle, self.B_in, count - zero), fresh_g(oracle, self.B_in, count)
            g_y, f_y = oracle.grad_g_y(x, Y, s2), oracle.grad_f_y(x, Y[zero:], s1)
            force = torch.cat([g_y[:zero], g_y[zero:] + j[zero:] / self.lam * f_y])
            Y = keep(on, Y - self.a * force, Y)
        f_x = oracle.grad_f_x(x, Y[zero:], fresh_f(oracle, self.B_out))
        g_x = oracle.grad_g_x(x, Y, fresh_g(oracle, self.B_out))
        d = over_points(w[zero:] * j[zero:] * f_x) + self.lam * over_points(w * g_x)
        if self.normalise:
            d = keep(norm(d) > 0, d / norm(d), d)
        y = Y[0] if zero else (Y[count // 2 - 1] + Y[count // 2]) / 2
        return State(x=x - self.eta_x * d, y=y, nodes=Y)

    def calls(self, step: int) -> dict[str, int]:
        of_g, of_f = self.p + self.p % 2, self.p
        return {"grad_f_x": of_f, "grad_f_y": of_f * self.K, "grad_g_x": of_g, "grad_g_y": of_g * self.K}

    def x_step(self) -> float | None:
        return None if self.normalise else self.eta_x

    @classmethod
    def from_rate(cls, constants: Constants, eps: float, scale: float = 1.0, p: int = 2) -> Self:
        """nu ~ eps^(1/p), K ~ kappa log(lam/eps), batches ~ (sigma_f^2 + lam^2 sigma_g^2)/eps^2, a constant x-step."""
        c, ratio = constants, constants.L_gy / constants.mu
        lam = scale * max(2.0, (p + 1) * c.L_f / c.mu) * eps ** (-1 / p)
        K = max(1, math.ceil(descent(math.log(lam / eps) / 2, ratio)))
        B_in, B_out = (whole(cls.name, n * batch_out(c, eps, lam), c, eps, lam) for n in (4, 1))
        return cls(p=p, lam=lam, K=K, B_in=B_in, B_out=B_out, eta_x=0.4 / c.L_phi).resolve(c)
