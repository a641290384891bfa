"""`bilevelbench rates` from end to end on a short range, and its bad input."""

from __future__ import annotations

import json
import math

import pytest
from typer.testing import CliRunner

from bilevelbench.cli.app import app
from bilevelbench.discovery.entry import make
from bilevelbench.discovery.registry import registry
from bilevelbench.engine.loop import run_pack
from bilevelbench.errors import InvalidInput
from bilevelbench.plan.packs import plan
from bilevelbench.report.analysis.rates import markdown, read_rates
from bilevelbench.report.figures.rates import figure
from bilevelbench.results.schema import Results, curve_frame, runs_frame
from bilevelbench.results.tables import load_results
from bilevelbench.studies.rates.plan import plan_own_notion, plan_row, plan_weakened, plan_without_noise
from bilevelbench.studies.rates.presets import weaker
from bilevelbench.studies.rates.study import run_rates, wanted
from bilevelbench.studies.rates.suite import RateRow, RateSuite

pytestmark = pytest.mark.whole

KEYS = {
    "table", "method", "setting", "claimed", "measured", "low", "high", "measured_steps", "eps_max", "eps_min", "seeds",
    "verdict",
}  # fmt: skip


def run(trials):
    packs = [run_pack(pack, registry()) for pack in plan(trials, registry())]
    run.runs += [row for pack in packs for row in pack.runs]
    run.curve += [row for pack in packs for row in pack.curve.rows()]
    return Results(runs_frame(run.runs), curve_frame(run.curve), [])


@pytest.fixture(autouse=True)
def _fresh():
    run.runs, run.curve = [], []


def suite(*rows: RateRow) -> RateSuite:
    return RateSuite(
        title="short", problem_params={"tails": 1, "anchors": 1, "mu": 1.0, "L": 2.0}, first_seed=7, row=rows
    )


LAM4 = {"text": "lam = 4", "params": {"lam": 4.0}}


@pytest.mark.slow  # shorter rows are measured below
def test_f2ba_costs_the_square_of_one_over_eps_and_needs_its_penalty():
    row = RateRow(method="f2ba", rule="hit", eps=(0.2, 0.035), seeds=4, weakened=LAM4)
    (found,) = run_rates(suite(row), registry(), run)
    assert found.verdict == "matches"
    assert 1.8 < found.measured_steps < 2.1
    assert found.low_steps <= found.measured_steps <= found.high_steps
    assert found.predicted == pytest.approx(found.measured_steps, abs=0.1)
    assert found.necessity.startswith("lam = 4: ")
    assert "0.0354 by 0 of 4" in found.necessity
    assert found.as_dict().keys() >= KEYS


def test_single_time_scale_costs_a_power_more():
    row = RateRow(method="f2sa", rule="hit", eps=(0.4, 0.14), seeds=4)
    (found,) = run_rates(suite(row), registry(), run)
    assert 2.7 < found.measured_steps < 3.1


def test_horizon_row_uses_every_lane():
    row = RateRow(
        method="bome",
        rule="horizon",
        set_by="steps",
        horizons=(5, 10),
        seeds=4,
        log_free="cost",
        own_notion="kkt_residual",
    )
    (found,) = run_rates(suite(row), registry(), run)
    assert len(found.points) == 6
    assert found.eps_min < found.eps_max
    assert found.own_notion.startswith("kkt_residual: ")


def test_accuracy_that_one_seed_misses_leaves_the_fit_and_is_listed():
    row = RateRow(method="f2ba", rule="hit", eps=(0.2, 0.05), seeds=3, cap={"steps": 300})
    (found,) = run_rates(suite(row), registry(), run)
    assert found.unreached
    assert all(item["reached"] < 3 for item in found.unreached)
    assert found.eps_min > 0.05


def test_sweep_asks_the_problem_what_to_change_and_fits_each_query():
    row = RateRow(
        method="aid",
        rule="hit",
        sweep="kappa",
        values=(1.0, 2.83),
        set_by="sweep",
        preset="theory",
        seeds=2,
        log_free="cost",
    )
    points = plan_row(row, suite(row), registry())
    assert sorted({2.0 / p.trial.problem.params["mu"] for p in points}) == pytest.approx(
        [1, 2**0.5, 2, 8**0.5], rel=1e-2
    )
    (found,) = run_rates(suite(row), registry(), run)
    assert (found.over, found.claimed, found.preset) == ("kappa", 4, "theory")
    assert found.measured > 0
    lower, jacobian = found.columns["grad_g_y"], found.columns["jvp"]
    assert lower[0] > jacobian[0]  # kappa lower-level steps for one product with g_xy
    assert "grad_g" not in found.columns  # nobody asks for it


