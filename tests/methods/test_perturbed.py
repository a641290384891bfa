"""PF2BA and PAID: iterates, kicks, counts, accuracy of the lower level, packs, presets, and that they leave a saddle."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import plain
import pytest
import torch
from bilevelbench_methods.perturb import Escape, ball
from helpers import alone, assert_same, packed, prepared, states_of, trial
from plain_problems import Plain, Vector, Wavy, quadratic, wavy
from scipy import stats

import bilevelbench
from bilevelbench import Algorithm, Constants, Instance, InvalidInput, MissingConstant, Oracle, exact
from bilevelbench.discovery.entry import make
from bilevelbench.discovery.registry import registry
from bilevelbench.model.queries import COLUMNS
from bilevelbench.model.torch_state import default_dtype
from bilevelbench.plan.spec_text import parse_spec
from bilevelbench.plan.trial import Schedule

STEPS = 30


def method(text: str) -> Algorithm:
    (spec,) = parse_spec(text)
    return make(registry().algorithm(spec.name), spec.params)


def preset(name: str, kind: str, constants: Constants, eps: float) -> Algorithm:
    return getattr(registry().algorithm(name).value, f"from_{kind}")(constants, eps)


def states(chosen: Algorithm, instance: Instance, steps: int, seeds: tuple[int, ...] = (0,)):
    """The state after `init` and after each step, all lanes from the instance's start; and the packed method."""
    pack = prepared(chosen, instance, seeds)
    return states_of(pack, steps), pack.algorithm


# ---- the methods once more, in numpy


@dataclass
class Seen:
    """One step of a plain run: where it ends, the lower steps it made, and whether it kicked."""

    x: Vector
    y: Vector
    d: Vector
    lower: int
    kicked: bool
    candidate: tuple[Vector, Vector] | None


class Perturbed:
    """The rule of the kick, for one lane."""

    def __init__(self, eps: float, T_p: int, r: float, seed: int, loop: int) -> None:
        self.eps, self.T_p, self.r, self.seed, self.loop = eps, T_p, r, seed, loop
        self.t, self.t_last = 0, -math.inf
        self.candidate: tuple[Vector, Vector] | None = None

    def xi(self, d: Vector, x: Vector, y: Vector) -> Vector:
        xi = np.zeros_like(d)
        if math.sqrt(d @ d) <= 0.8 * self.eps and self.t - self.t_last > self.T_p:
            xi = plain.in_ball(self.seed, self.t + 1, self.loop, len(d), self.r)
            self.t_last, self.candidate = self.t, (x, y)
        self.t += 1
        return xi


def pf2ba(
    p: Plain, rule: Perturbed, lam: float, K: int, a: float, eta_x: float, K_t: Callable[[float], int] | None = None,
    delta: float = 0.0, lipschitz: float = 0.0,
) -> Iterator[Seen]:  # fmt: skip
    x, y, z = p.x0, p.y0, p.y0
    while True:
        n = K if K_t is None else K_t(delta)
        y, z, d = plain.penalty(p, x, y, z, lam, n, a / lam, a / lam)
        xi = rule.xi(d, x, y)
        x_new = x - eta_x * (d + xi)
        delta = delta / 2 + 34 * lipschitz**2 * ((x_new - x) @ (x_new - x))
        x = x_new
        yield Seen(x, y, d, n, bool(xi.any()), rule.candidate)


def paid(
    p: Plain, rule: Perturbed, D: int, N: int, a: float, eta_x: float, beta: float = 0.0,
    D_t: Callable[[float], int] | None = None, delta: float = 0.0, lipschitz: float = 0.0, floor: float = 0.0,
) -> Iterator[Seen]:  # fmt: skip
    x, y, v = p.x0, p.y0, np.zeros_like(p.y0)
    while True:
        n = D if D_t is None else D_t(delta)
        y = plain.nesterov(p, x, y, n, a, beta)
        v, _ = plain.cg(p.H(x, y), p.f_y(x, y), v, N)
        d = p.f_x(x, y) - p.J(x, y) @ v
        xi = rule.xi(d, x, y)
        x_new = x - eta_x * (d + xi)
        delta = floor + lipschitz * math.sqrt((x_new - x) @ (x_new - x))
        x = x_new
        yield Seen(x, y, d, n, bool(xi.any()), rule.candidate)


