"""The scripts of docs/worked-examples.md: what they learn is better than their baselines, and they say so only if it is."""

from __future__ import annotations

import dataclasses
import functools
import runpy
from pathlib import Path
from typing import Any

import pytest
from matplotlib.image import imread

DOCS = Path(__file__).parents[1] / "docs"
SCRIPTS = {path.stem: path for path in sorted((DOCS / "scripts").glob("*.py"))}

#: Smaller sizes, which take a few seconds.
QUICK = {
    "few_shot_heads": {"steps": 30, "tasks_per_step": 8, "new_tasks": 30},
    "learned_regulariser": {"steps": 15, "epochs": 100},
    "noisy_labels": {"images": 120, "checked_images": 30, "steps": 12},
}


@functools.cache
def script(name: str) -> dict[str, Any]:
    return runpy.run_path(str(SCRIPTS[name]))


def check_run(name: str, capsys, **sizes: int) -> None:
    outcome = script(name)["main"](**sizes)
    if name == "learned_regulariser":  # losses
        assert outcome.ours < outcome.baseline
        assert outcome.accuracy >= outcome.baseline_accuracy
        assert outcome.measured < outcome.shuffled
    else:
        assert outcome.ours > max(outcome.baselines.values())
    if name == "noisy_labels":
        assert outcome.weight_if_wrong + 0.2 < outcome.weight_if_right
    assert capsys.readouterr().out.splitlines()[-1] == outcome.sentence()
    picture = imread(f"{name}.png")
    assert min(picture.shape[:2]) > 300
    assert picture[..., :3].std() > 0.05  # not blank


@pytest.mark.parametrize("name", SCRIPTS)
@pytest.mark.quick_cases(1)
def test_a_small_run_beats_its_baselines_and_leaves_a_picture(name, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    check_run(name, capsys, **QUICK[name])


@pytest.mark.slow  # its quick form is the test above
@pytest.mark.parametrize("name", SCRIPTS)
def test_the_script_as_it_stands_beats_its_baselines_and_leaves_a_picture(name, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    check_run(name, capsys)


@pytest.mark.parametrize(
    ("name", "numbers", "worse"),
    [
        ("few_shot_heads", {"ours": 0.8, "baselines": {"raw pixels": 0.7, "a random embedding": 0.6}}, {"ours": 0.65}),
        (
            "learned_regulariser",
            {"ours": 0.1, "baseline": 0.2, "accuracy": 0.9, "baseline_accuracy": 0.8, "measured": 0.1, "shuffled": 0.2},
            {"ours": 0.3},
        ),
        (
            "noisy_labels",
            {"ours": 0.8, "baselines": {"early stopping": 0.7}, "weight_if_right": 0.9, "weight_if_wrong": 0.1},
            {"baselines": {"early stopping": 0.7, "training on everything": 0.85}},
        ),
    ],
    ids=list(QUICK),
)
def test_the_last_sentence_is_computed(name, numbers, worse):
    outcome = script(name)["Outcome"](**numbers)
    assert " better than " in outcome.sentence()
    assert "no better" not in outcome.sentence()
    assert " no better than " in dataclasses.replace(outcome, **worse).sentence()
    equal = dataclasses.replace(outcome, ours=numbers.get("baseline", max(numbers.get("baselines", {"": 0}).values())))
    assert " no better than " in equal.sentence()


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_open_as_notebooks_and_are_explained(name):
    lines = SCRIPTS[name].read_text(encoding="utf-8").splitlines()
    assert lines[0] == "# %% [markdown]"
    assert lines[1].startswith("# # ")
    assert 60 <= sum(bool(line.strip()) for line in lines) <= 120
    assert f"(scripts/{name}.py)" in (DOCS / "worked-examples.md").read_text(encoding="utf-8")
