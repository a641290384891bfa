"""Numbers of the tail family, and its data sets side by side."""

from __future__ import annotations

import math

import pytest
import torch
from bilevelbench_problems import PowerTail, TailAnchor
from bilevelbench_problems.separable import ANCHOR, LOG_COSH, SADDLE, Scalar, peak, power_tail, tail_drop
from bilevelbench_problems.tail_anchor import anchor_minimum
from pydantic import ValidationError
from scipy.integrate import quad
from tensors import joint_hessian, lower_hessian, normal

from bilevelbench.model.queries import QUERIES
from bilevelbench.testing.points import first_difference

FAMILY = [
    PowerTail(),
    PowerTail(tails=1, rotate=False),
    TailAnchor(),
    TailAnchor(c=0.7),
    TailAnchor(tails=3, anchors=2, mu=0.1, L=5.0, saddle=True, c=0.2),
]
parametrize = pytest.mark.parametrize("problem", FAMILY, ids=repr)


@pytest.mark.parametrize("h", [power_tail(1.05), power_tail(2.0), ANCHOR, SADDLE, LOG_COSH, power_tail(1.05) + ANCHOR])
def test_scalar_derivatives(h: Scalar) -> None:
    u = torch.tensor([-30.0, -2.0, -0.3, 0.0, 1e-8, 0.5, 1.0, 4.0, 50.0], requires_grad=True)
    for function, derivative in [(h.value, h.slope), (h.slope, h.curvature), (h.curvature, h.third)]:
        (by_autograd,) = torch.autograd.grad(function(u).sum(), u)
        torch.testing.assert_close(by_autograd, derivative(u.detach()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("h", [power_tail(1.05), ANCHOR, SADDLE, LOG_COSH])
def test_bits_do_not_depend_on_the_place_in_a_tensor(h: Scalar, dtype: torch.dtype) -> None:
    """Else a lane would depend on the width of its pack: torch's pow, softplus and logaddexp are of that kind."""
    u = 2 * normal(4000).to(dtype)
    for function in (h.value, h.slope, h.curvature):
        in_fours = torch.cat([function(part.clone()) for part in u.split(4)])
        assert torch.equal(function(u), in_fours)


@pytest.mark.parametrize("q", [1.05, 1.5, 2.0, 3.0])
def test_power_tail_is_the_integral_of_its_slope(q: float) -> None:
    p = power_tail(q)
    for u in (-7.0, -1.0, 0.0, 0.2, 1.5, 40.0):
        integral, _ = quad(lambda t: -((1 + t * t) ** (-q / 2)), 0, u, epsabs=1e-12)
        assert float(p.value(torch.tensor(u))) == pytest.approx(integral, abs=1e-10)


def test_power_tail_in_elementary_cases() -> None:
    u = torch.linspace(-50, 50, 41)
    torch.testing.assert_close(power_tail(2.0).value(u), -torch.atan(u))
    torch.testing.assert_close(power_tail(3.0).value(u), -u / (1 + u * u).sqrt())
    assert tail_drop(2.0) == pytest.approx(math.pi / 2)
    assert tail_drop(3.0) == pytest.approx(1)


def test_numbers_of_the_default_exponent() -> None:
    q, p = 1.05, power_tail(1.05)
    assert tail_drop(q) == pytest.approx(20.685, abs=5e-4)
    assert peak(p.curvature) == pytest.approx(0.40011, abs=5e-6)
    assert peak(p.curvature) == pytest.approx(q * (q + 1) ** -0.5 * ((q + 2) / (q + 1)) ** (-q / 2 - 1), rel=1e-12)
    assert peak(p.third) == pytest.approx(q)
    assert peak(ANCHOR.curvature) == pytest.approx(1)
    assert peak(ANCHOR.third) == pytest.approx(0.85865, abs=5e-6)
    assert peak(SADDLE.curvature) == pytest.approx(0.5)
    assert peak(SADDLE.third) == pytest.approx(1.54, abs=5e-3)
    assert peak(LOG_COSH.third) == pytest.approx(4 / (3 * math.sqrt(3)))
    w = torch.tensor(anchor_minimum(q))
    assert float(w) == pytest.approx(0.98323, abs=5e-6)
    assert abs(float((p + ANCHOR).slope(w))) < 1e-14
    assert float((p + ANCHOR).curvature(w)) == pytest.approx(0.7306, abs=5e-5)
    assert float(ANCHOR.slope(w)) == pytest.approx(0.7011, abs=5e-5)
    assert float(-p.curvature(w) * p.slope(w)) == pytest.approx(0.258, abs=5e-4)


def test_declared_constants() -> None:
    tail, anchor = PowerTail().build().constants, TailAnchor(c=0.5).build().constants
    assert tail.L_f == pytest.approx(0.40011, abs=5e-6)
    assert tail.L_phi == tail.L_f
    assert tail.rho_f == tail.rho_phi == pytest.approx(1.05)
    assert (tail.mu, tail.L_gy, tail.L_g, tail.rho_g, tail.nu_g) == (1, 2, 4, 0, 0)
    assert tail.C_f == pytest.approx(math.sqrt(2))
    assert anchor.L_f == pytest.approx(1)
    assert anchor.rho_f == pytest.approx(1.05)
    assert (anchor.mu, anchor.L_gy, anchor.L_g) == (1, 2.5, 5)
    assert anchor.rho_g == pytest.approx(0.5 * 4 / (3 * math.sqrt(3)) * 2**1.5)


@parametrize
def test_lower_constants_are_attained(problem: PowerTail | TailAnchor) -> None:
    instance = problem.build()
    x, constants = normal(1, instance.dx), instance.constants
    spectrum = torch.linalg.eigvalsh(lower_hessian(instance, x, x + 100)[0])
    assert spectrum[0] == pytest.approx(constants.mu)
    spectrum = torch.linalg.eigvalsh(lower_hessian(instance, x, x)[0])
    assert spectrum[-1] == pytest.approx(constants.L_gy)
    joint = joint_hessian(instance.functions["value_g"], x, x)
    assert torch.linalg.matrix_norm(joint, 2) == pytest.approx(constants.L_g)


@parametrize
def test_upper_constants_are_attained(problem: PowerTail | TailAnchor) -> None:
    problem = problem.model_copy(update={"rotate": False})
    instance = problem.build()
    line = torch.linspace(-3, 3, 6001).reshape(-1, 1, 1).expand(-1, 1, instance.dx)
    hess = instance.reference.hess_phi(line)
    assert torch.linalg.matrix_norm(hess, 2).max() == pytest.approx(instance.constants.L_phi, rel=1e-5)
    change = torch.linalg.matrix_norm(hess[1:] - hess[:-1], 2).max() / 1e-3
    assert change == pytest.approx(instance.constants.rho_phi, rel=1e-3)
    zero = torch.zeros(1, instance.dx)
    largest = instance.grad_f_y(zero, torch.where(torch.arange(instance.dx) < problem_core(problem), zero, 1e9))
    assert largest.norm() == pytest.approx(instance.constants.C_f)


def problem_core(problem: PowerTail | TailAnchor) -> int:
    """How many coordinates are tails or anchors."""
    return problem.tails + getattr(problem, "anchors", 0)


def test_delta_is_the_distance_to_the_infimum() -> None:
    """With q = 5 the tail is short enough to be walked to its end."""
    problem = TailAnchor(q=5.0, tails=2, anchors=1, saddle=True, rotate=False)
    instance = problem.build()
    end = torch.tensor([[1e4, 1e4, anchor_minimum(5.0), -1.0]])
    phi = instance.reference.phi
    assert float(phi(instance.x0) - phi(end)) == pytest.approx(instance.constants.Delta, abs=1e-8)


def test_delta_from_zero_is_the_table_value() -> None:
    instance = PowerTail(tails=1).build()
    start = float(instance.reference.phi(instance.x0))
    assert instance.constants.Delta - start == pytest.approx(20.685, abs=5e-4)


@parametrize
def test_stacked_equals_single_lane_by_lane(problem: PowerTail | TailAnchor) -> None:
    """Bit for bit in the widths that packs have."""
    seeds = (4, 9, 0, 2, 7, 7, 1, 3, 5, 8, 6, 11)
    stack = problem.build_lanes(seeds)
    L, d = len(seeds), stack.dx
    x, y, v = normal(L, d), normal(L, d, seed=1), normal(L, d, seed=2)
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
        single = problem.model_copy(update={"data_seed": seed}).build()
        assert single.x0.shape == (1, d)
        torch.testing.assert_close(single.grad_f_y(row[0][:1], row[1][:1]), answers["grad_f_y"][lane : lane + 1])


@parametrize
def test_take(problem: PowerTail | TailAnchor) -> None:
    stack = problem.build_lanes(range(8))
    assert not first_difference(stack.take(torch.tensor([6, 1, 1, 4])), problem.build_lanes((6, 1, 1, 4)))
    assert not first_difference(
        stack.take(torch.tensor([6, 1, 1, 4])).take(torch.tensor([3, 0])), problem.build_lanes((4, 6))
    )


def test_constants_of_a_stack_hold_for_every_lane() -> None:
    problem = TailAnchor()
    stack = problem.build_lanes(range(5)).constants
    single = [problem.build_lanes((seed,)).constants for seed in range(5)]
    for name in ("Delta", "R"):
        assert stack[name] == max(c[name] for c in single)
        assert [stack.at(lane)[name] for lane in range(5)] == [c[name] for c in single]


def test_one_data_set_serves_several_lanes() -> None:
    instance = TailAnchor(c=0.3).build()
    x, y = normal(6, 2), normal(6, 2, seed=1)
    for query in ("grad_f_x", "grad_f_y", "grad_g_x", "grad_g_y"):
        whole = instance.functions[query](x, y)
        rows = torch.cat([instance.functions[query](x[i : i + 1], y[i : i + 1]) for i in range(6)])
        torch.testing.assert_close(whole, rows)
    assert instance.take(torch.tensor([5, 2])) is instance


def test_start() -> None:
    problem = TailAnchor(tails=3, anchors=2, rotate=False)
    x0 = problem.build_lanes(range(50)).x0
    assert x0.abs().max() <= 0.5
    assert x0.std() == pytest.approx(1 / math.sqrt(12), abs=0.05)
    turned = problem.model_copy(update={"rotate": True}).build_lanes(range(50))
    assert (turned.x0 != x0).all()
    assert (turned.y0 == 0).all()


def test_without_b_the_lower_gradient_in_x_vanishes() -> None:
    x = normal(1, 2)
    assert TailAnchor().build().grad_g_x(x, x).abs().min() > 1e-3
    assert TailAnchor(drift=0.0).build().grad_g_x(x, x).abs().max() == 0


def test_symmetric_descent_stays_on_the_saddle_and_a_push_leaves_it() -> None:
    instance = TailAnchor(saddle=True, c=0.4).build_lanes(range(4))
    assert (instance.x0[:, -1] == 0).all()

    def descend(x: torch.Tensor) -> torch.Tensor:
        y = instance.y0
        for _ in range(200):
            for _ in range(5):
                y = y - 0.3 * instance.grad_g_y(x, y)
            x = x - 0.5 * (instance.grad_f_x(x, y) - instance.jvp_g_xy(x, y, instance.grad_f_y(x, y)))
        return x

    push = torch.zeros(4, 3)
    push[:, -1] = 1e-6
    assert (descend(instance.x0)[:, -1] == 0).all()
    assert (descend(instance.x0 + push)[:, -1] > 0.5).all()
    hess = instance.reference.hess_phi(instance.x0)
    torch.testing.assert_close(hess[:, -1, -1], torch.full((4,), -0.5))


def test_power_tail_is_tail_anchor_without_its_extras() -> None:
    assert not first_difference(PowerTail(tails=3).build(), TailAnchor(tails=3, anchors=0, drift=0.0).build())


@pytest.mark.parametrize("fields", [{"mu": 3.0}, {"q": 1.0}, {"tails": 0}, {"c": -1.0}])
def test_rejects_what_has_no_meaning(fields: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        TailAnchor(**fields)
