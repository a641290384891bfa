"""Summaries of results: one row per method and problem, failures counted and never dropped."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from bilevelbench.errors import StoreError
from bilevelbench.plan.trial import beside_the_data, bracketed
from bilevelbench.report.text import interval_end, number, printable
from bilevelbench.results import reached
from bilevelbench.results.schema import CURVE, RUNS, Results
from bilevelbench.results.status import Status
from bilevelbench.untrusted import parameters

#: Shares of |grad phi| at the start for which tables have a column of costs.
ACCURACIES = (1e-1, 1e-2, 1e-3)
#: Those by which methods are ranked: twelve, half a power of ten apart.
TARGETS = tuple(10.0 ** (-n / 2) for n in range(1, 13))

#: What accuracies are shares of, in most trials and in those that were held to second order (`results.reached`).
NORM, EPS = "|grad phi|", "second-order eps"
_EITHER = f"{NORM} or eps"

#: The column of the summary behind one of the readable table.
_BEHIND = {
    **dict.fromkeys((NORM, EPS, _EITHER), "best_grad_phi"),
    "gradients": "first_order",
    "HVP + JVP": "second_order",
}  # fmt: skip

#: Where x is confined to a set.
MAPPED = "{} x is confined to a set, and |grad phi| is the length of the gradient mapping x - P(x - grad phi)."

RANKING = "Ranking over all problems and accuracies"

#: Problems whose start a sentence tells.
_STARTS = 6

#: Before the name of the metric that chose, in the summary of tuned trials.
_FINAL = "final_"


def require(results: Results) -> None:
    """Every column of the schema is there; a table from elsewhere may lack some."""
    for name, frame, columns in (("runs", results.runs, RUNS), ("curve", results.curve, CURVE)):
        missing = [column for column in columns if column not in frame]
        if missing:
            raise StoreError(
                f"the table `{name}` has no column {missing[0]!r} ({len(missing)} of {len(columns)} are missing); "
                "write it with bilevelbench run or merge, or fetch it again"
            )


def summary(results: Results, accuracies: Sequence[float] = ACCURACIES) -> pd.DataFrame:
    """Medians over trials of one method (as labelled) on one problem, best gradient first.

    Trials that `bilevelbench tune` chose the parameters of are ranked by the metric that chose, at the end.

    What counts as reached is said in `results.reached`. The cost to an accuracy is that of the first evaluation that
    meets it; a trial that never does costs infinitely much, so a median is infinite when half of the trials fail.
    `reached_*` counts those that did; `low_*` and `high_*` are quartiles, of `start` the least and the largest |grad phi|
    at x0, of which accuracies are shares, or what `share_of` names instead.
    """
    require(results)
    if results.runs.empty:
        raise StoreError("there are no results to report; run something first: bilevelbench run --all")
    columns = [f"cost_to_{eps:g}" for eps in accuracies]
    table = titled(results.runs).merge(cost_to(results, accuracies), left_on="trial_id", right_index=True, how="left")
    table[columns] = table[columns].fillna(np.inf)
    table["failed"], table["uncertified"] = reached.failed(table), reached.uncertified(table)
    table["best_grad_phi"] = table["trial_id"].map(reached.best(results))
    table["phi"] = table["phi"].where(~table["failed"], np.inf)
    table["start"] = table["trial_id"].map(reached.starts(results)["start"])
    table["share_of"] = np.where(table["trial_id"].isin(reached.held_to_both(results)), EPS, NORM)
    chose = f"{_FINAL}{by}" if (by := chosen_by(results)) else ""
    if chose:
        last = results.curve.drop_duplicates("trial_id", keep="last").set_index("trial_id")[by]
        table[chose] = table["trial_id"].map(last).where(~table["failed"], np.inf).fillna(np.inf)
    groups = table.groupby(["title", "method", "algorithm", "share_of"], sort=False)
    place = groups.ngroup().to_numpy()
    spread = ("best_grad_phi", *columns)
    medians = {name: groups[name].median().to_numpy(dtype=float) for name in (*spread, "phi", *filter(None, [chose]))}
    out = pd.DataFrame(
        {
            **groups.size().rename("trials").reset_index().rename(columns={"title": "problem"}),
            "failed": groups["failed"].sum().to_numpy(),
            "uncertified": groups["uncertified"].sum().to_numpy(),
            "reached_target": _count(place, table["status"] == Status.TARGET),
            **{name: medians[name] for name in ("best_grad_phi", "phi", *filter(None, [chose]))},
            **{f"low_{name}": _quantiles(table[name], place, 0.25) for name in spread},
            **{name: medians[name] for name in columns},
            **{f"high_{name}": _quantiles(table[name], place, 0.75) for name in spread},
            **{name.replace("cost_to", "reached"): _count(place, np.isfinite(table[name])) for name in columns},
            **{name: groups[name].median().to_numpy(dtype=float) for name in ("first_order", "second_order", "cost")},
            "low_start": groups["start"].min().to_numpy(dtype=float),
            "high_start": groups["start"].max().to_numpy(dtype=float),
            "statuses": _endings(table["status"], place),
        }
    )
    order = ["problem", chose or "best_grad_phi", "failed", "method"]
    return out.sort_values(order, kind="stable", ignore_index=True)


def chosen_by(results: Results) -> str:
    """The metric by which `bilevelbench tune` chose the parameters of all these trials; empty if there is none."""
    tuned = {str(t["id"]): str(t.get("tuned") or "") for record in results.records for t in record.get("trials", [])}
    metrics = {tuned.get(trial_id, "") for trial_id in results.runs["trial_id"]}
    by = metrics.pop() if len(metrics) == 1 else ""
    return by if by in results.curve else ""


def titled(runs: pd.DataFrame) -> pd.DataFrame:
    """`runs` with what a reader calls them: `title` of the problem with its parameters, `method` as labelled."""
    return runs.assign(
        title=_each(printable, runs["problem"] + _each(variant, runs["problem_params"])),
        method=_each(printable, runs["label"].where(runs["label"] != "", runs["algorithm"])),
    )


def _each(function: Callable[[str], str], texts: pd.Series[str]) -> pd.Series[str]:
    """The function of each text, called once for those that are equal: a table has few titles and many rows."""
    return texts.map({text: function(text) for text in texts.unique()})


def variant(problem_params: str) -> str:
    """`[dim_x=5]` for what was set beside the data, as `Spec.variant` says it."""
    given = parameters(problem_params)
    return bracketed(beside_the_data(given)) if given is not None else f"[{problem_params}]"


def data_seeds(runs: pd.DataFrame) -> pd.Series[str]:
    """The `data_seed` of each trial as text; empty where the problem's default was used."""
    return _each(lambda text: str((parameters(text) or {}).get("data_seed", "")), runs["problem_params"])


