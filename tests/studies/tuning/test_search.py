"""Searches by themselves: who is asked, with what, and who wins; scores are made up."""

from __future__ import annotations

import itertools
import math

import pytest
from pydantic import ValidationError

from bilevelbench.discovery.registry import registry
from bilevelbench.errors import InvalidInput
from bilevelbench.plan.suite import AlgorithmEntry
from bilevelbench.plan.trial import Budget
from bilevelbench.plan.tuning import Grid, Tune
from bilevelbench.studies.tuning.search import Best, Search, Seen, grid, halving, levelled, plan_rungs
from bilevelbench.studies.tuning.space import Dimension, method_of
from bilevelbench.studies.tuning.tpe import tpe

SETTINGS = [{"step": float(i)} for i in range(20)]
FULL = Budget(cost=1000)


def play(search: Search, score) -> tuple[Best, list[list]]:
    """Run a search against a function of the setting; the rounds that it asked for."""
    rounds = [next(search)]
    while True:
        try:
            rounds.append(search.send([Seen(score(ask)) for ask in rounds[-1]]))
        except StopIteration as end:
            return end.value, rounds


def test_grid_asks_once_and_takes_the_smallest():
    best, rounds = play(grid(SETTINGS, FULL), lambda ask: abs(ask.choice["step"] - 7))
    assert best == Best({"step": 7.0}, 0.0)
    (asked,) = rounds
    assert [ask.choice for ask in asked] == SETTINGS
    assert {ask.budget for ask in asked} == {FULL}


def test_a_failure_is_infinite_and_a_tie_keeps_the_order():
    best, _ = play(grid(SETTINGS, FULL), lambda ask: 1.0 if ask.choice["step"] in (4, 9) else math.inf)
    assert best.choice == {"step": 4.0}
    best, _ = play(grid(SETTINGS, FULL), lambda ask: math.inf)
    assert best == Best({"step": 0.0}, math.inf)


def test_halving_keeps_the_best_and_never_asks_for_more_than_the_cap():
    best, rounds = play(halving(SETTINGS, FULL, cost=900, factor=3), lambda ask: -ask.choice["step"])
    assert best.choice == {"step": 19.0}
    assert [len(asked) for asked in rounds] == [20, 6, 2]
    assert sorted(ask.choice["step"] for ask in rounds[1]) == [14, 15, 16, 17, 18, 19]
    costs = [asked[0].budget.cost for asked in rounds]
    assert costs[1] == pytest.approx(3 * costs[0], abs=3)
    assert 0.9 * 900 < sum(ask.budget.cost for asked in rounds for ask in asked) <= 900


def test_halving_gives_no_trial_more_than_the_suite_does():
    _, rounds = play(halving(SETTINGS, Budget(cost=50), cost=900, factor=3), lambda ask: 0.0)
    assert max(ask.budget.cost for asked in rounds for ask in asked) == 50


