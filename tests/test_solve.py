"""`solve` for someone who waits: evaluation and time under control, feedback, constraints, optimisers, devices."""

from __future__ import annotations

import functools
import math
import os
import re
import signal
import time

import numpy as np
import pytest
import torch
from torch import Tensor

from bilevelbench import Ball, Box, InvalidInput, Schedule, Simplex, display, solve
from bilevelbench.engine.evaluator import Evaluator
from bilevelbench.engine.watch import FLOOR

F64 = torch.float64
A = torch.diag(torch.tensor([1.0, 2.0], dtype=F64))
ZERO = torch.zeros(2, dtype=F64)


def f(x: Tensor, y: Tensor) -> Tensor:
    return 0.5 * ((y - 1) ** 2).sum() + 0.5 * (x**2).sum()


def g(x: Tensor, y: Tensor) -> Tensor:
    return 0.5 * y @ A @ y - x @ y


#: phi = 1/2 (x_1 - 1)² + 1/2 (x_2/2 - 1)² + 1/2 |x|², least at (1/2, 2/5)
BEST = [0.5, 0.4]


class Clock:
    """Time that passes only where a function says so: what is measured does not depend on who else is computing."""

    now = 1000.0

    def slow(self, function, gradient: float, product: float):
        """The function, whose passes take so long, and products of its second derivatives so much longer."""
        clock = self

        class Delay(torch.autograd.Function):
            @staticmethod
            def forward(ctx, t):
                clock.now += gradient
                return t.clone()

            @staticmethod
            def backward(ctx, grad):
                if torch.is_grad_enabled():  # the graph of a product is made
                    clock.now += product
                    clock.products += product
                return grad

        return lambda x, y: function(x, Delay.apply(y))

    products = 0.0  # seconds of them