def cost_to(results: Results, accuracies: Sequence[float] = ACCURACIES) -> pd.DataFrame:
    """Cost of the first evaluation that certifies each accuracy, by trial; NaN: never."""
    met = zip(accuracies, reached.first_met(results, accuracies), strict=True)
    columns = {f"cost_to_{eps:g}": rows["cost"] for eps, rows in met}
    return pd.DataFrame(columns).reindex(results.runs["trial_id"])


def _count(place: np.ndarray, true: pd.Series[bool]) -> np.ndarray:
    """How often it is true in each group; `place` numbers the group of each row."""
    return np.bincount(place[true.to_numpy(dtype=bool)], minlength=place.max() + 1)


def _quantiles(values: pd.Series[float], place: np.ndarray, q: float) -> np.ndarray:
    """By group, linear between neighbours, and infinite where the upper neighbour is; pandas makes NaN of two infinities."""
    numbers, size = values.to_numpy(dtype=float), np.bincount(place)
    ordered = numbers[np.lexsort((numbers, place))]
    start, at = np.cumsum(size) - size, q * (size - 1)
    low, high = (ordered[start + end(at).astype(int)] for end in (np.floor, np.ceil))
    with np.errstate(invalid="ignore"):  # the difference of two infinities, which is not asked for
        between = low + (high - low) * (at - np.floor(at))
    out: np.ndarray = np.where((low == high) | (at == np.floor(at)), low, between)
    return out


