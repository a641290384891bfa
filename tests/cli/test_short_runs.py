"""A run that is over before a worker process has begun needs none."""

from __future__ import annotations

import gc

import pytest
from helpers import cli, trial

from bilevelbench.cli import app, progress, run
from bilevelbench.discovery.registry import registry
from bilevelbench.execute import local
from bilevelbench.plan.trial import CALLS_OF_A_STEP, SHORT
from bilevelbench.results.schema import Results, curve_frame, runs_frame

TINY = ("run", "-a", "f2ba", "-p", "quadratic")


def test_a_short_run_starts_no_process(tmp_path, monkeypatch):
    monkeypatch.setattr(run, "start_server", lambda: pytest.fail("the server was started"))
    monkeypatch.setattr(local, "_new_pool", lambda *_: pytest.fail("workers were started"))
    code, out, err = cli(*TINY, "--budget", 1000, "-o", tmp_path)
    assert (code, err) == (0, "")
    assert "1 trial; 1 to run in 1 pack, in this process" in out
    assert (tmp_path / "index.html").exists()


@pytest.mark.parametrize(
    ("options", "early", "jobs"),
    [
        (("--budget", SHORT), False, 0),
        (("--steps", SHORT // CALLS_OF_A_STEP), False, 0),
        (("--budget", SHORT + 1), True, None),
        ((), True, None),  # 30,000 calls
        (("--budget", SHORT, "--seeds", 2), True, None),
        (("--budget", SHORT, "-a", "aid"), True, None),
        (("--budget", SHORT // 3, "-a", "f2ba[lam=10,100]"), False, 0),
        (("--budget", SHORT // 2, "-a", "f2ba[lam=10,100]"), True, None),
        (("--budget", 1000, "--seconds", 9), True, None),  # a worker that hangs is killed
        (("--budget", 1000, "--jobs", 2), True, 2),
        (("--budget", 1000, "--memory", 2), True, None),
        (("--budget", 1000, "--timed"), True, None),
        (("--budget", 1000, "--isolate"), True, None),
        (("--budget", 1000, "--jobs", 0), False, 0),
    ],
)
def test_workers_where_they_are_asked_for_or_gain_time(options, early, jobs, tmp_path, monkeypatch):
    started, chosen = [], []

    def planned(trials, out, executor, *_):
        chosen.append(executor.execution.jobs)
        return Results(runs_frame([]), curve_frame([]), [])

    monkeypatch.setattr(run, "start_server", lambda: started.append(True))
    monkeypatch.setattr(progress, "run_with_progress", planned)
    cli(*TINY, *options, "-o", tmp_path)
    assert (bool(started), chosen) == (early, [jobs])


def test_others_plugins_and_large_problems_have_workers():
    ours = trial("f2ba", "quadratic", cost=1000)
    assert not run._needs_worker(ours, registry())
    assert run._needs_worker(ours.model_copy(update={"plugin": "acme"}), registry())
    assert run._needs_worker(trial("f2ba", "logreg_digits", cost=1000), registry())  # not an embedded one


def test_garbage_is_looked_for_less_often_inside_of_a_command_and_as_before_after_it(monkeypatch):
    before, inside = gc.get_threshold(), []
    monkeypatch.setattr(app, "start", lambda command: inside.append(gc.get_threshold()))
    app.main()
    assert all(now >= then for now, then in zip(inside[0], before, strict=True))
    assert inside[0] != before == gc.get_threshold()