@pytest.fixture
def clock(monkeypatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(time, "perf_counter", lambda: made.now)
    return made


aid = functools.partial(solve, f, g, ZERO, ZERO, "aid", eta_x=0.3)

# ---- evaluation


def test_never_solves_nothing():
    got = aid(steps=20, evaluate="never")
    assert math.isnan(got.phi)
    assert got.certificate == "none"
    assert got.message == 'made its 20 steps; phi was not evaluated, as evaluate="never" asks'
    assert got.curve["phi"].isna().all()
    assert got.curve["g_y"].notna().all()


def test_end_solves_at_the_answer_alone():
    got = aid(steps=20, evaluate="end")
    assert got.phi == aid(steps=20, evaluate=Schedule()).phi
    assert got.curve["phi"].notna().tolist() == [False] * (len(got.curve) - 1) + [True]
    assert got.certificate == "not certified"


def test_end_solves_at_the_answer_of_a_method_that_chooses():
    """f2ba's answer is not its last point: that is not solved for."""
    got = solve(f, g, ZERO, ZERO, "f2ba", eta_x=0.3, lam=1e4, K=6, steps=60, evaluate="end")
    x = got.x
    assert got.phi == pytest.approx(float(f(x, torch.linalg.solve(A, x))), rel=1e-6)
    assert got.curve["phi"].isna().all()


@pytest.mark.whole
def test_end_can_meet_a_target():
    known = {"mu": 1.0, "L_g": 2.0, "L_f": 1.0, "rho_g": 0.0}
    got = aid(steps=60, evaluate="end", target=1e-6, constants=known)
    assert (got.status, got.steps) == ("target", 60)
    assert aid(steps=60, evaluate=Schedule(), target=1e-6, constants=known).steps < 60


def test_a_schedule_evaluates_where_it_says():
    got = aid(steps=30, evaluate=Schedule(ratio=2.0))
    assert got.curve["phi"].notna().all()
    assert len(got.curve) < len(aid(steps=30, evaluate=Schedule(ratio=1.1)).curve)


@pytest.mark.whole
def test_evaluation_does_not_move_the_answer():
    answers = [aid(steps=25, evaluate=how).x for how in ("auto", "never", "end", Schedule())]
    assert all(torch.equal(answers[0], x) for x in answers)


@pytest.mark.whole
@pytest.mark.parametrize(("product", "is_known"), [(0.001, True), (0.1, True), (30.0, False)])
@pytest.mark.quick_cases(1)
def test_auto_spends_a_tenth_of_the_time(clock, product, is_known):
    """f2ba asks for no products: all of them are evaluation. A pass takes ten milliseconds."""
    began = clock.now
    slow_g = clock.slow(g, 0.01, product)
    got = solve(f, slow_g, ZERO, ZERO, "f2ba", eta_x=0.1, steps=150, constants={"L_gy": 2.0})
    took = clock.now - began
    assert took > 30
    assert clock.products <= 0.1 * took + FLOOR + product  # the product that is being made is not cut in two
    assert math.isfinite(got.phi) == is_known
    assert ("phi was not evaluated" in got.message) == (not is_known)


def test_targets_need_phi():
    with pytest.raises(InvalidInput, match=r"targets are held against \|grad phi\|"):
        aid(steps=3, evaluate="never", target=0.1)


def test_a_target_below_zero_is_a_sentence():
    with pytest.raises(InvalidInput, match=r"targets\.0 = -1"):
        aid(steps=3, target=-1.0)


# ---- time


@pytest.mark.whole
@pytest.mark.parametrize("evaluate", ["auto", "end", "never", Schedule()])
@pytest.mark.parametrize("product", [0.01, 0.5, 20.0])
@pytest.mark.quick_cases(4)
def test_seconds_are_for_the_whole_call(clock, evaluate, product):
    """With the estimate of the curvature at the start, which makes products."""
    began = clock.now
    got = solve(f, clock.slow(g, 0.01, product), ZERO, ZERO, "f2ba", eta_x=0.1, seconds=30.0, evaluate=evaluate)
    assert clock.now - began <= 30 + 2 * max(0.5, product)  # a step is finished, and so is a product
    assert got.status == "timeout"
    assert got.steps > 0 or product > 0.3 * 30  # one product has taken all of the time
    assert "of 30 seconds" in got.message


@pytest.mark.parametrize("evaluate", ["auto", "end"])
@pytest.mark.quick_cases(1)
def test_time_is_left_for_phi_of_the_answer(clock, evaluate):
    began = clock.now
    slow_g = clock.slow(g, 0.01, 0.05)
    got = solve(f, slow_g, ZERO, ZERO, "f2ba", eta_x=0.1, seconds=30.0, evaluate=evaluate, constants={"L_gy": 2.0})
    assert math.isfinite(got.phi)
    assert 26 <= clock.now - began <= 30


def test_a_solve_that_does_not_end_does_not_hold_up_the_answer():
    """A condition number of 10^8 in 400 variables: by the real clock."""
    weights = torch.logspace(-8, 0, 400, dtype=F64)

    def hard(x: Tensor, y: Tensor) -> Tensor:
        return 0.5 * (weights * y * y).sum() + (1e-3 * y).cosh().sum() - x[0] * y.sum()

    began = time.perf_counter()
    got = solve(
        lambda x, y: f(x, y[:2]),
        hard,
        ZERO,
        torch.zeros(400, dtype=F64),
        "f2ba",
        eta_x=1e-9,  # phi is as steep as y*(x) is long
        seconds=1.0,
        evaluate="end",
    )
    assert time.perf_counter() - began < 5  # it would take minutes
    assert got.status == "timeout"


# ---- a lower level that is not convex


def test_negative_curvature_at_the_start_is_said():
    got = solve(f, lambda x, y: (y**4).sum() - y @ y - x @ y, ZERO, ZERO, "aid", eta_x=0.01, steps=5)
    assert got.certificate == "not convex"
    assert "g has negative curvature in y (seen at step 0): the lower level is not strongly convex" in got.message
    assert math.isnan(got.phi)
    assert math.isnan(got.grad_phi)
    assert got.curve["phi"].isna().all()


def test_negative_curvature_on_the_way_is_said():
    """g = y⁴/4 + (1/2 - x) y² is convex as long as x <= 1/2; f drives x to 2."""

    def g_that_bends(x: Tensor, y: Tensor) -> Tensor:
        return (0.25 * y**4 + (0.5 - x) * y**2).sum()

    def upper(x: Tensor, y: Tensor) -> Tensor:
        return 0.5 * ((x - 2) ** 2).sum() + 0.1 * ((y - 1) ** 2).sum()

    got = solve(upper, g_that_bends, ZERO, torch.full_like(ZERO, 1e-3), "aid", eta_x=0.1, steps=30, evaluate=Schedule())
    assert got.certificate == "not convex"
    assert "(seen at step 0)" not in got.message
    known = got.curve["phi"].notna().tolist()
    assert known[0]
    assert known == sorted(known, reverse=True)  # from the first such point on nothing is claimed
    assert not known[-1]


def test_a_convex_lower_level_is_claimed():
    got = solve(f, lambda x, y: (y**4).sum() + y @ y - x @ y, ZERO, ZERO, "aid", eta_x=0.01, steps=5)
    assert got.certificate == "not certified"
    assert "curvature" not in got.message
    assert math.isfinite(got.phi)


# ---- feedback


def test_a_callback_is_told_of_every_step_and_may_stop_the_run():
    seen = []

    def callback(info):
        seen.append(info)
        return info.step == 7

    got = aid(steps=50, callback=callback, evaluate=Schedule())
    assert [info.step for info in seen] == list(range(8))
    assert (got.status, got.steps) == ("interrupted", 7)
    assert got.message.startswith("the callback ended the run after 7 steps")
    assert torch.equal(seen[-1].x, got.x)
    assert [info.cost for info in seen] == sorted(info.cost for info in seen)
    assert seen[0].phi == pytest.approx(1.0)
    assert seen[3].phi is not None
    assert seen[3].grad_phi == pytest.approx(
        float(got.curve.loc[got.curve["step"] == 3, "grad_phi"].iloc[0]), rel=1e-12
    )


def test_a_callback_may_differentiate():
    """Say, to train a network with the x of this step."""
    slopes = []

    def callback(info):
        y = info.y.clone().requires_grad_()
        slopes.append(torch.autograd.grad(g(info.x, y), y)[0])

    aid(steps=2, callback=callback, evaluate="never")
    assert len(slopes) == 3
    assert not torch.equal(slopes[0], slopes[-1])


def test_a_callback_hears_of_the_last_step_and_not_of_phi_that_nobody_knows():
    seen = []
    aid(steps=4, callback=seen.append, evaluate="never")
    assert [info.step for info in seen] == [0, 1, 2, 3, 4]
    assert {info.phi for info in seen} == {None}


def test_a_callback_sees_the_shapes_of_the_start():
    shapes = set()
    solve(
        lambda x, y: (y - 1).square().sum(), lambda x, y: (y.T - x).square().sum(), torch.zeros(2, 3), torch.zeros(3, 2),
        "aid", eta_x=0.1, steps=2, callback=lambda info: shapes.add((tuple(info.x.shape), tuple(info.y.shape))),
    )  # fmt: skip
    assert shapes == {((2, 3), (3, 2))}


def test_what_a_callback_raises_is_raised_as_it_is():
    def callback(info):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine") as caught:
        aid(steps=3, callback=callback)
    assert not getattr(caught.value, "__notes__", [])


@pytest.fixture
def ctrl_c():
    """As in a terminal, also where these tests run in the background of a shell, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_gives_what_there_is(ctrl_c):
    calls = 0

    def interrupted(x: Tensor, y: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        if calls == 400:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.01)
        return g(x, y)

    got = solve(f, interrupted, ZERO, ZERO, "aid", eta_x=0.3, steps=1000, evaluate="never")
    assert got.status == "interrupted"
    assert got.message.startswith(f"interrupted by Ctrl-C after {got.steps} steps")
    assert 0 < got.steps < 100
    assert torch.equal(got.x, aid(steps=got.steps, evaluate="never").x)


def test_ctrl_c_during_the_last_evaluation(monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Evaluator, "_newton", interrupted)
        got = aid(steps=5, evaluate="end")
    assert (got.status, got.steps) == ("interrupted", 5)
    assert math.isnan(got.phi)
    assert torch.equal(got.x, aid(steps=5, evaluate="end").x)
    assert not got.curve.duplicated("step").any()


def test_progress_is_shown_if_asked_for(capsys, monkeypatch):
    monkeypatch.setattr(display, "PAUSE", 0.0)
    aid(steps=3, progress=True, evaluate=Schedule())
    told = capsys.readouterr()
    assert "solving the lower level for phi" in told.err
    assert re.search(r"aid \d+%, 0 s.*: step \d", told.err)
    assert told.out == ""
    aid(steps=3)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("keyword", "said"),
    [
        ("verbose", "solve has no 'verbose': progress=True shows a bar, and a callback is told of every step"),
        ("max_iter", "solve has no 'max_iter': it is steps= here"),
        ("tol", "solve has no 'tol': it is target= here"),
        ("bounds", r"solve has no 'bounds': project=bilevelbench.Box"),
    ],
)
def test_habits_from_elsewhere_get_a_sentence(keyword, said):
    with pytest.raises(InvalidInput, match=said):
        aid(steps=3, **{keyword: 1})


# ---- device and dtype


def test_dtype_moves_the_start():
    got = solve(f, lambda x, y: (y - x).square().sum(), ZERO, ZERO, "aid", eta_x=0.3, steps=5, dtype="float32")
    assert got.x.dtype == got.y.dtype == torch.float32
    assert solve(f, g, ZERO.float(), ZERO.float(), "aid", eta_x=0.3, steps=5, dtype=F64, device="cpu").x.dtype == F64


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ({"dtype": "float16"}, "dtype='float16': there is float64 and float32"),
        ({"dtype": torch.int64}, "there is float64 and float32"),
        ({"device": "mps"}, "device='mps' has no float64"),
        ({"device": "gpu"}, "device='gpu': "),
    ],
)
def test_places_that_there_are_not(place, said):
    with pytest.raises(InvalidInput, match=said):
        aid(steps=3, **place)


def test_starts_on_two_devices_are_a_sentence():
    with pytest.raises(InvalidInput, match="x0 is on cpu and y0 on meta; move them to one device"):
        solve(f, g, ZERO, ZERO.to("meta"), "aid", eta_x=0.3, steps=3)


# ---- constraints


@pytest.mark.parametrize("method", ["aid", "f2ba", "itd", "f2sa", "rahgd", "pbgd"])
def test_every_step_of_every_method_stays_in_the_set(method):
    where = []
    known = {"mu": 1.0, "L_g": 3.0, "L_f": 2.0, "L_phi": 4.0, "rho_g": 1.0, "C_f": 2.0, "rho_phi": 1.0, "rho_f": 1.0,
             "nu_g": 1.0}  # fmt: skip
    solve(
        f, g, ZERO, ZERO, method, steps=30, project=Box(0.0, 0.3), constants=known, callback=lambda i: where.append(i.x)
    )
    assert all((x >= 0).all() and (x <= 0.3).all() for x in where)
    assert any((x > 0).any() for x in where)


def test_box_finds_the_constrained_minimum():
    got = aid(steps=60, project=Box(high=torch.tensor([0.3, 9.0])))
    np.testing.assert_allclose(got.x, [0.3, 0.4], atol=1e-6)
    assert got.grad_phi < 1e-6
    assert got.certificate == "not certified; gradient mapping"


def test_simplex_finds_the_constrained_minimum():
    """On x_1 + x_2 = 1: x_1 = 2/3 x (...) from the derivative 2 x_1 - 1 = 5/4 x_2 - 1/2."""
    got = aid(steps=100, project=Simplex())
    first = 1.75 / 3.25
    np.testing.assert_allclose(got.x, [first, 1 - first], atol=1e-6)
    assert got.grad_phi < 1e-6


def test_a_ball_and_a_function_of_the_users_own_do_the_same():
    ball = aid(steps=40, project=Ball(0.2))
    own = aid(steps=40, project=lambda x: x * (0.2 / x.norm().clamp(min=0.2)))
    assert float(ball.x.norm()) == pytest.approx(0.2)
    torch.testing.assert_close(ball.x, own.x)
    assert ball.grad_phi == pytest.approx(own.grad_phi, abs=1e-9)


def test_a_start_outside_of_the_set_is_said():
    assert "x0 is not in the set" in aid(steps=3, project=Box(0.1, 0.2)).message
    assert "x0 is not in the set" not in aid(steps=3, project=Box(0.0, 0.2)).message


def test_a_projection_that_leaves_its_set_is_a_sentence():
    with pytest.raises(InvalidInput, match="the projection leaves its set"):
        aid(steps=3, project=lambda x: x + 1)


def test_a_projection_that_loses_the_shape_is_a_sentence():
    with pytest.raises(
        InvalidInput, match=r"what the projection returns has \(1,\) where x0 has a tensor of shape \(2,\)"
    ):
        aid(steps=3, project=lambda x: x[:1])


def test_eigenvalues_say_nothing_in_a_set():
    with pytest.raises(InvalidInput, match=r"leave out schedule\.second_order"):
        aid(steps=3, project=Box(0, 1), evaluate=Schedule(second_order=True))


# ---- an optimiser for x


def test_plain_gradient_descent_of_torch_is_the_methods_own_step():
    own = aid(steps=30)
    driven = solve(f, g, ZERO, ZERO, "aid", steps=30, outer_optimizer=lambda x: torch.optim.SGD(x, lr=0.3))
    torch.testing.assert_close(driven.x, own.x, rtol=0, atol=1e-14)
    assert driven.counts["first_order"] == own.counts["first_order"]


@pytest.mark.parametrize(("method", "optimizer"), [("f2ba", torch.optim.Adam), ("aid", torch.optim.RMSprop)])
def test_optimisers_of_torch_find_the_minimum(method, optimizer):
    drive = functools.partial(optimizer, lr=0.03)
    got = solve(f, g, ZERO, ZERO, method, steps=70, outer_optimizer=drive, evaluate="never")
    np.testing.assert_allclose(got.x, BEST, atol=0.05)


def test_an_optimiser_and_a_set():
    got = solve(
        f, g, ZERO, ZERO, "aid", steps=80, outer_optimizer=functools.partial(torch.optim.Adam, lr=0.05),
        project=Box(high=0.45),
    )  # fmt: skip
    np.testing.assert_allclose(got.x, [0.45, 0.4], atol=0.02)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"algorithm": "pbgd"}, "pbgd has no x-step eta_x of constant length"),
        ({"eta_x": 0.1}, "the step is the outer optimiser's own"),
        ({"outer_optimizer": torch.optim.LBFGS}, "outer_optimizer made LBFGS"),
        ({"outer_optimizer": lambda x: 3}, "outer_optimizer made int"),
    ],
)
def test_optimisers_that_cannot_drive_x(more, said):
    with pytest.raises(InvalidInput, match=said):
        solve(f, g, ZERO, ZERO, **{"algorithm": "f2ba", "outer_optimizer": torch.optim.Adam, "steps": 3, **more})