def wavy_by_hand() -> tuple[Plain, Instance]:
    """The same without autograd, for hundreds of lower steps."""
    return wavy(analytic=True)


def pf2ba_with_zeta(p: Plain) -> Iterator[Seen]:
    """K_t = max(K, ceil((8 L_gy/mu) log(4 lam L_g sqrt(delta)/zeta))) on wavy, delta from both gradients at the start."""
    c, lam, zeta, K = Wavy().constants(), 50.0, 1e-3, 40
    force = p.g_y(p.x0, p.y0)
    pull = p.f_y(p.x0, p.y0) / lam + force
    delta = (force @ force) / c["mu"] ** 2 + 4 * (pull @ pull) / c["mu"] ** 2

    def K_t(delta: float) -> int:
        return max(K, math.ceil(8 * c["L_gy"] / c["mu"] * math.log(4 * lam * c["L_g"] * math.sqrt(delta) / zeta)))

    rule = Perturbed(0.3, 4, 0.5, seed=0, loop=2)
    return pf2ba(p, rule, lam, K, 0.2, 0.3, K_t, delta, c["L_g"] / c["mu"])


def paid_with_zeta(p: Plain) -> Iterator[Seen]:
    c, zeta_y, D = Wavy().constants(), 1e-3, 2
    force = p.g_y(p.x0, p.y0)

    def D_t(delta: float) -> int:
        return max(D, math.ceil(c["L_gy"] / c["mu"] * math.log(delta / zeta_y)))

    rule = Perturbed(0.3, 4, 0.5, seed=0, loop=3)
    start = math.sqrt(force @ force) / c["mu"]
    return paid(p, rule, D, 3, 0.3, 0.3, 0.0, D_t, start, c["L_g"] / c["mu"], zeta_y)


#: method, problem, and the same run in numpy
RUNS: dict[str, tuple[str, Callable[[Plain], Iterator[Seen]]]] = {
    "pf2ba[eps=4,T_p=3,r=2,lam=50,K=4,a_y=0.2,a_z=0.2,eta_x=0.1]": (
        "quadratic", lambda p: pf2ba(p, Perturbed(4.0, 3, 2.0, 0, 2), 50.0, 4, 0.2, 0.1)
    ),
    "pf2ba[eps=0.3,T_p=5,lam=50,K=4,a_y=0.2,a_z=0.2,eta_x=0.3]": (  # the default radius is eps/10
        "wavy", lambda p: pf2ba(p, Perturbed(0.3, 5, 0.03, 0, 2), 50.0, 4, 0.2, 0.3)
    ),
    "pf2ba[eps=0.3,T_p=4,r=0.5,lam=50,K=40,zeta=0.001,a_y=0.2,a_z=0.2,eta_x=0.3]": ("wavy_by_hand", pf2ba_with_zeta),
    "paid[eps=4,T_p=3,r=2,D=3,N=2,a=0.3,eta_x=0.1]": (
        "quadratic", lambda p: paid(p, Perturbed(4.0, 3, 2.0, 0, 3), 3, 2, 0.3, 0.1)
    ),
    "paid[eps=0.3,T_p=5,D=4,N=3,a=0.3,eta_x=0.3,beta=0.4]": (
        "wavy", lambda p: paid(p, Perturbed(0.3, 5, 0.03, 0, 3), 4, 3, 0.3, 0.3, beta=0.4)
    ),
    "paid[eps=0.3,T_p=4,r=0.5,D=2,zeta_y=0.001,N=3,a=0.3,eta_x=0.3]": ("wavy", paid_with_zeta),
}  # fmt: skip
PROBLEMS = {"quadratic": quadratic, "wavy": wavy, "wavy_by_hand": wavy_by_hand}


