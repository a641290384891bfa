"""Rows that are counted and not run: what the parameters of a preset cost, by the powers in which they enter.

On one instance a fixed x-step takes a number of steps that goes as one over its length, so 1/eta_x times the calls of a step is
the cost up to a constant. With a theorem's own constants a run would take hundreds of times the steps of a tuned one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from bilevelbench.discovery.registry import Registry
from bilevelbench.errors import InvalidInput, suggestion
from bilevelbench.plan.trial import Spec
from bilevelbench.report.analysis.fit import fit, verdict
from bilevelbench.report.analysis.rates import COUNTED
from bilevelbench.studies.rates.measure import Measurement, claim_of, exponent_of, lines, stated
from bilevelbench.studies.rates.presets import chosen_at, preset_of
from bilevelbench.studies.rates.suite import Preset, RateRow, RateSuite


def count(row: RateRow, suite: RateSuite, registry: Registry, preset: Preset) -> dict[str, dict[float, float]]:
    """For each factor of the cost, to its power, what it is at each value of the grid; `cost` is their product."""
    cls = registry.algorithm(row.method).value
    out: dict[str, dict[float, float]] = {}
    for value in row.grid():
        *_, chosen = chosen_at(row, suite, registry, value, preset_of(row, preset))
        given = {**chosen, row.sweep or "eps": value}
        for factor, power in row.counted.items():
            out.setdefault(factor_name(factor, power), {})[value] = _value(factor, given, cls.name) ** power
    out["cost"] = {value: math.prod(factor[value] for factor in out.values()) for value in row.grid()}
    return out


def _value(factor: str, given: Mapping[str, Any], method: str) -> float:
    """Of a parameter, or of one over another, as in `B_in/B_out`."""
    names = factor.split("/")
    for name in names:
        if name not in given:
            raise InvalidInput(f"counted: the preset of {method} sets no {name!r}{suggestion(name, given)}")
    first, *others = (float(given[name]) for name in names)
    return first / math.prod(others)


def factor_name(factor: str, power: float) -> str:
    return factor if power == 1 else f"{factor}^{power:g}"


def measure_counted(row: RateRow, suite: RateSuite, registry: Registry, preset: Preset = "rate") -> Measurement:
    """The exponents of a preset's cost and of its factors; nothing is random, so intervals have no width."""
    cls = registry.algorithm(row.method).value
    found = count(row, suite, registry, preset)
    x = (-1.0 if row.sweep is None else 1.0) * np.log(np.array(row.grid()))
    fits = {name: fit(x, np.log(np.array([list(at.values())]))) for name, at in found.items()}
    claim = claim_of(cls, row)
    exponent, cost = exponent_of(claim, row), found["cost"]
    name, params = suite.problem_of(row)
    return Measurement(
        **stated(row, cls, claim, str(Spec(name=registry.problem(name).value.name, params=params))),
        **lines(fits["cost"], fits.get("eta_x^-1"), fits["cost"]),
        preset=preset_of(row, preset),
        q=None,
        claimed=exponent,
        target=exponent,
        predicted=None,
        log_free_of="cost",
        columns={name: [line.slope] * 3 for name, line in fits.items() if name != "cost"},
        eps_max=max(cost),
        eps_min=min(cost),
        success=None,
        largest_eps=None,
        verdict=verdict(fits["cost"], exponent, exponent, len(cost), horizons=False),
        unreached=[],
        necessity="",
        tuned=COUNTED,
        own_notion="",
        noise="",
        needed="",
        against="",
        logarithm="",
        points=[{"eps": value, "cost": calls, "second_order": 0.0} for value, calls in cost.items()],
    )
