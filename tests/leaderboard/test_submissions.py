"""Results that others send in, made on other processors: one board, or a refusal that says why."""

from __future__ import annotations

import json

import pandas as pd
import pytest
from helpers import Reader
from machines import OFFICIAL, ULP, copy_folder

from bilevelbench.cli.app import main
from bilevelbench.errors import StoreError
from bilevelbench.leaderboard.build import build
from bilevelbench.leaderboard.collect import load, provenance
from bilevelbench.results.store import Store
from bilevelbench.results.tables import load_results

pytestmark = pytest.mark.whole  # whole sites

METHODS = ("f2ba", "ba")  # of the published ones: with fixed costs of a step, and with trials that diverge
OTHER = "Another 9000"

SUITE = """
title = "small"
algorithm = "all"
problem = [{ name = "quadratic", params = { dim_x = 3, dim_y = 4 } }]
seeds = 2
[budget]
cost = 300
"""


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """Some of the published results: the whole site takes longer to build."""
    return copy_folder(OFFICIAL / "deterministic", tmp_path_factory.mktemp("published"), methods=METHODS).folder


@pytest.mark.parametrize("by", [ULP, 1e-12])
@pytest.mark.quick_cases(1)
def test_results_of_two_processors_make_one_board(published, tmp_path, by):
    copy_folder(published, tmp_path / "theirs", by, cpu=OTHER)
    index = build([published, tmp_path / "theirs"], tmp_path / "site")
    runs = pd.read_csv(index.parent / "csv" / "runs.csv")
    assert runs["trial_id"].is_unique
    assert set(runs["trial_id"]) == set(load_results(published).runs["trial_id"])
    assert len(runs) == 30 * len(METHODS)  # five problems, three data sets, two seeds
    text = (index.parent / "data.html").read_text(encoding="utf-8")
    assert f"{len(runs)} trials were run on more than one machine" in text
    for cpu in ("AMD EPYC", OTHER):
        assert f'<td class="text">{cpu}</td>' in text
        assert f"{cpu}, 2 cores" in index.read_text(encoding="utf-8")
    Reader(text)


def test_one_processor_alone_is_not_said_to_be_confirmed(published, tmp_path):
    index = build([published], tmp_path / "site")
    assert "more than one machine" not in (index.parent / "data.html").read_text(encoding="utf-8")


def test_both_origins_of_a_trial_are_kept(published, tmp_path):
    copy_folder(published, tmp_path / "theirs", ULP, cpu=OTHER)
    results = load([published, tmp_path / "theirs"]).results["default"]
    origins = provenance(results)
    assert all([o["cpu"] for o in origins[t]] == ["AMD EPYC", OTHER] for t in results.runs["trial_id"])
    assert (results.confirmations() == 2).all()


def test_a_thousandth_is_refused_and_no_site_is_written(published, tmp_path):
    copy_folder(published, tmp_path / "theirs", 1e-3, cpu=OTHER)
    with pytest.raises(
        StoreError, match=r"\(AMD EPYC, .* and .*theirs' \(Another 9000, .* against .*nothing was written"
    ):
        build([published, tmp_path / "theirs"], tmp_path / "site")
    assert not (tmp_path / "site").exists()


def test_two_packs_of_one_folder_are_held_against_each_other(published, tmp_path):
    for n, by in enumerate((None, 1e-3)):
        copy_folder(published, tmp_path / "theirs", by, cpu=f"Processor {n}", methods=["f2ba"])
    with pytest.raises(StoreError, match=r"\(Processor \d, .* and .*\(Processor \d, .*disagree on trial"):
        build([tmp_path / "theirs"], tmp_path / "site")


def test_a_damaged_pack_is_a_warning(published, tmp_path):
    for name in ("figure1", "figure2"):  # a pack each
        copy_folder(OFFICIAL / name, tmp_path / "theirs")
    victim = min((tmp_path / "theirs" / "packs").iterdir())
    (victim / "pack.json").write_text('{"schema_version": 99}')
    said = []
    index = build([published, tmp_path / "theirs"], tmp_path / "site", warn=said.append)
    assert "written by a newer bilevelbench (schema 99" in said[0]
    assert str(victim) in said[0]
    assert "written by a newer bilevelbench (schema 99" in index.read_text(encoding="utf-8")


def bilevelbench(capfd, *arguments):
    """The command line, as the documentation writes it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["bilevelbench", *map(str, arguments)])
        try:
            main()
            code = 0
        except SystemExit as end:
            code = end.code or 0
    out, err = capfd.readouterr()
    assert code == 0, err
    return out


@pytest.mark.whole
def test_the_documented_way_to_submit(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "suite.toml").write_text(SUITE)
    at_home = "--suite", "suite.toml", "--jobs", "0"
    bilevelbench(capfd, "run", *at_home, "-a", "f2ba", "-a", "ba", "-o", "board/official")

    bilevelbench(capfd, "new", "method", "my_method", "--file")
    bilevelbench(capfd, "run", *at_home, "-a", "my_method.py", "-a", "f2ba", "-o", "here")
    copy_folder("here", tmp_path / "results-mine", 1e-12, cpu=OTHER)  # the submitter's machine
    bilevelbench(capfd, "merge", "results-mine", "-o", "board/mine", "--compact")
    assert len(list((tmp_path / "board" / "mine" / "packs").iterdir())) == 1

    bilevelbench(capfd, "leaderboard", "build", "board/official", "board/mine", "-o", "site")
    runs = pd.read_csv("site/csv/runs.csv")
    assert runs.groupby("algorithm").size().to_dict() == {"ba": 2, "f2ba": 2, "my_method": 2}
    assert "2 trials were run on more than one machine" in (tmp_path / "site" / "data.html").read_text(encoding="utf-8")

    said = bilevelbench(capfd, "merge", "board/official", "board/mine", "-o", "both")
    assert "both holds 6 trials now: 6 are new, from 3 packs, 2 were run before on another machine" in said
    together = load_results("both")
    assert sorted(together.confirmations()) == [1, 1, 1, 1, 2, 2]
    assert OTHER in json.dumps(together.records)
    assert Store("both").done() == set(runs["trial_id"])
