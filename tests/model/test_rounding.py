"""One thread everywhere, the probe, and what is compared where bits are not kept."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from helpers import plugins, trial
from threadpoolctl import threadpool_info

import bilevelbench
from bilevelbench import Algorithm, Instance, Problem, dot
from bilevelbench.cli.doctor import examine
from bilevelbench.engine.loop import run_pack
from bilevelbench.model import rounding
from bilevelbench.model.lanes import PAD
from bilevelbench.model.rounding import TOLERANCE, one_thread
from bilevelbench.testing import stepper
from bilevelbench.testing.kit import checks_for


def threads() -> set[int]:
    """How many torch, numpy and scipy compute with now."""
    return {torch.get_num_threads(), *(pool["num_threads"] for pool in threadpool_info())}


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


SEEN: list[set[int]] = []


class Watching(Problem):
    """f = ‖y‖²/2 + ‖x‖²/2;  g = ‖y - x‖²/2; notes the threads that it is built and asked with."""

    name = "watching"

    def build(self) -> Instance:
        SEEN.append(threads())
        one = torch.ones(1, 3)

        def f(x, y):
            SEEN.append(threads())
            return 0.5 * dot(y, y) + 0.5 * dot(x, x)

        return Instance(
            f=f, g=lambda x, y: 0.5 * dot(y - x, y - x), x0=one, y0=one, constants={"L_gy": 1.0, "L_phi": 2.0}
        )


class Resolving(Algorithm):
    """x <- x - f_x/10; notes the threads that its defaults are found with."""

    name = "resolving"
    uses = frozenset({"grad_f"})

    def resolve(self, constants):
        SEEN.append(threads())
        return self

    def init(self, x0, y0, oracle):
        return x0, y0

    def step(self, s, oracle):
        f_x, _ = oracle.grad_f(*s)
        return s[0] - 0.1 * f_x, s[1]

    def point(self, s):
        return s


def test_one_thread_is_for_torch_and_for_numpy_and_ends(two_threads):
    before = threads()
    with one_thread():
        assert threads() == {1}
        with one_thread():
            pass
        assert threads() == {1}
    assert threads() == before
    assert torch.get_num_threads() == 2


def test_threads_are_given_back_after_an_error(two_threads):
    with pytest.raises(ValueError), one_thread():
        raise ValueError
    assert torch.get_num_threads() == 2


def test_data_are_built_and_defaults_resolved_in_one_thread(two_threads):
    SEEN.clear()
    among = plugins(Watching, Resolving)
    result = run_pack([trial("resolving", "watching", steps=2, among=among)], among)
    assert result.runs[0]["status"] == "budget"
    assert len(SEEN) >= 4
    assert all(seen == {1} for seen in SEEN)


def test_solve_asks_in_one_thread(two_threads):
    SEEN.clear()

    def f(x, y):
        SEEN.append(threads())
        return (y**2).sum()

    bilevelbench.solve(f, lambda x, y: ((y - x) ** 2).sum(), torch.ones(2), torch.ones(2), eta_x=0.1, steps=1)
    assert SEEN
    assert all(seen == {1} for seen in SEEN)


@pytest.mark.parametrize("plugin", [Watching(), Resolving()], ids=["problem", "method"])
def test_checks_of_the_kit_run_in_one_thread(two_threads, plugin):
    SEEN.clear()
    for check in checks_for(plugin):
        if check.name in ("runs", "builds"):
            check(plugin)
    assert SEEN
    assert all(seen == {1} for seen in SEEN)


# ---------------------------------------------------------------------------------------------- the probe


def test_probe_sees_a_function_that_rounds_by_the_number_of_rows():
    rows = torch.ones(2 * PAD, 3)
    assert rounding._kept(lambda t: 2 * t, rows)
    assert not rounding._kept(lambda t: t * (1 + 1e-6 * len(t)), rows)


@pytest.mark.parametrize(
    ("kept", "word"),
    [((torch.float64, torch.float32), "bits:"), ((torch.float64,), "bits in float64:"), ((), "tolerance:")],
)
def test_doctor_says_which_promise_holds(monkeypatch, kept, word):
    both = torch.float64, torch.float32
    monkeypatch.setattr(rounding, "keeps_bits", lambda *asked: set(asked or both) <= set(kept))
    (finding,) = [finding for finding in examine() if finding["what"] == "rounding"]
    assert finding["ok"]
    assert finding["seen"].startswith(word)


# ---------------------------------------------------------------------------------------------- where bits are not kept


def row(**values):
    return {"trial_id": "a", "step": 3, "phi": 2.0, "grad_phi": 1.0, "cost": 7.0, **values}


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({}, []),
        ({"phi": 2 * (1 + 0.5 * TOLERANCE)}, []),
        ({"phi": 2 * (1 + 2 * TOLERANCE)}, ["phi at step 3"]),
        ({"grad_phi": math.nan}, ["grad_phi at step 3"]),
        ({"cost": 8.0}, []),  # a loop ended later
        ({"step": 4, "phi": 9.0}, []),  # only one of them was looked at there
    ],
)
def test_disagreements_are_those_beyond_the_tolerance(other, words):
    told = list(stepper.rounding_disagreements([row()], [row(**other)]))
    assert len(told) == len(words)
    assert all(word in sentence for word, sentence in zip(words, told, strict=True))


class Mixing(Resolving):
    """x <- x - mean of f_x over the lanes/10: what a lane does depends on the others."""

    name = "mixing"
    lr: float = 0.1

    def step(self, s, oracle):
        f_x, _ = oracle.grad_f(*s)
        return s[0] - self.lr * f_x.mean(-2, keepdim=True), s[1]


@pytest.mark.parametrize("kept", [True, False])
def test_kit_finds_lanes_that_mix_under_either_promise(monkeypatch, kept):
    monkeypatch.setattr(stepper, "keeps_bits", lambda *_: kept)
    (check,) = [check for check in checks_for(Mixing()) if check.name == "lanes"]
    assert check(Mixing()).status == "failed"


def test_kit_lets_the_last_bits_differ_where_the_promise_is_a_tolerance(monkeypatch):
    class ByWidth(Resolving):
        name = "by_width"
        lr: float = 0.1

        def step(self, s, oracle):
            f_x, _ = oracle.grad_f(*s)
            return s[0] - self.lr * f_x * (1 + 1e-15 * oracle.L), s[1]

    (check,) = [check for check in checks_for(ByWidth()) if check.name == "lanes"]
    monkeypatch.setattr(stepper, "keeps_bits", lambda *_: True)
    assert check(ByWidth()).status == "failed"
    monkeypatch.setattr(stepper, "keeps_bits", lambda *_: False)
    assert check(ByWidth()).status == "passed"


# ---------------------------------------------------------------------------------------------- points


@pytest.mark.parametrize("derivatives", [True, False])
def test_functions_see_points_written_out(bowl, door, normal, derivatives):
    """torch's product of expanded points is another one, which MKL's strict mode leaves out."""
    instance, seen = bowl(derivatives=derivatives), []
    function = instance.functions["grad_g_y"]
    instance.functions["grad_g_y"] = lambda *given: (seen.extend(t.is_contiguous() for t in given), function(*given))[1]
    x, y = normal(4, 3).expand(5, -1, -1), normal(4, 5).expand(5, -1, -1)
    together = door(instance).grad_g_y(x, y)
    assert seen == [True, True]
    np.testing.assert_array_equal(together[0], door(bowl(derivatives=derivatives)).grad_g_y(x[0], y[0]))


def test_autograd_writes_out_the_points_of_one_argument(normal):
    seen = []

    def g(x, y):
        seen.extend((x.is_contiguous(), y.is_contiguous()))
        return dot(x @ torch.ones(3, 5, dtype=torch.float64), y)

    instance = Instance(f=g, g=g, x0=normal(1, 3), y0=normal(1, 5), points="stack")
    instance.grad_g_y(normal(4, 3), normal(6, 4, 5))
    assert seen == [True, True]
