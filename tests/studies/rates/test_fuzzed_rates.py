"""Whatever is written as the rows of a complexity table, they are planned or refused with a sentence."""

from __future__ import annotations

import pytest
from fuzzing import EXAMPLES, mutated_toml, survives

from bilevelbench.discovery.entry import make
from bilevelbench.discovery.registry import registry
from bilevelbench.errors import InvalidInput
from bilevelbench.studies.rates.plan import plan_row
from bilevelbench.studies.rates.presets import weaker
from bilevelbench.studies.rates.suite import RateSuite

pytestmark = pytest.mark.whole  # many inputs

SUITE = """
title = "Mine"
problem_params = { tails = 1, mu = 1.0 }
first_seed = 3
[[row]]
method = "aid"
eps = [0.2, 0.05]
seeds = 2
params = { N = 3 }
weakened = { text = "fewer", times = { N = 0.5 }, powers = { N = 0.5 }, params = { solver = "neumann" } }
quick = { eps = [0.2, 0.1], seeds = 1 }
[[row]]
method = "pzobo"
rule = "horizon"
set_by = "steps"
horizons = [3, 5]
cap = { steps = 100 }
[[row]]
method = "f2ba"
set_by = "sweep"
sweep = "kappa"
values = [2.0, 8.0]
at_eps = 0.5
scale = 2.0
"""


def plan(suite):
    for row in suite.row:
        for one in filter(None, (row, row.quickly())):
            grid = one.grid()
            assert len(grid) > 0
            small = one.model_copy(update={"seeds": 1})
            (point,) = plan_row(small, suite, registry(), grid=grid[:1])
            if one.weakened is not None:
                params = point.trial.algorithm.params
                make(registry().algorithm(one.method), weaker(params, one.weakened, params))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "rows.toml"


def test_the_rows_can_be_planned(path):
    path.write_text(SUITE)
    plan(RateSuite.load(path))


@EXAMPLES
def test_rows(examples, path):
    path.write_text(SUITE)
    known = RateSuite.load(path)
    instances = {(known.problem_of(row)[0], repr(known.problem_of(row)[1]), row.sweep) for row in known.row}

    def load(text):
        path.write_bytes(text.encode("utf-8", "surrogateescape"))
        suite = RateSuite.load(path)
        rows = [
            row
            for row in suite.row
            if (suite.problem_of(row)[0], repr(suite.problem_of(row)[1]), row.sweep) in instances
        ]
        plan(suite.model_copy(update={"row": tuple(rows)}))

    survives(examples, mutated_toml(SUITE), load)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("horizons = [3, 5]", "horizons = [3, 2000]", "powers of two up to 62"),
        ("horizons = [3, 5]", "horizons = [5, 3]", "the smallest comes first"),
        ("values = [2.0, 8.0]", "values = [2.0, 8.0]\nratio = 1.0000000001", "at most 1,000,000 are planned"),
        ("eps = [0.2, 0.05]", "eps = [1e300, 1e-300]", "a row of inf trials"),
        ("eps = [0.2, 0.05]", "eps = [inf, 0.05]", "finite number"),
        ("quick = { eps", "quick = { ep", "in `quick`, ep"),
    ],
)
def test_a_grid_has_bounds(path, old, new, words):
    assert SUITE.count(old) == 1
    path.write_text(SUITE.replace(old, new))
    with pytest.raises(InvalidInput, match=words):
        RateSuite.load(path)