def test_what_a_claim_can_show_on_an_instance_is_not_called_its_claim():
    row = RateRow(
        method="aid",
        rule="hit",
        sweep="kappa",
        values=(1.0, 2.83),
        set_by="sweep",
        seeds=2,
        log_free="cost",
        expected=0.5,
    )
    (found,) = run_rates(suite(row), registry(), run)
    assert (found.claimed, found.target) == (4, 0.5)


def test_weakened_row_is_run_on_the_whole_grid_within_a_multiple_of_the_steps_there():
    row = RateRow(method="f2ba", rule="hit", eps=(0.2, 0.1), seeds=2, weakened=LAM4)
    points = plan_row(row, suite(row), registry())
    results = run([p.trial for p in points])
    weak = plan_weakened(row, registry(), points, results)
    assert {p.trial.algorithm.params["lam"] for p in weak} == {4.0}
    assert {p.value for p in weak} == set(row.grid())
    steps = results.runs.set_index("trial_id")["steps"]
    for value in row.grid():
        most = max(steps[p.trial.id] for p in points if p.value == value)
        assert {p.trial.budget.steps for p in weak if p.value == value} == {4 * most}


def test_report_holds_the_numbers():
    row = RateRow(method="f2ba", rule="hit", eps=(0.2, 0.07), seeds=2)
    rows = [m.as_dict() for m in run_rates(suite(row), registry(), run)]
    text = markdown("Table 1", rows)
    assert f"{rows[0]['measured']:.2f} [" in text
    assert "Õ(ℓ ε⁻²)" in text
    assert figure("Table 1", rows).count("<svg") == 1


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"eps": (0.1, 0.2)}, "the largest comes first"),
        ({}, "one of `eps"),
        ({"eps": (0.2, 0.1), "rule": "horizon"}, "go with rule 'horizon'"),
        (
            {"horizons": (5, 9), "rule": "horizon"},
            "set_by = 'eps': a preset for a horizon is set by its number of steps",
        ),
        ({"sweep": "kappa", "values": (1, 4)}, "set_by = 'eps': 'sweep' goes with `sweep`"),
        ({"eps": (0.2, 0.1), "set_by": "sweep"}, "set_by = 'sweep': 'sweep' goes with `sweep`, and only"),
        ({"sweep": "kappa", "set_by": "sweep"}, "`sweep` and `values = .* go together"),
        ({"sweep": "kappa", "set_by": "sweep", "values": (4, 1)}, "the smallest comes first"),
    ],
)
def test_row_that_makes_no_sense_is_refused(fields, said):
    with pytest.raises(ValueError, match=said):
        RateRow(method="f2ba", **fields)


def test_row_of_an_unknown_method_is_refused():
    with pytest.raises(InvalidInput, match="no row for 'f2b'; did you mean 'f2ba'"):
        run_rates(suite(RateRow(method="f2ba", eps=(0.2, 0.1))), registry(), run, methods=["f2b"])


def test_quick_form_has_shorter_rows_and_leaves_out_those_without_one():
    short = RateRow(method="f2ba", eps=(0.2, 0.01), quick={"eps": (0.2, 0.1), "seeds": 2})
    rows = (short, RateRow(method="f2sa", eps=(0.2, 0.1), quick=False))
    assert [row.method for row in wanted(suite(*rows), (), None, quick=False)] == ["f2ba", "f2sa"]
    (row,) = wanted(suite(*rows), (), None, quick=True)
    assert (row.method, row.eps, row.seeds) == ("f2ba", (0.2, 0.1), 2)


def saddle_suite(*rows: RateRow) -> RateSuite:
    params = {"tails": 1, "anchors": 1, "saddle": True, "mu": 1.0, "L": 1.5}
    return RateSuite(title="short", problem_params=params, first_seed=7, row=rows)


@pytest.mark.slow  # tests/methods/test_saddles.py has such runs always
def test_second_order_rule_waits_until_the_saddle_is_left():
    no_kicks = {"text": "no kicks", "params": {"eps": 1e-12}}
    row = RateRow(method="pf2ba", table=3, rule="second_order", eps=(0.1, 0.05), seeds=4, weakened=no_kicks)
    (found,) = run_rates(saddle_suite(row), registry(), run)
    assert found.success == 1
    assert found.verdict == "unmeasured"  # three accuracies are no curve
    assert "0 of 4" in found.necessity
    assert "100% of the trials" in markdown("short", [found.as_dict()])


def test_count_over_a_parameter_of_the_preset():
    row = RateRow(method="f2ba", rule="hit", eps=(0.2, 0.1), seeds=4, log_free="cost", over="K")
    (found,) = run_rates(suite(row), registry(), run)
    assert found.log_free_of == "cost / K"
    assert found.log_free == pytest.approx(found.measured_steps, abs=0.1)
    assert found.measured > found.log_free + 0.1


