"""The setting of a trial, and what a board says about itself: who belongs there, its budget, and which accuracy counts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from bilevelbench.leaderboard.collect import params_of
from bilevelbench.leaderboard.facts import problem_facts
from bilevelbench.report.analysis.summary import titled
from bilevelbench.results.reached import held_to_both
from bilevelbench.results.schema import Results


@dataclass(frozen=True)
class Setting:
    """`what` it is and who `belongs` there; a `claim` about it is one of these `tables` and `claimed` settings.

    A claim that is in no table of the paper is about |grad phi|.
    """

    name: str
    what: str
    belongs: str
    claim: str
    tables: tuple[int | None, ...]
    claimed: tuple[str, ...]

    def covers(self, claim: Mapping[str, Any]) -> bool:
        return claim.get("table") in self.tables and claim.get("setting") in self.claimed


SETTINGS = {
    "deterministic": Setting(
        name="deterministic",
        what="Every answer is exact: there is no noise.",
        belongs="A method belongs here if it is made for exact answers",
        claim="a rate for exact answers",
        tables=(1, 3, None),
        claimed=("deterministic",),
    ),
    "partial": Setting(
        name="partially stochastic",
        what="Samples of f are noisy, those of g are exact; each costs one.",
        belongs="A method belongs here if it samples and never asks for an exact answer",
        claim="a rate for noise in f alone",
        tables=(2, None),
        claimed=("partial",),
    ),
    "full": Setting(
        name="fully stochastic",
        what="Samples of g are noisy, and those of f may be; each costs one.",
        belongs="A method belongs here if it samples and never asks for an exact answer",
        claim="a rate for noise in f and g",
        tables=(2, None),
        claimed=("full",),
    ),
    "finite-sum": Setting(
        name="finite-sum",
        what="f and g are means over data; a sample is one term, and a whole sum costs as much as it has terms.",
        belongs="A method belongs here if it samples, or if it can pay for whole sums",
        claim="a rate for samples",
        tables=(2, None),
        claimed=("partial", "full", "finite_sum"),
    ),
    "second-order": Setting(
        name="second-order",
        what="An accuracy ε is reached where |∇φ| is at most ε and no eigenvalue of the Hessian of φ is below -√(ρ_φ ε), with "
        "the errors of both: at a saddle only an ε as coarse as its curvature allows is reached.",
        belongs="A method belongs here if it leaves saddles, or to show what becomes of it without that",
        claim="a rate for second-order stationarity",
        tables=(3,),
        claimed=("deterministic", "partial", "full"),
    ),
}


def settings_of_trials(results: Results, facts: Mapping[str, Any]) -> pd.Series[str]:
    """The setting of each trial, by its id.

    Second-order where the trial was held to the eigenvalue too. Else by the noise of its problem: the meter has counted
    samples of their own (`second_order_samples`) wherever there is some, and the levels are those of the parameters
    `sigma_f`, `sigma_g` and `sigma_h` or, where the problem has no such parameters, of its constants. A problem with
    samples and without levels is a finite sum.
    """
    runs = titled(results.runs)
    certified = held_to_both(results)
    noisy = set(runs.loc[runs["trial_id"].isin(sampled(results)), "title"])
    found: dict[str, str] = {}
    for row in runs.drop_duplicates("title").to_dict("records"):
        found[row["title"]] = _by_noise(_levels(row, facts), row["title"] in noisy)
    out = [
        "second-order" if trial in certified else found[title]
        for trial, title in zip(runs["trial_id"], runs["title"], strict=True)
    ]
    return pd.Series(out, index=pd.Index(runs["trial_id"]), dtype=object)


def budgets(results: Results, trials: Iterable[str]) -> dict[str, set[str]]:
    """By problem, what these trials end after at the latest."""
    ids = set(trials)
    titles = dict(zip(results.runs["trial_id"], titled(results.runs)["title"], strict=True))
    noisy = {titles[trial] for trial in sampled(results) if trial in titles}
    found: dict[str, set[str]] = {}
    for trial in _trials(results):
        if trial["id"] in ids and trial["id"] in titles:
            title = titles[trial["id"]]
            found.setdefault(title, set()).add(_limits(trial.get("budget") or {}, title in noisy))
    return found


def budget_words(limits: Mapping[str, Iterable[str]]) -> str:
    """`budgets` as a sentence."""
    found: dict[str, set[str]] = {}
    for title, ends in limits.items():
        for end in ends:
            found.setdefault(end, set()).add(title)
    if not found:
        return "The budget of a trial was not recorded."
    if len(found) == 1:
        return f"A trial ends after {next(iter(found))} at the latest."
    parts = "; ".join(f"{words} on {', '.join(sorted(on))}" for words, on in sorted(found.items()))
    return f"A trial ends at the latest after {parts}."


def standing_words(setting: str, claims: Mapping[str, Iterable[Mapping[str, Any]]], titles: Mapping[str, str]) -> str:
    """Who stands on a board and why, as a sentence; `claims` are those of each method on it, `titles` what to call it."""
    chosen = SETTINGS[setting]
    counts = {method for method, its in claims.items() if any(chosen.covers(claim) for claim in its)}
    backed = [titles[method] for method in claims if method in counts]
    others = [titles[method] for method in claims if method not in counts]
    said = [f"{', '.join(backed)} with a claim of {chosen.claim}"] if backed else []
    said += [f"{', '.join(others)} without one"] if backed and others else []
    said += [f"{', '.join(others)}, of which none has a claim of {chosen.claim}"] if others and not backed else []
    return f"{chosen.belongs}: {'; '.join(said)}."


def _by_noise(levels: Mapping[str, float] | None, noisy: bool) -> str:
    if noisy and levels is None:
        return "finite-sum"
    known = levels or {}
    if known.get("sigma_g", 0) > 0 or known.get("sigma_h", 0) > 0:
        return "full"
    return "partial" if known.get("sigma_f", 0) > 0 else "deterministic"


def _levels(row: Mapping[Any, Any], facts: Mapping[str, Any]) -> dict[str, float] | None:
    """None for a problem that has no noise level at all."""
    fact = problem_facts(facts, row["problem"])
    known = {c["name"]: c["value"] for c in fact["constants"]}
    known |= {p["name"]: p["default"] for p in fact["parameters"]}
    known |= params_of(row)
    levels = {
        name: float(known[name])
        for name in ("sigma_f", "sigma_g", "sigma_h")
        if isinstance(known.get(name), int | float)
    }
    return levels or None


def sampled(results: Results) -> set[str]:
    """Trials on problems with noise, whose costs are samples."""
    if "second_order_samples" not in results.curve:
        return set()
    return set(results.curve.loc[results.curve["second_order_samples"].notna(), "trial_id"])


def _trials(results: Results) -> list[dict[str, Any]]:
    return [trial for record in results.records for trial in record.get("trials", []) if "id" in trial]


def _limits(budget: Mapping[str, Any], noisy: bool) -> str:
    units = {"cost": "samples" if noisy else "calls", "steps": "steps", "seconds": "seconds"}
    given = [
        f"{budget[name]:,.10g} {unit}"
        for name, unit in units.items()
        if isinstance(budget.get(name), int | float)  # a limit that is "inf" is none
    ]
    return " or ".join(given) or "an unknown cost"
