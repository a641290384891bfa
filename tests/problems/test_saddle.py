"""`saddle` and `saddle_chain`: closed forms, constants, and that plain descent cannot leave the saddles."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from bilevelbench_methods.implicit.aid import AID
from bilevelbench_methods.penalty.f2ba import F2BA
from bilevelbench_problems import Saddle, SaddleChain
from bilevelbench_problems.landscapes import Row, Wells
from bilevelbench_problems.logcosh import ROBUST
from bilevelbench_problems.separable import ANCHOR, SADDLE
from helpers import alone, assert_conforms, assert_same, iterates, packed, trial
from pydantic import ValidationError
from scipy.optimize import minimize
from tensors import check_bits, close, joint_hessian, lower_hessian, normal
from torch import Tensor

from bilevelbench import Additive, Exact, Instance
from bilevelbench.model.queries import QUERIES
from bilevelbench.testing.points import first_difference

Either = Saddle | SaddleChain
PROBLEMS = [
    Saddle(),
    Saddle(unstable=3, stable=2, c=0.3, strength=4.0, gain_min=0.2, mu=0.1),
    Saddle(rotate=False, drift=0.0, gain_max=1.0),
    SaddleChain(),
    SaddleChain(saddles=1),
    SaddleChain(saddles=2, stable=1, c=0.5, strength=0.3, gain_min=0.4, gain_max=0.9),
]
parametrize = pytest.mark.parametrize("problem", PROBLEMS, ids=repr)


def unstable(problem: Either) -> int:
    return problem.unstable if isinstance(problem, Saddle) else problem.saddles


def stop(problem: Either, instance: Instance) -> Tensor:
    """The first saddle, (1, dx): where s'(ξ) = min(1, m)/2, turned by the U of the data."""
    m = torch.linspace(problem.gain_min, problem.gain_max, problem.stable)
    r = m.clamp(max=1) / 2
    U = problem._draw(problem.generator(), unstable(problem))[1] if problem.rotate else torch.eye(instance.dx)
    return torch.cat([r / (1 - r * r).sqrt(), torch.zeros(unstable(problem))]).unsqueeze(0) @ U.T


def descend(instance: Instance, x: Tensor, steps: int) -> Tensor:
    step = 1 / instance.constants.L_phi
    for _ in range(steps):
        x = x - step * instance.reference.grad_phi(x)
    return x


def eigenvalues(instance: Instance, x: Tensor) -> Tensor:
    """Of the Hessian of φ at x (1, dx), ascending."""
    return torch.linalg.eigvalsh(instance.reference.hess_phi(x))[0]


@parametrize
def test_conformance(problem: Either) -> None:
    assert_conforms(problem)


@parametrize
def test_lower_constants_are_attained(problem: Either) -> None:
    instance, c = problem.build(), problem.build().constants
    x = normal(1, instance.dx)
    y = instance.reference.y_star(x)
    assert torch.linalg.eigvalsh(lower_hessian(instance, x, y + 1e3)[0])[0] == pytest.approx(c.mu)
    assert torch.linalg.eigvalsh(lower_hessian(instance, x, y)[0])[-1] == pytest.approx(c.L_gy)
    joint = joint_hessian(instance.functions["value_g"], x, y)
    assert torch.linalg.matrix_norm(joint, 2) == pytest.approx(c.L_g)


def test_third_and_fourth_derivative_of_g_are_attained() -> None:
    """Along the row of [-M, I] of an unstable coordinate, the longest one."""
    instance = Saddle(c=0.7).build()
    x = normal(1, 4)
    y, gain = instance.reference.y_star(x), 2.0
    d = torch.tensor([-gain, 1.0]) / math.sqrt(1 + gain**2)
    for order, at, expected in ((3, math.atanh(1 / math.sqrt(3)), "rho_g"), (4, 0.0, "nu_g")):
        tau = torch.zeros((), requires_grad=True)
        last = torch.eye(4)[-1:]
        value = instance.value_g(x + tau * d[0] * last, y + at * last + tau * d[1] * last).sum()
        for _ in range(order):
            (value,) = torch.autograd.grad(value, tau, create_graph=True)
        assert abs(value.item()) == pytest.approx(instance.constants[expected])


