"""A folder that bilevelbench 0.1.0 wrote (`run`, then `merge --compact`) is read, reported and ranked by this one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from helpers import cli

from bilevelbench.results.schema import RUNS, SCHEMA_VERSION
from bilevelbench.results.tables import load_results

WRITTEN = Path(__file__).parent / "written_by_0_1"
COUNTS = ["steps", "first_order", "second_order", "cost", "status"]


def test_it_is_really_old():
    (runs,) = (pq.ParquetFile(path).read().to_pandas() for path in WRITTEN.glob("packs/*/runs.parquet"))
    assert set(runs["schema_version"]) == {1}
    assert '"bilevelbench": "0.1.0"' in next(WRITTEN.glob("packs/*/pack.json")).read_text(encoding="utf-8")


def test_every_trial_is_read_with_the_columns_of_today():
    results = load_results(WRITTEN)
    assert results.warnings == []
    assert list(results.runs.columns) == list(RUNS)
    assert set(results.runs["schema_version"]) == {SCHEMA_VERSION}
    assert results.runs.groupby("algorithm").size().to_dict() == {"aid": 2, "f2ba": 4, "f2bsa": 2}


@pytest.mark.whole
def test_exact_trials_have_the_numbers_that_they_have_today(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    limits = ["--budget", "3000", "--seeds", "2", "--jobs", "0"]
    assert cli("run", "-a", "f2ba", "-a", "aid", "-p", "quadratic[dim_x=3,dim_y=3]", *limits, "-o", "new")[0] == 0
    key = ["algorithm", "label", "seed"]
    old, new = (load_results(folder).runs.set_index(key).sort_index() for folder in (WRITTEN, tmp_path / "new"))
    old = old.loc[new.index]
    assert len(new) == 4
    assert old[COUNTS].equals(new[COUNTS])
    np.testing.assert_allclose(old["last_grad_phi"], new["last_grad_phi"], rtol=1e-6)


@pytest.mark.whole
def test_it_is_reported_and_ranked(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, text, _ = cli("report", WRITTEN, "--format", "md")
    assert code == 0
    assert "f2bsa" in text
    assert cli("leaderboard", "build", WRITTEN, "-o", "site")[0] == 0
    assert "f2ba" in (tmp_path / "site" / "index.html").read_text(encoding="utf-8")