def _endings(statuses: pd.Series[str], place: np.ndarray) -> list[str]:
    """How the trials of each group ended, the most frequent ending first."""
    ends: list[Counter[str]] = [Counter() for _ in range(place.max() + 1)]
    for (group, status), n in Counter(zip(place.tolist(), statuses, strict=True)).items():
        ends[group][status] = n
    return [", ".join(f"{n} {status}" for status, n in end.most_common()) for end in ends]


def readable(table: pd.DataFrame, spread: bool = False) -> pd.DataFrame:
    """The summary for people: words in the header, few digits, words for a cost that was not reached.

    With `spread` the quartiles stand behind the median of several trials.
    """
    accuracies = [name.removeprefix("cost_to_") for name in table.columns if name.startswith("cost_to_")]
    rows = table.to_dict("records")  # a row of pandas takes a hundred times as long to make

    def cells(name: str) -> list[str]:
        quartiles = zip(table["trials"], table[name], table[f"low_{name}"], table[f"high_{name}"], strict=True)
        return [
            f"{number(middle)} [{interval_end(low)}, {interval_end(high)}]"
            if spread and n > 1 and low < high
            else number(middle)
            for n, middle, low, high in quartiles
        ]

    costs = {
        f"cost to {eps}": [cost_text(row, eps, text) for text, row in zip(cells(f"cost_to_{eps}"), rows, strict=True)]
        for eps in accuracies
    }
    gradient = zip(cells("best_grad_phi"), table["best_grad_phi"], strict=True)
    return pd.DataFrame(
        {
            "problem": table["problem"],
            "method": table["method"],
            **{name.removeprefix(_FINAL): table[name].map(number) for name in table.columns if name.startswith(_FINAL)},
            share_of(table["share_of"]): [text if math.isfinite(value) else "–" for text, value in gradient],
            **costs,
            "gradients": table["first_order"].map(number),
            "HVP + JVP": table["second_order"].map(number),
            "trials": table["trials"],
            "ended": table["statuses"],
        }
    )


def share_of(each: Iterable[str]) -> str:
    """What accuracies are shares of in trials of which each has one of the two."""
    known = set(each)
    return _EITHER if len(known) > 1 else known.pop() if known else NORM


def shares_of(results: Results) -> str:
    """The same of results."""
    both = results.runs["trial_id"].isin(reached.held_to_both(results))
    return share_of(both.map({True: EPS, False: NORM}))


def measure_column(people: pd.DataFrame) -> str:
    """The column of a readable table that has what accuracies are shares of."""
    return next(column for column in people.columns if column in (NORM, EPS, _EITHER))


def cost_text(row: Mapping[Any, Any], eps: str, text: str = "") -> str:
    """The median cost to an accuracy, or as `text` has it; where it is infinite, how many got there and if one can tell."""
    cost = row[f"cost_to_{eps}"]
    if math.isfinite(cost):
        return text or number(cost)
    if row[f"reached_{eps}"]:
        return f"{row[f'reached_{eps}']} of {row['trials']}"
    return "not certified" if 0 < row["uncertified"] == row["trials"] - row["failed"] else "never"


def reading(table: pd.DataFrame) -> str:
    """How the numbers of a summary come about; only what the table shows."""
    many = (table["trials"] > 1).any()
    people = readable(table, spread=True)
    numbers = people[[measure_column(people), *(c for c in people.columns if c.startswith("cost to "))]]
    said = ["medians over trials" if many else "one trial each"]
    said[0] += ", quartiles in brackets" if numbers.map(lambda text: text.endswith("]")).to_numpy().any() else ""
    if told := start_words(table):
        said.append(told)
    if (table["share_of"] == EPS).any():
        said.append(
            f"{EPS}: the smallest eps for which both conditions of second-order stationarity hold, errors included"
        )
    if (table["failed"] > 0).any():
        said.append("a trial that failed counts as infinite")
    if numbers.isin(["not certified"]).to_numpy().any():
        said.append(
            '"not certified": the problem does not bound the error of the gradient, so no accuracy counts as reached'
        )
    return "; ".join(said)


