"""The order of measured rates, and the names of their rows."""

from __future__ import annotations

import json

from made import rate_row

from bilevelbench.report.analysis.rates import find_rates, name_of


def test_the_papers_tables_come_before_other_sweeps(tmp_path) -> None:
    said = {"a": (None, "dim_x"), "b": (1, "kappa"), "c": (3, "eps"), "d": (1, "eps"), "e": (2, "eps")}
    for name, (table, over) in said.items():
        (tmp_path / name).mkdir()
        text = json.dumps({"title": name, "rows": [rate_row(table=table, over=over)]})
        (tmp_path / name / "rates.json").write_text(text)
    tables, warnings = find_rates(tmp_path)
    assert not warnings
    assert [table.title for table in tables] == ["d", "e", "c", "b", "a"]


def test_rates_that_are_in_no_table_come_last(tmp_path) -> None:
    for name, row in (("b", rate_row(table=2)), ("a", rate_row(table=None, setting="finite_sum")), ("c", rate_row())):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "rates.json").write_text(json.dumps({"title": name, "rows": [row]}))
    tables, problems = find_rates(tmp_path)
    assert not problems
    assert [table.title for table in tables] == ["c", "b", "a"]
    assert name_of(tables[-1].rows[0]) == "aid, finite-sum"