@pytest.mark.parametrize("text", RUNS)
def test_iterates_kicks_and_answer_are_those_of_plain_numpy(text):
    problem, run = RUNS[text]
    p, instance = PROBLEMS[problem]()
    expected = list(itertools.islice(run(p), STEPS))
    kicked = [step for step, seen in enumerate(expected) if seen.kicked]
    assert len(kicked) >= 3
    assert kicked[0] > 0, "the first steps are too steep for a kick"
    assert not expected[0].candidate
    waits = np.diff(kicked)
    T_p = method(text).T_p
    assert waits.min() == T_p + 1, "t - t_last > T_p, and not >="
    got, packed_method = states(method(text), instance, STEPS)
    total = 0
    for state, seen in zip(got[1:], expected, strict=True):
        total += seen.kicked
        assert state.kicks.count.item() == total
        for mine, theirs in ((state.x, seen.x), (state.y, seen.y)):
            assert np.linalg.norm(mine[0].numpy() - theirs) <= 1e-10 * (1 + np.linalg.norm(theirs))
        answer = [part[0].numpy() for part in packed_method.answer(state)]
        if seen.candidate is None:
            assert np.isnan(np.concatenate(answer)).all()
        else:
            for mine, theirs in zip(answer, seen.candidate, strict=True):
                np.testing.assert_allclose(mine, theirs, rtol=1e-10, atol=1e-10)
    column = "K_t" if text.startswith("pf2ba") else "D_t"
    assert [getattr(state, column).item() for state in got[1:]] == [seen.lower for seen in expected]


def test_lower_steps_of_the_runs_above_follow_delta_and_meet_their_floor():
    for text in RUNS:
        if "zeta" in text:
            lower = [seen.lower for seen in itertools.islice(RUNS[text][1](wavy()[0]), STEPS)]
            assert len(set(lower)) >= 5
    floor = method("paid[eps=0.3,T_p=4,r=1e-9,D=20,zeta_y=0.001,N=3,a=0.3,eta_x=0.3]")
    lower = [state.D_t.item() for state in states(floor, wavy()[1], 40)[0][1:]]
    assert max(lower) > 20
    assert lower[-1] == 20


def test_9_20_kick_is_scaled_by_the_step_and_d_is_that_of_the_point_before_it():
    """Two runs that differ in r alone part at the first kick, by eta_x xi and nothing else."""
    instance, eta_x = wavy()[1], 0.3
    text = "pf2ba[eps=0.3,T_p=5,r={},lam=50,K=4,a_y=0.2,a_z=0.2,eta_x=0.3]"
    big, small = (states(method(text.format(r)), instance, STEPS)[0] for r in (0.5, 1e-12))
    step = next(i for i, state in enumerate(big) if state.kicks.count.item() == 1)
    assert step > 1
    torch.testing.assert_close(big[step - 1].x, small[step - 1].x, rtol=0, atol=0)
    apart = (small[step].x - big[step].x)[0].numpy()
    np.testing.assert_allclose(apart, eta_x * plain.in_ball(0, step, 2, 4, 0.5), atol=1e-11)


# ---- the ball


@pytest.mark.parametrize(("d", "r"), [(1, 2.0), (2, 1.0), (4, 0.25), (12, 3.0)])
def test_ball_is_uniform(d, r):
    """(|xi|/r)^d is uniform, the direction is isotropic: mean 0 and covariance r^2/(d+2) I. 20 steps of 20 000 lanes."""
    lanes, steps = 20_000, 20
    start = torch.zeros(1, d, dtype=torch.float64)
    instance = Instance(f=lambda x, y: (x + y).sum(-1, True), g=lambda x, y: (x + y).sum(-1, True), x0=start, y0=start)
    oracle = Oracle(instance, frozenset(), seeds=range(lanes))
    drawn_at = []
    for step in range(1, steps + 1):
        oracle.begin_step(step)
        drawn_at.append(ball(oracle, r).numpy())
    xi, n = np.concatenate(drawn_at), lanes * steps
    assert xi.shape == (n, d)
    size = np.linalg.norm(xi, axis=1)
    assert size.max() <= r * (1 + 1e-15)
    assert stats.kstest((size / r) ** d, "uniform").pvalue > 0.01
    assert stats.kstest(xi[:, 0] / r, lambda u: marginal(u, d)).pvalue > 0.01
    for wrong in (d + 1, d - 1):  # the test would see the law of a neighbouring dimension
        assert stats.kstest((size / r) ** wrong, "uniform").pvalue < 1e-9
    np.testing.assert_allclose(xi.mean(0), 0, atol=5 * r / math.sqrt((d + 2) * n))
    covariance = xi.T @ xi / n * (d + 2) / r**2
    np.testing.assert_allclose(covariance, np.eye(d), atol=5 * math.sqrt(2 / n))


