"""The search for an x-step, and the accuracies that a theorem speaks of."""

from __future__ import annotations

import math

import pytest

from bilevelbench import Constants
from bilevelbench.discovery.registry import registry
from bilevelbench.report.analysis.fit import slope_of_logs
from bilevelbench.studies.rates.presets import chosen_at
from bilevelbench.studies.rates.suite import RateRow, RateSuite
from bilevelbench.studies.rates.tuned import _Search, _told


def searched(longest: float, found: _Search | None = None, most: float = 1e6) -> _Search:
    """Calls go as one over the step, up to steps of 2^longest; longer ones do not get there, nor do those beyond the cap."""
    found = found or _Search(1.0)
    while wanted := found.wanted():
        cap = found.cap() or math.inf
        for power in wanted:
            found.steps[power] = round(most * 2**-power)
            reached = power <= longest and found.steps[power] <= cap
            found.tried[power] = -power * math.log(2) if reached else math.inf
        found.doubt()
    return found


def follower(third: float) -> _Search:
    """At 4.0, after 1.0 and 2.0 whose longest steps are 2^3.6 and 2^3.4 and whose steps grow eightfold."""
    found = _Search(4.0)
    found.follow(searched(3.4, _Search(2.0), 8e6), searched(3.6))
    return searched(third, found, 64e6)


def test_third_value_is_looked_for_where_the_two_before_it_say():
    found = follower(3.2)
    assert 2 ** (3.2 - found.best) < 1.03
    assert len(found.tried) == 41, "one pack"
    assert found.twice() == (pytest.approx(2.0, rel=0.1), False)


@pytest.mark.parametrize("third", [4.9, 2.0, 0.3])
def test_search_finds_what_is_not_where_the_values_before_it_say(third):
    found = follower(third)
    assert 1 <= 2 ** (third - found.best) < 1.03
    assert found.twice() is not None


def test_value_is_tried_once_even_if_those_before_it_are_at_the_end():
    found = _Search(4.0, base=-19.5, guess=10)
    searched(-math.inf, found)
    assert found.best is None
    assert found.tried


def test_value_of_which_nothing_is_known_before_it_is_searched_from_the_first_step():
    found = _Search(4.0)
    found.follow(searched(-math.inf, _Search(2.0)), searched(3.6))
    assert found.wanted() == [0.0]
    assert found.cap() is None


@pytest.mark.parametrize(
    ("longest", "best"), [(3.6, 3.59375), (0.0, 0.0), (-2.1, -2.125), (5.99, 5.96875), (-7.0, -7.0)]
)
def test_search_ends_at_the_longest_step_that_works_within_two_percent(longest, best):
    assert searched(longest).best == best


def test_tries_may_take_as_many_steps_as_the_best_so_far():
    found = searched(3.6)
    assert found.cap() == found.steps[3.59375]
    assert _Search(1.0).cap() is None


def test_search_gives_up_where_no_step_works():
    found = searched(-math.inf)
    assert found.best is None
    assert min(found.tried) == -20
    assert _told(RateRow(method="f2ba", eps=(0.2, 0.1)), [found]) == "no x-step got there"


def test_steps_of_twice_the_length_are_told_as_far_as_they_were_tried():
    row = RateRow(method="f2ba", eps=(0.2, 0.1), tuned_from=4.0)
    assert _told(row, [searched(3.6), searched(0.0)]) == (
        "x-step 48.3 4 times the preset's; steps 2 to 2.04 times as long did not get there in as many steps at 2 of 2 values"
    )
    good = searched(0.0)
    good.tried[1.0] = 5.0  # got there, in more calls
    assert _told(row, [good]).endswith("steps 2 times as long did not get there in as many steps at 0 of 1 values")


def test_other_parameters_that_were_tuned_are_told():
    row = RateRow(method="f2ba", eps=(0.2, 0.1), tuned_over={"K": (4, 16)})
    small, large = searched(0.0), searched(1.0)
    small.params, large.params = {"K": 4}, {"K": 16}
    assert large.calls < small.calls
    assert "x-step 1 2 times the preset's, K 4 16; steps 2 times" in _told(row, [small, large])


CONSTANTS = {"mu": 1.0, "L_g": 4.0, "L_gy": 2.0, "L_phi": 1.2, "rho_phi": 1.5, "C_f": 1.0, "L_f": 1.0}


@pytest.mark.parametrize("eps", [0.1, 0.001])
def test_threshold_of_the_theorem_speaks_of_small_eps_only(eps):
    """B = sqrt(eps/rho)/288 is longer than a plain step of eta_x eps where eps < 1/(288^2 eta_x^2 rho)."""
    cls, constants = registry().algorithm("acc_f2ba").value, Constants(CONSTANTS)
    for_theorem = cls.from_rate(constants, eps, scale=1 / 288)
    assert for_theorem.largest_eps(eps) == pytest.approx(1 / (288**2 * for_theorem.eta_x**2 * 1.5))
    assert for_theorem.largest_eps(eps) < 5e-4
    assert cls.from_rate(constants, eps).largest_eps(eps) > 1


def test_preset_of_random_directions_knows_the_dimension():
    cls = registry().algorithm("pzobo").value
    small, large = (cls.from_horizon(Constants(CONSTANTS, dim_x=n), 100) for n in (2, 8))
    assert small.eta_x == pytest.approx(0.1)
    assert large.eta_x == pytest.approx(small.eta_x / 4)


def test_solver_decides_how_long_its_loop_is():
    cls, constants = registry().algorithm("aid").value, Constants({**CONSTANTS, "mu": 0.125})
    cg, richardson = (cls.from_theory(constants, 0.1, solver) for solver in ("cg", "richardson"))
    assert (cg.D, cg.N, richardson.D, richardson.N) == (64, 16, 64, 64)
    assert cls.from_rate(constants, 0.1).N == 8


def test_logarithms_add_to_a_slope_what_they_have_on_the_range():
    eps = [1e-2, 1e-3, 1e-4]
    assert slope_of_logs(eps, 1) == pytest.approx(math.log(2) / math.log(100), abs=0.01)
    assert slope_of_logs(eps, 3) == pytest.approx(3 * slope_of_logs(eps, 1))
    assert slope_of_logs([0.9, 0.5], 1) == 0


def test_a_problem_is_built_once_for_all_x_steps_at_one_place(monkeypatch):
    cls, built = registry().problem("washboard").value, []
    build = cls.build
    monkeypatch.setattr(cls, "build", lambda self: built.append(self) or build(self))
    row = RateRow(method="aid", set_by="sweep", sweep="kappa", values=(8.0, 16.0), at_eps=0.7, cap={"steps": 10})
    suite = RateSuite(title="one row", problem="washboard", problem_params={"q": 1.07}, row=(row,))
    steps = [
        chosen_at(row, suite, registry(), kappa, "tuned", factor)[2]["eta_x"]
        for kappa in (8.0, 16.0)
        for factor in (1, 2)
    ]
    assert len(built) == 2
    assert steps[1::2] == [2 * step for step in steps[::2]]
    assert steps[0] != steps[2]
