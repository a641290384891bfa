"""Forged submissions: each is named, with a verdict and a sentence; an honest one is reproduced."""

from __future__ import annotations

import json
import math
import shutil
from collections import Counter

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from forgeries import SMALL, Draft, cheaper, drafts, honest_results, put, swap_numbers
from helpers import cli
from machines import nudged

import bilevelbench
from bilevelbench.discovery.registry import registry
from bilevelbench.errors import StoreError
from bilevelbench.execute.executor import Execution
from bilevelbench.plan.trial import Schedule
from bilevelbench.results.schema import Results, curve_frame, curve_table, runs_frame, runs_table
from bilevelbench.results.tables import load_results
from bilevelbench.results.verified import TrialVerdict, mark, read_verified, write_verified
from bilevelbench.studies.verification.again import Here, judge
from bilevelbench.studies.verification.sample import drawn, weights
from bilevelbench.studies.verification.study import verify


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    return honest_results(tmp_path_factory.mktemp("honest"))


def verified(folder, sample=100, files=(), **options):
    return verify(folder, Here.of(registry(), files), Execution(jobs=0), sample=sample, seed=3, **options)


def of(honest, method):
    return next(draft for draft in drafts(honest) if draft.method == method)


# ---- the forgeries: what is done to a pack of f2ba unless another method is named


def last(draft):
    return draft.curve.groupby("trial_id").tail(1).index


def negative_cost(draft: Draft, _):
    draft.runs["cost"] = -100.0
    draft.curve["cost"] = -100.0


def free_progress(draft: Draft, _):
    draft.curve["cost"] = 0.0
    draft.curve["grad_phi"] = 1e-300
    draft.curve.loc[draft.curve["step"] == 0, "grad_phi"] = 1.0


def products(draft: Draft, _):
    draft.runs[["hvp", "second_order"]] = 7
    draft.runs["cost"] += 7


def half_the_calls(draft: Draft, _):
    cheaper(draft, 2)


def curve_at_half_cost(draft: Draft, _):
    draft.curve["cost"] //= 2


def better_end(draft: Draft, _):
    draft.curve.loc[last(draft), "grad_phi"] /= 10
    draft.runs[["grad_phi", "last_grad_phi", "best_grad_phi"]] /= 10


def better_middle(draft: Draft, _):
    middle = draft.curve["step"].between(2, 8)
    draft.curve.loc[middle, "grad_phi"] *= 0.99


def better_best(draft: Draft, _):
    draft.runs["best_grad_phi"] /= 100


def better_last(draft: Draft, _):
    draft.runs["last_phi"] -= 1.0


def over_budget(draft: Draft, _):
    draft.ask_for(budget={"cost": 200.0})


def truncated(draft: Draft, _):
    draft.curve = draft.curve[draft.curve["step"] <= 5].reset_index(drop=True)
    ends = draft.curve.groupby("trial_id").tail(1).set_index("trial_id")
    for name in ("first_order", "cost"):
        draft.runs[name] = draft.runs["trial_id"].map(ends[name])
    draft.runs["grad_f"], draft.runs["grad_g"] = 0, draft.runs["first_order"]
    draft.runs["steps"] = draft.runs["trial_id"].map(ends["step"])
    for name, column in (("last_phi", "phi"), ("last_grad_phi", "grad_phi"), ("best_grad_phi", "grad_phi")):
        draft.runs[name] = draft.runs["trial_id"].map(ends[column])


def false_target(draft: Draft, _):
    draft.runs["status"] = "target"


def hidden_divergence(draft: Draft, _):
    draft.curve.loc[last(draft), ["phi", "grad_phi"]] = np.inf
    draft.runs[["phi", "grad_phi", "last_phi", "last_grad_phi"]] = np.inf
    draft.runs["best_grad_phi"] = draft.runs["trial_id"].map(draft.curve.groupby("trial_id")["grad_phi"].min())


def other_seed(draft: Draft, _):
    """Both seeds show the curve of the luckier one."""
    first, second = draft.runs["trial_id"]
    mine = draft.curve[draft.curve["trial_id"] == first]
    draft.curve = pd.concat([mine, mine.assign(trial_id=second)], ignore_index=True)
    keep = ["trial_id", "seed"]
    row = draft.runs.iloc[[0, 0]].reset_index(drop=True)
    row[keep] = draft.runs[keep].to_numpy()
    draft.runs = row


