"""The problem's own metrics in tables."""

from __future__ import annotations

import io

import made
import numpy as np
import pytest
from rich.console import Console

from bilevelbench.cli.progress import print_table
from bilevelbench.report.analysis.metrics import final_metrics, with_metrics
from bilevelbench.report.analysis.summary import readable, summary
from bilevelbench.report.contents import Report
from bilevelbench.report.formats import html


def measured(*trials, **columns):
    """Results with further columns of the curve; a number stands for all rows."""
    data = made.results(*trials)
    for name, values in columns.items():
        data.curve[name] = values
    return data


LOST = {"algorithm": "b", "label": "b", "status": "diverged"}
TWO = ({"algorithm": "a", "label": "a"}, LOST, {"algorithm": "b", "label": "b"})


def test_the_last_value_counts_and_a_failed_trial_has_none():
    data = measured(*TWO, test_loss=[3.0, 2.0, 1.0, 9.0, 9.0, 9.0, 5.0, 4.0, np.nan])
    found = final_metrics(data, "quadratic")
    assert found["test_loss"].to_dict() == {"a": 1.0, "b": 4.0}


def test_what_only_some_methods_report_is_not_a_metric():
    data = measured(*TWO, restarts=[1.0] * 3 + [np.nan] * 6, second_order_samples=1.0, accuracy=0.5)
    assert list(final_metrics(data, "quadratic").columns) == ["accuracy"]


@pytest.mark.parametrize("norms", [True, False])
def test_metrics_take_the_place_of_norms_that_were_not_evaluated(norms):
    data = measured(*TWO, test_loss=[3.0, 2.0, 1.0] * 3)
    if not norms:
        data.curve["grad_phi"] = np.nan
        data.runs["best_grad_phi"] = np.nan
    exact = summary(data)
    columns = list(with_metrics(data, exact, readable(exact)).columns)
    assert columns.index("test_loss") == columns.index("method") + 1
    assert ("|grad phi|" in columns) == norms
    assert any(c.startswith("cost to ") for c in columns) == norms
    page = html.document(Report(data))
    assert "test_loss" in page
    assert ("cost to 0.1" in page) == norms
    console = Console(width=100, file=io.StringIO())
    print_table(console, data)
    lines = [line.split() for line in console.file.getvalue().splitlines()]
    assert any("test_" in line for line in lines) != norms, "the terminal has room for one of them"
    assert any("cost" in line for line in lines) == norms


def test_without_metrics_a_table_stays_as_it_is():
    data = made.results(*TWO)
    exact = summary(data)
    people = readable(exact)
    assert with_metrics(data, exact, people) is people