def start_words(table: pd.DataFrame) -> str:
    """What an accuracy is a share of on each problem of a summary; empty where no start is known."""
    known = table[np.isfinite(table["low_start"])].groupby("problem", sort=False)
    ends = [(str(problem), float(part["low_start"].min()), float(part["high_start"].max())) for problem, part in known]
    if not ends:
        return ""
    told = [(problem, span(low, high)) for problem, low, high in ends[:_STARTS]]
    head = f"an accuracy is a share of {share_of(table['share_of'])} at the start"
    if len(ends) == 1:
        return f"{head}, {told[0][1]}"
    some = ", ".join(f"{text} on {problem}" for problem, text in told)
    return f"{head}: {some}{', ...' if len(ends) > _STARTS else ''}"


def start_notes(results: Results) -> list[str]:
    """A sentence for each problem whose trials disagree about what accuracies are shares of."""
    found = reached.starts(results)
    titles = pd.Series(titled(results.runs)["title"].to_numpy(), index=found.index)
    return [
        f"Trials on {title} disagree about {shares_of(results)} at the start; the first certified one counts."
        for title in sorted(titles[~found["agrees"]].unique())
    ]


def span(low: float, high: float) -> str:
    """`18 to 30`, or `18` where both ends read alike."""
    ends = list(dict.fromkeys((number(low), number(high))))
    return " to ".join(ends)


def certificates(runs: pd.DataFrame) -> str:
    """How sure the gradient norms are, and what they are norms of."""
    mapped = int(reached.is_mapping(runs).sum())
    if not mapped:
        return _certificates(runs)
    return f"{_certificates(runs)} {MAPPED.format(f'In {mapped} of {len(runs)} trials')}"


def _certificates(runs: pd.DataFrame) -> str:
    known = reached.kind(runs)
    doubtful, exact = known.isin(reached.UNCERTIFIED), known == "closed form"
    if doubtful.any():
        return (
            f"The gradient norms of {int(doubtful.sum())} of {len(runs)} trials are not certified, and no accuracy counts as "
            "reached there; the others are exact or come with a bound of their error, which counts."
            if not doubtful.all()
            else "The gradient norms are not certified, and no accuracy counts as reached."
        )
    if exact.all():
        return "The gradient norms are exact."
    return "The gradient norms are exact or come with a bound of their error, which counts."


def exact_rows(table: pd.DataFrame, people: pd.DataFrame) -> list[list[tuple[str, Any, str]]]:
    """The cells of a readable table: column, text, and the ten digits behind it. `table` is the summary that it was made of."""
    return [
        [(column, text, _exact(row, column)) for column, text in zip(people.columns, texts, strict=True)]
        for row, texts in zip(table.to_dict("records"), people.itertuples(index=False), strict=True)
    ]


def _exact(row: Mapping[Any, Any], column: str) -> str:
    name = _BEHIND.get(column, column.replace("cost to ", "cost_to_"))
    shown = name in row and name.startswith(("cost_to_", *_BEHIND.values())) and math.isfinite(row[name])
    return f"{row[name]:.10g}" if shown else ""


def readable_board(board: pd.DataFrame) -> pd.DataFrame:
    """A ranking for people; methods that share a letter in the last column cannot be told apart."""
    intervals = zip(board["low"], board["high"], strict=True)
    return pd.DataFrame(
        {
            "rank": board["rank"].map(lambda r: f"{r:g}"),
            "95% interval": [f"{low:g} to {high:g}" for low, high in intervals],
            "method": board["method"],
            "mean rank": board["mean_rank"].map(lambda r: f"{r:.1f}"),
            "cost over best": [number(r) if math.isfinite(r) else "∞" for r in board["relative"]],
            "reached": board["reached"].map(lambda share: f"{share:.0%}"),
            "tied": board["bands"],
        }
    )
