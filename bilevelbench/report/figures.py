"""Figures with seaborn: convergence against cost, a band over seeds."""

from __future__ import annotations

import io

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns

from bilevelbench.results import Results


def convergence(results: Results, problem: str) -> str:
    """|grad phi| against cost on one problem as an SVG text: median over seeds, band from the lowest to the highest."""
    runs = results.runs[results.runs["problem"] == problem]
    curve = results.curve.merge(runs[["trial_id", "label", "algorithm"]], on="trial_id")
    curve["method"] = curve["label"].where(curve["label"] != "", curve["algorithm"])
    curve = curve[np.isfinite(curve["grad_phi"]) & (curve["grad_phi"] > 0) & (curve["cost"] > 0)]
    figure, axes = plt.subplots(figsize=(6.4, 4.0), layout="constrained")
    methods = sorted(curve["method"].unique())
    colours = sns.color_palette("colorblind", max(len(methods), 1))
    for colour, method in zip(colours, methods, strict=False):
        costs, low, middle, high = _band(curve[curve["method"] == method])
        axes.plot(costs, middle, color=colour, label=method, linewidth=1.5)
        axes.fill_between(costs, low, high, color=colour, alpha=0.2, linewidth=0)
    axes.set(xscale="log", yscale="log", xlabel="oracle calls (samples)", ylabel="|grad phi|")
    if methods:
        axes.legend(frameon=False, fontsize=8)
    sns.despine(figure)
    text = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "bilevelbench", "svg.fonttype": "none"}):
        figure.savefig(text, format="svg", metadata={"Date": None})
    plt.close(figure)
    svg = text.getvalue()
    return svg[svg.index("<svg") :]


def _band(curve: pd.DataFrame) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Curves of several seeds on common costs: the last value seen at or before each; NaN after a curve's end."""
    costs = np.unique(curve["cost"].to_numpy())
    rows = []
    for _, one in curve.sort_values("cost").groupby("trial_id"):
        at, values = one["cost"].to_numpy(), one["grad_phi"].to_numpy()
        place = np.searchsorted(at, costs, side="right") - 1
        seen = np.where((place >= 0) & (costs <= at[-1]), values[np.clip(place, 0, None)], np.nan)
        rows.append(seen)
    stack = np.vstack(rows)
    keep = ~np.isnan(stack).all(0)
    stack = stack[:, keep]
    return costs[keep], np.nanmin(stack, 0), np.nanmedian(stack, 0), np.nanmax(stack, 0)