def marginal(u: np.ndarray, d: int) -> np.ndarray:
    """The law of one coordinate in the unit ball: (u + 1)/2 is Beta((d+1)/2, (d+1)/2)."""
    return stats.beta.cdf((u + 1) / 2, (d + 1) / 2, (d + 1) / 2)


def test_ball_takes_a_radius_for_each_lane_and_new_draws_at_each_step():
    instance = wavy()[1]
    oracle = Oracle(instance, frozenset(), seeds=[5, 5, 6])
    radius = torch.tensor([[1.0], [3.0], [1.0]], dtype=torch.float64)
    oracle.begin_step(1)
    first = ball(oracle, radius)
    torch.testing.assert_close(3 * first[0], first[1], rtol=1e-14, atol=0)
    assert not torch.equal(first[0], first[2])
    oracle.begin_step(2)
    assert not torch.equal(ball(oracle, radius), first)


# ---- counts


def counted(text: str, steps: int) -> dict[str, float]:
    (row,) = alone([trial(text, "quadratic[dim_x=5,dim_y=7]", steps=steps)]).runs.to_dict("records")
    return {name: row[name] for name in [*COLUMNS, "cost"]}


@pytest.mark.parametrize("K", [1, 6])
def test_step_of_pf2ba_costs_that_of_f2ba_with_and_without_kicks(K):
    for eps in (1e-6, 1e6):  # never, always
        text = f"pf2ba[K={K},eps={eps},T_p=1]"
        three, two = counted(text, 3), counted(text, 2)
        made = {name: three[name] - two[name] for name in three}
        expected = {
            "grad_f_x": 1, "grad_f_y": K, "grad_g_x": 2, "grad_g_y": 2 * K, "grad_f": K + 1, "grad_g": 2 * K + 2,
            "hvp": 0, "jvp": 0, "value": 0, "cost": 3 * K + 3,
        }  # fmt: skip
        assert made == expected
        assert three == {name: 3 * count for name, count in expected.items()}
        declared = method(text).calls(1)
        assert {name: sum(declared.get(q, 0) for q in queries) for name, queries in COLUMNS.items()} == {
            name: made[name] for name in COLUMNS
        }


@pytest.mark.parametrize(("D", "N", "beta"), [(1, 1, 0.0), (5, 3, 0.5)])
def test_step_of_paid_costs_that_of_aid_with_and_without_kicks(D, N, beta):
    for eps in (1e-6, 1e6):
        text = f"paid[D={D},N={N},beta={beta},eps={eps},T_p=1]"
        one, two, three = (counted(text, steps) for steps in (1, 2, 3))
        first = {
            "grad_f_x": 1, "grad_f_y": 1, "grad_g_x": 0, "grad_g_y": D, "grad_f": 1, "grad_g": D, "hvp": N, "jvp": 1,
            "value": 0, "cost": D + N + 2,
        }  # fmt: skip
        later = first | {"hvp": N + 1, "cost": D + N + 3}  # the residual of a warm start
        assert one == first
        assert {name: three[name] - two[name] for name in three} == later
        assert method(text).calls(1) is None


def test_lower_steps_that_follow_delta_are_what_is_paid():
    for text in ("pf2ba[zeta=1e-3,lam=50]", "paid[zeta_y=1e-3]"):
        with default_dtype(torch.float64):
            instance = make(registry().problem("quadratic"), {"dim_x": 5, "dim_y": 7}).build()
        assert method(text).calls(1) is None
        run, _ = states(method(text), instance, 6)
        lower = [(s.K_t if text.startswith("pf2ba") else s.D_t).item() for s in run[1:]]
        assert len(set(lower)) > 1
        paid_for = counted(text, 6)["grad_g_y"]
        assert paid_for == 1 + sum(lower) * (2 if text.startswith("pf2ba") else 1)  # one at the start


# ---- the accuracy that the lower steps buy


