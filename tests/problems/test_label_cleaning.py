"""`label_cleaning_digits` against numpy, scikit-learn and scipy, which know nothing of its derivatives."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from bilevelbench_problems import LabelCleaningDigits, LogRegDigits
from bilevelbench_problems.cross_entropy import Dense, Softmax, solve
from bilevelbench_problems.label_cleaning import Cleaned, _hess_phi, _looked_at
from plain_cleaning import PlainCleaning
from pydantic import ValidationError
from scipy.sparse.linalg import LinearOperator, cg
from scipy.special import softmax
from sklearn.linear_model import LogisticRegression
from tensors import call, check_against_differences, check_bits, close, joint_hessian, normal, some_rows

import bilevelbench
from bilevelbench import FiniteSum, Instance, Oracle
from bilevelbench.engine.evaluator import Evaluator
from bilevelbench.model.queries import QUERIES
from bilevelbench.plan.trial import Schedule

N, DX, DY = 899, 899, 640


class Numpy(PlainCleaning):
    """Its data, and products and solutions as well."""

    def __init__(self, problem: LabelCleaningDigits) -> None:
        super().__init__(problem)
        parts = problem._data()
        (self.T, self.t), self.wrong = (part.numpy() for part in parts[2]), parts[3].numpy()

    def hvp(self, x: np.ndarray, y: np.ndarray, v: np.ndarray) -> np.ndarray:
        P, U = softmax(self.A @ y.reshape(10, 64).T, axis=1), self.A @ v.reshape(10, 64).T
        bent = P * (U - np.sum(P * U, axis=1, keepdims=True)) / (1 + np.exp(-x))[:, None]
        return (bent.T @ self.A / N).ravel() + self.ridge * v

    def solve(self, x: np.ndarray) -> np.ndarray:
        """argmin of g in y: Newton's method with scipy's conjugate gradients."""
        y = np.zeros(DY)
        for _ in range(40):
            force = self.g_y(x, y)
            if np.linalg.norm(force) < 1e-14:
                break
            H = LinearOperator((DY, DY), matvec=functools.partial(self.hvp, x, y))
            y = y - cg(H, force, rtol=1e-9)[0]
        assert np.linalg.norm(self.g_y(x, y)) < 1e-12
        return y


@functools.cache
def built(problem: LabelCleaningDigits) -> tuple[Instance, Numpy]:
    return problem.build(), Numpy(problem)


@pytest.fixture
def instance() -> Instance:
    return built(LabelCleaningDigits())[0]


@pytest.fixture
def plain() -> Numpy:
    return built(LabelCleaningDigits())[1]


# ---------------------------------------------------------------------------------------------- data


def test_sizes(instance: Instance) -> None:
    assert (instance.dx, instance.dy) == (DX, DY)
    assert instance.noise == FiniteSum(n_f=449, n_g=N)
    assert (instance.x0 == 0).all()
    assert (instance.y0 == 0).all()
    assert not LabelCleaningDigits.stackable()


@pytest.mark.parametrize("corruption", [0.0, 0.1, 0.3, 0.9])
@pytest.mark.parametrize("data_seed", [0, 5])
def test_labels_of_the_mask_and_no_others_are_wrong(corruption: float, data_seed: int) -> None:
    problem = LabelCleaningDigits(corruption=corruption, data_seed=data_seed)
    (A, given), (V, v), (T, t), wrong = problem._data()
    (A_right, right), (V_right, v_right), (T_right, t_right) = LogRegDigits(data_seed=data_seed)._split()
    assert torch.equal(given != right, wrong)
    assert int(wrong.sum()) == round(corruption * N)
    for ours, theirs in ((A, A_right), (V, V_right), (v, v_right), (T, T_right), (t, t_right)):
        assert torch.equal(ours, theirs)


def test_a_wrong_label_is_any_of_the_nine_others_and_any_row_may_have_one() -> None:
    moves, where = [], []
    for data_seed in range(10):
        (_, given), *_, wrong = LabelCleaningDigits(data_seed=data_seed)._data()
        right = LogRegDigits(data_seed=data_seed)._split()[0][1]
        moves.append((given - right)[wrong] % 10)
        where.append(wrong.double())
    counts = torch.bincount(torch.cat(moves), minlength=10)[1:].double()
    expected = counts.sum() / 9
    assert ((counts - expected) ** 2 / expected).sum() < 34.6  # chi-square with 8 degrees of freedom at 3e-5
    thirds = torch.stack(where).mean(0).reshape(29, 31).mean(1)  # early and late rows alike
    assert (thirds - 0.3).abs().max() < 5 * (0.21 / 310) ** 0.5


def test_data_seed_changes_which_labels_are_wrong() -> None:
    masks = [LabelCleaningDigits(data_seed=seed)._data()[3] for seed in (0, 1)]
    assert not torch.equal(*masks)


@pytest.mark.parametrize("corruption", [-0.1, 1.0, float("nan")])
def test_corruption_is_a_share(corruption: float) -> None:
    with pytest.raises(ValidationError, match="corruption"):
        LabelCleaningDigits(corruption=corruption)


@pytest.mark.parametrize("ridge", [0.0, -1.0])
def test_lower_level_needs_a_ridge(ridge: float) -> None:
    with pytest.raises(ValidationError, match="ridge"):
        LabelCleaningDigits(ridge=ridge)


# ---------------------------------------------------------------------------------------------- functions


def test_values_and_metrics(instance: Instance, plain: Numpy) -> None:
    x, y = normal(1, DX), 3 * normal(1, DY, seed=1)
    a, b = x[0].numpy(), y[0].numpy()
    assert float(instance.value_g(x, y)) == pytest.approx(plain.g(a, b), rel=1e-12)
    assert float(instance.value_f(x, y)) == pytest.approx(plain.f(b), rel=1e-12)
    assert float(instance.metrics["test_loss"](x, y)) == pytest.approx(plain.losses(plain.T, plain.t, b).mean())
    right = (plain.T @ b.reshape(10, 64).T).argmax(1) == plain.t
    assert float(instance.metrics["test_accuracy"](x, y)) == pytest.approx(right.mean())
    called = 1 / (1 + np.exp(-a)) < 0.5
    assert float(instance.metrics["precision"](x, y)) == pytest.approx((called & plain.wrong).sum() / called.sum())
    assert float(instance.metrics["recall"](x, y)) == pytest.approx((called & plain.wrong).sum() / plain.wrong.sum())


def test_precision_and_recall_of_known_answers(instance: Instance, plain: Numpy) -> None:
    wrong, y = torch.as_tensor(plain.wrong), torch.zeros(5, DY)
    perfect = torch.where(wrong, -1.0, 1.0)
    half = perfect.clone()
    half[wrong.nonzero()[:135]] = 1.0
    x = torch.stack([perfect, -perfect, half, torch.full((N,), -2.0), torch.zeros(N)])
    precision, recall = (instance.metrics[name](x, y).flatten().tolist() for name in ("precision", "recall"))
    assert precision[:4] == pytest.approx([1, 0, 1, 270 / N])
    assert np.isnan(precision[4])  # a weight of 1/2 calls nothing wrong
    assert recall == pytest.approx([1, 0, 0.5, 1, 0])


def test_derivatives_against_differences_of_numpy(instance: Instance, plain: Numpy) -> None:
    check_against_differences(instance, plain, 2 * normal(1, DY, seed=1))


@pytest.mark.parametrize("lanes", [4, 20])
def test_wide_packs_are_worked_off_in_blocks_of_lanes(instance: Instance, lanes: int) -> None:
    """Points and lanes that do not fill the last block."""
    x, y, v = normal(lanes, DX), normal(3, lanes, DY, seed=1), normal(3, 1, DY, seed=2).expand(3, lanes, DY)
    for query in QUERIES:
        arguments = (x, y, v) if "vp" in query else (x, y)
        together = call(instance.functions[query], *arguments)
        for point in range(3):
            single = [a[point] if a.dim() == 3 else a for a in arguments]
            for lane in range(0, lanes, 3):
                alone = call(instance.functions[query], *(a[lane : lane + 1] for a in single))
                for one, all_lanes in zip(alone, together, strict=True):
                    close(all_lanes[point, lane], one[0], 1e-13)


# ---------------------------------------------------------------------------------------------- rows


def test_a_mini_batch_moves_its_own_weights_only(instance: Instance) -> None:
    x, y, v = normal(4, DX), normal(4, DY, seed=1), normal(4, DY, seed=2)
    rows = some_rows(instance, 4, 7)
    mine = torch.zeros(4, N, dtype=torch.bool).scatter(-1, rows.index, True)
    elsewhere = torch.where(mine, x, normal(4, DX, seed=3))
    for answer in (instance.grad_g_x(x, y, rows), instance.jvp_g_xy(x, y, v, rows)):
        assert torch.equal(answer != 0, mine)
    for query in QUERIES:
        arguments = (y, v) if "vp" in query else (y,)
        here = call(instance.functions[query], x, *arguments, rows)
        there = call(instance.functions[query], elsewhere, *arguments, rows)
        assert all(torch.equal(a, b) for a, b in zip(here, there, strict=True)), query


def test_blocks_of_unequal_size_make_up_the_whole_sum(instance: Instance) -> None:
    oracle = Oracle(instance, frozenset({"grad_g", "hvp_g_yy", "jvp_g_xy", "grad_f_y", "value_g"}), seeds=[0] * 4)
    x, y, v = normal(4, DX), normal(4, DY, seed=1), normal(4, DY, seed=2)
    blocks = oracle.blocks_g(100)
    assert len({xi.size for xi in blocks}) == 2
    with torch.no_grad():
        for i in (0, 1):
            close(sum(oracle.grad_g(x, y, xi)[i] for xi in blocks) / len(blocks), oracle.grad_g(x, y)[i])
        close(sum(oracle.hvp_g_yy(x, y, v, xi) for xi in blocks) / len(blocks), oracle.hvp_g_yy(x, y, v))
        close(sum(oracle.jvp_g_xy(x, y, v, xi) for xi in blocks) / len(blocks), oracle.jvp_g_xy(x, y, v))
        close(sum(oracle.value_g(x, y, xi) for xi in blocks) / len(blocks), oracle.value_g(x, y))
        blocks = oracle.blocks_f(100)
        close(sum(oracle.grad_f_y(x, y, xi) for xi in blocks) / len(blocks), oracle.grad_f_y(x, y))


def test_a_mini_batch_is_charged_its_rows_and_an_exact_call_all(instance: Instance) -> None:
    oracle = Oracle(instance, frozenset(QUERIES), seeds=range(4))
    x, y = normal(4, DX), normal(4, DY, seed=1)
    with torch.no_grad():
        oracle.grad_g_y(x, y, oracle.sample_g(32))
        oracle.grad_f_y(x, y, oracle.sample_f(16))
        assert oracle.meter.columns()["cost"].tolist() == [48] * 4
        oracle.grad_g_y(x, y)
        oracle.grad_f_y(x, y)
    assert oracle.meter.columns()["cost"].tolist() == [48 + N + 449] * 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bits_do_not_depend_on_the_pack(dtype: torch.dtype) -> None:
    """Nor on the blocks in which a wide pack is worked off."""
    torch.set_default_dtype(dtype)
    instance = LabelCleaningDigits().build()
    check_bits(instance, scale=3.0)
    for B in (1, 7, 32):
        check_bits(instance, some_rows(instance, 36, B))


def test_float32_sees_the_same_data(instance: Instance) -> None:
    torch.set_default_dtype(torch.float32)
    single = LabelCleaningDigits().build()
    x, y = normal(4, DX), normal(4, DY, seed=1)
    rows = some_rows(single, 4, 9)
    assert single.constants.given == instance.constants.given
    for extra in ((), (rows,)):
        for query in ("grad_g_y", "grad_g_x", "grad_f_y", "value_g"):
            answer = single.functions[query](x, y, *extra)
            assert answer.dtype == torch.float32
            exact = instance.functions[query](x.double(), y.double(), *extra)
            torch.testing.assert_close(answer.double(), exact, rtol=1e-4, atol=1e-5)
    for metric in single.metrics.values():
        assert metric(x, y).dtype == torch.float32


# ---------------------------------------------------------------------------------------------- levels


@pytest.mark.parametrize("t", [0.0, 2.0])
def test_the_lower_level_is_that_of_scikit_learn(instance: Instance, plain: Numpy, t: float) -> None:
    """n g is its loss with sample weights and C = 1/(n ridge)."""
    x = t * normal(1, DX)
    weights = 1 / (1 + np.exp(-x[0].numpy()))
    model = LogisticRegression(C=1 / (N * 1e-3), fit_intercept=False, solver="newton-cg", tol=1e-9, max_iter=10000)
    theirs = torch.as_tensor(model.fit(plain.A, plain.b, sample_weight=weights).coef_).reshape(1, -1)
    with torch.no_grad():
        ours = Evaluator(instance)._solve_lower(x, instance.y0)
    assert instance.grad_g_y(x, ours).norm() < 1e-10
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-4)


def test_the_hypergradient_is_the_slope_of_phi(instance: Instance, plain: Numpy) -> None:
    """Central differences of φ, with y* by scipy, along the hypergradient and another direction."""
    evaluator = Evaluator(instance)
    assert evaluator.certificate == "estimated"
    x = normal(1, DX)

    def phi(at: torch.Tensor) -> float:
        return plain.f(plain.solve(at[0].numpy()))

    assert float(evaluator(x, instance.y0).phi) == pytest.approx(phi(x), abs=1e-9)
    grad_phi, h = evaluator.grad_phi(x, instance.y0), 0.05
    other = normal(1, DX, seed=10)
    for d in (grad_phi / grad_phi.norm(), other / other.norm()):
        slope = (phi(x + h * d) - phi(x - h * d)) / (2 * h)
        assert slope == pytest.approx(float((grad_phi * d).sum()), abs=1e-5 * float(grad_phi.norm()))


def test_a_method_finds_the_wrong_labels() -> None:
    curve = bilevelbench.run("aid[D=10,N=10]", "label_cleaning_digits", steps=26, schedule=Schedule(ratio=8)).curve
    first, last = curve.iloc[0], curve.iloc[-1]
    assert first.recall == 0
    assert last.precision > 0.9
    assert last.recall > 0.8
    assert last.phi < 0.65 * first.phi
    assert last.test_accuracy > 0.9


def test_far_out_where_phi_is_flat_a_point_counts_for_nothing(instance: Instance) -> None:
    x = torch.zeros(4, DX)
    x[0], x[1, 5] = 19.9, -20.1
    seen = Evaluator(instance)(x, instance.y0.expand(4, -1))
    assert seen.grad_phi.isnan().flatten().tolist() == [False, True, False, False]


# ---------------------------------------------------------------------------------------------- constants


def test_kinds_of_the_constants(instance: Instance) -> None:
    kinds = {name: constant.kind for name, constant in instance.constants.given.items()}
    assert {name for name, kind in kinds.items() if kind == "estimated"} == {"L_g", "rho_g", "L_phi"}
    assert {name for name, kind in kinds.items() if kind == "exact"} == {"mu", "R", "n_f", "n_g"}
    assert instance.constants.L_gy <= instance.constants.L_g


def test_bounds_hold_everywhere(instance: Instance) -> None:
    c = instance.constants
    x = 4 * normal(60, 1, DX, seed=2)
    size = torch.logspace(-1, 2, 60).reshape(-1, 1, 1)
    y1, v = size * normal(60, 1, DY), normal(60, 1, DY, seed=1)
    y2 = y1 + torch.logspace(-2, 1, 60).flip(0).reshape(-1, 1, 1) * v
    distance = (y2 - y1).norm(dim=-1)
    assert (instance.grad_f_y(x, y1).norm(dim=-1) <= c.C_f).all()
    assert ((instance.grad_f_y(x, y2) - instance.grad_f_y(x, y1)).norm(dim=-1) <= c.L_f * distance).all()
    pull = instance.grad_g_y(x, y2) - instance.grad_g_y(x, y1)
    assert (pull.norm(dim=-1) <= c.L_gy * distance).all()
    assert ((pull * (y2 - y1)).sum(-1) >= c.mu * distance**2 * (1 - 1e-9)).all()
    direction = v / v.norm(dim=-1, keepdim=True)
    _, first = torch.autograd.functional.jvp(lambda y: instance.grad_f_y(x, y), y1, direction, create_graph=True)
    ahead = torch.autograd.functional.jvp(lambda y: instance.grad_f_y(x, y), y2, direction)[1]
    assert ((ahead - first).norm(dim=-1) <= c.rho_f * distance + 1e-12).all()


def test_mu_is_attained_and_L_gy_nearly(instance: Instance, plain: Numpy) -> None:
    c = instance.constants
    same = normal(1, 64).repeat(1, 10)
    close(instance.hvp_g_yy(normal(1, DX), normal(1, DY, seed=1), same), c.mu * same, 1e-12)
    top = torch.linalg.svd(torch.as_tensor(plain.A)).Vh[0]
    y = torch.full((10, 64), -100.0)  # two classes share everything: pixels are not negative
    y[:2] = 0
    v = torch.zeros(10, 64)
    v[0], v[1] = top, -top
    x = torch.full((1, DX), 30.0)
    stretch = instance.hvp_g_yy(x, y.reshape(1, -1), v.reshape(1, -1)).norm() / v.norm()
    assert float(stretch) == pytest.approx(c.L_gy, rel=1e-6)


def test_L_g_and_rho_g_hold_where_y_star_can_be(plain: Numpy) -> None:
    """The joint Hessian and its changes, on a part of the coordinates of x and y, at points of the ball."""
    problem = LabelCleaningDigits()
    instance = built(problem)[0]
    radius = (2 * np.log(10) / problem.ridge) ** 0.5
    assert np.linalg.norm(plain.solve(np.full(N, 5.0))) < radius

    def hessian(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """In 40 coordinates of x and 50 of y: a compression, whose norm is at most that of the whole."""
        free_x, free_y = torch.zeros(DX), torch.zeros(DY)

        def g(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            u = free_x.index_add(0, torch.arange(0, 880, 22), a.flatten())
            w = free_y.index_add(0, torch.arange(0, 600, 12), b.flatten())
            return instance.value_g(x + u, y + w)

        return joint_hessian(g, torch.zeros(1, 40), torch.zeros(1, 50))

    for seed in range(5):
        x, y = 2 * normal(1, DX, seed=seed), normal(1, DY, seed=seed + 50)
        y = y * (radius * (seed + 1) / 5 / y.norm())
        dx, dy = normal(1, DX, seed=seed + 100), normal(1, DY, seed=seed + 150)
        here, there = hessian(x, y), hessian(x + 0.1 * dx, y - 0.01 * dy)
        distance = float(torch.cat([0.1 * dx, 0.01 * dy], -1).norm())
        assert torch.linalg.matrix_norm(here, 2) <= instance.constants.L_g
        assert torch.linalg.matrix_norm(there - here, 2) <= instance.constants.rho_g * distance


@pytest.mark.whole
def test_curvature_of_phi_and_its_maximum() -> None:
    """∇²φ at the four points: its columns along the steepest direction and another against differences of ∇φ."""
    problem, h = LabelCleaningDigits(ridge=0.01), 1e-2
    instance = built(problem)[0]
    (A, b), clean, _, wrong = problem._data()
    val, evaluator, found = Dense(Softmax(10), *clean), Evaluator(instance), []
    for x in _looked_at(wrong):
        train = Cleaned(Softmax(10), A, b, 1 / (1 + torch.exp(-x)))
        y, H = solve(train, torch.full((DY,), problem.ridge), torch.zeros(DY))
        assert instance.grad_g_y(x[None], y[None]).norm() < 1e-11
        hessian = _hess_phi(train, val, y, H)
        values, vectors = torch.linalg.eigh(hessian)
        d = torch.stack([vectors[:, values.abs().argmax()], normal(DX) / N**0.5])
        ahead, behind = (evaluator.grad_phi(x + s * d, y.expand(2, -1)) for s in (h, -h))
        close((ahead - behind) / (2 * h) / values.abs().max(), d @ hessian / values.abs().max(), 1e-5)
        found.append(float(values.abs().max()))
    assert max(found) == pytest.approx(instance.constants.L_phi, rel=1e-9)


def test_delta_and_R_are_those_of_the_start(instance: Instance, plain: Numpy) -> None:
    y = plain.solve(np.zeros(N))
    assert instance.constants.Delta == pytest.approx(plain.f(y), rel=1e-7)
    assert instance.constants["R"] == pytest.approx(y @ y, rel=1e-6)
