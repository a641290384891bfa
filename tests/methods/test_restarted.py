"""AccF2BA, PRAHGD and RAHGD: against plain numpy, with their restarts, kicks, averages and the rule for K_t."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import plain
import plain_problems
import pytest
import torch
from helpers import alone, assert_same, of, packed, prepared, states_of, trial
from plain_problems import Plain, Wavy, quadratic

import bilevelbench
from bilevelbench import Constants, Instance, InvalidInput
from bilevelbench.discovery.entry import make
from bilevelbench.discovery.registry import registry
from bilevelbench.engine.setup import pack_algorithm
from bilevelbench.model.torch_state import default_dtype
from bilevelbench.plan.spec_text import parse_spec
from bilevelbench.plan.trial import Schedule

norm = np.linalg.norm
SADDLE = "tail_anchor[saddle=true,mu=1,L=1.5]"
STEPS = 30
RESTARTED = ["acc_f2ba", "prahgd", "rahgd"]


# ---- the plain version: one lane, lists instead of running sums


@dataclass
class Run:
    """What happened at each step; `epoch` holds the look-ahead points and moves since the last restart."""

    points: list[tuple[np.ndarray, np.ndarray]] = field(default_factory=list)
    inner: list[int] = field(default_factory=list)
    deltas: list[float] = field(default_factory=list)
    restarts: list[int] = field(default_factory=list)
    kicks: list[int] = field(default_factory=list)
    epoch: list[tuple[np.ndarray, float]] = field(default_factory=list)
    answer: np.ndarray | None = None
    ended: int | None = None


#: (w, number of lower steps) -> (d, y)
Gradient = Callable[[np.ndarray, int], tuple[np.ndarray, np.ndarray]]


def restarted(
    x0: np.ndarray,
    gradient: Gradient,
    steps: int,
    lower_steps: Callable[[float], int],
    c: float,
    place: int,
    theta: float,
    eta_x: float,
    B: float,
    B0: float = 0.0,
    gamma: float = 0.99,
    r: float = 0.0,
    T: int | None = None,
    delta0: float = 0.0,
    seed: int = 0,
) -> Run:
    """`place`: the number of the loop in which the kick is drawn, after those of the lower level."""
    run, trail, seen = Run(), [x0, x0], []
    for step in range(1, steps + 1):
        w = trail[-1] + (1 - theta) * (trail[-1] - trail[-2])
        seen.append(w)
        delta = delta0 if step == 1 else run.deltas[-1] / 2 + c * norm(seen[-1] - seen[-2]) ** 2
        n = lower_steps(delta)
        d, y = gradient(w, n)
        trail.append(w - eta_x * d)
        run.epoch.append((w, norm(trail[-1] - trail[-2])))
        run.points.append((w, y))
        run.inner.append(n)
        run.deltas.append(delta)
        threshold = max(B, B0 * gamma ** len(run.restarts))
        if len(run.epoch) * sum(move**2 for _, move in run.epoch) > threshold**2:
            x = trail[-1]
            if r > 0 and norm(d) <= threshold / (2 * eta_x):
                x = x + plain.in_ball(seed, step, place, len(x), r)
                run.kicks.append(step)
            run.restarts.append(step)
            run.epoch, trail = [], [x, x]
        if len(run.epoch) == T:
            late = range(T // 2, T)
            T0 = min(late, key=lambda t: run.epoch[t][1])
            run.answer, run.ended = sum(w for w, _ in run.epoch[: T0 + 1]) / (T0 + 1), step
            break
    return run


def plain_acc(p: Plain, c: Constants, steps: int, lam, K, a_y, a_z, zeta=None, plus=False, **outer) -> Run:
    """In the paper's form, eta = a/lam, y and z one after the other; `plus` is AccF2BA+."""
    lower = [p.y0, p.y0]

    def gradient(w, n):
        mu = c.mu if plus else None
        y, z, d = plain.penalty(p, w, *lower, lam, n, a_y / lam, a_z / lam, mu)
        lower[:] = y, z
        return d, y

    def lower_steps(delta):
        if zeta is None:
            return K
        wanted, k = 2 * math.log(4 * lam * c.L_g * math.sqrt(delta) / zeta), 4 * c.L_gy / c.mu
        return max(K, math.ceil(math.sqrt(k) * (wanted + math.log(1 + k)) if plus else k * wanted))

    return restarted(p.x0, gradient, steps, lower_steps, c=34 * (c.L_g / c.mu) ** 2, place=2, **outer)