def test_count_over_something_that_is_no_parameter():
    row = RateRow(method="f2ba", rule="hit", eps=(0.2, 0.1), seeds=2, log_free="cost", over="KK")
    with pytest.raises(InvalidInput, match=r"the preset sets no such parameter.*'K'"):
        run_rates(suite(row), registry(), run)


def noisy(sigma_f: float) -> RateRow:
    return RateRow(
        method="f2sa", table=2, setting="partial", rule="horizon", set_by="steps", horizons=(6, 8), seeds=2,
        log_free="cost", problem={"sigma_f": sigma_f}, without_noise=True,
    )  # fmt: skip


def test_row_without_noise_has_trials_of_its_own_on_the_same_data():
    row = noisy(4.0)
    points = plan_row(row, suite(row), registry())
    quiet = plan_without_noise(row, points, run([p.trial for p in points]))
    assert len(quiet) == len(points)
    for loud, still in zip(points, quiet, strict=True):
        assert still.trial.id != loud.trial.id
        assert still.trial.algorithm == loud.trial.algorithm
        assert not any(name.startswith("sigma_") for name in still.trial.problem.params)


@pytest.mark.parametrize(("sigma_f", "binds"), [(5.0, True), (1e-6, False)])
def test_noise_binds_where_there_is_enough_of_it(sigma_f, binds):
    row = noisy(sigma_f)
    (found,) = run_rates(suite(row), registry(), run)
    assert ("in place of" in found.noise) == binds
    assert ("noise was not binding" in found.noise) != binds


def test_weakened_row_may_multiply_a_parameter():
    row = RateRow(method="f2ba", rule="hit", eps=(0.2, 0.1), seeds=2, weakened={"text": "K/4", "times": {"K": 0.25}})
    points = plan_row(row, suite(row), registry())
    weak = plan_weakened(row, registry(), points, run([p.trial for p in points]))
    full = {p.value: p.trial.algorithm.params["K"] for p in points}
    assert [p.trial.algorithm.params["K"] for p in weak] == [math.ceil(full[p.value] / 4) for p in weak]


def test_weakened_tuned_row_has_the_x_step_that_was_found():
    row = RateRow(
        method="f2ba", rule="hit", eps=(0.4, 0.3), ratio=1.2, seeds=2, preset="tuned", own_notion="g_y_z",
        weakened={"text": "twice the x-step", "times": {"eta_x": 2.0}},
    )  # fmt: skip
    found = plan_row(row, suite(row), registry(), factor=1.25)
    weak = plan_weakened(row, registry(), found, run([p.trial for p in found]))
    best = [p.trial.algorithm.params["eta_x"] for p in found]
    assert best[0] == 1.25 * plan_row(row, suite(row), registry())[0].trial.algorithm.params["eta_x"]
    assert [p.trial.algorithm.params["eta_x"] for p in weak] == [2 * eta for eta in best]
    own = plan_own_notion(row, found)
    assert [p.trial.algorithm.params["eta_x"] for p in own] == best
    assert not {p.trial.id for p in found} & {p.trial.id for p in (*weak, *own)}


def test_part_that_is_weakened_has_to_be_a_parameter():
    row = RateRow(method="f2ba", rule="hit", eps=(0.4, 0.3), seeds=2, weakened={"text": "-", "params": {"lamb": 1.0}})
    points = plan_row(row, suite(row), registry())
    with pytest.raises(InvalidInput, match="lamb"):
        plan_weakened(row, registry(), points, run([p.trial for p in points]))


def test_weakened_row_may_halve_an_exponent():
    weakened = {"text": "half the exponent", "powers": {"B_in": 0.5, "lam": 0.5}}
    row = RateRow(
        method="f2bsa",
        table=2,
        setting="partial",
        eps=(0.2, 0.1),
        ratio=2,
        seeds=2,
        problem={"sigma_f": 1.0},
        weakened=weakened,
    )
    first, *_, last = row.grid()
    given = {p.value: p.trial.algorithm.params for p in plan_row(row, suite(row), registry())}
    weak = {value: weaker(params, row.weakened, given[first]) for value, params in given.items()}
    assert given[first] == weak[first]
    assert (given[first]["B_in"], given[last]["B_in"], weak[last]["B_in"]) == (100, 400, 200)
    assert weak[last]["B_out"] == given[last]["B_out"]
    assert weak[last]["lam"] == pytest.approx(given[first]["lam"] * 2**0.5)


def test_row_may_multiply_what_its_preset_chooses():
    row = RateRow(method="f2bsa", table=2, setting="partial", eps=(0.2, 0.1), seeds=2, problem={"sigma_f": 1.0})
    less = row.model_copy(update={"times": {"B_in": 0.301, "lam": 0.5}})
    given, changed = (plan_row(r, suite(r), registry(), grid=[0.1])[0].trial.algorithm.params for r in (row, less))
    assert (given["B_in"], changed["B_in"]) == (400, 121)  # rounded up
    assert changed["lam"] == given["lam"] / 2
    assert changed["K"] == given["K"]