def test_upper_constants_of_saddle_are_attained() -> None:
    instance = Saddle(rotate=False, stable=2, unstable=2, strength=1.5).build()
    line = torch.linspace(-3, 3, 12001).reshape(-1, 1, 1).expand(-1, 1, 4)
    hess = instance.reference.hess_phi(line)
    assert torch.linalg.matrix_norm(hess, 2).max() == pytest.approx(instance.constants.L_phi, rel=1e-5)
    change = torch.linalg.matrix_norm(hess[1:] - hess[:-1], 2).max() / 5e-4
    assert change == pytest.approx(instance.constants.rho_phi, rel=1e-3)
    zero = torch.zeros(1, 4)
    assert instance.grad_f_y(zero, zero + 1e9).norm() == pytest.approx(instance.constants.C_f)
    assert {c.kind for c in instance.constants.given.values()} == {"exact"}


def test_constants_worked_out_by_hand() -> None:
    c = Saddle(stable=1, gain_min=2.0, c=0.5).build().constants
    assert (c.mu, c.L_gy, c.L_f) == (1, 2.5, 1)
    assert c.L_g == pytest.approx(2.5 * (1 + 4))  # both gains are 2
    assert c.rho_g == pytest.approx(0.5 * 4 / (3 * math.sqrt(3)) * 5**1.5)
    assert c.nu_g == pytest.approx(0.5 * 2 * 25)
    assert c.C_f == pytest.approx(math.sqrt(1 + 0.25))
    assert c.rho_phi == pytest.approx(8 * 1.5379, rel=1e-4)
    alone = SaddleChain(saddles=1).build().constants
    for name, constant in Saddle().build().constants.given.items():
        assert alone[name] == pytest.approx(constant.most), name


@pytest.mark.parametrize("n", [2, 3, 5])
def test_bounds_of_the_chain_hold_where_it_bends_most_and_are_not_far_off(n: int) -> None:
    """Neighbours far away, where r = 1, and coordinates where r', r'', r''' are largest."""
    F = Row(n, 2.0)
    grid = torch.tensor([0.0, 0.325, 1 / math.sqrt(3), 1.0, 50.0])
    u = torch.cartesian_prod(*[grid] * n).contiguous().requires_grad_(True)
    a = torch.nn.functional.normalize(torch.cat([torch.eye(n), normal(40, n)]), dim=-1)
    third = [torch.autograd.grad(((F.hessian(u) @ w) @ w).sum(), u)[0] @ w for w in a]  # T[a, a, a]
    sizes = {
        "steepest": F.gradient(u.detach()).norm(dim=-1).max(),
        "bend": torch.linalg.matrix_norm(F.hessian(u.detach()), 2).max(),
        "twist": torch.stack(third).abs().max(),
    }
    for name, share in {"steepest": 0.6, "bend": 0.7, "twist": 0.4}.items():
        assert share * getattr(F, name) <= sizes[name] <= getattr(F, name), name


@pytest.mark.parametrize("F", [Wells(3, 1.5), Row(4, 1.5), Row(1, 2.0), Row(2, 0.5)])
def test_landscape_derivatives(F: Wells | Row) -> None:
    u = (2 * normal(50, F.n)).requires_grad_(True)
    (gradient,) = torch.autograd.grad(F.value(u).sum(), u)
    close(F.gradient(u.detach()), gradient)
    columns = [torch.autograd.grad((F.gradient(u) @ e).sum(), u)[0] for e in torch.eye(F.n)]
    close(F.hessian(u.detach()), torch.stack(columns, -1))
    flipped = u.detach() * torch.tensor([-1.0, 1.0]).repeat(F.n)[: F.n]
    assert torch.equal(F.value(flipped), F.value(u.detach()))
    zero = torch.zeros(F.n)
    assert F.value(zero) == 0
    assert torch.linalg.eigvalsh(F.hessian(zero))[0] == -F.strength / 2


def test_chain_is_the_sum_that_is_documented() -> None:
    u = normal(3)
    r = [float(ROBUST.value(w)) for w in u]
    plain = float(SADDLE.value(u[0])) + 0.25 * sum(float(ANCHOR.value(w)) - 1 for w in u[1:])
    assert float(Row(3, 2.0).value(u)) == pytest.approx(2 * (plain - 0.75 * (r[0] * r[1] + r[1] * r[2])), rel=1e-14)


@pytest.mark.parametrize("n", [1, 2, 4, 6])
def test_every_local_minimum_of_the_chain_is_the_known_one(n: int) -> None:
    F = Row(n, 1.0)
    lowest = F.minimum()
    assert F.gradient(lowest).abs().max() < 1e-14
    assert torch.linalg.eigvalsh(F.hessian(lowest))[0] > 0.2
    for start in (3 * normal(12, n)).numpy():
        found = minimize(
            lambda u: float(F.value(torch.tensor(u))),
            start,
            jac=lambda u: F.gradient(torch.tensor(u)).numpy(),
            options={"gtol": 1e-9},
        )
        torch.testing.assert_close(torch.tensor(found.x).abs(), lowest, rtol=0, atol=1e-7)
        assert found.fun == pytest.approx(-F.drop, abs=1e-12)


