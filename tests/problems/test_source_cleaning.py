"""`source_cleaning_linear` against numpy, scikit-learn and differences, which know nothing of its derivatives."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from bilevelbench_methods.penalty.f2bsa import F2BSA
from bilevelbench_problems import SourceCleaningLinear
from bilevelbench_problems.sources import Sources, dealt, garbage_weight, means, of_rows, turn
from helpers import assert_conforms
from pydantic import ValidationError
from scipy.special import logsumexp, softmax
from sklearn.linear_model import LogisticRegression
from tensors import check_bits, close, joint_hessian, normal, some_rows

import bilevelbench
from bilevelbench import FiniteSum, Instance, InvalidInput, Oracle, Rows
from bilevelbench.engine.evaluator import Evaluator
from bilevelbench.engine.sanity import check_instance
from bilevelbench.plan.trial import Schedule
from bilevelbench.testing.checks.derivatives import check_derivatives
from bilevelbench.testing.checks.stacking import check_points

C, P, DY = 4, 10, 40


def linear(**params) -> SourceCleaningLinear:
    """With a hundred useful rows of a thousand, also where nine tenths are garbage."""
    return SourceCleaningLinear(**{"n_train": 1000, "n_val": 500, **params})


class Numpy:
    """The data, f and g in numpy, for one point."""

    def __init__(self, problem: SourceCleaningLinear) -> None:
        parts = problem._data()
        (self.A, self.b), (self.V, self.v), (self.T, self.t) = ((a.numpy(), b.numpy()) for a, b in parts[:3])
        self.source, self.m, self.l2 = parts[3].numpy(), problem.sources, problem.l2

    def losses(self, A: np.ndarray, b: np.ndarray, y: np.ndarray) -> np.ndarray:
        Z = A @ y.reshape(C, P).T
        return logsumexp(Z, axis=1) - Z[np.arange(len(b)), b]

    def f(self, y: np.ndarray) -> float:
        return float(self.losses(self.V, self.v, y).mean())

    def means(self, y: np.ndarray) -> np.ndarray:
        each = self.losses(self.A, self.b, y)
        return np.array([each[self.source == i].mean() for i in range(self.m)])

    def g(self, x: np.ndarray, y: np.ndarray) -> float:
        return float(softmax(x) @ self.means(y) + 0.5 * self.l2 * y @ y)

    def solve(self, x: np.ndarray) -> np.ndarray:
        """argmin of g in y by scikit-learn: n g is its loss with sample weights and C = 1/(n l2)."""
        n = len(self.b)
        weights = (n * softmax(x) / np.bincount(self.source))[self.source]
        model = LogisticRegression(
            C=1 / (n * self.l2), fit_intercept=False, solver="newton-cg", tol=1e-10, max_iter=10000
        )
        return model.fit(self.A, self.b, sample_weight=weights).coef_.ravel()


@functools.cache
def built(problem: SourceCleaningLinear) -> tuple[Instance, Numpy]:
    return problem.build(), Numpy(problem)


@pytest.fixture(params=[linear(), linear(sources=4, corruption=0.9)], ids=["two", "four"])
def problem(request: pytest.FixtureRequest) -> SourceCleaningLinear:
    return request.param


@pytest.fixture
def instance(problem: SourceCleaningLinear) -> Instance:
    return built(problem)[0]


@pytest.fixture
def plain(problem: SourceCleaningLinear) -> Numpy:
    return built(problem)[1]


@pytest.mark.parametrize("sources", [2, 4])
def test_conformance(sources: int) -> None:
    assert_conforms(linear(sources=sources, corruption=0.9))


# ---------------------------------------------------------------------------------------------- data


@pytest.mark.parametrize("corruption", [0.5, 0.9, 0.99])
def test_the_share_of_garbage_is_as_asked(corruption: float) -> None:
    (A, given), (V, v), (T, t), source = linear(corruption=corruption, n_train=2000)._data()
    assert int((source == 1).sum()) == round(corruption * 2000)
    assert (given[source == 1] == 0).all()
    assert len(given[source == 0].unique()) == C
    assert (len(A), len(V), len(T)) == (2000, 500, 500)
    assert len(v.unique()) == len(t.unique()) == C
    assert (A[:, 0] == A[0, 0]).all()
    assert float(A.square().sum(-1).mean()) == pytest.approx(1)


def test_useful_labels_follow_the_features_and_the_rest_do_not() -> None:
    """A model of the useful rows alone predicts, one of the garbage alone answers 0."""
    plain = built(linear())[1]
    useful, garbage = (plain.solve(np.array(x)) for x in ([15.0, -15.0], [-15.0, 15.0]))
    answers = [(plain.T @ y.reshape(C, P).T).argmax(1) for y in (useful, garbage)]
    assert (answers[0] == plain.t).mean() > 0.75
    assert (answers[1] == 0).all()


def test_only_the_labels_of_garbage_depend_on_the_corruption() -> None:
    few, many = (linear(corruption=p)._data() for p in (0.3, 0.8))
    assert torch.equal(few[0][0], many[0][0])
    assert torch.equal(few[0][1][:200], many[0][1][:200])
    assert torch.equal(few[1][1], many[1][1])


def test_garbage_is_dealt_out_evenly() -> None:
    counts = torch.bincount(dealt(1000, 0.9, 4)).tolist()
    assert counts == [100, 300, 300, 300]


@pytest.mark.parametrize(("n", "corruption", "m"), [(10, 0.99, 2), (10, 0.01, 2), (10, 0.2, 4)])
def test_a_source_without_rows_is_refused(n: int, corruption: float, m: int) -> None:
    with pytest.raises(InvalidInput, match=f"{n} training rows, .* leave one of {m} sources without rows"):
        linear(n_train=n, corruption=corruption, sources=m).build()


@pytest.mark.parametrize("wrong", [{"corruption": 0.0}, {"corruption": 1.0}, {"sources": 1}, {"l2": 0.0}])
def test_parameters_are_checked(wrong: dict[str, float]) -> None:
    with pytest.raises(ValidationError, match=next(iter(wrong))):
        linear(**wrong)


# ---------------------------------------------------------------------------------------------- functions


def test_values_and_metrics(instance: Instance, plain: Numpy) -> None:
    x, y = normal(1, plain.m), 3 * normal(1, DY, seed=1)
    a, b = x[0].numpy(), y[0].numpy()
    assert float(instance.value_g(x, y)) == pytest.approx(plain.g(a, b), rel=1e-12)
    assert float(instance.value_f(x, y)) == pytest.approx(plain.f(b), rel=1e-12)
    seen = {name: float(metric(x, y)) for name, metric in instance.metrics.items()}
    w = softmax(a)
    assert seen["garbage_weight"] == pytest.approx(1 - w[0])
    assert seen["weight_error"] == pytest.approx(np.linalg.norm(w - np.eye(plain.m)[0]))
    assert seen["val_loss"] == pytest.approx(plain.f(b))
    assert seen["test_loss"] == pytest.approx(plain.losses(plain.T, plain.t, b).mean())


def test_gradients_against_differences_of_numpy(instance: Instance, plain: Numpy) -> None:
    x, y = normal(1, plain.m), 2 * normal(1, DY, seed=1)
    a, b, h = x[0].numpy(), y[0].numpy(), 1e-6
    in_x = [(plain.g(a + h * e, b) - plain.g(a - h * e, b)) / (2 * h) for e in np.eye(plain.m)]
    in_y = [(plain.g(a, b + h * e) - plain.g(a, b - h * e)) / (2 * h) for e in np.eye(DY)]
    f_y = [(plain.f(b + h * e) - plain.f(b - h * e)) / (2 * h) for e in np.eye(DY)]
    close(instance.grad_g_x(x, y)[0], torch.tensor(in_x), 1e-8)
    close(instance.grad_g_y(x, y)[0], torch.tensor(in_y), 1e-8)
    close(instance.grad_f_y(x, y)[0], torch.tensor(f_y), 1e-8)
    assert (instance.grad_f_x(x, y) == 0).all()


def test_weights_of_sources_turn_like_a_softmax() -> None:
    x, s = normal(3, 4).requires_grad_(True), normal(3, 4, seed=1)
    (theirs,) = torch.autograd.grad((torch.softmax(x, -1) * s).sum(), x)
    close(turn(torch.softmax(x.detach(), -1), s), theirs)
    assert turn(torch.softmax(x.detach(), -1), s).sum(-1).abs().max() < 1e-14  # a shift of all x changes nothing
    assert float(garbage_weight(torch.tensor([[0.0, 0.0]]))) == 0.5


# ---------------------------------------------------------------------------------------------- rows


@pytest.mark.parametrize("check", [check_derivatives, check_points])
def test_derivatives_of_the_ratio(check) -> None:
    """Which is biased, so that not all of the kit holds for it."""
    check(linear(estimator="ratio", sources=3, corruption=0.6))


def test_the_mean_over_mini_batches_is_the_whole_sum_only_if_unbiased() -> None:
    """Four rows of 1 : 9; the ratio gives the rare source its weight only in those batches that have it, one of three."""
    found = {}
    for estimator in ("unbiased", "ratio"):
        instance = built(linear(estimator=estimator, corruption=0.9))[0]
        oracle = Oracle(instance, frozenset({"grad_g_x", "grad_g_y"}), seeds=[1])
        oracle.begin_step(1)
        x, y = torch.zeros(1, 2), 3 * normal(1, DY)
        with torch.no_grad():
            batch, whole = oracle.grad_g_x(x, y, oracle.sample_g(4, points=20_000)), oracle.grad_g_x(x, y)
        spread = batch[..., 0].std() / len(batch) ** 0.5
        found[estimator] = float((batch[..., 0].mean() - whole[..., 0]).abs() / spread)
    assert found["unbiased"] < 4
    assert found["ratio"] > 20


def test_estimators_of_a_batch_by_hand() -> None:
    """Sources of 2 and 6 rows; a batch of one and two of them."""
    source, losses = torch.tensor([0, 0, 1, 1, 1, 1, 1, 1]), torch.tensor([[5.0, 1.0, 3.0]])
    rows = Rows(torch.tensor([[1, 2, 7]]), torch.full((1, 3), 1 / 3))
    unbiased, ratio = (Sources(source, 2, kind, torch.float64) for kind in ("unbiased", "ratio"))
    close(means(unbiased.shares(rows), losses), torch.tensor([[5 / (3 * 2 / 8), 4 / (3 * 6 / 8)]]))
    close(means(ratio.shares(rows), losses), torch.tensor([[5.0, 2.0]]))
    close(of_rows(ratio.shares(rows), torch.tensor([[0.2, 0.8]])), torch.tensor([[0.2, 0.4, 0.4]]))
    absent = Rows(torch.tensor([[2, 3, 4]]), torch.full((1, 3), 1 / 3))
    for sources in (unbiased, ratio):
        assert float(means(sources.shares(absent), losses)[0, 0]) == 0


@pytest.mark.parametrize("corruption", [0.5, 0.9, 0.99])
def test_effective_counts(corruption: float) -> None:
    """The number of useful rows in mini-batches of 64 is binomial."""
    instance = linear(corruption=corruption).build()
    oracle = Oracle(instance, frozenset({"grad_g_y"}), seeds=[0])
    oracle.begin_step(1)
    rows = oracle.sample_g(64, points=2000).rows
    useful = (rows.index < round((1 - corruption) * 1000)).sum(-1).double()
    mean, variance = 64 * (1 - corruption), 64 * (1 - corruption) * corruption
    assert float(useful.mean()) == pytest.approx(mean, abs=5 * (variance / 2000) ** 0.5)
    none = corruption**64
    assert float((useful == 0).double().mean()) == pytest.approx(
        none, abs=5 * (none * (1 - none) / 2000) ** 0.5 + 1e-12
    )


def test_blocks_of_unequal_size_make_up_the_whole_sum(instance: Instance, plain: Numpy) -> None:
    oracle = Oracle(instance, frozenset({"grad_g", "hvp_g_yy", "jvp_g_xy"}), seeds=[0] * 4)
    x, y, v = normal(4, plain.m), normal(4, DY, seed=1), normal(4, DY, seed=2)
    blocks = oracle.blocks_g(300)
    assert len({xi.size for xi in blocks}) == 2
    with torch.no_grad():
        for i in (0, 1):
            close(sum(oracle.grad_g(x, y, xi)[i] for xi in blocks) / len(blocks), oracle.grad_g(x, y)[i])
        close(sum(oracle.hvp_g_yy(x, y, v, xi) for xi in blocks) / len(blocks), oracle.hvp_g_yy(x, y, v))
        close(sum(oracle.jvp_g_xy(x, y, v, xi) for xi in blocks) / len(blocks), oracle.jvp_g_xy(x, y, v))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bits_do_not_depend_on_the_pack(dtype: torch.dtype) -> None:
    torch.set_default_dtype(dtype)
    instance = linear().build()
    assert instance.noise == FiniteSum(n_f=500, n_g=1000)
    check_bits(instance, scale=3.0)
    for B in (1, 7, 32):
        check_bits(instance, some_rows(instance, 36, B))


# ---------------------------------------------------------------------------------------------- levels and constants


def test_the_lower_level_is_that_of_scikit_learn(instance: Instance, plain: Numpy) -> None:
    x = normal(1, plain.m)
    with torch.no_grad():
        ours = Evaluator(instance)._solve_lower(x, instance.y0)
    torch.testing.assert_close(ours[0], torch.as_tensor(plain.solve(x[0].numpy())), rtol=0, atol=1e-6)


def test_the_hypergradient_is_the_slope_of_phi(instance: Instance, plain: Numpy) -> None:
    x, h = 0.5 * normal(1, plain.m), 1e-3
    gradient = Evaluator(instance).grad_phi(x, instance.y0)
    phi = [[plain.f(plain.solve(x[0].numpy() + s * e)) for s in (h, -h)] for e in np.eye(plain.m)]
    close(gradient[0], torch.tensor([(high - low) / (2 * h) for high, low in phi]), 1e-6)
    assert gradient[0, 0] < 0 < gradient[0, 1:].min()  # more weight for the useful source


@pytest.mark.parametrize("corruption", [0.5, 0.9, 0.99])
def test_phi_falls_as_garbage_loses_its_weight(corruption: float) -> None:
    plain = Numpy(linear(corruption=corruption, n_train=20_000 if corruption > 0.95 else 1000))
    phi = [plain.f(plain.solve(np.array([t, 0.0]))) for t in (-2.0, 0.0, 1.0, 2.0, 3.0, 5.0)]
    assert (np.diff(phi) < 0).all()


def test_without_phi_nobody_passes_over_all_rows() -> None:
    """Neither the evaluator nor the look at an instance before a run: with a large model that takes longer than the run."""

    def g(x: torch.Tensor, y: torch.Tensor, rows: Rows | None = None) -> torch.Tensor:
        assert rows is not None
        return (x * y).sum(-1, keepdim=True)

    instance = Instance(f=g, g=g, x0=torch.ones(1, 2), y0=torch.ones(1, 2), noise=FiniteSum(n_f=5, n_g=7))
    check_instance(instance)
    assert Evaluator(instance, phi=False)(instance.x0, instance.y0).g_y.isnan().all()


def test_kinds_of_the_constants(instance: Instance) -> None:
    kinds = {name: constant.kind for name, constant in instance.constants.given.items()}
    assert {name for name, kind in kinds.items() if kind == "estimated"} == {"L_g", "rho_g", "L_phi"}
    assert {name for name, kind in kinds.items() if kind == "exact"} == {"mu", "R", "n_f", "n_g"}


def test_L_g_and_rho_g_hold_where_y_star_can_be(instance: Instance, plain: Numpy) -> None:
    radius = (2 * np.log(C) / plain.l2) ** 0.5
    assert max(np.linalg.norm(plain.solve(np.eye(plain.m)[0] * t)) for t in (-5.0, 0.0, 5.0)) < radius
    c = instance.constants
    for seed in range(6):
        x, y = 2 * normal(1, plain.m, seed=seed), normal(1, DY, seed=seed + 50)
        y = y * (radius * (seed + 1) / 6 / y.norm())
        dx, dy = 0.1 * normal(1, plain.m, seed=seed + 100), 0.1 * normal(1, DY, seed=seed + 150)
        here, there = (joint_hessian(instance.functions["value_g"], *at) for at in ((x, y), (x + dx, y + dy)))
        assert torch.linalg.matrix_norm(here, 2) <= c.L_g
        assert torch.linalg.matrix_norm(there - here, 2) <= c.rho_g * torch.cat([dx, dy], -1).norm()


def test_L_phi_is_the_largest_curvature_that_was_looked_at(instance: Instance, plain: Numpy) -> None:
    evaluator, h, found = Evaluator(instance), 1e-3, []
    for t in (0.0, -2.0, 2.0, 4.0):
        x, e = t * torch.eye(plain.m)[:1], torch.eye(plain.m)
        ahead, behind = (evaluator.grad_phi(x + s * e, instance.y0.expand(plain.m, -1)) for s in (h, -h))
        found.append(float(torch.linalg.matrix_norm((ahead - behind) / (2 * h), 2)))
    assert max(found) == pytest.approx(instance.constants.L_phi, rel=1e-5)


def test_a_method_takes_the_weight_from_the_garbage() -> None:
    curve = bilevelbench.run("aid[D=20,N=20]", "source_cleaning_linear", steps=40, schedule=Schedule(ratio=8)).curve
    first, last = curve.iloc[0], curve.iloc[-1]
    assert first.garbage_weight == 0.5
    assert last.garbage_weight < 0.15
    assert last.test_loss < 0.75 * first.test_loss


# ---------------------------------------------------------------------------------------------- coupled mini-batches


def walked(lam: float, coupled: bool, lanes: int = 32, steps: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    """y - z and x after some steps of F2BSA, each lane with a seed of its own."""
    instance = built(linear(corruption=0.9))[0]
    method = F2BSA(lam=lam, K=5, eta_x=1e-6, a_y=1.0, a_z=1.0, coupled_lower=coupled)
    oracle = Oracle(instance, method.uses, seeds=range(lanes))
    with torch.no_grad():
        state = method.init(instance.x0.expand(lanes, -1), instance.y0.expand(lanes, -1), oracle)
        for step in range(steps):
            oracle.begin_step(step + 1)
            state = method.step(state, oracle)
    return state.y - state.z, state.x / 1e-6


def test_with_the_same_mini_batches_y_and_z_are_apart_by_f_alone() -> None:
    assert walked(1e12, coupled=True)[0].abs().max() < 1e-9
    assert walked(1e12, coupled=False)[0].abs().max() > 1e-2


def test_and_the_penalty_no_longer_multiplies_the_noise_of_the_lower_level() -> None:
    """At lam = 1000 the x-gradient is lost in it otherwise; both are estimates of the same."""
    coupled, apart = (walked(1000.0, coupled)[1][:, 1] for coupled in (True, False))
    assert coupled.std() < 0.3 * coupled.mean().abs()
    assert apart.std() > 10 * coupled.mean().abs()
    assert coupled.mean() < 0  # the garbage loses weight


@pytest.mark.parametrize("coupled", [True, False])
def test_with_one_time_scale_f2bsa_is_f2sa(coupled: bool) -> None:
    """Coupled or not, the same trial to the last bit: what a comparison of the two would be about is the x-step alone."""
    both = f"coupled_batches={str(coupled).lower()},coupled_lower={str(coupled).lower()}"
    weights = []
    for method in (
        f"f2bsa[lam=100.0,K=5,B_in=16,B_out=16,a_y=1.0,a_z=1.0,eta_x=0.01,{both}]",
        f"f2sa[lam=100.0,T_in=5,batch=16,a_y=1.0,a_z=1.0,{both}]",
    ):
        found = bilevelbench.run(method, "source_cleaning_linear", steps=20, schedule=Schedule(ratio=2))
        weights.append(found.curve["garbage_weight"].to_list())
    assert weights[0] == weights[1]
    assert weights[0][0] != weights[0][-1]


def test_with_one_mini_batch_pbgd_does_not_move_x_where_w_is_y() -> None:
    """g_x is then the same at both, to the last bit; with two batches lam multiplies the noise of their difference."""

    def moved(coupled: bool) -> float:
        method = f"pbgd[gam=1000.0,K=1,b=1e-300,alpha=1e-6,batch=16,coupled_batches={str(coupled).lower()}]"
        curve = bilevelbench.run(method, "source_cleaning_linear", steps=5).curve
        return abs(curve["garbage_weight"].iloc[-1] - 0.5)

    assert moved(coupled=True) == 0
    assert moved(coupled=False) > 1e-5
