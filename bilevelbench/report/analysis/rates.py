"""The paper's complexity tables with the measured exponents beside the claimed ones, as tables and as figures."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from bilevelbench.errors import StoreError
from bilevelbench.report.analysis.fit import OUTSIDE, compared, range_needed
from bilevelbench.report.analysis.predict import SetBy, asymptotic
from bilevelbench.report.pipe_table import pipe_table
from bilevelbench.report.text import formula, number, printable
from bilevelbench.untrusted import NUMBER, NUMBER_OR_NONE, TEXT, UNSHOWABLE, Refused, read_json, wrong_kind

RateRecord = dict[str, Any]

COLUMNS = (
    *("oracle", "method", "claimed", "expected", "decides", "second half", "calls", "steps"),
    *("range", "verdict"),
)

#: What the columns mean, for a line under the table.
LEGEND = (
    "claimed: the exponent in the paper. expected: what an exact run of the claim shows on this instance, in brackets by "
    "quadrature on this range. decides: the slope that the verdict is about and its count, in brackets 95% over seeds only. "
    "second half: the same slope on the harder half of the range and its difference: the part that a short range leaves open. "
    "A claim is an upper bound: only `slower than claimed` contradicts it."
)

#: What a row says of its parameters that was not run.
COUNTED = "counted, not run"

_OPTIONAL: RateRecord = {
    "over": "eps",
    "log_free_of": "steps",
    **dict.fromkeys(
        ("predicted", "log_free", "low_free", "high_free", "second_half", "success", "lower_bound", "q", "largest_eps")
    ),
    **dict.fromkeys(("extra", "footnote", "note", "rule", "problem", "preset"), ""),
    **dict.fromkeys(("necessity", "tuned", "own_notion", "noise", "needed", "against", "logarithm"), ""),
    "columns": {},
    **{name: [] for name in ("local_slopes", "unreached", "points")},
    "seeds": 0,
}

#: Every row of a rates.json has these; what `_OPTIONAL` fills may come and go with versions.
_KINDS = {
    **dict.fromkeys(("method", "label", "setting", "oracle", "verdict"), TEXT),
    **dict.fromkeys(("table", "claimed", "target", "measured", "low", "high"), NUMBER_OR_NONE),
    **dict.fromkeys(("measured_steps", "low_steps", "high_steps", "eps_max", "eps_min"), NUMBER_OR_NONE),
    "tilde": (bool,),
    **{name: NUMBER_OR_NONE if usual is None else (type(usual),) for name, usual in _OPTIONAL.items()},
}
_POINT = dict.fromkeys(("eps", "cost"), NUMBER)


@dataclass(frozen=True)
class RateTable:
    """One rates.json: rows in the order of the paper's table."""

    title: str
    rows: list[RateRecord]
    path: Path
    made: str = ""  # when, from which commit and on what machine; older files do not say


def read_rates(path: Path) -> RateTable:
    """`{"title": ..., "made": ..., "rows": [...]}` as `bilevelbench rates` writes it."""
    again = "measure again: bilevelbench rates"
    try:
        said = read_json(path, path.parent)
        title, rows = printable(said["title"]), [dict(row) for row in said["rows"]]
        made = printable(said.get("made", ""))
    except (Refused, ValueError, TypeError, KeyError) as error:
        raise StoreError(f"{path} is not a file of measured rates ({error!r}); {again}") from None
    rows = [_OPTIONAL | row for row in rows]
    for row in rows:
        fault = wrong_kind(row, _KINDS) or next(filter(None, (wrong_kind(p, _POINT) for p in row["points"])), None)
        if fault:
            raise StoreError(f"{path} has a row that {fault}; {again}")
    try:
        rows = [_with_range(_with_rule(_with_interval(row))) for row in rows]
        readable(rows), notes(rows), frame(rows)  # numbers that do not fit each other show here
    except UNSHOWABLE as error:
        raise StoreError(f"{path} has a row that cannot be shown ({error!r}); {again}") from None
    return RateTable(title, rows, path, made)


def _with_interval(row: RateRecord) -> RateRecord:
    """A row from before files had the interval of the slope that decides: it is that of the steps or the calls.

    Of calls over a parameter of the preset, which is one number for each eps, it is that of the calls, moved.
    """
    if row["low_free"] is not None or row["log_free"] is None or row["low"] is None:
        return row
    end = "_steps" if row["log_free_of"] == "steps" else ""
    middle = row["measured_steps"] if end else row["measured"]
    moved = row["log_free"] - middle
    return {**row, "low_free": row[f"low{end}"] + moved, "high_free": row[f"high{end}"] + moved}