@pytest.mark.parametrize("n", [1, 2, 5])
def test_saddles_of_the_chain(n: int) -> None:
    """The k-th has one negative eigenvalue, on the axis of the coordinate that is next."""
    for k in range(n):
        u = torch.cat([Row(k, 1.0).minimum() if k else torch.zeros(0), torch.zeros(n - k)])
        assert Row(n, 1.0).gradient(u).abs().max() < 1e-14
        values, vectors = torch.linalg.eigh(Row(n, 1.0).hessian(u))
        assert values[0] <= -0.5
        assert (values[1:] > 0.2).all()
        assert vectors[k, 0].abs() == pytest.approx(1)


@pytest.mark.parametrize("signs", list(itertools.product([0, 1, -1], repeat=3)))
def test_every_stationary_point_with_a_zero_is_a_strict_saddle(signs: tuple[int, ...]) -> None:
    """Stationary points found by descent within the coordinates that are not zero: the others stay exactly zero."""
    F, u = Row(3, 1.0), torch.tensor(signs) * 1.3
    for _ in range(600):
        u = u - 0.4 * F.gradient(u)
    assert F.gradient(u).norm() < 1e-12
    assert (torch.linalg.eigvalsh(F.hessian(u))[0] <= -0.5 + 1e-12) == (bool((u == 0).any()))


@parametrize
def test_delta_is_the_distance_to_the_minimum(problem: Either) -> None:
    instance, n = problem.build(), unstable(problem)
    lowest = torch.ones(n) if isinstance(problem, Saddle) else Row(n, 1.0).minimum()
    x = stop(problem, instance)
    x[:, problem.stable :] = lowest / problem.gain_max
    ref = instance.reference
    assert ref.grad_phi(x).norm() < 1e-13
    assert eigenvalues(instance, x)[0] > 0
    assert float(ref.phi(instance.x0) - ref.phi(x)) == pytest.approx(instance.constants.Delta, rel=1e-12)
    assert float((ref.y_star(instance.x0) ** 2).sum()) == pytest.approx(instance.constants.R)


@parametrize
def test_lower_solution_is_no_identity(problem: Either) -> None:
    """y* = Mx + shift; the singular values of M are the gains, also in the unstable coordinates."""
    instance = problem.build()
    y_star, zero = instance.reference.y_star, torch.zeros(1, instance.dx)
    M = torch.stack([y_star(e.unsqueeze(0))[0] - y_star(zero)[0] for e in torch.eye(instance.dx)], -1)
    gains = torch.linspace(problem.gain_min, problem.gain_max, problem.stable)
    expected = torch.cat([gains, torch.full((unstable(problem),), problem.gain_max)]).sort().values
    close(torch.linalg.svdvals(M).sort().values, expected)
    assert y_star(zero).norm() > 0.1
    if problem.rotate and problem.stable > 1:
        assert (M[: problem.stable, : problem.stable].abs() > 1e-4).all()


@parametrize
def test_first_saddle_has_bias_to_punish(problem: Either) -> None:
    """f_x and f_y are not zero there, and φ has the declared curvature."""
    instance = problem.build()
    x = stop(problem, instance)
    y = instance.reference.y_star(x)
    assert instance.reference.grad_phi(x).norm() < 1e-13
    assert min(instance.grad_f_x(x, y).norm(), instance.grad_f_y(x, y).norm()) > 0.05
    assert eigenvalues(instance, x)[0] == pytest.approx(-problem.strength * problem.gain_max**2 / 2)


