"""The step that SOBA and its relatives share: one step on each of three coupled equations, with estimated directions.

    D_y ~ g_y(x, y),   D_v ~ H(x, y) v - f_y(x, y),   D_x ~ f_x(x, y) - J(x, y) v
    y <- y - a_k D_y,   v <- v - a_k D_v,   x <- x - b_k D_x                          a_k = a (k+1)^-power, b_k alike

All three at the old (x, y, v), so y follows y*(x), v follows H^-1 f_y, and D_x tends to the hypergradient. Each method says
how it estimates the directions from samples, one of g and one of f: g_y, H v and J v belong to one sample of g, and the
products are one joint query; f_x and f_y belong to one sample of f.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Literal, NamedTuple, Self, TypeVar

import torch
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor

from bilevelbench import Algorithm, Claim, Constants, InvalidInput, Oracle, Sample, keep, norm
from bilevelbench_methods.implicit.neumann import SECOND_DERIVATIVES

T = TypeVar("T")

#: Of the directions at one point.
CALLS = {"grad_f": 1, "grad_g_y": 1, "vp_g": 1}

Sampling = Literal["replacement", "epoch", "block"]


@dataclass(frozen=True)
class Triple:
    """A value for each of x, y and v: a point, or the directions there."""

    x: Tensor
    y: Tensor
    v: Tensor

    def __add__(self, other: Triple) -> Triple:
        return Triple(self.x + other.x, self.y + other.y, self.v + other.v)

    def __sub__(self, other: Triple) -> Triple:
        return Triple(self.x - other.x, self.y - other.y, self.v - other.v)

    def times(self, factor: float | Tensor) -> Triple:
        return Triple(factor * self.x, factor * self.y, factor * self.v)

    def kept(self, on: Tensor | bool, old: Triple) -> Triple:
        """This in the lanes that are on, `old` in the others."""
        return Triple(keep(on, self.x, old.x), keep(on, self.y, old.y), keep(on, self.v, old.v))


@dataclass(frozen=True)
class State:
    """The point, and what the estimator remembers."""

    x: Tensor
    y: Tensor
    v: Tensor
    k: int
    memory: Any = None

    @property
    def at(self) -> Triple:
        return Triple(self.x, self.y, self.v)


class Five(NamedTuple, Generic[T]):
    """What the directions are made of: the answers of the oracle, or something for each of them."""

    f_x: T
    f_y: T
    g_y: T
    Jv: T
    Hv: T


def answers(oracle: Oracle, at: Triple, xi: Sample | None, zeta: Sample | None) -> Five[Tensor]:
    """Of these samples of g and f, of the whole sums where they are None."""
    f_x, f_y = oracle.grad_f(at.x, at.y, zeta)
    g_y = oracle.grad_g_y(at.x, at.y, xi)
    Jv, Hv = oracle.vp_g(at.x, at.y, at.v, xi)
    return Five(f_x, f_y, g_y, Jv, Hv)


def composed(of: Five[Tensor]) -> Triple:
    """(D_x, D_y, D_v)."""
    return Triple(x=of.f_x - of.Jv, y=of.g_y, v=of.Hv - of.f_y)


def directions(oracle: Oracle, at: Triple, xi: Sample | None, zeta: Sample | None) -> Triple:
    """(D_x, D_y, D_v) of these samples."""
    return composed(answers(oracle, at, xi, zeta))


class Steps(Algorithm):
    """A step `a` of the lower level and a step `b` of x."""

    family = "implicit"
    tuned = {"b": "upper_step", "a": "lower_step"}

    a: PositiveFloat | None = None
    """step of y and v; default 1/L_g"""
    b: PositiveFloat | None = None
    """x-step; default a mu/L_phi, at most 1/(2 L_phi)"""

    def resolve(self, constants: Constants) -> Self:
        known = self.fill(constants, a=self.default_a)
        return known.fill(constants, b=lambda c: followed(c, known.a))

    def default_a(self, c: Constants) -> float:
        return 1 / c.L_gy

    def decay(self, k: int) -> float | Tensor:
        """What both steps are multiplied with."""
        return 1.0

    def x_step(self) -> float | None:
        return self.b


class Batched(Steps):
    """Mini-batches of one size."""

    tuned = {**Steps.tuned, "batch": "batch"}

    batch: PositiveInt = 64
    """data of a sample"""

    def resolve(self, constants: Constants) -> Self:
        if self.finite_sum_only and "n_g" not in constants:
            where = f"problem {constants.problem!r}" if constants.problem else "the problem"
            raise InvalidInput(
                f"{self.name} needs a finite sum, and {where} is none (its noise is no FiniteSum); take a method that asks "
                "for samples alone, such as soba or spaba"
            )
        return super().resolve(constants)


class Decaying(Batched):
    """Steps a (k+1)^-power and b (k+1)^-power, and samples in any order: for the methods that never ask for whole sums."""

    power: NonNegativeFloat = 0.5
    """decay of both steps"""
    sampling: Sampling = "replacement"
    """how the rows of a finite sum are drawn: independently, in shuffled passes, or in blocks of a fixed partition"""

    def decay(self, k: int) -> float | Tensor:
        return decayed(self.power, k)

    def x_step(self) -> float | None:
        return self.b if self.power == 0 else None

    def sample_f(self, oracle: Oracle) -> Sample:
        return oracle.sample_f(self.batch, order=self.sampling)

    def sample_g(self, oracle: Oracle) -> Sample:
        return oracle.sample_g(self.batch, order=self.sampling)


class Weighted(Decaying):
    """An average or a recursion in which the newest sample has the weight w_k = min(1, w (k+1)^(-power weight_power))."""

    weight_power: ClassVar[Literal[1, 2]] = 1

    w: PositiveFloat = 1.0
    """weight of the newest sample at the first step; it decays as the steps or as their square"""

    def weight(self, k: int) -> Tensor:
        decay = self.decay(k)
        return torch.as_tensor(self.w * (decay if self.weight_power == 1 else decay * decay)).clamp(max=1)

    @classmethod
    def from_horizon(cls, constants: Constants, steps: int, scale: float = 1.0) -> Self:
        """a and b as the default power of the number of steps, throughout, and the weight as theirs; single data."""
        size = min(1.0, scale * steps ** -cls.model_fields["power"].default)
        a = size / constants.L_gy
        return cls(a=a, b=followed(constants, a), w=min(1.0, 4 * size**cls.weight_power), power=0, batch=1)


class FromZero(Steps):
    """A state of x, y and v in which v begins at zero."""

    def init(self, x0: Tensor, y0: Tensor, oracle: Oracle) -> State:
        return State(x=x0, y=y0, v=torch.zeros_like(y0), k=0)


class ThreeEquations(FromZero):
    """One step of x, y and v along the directions that `estimate` makes."""

    uses = frozenset({"grad_f", "grad_g_y", "vp_g"})
    calls_of_a_point: ClassVar[Mapping[str, int]] = CALLS

    def step(self, s: State, oracle: Oracle) -> State:
        D, memory = self.estimate(s, oracle)
        decay = self.decay(s.k)
        a, b = self.a * decay, self.b * decay
        return State(x=s.x - b * D.x, y=s.y - a * D.y, v=self.confined(s.v - a * D.v), k=s.k + 1, memory=memory)

    @abstractmethod
    def estimate(self, s: State, oracle: Oracle) -> tuple[Triple, Any]:
        """The directions at the state's point, and what is to be remembered of them."""

    def directions(self, oracle: Oracle, at: Triple, xi: Sample | None, zeta: Sample | None) -> Triple:
        """(D_x, D_y, D_v) of these samples, at one point."""
        return directions(oracle, at, xi, zeta)

    def confined(self, v: Tensor) -> Tensor:
        """v inside of a set that is known to hold H^-1 f_y."""
        return v

    def calls(self, step: int) -> dict[str, int] | None:
        return dict(self.calls_of_a_point)