def test_lower_steps_of_pf2ba_make_d_as_exact_as_zeta():
    """lam >= 2 L_f/mu, the declared constants, and Newton's method for y* and y_lam*."""
    problem = Wavy(analytic=True)
    p, instance, c = problem.plain(), problem.build(), problem.constants()
    lam, zeta = 2 * c["L_f"] / c["mu"], 1e-4
    a = 1 / (2 * c["L_gy"])
    chosen = method("pf2ba[eps=0.1,T_p=5,r=0.5]").model_copy(
        update={"lam": lam, "zeta": zeta, "a_y": a, "a_z": a, "eta_x": 0.3, "K": math.ceil(8 * c["L_gy"] / c["mu"])}
    )
    run, _ = states(chosen, instance, 12)
    errors = []
    for before, after in itertools.pairwise(run):
        x, kicked = before.x[0].numpy(), after.kicks.count.item() > before.kicks.count.item()
        if kicked:
            continue  # d + xi is what the move shows
        d = (before.x - after.x)[0].numpy() / 0.3
        y, z = p.y_star(x, lam, problem.f_yy), p.y_star(x)
        exact_d = p.f_x(x, y) + lam * (p.g_x(x, y) - p.g_x(x, z))
        errors.append(np.linalg.norm(d - exact_d))
        here = sum(np.sum((q - s) ** 2) for q, s in ((before.y[0].numpy(), y), (before.z[0].numpy(), z)))
        assert here <= before.delta.item() * (1 + 1e-9)
    assert len(errors) >= 8
    assert max(errors) <= zeta


def test_lower_steps_of_paid_make_y_as_exact_as_asked_and_d_as_exact_as_zeta():
    """With N and zeta_y as `from_theory` sets them for a zeta."""
    problem = Wavy(analytic=True)
    p, instance = problem.plain(), problem.build()
    c = Constants({**problem.constants(), "rho_phi": 1.0, "L_phi": 5.0})
    chosen = preset("paid", "theory", c, 0.5)
    zeta = Escape.from_theory(5.0, 1.0, 0.5, 100, 0.1).zeta
    assert zeta > 1e-13
    run, _ = states(chosen, instance, 12)
    lower, errors = [], []
    for before, after in itertools.pairwise(run):
        x, y = before.x[0].numpy(), after.y[0].numpy()
        assert np.linalg.norm(before.y[0].numpy() - p.y_star(x)) <= before.delta.item() * (1 + 1e-9)
        assert np.linalg.norm(y - p.y_star(x)) <= chosen.zeta_y + 1e-13
        lower.append(after.D_t.item())
        if after.kicks.count.item() == before.kicks.count.item():  # else d + xi is what the move shows
            d = (before.x - after.x)[0].numpy() / chosen.eta_x
            errors.append(np.linalg.norm(d - p.grad_phi(x)))
    assert len(errors) >= 10
    assert max(errors) <= zeta + 1e-13
    assert len(set(lower)) > 1


# ---- packed and alone


PACKS = {
    "pf2ba": "pf2ba[eps={eps},T_p={T_p},r={r},K={n},lam={lam},eta_x={eta}]",
    "pf2ba_zeta": "pf2ba[eps={eps},T_p={T_p},r={r},K={n},lam={lam},eta_x={eta},zeta={zeta}]",
    "paid": "paid[eps={eps},T_p={T_p},r={r},D={n},N={m},beta={beta},eta_x={eta}]",
    "paid_zeta": "paid[eps={eps},T_p={T_p},r={r},D={n},N={m},eta_x={eta},zeta_y={zeta}]",
}


#: with accuracies whose first kick comes at once, later, still later, or never
PACKED_ON = {
    "quadratic[dim_x=5,dim_y=9]": [20, 4.5, 2.5, 1e-3, 1.3],
    "tail_anchor[c=0.5,saddle=true,data_seed={data}]": [4, 1.55, 1.25, 1e-3, 1.05],
}
COST = {"pf2ba": 100, "pf2ba_zeta": 4000, "paid": 70, "paid_zeta": 150}


