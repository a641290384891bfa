"""A figure of a paper, as data: its panels, its claims, and the rules that decide about them."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, FiniteFloat, model_validator

from bilevelbench.plan.trial import Frozen

Names = Annotated[tuple[str, ...], Field(min_length=1)]


class Line(Frozen):
    """A horizontal line at a number, or where a column of the curve starts (step 0, median over trials)."""

    label: str
    value: FiniteFloat | None = None
    column: str | None = None

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.value is None) == (self.column is None):
            raise ValueError("a line has a value or a column, one of the two")
        return self


class Panel(Frozen):
    """A column of the curve against an axis; `problem` restricts it to one, named with its parameters as on tables."""

    y: str
    x: Literal["step", "cost", "seconds", "first_order"] = "step"
    label: str = ""
    title: str = ""
    scale: Literal["log", "linear"] = "log"
    x_scale: Literal["log", "linear"] = "linear"
    problem: str | None = None
    line: Line | None = None


class Falls(Frozen):
    """In every trial each of `columns` ends `factor` times below its start, and each of `lower` ends below its start.

    A start is the first value that was seen.
    """

    rule: Literal["falls"]
    claim: str
    columns: Names
    factor: FiniteFloat = Field(default=1000.0, gt=1)
    lower: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()


class Compared(Frozen):
    """Medians over trials of one column, at the end or at the cost that every trial of the two sides has spent."""

    claim: str
    column: str
    at: Literal["end", "equal_cost"] = "end"


class Ranking(Compared):
    """Each of `better` has a better median than each of `worse`."""

    rule: Literal["ranking"]
    better: Names
    worse: Names
    best: Literal["lowest", "highest"] = "lowest"


class Separation(Compared):
    """Each of `low` has a median below `below`, each of `high` one above `above`."""

    rule: Literal["separation"]
    low: Names
    high: Names
    below: FiniteFloat
    above: FiniteFloat


FigureCheck = Annotated[Falls | Ranking | Separation, Field(discriminator="rule")]


class PaperFigure(Frozen):
    """A figure of a paper: its panels, the claim in the paper's words, and the rules that decide about it."""

    name: str = Field(pattern=r"^[a-z0-9_]{1,48}$")
    title: str
    claim: str
    panel: tuple[Panel, ...] = Field(min_length=1, max_length=24)
    check: tuple[FigureCheck, ...] = Field(min_length=1, max_length=100)