def test_instance_may_be_another_one_for_each_accuracy():
    row = RateRow(method="aid", rule="hit", eps=(0.01, 0.005), ratio=2, on="chain", made_for_eps=True, seeds=2)
    dims = {p.value: p.trial.problem.params["dim"] for p in plan_row(row, suite(row), registry())}
    assert dims == {0.01: 5, 0.005: 21}
    for eps, dim in dims.items():
        assert make(registry().problem("chain"), {"dim": dim}).eps >= eps


def test_argument_of_a_preset_is_not_a_parameter_of_the_method():
    row = RateRow(method="bome", rule="horizon", set_by="steps", horizons=(6, 10), seeds=2, params={"power": 0.5})
    steps = {p.value: p.trial.algorithm.params["xi_x"] for p in plan_row(row, suite(row), registry())}
    assert steps[1024] == pytest.approx(steps[64] / 4)
    with pytest.raises(InvalidInput, match=r"powr"):
        plan_row(row.model_copy(update={"params": {"powr": 0.5}}), suite(row), registry())


@pytest.mark.parametrize(("power", "slope"), [(2 / 3, 6.0), pytest.param(0.5, 4.0, marks=pytest.mark.slow)])
def test_bome_shows_the_exponent_of_its_schedule(power, slope):
    """6 (1 + 1/q)/2 for the schedule that its claim is about."""
    row = RateRow(
        method="bome",
        rule="horizon",
        set_by="steps",
        horizons=(7, 12),
        seeds=4,
        log_free="cost",
        params={"power": power},
    )
    (found,) = run_rates(suite(row), registry(), run)
    assert found.log_free == pytest.approx(slope * (1 + 1 / 1.05) / 2, abs=0.25)
    assert found.verdict == ("matches" if slope == 6 else "faster than claimed")


def test_calls_are_held_against_those_of_another_preset():
    """One step in 3.2 of the rate preset, whose loops have sixteen calls and not eleven."""
    row = RateRow(method="aid", rule="hit", eps=(0.4, 0.2), seeds=2, preset="theory", against="rate")
    (found,) = run_rates(suite(row), registry(), run)
    assert found.against.startswith("calls over those of the rate preset: ")
    ratio = float(found.against.split()[7])
    assert 1.5 < ratio < 4
    assert found.logarithm == ""  # nothing in it depends on eps


def test_setting_picks_rows_and_an_unknown_one_is_named():
    with pytest.raises(InvalidInput, match="no setting 'ful'; it has deterministic"):
        run_rates(suite(RateRow(method="f2ba", eps=(0.2, 0.1))), registry(), run, setting="ful")


@pytest.mark.parametrize(
    "name",
    [f"rates_{t}" for t in ("table1", "table2", "table3", "kappa", "n", "samples", "theory", "dim", "chain")],
)
def test_bundled_suite_plans(name):
    """Every row has a preset and a claim, and its quick form and its necessity check are valid too."""
    bundled = RateSuite.load(registry().suite(name))
    for quick in (False, True):
        for row in wanted(bundled, (), None, quick):
            given = [p.trial.algorithm.params for p in plan_row(row, bundled, registry())]
            assert given
            for params in given if row.weakened else []:
                assert make(registry().algorithm(row.method), weaker(params, row.weakened, given[0]))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--table", "9"], "unknown --table '9'; choose from 1, 2, 3, chain, dim, kappa, n, samples, theory"),
        (["--table", "kapa"], "did you mean 'kappa'"),
        (["--table", "1", "--suite", "x.toml"], "--table and --suite both name the rows"),
        (["--over", "mu"], "--over goes with --problem"),
        (["--seeds", "4"], "--seeds goes with --problem"),
        (["--preset", "best"], "unknown --preset 'best'"),
        (["-a", "f2b"], "did you mean 'f2ba'"),
    ],
)
def test_bad_option_is_a_sentence(arguments, said, tmp_path):
    result = CliRunner().invoke(app, ["rates", *arguments, "-o", str(tmp_path / "out")])
    assert result.exit_code != 0
    assert said in str(result.exception) + result.output


@pytest.mark.slow
def test_command_prints_rows_as_json(tmp_path):
    result = CliRunner().invoke(
        app, ["rates", "--quick", "--json", "-a", "ba", "--jobs", "0", "-o", str(tmp_path / "out")]
    )
    rows = json.loads(result.stdout)
    assert rows[0].keys() >= KEYS
    assert (tmp_path / "out" / "rates.svg").exists()
    made = read_rates(tmp_path / "out" / "rates.json").made
    (record, *_) = load_results(tmp_path / "out").records
    assert made.startswith(record["created"][:10])
    assert record["environment"]["cpu"] in made
