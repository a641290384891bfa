"""What is measured and how, fixed in a file before the run: grids, constants, rules and seeds of each row."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    model_validator,
)

from bilevelbench.errors import faults
from bilevelbench.model.claim import ClaimedSetting
from bilevelbench.plan.spec_text import MOST
from bilevelbench.plan.suite import read_suite
from bilevelbench.plan.trial import Budget
from bilevelbench.report.analysis.predict import SetBy

Preset = Literal["rate", "theory", "horizon", "tuned"]

_LONGEST = 62  # the exponent of a horizon: its steps are counted in 64 bits
_WHOLE = 8  # from here on a grid between whole numbers has whole numbers


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Weakened(_Table):
    """The necessity check: the same row with one part of its preset taken away, on its whole grid.

    `params` replaces parameters of the preset, `times` multiplies them, and `powers` raises what they are over their value at
    the start of the grid to a power: with 0.5 a batch starts as it was and grows with half its exponent. It may take
    `patience` times the steps that the row itself took at the same value: then its slope shows, or where it stops getting
    there.
    """

    text: str
    params: dict[str, Any] = {}
    times: dict[str, PositiveFloat] = {}
    powers: dict[str, PositiveFloat] = {}
    patience: PositiveFloat = 4.0


class RateRow(_Table):
    """One method in one setting; its claim is that of a `table` of the paper, without one the first of this setting.

    `eps`: largest and smallest accuracy, a factor of `ratio` apart from one to the next; rule `hit` takes the first point
    with |grad phi| <= eps, `second_order` the first that also has no eigenvalue of the Hessian of phi below
    -sqrt(rho_phi eps), `mean` the first T whose mean of |grad phi| over t < T is at most eps. `horizons`: exponents of
    two, for methods whose steps are set by the number of steps; the accuracy of T is the mean of |grad phi| over t < T.
    `sweep`: what the problem changes (`Problem.sweep`) between the smallest and the largest of `values`, at the accuracy
    `at_eps`. With `made_for_eps` each accuracy has a problem of its own, by `sweep("eps", value)`: that of a lower bound. `on`
    names another problem than the suite's, and `problem` has its parameters.

    `params` are handed to the preset if it takes them, and replace its choice if not; `times` multiplies what it chooses.
    Preset `tuned` is `tuned_base` with the x-step that takes the fewest calls, searched from `tuned_from` times that of the
    base, for each combination of the parameters in `tuned_over`.

    `log_free` says which count the verdict is about, where the claim hides logarithms; with `over`, a parameter of the
    preset, it is divided by that, or with `over_power` by its logarithm alone, that is by the parameter over this power of the
    swept value; with `logs` the count has those logarithms, and they are allowed for. `set_by` says what the
    preset depends on, and with that how the claim's exponent shows on the tail (`predict.asymptotic`). `claimed` replaces the
    claim's exponent, for parameters that it is not about; `expected` is what the claim can show on this instance, if that is
    known to be less; `lower_bound` is that of any method with the same oracle.

    With `counted`, the powers in which parameters of the preset, their ratios or what is swept enter the cost, nothing is
    run. With `without_noise` the same parameters run on the same instances without their noise too, which tells whether it
    binds. The row also runs with the preset `against`, and the note has the ratio of the calls. `quick` replaces fields in the
    quick form of the table, which with `quick = false` does not have the row.
    """

    method: str
    table: PositiveInt | None = None
    setting: ClaimedSetting = "deterministic"
    label: str = ""
    rule: Literal["hit", "mean", "horizon", "second_order"] = "mean"
    set_by: SetBy = "eps"
    preset: Preset | None = None
    eps: tuple[PositiveFloat, PositiveFloat] | None = None
    ratio: float = Field(default=math.sqrt(2), gt=1)
    sweep: str | None = None
    values: tuple[PositiveFloat, PositiveFloat] | None = None
    at_eps: PositiveFloat = 0.9
    horizons: tuple[PositiveInt, PositiveInt] | None = None
    seeds: Annotated[int, Field(ge=1, le=MOST)] = 16
    on: str | None = None
    problem: dict[str, Any] = {}
    params: dict[str, Any] = {}
    times: dict[str, PositiveFloat] = {}
    scale: PositiveFloat = 1.0
    tuned_base: Literal["rate", "theory"] = "rate"
    tuned_from: PositiveFloat = 1.0
    tuned_over: dict[str, tuple[Any, ...]] = {}
    log_free: Literal["steps", "cost", "grad_g_y"] = "steps"
    over: str | None = None
    over_power: float = 0.0
    logs: bool = False
    claimed: PositiveFloat | None = None
    expected: PositiveFloat | None = None
    lower_bound: PositiveFloat | None = None
    cap: Budget = Budget(steps=2_000_000)
    weakened: Weakened | None = None
    own_notion: str | None = None
    counted: dict[str, float] = {}
    without_noise: bool = False
    against: Preset | None = None
    made_for_eps: bool = False
    quick: dict[str, Any] | Literal[False] = {}
    note: str = ""

    @model_validator(mode="after")
    def _grid(self) -> Self:
        if sum(grid is not None for grid in (self.eps, self.horizons, self.sweep)) != 1:
            raise ValueError(
                "a row has one of `eps = [largest, smallest]`, `horizons = [low, high]` and `sweep` with `values = [low, high]`"
            )
        if (self.rule == "horizon") != (self.horizons is not None):
            raise ValueError("`horizons` go with rule 'horizon', and only with that")
        if self.horizons is not None and self.set_by != "steps":
            raise ValueError(f"set_by = {self.set_by!r}: a preset for a horizon is set by its number of steps, 'steps'")
        if (self.sweep is not None) != (self.set_by == "sweep"):
            raise ValueError(f"set_by = {self.set_by!r}: 'sweep' goes with `sweep`, and only with that")
        if (self.sweep is None) != (self.values is None):
            raise ValueError("`sweep` and `values = [low, high]` go together")
        if self.values is not None and self.values[0] >= self.values[1]:
            raise ValueError(f"values = {list(self.values)}: the smallest comes first")
        if self.made_for_eps and self.eps is None:
            raise ValueError("made_for_eps: it goes with `eps`")
        if self.over_power and (self.over is None or self.sweep is None):
            raise ValueError(f"over_power = {self.over_power:g}: it goes with `over` and `sweep`")
        if self.eps is not None and self.eps[0] <= self.eps[1]:
            raise ValueError(f"eps = {list(self.eps)}: the largest comes first")
        if self.horizons is not None and not self.horizons[0] <= self.horizons[1] <= _LONGEST:
            raise ValueError(
                f"horizons = {list(self.horizons)}: powers of two up to {_LONGEST}, the smallest comes first"
            )
        if (planned := self._steps() * self.seeds) > MOST:
            raise ValueError(f"a row of {planned:,.0f} trials; at most {MOST:,} are planned: take a larger ratio")
        if self.quick:
            self.quickly()
        return self

    def _steps(self) -> float:
        """From one end of the grid to the other."""
        if self.horizons is not None:
            return self.horizons[1] - self.horizons[0]
        low, high = self.values or (self.eps or (1.0, 1.0))[::-1]
        return math.log(high / low) / math.log(self.ratio)

    def grid(self) -> list[float]:
        """The accuracies, the horizons, or what is swept."""
        if self.horizons is not None:
            return [2.0**j for j in range(self.horizons[0], self.horizons[1] + 1)]
        if self.values is not None:
            low, high = self.values
            count = max(1, round(self._steps()))
            found = [low * (high / low) ** (i / count) for i in range(count + 1)]
            whole = low >= _WHOLE and low == round(low) and high == round(high)
            return list(dict.fromkeys(float(round(v)) for v in found)) if whole else found
        assert self.eps is not None
        return [self.eps[0] / self.ratio**i for i in range(round(self._steps()) + 1)]

    def quickly(self) -> RateRow | None:
        """What the quick form of its table has of it, which has none of its own."""
        if self.quick is False:
            return None
        try:
            return self.model_validate({**self.model_dump(), **self.quick, "quick": {}})
        except ValidationError as error:
            raise ValueError(f"in `quick`, {faults(error)}") from None


class RateSuite(_Table):
    """The rows of one table, on one family of instances; seeds start at `first_seed` and move H and x0."""

    title: str
    problem: str = "tail_anchor"
    problem_params: dict[str, Any] = {}
    first_seed: NonNegativeInt = 0
    row: tuple[RateRow, ...]

    @model_validator(mode="after")
    def _seeds(self) -> Self:
        alone = next((row for row in self.row if row.seeds < 2 and not row.counted), None)
        if alone is not None:
            raise ValueError(f"row of {alone.method}: seeds = {alone.seeds}: an interval needs two seeds or more")
        return self

    @classmethod
    def load(cls, path: Path) -> RateSuite:
        return read_suite(path, cls)

    def problem_of(self, row: RateRow) -> tuple[str, dict[str, Any]]:
        """Its name and parameters; those of the suite belong to the suite's problem."""
        return (self.problem, {**self.problem_params, **row.problem}) if row.on is None else (row.on, row.problem)
