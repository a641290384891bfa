"""The paper's complexity tables with the measured exponents beside the claimed ones, as tables and as figures."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from bilevelbench.errors import StoreError
from bilevelbench.report.analysis.fit import compared
from bilevelbench.report.analysis.predict import SetBy, asymptotic
from bilevelbench.report.pipe_table import pipe_table
from bilevelbench.report.text import number, printable

RateRecord = dict[str, Any]

COLUMNS = ("oracle", "method", "claimed", "calls", "steps", "expected", "range", "verdict")

#: What every row of a rates.json has; the rest may come and go with versions.
_REQUIRED = (
    *("table", "method", "label", "setting", "oracle", "claimed", "tilde", "target", "verdict"),
    *("measured", "low", "high", "measured_steps", "low_steps", "high_steps", "eps_max", "eps_min"),
)
_OPTIONAL: RateRecord = {
    "over": "eps",
    "log_free_of": "steps",
    **dict.fromkeys(("predicted", "log_free", "second_half", "success")),
    **dict.fromkeys(("extra", "footnote", "necessity", "own_notion", "note", "rule"), ""),
    **{name: [] for name in ("local_slopes", "unreached", "points")},
    "seeds": 0,
}


@dataclass(frozen=True)
class RateTable:
    """One rates.json: rows in the order of the paper's table."""

    title: str
    rows: list[RateRecord]
    path: Path


def read_rates(path: Path) -> RateTable:
    """`{"title": ..., "rows": [...]}` as `bilevelbench rates` writes it."""
    again = "measure again: bilevelbench rates"
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
        title, rows = printable(said["title"]), [dict(row) for row in said["rows"]]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise StoreError(f"{path} is not a file of measured rates ({error!r}); {again}") from None
    missing = [name for row in rows for name in _REQUIRED if name not in row]
    if missing:
        raise StoreError(f"{path} has a row without {missing[0]!r}; {again}")
    return RateTable(title, [_OPTIONAL | (row if "set_by" in row else _with_rule(row)) for row in rows], path)


def _with_rule(row: RateRecord) -> RateRecord:
    """A row from before files said what its preset is set by: with that, the slope expected by it, and the verdict on that.

    Those files expected `claimed (1 + 1/q)/2` of every row, which holds only for presets set by the number of steps: those
    of a horizon, and BA's, which is counted in lower-level gradients. All of them were measured on a tail of exponent 1.05.
    """
    q = 1.05
    by_steps = row.get("rule") == "horizon" or row.get("log_free_of") == "grad_g_y"
    set_by: SetBy = "kappa" if row.get("over") == "kappa" else "steps" if by_steps else "eps"
    target, verdict = asymptotic(row["claimed"], set_by, q), row["verdict"]
    counted = row.get("log_free_of", "steps")
    if (
        set_by == "eps"
        and row["low"] is not None
        and verdict in ("matches", "faster than claimed", "slower than claimed")
    ):
        end = "_steps" if counted == "steps" else ""
        # of calls over a parameter of the preset, one number for each eps: their interval is that of the calls, moved
        moved = row["log_free"] - row["measured"] if counted.startswith("cost /") else 0.0
        verdict = compared(row[f"low{end}"] + moved, row[f"high{end}"] + moved, row["claimed"], target)
    return {**row, "set_by": set_by, "q": q, "target": target, "verdict": verdict}


def in_order(tables: Iterable[RateTable]) -> list[RateTable]:
    """Table 1 first, exponents of eps before those of kappa; what is in no table of the paper comes last."""

    def place(table: RateTable) -> tuple[list[tuple[float, bool]], str]:
        first = [(math.inf if r["table"] is None else r["table"], r["over"] == "kappa") for r in table.rows[:1]]
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
    """`~dx^2 eps^-4`, as the paper prints it."""
    tilde = "~" if row["tilde"] else ""
    factor = f"{row['extra']} " if row["extra"] else ""
    power = f"kappa^{row['claimed']:g}" if row["over"] == "kappa" else f"eps^-{row['claimed']:g}"
    return f"{tilde}{factor}{power}"


def interval(middle: float | None, low: float | None, high: float | None) -> str:
    if middle is None or low is None or high is None:
        return "–"
    return f"{middle:.2f} [{low:.2f}, {high:.2f}]"


def name_of(row: RateRecord) -> str:
    setting = row["setting"].replace("_", "-")
    return printable(row["label"] if setting == "deterministic" else f"{row['label']}, {setting}")


def cells(row: RateRecord) -> tuple[str, ...]:
    """One line of the table. `expected` is what the claim predicts on the instance, and the finite-range prediction."""
    steps = interval(row["measured_steps"], row["low_steps"], row["high_steps"])
    expected = f"{row['target']:.2f}"
    if row["predicted"] is not None:
        expected += f" ({row['predicted']:.2f})"
    reach = "–" if row["eps_max"] is None else f"{row['eps_max']:.3g} to {row['eps_min']:.3g}, {row['seeds']} seeds"
    calls = interval(row["measured"], row["low"], row["high"])
    return (row["oracle"], name_of(row), claimed(row), calls, steps, expected, reach, row["verdict"])


def reference(row: RateRecord, rows: Sequence[RateRecord]) -> float | None:
    """The smallest accuracy (or largest kappa) that every measured row of this table and setting got to."""
    alike = [r for r in rows if all(r[k] == row[k] for k in ("table", "setting", "over")) and r["points"]]
    ends: list[list[float]] = [[p["eps"] for p in r["points"]] for r in alike]
    if not ends:
        return None
    return min(map(max, ends)) if row["over"] == "kappa" else max(map(min, ends))


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
    found = ("measured", "low", "high", "measured_steps", "low_steps", "high_steps", "eps_max", "eps_min", "seeds")
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
        letter = "kappa" if row["over"] == "kappa" else "eps"
        calls = at_reference(row, eps)
        line["calls at"] = "–" if np.isnan(calls) else f"{number(calls)} at {letter} {eps:.3g}"
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
        if row["log_free_of"] not in ("steps", "cost") and row["log_free"] is not None:
            counted = {"grad_g_y": "lower-level gradients"}.get(row["log_free_of"], row["log_free_of"])
            said.append(f"{counted} {row['log_free']:.2f}, which the verdict is about")
        if row["success"] is not None:
            said.append(f"{_share(row['success'])} of the trials reached their accuracy")
        said += [
            text for text in (row["necessity"], row["own_notion"] and f"in its own notion {row['own_notion']}") if text
        ]
        said += [
            f"not fitted: {grid} {u['value']:.3g}, {done} by {u['reached']} of {u['seeds']} seeds"
            for u in row["unreached"]
        ]
        said += [text for text in (row["note"], row["footnote"]) if text]
        out.append(f"{name_of(row)}: {'; '.join(said)}")
    return out


def _share(success: float) -> str:
    """In percent, rounded down: `100%` are all, and `0%` none."""
    return "less than 1%" if 0 < success < 0.01 else f"{math.floor(100 * success + 1e-9)}%"


def markdown(title: str, rows: Sequence[RateRecord]) -> str:
    lines = [f"### {printable(title)}", "", pipe_table(readable(rows)), *(f"- {printable(n)}" for n in notes(rows)), ""]
    return "\n".join(lines)


def _hvps(row: RateRecord, eps: float | None) -> float:
    """Products with second derivatives; those of a gradient method are none."""
    if row["oracle"] == "gradient":
        return 0.0
    return at_reference(row, eps, "second_order")