def better_method(draft: Draft, others):
    swap_numbers(draft, others["aid"])


def better_method_elsewhere(draft: Draft, others):
    swap_numbers(draft, others["aid"])
    draft.ask_for(algorithm={"name": "mine"}, plugin="acme", label="mine")


def stranger(draft: Draft, _):
    draft.ask_for(plugin="acme", plugin_version="1.0", label="f2ba")
    draft.runs["status"] = "diverged"


def other_version(draft: Draft, _):
    draft.ask_for(plugin_version="99.0")


def other_row(draft: Draft, _):
    draft.runs["algorithm"] = "aid"


def other_parameters(draft: Draft, _):
    draft.runs["algorithm_params"] = [
        json.dumps({**json.loads(text), "K": 1000}) for text in draft.runs["algorithm_params"]
    ]


def asked_and_given(draft: Draft, _):
    draft.ask_for(algorithm={"name": "f2ba", "params": {"K": 4}})


def unknown_parameter(draft: Draft, _):
    draft.ask_for(algorithm={"name": "f2ba", "params": {"speed": 11}})


def foreign_trial(draft: Draft, others):
    draft.record["trials"] = [*draft.record["trials"], others["aid"].record["trials"][0] | {"tuned": "phi"}]


def own_id(draft: Draft, _):
    draft.record["trials"][0]["schedule"]["second_order"] = True


def never_stops(draft: Draft, _):
    draft.runs["status"] = "stopped"


FORGERIES = [
    (negative_cost, "impossible", "says cost = -100 of trial"),
    (free_progress, "impossible", "come closer without a single call"),
    (products, "impossible", "it counts 7 of hvp, none of which f2ba declares, being a first-order method"),
    (half_the_calls, "impossible", "and f2ba declares steps that make"),
    (curve_at_half_cost, "impossible", "less than its gradients and products"),
    (better_end, "differs", "the first column that differs is `runs.grad_phi`"),
    (better_middle, "differs", "the first column that differs is `curve.grad_phi`"),
    (better_best, "impossible", "and no evaluation is below"),
    (better_last, "impossible", "its last_phi is"),
    (over_budget, "impossible", "and its budget is 200"),
    (truncated, "impossible", "it ended by its budget of 400 after"),
    (false_target, "impossible", "it met the target 1e-09, and its last evaluation certifies"),
    (hidden_divergence, "impossible", "what is not finite has failed"),
    (better_method, "impossible", "it counts"),
    (stranger, "not run", "f2ba is of plugin 'acme', and here 'bilevelbench' has that name"),
    (better_method_elsewhere, "not run", "mine is of plugin 'acme'"),
    (other_version, "not run", "f2ba is of bilevelbench 99.0, and"),
    (other_row, "impossible", "says algorithm = 'aid' of trial"),
    (other_parameters, "impossible", "and f2ba declares steps that make"),
    (asked_and_given, "impossible", "it was to have K = 4, and says that it had"),
    (unknown_parameter, "impossible", "its plugin refuses what it asks for: f2ba has no parameter 'speed'"),
    (foreign_trial, "impossible", "which the pack does not hold"),
    (own_id, "impossible", "with contents that have another id"),
    (never_stops, "impossible", "it came to the method's own end, and f2ba has none"),
]


_ALWAYS = 10  # forgeries; the others are named in `make test-slow`


@pytest.mark.parametrize(
    ("forge", "verdict", "words"),
    [
        pytest.param(*one, id=one[0].__name__, marks=[pytest.mark.slow] if n >= _ALWAYS else [])
        for n, one in enumerate(FORGERIES)
    ],
)
def test_a_forgery_is_named(honest, tmp_path, forge, verdict, words):
    others = {draft.method: draft for draft in drafts(honest)}
    forged = of(honest, "f2ba")
    forge(forged, others)
    put(tmp_path, forged)
    found = verified(tmp_path)
    assert {str(one.verdict) for one in found.judged} == {verdict}
    assert all(words in one.why for one in found.judged)
    assert found.failed == (verdict != "not run")


def test_the_curve_of_another_seed_differs(honest, tmp_path):
    forged = of(honest, "soba")
    other_seed(forged, {})
    put(tmp_path, forged)
    seeds = {one.seed: one for one in verified(tmp_path).judged}
    assert seeds[0].verdict is TrialVerdict.REPRODUCED
    assert seeds[1].verdict is TrialVerdict.DIFFERS
    assert "the first column that differs is `" in seeds[1].why


