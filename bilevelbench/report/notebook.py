"""What `run`, `load` and `solve` give back, as a notebook shows it: tables, rankings and plots of one's own results.

`results/` holds tables and knows nothing of reports; this is its class with the reports that people ask for by hand.
matplotlib is imported when something is drawn: it takes longer than most of what `solve` is asked for.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pandas as pd

from bilevelbench.errors import InvalidInput, suggestion
from bilevelbench.report.analysis.intervals import ranking
from bilevelbench.report.analysis.summary import (
    ACCURACIES,
    RANKING,
    TARGETS,
    certificates,
    readable,
    readable_board,
    summary,
    titled,
)
from bilevelbench.report.text import number
from bilevelbench.results import schema

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, eq=False)
class ShownResults(schema.Results):
    """`runs` has one row per trial, `curve` one per evaluation; `table()`, `ranking()` and `plot()` read them for you."""

    @classmethod
    def of(cls, results: schema.Results) -> ShownResults:
        return cls(results.runs, results.curve, results.records, results.warnings, results.copies)

    def table(self, accuracies: Sequence[float] = ACCURACIES) -> pd.DataFrame:
        """One row per method and problem, best first: medians over trials."""
        return readable(summary(self, accuracies))

    def ranking(self, accuracies: Sequence[float] = TARGETS) -> pd.DataFrame:
        """The methods over all problems and accuracies, which are shares of |grad phi| at the start."""
        return readable_board(ranking(self, accuracies))

    def plot(self, problem: str | None = None, x: str = "cost", ax: Axes | None = None) -> Axes:
        """|grad phi| on one problem against cost, first_order, seconds or step; `problem` may be left out if there is one."""
        from bilevelbench.report.figures.curves import AXES, draw_convergence

        titles = list(titled(self.runs)["title"].unique())
        if x not in AXES:
            raise InvalidInput(f"plot(x={x!r}){suggestion(x, AXES)}")
        if problem is None and len(titles) != 1:
            raise InvalidInput(f"plot shows one problem; name one of {', '.join(map(repr, titles)) or 'none'}")
        title = titles[0] if problem is None else problem
        if title not in titles:
            raise InvalidInput(f"there are no results on {title!r}{suggestion(title, titles)}")
        axes = _axes(ax)
        if not draw_convergence(self, title, axes, x):
            raise InvalidInput(f"no trial on {title} has a |grad phi| to show; was phi left out?")
        axes.set_title(title)
        return axes

    def _repr_html_(self) -> str:
        if self.runs.empty:
            return "<p>no trials</p>"
        parts = [self.table().to_html(index=False), f"<p>{html.escape(certificates(self.runs))}</p>"]
        board = self.ranking()
        if len(board) > 1:
            parts += [f"<p>{html.escape(RANKING)}</p>", board.to_html(index=False)]
        return "\n".join(parts)


#: Its public name.
Results = ShownResults


class ShownSolution:
    """What a Solution is to a notebook."""

    curve: pd.DataFrame

    def table(self) -> pd.DataFrame:
        """The answer in one row."""
        told: Any = self
        return pd.DataFrame(
            {
                "status": [str(told.status)],
                "steps": [told.steps],
                "calls": [told.counts["first_order"] + told.counts["second_order"]],
                "phi": [_number(told.phi)],
                "|grad phi|": [_number(told.grad_phi)],
                "certificate": [told.certificate],
            }
        )

    def plot(self, y: str = "grad_phi", x: str = "cost", ax: Axes | None = None) -> Axes:
        """A column of the curve against another one, where it was evaluated."""
        for name in (x, y):
            if name not in self.curve:
                raise InvalidInput(f"the curve has no column {name!r}{suggestion(name, map(str, self.curve.columns))}")
        known = self.curve[self.curve[y].notna()]
        if known.empty:
            raise InvalidInput(
                f"{y} was evaluated nowhere on the way; solve with evaluate=bilevelbench.Schedule() to see it"
            )
        axes = _axes(ax)
        axes.plot(known[x], known[y], marker="o", markersize=3)
        positive = bool((known[y] > 0).all())
        axes.set(xlabel=x, ylabel=y, yscale="log" if positive and y != "phi" else "linear")
        axes.grid(alpha=0.15, linewidth=0.6)
        return axes

    def _repr_html_(self) -> str:
        told: Any = self
        return f"{self.table().to_html(index=False)}\n<p>{html.escape(told.message)}</p>"


def _number(value: float) -> str:
    return "unknown" if math.isnan(value) else number(value)


def _axes(ax: Axes | None) -> Axes:
    """A pyplot figure, so that a notebook shows it at the end of the cell."""
    if ax is not None:
        return ax
    from matplotlib import pyplot

    return pyplot.subplots(layout="constrained")[1]