@pytest.mark.parametrize("settings", [1, 2, 3, 17, 36, 324])
@pytest.mark.parametrize("factor", [2, 3, 4])
@pytest.mark.parametrize("cost", [5000, 12345.6])
def test_rungs_stay_below_the_cap(settings, factor, cost):
    rungs = plan_rungs(settings, cost, factor)
    assert sum(count * limit for count, limit in rungs) <= cost
    assert rungs[0][0] == settings
    assert all(b == a // factor for (a, _), (b, _) in itertools.pairwise(rungs))
    assert 1 <= rungs[-1][0] < factor


def test_too_small_a_cap_is_said():
    with pytest.raises(InvalidInput, match="20 settings cannot share 30 calls"):
        next(halving(SETTINGS, FULL, cost=30, factor=3))


# ---------------------------------------------------------------------------------------------------- equal cost


def spend(search: Search, score, cost) -> tuple[Best, list[list], float]:
    """As `play`, with what each setting costs: the rounds, and the sum."""
    rounds, spent = [next(search)], 0.0
    while True:
        seen = [Seen(score(ask), cost=cost(ask)) for ask in rounds[-1]]
        spent += sum(one.cost for one in seen)
        try:
            rounds.append(search.send(seen))
        except StopIteration as end:
            return end.value, rounds, spent


def endless():
    return ({"step": 20.0 + i} for i in itertools.count())


def test_what_fails_early_is_made_up_for_by_further_settings():
    """Every second setting ends at a tenth of its budget."""

    def cost(ask):
        return 2 * ask.budget.cost * (0.1 if ask.choice["step"] % 2 else 1)

    search = levelled(grid(SETTINGS[:10], FULL), endless(), FULL, cost=20_000, repeats=2)
    best, rounds, spent = spend(search, lambda ask: -ask.choice["step"], cost)
    assert 0.98 * 20_000 <= spent <= 20_000
    assert [ask.choice for ask in rounds[0]] == SETTINGS[:10]
    whole = [ask for asked in rounds for ask in asked if ask.budget == FULL]
    assert best.choice == {"step": max(ask.choice["step"] for ask in whole)}  # what levels the cost does not win
    assert rounds[-1][0].budget.cost < 1000


def test_what_spends_all_is_left_alone():
    search = levelled(grid(SETTINGS, FULL), endless(), FULL, cost=20_000, repeats=1)
    best, rounds, spent = spend(search, lambda ask: ask.choice["step"], lambda ask: ask.budget.cost)
    assert (best, len(rounds), spent) == (Best({"step": 0.0}, 0.0), 1, 20_000)


def test_a_search_ends_where_nothing_spends_its_cost():
    search = levelled(grid(SETTINGS, FULL), endless(), FULL, cost=20_000, repeats=1)
    best, rounds, _ = spend(search, lambda ask: math.inf, lambda ask: 1.0)
    assert best.score == math.inf
    assert 20 * len(SETTINGS) <= sum(map(len, rounds)) <= 21 * len(SETTINGS)
    few = levelled(grid(SETTINGS, FULL), iter([{"step": 20.0}]), FULL, cost=20_000, repeats=1)
    assert sum(map(len, spend(few, lambda ask: 1.0, lambda ask: 1.0)[1])) == 21


def test_a_setting_that_fails_at_the_whole_budget_is_rejected():
    """The two best of the short rungs fail at the whole budget; the third is chosen, by its score there."""

    def score(ask):
        return math.inf if ask.budget == FULL and ask.choice["step"] < 2 else ask.choice["step"]

    def cost(ask):
        return 0.2 * ask.budget.cost if math.isinf(score(ask)) else ask.budget.cost

    short = halving(SETTINGS[:9], FULL, cost=900, factor=3)
    best, rounds, spent = spend(levelled(short, endless(), FULL, 2900, 1), score, cost)
    assert [len(asked) for asked in rounds[:3]] == [9, 3, 1]
    assert best == Best({"step": 2.0}, 2.0)
    assert 0.98 * 2900 <= spent <= 2900


def test_further_settings_are_the_rest_of_the_grid_and_then_between_its_values():
    method = space(AlgorithmEntry(name="f2bsa"), Grid(upper_step=(0.1, 1.0), lower_step=(0.1,), batch=(16, 256)))
    first = method.settings(5, seed=0)
    further = list(itertools.islice(method.further(first, seed=0), 40))
    rest, drawn = further[: method.size - 5], further[method.size - 5 :]
    assert sorted(map(repr, first + rest)) == sorted(map(repr, method.settings(99, seed=0)))
    assert further == list(itertools.islice(method.further(first, seed=0), 40))
    for choice in drawn:
        assert 0.1 <= choice["upper_step"] <= 1
        assert choice["lower_step"] == 0.1
        assert 16 <= choice["batch"] <= 256
        assert isinstance(choice["batch"], int)
    words = space(AlgorithmEntry(name="aid", params={"solver": ["cg", "richardson"], "eta_x": 1.0, "a": 1.0}))
    assert list(words.further([{"solver": "cg"}], seed=0)) == [{"solver": "richardson"}]


def test_a_batch_is_searched_only_where_it_is_named():
    assert "batch" not in {d.name for d in space(AlgorithmEntry(name="f2bsa")).dimensions}
    named = space(AlgorithmEntry(name="f2sa", params={"batch": 64}), Grid(batch=(16, 64)))
    assert named.params({"batch": 16}) == {"batch": 16}
    assert named.params({}) == {}  # the method's own


# ---------------------------------------------------------------------------------------------------- optuna's search

SPACE = (Dimension("step", ("a",), (1e-4, 1e2)), Dimension("kind", ("b",), ("x", "y")))


def valley(ask) -> float:
    """The best step is 0.1, and y is better."""
    return abs(math.log10(ask.choice["step"]) + 1) + (ask.choice["kind"] == "x")


def test_tpe_is_the_same_every_time_and_finds_the_valley():
    first, rounds = play(tpe(SPACE, 40, FULL, seed=3), valley)
    again, same = play(tpe(SPACE, 40, FULL, seed=3), valley)
    assert (first, rounds) == (again, same)
    assert first.choice["kind"] == "y"
    assert first.choice["step"] == pytest.approx(0.1, rel=1.0)
    assert play(tpe(SPACE, 40, FULL, seed=4), valley)[1] != rounds


def test_tpe_asks_in_batches_and_ends_the_worse_ones_early():
    _, rounds = play(tpe(SPACE, 40, FULL, seed=0), valley)
    early, late = rounds[0::2], rounds[1::2]
    assert [len(asked) for asked in early] == [16, 16, 8]  # 40 settings, as for everybody else
    assert len(late[0]) == 16  # nothing to compare with yet
    assert sum(map(len, late[1:])) < 24
    assert {ask.budget.cost for asked in early for ask in asked} == {1000 / 3}
    assert {ask.budget for asked in late for ask in asked} == {FULL}
    assert all(1e-4 <= ask.choice["step"] <= 1e2 for asked in early for ask in asked)


def test_tpe_survives_failures():
    best, _ = play(tpe(SPACE, 32, FULL, seed=0), lambda ask: math.inf if ask.choice["step"] > 1e-2 else 1.0)
    assert best.score == 1.0
    best, _ = play(tpe(SPACE, 20, FULL, seed=0), lambda ask: math.inf)
    assert best.score == math.inf
    assert set(best.choice) == {"step", "kind"}


def test_tpe_without_optuna_is_a_sentence(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "optuna", None)
    with pytest.raises(InvalidInput, match=r"pip install \"bilevelbench\[tune\]\""):
        next(tpe(SPACE, 4, FULL, seed=0))


# ---------------------------------------------------------------------------------------------------- search spaces


def space(entry: AlgorithmEntry, grid: Grid | None = None):
    return method_of(entry, registry(), grid or Grid())


def test_roles_make_the_papers_joint_grid():
    method = space(AlgorithmEntry(name="f2ba"))
    assert [(d.name, d.fields, len(d.values)) for d in method.dimensions] == [
        ("upper_step", ("eta_x",), 9),
        ("lower_step", ("a_y", "a_z"), 9),
        ("penalty", ("lam",), 4),
    ]
    assert method.size == 324
    assert method.params({"upper_step": 1.0, "lower_step": 2.0, "penalty": 10.0}) == {
        "eta_x": 1.0, "a_y": 2.0, "a_z": 2.0, "lam": 10.0,
    }  # fmt: skip


def test_every_built_in_method_says_what_is_tuned():
    """Or that nothing is: methods that choose their steps themselves, and the searches in a box."""
    methods = {name: entry.value for name, entry in registry().algorithms.items() if entry.plugin == "bilevelbench"}
    assert {name for name, cls in methods.items() if not cls.tuned} == {
        "d_tfbo",
        "hoag",
        "random_search",
        "s_tfbo",
        "tpe",
    }
    for name, cls in methods.items():
        if cls.tuned:
            assert space(AlgorithmEntry(name=name)).size > 1, name


def test_written_lists_are_the_grid():
    method = space(AlgorithmEntry(name="f2ba", params={"lam": [10, 100], "eta_x": [0.1, 1.0], "K": [5]}))
    assert method.settings(100, seed=0) == [
        {"lam": 10, "eta_x": 0.1}, {"lam": 10, "eta_x": 1.0}, {"lam": 100, "eta_x": 0.1}, {"lam": 100, "eta_x": 1.0},
    ]  # fmt: skip
    assert method.fixed == {"K": 5}
    assert method.label == "f2ba[K=5]"


def test_a_parameter_that_is_set_stays_unless_the_suite_names_its_role():
    entry = AlgorithmEntry(name="f2ba", params={"lam": 10.0, "K": 5}, label="F2BA")
    assert {d.name for d in space(entry).dimensions} == {"upper_step", "lower_step"}
    named = space(entry, Grid(penalty=(10.0, 100.0)))
    assert {d.name for d in named.dimensions} == {"upper_step", "lower_step", "penalty"}
    assert (named.fixed, named.label) == ({"K": 5}, "F2BA")


def test_a_larger_grid_is_drawn_from_the_same_way_every_time():
    method = space(AlgorithmEntry(name="f2ba"))
    drawn = method.settings(36, seed=0)
    assert drawn == method.settings(36, seed=0) != method.settings(36, seed=1)
    assert len({tuple(choice.values()) for choice in drawn}) == 36
    assert len(method.settings(1000, seed=0)) == 324
    # the same cells for a method with a grid of the same shape
    assert drawn == space(AlgorithmEntry(name="acc_f2ba")).settings(36, seed=0)


def test_a_method_that_says_nothing_is_told_how():
    with pytest.raises(InvalidInput, match="f3bsa has no parameter 'a_y'"):
        space(AlgorithmEntry(name="f3bsa", params={"a_y": [1, 2]}))
    fixed = {"eta_x": 1.0, "a": 1.0}
    with pytest.raises(InvalidInput, match=r"write lists, aid\[parameter=0.1,1,10\]"):
        space(AlgorithmEntry(name="aid", params=fixed))


# ---------------------------------------------------------------------------------------------------- the rule as data


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"by": "test_loss"}, "which may not choose parameters"),
        ({"tirals": 3}, r"no field 'tirals' \(tirals = 3\); did you mean 'trials'"),
        ({"grid": {"lower_steps": [1.0]}}, "did you mean 'lower_step'"),
        ({"search": "halving"}, "say how much with `cost`"),
        ({"cost": 100.0}, "leave out `cost`"),
        ({"search": "tpe", "equal_cost": True}, "equal_cost is for search = 'grid' and 'halving'"),
        ({"grid": {"penalty": []}}, "at least 1 item"),
    ],
)
def test_a_wrong_rule_is_a_sentence(given, said):
    with pytest.raises(ValidationError, match=said):
        Tune.model_validate(given)


def test_phi_is_the_default():
    assert Tune().by == "phi"
    with pytest.raises(ValidationError, match="frozen"):
        Tune().by = "grad_phi"  # type: ignore[misc]