class SingleLoop(Batched, ThreeEquations):
    """The same with samples."""

    def draw(self, oracle: Oracle, order: Sampling = "replacement") -> tuple[Sample, Sample]:
        """A sample of g and one of f."""
        return oracle.sample_g(self.batch, order=order), oracle.sample_f(self.batch, order=order)


class Decreasing(Decaying, SingleLoop):
    """A single loop with steps that decay."""


class Recursive(SingleLoop):
    """Directions that are corrected by what one sample says of the last move, and refreshed now and then.

    D <- D + d(x, y, v; xi, zeta) - d(x', y', v'; xi, zeta), with (x', y', v') the point before.
    """

    sampling: Literal["replacement", "block"] = "replacement"
    """how the rows of a finite sum are drawn: independently, or in blocks of a fixed partition"""

    def estimate(self, s: State, oracle: Oracle) -> tuple[Triple, tuple[Triple, Triple]]:
        if s.memory is None:
            D = self.refreshed(s.at, oracle)
            return D, (D, s.at)
        (D, before), now = s.memory, self.refreshes(s, oracle)
        new = D
        for on in oracle.when(now):
            new = self.refreshed(s.at, oracle).kept(on, new)
        for on in oracle.when(~now):
            xi, zeta = self.draw(oracle, self.sampling)
            change = directions(oracle, s.at, xi, zeta) - directions(oracle, before, xi, zeta)
            new = (D + change).kept(on, new)
        return new, (new, s.at)

    @abstractmethod
    def refreshes(self, s: State, oracle: Oracle) -> Tensor:
        """(L, 1) bool: the lanes whose directions are made anew in this step."""

    def refreshed(self, at: Triple, oracle: Oracle) -> Triple:
        return directions(oracle, at, None, None)