def plain_prahgd(p: Plain, c: Constants, steps: int, D, N, a, beta, n0=0, zeta=None, **outer) -> Run:
    lower = [plain.nesterov(p, p.x0, p.y0, n0, a, beta), np.zeros_like(p.y0)]

    def gradient(w, n):
        y = plain.nesterov(p, w, lower[0], n, a, beta)
        v, _ = plain.cg(p.H(w, y), p.f_y(w, y), lower[1], N)
        lower[:] = y, v
        return p.f_x(w, y) - p.J(w, y) @ v, y

    def lower_steps(delta):
        if zeta is None:
            return D
        k, C = c.L_gy / c.mu, (1 + c.L_g / c.mu) * (c.L_f + c.rho_g * c.C_f / c.mu)
        return max(D, math.ceil(2 * math.sqrt(k) * math.log(2 * C * math.sqrt((1 + k) * delta) / zeta)))

    return restarted(p.x0, gradient, steps, lower_steps, c=2 * (c.L_g / c.mu) ** 2, place=3, **outer)


PLAIN = {"acc_f2ba": plain_acc, "acc_f2ba_plus": functools.partial(plain_acc, plus=True), "prahgd": plain_prahgd}
LOWER = {
    "acc_f2ba": {"lam": 50.0, "K": 4, "a_y": 0.2, "a_z": 0.3},
    "acc_f2ba_plus": {"lam": 50.0, "K": 12, "a_y": 0.4, "a_z": 0.3},
    "prahgd": {"D": 3, "N": 2, "a": 0.3, "beta": 0.4},
}
#: shrinking threshold as in the experiments, and a fixed one as in the theorem
OUTER = {
    "practical": {"theta": 0.1, "eta_x": 0.05, "B": 0.1, "B0": 0.9, "gamma": 0.9},
    "floor": {"theta": 0.2, "eta_x": 0.05, "B": 0.6, "B0": 0.8, "gamma": 0.5},
    "kicks": {"theta": 0.2, "eta_x": 0.05, "B": 0.1, "B0": 0.5, "gamma": 0.8, "r": 0.2},
    "theory": {"theta": 0.3, "eta_x": 0.05, "B": 0.5, "B0": 0.0, "r": 0.05, "T": 9, "zeta": 1e-2, "delta0": 3.0},
}


wavy = functools.partial(plain_problems.wavy, analytic=True)
PROBLEMS = {"quadratic": quadratic, "wavy": wavy}


def made(name: str, **params):
    return make(registry().algorithm(name), params)


def states(method, instance: Instance, steps: int, seeds=(0,)) -> list:
    """The state at the start and after each step, without the runner."""
    return states_of(prepared(method, instance, seeds), steps)


def close(a, b) -> bool:
    a, b = np.asarray(a).reshape(-1), np.asarray(b).reshape(-1)
    return norm(a - b) <= 1e-10 * (1 + norm(b))


# ---- iterates


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("outer", OUTER)
@pytest.mark.parametrize("name", PLAIN)
def test_iterates_restarts_and_kicks_are_those_of_the_pseudo_code(name, outer, problem):
    p, instance = PROBLEMS[problem]()
    params = LOWER[name] | OUTER[outer]
    expected = PLAIN[name](p, instance.constants, STEPS, **params)
    method = made(name, **params)
    got = states(method, instance, len(expected.points))
    assert len(expected.restarts) >= 2, "a run without restarts shows nothing"
    if "r" in params:
        assert expected.kicks, "a run without kicks shows nothing"
    if outer == "theory":
        assert len(set(expected.inner)) >= 4, "K_t has to move"
    else:
        assert len(expected.points) == STEPS
    for step, (w, y) in enumerate(expected.points, start=1):
        s = got[step]
        mine, lower = method.point(s)
        assert close(mine, w)
        assert close(lower, y)
        assert s.inner.item() == expected.inner[step - 1]
        assert s.restarts.item() == sum(at <= step for at in expected.restarts)
        assert s.kicks.item() == sum(at <= step for at in expected.kicks)


@pytest.mark.parametrize("seed", [1, 2])
def test_kicks_follow_the_seed(seed):
    p, instance = wavy()
    params = LOWER["acc_f2ba"] | OUTER["kicks"]
    expected = plain_acc(p, instance.constants, STEPS, seed=seed, **params)
    others = plain_acc(p, instance.constants, STEPS, seed=0, **params)
    got = states(made("acc_f2ba", **params), instance, STEPS, seeds=[0, seed])[-1]
    assert close(got.w[1], expected.points[-1][0])
    assert close(got.w[0], others.points[-1][0])
    assert not close(got.w[0], got.w[1])


def test_prahgd_solves_the_lower_level_before_the_first_step_if_asked():
    p, instance = wavy()
    params = LOWER["prahgd"] | OUTER["practical"] | {"n0": 5}
    expected = plain_prahgd(p, instance.constants, STEPS, **params)
    assert close(states(made("prahgd", **params), instance, STEPS)[-1].w, expected.points[-1][0])


