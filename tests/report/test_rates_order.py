"""The order of measured rates, and the names of their rows."""

from __future__ import annotations

import json

from made import rate_row

from bilevelbench.report.analysis.rates import find_rates, name_of


def test_rates_that_are_in_no_table_come_last(tmp_path) -> None:
    for name, row in (("b", rate_row(table=2)), ("a", rate_row(table=None, setting="finite_sum")), ("c", rate_row())):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "rates.json").write_text(json.dumps({"title": name, "rows": [row]}))
    tables, problems = find_rates(tmp_path)
    assert not problems
    assert [table.title for table in tables] == ["c", "b", "a"]
    assert name_of(tables[-1].rows[0]) == "aid, finite-sum"