@pytest.mark.parametrize("problem", PACKED_ON)
@pytest.mark.parametrize("name", PACKS)
@pytest.mark.quick_cases(3)
def test_packed_equals_alone_with_kicks_at_different_times(name, problem):
    trials = [
        trial(
            PACKS[name].format(
                eps=PACKED_ON[problem][i % 5],
                T_p=[1, 4, 2][i % 3],
                r=[0.5, 3, 1e-4][i % 3],
                n=1 + i % 4,
                m=1 + i % 3,
                lam=[10, 50.5, 6][i % 3],
                eta=[0.1, 0.08, 0.12][i % 3],
                zeta=[0.1, 0.3, 3.0][i % 3],
                beta=[0.0, 0.3, 0.6][i % 3],
            ),
            problem.format(data=i % 3),
            cost=[None, None, COST[name], 1.5 * COST[name]][i % 4],
            steps=[12, 9, 15, 14][i % 4],
            seed=i % 5,
            schedule=Schedule(ratio=1.01),
        )
        for i in range(8)
    ]
    each = alone(trials)
    assert_same(packed(trials), each)
    assert set(each.runs.status) == {"budget"}
    assert each.runs.steps.nunique() >= 4
    first = each.curve[each.curve.kicks > 0].groupby("trial_id").step.min()
    assert first.nunique() >= 3, "kicks at different times"
    assert len(first) < len(trials), "and never in some lane"
    assert each.curve.groupby("trial_id").kicks.max().nunique() >= 3


def test_kick_of_one_lane_leaves_the_others_alone():
    """Their bits are those of a pack in which nobody kicks."""
    text = "pf2ba[eps={},T_p=2,r=0.5,eta_x=0.1]"
    quiet = [trial(text.format(1e-6), "quadratic", steps=9, seed=seed) for seed in (0, 1)]
    loud = trial(text.format(1e6), "quadratic", steps=9, seed=2)
    with_it, without = packed([quiet[0], loud, quiet[1]]).runs, packed(quiet).runs
    assert list(with_it.last_phi[[0, 2]]) == list(without.last_phi)
    assert with_it.last_phi[1] != without.last_phi[0]


# ---- saddles


def tail_anchor() -> Instance:
    with default_dtype(torch.float64):
        return make(registry().problem("tail_anchor"), {"saddle": True, "L": 1.5}).build()


@pytest.mark.parametrize(("plain_name", "perturbed"), [("f2ba", "pf2ba"), ("aid", "paid")])
def test_kicks_leave_the_saddle_on_which_the_method_without_them_stays(plain_name, perturbed):
    """The last coordinate starts at 0, exactly; its minima are +-1."""
    instance, seeds, eps = tail_anchor(), (0, 1, 2, 3, 4, 5), 0.2
    assert instance.x0.reshape(-1)[2] == 0
    smallest = {}
    for name in (plain_name, perturbed):
        run, kept = states(preset(name, "rate", instance.constants, eps), instance, 250, seeds)
        assert (instance.reference.grad_phi(run[-1].x).norm(dim=-1) <= eps).all()
        smallest[name] = torch.linalg.eigvalsh(instance.reference.hess_phi(run[-1].x))[:, 0]
        if name == plain_name:
            assert (run[-1].x[:, 2] == 0).all()
            continue
        assert ((run[-1].x[:, 2].abs() - 1).abs() < 0.1).all()
        assert len(set(run[-1].x[:, 2].sign().tolist())) == 2, "to both sides"
        answer = kept.answer(run[-1])[0]
        assert (instance.reference.grad_phi(answer).norm(dim=-1) <= eps).all()
        assert (torch.linalg.eigvalsh(instance.reference.hess_phi(answer))[:, 0] >= 0).all()
    assert (smallest[plain_name] < -0.4).all()
    assert (smallest[perturbed] > 0).all()


# ---- presets


@pytest.mark.parametrize(("L", "rho", "eps", "dx"), [(1.2, 1.5, 0.1, 3), (43.0, 527.0, 1e-3, 100), (1.0, 4.0, 1.0, 1)])
def test_iota_is_the_smallest_number_that_the_theorem_allows(L, rho, eps, dx):
    delta_fail = 0.1
    grid = 1 + np.arange(80_000) / 1000
    fine = L * math.sqrt(dx) * grid**2 * 2 ** (8 - grid) / math.sqrt(rho * eps) <= delta_fail
    iota = grid[np.argmax(fine)]
    assert fine.any()
    got = Escape.from_theory(L, rho, eps, dx, delta_fail)
    assert got.r == pytest.approx(eps / (400 * iota**3), rel=1e-3)
    assert got.T_p == pytest.approx(iota * L / math.sqrt(rho * eps), abs=1.1)
    assert got.zeta == pytest.approx(eps / (16 * iota**2 * 2**iota), rel=2e-3)
    assert got.eta_x == 1 / L


