"""Verdicts as a table: a row for each claim on each problem."""

from __future__ import annotations

import made

from bilevelbench.plan.figure import PaperFigure
from bilevelbench.report.analysis.verdict_rows import verdict_rows
from bilevelbench.report.analysis.verdicts import Experiment, Planned, outcome

FIGURE = PaperFigure.model_validate(
    {
        "name": "f", "title": "F", "claim": "ours is best", "panel": [{"y": "grad_phi"}],
        "check": [
            {"rule": "ranking", "claim": "ours beats theirs", "column": "grad_phi", "better": ["ours"], "worse": ["theirs"]},
            {"rule": "separation", "claim": "apart", "column": "grad_phi", "low": ["ours"], "high": ["theirs"],
             "below": 0.1, "above": 0.3},
            {"rule": "falls", "claim": "it falls", "columns": ["grad_phi"], "factor": 10, "methods": ["ours"]},
        ],
    }
)  # fmt: skip


def judged(tmp_path, ends):
    """`ends`: {(problem, method): [end of each trial]}; each starts at 1."""
    trials = [
        {"problem": problem, "algorithm": method, "label": method, "curve": [(1, 0, 1.0), (2, 0, end)]}
        for (problem, method), values in ends.items()
        for end in values
    ]
    data = made.results(*trials)
    planned = tuple(
        Planned(id=i, method=m, algorithm=m, problem=p)
        for i, m, p in zip(data.runs["trial_id"], data.runs["algorithm"], data.runs["problem"], strict=True)
    )
    return verdict_rows(outcome(Experiment(figure=FIGURE, trials=planned), data, tmp_path))


def test_a_row_for_each_claim_on_each_problem(tmp_path):
    rows = judged(
        tmp_path,
        {
            ("p", "ours"): [0.01, 0.03],
            ("p", "theirs"): [0.5, 0.7],
            ("q", "ours"): [0.6, 0.6],
            ("q", "theirs"): [0.4, 0.4],
        },
    )
    assert [(row.claim, row.problem, row.word) for row in rows] == [
        ("ours beats theirs", "p", "reproduced"),
        ("ours beats theirs", "q", "not reproduced"),
        ("apart", "p", "reproduced"),
        ("apart", "q", "not reproduced"),
        ("it falls", "p", "reproduced"),
        ("it falls", "q", "not reproduced"),
    ]
    assert (rows[0].ours, rows[0].theirs, rows[0].seeds) == (
        "ours 0.0200 [0.0100, 0.0300]",
        "theirs 0.600 [0.500, 0.700]",
        2,
    )
    assert (rows[1].ours, rows[1].theirs) == ("ours 0.600", "theirs 0.400")
    assert (rows[4].ours, rows[4].theirs) == ("ours 0.0200 [0.0100, 0.0300]", "at the start ours 1")


def test_a_side_without_an_end_has_none(tmp_path):
    rows = judged(tmp_path, {("p", "ours"): [0.01, 0.03]})
    assert rows[0].theirs == "theirs none"
    assert (rows[0].word, rows[0].seeds) == ("cannot be told", 0)
