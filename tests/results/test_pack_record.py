"""What pack.json may say: a pack speaks for its own trials, and only as they were asked."""

from __future__ import annotations

import pytest
from described import asked, row

from bilevelbench.model.trial_id import is_its_own, trial_id
from bilevelbench.plan.trial import Budget, Spec, Trial
from bilevelbench.results.merge import merge
from bilevelbench.results.packs import CorruptPack, read_pack
from bilevelbench.results.record import record_fault
from bilevelbench.results.schema import curve_frame, runs_frame
from bilevelbench.results.store import Store
from bilevelbench.results.tables import load_results


def put(folder, trials, rows):
    store = Store(folder)
    return store.packs / store.add(runs_frame(rows), curve_frame([]), {"trials": trials})


def record(**more):
    sums = {name: {"bytes": 1, "sha256": ""} for name in ("runs.parquet", "curve.parquet")}
    return {"trial_ids": [asked()["id"]], "files": sums, "trials": [asked()], **more}


def test_an_honest_record_has_no_fault():
    assert record_fault(record()) is None
    assert record_fault(record(trials=None)) is None
    assert record_fault(record(of_a_newer_version={"deep": [1]})) is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"trials": [asked(seed=1)]}, f"describes trial '{asked(seed=1)['id']}', which the pack does not hold"),
        ({"trials": [asked() | {"seed": 1}]}, f"describes trial '{asked()['id']}' with contents that have another id"),
        ({"trials": [asked() | {"tuned": "phi"}]}, "with contents that have another id"),
        ({"trials": [asked() | {"schedule": {"second_order": True}}]}, "with contents that have another id"),
        ({"trials": [asked(), asked()]}, f"describes trial '{asked()['id']}' twice"),
        ({"trials": [asked() | {"algorithm": None}]}, "is not the record of a pack (trials.0.algorithm = None: "),
        ({"trials": [asked() | {"seed": "0"}]}, "is not the record of a pack (trials.0.seed = '0': "),
        ({"trial_ids": ["a", "a"]}, "names a trial twice"),
        ({"environment": "x" * 10_000}, "x..."),
    ],
    ids=["stranger", "seed", "tuned", "schedule", "twice", "null", "text", "two ids", "long"],
)
def test_what_a_record_may_not_say(change, said):
    fault = record_fault(record(**change))
    assert said in fault
    assert len(fault) < 500


def test_a_label_and_a_file_make_no_other_trial():
    assert is_its_own(asked() | {"label": "another name"})
    moved = asked()
    moved["algorithm"] = moved["algorithm"] | {"file": "/elsewhere.py"}
    assert is_its_own(moved)
    assert trial_id(asked(tuned="phi")) != asked()["id"]


def test_a_budget_that_is_not_finite_keeps_its_id():
    trial = Trial(algorithm=Spec(name="a"), problem=Spec(name="p"), budget=Budget(cost=float("inf")))
    stored = {"id": trial.id, **trial.model_dump(mode="json")}
    stored["budget"] = stored["budget"] | {"cost": "inf"}  # as JSON has it
    assert is_its_own(stored)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"algorithm": "aid"}, "says algorithm = 'aid' of trial {}, which asks for 'f2ba'"),
        ({"seed": 7}, "says seed = 7 of trial {}, which asks for 0"),
        ({"plugin": "acme"}, "says plugin = 'acme' of trial {}, which asks for 'bilevelbench'"),
        ({"problem_params": "{}"}, "says problem_params = {{}} of trial {}, which asks for others"),
        ({"problem_params": "{"}, "says problem_params = {{ of trial {}, which asks for others"),
    ],
    ids=["method", "seed", "plugin", "parameters", "broken"],
)
def test_a_row_is_about_the_trial_whose_id_it_has(tmp_path, columns, said):
    path = put(tmp_path, [asked()], [row(asked(), **columns)])
    with pytest.raises(CorruptPack) as error:
        read_pack(path)
    assert said.format(asked()["id"]) in str(error.value)


def test_what_was_asked_comes_along_when_packs_become_one(tmp_path):
    for seed in range(2):
        put(tmp_path / "apart", [asked(seed)], [row(asked(seed))])
    merge([tmp_path / "apart"], tmp_path / "one", compact=True)
    (only,) = load_results(tmp_path / "one").records
    assert {trial["id"] for trial in only["trials"]} == {asked(0)["id"], asked(1)["id"]}