def followed(c: Constants, a: float | None) -> float:
    """An x-step that y and v can follow: a mu/L_phi, or half of 1/L_phi if that is less.

    Along an eigenvector y and v lag behind x with the rate p >= a mu, and x moves with the rate r <= b L_phi: the exponents
    of s (s + p)^2 + r p^2 = 0 decay if and only if r < 2 p (Routh). With 1/(2 L_phi) the exact iteration is unstable on
    quadratic problems from a condition number of five on.
    """
    assert a is not None
    return min(0.5, a * c.mu) / c.L_phi


def in_ball(v: Tensor, radius: float | Tensor) -> Tensor:
    """The nearest point of the ball around 0."""
    size = norm(v)
    return torch.where(size > radius, radius / size, torch.ones_like(size)) * v


def decayed(power: float | Tensor, k: int) -> Tensor:
    """(k+1)^-power; torch's own power rounds by the place in a pack."""
    return torch.exp(torch.as_tensor(-power * math.log1p(k)))


def or_one(size: Tensor) -> Tensor:
    """The size, or one where it is zero: what to divide by."""
    return torch.where(size > 0, size, torch.ones_like(size))


def data(constants: Constants) -> int:
    """Of both levels together."""
    return round(constants.n_f + constants.n_g)


def noise_batch(constants: Constants, eps: float, scale: float) -> int:
    """Data whose mean is as exact as eps: (sigma/eps)^2, times `scale`."""
    c = constants
    return max(1, math.ceil(scale * max(c.sigma_f, c.sigma_g, c.sigma_h) ** 2 / eps**2))


def claimed(
    setting: Literal["deterministic", "full", "finite_sum"], eps_exp: float, reference: str, note: str = "", **more: Any
) -> Claim:
    """A claim that is in no table of the paper."""
    needs = [SECOND_DERIVATIVES] if setting == "full" else []
    return Claim(
        setting=setting, oracle="HVP", eps_exp=eps_exp, reference=reference, source="other paper",
        footnote="; ".join([*needs, *([note] if note else [])]), **more,
    )  # fmt: skip
