"""Reports of a grid: hundreds of settings, each a method of its own."""

from __future__ import annotations

import io
import math

import made
import numpy as np
import pytest
from matplotlib.collections import LineCollection
from rich.console import Console

from bilevelbench.cli import progress
from bilevelbench.report.analysis.ranking import costs
from bilevelbench.report.analysis.summary import exact_rows, readable, summary
from bilevelbench.report.figures import curves
from bilevelbench.report.figures.style import MOST, chosen

pytestmark = pytest.mark.whole  # large tables


def grid(count, **odd):
    """Methods m000, m001, ... of which each ends higher than the one before it; `odd` is added to the last."""
    trials = [
        {"label": f"m{n:03}", "seed": 0, "curve": [(1, 0, 9.0), (10 + n, 0, 0.001 * (n + 1))]} for n in range(count)
    ]
    return made.results(*trials[:-1], trials[-1] | odd)


def legend(figure):
    box = figure.axes[0].get_legend()
    return [text.get_text() for text in box.get_texts()], box.get_title().get_text()


def grey(figure):
    return [c for c in figure.axes[0].collections if isinstance(c, LineCollection)]


@pytest.mark.parametrize("count", [1, MOST])
def test_few_lines_are_all_in_colour(count):
    figure = curves.convergence_figure(grid(count), "quadratic")
    assert legend(figure) == ([f"m{n:03}" for n in range(count)], "")
    assert len(figure.axes[0].lines) == count
    assert not grey(figure)


def test_of_many_lines_the_best_are_in_colour():
    figure = curves.convergence_figure(grid(MOST + 3), "quadratic")
    assert legend(figure) == ([f"m{n:03}" for n in range(MOST)], "the best 12 of 15\n3 others in grey")
    assert len(figure.axes[0].lines) == MOST
    (others,) = grey(figure)
    ends = [path.vertices[-1].tolist() for path in others.get_paths()]
    assert ends == [[10 + n, pytest.approx(0.001 * (n + 1))] for n in range(MOST, MOST + 3)]


def test_a_method_that_failed_is_not_among_the_best():
    data = grid(MOST + 1, label="lost", status="diverged", curve=[(1, 0, 9.0), (2, 0, 1e-9)])
    assert "lost" not in legend(curves.convergence_figure(data, "quadratic"))[0]
    well = grid(MOST + 1, label="well", curve=[(1, 0, 9.0), (2, 0, 1e-9)])
    assert "well" in legend(curves.convergence_figure(well, "quadratic"))[0]


@pytest.mark.parametrize("draw", [curves.profile_figure, curves.ecdf_figure])
def test_shares_have_the_first_of_the_board_in_colour(draw):
    figure = draw(costs(grid(MOST + 3), (0.1,)))
    names, note = legend(figure)
    assert names == [f"m{n:03}" for n in range(MOST)]
    assert note == "the best 12 of 15\n3 others in grey"
    (others,) = grey(figure)
    for path in others.get_paths():  # steps: every piece is level or upright
        assert ((np.diff(path.vertices, axis=0) == 0).any(1)).all()
        assert path.vertices[-1, 1] == 1.0


def test_a_thousand_lines_are_not_all_drawn():
    names = [f"m{n:04}" for n in range(1000)]
    shown = chosen(names)
    assert shown.coloured == names[:MOST]
    assert len(set(shown.grey)) == 200
    assert shown.grey == sorted(shown.grey)
    assert names.index(shown.grey[-1]) > 990
    assert shown.note == "the best 12 of 1,000\n200 others in grey, 788 are not drawn"


def test_the_terminal_shows_the_first_and_counts_the_rest():
    def printed(count):
        text = io.StringIO()
        progress.print_table(Console(file=text, width=120), grid(count))
        return text.getvalue()

    assert "m100" not in printed(103)
    assert "3 more methods on quadratic: they are on the page" in printed(103)
    assert "1 more method on quadratic: it is on the page" in printed(101)
    assert "on the page" not in printed(100)
    assert "m099" in printed(100)


def test_quartiles_of_many_groups_are_those_of_each():
    """Against the definition, one group at a time; some trials never get there."""
    rng = np.random.default_rng(3)
    ends = {f"m{n}": [0.05 if rng.random() < 0.7 else 5.0 for _ in range(rng.integers(1, 9))] for n in range(30)}
    spent = {name: [int(rng.integers(2, 500)) for _ in its] for name, its in ends.items()}
    trials = [
        {"label": name, "seed": s, "curve": [(1, 0, 9.0), (spent[name][s], 0, end)]}
        for name, its in ends.items()
        for s, end in enumerate(its)
    ]
    table = summary(made.results(*trials)).set_index("method")

    def quantile(values, q):
        ordered, at = sorted(values), q * (len(values) - 1)
        low, high = ordered[math.floor(at)], ordered[math.ceil(at)]
        return low if low == high or at == math.floor(at) else low + (high - low) * (at - math.floor(at))

    for name, its in ends.items():
        paid = [cost if end < 0.1 else math.inf for cost, end in zip(spent[name], its, strict=True)]
        for column, q in (("low_cost_to_0.1", 0.25), ("cost_to_0.1", 0.5), ("high_cost_to_0.1", 0.75)):
            assert table.loc[name, column] == quantile(paid, q)
        assert table.loc[name, "reached_0.1"] == sum(map(math.isfinite, paid))
        assert table.loc[name, "trials"] == len(its)


def test_endings_are_told_the_most_frequent_first():
    statuses = ["budget", "target", "target", "diverged", "budget", "target"]
    table = summary(made.results(*({"label": "a", "status": status} for status in statuses), {"label": "b"}))
    assert dict(zip(table["method"], table["statuses"], strict=True)) == {
        "a": "3 target, 2 budget, 1 diverged",
        "b": "1 budget",
    }
    assert list(table.loc[table["method"] == "a", ["failed", "reached_target"]].iloc[0]) == [1, 3]


def test_cells_have_the_digits_behind_them():
    table = summary(made.results({"curve": [(1, 0, 2.0), (30, 0, 1 / 30)]}))
    (row,) = exact_rows(table, readable(table))
    cells = {column: (text, exact) for column, text, exact in row}
    assert cells["|grad phi|"] == ("0.033", "0.03333333333")
    assert cells["cost to 0.1"] == ("30", "30")
    assert cells["cost to 0.01"] == ("never", "")
    assert cells["method"] == ("gd", "")
