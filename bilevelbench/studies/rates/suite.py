"""What is measured and how, fixed in a file before the run: grids, constants, rules and seeds of each row."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from bilevelbench.model.claim import ClaimedSetting
from bilevelbench.plan.suite import read_suite
from bilevelbench.plan.trial import Budget
from bilevelbench.report.analysis.predict import SetBy


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Weakened(_Table):
    """The necessity check: the same row with one part of its preset taken away, at its last few grid values.

    `params` replaces parameters of the preset, `times` multiplies them. It should miss its accuracy within `patience`
    times the steps that the row itself took.
    """

    text: str
    params: dict[str, Any] = {}
    times: dict[str, PositiveFloat] = {}
    values: PositiveInt = 2
    patience: PositiveFloat = 1.25


class RateRow(_Table):
    """One method in one setting; its claim is that of a `table` of the paper, or else the one that is in none of them.

    `eps`: largest and smallest accuracy, a factor of `ratio` apart from one to the next; rule `hit` takes the first point
    with |grad phi| <= eps, `second_order` the first that also has no eigenvalue of the Hessian of phi below
    -sqrt(rho_phi eps), `mean` the first T whose mean of |grad phi| over t < T is at most eps. `horizons`: exponents of
    two, for methods whose steps are set by the number of steps; the accuracy of T is the mean of |grad phi| over t < T.
    `kappas`: smallest and largest condition number L/mu, at the fixed accuracy `at_eps` and with the theory preset.
    `log_free` says which count the verdict is about, where the claim hides logarithms; with `over`, a parameter of the
    preset, it is divided by that. `set_by` says what the preset depends on, and with that how the claim's exponent shows on
    the tail (`predict.asymptotic`).
    """

    method: str
    table: PositiveInt = 1
    setting: ClaimedSetting = "deterministic"
    label: str = ""
    rule: Literal["hit", "mean", "horizon", "second_order"] = "mean"
    set_by: SetBy = "eps"
    eps: tuple[PositiveFloat, PositiveFloat] | None = None
    ratio: float = Field(default=math.sqrt(2), gt=1)
    kappas: tuple[PositiveFloat, PositiveFloat] | None = None
    at_eps: PositiveFloat = 0.9
    horizons: tuple[PositiveInt, PositiveInt] | None = None
    seeds: PositiveInt = 16
    problem: dict[str, Any] = {}
    params: dict[str, Any] = {}
    scale: PositiveFloat = 1.0
    log_free: Literal["steps", "cost", "grad_g_y"] = "steps"
    over: str | None = None
    cap: Budget = Budget(steps=2_000_000)
    weakened: Weakened | None = None
    own_notion: str | None = None
    quick: dict[str, Any] = {}
    note: str = ""

    @model_validator(mode="after")
    def _grid(self) -> Self:
        if sum(grid is not None for grid in (self.eps, self.horizons, self.kappas)) != 1:
            raise ValueError(
                "a row has one of `eps = [largest, smallest]`, `horizons = [low, high]`, `kappas = [low, high]`"
            )
        if (self.rule == "horizon") != (self.horizons is not None):
            raise ValueError("`horizons` go with rule 'horizon', and only with that")
        if self.horizons is not None and self.set_by != "steps":
            raise ValueError(f"set_by = {self.set_by!r}: a preset for a horizon is set by its number of steps, 'steps'")
        if (self.kappas is not None) != (self.set_by == "kappa"):
            raise ValueError(f"set_by = {self.set_by!r}: 'kappa' goes with `kappas`, and only with that")
        if self.eps is not None and self.eps[0] <= self.eps[1]:
            raise ValueError(f"eps = {list(self.eps)}: the largest comes first")
        return self

    def grid(self) -> list[float]:
        """The accuracies, or the horizons."""
        if self.horizons is not None:
            return [2.0**j for j in range(self.horizons[0], self.horizons[1] + 1)]
        if self.kappas is not None:
            count = round(2 * math.log2(self.kappas[1] / self.kappas[0])) + 1
            return [self.kappas[0] * math.sqrt(2) ** i for i in range(count)]
        assert self.eps is not None
        count = round(math.log(self.eps[0] / self.eps[1]) / math.log(self.ratio)) + 1
        return [self.eps[0] / self.ratio**i for i in range(count)]

    def quickly(self) -> RateRow:
        return self.model_validate({**self.model_dump(), **self.quick})


class RateSuite(_Table):
    """The rows of one table, on one family of instances; seeds start at `first_seed` and move H and x0."""

    title: str
    problem: str = "tail_anchor"
    problem_params: dict[str, Any] = {}
    first_seed: NonNegativeInt = 0
    row: tuple[RateRow, ...]

    @classmethod
    def load(cls, path: Path) -> RateSuite:
        return read_suite(path, cls)
