"""What two machines may differ in, and what not: by hand for the endings, with the published results for the digits."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from machines import OFFICIAL, ULP, nudged

from bilevelbench.results.compare import TOLERANCES, Witness, disagreements, first_difference
from bilevelbench.results.schema import Results, curve_frame, runs_frame
from bilevelbench.results.tables import load_results


@pytest.fixture(scope="module")
def official():
    return load_results(OFFICIAL / "deterministic")


def tables(status="budget", values=(8.0, 4.0, 2.0, 1.0), steps=None, dtype="float64", **columns):
    """One trial whose |grad phi| was `values` at `steps`; the last of both is its end."""
    steps = list(range(len(values))) if steps is None else steps
    run = {
        "trial_id": "t", "algorithm": "f2ba", "problem": "quadratic", "seed": 0, "status": status, "dtype": dtype,
        "steps": steps[-1], "cost": 10.0 * steps[-1], "first_order": 10 * steps[-1], "grad_phi": values[-1],
        "best_grad_phi": min(values), **columns,
    }  # fmt: skip
    curve = [
        {"trial_id": "t", "step": s, "cost": 10.0 * s, "first_order": 10 * s, "grad_phi": v, "phi": 1 + v}
        for s, v in zip(steps, values, strict=True)
    ]
    return runs_frame([run]), curve_frame(curve)


def column(a, b):
    found, back = first_difference(a, b), first_difference(b, a)
    assert (found is None) == (back is None)
    return None if found is None else found[1].split(" (")[0]


# ---- digits


@pytest.mark.parametrize("by", [ULP, 1e-12])
@pytest.mark.quick_cases(1)
def test_other_last_digits_of_the_published_results_agree(official, by):
    assert first_difference((official.runs, official.curve), nudged(official.runs, official.curve, by)) is None


@pytest.mark.parametrize("name", ["runs.algorithm_params", "runs.phi", "runs.grad_phi", "curve.phi", "curve.grad_phi"])
@pytest.mark.quick_cases(2)
def test_a_thousandth_in_one_column_is_refused_with_both_values(official, name):
    other = nudged(official.runs, official.curve, 1e-3, only=name)
    trial_id, said = first_difference((official.runs, official.curve), other)
    assert said.startswith(f"`{name}` (")
    table = "runs" if name.startswith("runs") else "curve"
    ours, theirs = (frames[table == "curve"] for frames in ((official.runs, official.curve), other))
    if name == "runs.algorithm_params":
        texts = [f[f["trial_id"] == trial_id]["algorithm_params"].iloc[0] for f in (ours, theirs)]
        values = [set(json.loads(text).values()) for text in texts]
        assert any(f"{a!r} against {b!r}" in said for a in values[0] for b in values[1] if a != b)
    else:
        pairs = zip(*(f[f["trial_id"] == trial_id][name.split(".")[1]].tolist() for f in (ours, theirs)), strict=True)
        assert any(f"({a!r} against {b!r}" in said for a, b in pairs)


def test_nearly_all_published_trials_would_show_a_thousandth_in_their_last_gradient(official):
    """Those that would not have arrived, at a millionth of where they began: rounding is what is left of them."""
    start = official.curve.groupby("trial_id")["grad_phi"].max()
    runs = official.runs[np.isfinite(official.runs["grad_phi"])]
    hidden = runs["grad_phi"].to_numpy() * 1e-3 < 2 * TOLERANCES["float64"][1] * start[runs["trial_id"]].to_numpy()
    assert set(runs.loc[hidden, "status"]) <= {"target"}
    assert hidden.sum() < (runs["status"] == "target").sum() < 0.1 * len(runs)


def test_noise_at_a_solution_is_no_disagreement_and_the_same_noise_elsewhere_is():
    still = tables(values=(1.0, 1e-3, 3e-15, 1e-15))
    assert column(still, tables(values=(1.0, 1e-3, 1e-15, 2e-15))) is None
    assert column(still, tables(values=(1.0, 1e-3, 1e-15, 1e-9))) == "`runs.grad_phi`"


def test_what_grows_later_excuses_nothing_earlier():
    """A trial that diverges reaches 1e300; an early difference is still one."""
    a, b = (tables("diverged", values=(v, 1e8, 1e300)) for v in (1.0, 1.001))
    assert column(a, b) == "`curve.phi`"
    assert column(a, tables("diverged", values=(1.0, 1e8 * (1 + 1e-9), 1e300))) is None


def test_single_precision_has_a_tolerance_of_its_own():
    a, b = (tables(values=(8.0, 4.0 * (1 + e)), dtype="float32") for e in (0.0, 3e-5))
    assert column(a, b) is None
    assert column(a, tables(values=(8.0, 4.0 * (1 + 1e-3)), dtype="float32")) == "`runs.grad_phi`"
    assert column(*(tables(values=(8.0, 4.0 * (1 + e))) for e in (0.0, 3e-5))) == "`runs.grad_phi`"


@pytest.mark.parametrize(
    ("ours", "theirs", "said"),
    [
        ({"eta_x": 0.017251744559059083}, {"eta_x": 0.01725174455905906}, None),
        ({"eta_x": 0.1, "K": 3}, {"eta_x": 0.1, "K": 4}, "K 3 against 4"),
        ({"eta_x": 0.1}, {"eta_x": 0.1001}, "eta_x 0.1 against 0.1001"),
        ({"solver": "cg"}, {"solver": "neumann"}, "solver 'cg' against 'neumann'"),
        ({"a": [0.5, 1.0]}, {"a": [0.5, 1.0 + 1e-15]}, None),
        ({"a": [0.5, 1.0]}, {"a": [0.5, 1.1]}, "a 1.0 against 1.1"),
        ({"a": 0.5}, {"b": 0.5}, "a 0.5 against None"),
        ({"a": 1}, {"a": True}, "a 1 against True"),
    ],
)
def test_parameters_are_compared_one_by_one(ours, theirs, said):
    found = first_difference(*(tables(algorithm_params=json.dumps(params)) for params in (ours, theirs)))
    assert found == (None if said is None else ("t", f"`runs.algorithm_params` ({said})"))


# ---- counts and endings


@pytest.mark.parametrize("name", ["steps", "grad_g", "hvp", "first_order", "cost", "rounds"])
@pytest.mark.parametrize("status", ["budget", "target", "error"])
@pytest.mark.quick_cases(6)
def test_counts_are_exact(name, status):
    runs, curve = tables(status)
    assert column((runs, curve), (runs.assign(**{name: runs[name].fillna(0) + 1}), curve)) == f"`runs.{name}`"


def test_counts_of_evaluations_are_exact():
    a, (runs, curve) = tables(), tables()
    assert column(a, (runs, curve.assign(first_order=curve["first_order"] + (curve["step"] == 1)))) == (
        "`curve.first_order`"
    )


def test_an_end_by_budget_does_not_move():
    assert column(tables(), tables(values=(8.0, 4.0, 2.0))) == "`runs.steps`"
    (runs, curve), same = tables(), tables()
    assert column(same, (runs, curve[:3])) == "`curve` itself"


@pytest.mark.parametrize("status", ["target", "stopped", "diverged"])
@pytest.mark.quick_cases(1)
def test_an_end_by_a_number_moves_by_one_evaluation(status):
    end, later, latest = (tables(status, values=(8.0, 4.0, 2.0, 1.0, 0.5)[:n]) for n in (3, 4, 5))
    assert column(end, later) is None
    assert column(end, tables("budget", values=(8.0, 4.0, 2.0, 1.0))) is None  # it ran out before it was seen
    assert column(end, latest) == "`curve` itself"
    assert column(end, tables(status, values=(8.0, 4.1, 2.0, 1.0))) == "`curve.phi`"
    assert column(end, tables("error", values=(8.0, 4.0, 2.0, 1.0))) == "`runs.status`"


def test_an_end_between_two_evaluations():
    """A method that stops is looked at there; the other one went on to its next evaluation."""
    a = tables("stopped", values=(8.0, 4.0, 2.0), steps=[0, 10, 17])
    assert column(a, tables("stopped", values=(8.0, 4.0, 1.9), steps=[0, 10, 18])) is None
    assert column(a, tables("stopped", values=(8.0, 4.0, 1.8, 1.7), steps=[0, 10, 20, 21])) is None
    assert column(a, tables("stopped", values=(8.0, 4.0, 2.0), steps=[0, 9, 17])) == "`curve.step`"


def test_statuses_may_differ_only_where_the_numbers_do_not():
    assert column(tables("target"), tables("budget")) is None
    assert column(tables("budget"), tables("error")) == "`runs.status`"
    assert column(tables("invalid"), tables("target")) == "`runs.status`"
    assert column(tables("target"), tables("budget", values=(8.0, 4.0, 2.0, 1.01))) == "`runs.grad_phi`"


def test_a_clock_ends_a_trial_anywhere():
    a = tables("timeout", values=(8.0, 4.0))
    assert column(a, tables("timeout", values=(8.0, 4.0, 2.0, 1.0, 0.5))) is None
    assert column(a, tables("timeout", values=(8.0, 5.0, 2.0, 1.0, 0.5))) == "`curve.phi`"


def test_numbers_that_are_none():
    nan, inf = float("nan"), float("inf")
    assert column(tables(values=(8.0, nan)), tables(values=(8.0, nan))) is None
    assert column(tables(values=(8.0, nan)), tables(values=(8.0, 1.0))) == "`runs.grad_phi`"
    assert column(tables(values=(8.0, inf)), tables(values=(8.0, -inf))) == "`runs.grad_phi`"
    assert column(tables("diverged", values=(8.0, inf)), tables("diverged", values=(8.0, nan))) is None


def test_the_sentence_names_folders_processors_packs_and_values():
    results = [
        Results(*tables(values=(8.0, last)), [{"trial_ids": ["t"], "environment": {"cpu": cpu}}])
        for last, cpu in ((4.0, "Left 1"), (5.0, "Right 2"))
    ]
    (said,) = disagreements([Witness(Path(name), one) for name, one in zip(("here", "there"), results, strict=True)])
    assert said.startswith("'here' (Left 1, pack ")
    assert "and 'there' (Right 2, pack " in said
    assert (
        "on trial 't' (f2ba on quadratic, seed 0): the first column that differs is `runs.grad_phi` (4.0 against 5.0)"
        in said
    )
    unknown = Results(*tables(values=(8.0, 5.0)), [])
    (said,) = disagreements([Witness(Path("here"), results[0]), Witness(Path("tables"), unknown)])
    assert "'tables' (published tables, which name no processor)" in said
