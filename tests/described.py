"""A trial as pack.json describes it, and the row of `runs` that belongs to it."""

from __future__ import annotations

from typing import Any

from bilevelbench.plan.trial import Budget, Spec, Trial


def asked(seed: int = 0, **more: Any) -> dict[str, Any]:
    given: dict[str, Any] = {"plugin": "bilevelbench", "plugin_version": "1", **more}
    trial = Trial(
        algorithm=Spec(name="f2ba", params={"K": 3}), problem=Spec(name="quadratic", params={"dim_x": 2}), seed=seed,
        budget=Budget(cost=100), **given,
    )  # fmt: skip
    return {"id": trial.id, **trial.model_dump(mode="json")}


def row(trial: dict[str, Any], **columns: Any) -> dict[str, Any]:
    return {
        "trial_id": trial["id"], "algorithm": "f2ba", "problem": "quadratic", "problem_params": '{"dim_x": 2}',
        "seed": trial["seed"], "status": "budget", "dtype": "float64", "plugin": "bilevelbench", "plugin_version": "1",
    } | columns  # fmt: skip