def test_an_unknown_status_and_a_missing_name_are_named(honest, tmp_path):
    for name, column, value in (("status", "status", "victory"), ("name", "algorithm", None)):
        forged = of(honest, "f2ba")
        tables = [runs_table(forged.runs), curve_table(forged.curve)]
        at = tables[0].column_names.index(column)
        kind = tables[0].schema.field(at).type
        tables[0] = tables[0].set_column(at, column, pa.array([value] * 2, kind))
        put(tmp_path / name, forged, tables)
        (only,) = verified(tmp_path / name).judged
        assert only.verdict is TrialVerdict.IMPOSSIBLE
        assert only.trial.startswith("pack ")
        assert {"status": "the status 'victory'", "name": "has a row without 'algorithm'"}[name] in only.why


# ---- against the official folder


def test_a_copied_curve_is_named_with_its_owner(honest, tmp_path):
    others = {draft.method: draft for draft in drafts(honest)}
    forged = of(honest, "f2ba")
    better_method_elsewhere(forged, others)
    put(tmp_path, forged)
    found = verified(tmp_path, against=honest)
    assert {one.verdict for one in found.judged} == {TrialVerdict.DIFFERS}
    for one in found.judged:
        assert "its curve is that of aid (official trial " in one.why
        assert "plugin 'acme'" in one.why  # and why nobody could run it


def test_a_sibling_that_goes_the_same_way_is_told_and_not_accused(honest, tmp_path):
    """paid is aid with kicks at saddles, and there is none here."""
    bilevelbench.run("paid", SMALL, seeds=1, budget=400, targets=[1e-9], schedule=Schedule(ratio=1.5), out=tmp_path)
    for sample, verdict, words in (
        (0, "not run", "it was not in the sample"),
        (9, "reproduced", "this method's as well"),
    ):
        found = verified(tmp_path, sample=sample, against=honest)
        (only,) = found.judged
        assert str(only.verdict) == verdict
        assert "its curve is that of aid" in only.why
        assert words in only.why
        assert not found.failed


def test_an_edited_trial_of_the_official_folder_is_not_even_run(honest, tmp_path):
    forged = of(honest, "f2ba")
    better_end(forged, {})
    put(tmp_path, forged)
    found = verified(tmp_path, sample=0, against=honest)
    assert {one.verdict for one in found.judged} == {TrialVerdict.DIFFERS}
    assert all("the official folder has this trial" in one.why for one in found.judged)


def test_a_trial_with_another_budget_has_the_official_curve(honest, tmp_path):
    forged = of(honest, "f2ba")
    better_middle(forged, {})
    forged.ask_for(budget={"cost": 500.0}, targets=[1e-12])
    put(tmp_path, forged)
    found = verified(tmp_path, sample=0, against=honest)
    assert {one.verdict for one in found.judged} <= {TrialVerdict.DIFFERS, TrialVerdict.IMPOSSIBLE}
    assert found.failed


def test_official_results_are_no_copies_of_themselves(honest):
    assert {one.verdict for one in verified(honest, against=honest).judged} == {TrialVerdict.REPRODUCED}


def test_a_folder_of_folders_is_official_too(honest, tmp_path):
    shutil.copytree(honest, tmp_path / "official" / "exact")
    assert not verified(honest, sample=0, against=tmp_path / "official").failed
    with pytest.raises(StoreError, match=r"there are no results in .*nor in the folders in it"):
        verified(honest, against=tmp_path / "nowhere")


# ---- honest results


def test_honest_results_are_reproduced_bit_for_bit(honest):
    found = verified(honest)
    assert [one.verdict for one in found.judged] == [TrialVerdict.REPRODUCED] * 6
    assert not found.failed
    assert "verified 6 of 6 trials" in found.sentence()
    assert "6 reproduced" in found.sentence()


def test_other_last_digits_are_rounding(honest, tmp_path):
    draft = of(honest, "f2ba")
    draft.runs, draft.curve = nudged(draft.runs, draft.curve, 1e-11)
    put(tmp_path, draft)
    assert {one.verdict for one in verified(tmp_path).judged} == {TrialVerdict.ROUNDING}


