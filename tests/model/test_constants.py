from __future__ import annotations

import copy
import pickle

import pytest

from bilevelbench.errors import MissingConstant
from bilevelbench.model.constants import Constant, Constants, bound, estimated, exact

GIVEN = {"mu": 0.5, "L_f": 2.0, "L_g": 3.0, "rho_g": 0.7, "rho_f": 0.1, "C_f": 1.5}


def without(name):
    return Constants({k: v for k, v in GIVEN.items() if k != name}, "toy")


# the formulas with the numbers above, worked out by hand
BY_HAND = {
    "L_phi": 7.0**2 * (2.0 + 0.7 * 1.5 / 0.5),
    "D0": (1.5 + 4.5 / 1.0) * 3.0,
    "D1": (2.0 + 12.0 + 1.5 * 3.0 * 0.7 / 0.5 + 1.5 * 0.7 / 1.0) * 3.0,
    "D2": (2.0 + 36.0) * (2.0 + 2.1),
    "D3": 2.0 + 48.0 + 2.1 + 1.5 * 3.0 * 0.7 / 0.25 + 3.0 * 38.0 * 4.1,
}


@pytest.mark.parametrize("name", BY_HAND)
def test_formula_has_the_value_worked_out_by_hand(name):
    assert Constants(GIVEN)[name] == pytest.approx(BY_HAND[name], rel=1e-14)


def test_penalty_smoothness_is_D3():
    assert Constants(GIVEN).L_star == pytest.approx(BY_HAND["D3"])


def test_smoothness_in_y_alone_is_bounded_by_the_joint_one():
    assert Constants(GIVEN).L_gy == 3.0


def test_ell_is_the_largest_of_the_regularity_constants():
    assert Constants(GIVEN).ell == 3.0
    assert Constants({**GIVEN, "rho_f": 9.0}).ell == 9.0


def test_ell_counts_the_third_derivative_when_it_is_declared():
    assert Constants({**GIVEN, "nu_g": 8.0}).ell == 8.0


def test_kappa_is_ell_over_mu():
    assert Constants(GIVEN).kappa == 6.0


@pytest.mark.parametrize("name", [*BY_HAND, "L_star", "L_gy", "ell", "kappa"])
def test_declared_value_wins_over_the_formula(name):
    assert Constants({**GIVEN, name: 0.125})[name] == 0.125


def test_declared_value_is_used_inside_other_formulas():
    difference = Constants(GIVEN).D3 - Constants({**GIVEN, "D2": 1.0}).D3
    assert difference == pytest.approx(3.0 * (BY_HAND["D2"] - 1.0))


@pytest.mark.parametrize("name", ["mu", "L_f", "L_g", "rho_g", "C_f"])
def test_formula_names_the_constant_that_it_lacks(name):
    with pytest.raises(MissingConstant, match=f"problem 'toy' declares no constant '{name}'") as caught:
        _ = without(name).L_phi
    assert caught.value.constant == name


def test_unknown_constant_is_named():
    with pytest.raises(MissingConstant, match="'L_h'"):
        _ = Constants(GIVEN).L_h


def test_attribute_and_item_are_the_same():
    c = Constants(GIVEN)
    assert c.mu == c["mu"] == 0.5


def test_only_declared_constants_are_listed():
    c = Constants(GIVEN)
    assert set(c) == set(GIVEN)
    assert len(c) == len(GIVEN)
    assert "L_phi" not in c
    assert "mu" in c


@pytest.mark.parametrize(("make", "kind"), [(exact, "exact"), (bound, "bound"), (estimated, "estimated")])
def test_kind_is_kept_beside_the_value(make, kind):
    c = Constants({"mu": make(2)})
    assert c.given["mu"] == Constant(2.0, kind)
    assert c.mu == 2.0


def test_plain_number_is_a_bound():
    assert Constants({"mu": 1}).given["mu"] == Constant(1.0, "bound")


def test_constants_survive_copying_and_pickling():
    c = Constants(GIVEN, "toy")
    for twin in (copy.deepcopy(c), pickle.loads(pickle.dumps(c))):
        assert twin.given == c.given
        assert twin.problem == "toy"
