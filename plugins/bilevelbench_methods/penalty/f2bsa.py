"""F2BSA: F2BA with mini-batches that are large enough to follow it.

    K_t times:  z <- z - a_z g_y(x, z; B_in)                                  fresh batches everywhere
                y <- y - a_y (f_y(x, y; B_in)/lam + g_y(x, y; B_in))
    d <- f_x(x, y; B_out) + lam (g_x(x, y; B_out) - g_x(x, z; B_out))         the new y and z
    x <- x - eta_x d

Chen, Ma, Zhang, "Near-Optimal Nonconvex-Strongly-Convex Bilevel Optimization with Fully First-Order Oracles", JMLR 2025,
Algorithm 2, in the scale-free form a = lam eta. The answer is a uniformly random x_t.

K_t is K, or, where `accuracy` = eps is given, what brings the lower level to it: with delta a bound on
|y - y_lam*|^2 + |z - y*|^2 at the start of the step,

    K_t   = ceil((4 L_g/mu) log max(16 L_g/mu, 10 (4 L_g/mu) (L_f^2 + lam^2 L_g^2) delta/eps^2))
    delta <- delta/2 + (34 L_g^2/mu^2) |x_new - x|^2 + [8 (sigma_f^2/lam^2 + sigma_g^2) + 2 sigma_g^2]/(mu^2 B_in)

from delta = 3 R + 2 C_f^2/(lam mu)^2; R = |y0 - y*(x0)|^2 is not known to a method, so `init` pays one batch for its bound
|g_y(x0, y0)|^2/mu^2. As printed the noise term is sigma_g^2/(2 L_g B_in), which has the wrong unit and no sigma_f.

Our choices: the factor 10; L_g of y alone in the condition number L_g/mu of the lower level; whether the two g_x share a
batch, which the paper does not say. The theorem's variance is that of independent ones; `coupled_batches` takes the same
for both, and where sample gradients are Lipschitz lam no longer multiplies the noise. It still multiplies the difference of
the noise in y and in z; with `coupled_lower` they take their steps by the same mini-batches, and that falls out too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar, Self

import torch
from pydantic import Field, PositiveFloat, PositiveInt
from torch import Tensor

from bilevelbench import Algorithm, Claim, Constants, InvalidInput, MissingConstant, Oracle, PerLane, dot
from bilevelbench_methods.penalty.f2ba import F2BA
from bilevelbench_methods.penalty.pair import USES, pen_pair, penalty_gradient

_MOST = 2**53  # the largest count that a float holds exactly

_NEEDED = frozenset({"mu", "L_f", "L_g", "L_gy", "C_f", "sigma_f", "sigma_g"})  # where an accuracy is given

BatchSize = Annotated[int, Field(gt=0, le=_MOST)]


@dataclass(frozen=True)
class State:
    x: Tensor
    y: Tensor
    z: Tensor
    delta: Tensor | None = None
    K: Tensor | None = None


class F2BSA(Algorithm):
    name = "f2bsa"
    title = "F²BSA"
    paper = "https://arxiv.org/abs/2306.14853"
    family = "penalty"
    uses = USES | _NEEDED
    tuned = {
        "eta_x": "upper_step", "a_y": "lower_step", "a_z": "lower_step", "lam": "penalty", "B_in": "batch", "B_out": "batch"
    }  # fmt: skip
    reports = "random"
    claims: ClassVar[tuple[Claim, ...]] = (
        Claim(
            table=2, setting="partial", oracle="gradient", eps_exp=4, tilde=True, log_power=1, kappa_exp=6,
            extra="ell", reference="Chen, Ma, Zhang 2025, theorem of Algorithm 2",
        ),
        Claim(
            table=2, setting="full", oracle="gradient", eps_exp=6, tilde=True, log_power=1, kappa_exp=12,
            extra="ell^3", reference="Chen, Ma, Zhang 2025, theorem of Algorithm 2",
        ),
    )  # fmt: skip

    lam: PositiveFloat = 1000.0
    """penalty"""
    K: PerLane[PositiveInt] = 10
    """lower-level steps; not used where `accuracy` is given"""
    accuracy: PositiveFloat | None = None
    """eps, from which each step takes its number of lower-level steps"""
    B_in: PerLane[BatchSize] = 64
    """mini-batch of the lower level"""
    B_out: PerLane[BatchSize] = 64
    """mini-batch of the x-gradient"""
    coupled_batches: bool = True
    """one mini-batch for both g_x of the x-gradient; the theorem's are independent"""
    coupled_lower: bool = False
    """one mini-batch for the g_y of y and of z; the theorem's are independent"""
    eta_x: PositiveFloat | None = None
    """x-step; default 1/(2 L_phi)"""
    a_y: PositiveFloat | None = None
    """effective step of y; default 1/(2 L_g)"""
    a_z: PositiveFloat | None = None
    """effective step of z; default 1/(2 L_g)"""

    def resolve(self, constants: Constants) -> Self:
        lacking = [name for name in sorted(_NEEDED) if constants.get(name) is None]
        if self.accuracy is not None and lacking:
            raise MissingConstant(lacking[0], constants.problem, f"{self.name}'s lower-level steps from an accuracy")
        return self.fill(
            constants,
            eta_x=lambda c: 1 / (2 * c.L_phi),
            a_y=lambda c: 1 / (2 * c.L_gy),
            a_z=lambda c: 1 / (2 * c.L_gy),
        )

    def init(self, x0: Tensor, y0: Tensor, oracle: Oracle) -> State:
        if self.accuracy is None:
            return State(x=x0, y=y0, z=y0)
        mu, C_f = oracle.constant("mu"), oracle.constant("C_f")
        g_y = oracle.mean(oracle.grad_g_y(x0, y0, oracle.sample_g(self.B_in)))
        R = dot(g_y, g_y) / mu**2
        return State(x=x0, y=y0, z=y0, delta=3 * R + 2 * (C_f / (self.lam * mu)) ** 2, K=torch.zeros_like(R))

    def step(self, s: State, oracle: Oracle) -> State:
        x = s.x
        K: int | Tensor = self.K if s.delta is None else self._lower_steps(s.delta, oracle)
        y, z, *_ = pen_pair(oracle, x, s.y, s.z, K, self.lam, self.a_y, self.a_z, self.B_in, self.coupled_lower)
        d = penalty_gradient(oracle, x, y, z, self.lam, self.B_out, self.coupled_batches)
        x_new = x - self.eta_x * d
        if s.delta is None:
            return State(x=x_new, y=y, z=z)
        return State(x=x_new, y=y, z=z, delta=self._next_delta(s.delta, x_new - x, oracle), K=torch.as_tensor(K))

    def _lower_steps(self, delta: Tensor, oracle: Oracle) -> Tensor:
        mu, L_f, L_g, L_gy = (oracle.constant(name) for name in ("mu", "L_f", "L_g", "L_gy"))
        ratio = torch.as_tensor(L_gy / mu, dtype=delta.dtype)
        needed = 10 * (4 * ratio) * (L_f**2 + (self.lam * L_g) ** 2) * delta / self.accuracy**2
        return (4 * ratio * torch.maximum(needed, 16 * ratio).log()).ceil()

    def _next_delta(self, delta: Tensor, moved: Tensor, oracle: Oracle) -> Tensor:
        mu, L_g, sigma_f, sigma_g = (oracle.constant(name) for name in ("mu", "L_g", "sigma_f", "sigma_g"))
        noise = (8 * ((sigma_f / self.lam) ** 2 + sigma_g**2) + 2 * sigma_g**2) / (mu**2 * self.B_in)
        return delta / 2 + 34 * (L_g / mu) ** 2 * dot(moved, moved) + noise

    def extras(self, s: State) -> dict[str, Tensor]:
        return {} if s.delta is None else {"lower_steps": s.K, "delta": s.delta}

    def calls(self, step: int) -> dict[str, int] | None:
        if self.accuracy is not None:
            return None
        return {"grad_f_x": 1, "grad_f_y": self.K, "grad_g_x": 2, "grad_g_y": 2 * self.K}

    def x_step(self) -> float | None:
        return self.eta_x

    @classmethod
    def from_theory(cls, constants: Constants, eps: float) -> Self:
        """lam, eta_x and the lower steps of F2BA, the theorem's batches with factor one, K_t from the recursion."""
        c, exact = constants, F2BA.from_theory(constants, eps)
        lam = exact.lam
        B_out = batch_out(c, eps, lam)
        B_in = (c.L_f / (lam * c.mu)) ** 2 * B_out + (c.L_g / c.mu) ** 2 * B_out
        return cls(
            lam=lam, accuracy=eps, B_in=whole(cls.name, B_in, c, eps, lam), B_out=whole(cls.name, B_out, c, eps, lam),
            coupled_batches=False, eta_x=exact.eta_x, a_y=exact.a_y, a_z=exact.a_z,
        )  # fmt: skip

    @classmethod
    def from_rate(cls, constants: Constants, eps: float, scale: float = 1.0) -> Self:
        """lam ~ 1/eps, K ~ kappa log lam, a constant x-step, batches ~ (sigma_f^2 + lam^2 sigma_g^2)/eps^2."""
        c, exact = constants, F2BA.from_rate(constants, eps, scale)
        B_out = whole(cls.name, batch_out(c, eps, exact.lam), c, eps, exact.lam)
        return cls(
            lam=exact.lam, K=exact.K, B_in=whole(cls.name, 4 * B_out, c, eps, exact.lam), B_out=B_out,
            coupled_batches=False, eta_x=exact.eta_x, a_y=exact.a_y, a_z=exact.a_z,
        )  # fmt: skip


def batch_out(c: Constants, eps: float, lam: float) -> float:
    """(sigma_f^2 + lam^2 sigma_g^2)/eps^2: the noise of the penalty gradient is then of order eps."""
    f, g = c.sigma_f / eps, lam * c.sigma_g / eps
    return f * f + g * g


def whole(name: str, size: float, c: Constants, eps: float, lam: float) -> int:
    """The size rounded up, if it can be counted."""
    if not size <= _MOST:
        raise InvalidInput(
            f"{name}: eps = {eps:g} asks for a batch of {size:.3g} (lam = {lam:.3g}, sigma_f = {c.sigma_f:g}, sigma_g = "
            f"{c.sigma_g:g}), more than can be counted, 2^53; choose a larger eps, or set B_in and B_out yourself"
        )
    return max(1, math.ceil(size))