@pytest.mark.parametrize("problem", [Saddle(unstable=2, c=0.2, data_seed=3), SaddleChain(saddles=3)], ids=repr)
@pytest.mark.parametrize(("method", "bias"), [(F2BA(lam=1e4, K=3), 1e-3), (AID(D=3, N=3), 1e-9)], ids=repr)
@pytest.mark.quick_cases(2)
def test_plain_methods_stay_on_the_stable_manifold_and_end_at_the_saddle(problem: Either, method, bias: float) -> None:
    instance, s = problem.build(), problem.stable
    assert (instance.x0[:, s:] == 0).all()
    assert (instance.reference.grad_phi(instance.x0)[:, s:] == 0).all()
    path = iterates(method, instance, 2000)
    assert all((x[s:] == 0).all() and (y[s:] == 0).all() for x, y in path)
    x, y = (torch.tensor(part).unsqueeze(0) for part in path[-1])
    assert (x - stop(problem, instance)).norm() < bias
    assert eigenvalues(instance, x)[0] == pytest.approx(-problem.strength * problem.gain_max**2 / 2)
    assert instance.metrics["escaped"](x, y) == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_zero_stays_zero_in_both_precisions_and_in_a_pack(dtype: torch.dtype) -> None:
    torch.set_default_dtype(dtype)
    for problem in (Saddle(c=0.4), SaddleChain(c=0.4)):
        instance = problem.build_lanes(range(8))
        x = descend(instance, instance.x0, 300)
        assert (x[:, problem.stable :] == 0).all()
        assert (instance.reference.grad_phi(x).norm(dim=-1) < 1e-5).all()


def test_rotating_the_unstable_coordinate_would_let_rounding_escape() -> None:
    """Why it is not done: descent in turned coordinates leaves the saddle by itself."""
    instance = Saddle().build()
    turn = torch.linalg.qr(normal(4, 4)).Q
    z = instance.x0 @ turn
    for _ in range(500):
        z = z - (instance.reference.grad_phi(z @ turn.T) @ turn) / (2 * instance.constants.L_phi)
    assert (z @ turn.T)[0, -1].abs() > 0.4


@pytest.mark.parametrize("sign", [-1, 1])
def test_push_leaves_the_saddle(sign: int) -> None:
    instance = Saddle().build()
    push = torch.zeros(1, 4)
    push[0, -1] = sign * 1e-8
    x = descend(instance, instance.x0 + push, 1000)
    assert instance.reference.grad_phi(x).norm() < 1e-10
    assert x[0, -1] == pytest.approx(sign * 0.5)
    assert eigenvalues(instance, x)[0] > 0
    assert instance.metrics["escaped"](x, x) == 1


def test_each_saddle_of_the_chain_leads_to_the_next() -> None:
    """A push of the coordinate that is next ends at the next saddle, whose own coordinate is still exactly zero."""
    problem = SaddleChain(saddles=3, c=0.1)
    instance = problem.build()
    x = descend(instance, instance.x0, 800)
    for k in range(3):
        assert instance.reference.grad_phi(x).norm() < 1e-10
        assert (x[0, 3 + k :] == 0).all()
        values = eigenvalues(instance, x)
        assert values[0] <= -2 + 1e-9
        assert (values[1:] > 0).all()
        assert instance.metrics["escaped"](x, x) == k
        x[0, 3 + k] = 1e-6
        x = descend(instance, x, 800)
    assert eigenvalues(instance, x)[0] > 0
    torch.testing.assert_close(x[0, 3:], Row(3, 1.0).minimum() / 2)


def test_saddles_of_the_chain_are_left_one_by_one_and_independent_ones_at_once() -> None:
    """All coordinates get the same small push, once. Those of `saddle` leave together, those of the chain after a wait."""

    def when(problem: Either) -> list[int]:
        instance, n = problem.build(), unstable(problem)
        x = descend(instance, instance.x0, 500)
        x[0, -n:] = 1e-3
        left: list[int] = [0] * n
        for step in range(1, 1000):
            x = descend(instance, x, 1)
            for i in range(n):
                left[i] = left[i] or step * bool(problem.gain_max * x[0, i - n] > 0.5)
        return left

    together, in_turn = when(Saddle(unstable=3)), when(SaddleChain(saddles=3))
    assert len(set(together)) == 1
    assert 0 < in_turn[0] < in_turn[1] < in_turn[2]
    assert min(in_turn[1] - in_turn[0], in_turn[2] - in_turn[1]) > in_turn[0] / 2


@parametrize
def test_stacked_equals_single_lane_by_lane(problem: Either) -> None:
    """Bit for bit in the widths that packs have."""
    seeds = (4, 9, 0, 2, 7, 7, 1, 3)
    stack = problem.build_lanes(seeds)
    d = stack.dx
    x, y, v = normal(8, d), normal(8, d, seed=1), normal(8, d, seed=2)
    answers = {query: stack.functions[query](*((x, y, v) if "vp" in query else (x, y))) for query in QUERIES}
    for lane, seed in enumerate(seeds):
        alone = problem.build_lanes([seed] * 4)
        assert torch.equal(alone.x0[0], stack.x0[lane])
        row = [t[lane].expand(4, -1).contiguous() for t in (x, y, v)]
        for query in QUERIES:
            answer = alone.functions[query](*(row if "vp" in query else row[:2]))
            both = zip(answer, answers[query], strict=True) if isinstance(answer, tuple) else [(answer, answers[query])]
            assert all(torch.equal(one[0], many[lane]) for one, many in both), query
        assert torch.equal(alone.reference.phi(row[0])[0], stack.reference.phi(x)[lane])