def test_what_is_forgiven_grows_with_the_steps(honest, tmp_path):
    """3e-9 is too much after the first step, and rounding after nine."""
    for name, row, verdict in (("early", 1, TrialVerdict.DIFFERS), ("late", -2, TrialVerdict.ROUNDING)):
        draft = of(honest, "f2ba")
        steps = sorted(set(draft.curve["step"]))
        draft.curve.loc[draft.curve["step"] == steps[row], "phi"] *= 1 + 3e-9
        assert steps[row] == {"early": 1, "late": 9}[name]
        put(tmp_path / name, draft)
        assert {one.verdict for one in verified(tmp_path / name).judged} == {verdict}


def test_what_decides_ranks_weighs_more():
    """A first place at each of the accuracies from 10^-0.5 to 10^-4 weighs eight, a second half of that, nothing a tenth."""
    reach = {"fast": 10.0, "slow": 100.0, "never": math.inf}
    runs = [
        {"trial_id": name, "algorithm": name, "problem": "p", "seed": 0, "status": "budget", "cost": 200.0}
        for name in reach
    ]
    curve = [
        {"trial_id": name, "step": n, "cost": 200.0 if n == 2 else min(cost, 150.0) * n, "phi": 1.0 - n,
         "grad_phi": 1e-4 if n and cost < math.inf else 1.0, "grad_phi_error": 0.0}
        for name, cost in reach.items()
        for n in range(3)
    ]  # fmt: skip
    worth = weights(Results(runs_frame(runs), curve_frame(curve), []))
    assert worth == pytest.approx({"fast": 8.1, "slow": 4.1, "never": 0.1})


def test_the_sample_follows_the_weights():
    worth = {"heavy": 100.0, **{f"light{n}": 0.1 for n in range(9)}}
    found = Counter(name for seed in range(200) for name in drawn(worth, worth, 1, seed))
    assert found["heavy"] > 190
    assert len(drawn(worth, worth, 4, 0)) == len(set(drawn(worth, worth, 4, 0))) == 4
    assert drawn(worth, worth, 99, 0) == sorted(worth)


@pytest.mark.parametrize(
    ("message", "verdict"),
    [
        ("could not be set up: data file 'mnist' is in none of six places", TrialVerdict.NOT_RUN),
        ("its worker process was killed", TrialVerdict.NOT_RUN),
        ("in step 3: ZeroDivisionError", TrialVerdict.DIFFERS),
    ],
    ids=["data", "worker", "own"],
)
def test_a_trial_that_fails_here_differs_unless_this_place_is_at_fault(honest, message, verdict):
    draft = of(honest, "f2ba")
    one = draft.runs.iloc[:1]
    curve = draft.curve[draft.curve["trial_id"] == one["trial_id"].iloc[0]]
    failed = one.assign(status="error", message=message)
    found, why = judge((one, curve), (failed, curve.iloc[:0]))
    assert found is verdict
    assert message in why


def test_an_end_that_was_moved_differs_although_every_bit_agrees(honest):
    draft = of(honest, "f2ba")
    one = draft.runs.iloc[:1]
    curve = draft.curve[draft.curve["trial_id"] == one["trial_id"].iloc[0]]
    moved = one.assign(status="stopped", steps=int(curve["step"].iloc[-2]))
    found, why = judge((moved, curve.iloc[:-1]), (one, curve))
    assert found is TrialVerdict.DIFFERS
    assert "every evaluation is the same to the last bit, and yet it ends by stopped" in why


def test_what_the_clock_has_ended_here_is_not_reproduced(honest):
    """Or a trial that asks for no time could tell anything after its first evaluation."""
    draft = of(honest, "f2ba")
    one = draft.runs.iloc[:1]
    curve = draft.curve[draft.curve["trial_id"] == one["trial_id"].iloc[0]]
    short = one.assign(status="timeout", steps=int(curve["step"].iloc[1]))
    found, why = judge((one, curve), (short, curve.iloc[:2]))
    assert found is TrialVerdict.NOT_RUN
    assert f"after {short['steps'].iloc[0]} of {one['steps'].iloc[0]} steps, which agree" in why
    assert judge((short, curve.iloc[:2]), (one, curve))[0] is TrialVerdict.REPRODUCED  # whose every evaluation was seen
    other = curve.iloc[:2].assign(phi=curve["phi"].iloc[:2] * 2)
    assert judge((one, curve), (short, other))[0] is TrialVerdict.DIFFERS