def _with_rule(row: RateRecord) -> RateRecord:
    """A row from before files said what its preset is set by: with that, the slope expected by it, and the verdict on that.

    Those files expected `claimed (1 + 1/q)/2` of every row, which holds only for presets set by the number of steps: those
    of a horizon, and BA's, which is counted in lower-level gradients. All of them were measured on a tail of exponent 1.05.
    """
    if "set_by" in row:
        return row
    q = 1.05
    by_steps = row["rule"] == "horizon" or row["log_free_of"] == "grad_g_y"
    set_by: SetBy = "sweep" if row["over"] == "kappa" else "steps" if by_steps else "eps"
    target, verdict = asymptotic(row["claimed"], set_by, q), row["verdict"]
    if (
        set_by == "eps"
        and row["low_free"] is not None
        and verdict in ("matches", "faster than claimed", "slower than claimed")
    ):
        verdict = compared(row["low_free"], row["high_free"], row["claimed"], target)
    # They called a part needed that was missed within 1.25 times the steps, which the sentence says by itself.
    necessity = row["necessity"].removesuffix("; needed")
    return {**row, "set_by": set_by, "q": q, "target": target, "verdict": verdict, "necessity": necessity}


def _with_range(row: RateRecord) -> RateRecord:
    """A row from before files said which range a verdict would take: by its own points and slopes."""
    if row["needed"]:
        return row
    slopes = None if row["log_free"] is None or row["second_half"] is None else (row["log_free"], row["second_half"])
    found = range_needed(row["verdict"], row["points"], slopes, row["over"], row["rule"] == "horizon")
    return {**row, "needed": found}


#: What is swept in the paper's tables, and then in the order of interest.
_SWEEPS = {"eps": 0, "kappa": 1}


def in_order(tables: Iterable[RateTable]) -> list[RateTable]:
    """The paper's tables as they are there, then exponents of kappa, then others; of each, what is in no table comes last."""

    def place(table: RateTable) -> tuple[list[tuple[int, float]], str]:
        first = [
            (_SWEEPS.get(r["over"], len(_SWEEPS)), math.inf if r["table"] is None else r["table"])
            for r in table.rows[:1]
        ]
        return first, table.title

    return sorted(tables, key=place)


def find_rates(folder: Path) -> tuple[list[RateTable], list[str]]:
    """Every rates.json in and under a folder, in order, and a sentence for each that cannot be used."""
    tables, warnings = [], []
    for path in sorted(folder.rglob("rates.json")):
        try:
            tables.append(read_rates(path))
        except StoreError as error:
            warnings.append(str(error))
    return in_order(tables), warnings


def claimed(row: RateRecord) -> str:
    """`Õ(dₓ² ε⁻⁴)`, as the paper prints it."""
    if row["claimed"] is None:
        return "–"
    factor = f"{row['extra']} " if row["extra"] and row["over"] in ("eps", "kappa") else ""
    exponent = f"{row['claimed']:.3g}"
    power = f"eps^-{exponent}" if row["over"] == "eps" else f"{row['over']}^{exponent}"
    return f"{'Õ' if row['tilde'] else 'O'}({formula(factor + power)})"


def interval(middle: float | None, low: float | None, high: float | None) -> str:
    if middle is None or low is None or high is None:
        return "–"
    return f"{middle:.2f} [{low:.2f}, {high:.2f}]"


def name_of(row: RateRecord) -> str:
    setting = row["setting"].replace("_", "-")
    return printable(row["label"] if setting == "deterministic" else f"{row['label']}, {setting}")


def cells(row: RateRecord) -> tuple[str, ...]:
    """One line of the table, as `LEGEND` explains it."""
    steps = interval(row["measured_steps"], row["low_steps"], row["high_steps"])
    expected = "–" if row["target"] is None else f"{row['target']:.2f}"
    if row["predicted"] is not None:
        expected += f" ({row['predicted']:.2f})"
    if row["lower_bound"] is not None:
        expected += f", at least {row['lower_bound']:g}"
    decides = interval(row["log_free"], row["low_free"], row["high_free"])
    if row["log_free"] is not None:
        decides += f" {count_of(row)}"
    calls = interval(row["measured"], row["low"], row["high"])
    return (
        *(row["oracle"], name_of(row), claimed(row), expected, decides, _second_half(row), calls, steps),
        *(_reach(row), row["verdict"]),
    )


def count_of(row: RateRecord) -> str:
    """What was counted for the slope that decides, in words."""
    words = {"cost": "calls", "grad_g_y": "lower-level gradients"}
    count, *over = row["log_free_of"].split(" / ")
    return " / ".join([words.get(count, count), *over])


def _second_half(row: RateRecord) -> str:
    if row["second_half"] is None or row["log_free"] is None:
        return "–"
    return f"{row['second_half']:.2f} ({row['second_half'] - row['log_free']:+.2f})"


def _reach(row: RateRecord) -> str:
    if row["eps_max"] is None:
        return "–"
    if row["over"] == "eps":
        return f"{row['eps_max']:.3g} to {row['eps_min']:.3g}, {row['seeds']} seeds"
    by = "counted" if row["tuned"] == COUNTED else f"{row['seeds']} seeds"
    return f"{formula(row['over'])} {row['eps_min']:g} to {row['eps_max']:g}, {by}"