def test_iota_is_1_where_that_is_enough():
    """An absurdly large eps; zeta is then the smaller of eps/20 and eps/32."""
    got = Escape.from_theory(L=1.0, rho=1.0, eps=1e8, dx=1, delta_fail=0.1)
    assert got == Escape(eta_x=1.0, r=1e8 / 400, T_p=1, zeta=1e8 / 32)


def test_theory_preset_of_pf2ba_is_the_formula_worked_out_by_hand():
    given = {"mu": 0.5, "L_f": 2.0, "L_g": 3.0, "L_gy": 2.0, "rho_g": 0.7, "rho_f": 0.1, "C_f": 1.5}
    c = Constants({**given, "L_star": 20.0, "rho_star": 30.0})
    made = preset("pf2ba", "theory", c, 0.1)
    escape = Escape.from_theory(20.0, 30.0, 0.1, 100, 0.1)
    D1 = (2 + 2 * 3 / 0.5 + 1.5 * 3 * 0.7 / 0.5 + 1.5 * 0.7 / 1.0) * 1.5 / 0.5
    assert made.lam == pytest.approx(max(2 * D1 / 0.1, 6**3.5 * math.sqrt(3 / 0.1)))
    assert (made.r, made.T_p, made.zeta, made.eta_x) == (escape.r, escape.T_p, escape.zeta, 1 / 20)
    assert math.ceil(8 * 2 / 0.5) == made.K
    assert made.a_y == made.a_z == pytest.approx(1 / 4)
    flat = Constants({**given, "L_star": 20.0, "rho_star": 30.0, "rho_g": 0.0, "L_f": 1e-3, "C_f": 1e-3})
    assert preset("pf2ba", "theory", flat, 0.1).lam == pytest.approx(6**3.5 * math.sqrt(3 / 0.1))


@pytest.mark.parametrize("name", ["pf2ba", "paid"])
def test_theory_preset_is_complete_and_runs(name):
    """`rho_star` from the formula, `rho_phi` from the problem."""
    problem = make(registry().problem("tail_anchor"), {"saddle": True, "L": 1.0})
    with default_dtype(torch.float64):
        made = preset(name, "theory", problem.build().constants, 0.5)
    assert None not in made.given().values()
    run = bilevelbench.run(made, problem, steps=6).runs.iloc[0]
    assert run.status == "budget"
    assert run.last_grad_phi < 2


@pytest.mark.parametrize("name", ["pf2ba", "paid"])
def test_theory_preset_takes_more_lower_steps_for_a_smaller_eps(name):
    c = tail_anchor().constants
    few, many = (preset(name, "theory", c, eps) for eps in (0.1, 1e-3))
    assert few.r > 90 * many.r
    assert few.T_p < many.T_p
    field = "zeta" if name == "pf2ba" else "zeta_y"
    assert getattr(few, field) > getattr(many, field)


def test_theory_preset_says_which_constant_it_lacks_or_cannot_divide_by():
    given = {"mu": 0.5, "L_f": 2.0, "L_g": 3.0, "rho_g": 0.0, "rho_f": 0.0, "C_f": 1.5, "L_phi": 3.0}
    for name, rho in (("pf2ba", "rho_star"), ("paid", "rho_phi")):
        with pytest.raises(InvalidInput, match=r"divides by the Hessian-Lipschitz constant of phi, and rho = 0 here"):
            preset(name, "theory", Constants({**given, rho: exact(0)}), 0.1)
        with pytest.raises(MissingConstant, match=r"declares no constant '(L_f|L_g|mu|L_phi)'"):
            preset(name, "theory", Constants({}, "bare"), 0.1)


@pytest.mark.parametrize("eps", [0.1, 0.00625])
def test_rate_presets_have_the_exponents_of_the_measured_table(eps):
    c = tail_anchor().constants
    one, other = (preset(name, "rate", c, eps) for name in ("pf2ba", "paid"))
    for made in (one, other):
        assert made.r == pytest.approx(0.1 * eps)
        assert math.ceil(4 / math.sqrt(2 * eps)) == made.T_p
        assert made.eta_x == made.x_step() == 0.4 / c.L_phi
        assert made.eps == eps
    assert one.lam == 2 / eps
    assert math.ceil(2 * 1.5 * math.log(2 / eps)) == one.K
    assert (other.D, other.N) == (6, 3)
    assert other.beta == pytest.approx((math.sqrt(1.5) - 1) / (math.sqrt(1.5) + 1))