def test_threshold_is_the_shrinking_one_until_it_meets_its_floor():
    """B0 is multiplied by gamma at restarts only, and has passed below B at the end of this run."""
    _, instance = wavy()
    for s in states(made("acc_f2ba", **LOWER["acc_f2ba"], **OUTER["floor"]), instance, STEPS):
        assert s.B0.item() == pytest.approx(0.8 * 0.5 ** s.restarts.item(), rel=1e-12)
    assert s.B0.item() < 0.6


@pytest.mark.parametrize("problem", PROBLEMS)
def test_without_momentum_and_restarts_acc_f2ba_is_f2ba_to_the_last_bit(problem):
    _, instance = PROBLEMS[problem]()
    lower = LOWER["acc_f2ba"] | {"eta_x": 0.05}
    acc = states(made("acc_f2ba", theta=1.0, B=math.inf, **lower), instance, 25)
    f2ba = states(made("f2ba", **lower), instance, 25)
    for mine, theirs in zip(acc, f2ba, strict=True):
        assert torch.equal(mine.x, theirs.x)
        assert torch.equal(mine.y, theirs.y)
        assert torch.equal(mine.lower[1], theirs.z)
    assert norm(f2ba[-1].x - f2ba[0].x) > 0.1


def test_lower_variables_are_kept_at_a_restart():
    """One lower step per outer step, so that each y and z is one gradient step from the one before, and not from y0."""
    p, instance = wavy()
    a, lam = 0.2, 50.0
    outer = {"theta": 0.2, "eta_x": 0.05, "B": 0.3, "B0": 0.0, "r": 0.1}
    run = states(made("acc_f2ba", K=1, lam=lam, a_y=a, a_z=a, **outer), instance, STEPS)
    at = [i for i in range(1, STEPS) if run[i].restarts.item() > run[i - 1].restarts.item()]
    assert len(at) >= 3
    for i in at:
        assert run[i].t.item() == run[i].S.item() == 0
        assert torch.equal(run[i].x, run[i].x_prev)
        (y, z), w = (part[0].numpy() for part in run[i].lower), run[i + 1].w[0].numpy()
        assert close(w, run[i].x[0]), "the first look-ahead point of an epoch is its start"
        assert close(run[i + 1].lower[0], y - a * (p.f_y(w, y) / lam + p.g_y(w, y)))
        assert close(run[i + 1].lower[1], z - a * p.g_y(w, z))
        assert norm(y - p.y0) > 0.1
        assert norm(y - z) > 1e-4


def test_9_3_restart_compares_the_moves_of_the_epoch_and_not_one_of_them_with_itself():
    """t times the last squared move, as the algorithm is printed, would restart at other steps."""
    _, instance = wavy()
    B = 0.3
    run = states(made("acc_f2ba", **LOWER["acc_f2ba"], theta=0.2, eta_x=0.05, B=B, B0=0.0), instance, STEPS)
    moves, ours, printed = [], [], []
    for before, after in pairwise(run):
        moves.append(norm(after.x - before.x))
        ours.append(len(moves) * sum(m**2 for m in moves) > B**2)
        printed.append(len(moves) * len(moves) * moves[-1] ** 2 > B**2)
        assert (after.restarts > before.restarts).item() == ours[-1]
        if ours[-1]:
            moves = []
    assert sum(ours) >= 3
    assert ours != printed


# ---- the end of a run and its answer


@pytest.mark.parametrize("T", [1, 2, 7, 12])
@pytest.mark.parametrize("name", PLAIN)
def test_answer_is_the_mean_up_to_the_smallest_late_move_of_the_epoch_that_reached_T(name, T):
    p, instance = wavy()
    params = LOWER[name] | OUTER["practical"] | {"B": 1.0, "B0": 1.2, "gamma": 1.0, "T": T}
    if T > 6:  # shorter epochs come to their end before they have moved
        params |= {"eta_x": 0.1}
    expected = PLAIN[name](p, instance.constants, 400, **params)
    assert expected.ended is not None
    assert expected.ended > T or T < 6, "the epoch that ends the run should not be the first"
    method = pack_algorithm([made(name, **params)], torch.float64)
    run = states(made(name, **params), instance, expected.ended)
    for s in run[:-1]:
        assert not method.stopped(s).item()
        assert torch.isnan(method.answer(s)[0]).all()
    assert method.stopped(run[-1]).item()
    assert close(method.answer(run[-1])[0], expected.answer)
    if T > 6:
        assert norm(expected.answer - expected.points[-1][0]) > 1e-3


