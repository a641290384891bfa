"""The paper's complexity tables with the measured exponents beside the claimed ones, as text and as a figure."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import seaborn as sns

Row = dict[str, Any]

COLUMNS = ("oracle", "method", "claimed", "calls", "steps", "expected", "range", "verdict")


def claimed(row: Row) -> str:
    """`~dx^2 eps^-4`, as the paper prints it."""
    tilde = "~" if row["tilde"] else ""
    factor = f"{row['extra']} " if row["extra"] else ""
    power = f"kappa^{row['claimed']:g}" if row["over"] == "kappa" else f"eps^-{row['claimed']:g}"
    return f"{tilde}{factor}{power}"


def interval(middle: float | None, low: float | None, high: float | None) -> str:
    if middle is None or low is None or high is None:
        return "–"
    return f"{middle:.2f} [{low:.2f}, {high:.2f}]"


def cells(row: Row) -> tuple[str, ...]:
    """One line of the table. `expected` is what the claim predicts on the instance, and the finite-range prediction."""
    steps = interval(row["measured_steps"], row["low_steps"], row["high_steps"])
    expected = f"{row['target']:.2f}"
    if row["predicted"] is not None:
        expected += f" ({row['predicted']:.2f})"
    reach = "–" if row["eps_max"] is None else f"{row['eps_max']:.3g} to {row['eps_min']:.3g}, {row['seeds']} seeds"
    calls = interval(row["measured"], row["low"], row["high"])
    name = row["label"] if row["setting"] == "deterministic" else f"{row['label']}, {row['setting']}"
    return (row["oracle"], name, claimed(row), calls, steps, expected, reach, row["verdict"])


def notes(rows: Sequence[Row]) -> list[str]:
    """What belongs under the table: necessity, local slopes, what was not reached, footnotes."""
    out = []
    for row in rows:
        said = [f"local slopes {' '.join(f'{s:.2f}' for s in row['local_slopes'])}"] if row["local_slopes"] else []
        if row["log_free_of"] not in ("steps", "cost") and row["log_free"] is not None:
            counted = {"grad_g_y": "lower-level gradients"}.get(row["log_free_of"], row["log_free_of"])
            said.append(f"{counted} {row['log_free']:.2f}, which the verdict is about")
        if row["success"] is not None:
            said.append(f"{row['success']:.0%} of the trials reached their accuracy")
        said += [
            text for text in (row["necessity"], row["own_notion"] and f"in its own notion {row['own_notion']}") if text
        ]
        said += [
            f"not fitted: {u['value']:.3g} reached by {u['reached']} of {u['seeds']} seeds" for u in row["unreached"]
        ]
        said += [text for text in (row["note"], row["footnote"]) if text]
        out.append(f"{cells(row)[1]}: {'; '.join(said)}")
    return out


def markdown(title: str, rows: Sequence[Row]) -> str:
    lines = [f"### {title}", "", "| " + " | ".join(COLUMNS) + " |", "|" + " --- |" * len(COLUMNS)]
    lines += ["| " + " | ".join(cells(row)) + " |" for row in rows]
    lines += ["", *(f"- {note}" for note in notes(rows)), ""]
    return "\n".join(lines)


def figure(title: str, rows: Sequence[Row]) -> str:
    """Log-log curves of cost against 1/eps, each with its claimed slope dashed through its first point; an SVG text."""
    drawn = [row for row in rows if row["points"]]
    colours = sns.color_palette("colorblind", max(len(drawn), 1))
    canvas, axes = plt.subplots(figsize=(7.2, 4.8), layout="constrained")
    for colour, row in zip(colours, drawn, strict=False):
        eps = np.array([p["eps"] for p in row["points"]])
        cost = np.array([p["cost"] for p in row["points"]])
        axes.plot(
            1 / eps,
            cost,
            "o-",
            color=colour,
            markersize=3,
            linewidth=1.2,
            label=f"{cells(row)[1]} {row['measured']:.2f}",
        )
        axes.plot(1 / eps, cost[0] * (eps[0] / eps) ** row["claimed"], "--", color=colour, linewidth=0.7)
    axes.set(xscale="log", yscale="log", xlabel="1/eps", ylabel="oracle calls", title=title)
    if drawn:
        axes.legend(frameon=False, fontsize=8, title="measured slope of calls")
    sns.despine(canvas)
    text = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "bilevelbench", "svg.fonttype": "none"}):
        canvas.savefig(text, format="svg", metadata={"Date": None})
    plt.close(canvas)
    return text.getvalue()
