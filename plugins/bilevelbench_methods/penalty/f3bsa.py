"""F3BSA: F2BSA without large batches, by a multilevel Monte Carlo estimate of the hypergradient.

    G_k(B):  y <- SGD-SC on f(x, .) + lam g(x, .),  z <- SGD-SC on lam g(x, .)     N base epochs and k more, batch 1
             f_x(x, y; B) + lam (g_x(x, y; B) - g_x(x, z; B))                     fresh samples everywhere
    M times: J with P(J = j) = 2^-j, j = 1, 2, ...
             G <- G_0(1) + [J <= S] 2^J (G_J(2^J) - G_{J-1}(2^(J-1)))             levels above S are not computed
    x <- x - eta_x mean(G);   y, z <- those of G_0 of one of the M estimates

Both start at the y and z of the step before. Chen, Ma, Zhang, "Near-Optimal Nonconvex-Strongly-Convex Bilevel
Optimization with Fully First-Order Oracles", JMLR 2025, appendix, Algorithms 5 to 9, with slips corrected: J starts at
one, z is not set to y, lengths are rounded up, alpha and beta are those of the scaled functions. The answer is a
uniformly random x_t.

`nested`: the epochs of level j are the first ones of level J, so one run serves G_0, G_{J-1} and G_J; each has its law
and the mean is the same. Without it the three are independent runs. Expected samples of one step, k_y = beta_y/alpha_y
and k_z alike: f_y 4 M k_y E, g_y 4 M (k_y + k_z) E, f_x M (1 + 3S/2), g_x twice that; E = N + 2S - 2(1 - 2^-S), or,
independent, N + 2N(1 - 2^-S) + 3S - 4(1 - 2^-S).

With `accuracy` = eps each step takes N_t = S_t = ceil(log2(max(lam^2 ell^2 delta, kappa v)/eps^2)), at least 2, and
M_t = ceil(kappa N_t), where v = sigma_f^2 + lam^2 sigma_g^2 and delta bounds |y - y_lam*|^2 + |z - y*|^2:

    delta <- delta/2 + (34 L_g^2/mu^2) |x_new - x|^2 + 24 v/(lam mu (L_f + lam L_g))

from delta = 3 R + 2 C_f^2/(lam mu)^2; `init` pays one sample for the bound |g_y(x0, y0)|^2/mu^2 of R = |y0 - y*(x0)|^2.
Our choices: the factor one in M_t, and L_g of y alone wherever it belongs to the lower level.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Self

import torch
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor

from bilevelbench import Algorithm, Claim, Constants, InvalidInput, Oracle, PerLane, dot, keep, over_points
from bilevelbench_methods.penalty.f2ba import F2BA
from bilevelbench_methods.penalty.pair import USES
from bilevelbench_methods.penalty.sgd_sc import epoch, sgd_sc, walk


@dataclass(frozen=True)
class State:
    x: Tensor
    y: Tensor
    z: Tensor
    delta: Tensor | None = None
    N: Tensor | None = None


_LOGS = "appendix; printed with one logarithm: kappa N M samples a step, of which N and M have one each"


class F3BSA(Algorithm):
    name = "f3bsa"
    title = "F³BSA"
    paper = "https://arxiv.org/abs/2306.14853"
    family = "penalty"
    uses = USES | {"mu", "L_g", "C_f", "ell", "kappa", "sigma_f", "sigma_g"}
    tuned = {"eta_x": "upper_step", "lam": "penalty"}
    reports = "random"
    claims = (
        Claim(
            table=2, setting="partial", oracle="gradient", eps_exp=4, tilde=True, log_power=2, kappa_exp=5,
            log_source="derived", extra="ell", footnote=_LOGS, reference="Chen, Ma, Zhang 2025, theorem of F3BSA",
        ),
        Claim(
            table=2, setting="full", oracle="gradient", eps_exp=6, tilde=True, log_power=2, kappa_exp=11,
            log_source="derived", extra="ell^3", footnote=_LOGS, reference="Chen, Ma, Zhang 2025, theorem of F3BSA",
        ),
    )  # fmt: skip

    lam: PositiveFloat = 10.0
    """penalty"""
    M: PerLane[PositiveInt] = 8
    """estimates that a step averages; not used where `accuracy` is given, nor are N and S"""
    N: PerLane[PositiveInt] = 3
    """base epochs of the lower level"""
    S: PerLane[PositiveInt] = 5
    """highest level"""
    nested: bool = True
    """one run for the three levels of an estimate; otherwise three independent ones"""
    accuracy: PositiveFloat | None = None
    """eps, from which each step takes M, N and S"""
    eta_x: PositiveFloat | None = None
    """x-step; default 1/(2 L_phi)"""
    alpha_y: PositiveFloat | None = None
    """strong convexity of f + lam g in y; default lam mu/2"""
    beta_y: PositiveFloat | None = None
    """smoothness of f + lam g in y; default L_f + lam L_g"""
    alpha_z: PositiveFloat | None = None
    """strong convexity of lam g in y; default lam mu"""
    beta_z: PositiveFloat | None = None
    """smoothness of lam g in y; default lam L_g"""

    def resolve(self, constants: Constants) -> Self:
        filled = self.fill(
            constants,
            eta_x=lambda c: 1 / (2 * c.L_phi),
            alpha_y=lambda c: self.lam * c.mu / 2,
            beta_y=lambda c: c.L_f + self.lam * c.L_gy,
            alpha_z=lambda c: self.lam * c.mu,
            beta_z=lambda c: self.lam * c.L_gy,
        )
        for low, high in (("alpha_y", "beta_y"), ("alpha_z", "beta_z")):
            alpha, beta = getattr(filled, low), getattr(filled, high)
            if alpha > beta:
                raise InvalidInput(
                    f"f3bsa: {low} = {alpha:g} is larger than {high} = {beta:g}: no function is more convex "
                    "than smooth; leave both out to take them from the problem's constants"
                )
        return filled

    def init(self, x0: Tensor, y0: Tensor, oracle: Oracle) -> State:
        if self.accuracy is None:
            return State(x=x0, y=y0, z=y0)
        mu, C_f = oracle.constant("mu"), oracle.constant("C_f")
        g_y = oracle.grad_g_y(x0, y0, oracle.sample_g(1))
        R = dot(g_y, g_y) / mu**2
        return State(x=x0, y=y0, z=y0, delta=3 * R + 2 * (C_f / (self.lam * mu)) ** 2, N=torch.zeros_like(R))

    def step(self, s: State, oracle: Oracle) -> State:
        x = s.x
        M, N, S = map(torch.as_tensor, (self.M, self.N, self.S)) if s.delta is None else self._counts(s.delta, oracle)
        number = torch.arange(int(M.max()), device=M.device).reshape(-1, 1, 1)
        J = geometric(oracle.uniform(len(number), 1))
        depth = torch.where(number < M, torch.where(J <= S, J, 0), -1)  # (M, L, 1); -1: no such run in this lane
        runs = Runs(
            oracle, x, self.lam, N,
            start=torch.stack([s.y, s.z])[:, None],
            alpha=torch.stack([torch.as_tensor(a) for a in (self.alpha_y, self.alpha_z)])[:, None],
            beta=torch.stack([torch.as_tensor(b) for b in (self.beta_y, self.beta_z)])[:, None],
        )  # fmt: skip
        total, (y, z) = (nested if self.nested else independent)(runs, depth)
        x_new = x - self.eta_x * (total / M)
        if s.delta is None:
            return State(x=x_new, y=y, z=z)
        return State(x=x_new, y=y, z=z, delta=self._next_delta(s.delta, x_new - x, oracle), N=N)

    def _counts(self, delta: Tensor, oracle: Oracle) -> tuple[Tensor, Tensor, Tensor]:
        ell, kappa, sigma_f, sigma_g = (oracle.constant(name) for name in ("ell", "kappa", "sigma_f", "sigma_g"))
        noise = kappa * (sigma_f**2 + (self.lam * sigma_g) ** 2)
        needed = torch.maximum((self.lam * ell) ** 2 * delta, torch.as_tensor(noise)) / self.accuracy**2
        N = (
            (needed.log() / math.log(2)).ceil().clamp(min=2).nan_to_num(2.0, posinf=2.0)
        )  # of a diverged lane: any number
        return (kappa * N).ceil(), N, N

    def _next_delta(self, delta: Tensor, moved: Tensor, oracle: Oracle) -> Tensor:
        mu, L_g, sigma_f, sigma_g = (oracle.constant(name) for name in ("mu", "L_g", "sigma_f", "sigma_g"))
        noise = 24 * (sigma_f**2 + (self.lam * sigma_g) ** 2) / (self.lam * mu * self.beta_y)
        return delta / 2 + 34 * (L_g / mu) ** 2 * dot(moved, moved) + noise

    def extras(self, s: State) -> dict[str, Tensor]:
        return {} if s.delta is None else {"levels": s.N, "delta": s.delta}

    def x_step(self) -> float | None:
        return self.eta_x

    @classmethod
    def from_theory(cls, constants: Constants, eps: float) -> Self:
        """lam of F2BA, eta_x = min(1, eps^2/v)/(2 L_star), v the variance of one sample; M, N, S from the recursion."""
        lam = F2BA.from_theory(constants, eps).lam
        v = _variance(constants, lam)
        return cls(lam=lam, accuracy=eps, eta_x=min(1.0, eps**2 / v if v else 1.0) / (2 * constants.L_star))

    @classmethod
    def from_rate(cls, constants: Constants, eps: float, scale: float = 1.0) -> Self:
        """lam ~ 1/eps, N = S ~ log 1/eps, four estimates, eta_x ~ eps^2/(sigma_f^2 + lam^2 sigma_g^2)."""
        lam = 2 * scale / eps
        v = _variance(constants, lam)
        if v == 0:
            raise InvalidInput(
                "f3bsa has no rate preset where sigma_f = sigma_g = 0, its x-step is eps^2 over the noise; take f2ba, "
                "or a problem with noise"
            )
        levels = max(1, math.ceil(2 * math.log2(1 / eps)))
        eta_x = (0.12 if constants.sigma_g else 0.02) * eps**2 / v
        return cls(lam=lam, M=4, N=levels, S=levels, eta_x=eta_x)


def _variance(c: Constants, lam: float) -> float:
    """Of f_x + lam g_x from one sample of each."""
    for name in ("sigma_f", "sigma_g"):
        if not 0 <= c[name] < math.inf:
            raise InvalidInput(f"f3bsa: {name} = {c[name]:g}: a noise level is a finite number, zero or more")
    return c.sigma_f**2 + (lam * c.sigma_g) ** 2


def geometric(u: Tensor) -> Tensor:
    """J = 1, 2, ... with P(J = j) = 2^-j from uniforms: ceil(-log2 u), read off the exponent, so without rounding."""
    return 1 - torch.frexp(u).exponent.long()


def together(oracle: Oracle, count: Tensor) -> Iterator[tuple[int, Tensor | bool]]:
    """`for c, on in together(oracle, count)`: the lanes with count == c, for c = 1, 2, ...

    They do c things at once, as points. What a lane draws there depends on its own count alone, not on its pack.
    """
    for c, _ in enumerate(oracle.repeat(count), start=1):
        for on in oracle.when(count == c):
            yield c, on


#: (k, w before epoch k, w after it) -> a sum over runs, (L, dx)
Read = Callable[[int, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Runs:
    """SGD-SC on f(x, .) + lam g(x, .) and on lam g(x, .), several runs from one start. w = (y, z) is (2, runs, L, dy).

    y and z of all runs of a lane go in lockstep, as points of one query.
    """

    oracle: Oracle
    x: Tensor
    lam: float | Tensor
    N: Tensor
    start: Tensor
    alpha: Tensor
    beta: Tensor

    def g_y(self, points: Tensor) -> Tensor:
        return self.lam * self.oracle.grad_g_y(self.x, points, self.oracle.sample_g(1, len(points)))

    def f_y(self, points: Tensor) -> Tensor:
        return self.oracle.grad_f_y(self.x, points, self.oracle.sample_f(1, len(points)))

    def slope(self, w: Tensor) -> Tensor:
        h = self.g_y(w.flatten(0, 1)).reshape(w.shape)
        h[0].add_(self.f_y(w[0]))
        return h

    def average(self, w: Tensor, k: int) -> Tensor:
        """One epoch of y and z. Their lengths differ: the longer one ends alone."""
        oracle, (eta, n) = self.oracle, epoch(k, self.alpha, self.beta)
        (n_y, n_z), shared = n[:, 0], n[:, 0].amin(0)
        w, total = walk(oracle, self.slope, w, torch.zeros_like(w), eta, shared)
        _, Y = walk(oracle, lambda y: self.g_y(y) + self.f_y(y), w[0], total[0], eta[0], n_y - shared)
        _, Z = walk(oracle, self.g_y, w[1], total[1], eta[1], n_z - shared)
        return torch.stack([Y / n_y, Z / n_z])

    def gradient(self, w: Tensor, B: int) -> Tensor:
        """f_x(x, y; B) + lam (g_x(x, y; B) - g_x(x, z; B)), summed over the runs."""
        oracle, x, runs = self.oracle, self.x, w.shape[1]
        f_x = oracle.grad_f_x(x, w[0], oracle.sample_f(B, runs))
        g_x = oracle.grad_g_x(x, w.flatten(0, 1), oracle.sample_g(B, 2 * runs))
        return over_points(f_x + self.lam * (g_x[:runs] - g_x[runs:]))

    def read(self, depth: Tensor, read: Read, every_base: bool = False) -> tuple[Tensor, Tensor]:
        """The sum of `read` at the last epoch of each run, and w of one run after its base.

        A run makes the base and epochs 1..depth. With `every_base` it is read at the base as well, whatever its depth.
        """
        oracle, depth = self.oracle, depth.sort(0, descending=True).values  # the first c runs of a lane go on
        total = torch.zeros_like(self.x)
        w = self.start.repeat(1, len(depth), 1, 1)
        first = self.start[:, 0]
        for k, _ in enumerate(oracle.repeat(depth[0] + 1)):
            running = (depth >= k).sum(0)
            ending = running if every_base and k == 0 else (depth == k).sum(0)
            for c, on in together(oracle, running):
                old = w[:, :c].clone()
                new = self.average(old, k) if k else sgd_sc(oracle, self.average, old, self.N, 0)
                for e, here in together(oracle, ending):
                    total = keep(here, total + read(k, old[:, c - e :], new[:, c - e :]), total)
                w[:, :c] = keep(on, new, old)
            if k == 0:
                first = w[:, 0].clone()
        return total, first


def nested(runs: Runs, depth: Tensor) -> tuple[Tensor, Tensor]:
    """The sum of the estimates: one run each."""
    G = runs.gradient
    return runs.read(
        depth, lambda k, old, new: 2**k * (G(new, 2**k) - G(old, 2 ** (k - 1))) if k else G(new, 1), every_base=True
    )


def independent(runs: Runs, depth: Tensor) -> tuple[Tensor, Tensor]:
    """The sum of the estimates: a run for each of their levels."""
    G, none = runs.gradient, torch.full_like(depth, -1)
    base, first = runs.read(depth.clamp(max=0), lambda k, old, new: G(new, 1))
    above, _ = runs.read(torch.where(depth > 0, depth, none), lambda k, old, new: 2**k * G(new, 2**k))
    below, _ = runs.read(torch.where(depth > 0, depth - 1, none), lambda k, old, new: 2 ** (k + 1) * G(new, 2**k))
    return base + (above - below), first