@pytest.mark.parametrize(("name", "oracle", "kappa"), [("pf2ba", "gradient", 4), ("paid", "HVP", None)])
def test_claims_are_those_of_table_3(name, oracle, kappa):
    (claim,) = registry().algorithm(name).value.claims
    got = claim.table, claim.setting, claim.oracle, claim.eps_exp, claim.tilde, claim.kappa_exp
    assert got == (3, "deterministic", oracle, 2, True, kappa)
    assert registry().algorithm(name).value.first_order() is (oracle == "gradient")


@pytest.mark.parametrize("name", ["pf2ba", "paid"])
def test_defaults_run(name):
    run = bilevelbench.run(name, "tail_anchor[saddle=true]", steps=32).runs.iloc[0]
    assert run.status == "budget"
    assert math.isfinite(run.last_grad_phi)
    assert run.grad_phi == run.last_grad_phi, "no kick yet: the answer is the last point"


# ---- bad input


@pytest.mark.parametrize("name", ["pf2ba", "paid"])
@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ("r=0", "r = 0: input should be greater than 0"),
        ("r=-1", "r = -1: input should be greater than 0"),
        ("eps=0", "eps = 0: input should be greater than 0"),
        ("eps=-0.1", "eps = -0.1: input should be greater than 0"),
        ("eps=nan", "eps = nan: input should be greater than 0"),
        ("T_p=0", "T_p = 0: input should be greater than 0"),
        ("T_p=2.5", "T_p = 2.5: input should be a valid integer"),
        ("r=1e-300", "a kick of length r = 1e-300 is below rounding at |x| = 1; choose a larger radius r"),
        ("r=1e-17", "a kick of length r = 1e-17 is below rounding at |x| = 1"),
        ("r=1e-10,eta_x=1e-8", "a kick of length eta_x r = 1e-08 * 1e-10 is below rounding at |x| = 1"),
        ("r=5e-324,eta_x=1e-3", "is below rounding at |x| = 1; choose a larger radius r"),
    ],
)
def test_bad_parameter_is_refused_in_words_before_the_run(name, fields, sentence):
    with pytest.raises(InvalidInput) as caught:
        bilevelbench.run(f"{name}[{fields}]", "quadratic", steps=3)
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("paid[beta=1]", "beta = 1: input should be less than 1"),
        ("paid[beta=-0.1]", "beta = -0.1: input should be greater than or equal to 0"),
        ("paid[zeta_y=0]", "zeta_y = 0: input should be greater than 0"),
        ("pf2ba[zeta=0]", "zeta = 0: input should be greater than 0"),
        ("pf2ba[K=0]", "K = 0: input should be greater than 0"),
    ],
)
def test_other_bad_parameters_are_refused_in_words(text, sentence):
    with pytest.raises(InvalidInput) as caught:
        bilevelbench.run(text, "quadratic", steps=3)
    assert sentence in str(caught.value)


@pytest.mark.parametrize("name", ["pf2ba", "paid"])
def test_smallest_radius_that_is_taken_still_moves_x(name):
    """2^-52 at |x| = 1, where eta_x = 1."""
    least = 2.0**-52
    assert method(f"{name}[r={least!r},eta_x=1]").r == least
    assert 1 + least > 1
    with pytest.raises(InvalidInput, match="below rounding"):
        method(f"{name}[r={least / 2!r},eta_x=1]")


@pytest.mark.parametrize("name", ["pf2ba", "paid"])
def test_radius_that_is_too_small_for_the_default_step_is_a_row_that_says_so(name):
    """The step is known only when the constants are."""
    made = method(f"{name}[r=1e-15]")
    with pytest.raises(ValueError, match=r"eta_x r = 0.001 \* 1e-15 is below rounding"):
        made.resolve(Constants({"L_phi": 500.0, "L_g": 1.0}))


def test_default_that_needs_a_missing_constant_names_it():
    for name in ("pf2ba", "paid"):
        with pytest.raises(MissingConstant, match=rf"needed for {name}'s default eta_x"):
            method(name).resolve(Constants({}, "bare"))