def test_best_average_equals_its_recomputation_at_every_step():
    _, instance = wavy()
    T = 8
    method = made("acc_f2ba", **LOWER["acc_f2ba"], theta=0.2, eta_x=0.05, B=0.8, B0=0.0, T=T)
    run = states(method, instance, STEPS)
    points, moves, longest = [], [], 0
    for before, after in pairwise(run):
        points.append(after.w[0].numpy())
        moves.append(norm(after.x - before.x))
        if after.t.item() == 0:
            points, moves = [], []
            assert after.average.total.abs().max().item() == 0
            assert math.isinf(after.average.least_move.item())
            continue
        longest = max(longest, len(points))
        late = range(T // 2, len(moves))
        if len(late):
            T0 = min(late, key=lambda t: moves[t])
            assert close(after.average.best, np.mean(points[: T0 + 1], axis=0))
    assert longest > T // 2
    assert run[-1].restarts.item() >= 1


def test_run_ends_as_stopped_with_that_answer():
    params = "theta=0.2,B=0.5,B0=0,T=12,eta_x=0.02,lam=50,K=20"
    (end,) = bilevelbench.run(f"acc_f2ba[{params}]", "quadratic[dim_x=4,dim_y=6]", steps=500).runs.itertuples()
    assert end.status == "stopped"
    assert end.grad_phi != end.last_grad_phi
    assert math.isfinite(end.grad_phi)
    (budget,) = bilevelbench.run(
        f"acc_f2ba[{params}]", "quadratic[dim_x=4,dim_y=6]", steps=end.steps - 1
    ).runs.itertuples()
    assert budget.status == "budget"
    assert budget.grad_phi == budget.last_grad_phi


# ---- the number of lower-level steps


def exact_gradients(problem: Wavy, lam: float):
    p = problem.plain()

    def penalty(w):
        y, z = p.y_star(w, lam, problem.f_yy), p.y_star(w)
        return y, z, p.f_x(w, y) + lam * (p.g_x(w, y) - p.g_x(w, z))

    return p, penalty


def test_delta_bounds_the_lower_error_and_d_is_as_exact_as_zeta_says():
    """Also after restarts and kicks; twice the state's delta is the bound before the step's lower loop."""
    problem, lam, zeta, eta_x = Wavy(analytic=True), 200.0, 1e-3, 0.3
    p, exact = exact_gradients(problem, lam)
    c = Constants(problem.constants())
    y, z, _ = exact(p.x0)
    delta0 = 1.01 * (norm(p.y0 - y) ** 2 + norm(p.y0 - z) ** 2)
    K = math.ceil(8 * c.L_gy / c.mu)
    lower = {"K": K, "a_y": 1 / (2 * c.L_gy), "a_z": 1 / (2 * c.L_gy)}
    outer = {"theta": 0.2, "eta_x": eta_x, "B": 0.5, "B0": 0.0, "r": 0.1}
    run = states(made("acc_f2ba", lam=lam, zeta=zeta, delta0=delta0, **lower, **outer), problem.build(), 8)
    assert run[-1].restarts.item() >= 1
    assert run[-1].kicks.item() >= 1
    for before, after in pairwise(run):
        w = after.w[0].numpy()
        y, z, gradient = exact(w)
        error = sum(norm(old[0].numpy() - new) ** 2 for old, new in zip(before.lower, (y, z), strict=True))
        assert error <= 2 * after.delta.item()
        d = (w - after.x[0].numpy()) / eta_x
        if after.kicks.item() == before.kicks.item():
            assert norm(d - gradient) <= zeta


def test_9_24_printed_recursion_for_delta_does_not_bound_the_lower_error():
    """From an exact start delta_0 ~ 0; printed, delta_1 = delta_0/2 + c |w_0 - w_-1|^2 does not know of the move to w_1."""
    problem, lam = Wavy(analytic=True), 200.0
    p, exact = exact_gradients(problem, lam)
    c = Constants(problem.constants())
    y, z, d = exact(p.x0)
    w = p.x0 - 0.3 * d  # the first look-ahead point after the start
    moved_y, moved_z, _ = exact(w)
    error = norm(y - moved_y) ** 2 + norm(z - moved_z) ** 2
    delta0 = 1e-6
    assert not error <= delta0 / 2 + 34 * (c.L_g / c.mu) ** 2 * 0.0
    assert error <= delta0 / 2 + 34 * (c.L_g / c.mu) ** 2 * norm(w - p.x0) ** 2


def test_hypergradient_of_prahgd_is_as_exact_as_zeta_says():
    problem, zeta, eta_x = Wavy(analytic=True), 1e-4, 0.3
    p, instance = problem.plain(), problem.build()
    c = instance.constants
    root = math.sqrt(c.L_gy / c.mu)
    lower = {"D": math.ceil(root * math.log(4 * (1 + root**2))), "N": 12, "a": 1 / c.L_gy}
    outer = {"theta": 0.2, "eta_x": eta_x, "B": 0.5, "B0": 0.0}
    run = states(made("prahgd", zeta=zeta, **lower, **outer), instance, 12)
    assert len({s.inner.item() for s in run}) > 3
    for before, after in pairwise(run):
        w = after.w[0].numpy()
        assert norm(before.y[0].numpy() - p.y_star(w)) ** 2 <= 2 * after.delta.item()
        assert norm((w - after.x[0].numpy()) / eta_x - p.grad_phi(w)) <= zeta


@pytest.mark.parametrize("name", ["acc_f2ba", "prahgd"])
def test_error_at_the_start_is_bounded_by_one_gradient_if_not_given(name):
    problem = Wavy(analytic=True)
    p, exact = exact_gradients(problem, 200.0)
    lam = {"lam": 200.0} if name == "acc_f2ba" else {}
    (start,) = states(made(name, zeta=1e-2, eta_x=0.1, **lam), problem.build(), 0)
    y, z, _ = exact(p.x0)
    true = norm(p.y0 - z) ** 2 + (norm(p.y0 - y) ** 2 if lam else 0.0)
    assert true <= start.delta.item()
    results = alone([trial(f"{name}[zeta=0.01]", "quadratic", steps=1)])
    inner = results.curve["K_t" if lam else "D_t"].iloc[-1]
    assert results.runs.grad_g_y[0] == 1 + (2 if lam else 1) * inner


# ---- counts


COUNTS = {
    "acc_f2ba[K={n},B0=0,B=0.2,r=0.1]": lambda n, step: (1, n, 2, 2 * n, 0, 0),
    "prahgd[D={n},N=3,B0=0,B=0.2,r=0.1]": lambda n, step: (1, 1, 0, n, 3 + (step > 1), 1),
    "rahgd[D={n},N=2,B0=0,B=0.2]": lambda n, step: (1, 1, 0, n, 2 + (step > 1), 1),
}
COLUMNS = ["grad_f_x", "grad_f_y", "grad_g_x", "grad_g_y", "hvp", "jvp"]


@pytest.mark.parametrize("n", [1, 6])
@pytest.mark.parametrize("text", COUNTS)
def test_each_step_costs_what_the_table_says(text, n):
    """FX, FY, GX, GY, HV, JV; restarts and kicks cost nothing."""
    problem, before = "tail_anchor[tails=4,anchors=3,c=0.5]", np.zeros(len(COLUMNS))
    for steps in (1, 2, 3, 4):
        results = alone([trial(text.format(n=n), problem, steps=steps)])
        after = results.runs.iloc[0][COLUMNS].to_numpy(dtype=float)
        assert tuple(after - before) == COUNTS[text](n, steps)
        before = after
    assert results.curve.restarts.iloc[-1] >= 1


def test_joint_query_of_prahgd_is_one_call():
    row = alone([trial("prahgd[D=4,N=3]", "quadratic", steps=1)]).runs.iloc[0]
    assert (row.grad_f, row.cost) == (1, 1 + 4 + 3 + 1)


def test_declared_calls_are_those_made():
    assert made("acc_f2ba", K=7).calls(1) == {"grad_f_x": 1, "grad_f_y": 7, "grad_g_x": 2, "grad_g_y": 14}
    assert made("acc_f2ba", K=7, zeta=0.1).calls(1) is None
    assert made("prahgd").calls(1) is None  # a lane whose residual has vanished makes fewer products


def test_steps_of_a_run_with_zeta_are_those_on_the_meter():
    results = alone([trial("acc_f2ba[zeta=0.1,delta0=2]", "quadratic", steps=9, schedule=Schedule(ratio=1.0001))])
    inner = results.curve.K_t[1:].sum()
    assert results.curve.K_t[1:].nunique() > 2
    row = results.runs.iloc[0]
    assert (row.grad_g_y, row.grad_f_y, row.grad_g_x, row.grad_f_x) == (2 * inner, inner, 18, 9)


# ---- packed and alone

PACKS = {
    "acc": "acc_f2ba[lam={lam},K={n},theta={theta},B={B},B0={B0},gamma={gamma},r={r},T={T},eta_x={eta}]",
    "acc_budget": "acc_f2ba[lam={lam},K={n},theta={theta},B={B},B0={B0},r={r},eta_x={eta}]",
    "acc_zeta": "acc_f2ba[lam={lam},K={n},theta={theta},B={B},B0={B0},r={r},T={T},zeta={zeta}]",
    "prahgd": "prahgd[D={n},N={m},n0={n0},theta={theta},B={B},B0={B0},gamma={gamma},r={r},T={T},eta_x={eta}]",
    "prahgd_zeta": "prahgd[D={n},N={m},theta={theta},B={B},B0={B0},r={r},zeta={zeta}]",
    "rahgd": "rahgd[D={n},N={m},theta={theta},B={B},B0={B0},eta_x={eta}]",
}
WHERE = {
    "quadratic": "quadratic[dim_x=5,dim_y=9,kappa=2]",
    "saddle": "tail_anchor[saddle=true,L=1.2,c=0.1,data_seed={data}]",
}


@functools.cache
def lanes(method: str, problem: str):
    return tuple(
        trial(
            PACKS[method].format(
                lam=[50, 10.5, 300][i % 3],
                n=1 + i % 4,
                m=1 + i % 3,
                n0=i % 3,
                theta=[0.1, 0.3, 1, 0.05][i % 4],
                B=[0.1, 0.4, 0.02][i % 3],
                B0=[0, 0.7, 0.3, 1.1][i % 4],
                gamma=[0.99, 0.5, 1][i % 3],
                r=[0.1, 0, 0.01, 0.3][(i + i // 4) % 4],
                T=[14, 300, 9, 25][i % 4],
                zeta=[1, 0.1, 1e-2][i % 3],
                eta=[0.02, 0.01, 0.03, 0.011][i % 4],
            ),
            WHERE[problem].format(data=i % 3),
            cost=[None, 407, None, 2150.5, None][i % 5],
            steps=([9, 6, 7, 8, 4] if "zeta" in method else [40, 33, 26, 38, 19])[i % 5],
            seed=i % 5,
            schedule=Schedule(ratio=1.4),
        )
        for i in range(12)
    )


@functools.cache
def each_alone(method: str, problem: str):
    return alone(lanes(method, problem))


@pytest.mark.parametrize("width", [5, 12])
@pytest.mark.parametrize("problem", WHERE)
@pytest.mark.parametrize("method", PACKS)
@pytest.mark.quick_cases(8)
def test_packed_equals_alone(method, problem, width):
    chosen = lanes(method, problem)[-width:]
    assert_same(packed(chosen), of(each_alone(method, problem), chosen))


@pytest.mark.parametrize("problem", WHERE)
@pytest.mark.parametrize("method", PACKS)
def test_lanes_of_these_packs_restart_and_leave_at_different_times(method, problem):
    results = each_alone(method, problem)
    last = results.curve.groupby("trial_id").last()
    assert last.restarts.nunique() >= 4
    assert results.runs.steps.nunique() >= 4
    if method != "rahgd":
        assert (last.kicks > 0).sum() >= 3
        assert (last.kicks < last.restarts).any()
    assert set(results.runs.status) <= {"budget", "stopped"}


def test_some_of_these_lanes_come_to_their_own_end():
    runs = [each_alone(method, "saddle").runs for method in ("acc", "prahgd")]
    assert all((r.status == "stopped").any() and (r.status == "budget").any() for r in runs)


# ---- saddles


def saddle() -> Instance:
    with default_dtype(torch.float64):
        return make(registry().problem("tail_anchor"), {"saddle": True, "mu": 1.0, "L": 1.5}).build()


@pytest.mark.parametrize("name", ["acc_f2ba", "prahgd"])
def test_kicks_leave_the_saddle_and_without_them_it_is_not_left(name):
    """The last coordinate starts at its strict saddle, 0, and has its minima at -1 and 1."""
    few = {"K": 3, "lam": 20.0} if name == "acc_f2ba" else {"D": 3, "N": 2}
    outer = {"theta": 0.2, "B": 0.2, "B0": 0.0, "eta_x": 0.2, **few}
    ends = states(made(name, r=0.01, **outer), saddle(), 150, seeds=range(8))[-1].w[:, -1]
    assert ((ends.abs() - 1).abs() < 0.1).all()
    stuck = states(made(name, **outer), saddle(), 150)[-1]
    assert stuck.w[0, -1].item() == 0
    assert stuck.restarts.item() > 5


def test_seeds_leave_the_saddle_to_both_sides():
    method = registry().algorithm("acc_f2ba").value.from_rate(saddle().constants, 0.1)
    ends = states(method, saddle(), 80, seeds=range(40))[-1].w[:, -1]
    assert 10 <= (ends > 0.5).sum().item() <= 30
    assert (ends.abs() > 0.5).all()


# ---- presets


def constants(name: str, **params) -> Constants:
    with default_dtype(torch.float64):
        found = make(registry().problem(name), params).build().constants
    found.problem = name
    return found


def cls(name: str):
    return registry().algorithm(name).value


@pytest.mark.parametrize("eps", [0.5, 1e-2])
@pytest.mark.parametrize("problem", ["quadratic", "tail_anchor", "power_tail"])
@pytest.mark.parametrize("name", RESTARTED)
def test_rate_preset_runs_and_is_the_same_without_what_it_leaves_open(name, eps, problem):
    method = cls(name).from_rate(constants(problem), eps)
    assert type(method)(**{k: v for k, v in method.given().items() if v is not None}) == method
    (run,) = bilevelbench.run(method, problem, steps=48, schedule=Schedule(ratio=4)).runs.itertuples()
    assert run.status == "budget"
    assert run.last_grad_phi < 30


@pytest.mark.parametrize("name", RESTARTED)
def test_rate_preset_has_the_powers_of_the_theorem(name):
    c = constants("tail_anchor", saddle=True, L=1.5)
    few, many = (cls(name).from_rate(c, eps) for eps in (0.1, 0.1 / 16))
    assert few.theta == pytest.approx(0.5 * (c.rho_phi * 0.1 * few.eta_x**2) ** 0.25)
    assert few.theta == pytest.approx(2 * many.theta)
    assert few.B == pytest.approx(math.sqrt(0.1 / c.rho_phi)) == pytest.approx(4 * many.B)
    assert few.eta_x == many.eta_x == 0.2 / c.L_phi
    literal = cls(name).from_rate(c, 0.1, scale=1 / 288)
    assert math.isclose(288 * literal.B, few.B)
    assert few.r == (0 if name == "rahgd" else pytest.approx(16 * many.r))
    assert cls(name).from_rate(c, 1e9).theta == 1


@pytest.mark.parametrize("name", RESTARTED)
def test_theory_preset_is_the_formula_worked_out_by_hand(name):
    given = {"mu": 0.5, "L_f": 2.0, "L_g": 3.0, "rho_g": 0.7, "C_f": 1.5, "rho_f": 1.1, "nu_g": 0.3, "R": 0.4}
    c = Constants({**given, "L_star": 20.0, "rho_star": 300.0, "L_phi": 5.0, "rho_phi": 7.0})
    eps, dx, fail = 0.1, 40, 0.05
    L, rho = (20.0, 300.0) if name == "acc_f2ba" else (5.0, 7.0)
    method = cls(name).from_theory(c, eps, dx=dx, delta_fail=fail)
    chi = math.log(dx / (fail * eps))
    eta_x = 1 / (4 * L)
    theta = 0.5 * (rho * eps * eta_x**2) ** 0.25
    T, B = math.ceil(2 * chi / theta), math.sqrt(eps / rho) / (288 * chi**2)
    r = min((B + B * B) / 2**0.5, theta * B / (20 * T), theta * B * B / (2 * T))
    zeta = min(rho * B * fail * r * theta / (2 * dx**0.5), eps**2)
    assert (method.T, method.B0) == (T, 0)
    assert (method.eta_x, method.theta, method.B) == pytest.approx((eta_x, theta, B), rel=1e-12)
    assert method.zeta == pytest.approx(zeta, rel=1e-12, abs=0)
    assert method.r == (0 if name == "rahgd" else max(r, 2**-52))
    if name == "acc_f2ba":
        lam = max(cls("f2ba").from_theory(c, eps).lam, 6**3.5 * math.sqrt(3.0 / eps))
        assert (method.lam, method.K) == (pytest.approx(lam), 48)
        assert method.delta0 == pytest.approx(3 * 0.4 + 2 * (1.5 / (lam * 0.5)) ** 2)
    else:
        assert method.delta0 == 0.4


def test_theory_preset_takes_a_larger_L_where_the_theorem_does_not_hold():
    """sqrt(rho eps) <= L is asked for; a larger L is a Lipschitz constant of the gradient as well."""
    c = constants("tail_anchor", saddle=True, L=1.5)
    eps = 4 * c.L_phi**2 / c.rho_phi
    assert cls("prahgd").from_theory(c, eps).eta_x == pytest.approx(1 / (4 * 2 * c.L_phi))
    assert cls("prahgd").from_theory(c, eps).theta == pytest.approx(0.25)


@pytest.mark.parametrize("name", RESTARTED)
def test_theory_preset_refuses_a_hessian_that_does_not_change_in_words(name):
    c = Constants({"L_star": 1.0, "rho_star": 0.0, "L_phi": 1.0, "rho_phi": 0.0}, "flat")
    with pytest.raises(InvalidInput, match=f"theory preset of {name} divides by the Hessian-Lipschitz constant"):
        cls(name).from_theory(c, 0.1)


@pytest.mark.parametrize(("name", "eps", "steps"), [("prahgd", 0.3, 400), ("rahgd", 0.3, 400), ("acc_f2ba", 1.0, 12)])
def test_theory_preset_runs(name, eps, steps):
    """AccF2BA's x-step is 1/172 here, so only the first of its steps are made."""
    problem = make(registry().problem("tail_anchor"), {"mu": 1.0, "L": 1.0})
    method = cls(name).from_theory(constants("tail_anchor", mu=1.0, L=1.0), eps)
    results = bilevelbench.run(method, problem, steps=steps, targets=(eps,), schedule=Schedule(ratio=1.3))
    (run,) = results.runs.itertuples()
    first = results.curve.grad_phi.iloc[0]
    if name == "acc_f2ba":
        assert run.status in ("budget", "target")
        assert run.last_grad_phi < first
    else:
        assert run.status == "target"


@pytest.mark.parametrize("problem", ["quadratic", "tail_anchor", "power_tail", SADDLE])
@pytest.mark.parametrize("name", RESTARTED)
def test_defaults_run(name, problem):
    """The experiment's: theta = 0.1, ten lower steps, thresholds from 10 down to 0.1 by 0.99, no kicks, no end."""
    method = made(name)
    assert (method.theta, method.gamma, method.B0, method.B, method.r, method.T) == (0.1, 0.99, 10, 0.1, 0, None)
    results = bilevelbench.run(name, problem, steps=64, schedule=Schedule(ratio=4))
    (run,) = results.runs.itertuples()
    assert run.status == "budget"
    assert run.last_grad_phi < results.curve.grad_phi.iloc[0]


def test_rahgd_is_prahgd_without_kicks():
    one, two = (
        alone([trial(f"{name}[B0=0.5,theta=0.3]", SADDLE, steps=40)]).curve.drop(columns=["trial_id", "seconds"])
        for name in ("rahgd", "prahgd")
    )
    assert one.equals(two)


def test_claims_are_those_of_the_table():
    found = {
        name: [(c.table, c.oracle, c.eps_exp, c.tilde, c.kappa_exp) for c in cls(name).claims] for name in RESTARTED
    }
    assert found == {
        "acc_f2ba": [(3, "gradient", 1.75, True, 3.75)],
        "prahgd": [(3, "HVP", 1.75, True, 3.25)],
        "rahgd": [],
    }
    assert cls("acc_f2ba").first_order()
    assert not cls("prahgd").first_order()


# ---- bad input


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("acc_f2ba[theta=0]", "theta = 0: input should be greater than 0"),
        ("acc_f2ba[theta=1.5]", "theta = 1.5: input should be less than or equal to 1"),
        ("prahgd[theta=nan]", "theta = nan: input should be less than or equal to 1"),
        ("acc_f2ba[B=0]", "B = 0: input should be greater than 0"),
        ("acc_f2ba[B0=-1]", "B0 = -1: input should be greater than or equal to 0"),
        ("prahgd[gamma=0]", "gamma = 0: input should be greater than 0"),
        ("prahgd[gamma=1.01]", "gamma = 1.01: input should be less than or equal to 1"),
        ("acc_f2ba[r=-1]", "r = -1: input should be greater than or equal to 0"),
        ("acc_f2ba[r=1e-17]", "a kick of length r = 1e-17 is below rounding at |x| = 1; choose a larger radius r"),
        ("prahgd[r=1e-320]", "is below rounding at |x| = 1; choose a larger radius r"),
        ("rahgd[r=0.1]", "rahgd makes no kicks; leave r out, or take prahgd"),
        ("acc_f2ba[T=0]", "T = 0: input should be greater than 0"),
        ("acc_f2ba[zeta=0]", "zeta = 0: input should be greater than 0"),
        ("prahgd[beta=1]", "beta = 1: input should be less than 1"),
        ("acc_f2ba[eta=1]", "acc_f2ba has no parameter 'eta'"),
    ],
)
def test_bad_parameter_is_refused_in_words_before_the_run(text, sentence):
    with pytest.raises(InvalidInput) as caught:
        bilevelbench.run(text, "quadratic", steps=3)
    assert sentence in str(caught.value)


@pytest.mark.parametrize("text", ["acc_f2ba[r=1e-15]", "acc_f2ba[r=0]", "prahgd[theta=1,gamma=1]"])
def test_limits_are_allowed(text):
    (spec,) = parse_spec(text)
    assert make(registry().algorithm(spec.name), spec.params)


@pytest.mark.parametrize("text", ["acc_f2ba[eta_x=1e30]", "prahgd[eta_x=1e30]", "prahgd[zeta=0.1,eta_x=1e30]"])
def test_run_that_diverges_ends_as_diverged(text):
    (run,) = bilevelbench.run(
        text, "quadratic[dim_x=5,dim_y=9]", steps=200, schedule=Schedule(ratio=2)
    ).runs.itertuples()
    assert run.status == "diverged"