def reference(row: RateRecord, rows: Sequence[RateRecord]) -> float | None:
    """The smallest accuracy (or largest kappa) that every measured row of this table and setting got to."""
    alike = [r for r in rows if all(r[k] == row[k] for k in ("table", "setting", "over")) and r["points"]]
    ends: list[list[float]] = [[p["eps"] for p in r["points"]] for r in alike]
    if not ends:
        return None
    return max(map(min, ends)) if row["over"] == "eps" else min(map(max, ends))


def at_reference(row: RateRecord, eps: float | None, count: str = "cost") -> float:
    """A count at an accuracy, on the line between the measured points in logarithms; NaN outside of their range."""
    points = sorted(((p["eps"], p[count]) for p in row["points"] if count in p), key=lambda pair: pair[0])
    if not points or eps is None or not points[0][0] * (1 - 1e-9) <= eps <= points[-1][0] * (1 + 1e-9):
        return float("nan")
    x, y = (np.array(values, dtype=float) for values in zip(*points, strict=True))
    if (y <= 0).any():
        return float(np.interp(eps, x, y))
    return float(np.exp(np.interp(np.log(eps), np.log(x), np.log(y))))


def frame(rows: Sequence[RateRecord]) -> pd.DataFrame:
    """One row per claim, with its numbers in full, for CSV."""
    plain = ("table", "setting", "oracle", "method", "label", "over", "claimed", "tilde", "extra", "target")
    found = (
        *("log_free", "low_free", "high_free", "log_free_of", "second_half"),
        *("measured", "low", "high", "measured_steps", "low_steps", "high_steps", "eps_max", "eps_min", "seeds"),
    )
    out = []
    for row in rows:
        eps = reference(row, rows)
        out.append(
            {
                **{name: row[name] for name in (*plain, *found)},
                "reference": eps,
                "calls_at_reference": at_reference(row, eps),
                "hvps_at_reference": _hvps(row, eps),
                "verdict": row["verdict"],
            }
        )
    return pd.DataFrame(out)


def readable(rows: Sequence[RateRecord]) -> pd.DataFrame:
    """The table for people: what `cells` says, with calls and HVPs at the reference accuracy before the verdict."""
    out = []
    for row in rows:
        line = dict(zip(COLUMNS, cells(row), strict=True))
        eps = reference(row, rows)
        calls = at_reference(row, eps)
        line["calls at"] = "–" if np.isnan(calls) else f"{number(calls)} at {formula(row['over'])} {eps:.3g}"
        line["HVPs"] = number(_hvps(row, eps))
        out.append(line)
    order = [*COLUMNS[:-1], "calls at", "HVPs", "verdict"]
    return pd.DataFrame(out, columns=order).rename(columns={"calls": "calls exponent", "steps": "steps exponent"})


def notes(rows: Sequence[RateRecord]) -> list[str]:
    """What belongs under the table: necessity, local slopes, what was not reached, footnotes."""
    out = []
    for row in rows:
        grid, done = ("horizon", "finished") if row["rule"] == "horizon" else (row["over"], "reached")
        said = [f"local slopes {' '.join(f'{s:.2f}' for s in row['local_slopes'])}"] if row["local_slopes"] else []
        if row["over"] != "eps" and row["columns"]:
            each = (
                f"{name} {slope:.2f} [{low:.2f}, {high:.2f}]" for name, (slope, low, high) in row["columns"].items()
            )
            said.append(f"by {'factor' if row['tuned'] == COUNTED else 'query'}: {', '.join(each)}")
        if row["verdict"] == OUTSIDE:
            said.append(f"the theorem's parameters do what it says for eps below {row['largest_eps']:.2g} only")
        if row["success"] is not None:
            said.append(f"{_share(row['success'])} of the trials reached their accuracy")
        said += [
            text
            for text in (
                row["necessity"],
                row["tuned"],
                row["noise"],
                row["own_notion"] and f"in its own notion {row['own_notion']}",
            )
            if text
        ]
        said += [
            f"not fitted: {grid} {u['value']:.3g}, {done} by {u['reached']} of {u['seeds']} seeds{_why(u)}"
            for u in row["unreached"]
        ]
        said += [
            text for text in (row["against"], row["logarithm"], row["needed"], row["note"], row["footnote"]) if text
        ]
        out.append(f"{name_of(row)}: {'; '.join(said)}")
    return out


def _why(unreached: RateRecord) -> str:
    message = printable(unreached.get("message", ""))
    return f" ({message})" if message else ""


def _share(success: float) -> str:
    """In percent, rounded down: `100%` are all, and `0%` none."""
    return "less than 1%" if 0 < success < 0.01 else f"{math.floor(100 * success + 1e-9)}%"


def markdown(title: str, rows: Sequence[RateRecord]) -> str:
    lines = [
        f"### {printable(title)}",
        "",
        pipe_table(readable(rows)),
        LEGEND,
        "",
        *(f"- {printable(n)}" for n in notes(rows)),
        "",
    ]
    return "\n".join(lines)


def _hvps(row: RateRecord, eps: float | None) -> float:
    """Products with second derivatives; those of a gradient method are none."""
    if row["oracle"] == "gradient":
        return 0.0
    return at_reference(row, eps, "second_order")
