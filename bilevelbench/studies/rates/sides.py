"""The side experiments of a row, in sentences: a weakened preset, the method's own notion of stationarity, no noise."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from bilevelbench.report.analysis.fit import TOLERANCE, Fit, fit
from bilevelbench.results.schema import Results
from bilevelbench.studies.rates.plan import Point, runs_by_value, which_reached, whole
from bilevelbench.studies.rates.suite import RateRow

FEWEST = 3  # values for a line

_FLAT, _OFF = (
    0.02,
    0.1,
)  # calls of a step that differ by less have no logarithm; those that are further off a line, another power
_SAME = 0.1  # an accuracy, or a number of steps, that noise changes by less than this does not depend on it


@dataclass(frozen=True)
class Sides:
    """The points of the side experiments; none where a row has none."""

    weakened: Sequence[Point] = ()
    own: Sequence[Point] = ()
    without_noise: Sequence[Point] = ()
    against: Sequence[Point] = ()


def fit_row(table: Mapping[float, pd.DataFrame], values: list[float], column: str, row: RateRow) -> Fit | None:
    """The line through a column's logarithms; None: too few values."""
    if len(values) < FEWEST:
        return None
    cost = np.log(np.stack([table[v][column].to_numpy(dtype=float) for v in values], axis=1))
    if row.rule == "horizon":
        x = -np.log(np.stack([table[v]["accuracy"].to_numpy(dtype=float) for v in values], axis=1))
        return fit(x, cost)
    inverse = -1.0 if row.sweep is None else 1.0
    return fit(inverse * np.log(np.asarray(values)), cost)


def necessity(row: RateRow, points: Sequence[Point], results: Results, calls: Fit | None) -> str:
    """What the weakened row shows, in words: its slope beside that of the row, or where it stops getting there."""
    if row.weakened is None:
        return ""
    table = runs_by_value(points, results)
    if not table:
        return "not checked: the row itself reached nothing"
    values = whole(row, table)
    found, told = fit_row(table, values, "cost", row), row.weakened.text
    beside = "" if calls is None else f" (the row: {calls.slope:.2f})"
    if row.rule == "horizon":
        if found is None:
            return f"{told}: no slope, {len(values)} of {len(table)} horizons were finished by all seeds"
        return f"{told}: slope of the calls {found.slope:.2f}{beside}, at the end {found.local[-1]:.2f}"
    missed = [v for v in table if v not in values]
    what, within = row.sweep or "eps", f"within {row.weakened.patience:g} times the steps of the row"
    said = [] if found is None else [f"slope of the calls {found.slope:.2f}{beside}"]
    if missed:
        seeds = int(which_reached(table[missed[-1]], False).sum())
        said.append(
            f"{len(values)} of {len(table)} {what} reached by all seeds {within}, {missed[-1]:.3g} by {seeds} of {row.seeds}"
        )
    elif found is not None and calls is not None and found.slope <= calls.high:
        said.append("all reached; this part of the preset is not needed here")
    else:
        said.append(f"all reached {within}")
    return f"{told}: {'; '.join(said)}"


def own_notion(row: RateRow, points: Sequence[Point], results: Results) -> str:
    """The exponent in the method's own notion of stationarity."""
    if row.own_notion is None:
        return ""
    horizons = row.rule == "horizon"
    table = runs_by_value(points, results, row.own_notion if horizons else "mean_grad_phi")
    values = whole(row, table)
    found = fit_row(table, values, "cost", row)
    if found is None:
        what = "horizons finished" if horizons else "eps reached"
        return f"{row.own_notion}: {len(values)} {what} by all seeds, too few for a slope"
    return f"{row.own_notion}: {found.slope:.2f} [{found.low:.2f}, {found.high:.2f}] in calls"


def noise(row: RateRow, points: Sequence[Point], without: Sequence[Point], results: Results) -> str:
    """Whether noise binds: the same parameters without it get as far in other numbers of steps, or further in as many.

    In steps and not in calls: where nothing is random a batch costs one call. Steps are turned into an accuracy by their
    slope without noise.
    """
    if not row.without_noise:
        return ""
    with_noise, still = runs_by_value(points, results), runs_by_value(without, results)
    values = [v for v in whole(row, still) if v in whole(row, with_noise)]
    found, loud = fit_row(still, values, "steps", row), fit_row(with_noise, values, "steps", row)
    if found is None or loud is None:
        return f"without noise: {len(values)} values reached by all seeds, too few for a slope"
    last = values[-1]
    told = f"without noise, with the same parameters: slope of the steps {found.slope:.2f} (the row: {loud.slope:.2f})"
    column = "accuracy" if row.rule == "horizon" else "steps"
    there, here = (float(table[last][column].mean()) for table in (still, with_noise))
    if abs(math.log(here / there)) < _SAME and abs(found.slope - loud.slope) < TOLERANCE:
        return f"{told}; the schedule alone gives this slope; noise was not binding"
    # Of the accuracy, the part that is there without noise after as many steps. Theorems bound squares, which add up.
    quiet = there / here if row.rule == "horizon" else (there / here) ** (1 / found.slope)
    return f"{told}, and {column} of {there:.3g} in place of {here:.3g} at the end: {_part_of_noise(1 - quiet**2)}"


def _part_of_noise(part: float) -> str:
    if part <= 0:
        return "noise adds nothing to the error there"
    half = "the larger half" if part > 0.5 else "the smaller half"
    return f"noise is {half} of the squared error there, {math.floor(100 * part)}%"


def against(row: RateRow, points: Sequence[Point], others: Sequence[Point], results: Results) -> str:
    """The calls of this preset over those of another one, at both ends of what both reached."""
    if row.against is None:
        return ""
    mine, theirs = runs_by_value(points, results), runs_by_value(others, results)
    both = [v for v in whole(row, mine) if v in whole(row, theirs)]
    if not both:
        return f"no value was reached with the {row.against} preset too"
    ratios = [float((mine[v]["cost"] / theirs[v]["cost"].to_numpy()).mean()) for v in (both[0], both[-1])]
    what = row.sweep or "eps"
    ends = f"{ratios[0]:.3g} at {what} {both[0]:.3g} and {ratios[1]:.3g} at {both[-1]:.3g}"
    return f"calls over those of the {row.against} preset: {ends}"


def logarithm(row: RateRow, points: Sequence[Mapping[str, float]]) -> str:
    """The calls of a step as a line in log(1/eps): the logarithm that a claim hides."""
    if row.eps is None or len(points) < FEWEST:
        return ""
    x = np.log(1 / np.array([p["eps"] for p in points]))
    each = np.array([p["cost"] / p["steps"] for p in points])
    if np.ptp(each) < _FLAT * each.max():
        return ""
    slope, start = np.polyfit(x, each, 1)
    off = float(np.abs(start + slope * x - each).max() / each.min())
    if off > _OFF:
        return ""
    return f"calls of a step: {start:.3g} {slope:+.3g} log(1/eps), within {math.ceil(100 * off)}%"
