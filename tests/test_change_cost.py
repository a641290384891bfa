"""The four usual changes of tools/change_cost.py stay cheap, and work."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.whole

ROOT = Path(__file__).parents[1]
_SPEC = importlib.util.spec_from_file_location("change_cost", ROOT / "tools" / "change_cost.py")
change_cost = importlib.util.module_from_spec(_SPEC)
sys.modules["change_cost"] = change_cost
_SPEC.loader.exec_module(change_cost)

needs_git = pytest.mark.skipif(not (ROOT / ".git").exists(), reason="counts changed files by git: not in an archive")


@needs_git
def test_usual_changes_touch_few_files(capfd):
    change_cost.main(tried=False)
    told = capfd.readouterr().out
    assert told.count(" core files of at most ") == 4
    assert "bilevelbench/model/queries.py" in told


@needs_git
@pytest.mark.slow
def test_usual_changes_work():
    change_cost.main()


@needs_git
def test_a_change_that_touches_too_much_is_an_error(monkeypatch):
    query = change_cost.CHANGES[0]
    monkeypatch.setattr(change_cost, "CHANGES", (change_cost.Change(query.name, 1, query.trial, query.edits),))
    with pytest.raises(SystemExit, match="too dear: a new query kind"):
        change_cost.main(tried=False)


def test_a_line_that_is_gone_is_an_error(tmp_path):
    (tmp_path / "a.py").write_text("x = 1\n")
    change = change_cost.Change("a change", 1, "", edits=(("a.py", "y = 1\n", "z = 1\n"),))
    with pytest.raises(SystemExit, match=r"a change: a.py has the line 'y = 1' 0 times"):
        change_cost.make(change, tmp_path)