@parametrize
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bits_do_not_depend_on_the_pack(problem: Either, dtype: torch.dtype) -> None:
    torch.set_default_dtype(dtype)
    check_bits(problem.build(), scale=2.0)


@pytest.mark.parametrize("name", ["saddle[c=0.3,sigma_f=0.1,data_seed={}]", "saddle_chain[sigma_g=0.1,data_seed={}]"])
def test_packed_equals_alone_through_the_runner(name: str) -> None:
    trials = [trial("f2ba[lam=50,K=2]", name.format(seed), steps=20, seed=seed) for seed in range(3)]
    together = packed(trials)
    assert set(together.runs.status) == {"budget"}
    assert_same(together, alone(trials))


@parametrize
def test_take(problem: Either) -> None:
    stack = problem.build_lanes(range(8))
    assert not first_difference(stack.take(torch.tensor([6, 1, 1, 4])), problem.build_lanes((6, 1, 1, 4)))
    assert not first_difference(
        stack.take(torch.tensor([6, 1, 1, 4])).take(torch.tensor([3, 0])), problem.build_lanes((4, 6))
    )


@parametrize
def test_constants_of_a_stack_are_those_of_its_lanes(problem: Either) -> None:
    stack = problem.build_lanes(range(3)).constants
    for lane in range(3):
        alone = problem.model_copy(update={"data_seed": lane}).build().constants
        for name in alone:
            assert stack.at(lane)[name] == pytest.approx(alone[name], rel=1e-14), name


@parametrize
def test_data_seed_changes_the_data(problem: Either) -> None:
    one, other = (problem.model_copy(update={"data_seed": seed}).build() for seed in (1, 2))
    assert one.constants.Delta != other.constants.Delta


@parametrize
def test_float32_sees_the_same_data(problem: Either) -> None:
    double = problem.build()
    torch.set_default_dtype(torch.float32)
    single = problem.build()
    assert single.x0.dtype == single.grad_g_y(single.x0, single.y0).dtype == torch.float32
    assert single.constants.given == double.constants.given
    torch.testing.assert_close(single.x0, double.x0.float())
    expected = double.grad_g_y(double.x0, double.y0).float()
    torch.testing.assert_close(single.grad_g_y(single.x0, single.y0), expected, rtol=1e-5, atol=1e-5)


def test_lower_gradient_in_x_is_not_zero_at_the_solution_unless_without_drift() -> None:
    x = normal(1, 4)
    for problem, at_rest in ((Saddle(), False), (Saddle(drift=0.0), True)):
        instance = problem.build()
        g_x = instance.grad_g_x(x, instance.reference.y_star(x))
        assert (float(g_x.norm()) < 1e-12) == at_rest


@pytest.mark.parametrize("cls", [Saddle, SaddleChain])
def test_noise_is_exact_unless_asked_for(cls: type[Either]) -> None:
    assert cls().build().noise == Exact()
    noise = Additive(sigma_f=0.1, sigma_g=0.2, sigma_h=0.3)
    assert cls(sigma_f=0.1, sigma_g=0.2, sigma_h=0.3).build().noise == noise


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"mu": 3.0}, "mu = 3.0 is larger than L = 2.0"),
        ({"gain_min": 3.0}, "gain_min = 3.0 is larger than gain_max = 2.0"),
        ({"gain_max": 1000.0}, "gain_max"),
        ({"gain_min": 0.0}, "gain_min"),
        ({"stable": 0}, "stable"),
        ({"strength": 0.0}, "strength"),
        ({"c": -1.0}, "c\n"),
        ({"rotation": True}, "rotation"),
    ],
)
@pytest.mark.parametrize("cls", [Saddle, SaddleChain])
def test_rejects_what_has_no_meaning(cls: type[Either], fields: dict[str, float], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        cls(**fields)


def test_rejects_a_landscape_without_saddles() -> None:
    with pytest.raises(ValidationError, match="unstable"):
        Saddle(unstable=0)
    with pytest.raises(ValidationError, match="saddles"):
        SaddleChain(saddles=0)