@pytest.mark.slow  # test_local.py tries the limit always
def test_a_trial_that_would_take_for_ever_is_not_run(honest, tmp_path):
    """A stranger chooses the budget."""
    draft = of(honest, "f2ba")
    draft.ask_for(budget={"cost": 1e15}, targets=[])
    draft.runs["status"] = "error"
    put(tmp_path, draft)
    found = verify(tmp_path, Here(registry()), Execution(jobs=1, patience=1.0), sample=2, seed=3)
    assert {one.verdict for one in found.judged} == {TrialVerdict.NOT_RUN}
    assert "hung: gave no answer long after its time" in found.judged[0].why


def test_a_parameter_that_the_plugin_was_given_since_is_no_difference(honest, tmp_path):
    """The numbers are compared in any case; a parameter that both name has to be the same."""
    older = of(honest, "f2ba")
    given = [json.loads(text) for text in older.runs["algorithm_params"]]
    older.runs["algorithm_params"] = [json.dumps({k: v for k, v in one.items() if k != "momentum"}) for one in given]
    assert "momentum" in given[0]
    put(tmp_path, older)
    found = verified(tmp_path, against=honest)
    assert {one.verdict for one in found.judged} == {TrialVerdict.REPRODUCED}


def test_the_seed_chooses_the_sample(honest):
    chosen = [{one.trial for one in verified(honest, sample=2).judged} for _ in range(2)]
    assert chosen[0] == chosen[1]
    assert len(chosen[0]) == 2


def test_a_bare_folder_and_published_tables_are_a_sentence(tmp_path, honest):
    with pytest.raises(StoreError, match="has no packs, and published tables alone do not say what was asked"):
        verified(tmp_path)


def test_files_that_nobody_reads_are_named(honest, tmp_path):
    shutil.copytree(honest, tmp_path / "theirs")
    (tmp_path / "theirs" / "facts.json").write_text('{"methods": {"f2ba": {"text": "bad"}}}')
    found = verified(tmp_path / "theirs", sample=0)
    (only,) = found.judged
    assert (only.trial, only.verdict) == ("facts.json", TrialVerdict.NOT_RUN)
    assert "comes from the official folder alone" in only.why


def test_a_loose_file_runs_only_where_it_is_named(tmp_path, monkeypatch):
    """A record tells where its file lay on another machine; whatever lies there here is not run."""
    monkeypatch.chdir(tmp_path)
    assert cli("new", "method", "my_method", "--file")[0] == 0
    mine = tmp_path / "my_method.py"
    code, _, err = cli("run", "-a", mine, "-p", "quadratic[dim_x=2,dim_y=3]", "--steps", 5, "--jobs", 0, "-o", "out")
    assert code == 0, err
    named = verified(tmp_path / "out", files=[str(mine)])
    assert {one.verdict for one in named.judged} == {TrialVerdict.REPRODUCED}
    mine.write_text("raise SystemExit('somebody ran this')\n" + mine.read_text())
    (only,) = verified(tmp_path / "out").judged
    assert only.verdict is TrialVerdict.NOT_RUN
    assert "my_method.py" in only.why
    assert "was not named" in only.why


UNLIMITED = """
import math
from dataclasses import dataclass
from torch import Tensor
from bilevelbench import Algorithm

@dataclass(frozen=True)
class State:
    x: Tensor
    y: Tensor

class Unlimited(Algorithm):
    name = "unlimited"
    uses = frozenset({"grad_g_y"})
    a: float = 0.1
    most: float = math.inf

    def init(self, x0, y0, oracle):
        return State(x0, y0)

    def step(self, s, oracle):
        return State(s.x, s.y - (self.a * oracle.grad_g_y(s.x, s.y)).clamp(max=self.most))
"""


def test_a_parameter_that_is_infinite_is_read_again(tmp_path):
    """JSON has no such number: the row of a trial says "inf", as its record does."""
    mine = tmp_path / "unlimited.py"
    mine.write_text(UNLIMITED)
    where = ["-p", "quadratic[dim_x=2,dim_y=3]", "--steps", 5, "--jobs", 0, "-o", tmp_path / "out"]
    code, _, err = cli("run", "-a", mine, *where)
    assert code == 0, err
    (row,) = load_results(tmp_path / "out").runs.itertuples()
    assert json.loads(row.algorithm_params, parse_constant=pytest.fail) == {"a": 0.1, "most": "inf"}
    assert {one.verdict for one in verified(tmp_path / "out", files=[str(mine)]).judged} == {TrialVerdict.REPRODUCED}


