"""How methods are tuned, as data: the table `[tune]` of a suite."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from bilevelbench.plan.trial import Frozen

DECADES = tuple(10.0**power for power in range(-5, 4))
PENALTIES = (1e1, 1e2, 1e3, 1e4)

Values = Annotated[tuple[PositiveFloat, ...], Field(min_length=1)]
Sizes = Annotated[tuple[PositiveInt, ...], Field(min_length=1)]


class Grid(Frozen):
    """The values of each role that a method's parameters can have, the same for every method.

    A role that a suite names here is searched; of the others, those whose parameters the suite's methods do not set. Batches
    are searched only where a suite names them: without noise they decide nothing.
    """

    upper_step: Values = DECADES
    lower_step: Values = DECADES
    penalty: Values = PENALTIES
    batch: Sizes | None = None


class Tune(Frozen):
    """The same for every method on every problem.

    `by`: the column of the curve that is to be small at a trial's end, in the median over seeds and data sets. `trials`:
    settings to try; a larger grid is drawn from, with `seed`, and a smaller one is tried whole. Search `grid` and `tpe`
    give each setting the budget of the suite. `halving` gives all settings a small budget, and the best of them, one in
    `factor`, `factor` times as much from scratch, and so on; `cost` is all that this may spend on one method and problem.
    `fresh_data`: the suite of the best parameters runs on data that the search has not seen.

    `equal_cost`: every search spends the same, `trials` times the budget or `cost`. What settings leave over that fail early,
    or that a grid leaves over that is small, goes to further settings: those that halving has given less than the whole
    budget, the best of them first, then what is left of the grid, then draws between its values. Only a setting that was
    tried with the whole budget can win, so that none is chosen that fails there. `defaults`: the first setting is the
    method's own. `seeds`: those of the search are 0 to `seeds` - 1, if not as many as the suite's. `problem_params`: the
    search changes these parameters of the suite's problems, and what it finds runs on the problems as they are.
    """

    by: str = "phi"
    search: Literal["grid", "halving", "tpe"] = "grid"
    trials: PositiveInt = 36
    cost: PositiveFloat | None = None
    factor: int = Field(default=3, ge=2)
    seed: NonNegativeInt = 0
    fresh_data: bool = True
    equal_cost: bool = False
    defaults: bool = False
    seeds: PositiveInt | None = None
    problem_params: dict[str, Any] = {}
    grid: Grid = Grid()

    @model_validator(mode="after")
    def _honest(self) -> Self:
        if self.by.startswith("test_"):
            raise ValueError(
                f"by = {self.by!r} is a test metric, which may not choose parameters; select on phi or on the "
                "validation side, such as val_loss or selection_loss"
            )
        if self.search == "halving" and self.cost is None:
            raise ValueError(
                "search = 'halving' shares out a cost; say how much with `cost`, in oracle calls per method"
            )
        if self.search != "halving" and self.cost is not None:
            raise ValueError(
                f"`cost` is what halving shares out, and search = {self.search!r} costs `trials` times the budget; "
                "leave out `cost`, or search = 'halving'"
            )
        if self.equal_cost and self.search == "tpe":
            raise ValueError(
                "equal_cost is for search = 'grid' and 'halving': what tpe ends early decides what it asks for next"
            )
        return self
