"""A study of anyone's methods and problems: from what the command line says to the rows of a suite."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from pydantic import ValidationError

from bilevelbench.discovery.entry import make
from bilevelbench.discovery.registry import Registry
from bilevelbench.errors import InvalidInput, faults
from bilevelbench.model.claim import ClaimedSetting
from bilevelbench.model.noise import FiniteSum, levels
from bilevelbench.model.problem import Problem
from bilevelbench.plan.spec_text import parse_spec
from bilevelbench.plan.trial import Budget, Schedule, Spec, Trial
from bilevelbench.report.analysis.fit import FEWEST_EPS
from bilevelbench.results.reached import UNCERTIFIED, kind
from bilevelbench.studies.rates.measure import claim_of
from bilevelbench.studies.rates.plan import plan_row
from bilevelbench.studies.rates.presets import built
from bilevelbench.studies.rates.suite import Preset, RateRow, RateSuite
from bilevelbench.studies.rates.tuned import Run

_FEWEST_VALUES, _SHORTEST = 6, 2.0


@dataclass(frozen=True)
class Asked:
    """What the command line says. `eps` is a range where accuracies are swept, and one accuracy where something else is."""

    methods: Sequence[str]
    problems: Sequence[str]
    eps: str | None = None
    over: str = "eps"
    values: str | None = None
    seeds: int = 4
    preset: Preset = "rate"
    rule: Literal["mean", "hit"] = "mean"
    steps: int = 2_000_000


def own_suite(registry: Registry, asked: Asked) -> RateSuite:
    """One row for each method on each problem."""
    if asked.seeds < 2:
        raise InvalidInput(f"--seeds {asked.seeds}: an interval needs two seeds or more; four are usual")
    grid = _grid(asked)
    methods = [spec for text in asked.methods for spec in parse_spec(text)]
    problems = [spec for text in asked.problems for spec in parse_spec(text)]
    rows = [_row(registry, asked, grid, method, problem) for problem in problems for method in methods]
    swept = "eps, by horizons" if asked.preset == "horizon" else asked.over
    named = ", ".join(str(Spec(name=registry.problem(p.name).value.name, params=p.params)) for p in problems)
    return RateSuite(title=f"Exponents of {swept} on {named}", problem=problems[0].name, row=tuple(rows))


def _grid(asked: Asked) -> dict[str, Any]:
    """The fields of a row that say what varies."""
    if asked.preset == "horizon":
        if asked.over != "eps":
            raise InvalidInput(f"--preset horizon measures the exponent of eps; leave out --over {asked.over}")
        if asked.eps is not None:
            raise InvalidInput(
                f"--preset horizon is set by numbers of steps; give --values 128:8192 instead of --eps {asked.eps}"
            )
        low, high = _range("--values", asked.values, "128:8192")
        low, high = sorted((math.log2(low), math.log2(high)))
        return {"rule": "horizon", "set_by": "steps", "horizons": (math.floor(low), math.ceil(high))}
    if asked.over == "eps":
        if asked.values is not None:
            raise InvalidInput(
                f"--values {asked.values} goes with --over or --preset horizon; accuracies are --eps 0.2:0.01"
            )
        low, high = sorted(_range("--eps", asked.eps, "0.2:0.01"))
        return {"rule": asked.rule, "eps": (high, low), "ratio": _ratio(high / low, 2, _FEWEST_VALUES)}
    low, high = sorted(_range("--values", asked.values, "8:64"))
    return {
        "rule": asked.rule, "set_by": "sweep", "sweep": asked.over, "values": (low, high),
        "ratio": _ratio(high / low, 1, FEWEST_EPS),
        "at_eps": _number("--eps", asked.eps),
    }  # fmt: skip


def _ratio(span: float, per_octave: int, fewest: int) -> float:
    """Between one value and the next: a root of two or two itself, less if the range is short."""
    return float(span ** (1 / max(fewest - 1, round(per_octave * math.log2(span)))))


def _range(option: str, text: str | None, example: str) -> tuple[float, float]:
    try:
        first, last = map(float, (text or "").split(":"))
    except ValueError:
        raise InvalidInput(f"{option} {text or ''}: give a range, as in {option} {example}") from None
    low, high = sorted((first, last))
    if not (low > 0 and math.isfinite(high)):
        raise InvalidInput(f"{option} {text}: both ends are finite numbers above 0")
    if high / low < _SHORTEST:
        raise InvalidInput(f"{option} {text}: a factor of {high / low:.3g} is too short for a slope; take 2 or more")
    return first, last


def _number(option: str, text: str | None) -> float:
    try:
        value = float(text or "")
    except ValueError:
        value = math.nan
    if not (value > 0 and math.isfinite(value)):
        raise InvalidInput(
            f"{option} {text or ''}: where something else than eps is swept all runs have one accuracy, as in {option} 0.1"
        )
    return value


def _row(registry: Registry, asked: Asked, grid: dict[str, Any], method: Spec, problem: Spec) -> RateRow:
    cls, made = registry.algorithm(method.name).value, make(registry.problem(problem.name), problem.params)
    if not made.solves_phi:
        raise InvalidInput(
            f"problem {made.name!r} does not solve its lower level, so |grad phi| is unknown and no accuracy can be met on it"
        )
    several = len(asked.problems) > 1
    label = str(Spec(name=cls.name, params=method.params)) + (f" on {made.name}" if several else "")
    try:
        row = RateRow(
            method=method.name, params=method.params, label=label, on=problem.name, problem=problem.params,
            setting=_setting(made), preset=asked.preset, seeds=asked.seeds, cap=Budget(steps=asked.steps),
            log_free="cost", **grid,
        )  # fmt: skip
    except ValidationError as error:
        raise InvalidInput(faults(error)) from None
    claim = claim_of(cls, row)
    if claim is None or not claim.tilde:
        return row
    in_steps = row.setting == "deterministic" and row.eps is not None  # a step's calls are a logarithm there
    return row.model_copy(update={"log_free": "steps"} if in_steps else {"logs": True})


def _setting(problem: Problem) -> ClaimedSetting:
    """That of the claims which hold on this problem."""
    noise = built(problem).noise
    if isinstance(noise, FiniteSum):
        return "finite_sum"
    sigma = levels(noise)
    if sigma["sigma_g"] or sigma["sigma_h"]:
        return "full"
    return "partial" if sigma["sigma_f"] else "deterministic"


def pilots(
    rows: Sequence[RateRow], suite: RateSuite, registry: Registry, preset: Preset
) -> list[tuple[RateRow, Trial]]:
    """One step of each row's hardest trial: planning it finds most mistakes, and running it what |grad phi| is known to."""
    update = {"budget": Budget(steps=1), "targets": (), "schedule": Schedule(), "label": ""}
    hardest = [
        (row, plan_row(row, suite, registry, preset, grid=row.grid()[-1:])[0].trial) for row in rows if not row.counted
    ]
    return [(row, trial.model_copy(update=update)) for row, trial in hardest]


def check_accuracy(planned: Sequence[tuple[RateRow, Trial]], run: Run) -> None:
    """An accuracy that |grad phi| is not known to cannot be met."""
    runs = run([trial for _, trial in planned]).runs.set_index("trial_id")
    for row, trial in planned:
        found = runs.loc[[trial.id]]
        eps = None if row.rule == "horizon" else row.at_eps if row.sweep else min(row.grid())
        certificate = kind(found).iloc[0]
        rounding = torch.finfo(torch.float64).eps * float(found["grad_phi"].iloc[0])  # that of a closed form, at least
        error = max(rounding, float(found["grad_phi_error"].iloc[0]))
        if certificate in UNCERTIFIED:
            raise InvalidInput(
                f"problem {trial.problem.name!r} does not bound the error of |grad phi| ({certificate}), so no accuracy can be "
                "certified on it; give it `mu_at`, or the constant mu"
            )
        if eps is not None and error >= eps:
            raise InvalidInput(
                f"eps = {eps:.3g} is finer than |grad phi| of problem {trial.problem.name!r} is known: to {error:.1e} at its "
                "start; end the range of eps above that"
            )
