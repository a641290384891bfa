"""What is known about a problem: its constants, and the bounds that follow from them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, SupportsFloat

import torch
from torch import Tensor

from bilevelbench.errors import MissingConstant

ConstantKind = Literal["exact", "bound", "estimated"]


@dataclass(frozen=True)
class Constant:
    """A constant of a problem and how sure it is: `exact` is attained, `bound` holds everywhere, `estimated` promises nothing.

    Where several data sets are stacked, `value` may be one number for each lane.
    """

    value: float | tuple[float, ...]
    kind: ConstantKind = "bound"

    @property
    def most(self) -> float:
        return max(self.value) if isinstance(self.value, tuple) else self.value


def exact(value: SupportsFloat) -> Constant:
    """A constant that is attained."""
    return Constant(float(value), "exact")


def bound(value: SupportsFloat) -> Constant:
    """A constant that holds everywhere, maybe loosely."""
    return Constant(float(value), "bound")


def estimated(value: SupportsFloat) -> Constant:
    """A constant that was measured somewhere and promises nothing."""
    return Constant(float(value), "estimated")


# Formulas for what is not declared. A declared value wins: it is usually much smaller.
_FORMULAS: dict[str, Callable[[Constants], float]] = {
    "L_gy": lambda c: c.L_g,
    "ell": lambda c: max(c.L_f, c.L_g, c.rho_f, c.rho_g, c.C_f, c["nu_g"] if "nu_g" in c.given else 0.0),
    "kappa": lambda c: c.ell / c.mu,
    "L_star": lambda c: c.D3,
    "L_phi": lambda c: (1 + c.L_g / c.mu) ** 2 * (c.L_f + c.rho_g * c.C_f / c.mu),
    "D0": lambda c: (c.C_f + c.C_f * c.L_g / (2 * c.mu)) * c.C_f / c.mu,
    "D1": lambda c: (
        (c.L_f + c.L_f * c.L_g / c.mu + c.C_f * c.L_g * c.rho_g / (2 * c.mu**2) + c.C_f * c.rho_g / (2 * c.mu))
        * c.C_f
        / c.mu
    ),
    "D2": lambda c: (1 / c.mu + 3 * c.L_g / c.mu**2) * (c.L_f + c.C_f * c.rho_g / c.mu),
    "D3": lambda c: (
        c.L_f + 4 * c.L_f * c.L_g / c.mu + c.C_f * c.rho_g / c.mu + c.C_f * c.L_g * c.rho_g / c.mu**2 + c.L_g * c.D2
    ),
    "D5": lambda c: (
        (1 + 2 * c.L_g / c.mu) ** 3 * (c.rho_f + c.C_f * c.nu_g / c.mu)
        + (1 + 5 * c.L_g / c.mu + 7 * (c.L_g / c.mu) ** 2) * c.rho_g * c.D2
    ),
    "rho_star": lambda c: c.D5,
    "rho_phi": lambda c: (
        (c.L_g / c.mu) ** 3 * (c.rho_f + c.C_f * c.nu_g / c.mu + 3 * (c.L_f + c.C_f * c.rho_g / c.mu) * c.rho_g / c.mu)
    ),
}


class Constants(Mapping[str, float]):
    """`constants.mu`, `constants["L_g"]`: the value, a formula of the declared ones, or an error that names what is missing.

    mu strong convexity of g in y; L_f, L_g gradient-Lipschitz constants jointly in (x, y), L_gy that of g in y alone;
    rho_f, rho_g Hessian-Lipschitz; nu_g third derivative of g; C_f Lipschitz constant of f in y;
    Delta = phi(x0) - inf phi; R = |y0 - y*(x0)|^2; sigma_f, sigma_g, sigma_h the noise of one sample, known unless the
    noise is that of a finite sum, which has n_f and n_g data instead; L_phi, rho_phi of the hyper-objective, L_star,
    rho_star of its penalty form; dim_x the dimension of x, of every instance.
    """

    def __init__(self, given: Mapping[str, Constant | float], problem: str = "", dim_x: int | None = None) -> None:
        self.given: dict[str, Constant] = {
            k: v if isinstance(v, Constant) else Constant(float(v)) for k, v in given.items()
        }
        self.problem = problem
        self._dim_x = dim_x

    def __getitem__(self, name: str) -> float:
        if name in self.given and not self._lacks_mu(name):
            return self.given[name].most
        if name in _FORMULAS:
            return _FORMULAS[name](self)
        if name == "dim_x" and self._dim_x is not None:
            return self._dim_x
        raise MissingConstant(name, self.problem)

    def of_lanes(self, name: str, like: Tensor) -> float | Tensor:
        """The value, as (L, 1) where lanes have data sets of their own, beside this tensor."""
        given = self.given.get(name)
        if given is not None and isinstance(given.value, tuple) and not self._lacks_mu(name):
            return torch.tensor(given.value, dtype=like.dtype, device=like.device).reshape(-1, 1)
        return self[name]

    def _lacks_mu(self, name: str) -> bool:
        """A mu of zero says that g is merely convex: what divides by it has nothing to go by."""
        value = self.given[name].value
        return name == "mu" and (min(value) if isinstance(value, tuple) else value) == 0

    @property
    def per_lane(self) -> bool:
        """Whether lanes have data sets of their own."""
        return any(isinstance(c.value, tuple) for c in self.given.values())

    def at(self, lane: int) -> Constants:
        """Those of one lane's data set."""
        picked = {
            name: Constant(c.value[lane], c.kind) if isinstance(c.value, tuple) else c for name, c in self.given.items()
        }
        return Constants(picked, self.problem, self._dim_x)

    def __getattr__(self, name: str) -> float:
        if name.startswith("__"):
            raise AttributeError(name)
        return self[name]

    def get(self, name: str, default: Any = None) -> Any:
        try:
            return self[name]
        except MissingConstant:
            return default

    def __contains__(self, name: object) -> bool:
        return name in self.given

    def __iter__(self) -> Iterator[str]:
        return iter(self.given)

    def __len__(self) -> int:
        return len(self.given)