@pytest.mark.parametrize("plugin", ["acme", "trap.py"])
def test_a_name_that_is_a_path_runs_nothing(honest, tmp_path, plugin):
    trap = tmp_path / "trap.py"
    trap.write_text(f"open({str(tmp_path / 'sprung')!r}, 'w')\n")
    forged = of(honest, "f2ba")
    forged.ask_for(algorithm={"name": str(trap), "file": str(trap)}, plugin=plugin)
    put(tmp_path / "theirs", forged)
    assert {one.verdict for one in verified(tmp_path / "theirs").judged} == {TrialVerdict.NOT_RUN}
    assert not (tmp_path / "sprung").exists()


# ---- the file and the command


def test_the_file_is_about_the_packs_that_were_verified(honest, tmp_path):
    folder = tmp_path / "theirs"
    shutil.copytree(honest, folder)
    found = verified(folder, sample=2)
    write_verified(folder / "verify.json", found.file())
    verdicts, note = read_verified(folder)
    assert note == ""
    trials = [trial for draft in drafts(folder) for trial in draft.record["trial_ids"]]
    assert mark(trials, verdicts) == "verified 2 of 6"
    assert mark([trial for trial in trials if trial not in verdicts], verdicts) == "unverified"
    shutil.rmtree(next((folder / "packs").iterdir()))
    verdicts, note = read_verified(folder)
    assert verdicts == {}
    assert "is about other packs than those in the folder" in note
    record = next((folder / "packs").iterdir()) / "pack.json"
    record.unlink()
    record.symlink_to("/dev/zero")  # which has no end
    assert "is about other packs than those in the folder" in read_verified(folder)[1]
    (folder / "verify.json").write_text('{"seed": -1}')
    assert "is not a verification" in read_verified(folder)[1]


def test_the_mark_says_what_is_wrong():
    verdicts = {
        "a": TrialVerdict.REPRODUCED,
        "b": TrialVerdict.DIFFERS,
        "c": TrialVerdict.IMPOSSIBLE,
        "d": TrialVerdict.NOT_RUN,
    }
    assert mark(list("abcde"), verdicts) == "1 of 5 differs, 1 of 5 is impossible, verified 1 of 5"
    assert mark(["d", "e"], verdicts) == "unverified"


def test_the_command_prints_a_table_and_ends_with_1_if_something_is_wrong(honest, tmp_path):
    folder = tmp_path / "theirs"
    shutil.copytree(honest, folder)
    options = "--sample", 1, "--jobs", 0, "--table", tmp_path / "table.md"
    code, out, err = cli("verify", folder, *options)
    assert code == 0, err
    assert "seed of the sample: " in out
    assert "reproduced" in out
    assert "verified 1 of 6 trials" in out
    assert read_verified(folder)[1] == ""
    forged = of(honest, "f2ba")
    products(forged, {})
    shutil.rmtree(folder)
    put(folder, forged)
    code, out, err = cli("verify", folder, *options)
    assert code == 1, err
    assert "impossible" in out
    text = (tmp_path / "table.md").read_text()
    assert "| impossible | it counts 7 of hvp, none of which f2ba declares" in text
    assert str(tmp_path) not in text


def test_reproduce_shows_one_trial_beside_itself(honest, tmp_path):
    draft = of(honest, "f2ba")
    trial = draft.record["trial_ids"][0]
    code, out, err = cli("reproduce", trial[:8], honest)
    assert code == 0, err
    assert f"command: bilevelbench reproduce {trial} " in out
    assert "in Python: bilevelbench.run('f2ba', 'quadratic[dim_x=2,dim_y=3]', seeds=[" in out
    assert "parameters: {" in out
    assert "reproduced: run again, every count and every number is the same to the last bit" in out
    better_end(draft, {})
    put(tmp_path, draft)
    code, out, err = cli("reproduce", trial, tmp_path)
    assert code == 1, err
    assert "differs: stored against here, the first column that differs is `runs.grad_phi`" in out
    assert "9.0e-01" in out
    code, _, err = cli("reproduce", "ffff", tmp_path)
    assert code == 2
    assert "there is no trial 'ffff'" in err
