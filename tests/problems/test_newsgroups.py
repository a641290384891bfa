"""`newsgroups` and `newsgroups_synthetic` against scipy, scikit-learn and dense matrices, which know nothing of them.

The real posts are looked at where BILEVELBENCH_DATA names a folder that holds their counts.
"""

from __future__ import annotations

import functools
import hashlib
import os
import zipfile
from pathlib import Path

import numpy as np
import pytest
import sklearn.datasets
import torch
from bilevelbench_problems import Newsgroups, NewsgroupsSynthetic, newsgroups, refit
from bilevelbench_problems.csr import CSR
from bilevelbench_problems.newsgroups import Posts, _prepared
from bilevelbench_problems.refit import Refit
from helpers import assert_conforms
from pydantic import ValidationError
from scipy.optimize import minimize
from scipy.sparse import csr_matrix, random_array
from scipy.special import log_softmax, softmax
from sklearn.feature_extraction.text import TfidfTransformer
from sklearn.linear_model import LogisticRegression
from tensors import check_against_differences, check_bits, close, normal

import bilevelbench
from bilevelbench import InvalidInput
from bilevelbench.engine.evaluator import Evaluator
from bilevelbench.plan.trial import Schedule
from bilevelbench.testing.checks.stacking import check_points
from bilevelbench.testing.points import first_difference

P, C = 40, 4
TINY = NewsgroupsSynthetic(documents=300, p=P, classes=C, length=12, reg_scale=0.01, pretrain=20, topical=0.3)


@pytest.fixture(scope="module")
def _built():
    """In float64, also for the data that are kept."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    instance = TINY.build()
    torch.set_default_dtype(before)
    return instance


@pytest.fixture
def instance(_built):
    return _built


class Numpy:
    """f, g and g_y with dense matrices, for one point."""

    def __init__(self, problem: NewsgroupsSynthetic) -> None:
        parts, self.classes = _prepared(problem)
        (self.A, self.b), (self.V, self.v), (self.T, self.t), (self.S, self.s) = ((A.toarray(), b) for A, b in parts)
        self.reg = problem.reg_scale

    def loss(self, A: np.ndarray, b: np.ndarray, y: np.ndarray) -> float:
        Z = A @ y.reshape(-1, self.classes)
        return float(-log_softmax(Z, axis=1)[np.arange(len(b)), b].mean())

    def f(self, y: np.ndarray) -> float:
        return self.loss(self.V, self.v, y)

    def g(self, x: np.ndarray, y: np.ndarray) -> float:
        Y = y.reshape(-1, self.classes)
        return self.loss(self.A, self.b, y) + 0.5 * self.reg * float((np.exp(x)[:, None] * Y**2).sum())

    def g_y(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        Y = y.reshape(-1, self.classes)
        R = softmax(self.A @ Y, axis=1)
        R[np.arange(len(self.b)), self.b] -= 1
        return (self.A.T @ R / len(self.b) + self.reg * np.exp(x)[:, None] * Y).ravel()


@pytest.fixture(scope="module")
def plain() -> Numpy:
    return Numpy(TINY)


# ---------------------------------------------------------------------------------------------- sparse products


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sparse_products(dtype: torch.dtype) -> None:
    """Over any leading axes, with empty rows and columns."""
    rng = np.random.default_rng(0)
    matrix = csr_matrix(random_array((30, 50), density=0.05, rng=rng))
    assert (matrix.getnnz(1) == 0).any()
    assert (matrix.getnnz(0) == 0).any()
    A, dense = CSR(matrix, dtype), torch.from_numpy(matrix.toarray()).to(dtype)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-14
    for points in ((), (1,), (3,), (2, 3)):
        Y, R = normal(*points, 50, 7).to(dtype), normal(*points, 30, 7, seed=1).to(dtype)
        close(A @ Y, dense @ Y, tolerance)
        close(A.T @ R, dense.T @ R, tolerance)
        close(A.T.T @ Y, dense @ Y, tolerance)
        assert (A @ Y).dtype == dtype


def test_sparse_products_take_views_of_a_flat_vector() -> None:
    matrix = csr_matrix(random_array((30, 50), density=0.1, rng=np.random.default_rng(0)))
    A, dense = CSR(matrix, torch.float64), torch.from_numpy(matrix.toarray())
    y = normal(1, 350)
    close(A @ y.expand(3, -1).unflatten(-1, (50, 7)), (dense @ y.reshape(50, 7)).expand(3, -1, -1), 1e-14)
    close(A @ normal(7, 50).T, dense @ normal(7, 50).T, 1e-14)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bits_of_sparse_products_do_not_depend_on_threads(dtype: torch.dtype) -> None:
    """A row is summed by one thread in the order of its entries, whoever else is at work."""
    matrix = csr_matrix(random_array((3000, 2000), density=0.02, rng=np.random.default_rng(0)))
    A, Y, R = CSR(matrix, dtype), normal(2000, 20).to(dtype), normal(3000, 20, seed=1).to(dtype)
    before, seen = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            seen.append((A @ Y, A.T @ R))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(a, b) for others in seen[1:] for a, b in zip(seen[0], others, strict=True))


def test_sparse_products_can_be_differentiated_twice() -> None:
    A = CSR(csr_matrix(random_array((6, 5), density=0.4, rng=np.random.default_rng(0))), torch.float64)
    Y = normal(2, 5, 3).requires_grad_(True)
    assert torch.autograd.gradcheck(lambda Y: A @ Y, (Y,))
    assert torch.autograd.gradgradcheck(lambda Y: (A @ Y).exp(), (Y,))


# ---------------------------------------------------------------------------------------------- derivatives


def test_conformance() -> None:
    assert_conforms(TINY)


class Stacked(NewsgroupsSynthetic):
    """As if it promised to take points at once: its functions can, although one by one is faster."""

    def build(self):
        instance = super().build()
        instance.points = "stack"
        return instance


def test_functions_take_points_at_once() -> None:
    check_points(Stacked(**dict(TINY)))


def test_functions_and_metrics_against_numpy(instance, plain: Numpy) -> None:
    x, y = normal(1, P), 3 * normal(1, P * C, seed=1)
    a, b = x[0].numpy(), y[0].numpy()
    assert float(instance.value_f(x, y)) == pytest.approx(plain.f(b), rel=1e-12)
    assert float(instance.value_g(x, y)) == pytest.approx(plain.g(a, b), rel=1e-12)
    close(instance.grad_g_y(x, y)[0], torch.from_numpy(plain.g_y(a, b)), 1e-13)
    for metric, value in {
        "val_loss": plain.f(b),
        "test_loss": plain.loss(plain.T, plain.t, b),
        "selection_loss": plain.loss(plain.S, plain.s, b),
        "test_accuracy": float(((plain.T @ b.reshape(P, C)).argmax(1) == plain.t).mean()),
    }.items():
        assert float(instance.metrics[metric](x, y)) == pytest.approx(value, rel=1e-12), metric


def test_derivatives_against_differences_of_numpy(instance, plain: Numpy) -> None:
    check_against_differences(instance, plain, 2 * normal(1, P * C, seed=1))


def test_arguments_are_left_alone(instance) -> None:
    """A sum in place would be wrong if it met an argument."""
    arguments = normal(2, P), normal(2, P * C, seed=1), normal(2, P * C, seed=2)
    copies = [a.clone() for a in arguments]
    for query, function in instance.functions.items():
        first = function(*(arguments if "vp" in query else arguments[:2]))
        again = function(*(arguments if "vp" in query else arguments[:2]))
        pairs = zip(first, again, strict=True) if isinstance(first, tuple) else [(first, again)]
        assert all(torch.equal(a, b) for a, b in pairs)
    assert all(torch.equal(a, b) for a, b in zip(arguments, copies, strict=True))


def test_products_with_a_hessian_follow_y_when_it_changes_in_place(instance) -> None:
    """What is remembered of y is forgotten with it."""
    x, y, v = normal(1, P), normal(1, P * C, seed=1), normal(1, P * C, seed=2)
    for change in (lambda: y.mul_(2), lambda: y[:, :5].zero_(), lambda: y.copy_(v)):
        instance.hvp_g_yy(x, y, v)
        change()
        assert torch.equal(instance.hvp_g_yy(x, y, v), instance.hvp_g_yy(x, y.clone(), v))
        assert torch.equal(instance.hvp_g_yy(x, y, v), instance.hvp_g_yy(x, y, v))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bits_do_not_depend_on_the_pack(dtype: torch.dtype) -> None:
    torch.set_default_dtype(dtype)
    check_bits(TINY.build())


def test_float32_sees_the_same_data_and_the_same_start(instance) -> None:
    torch.set_default_dtype(torch.float32)
    single = TINY.build()
    assert single.y0.dtype == torch.float32
    assert torch.equal(single.y0.double(), instance.y0)
    assert single.constants.given == instance.constants.given
    x, y = normal(4, P), normal(4, P * C, seed=1)
    for query in ("grad_g_y", "grad_g_x", "grad_f_y", "value_g"):
        answer = single.functions[query](x, y)
        assert answer.dtype == torch.float32
        torch.testing.assert_close(
            answer.double(), instance.functions[query](x.double(), y.double()), rtol=1e-4, atol=1e-6
        )
    assert all(metric(x, y).dtype == torch.float32 for metric in single.metrics.values())


# ---------------------------------------------------------------------------------------------- levels


@pytest.mark.parametrize("scale", [0.0, 1.5])
def test_the_lower_level_is_that_of_scikit_learn(instance, plain: Numpy, scale: float) -> None:
    """With B_j = √w_j Y_j for the regulariser w_j of word j, n g is its loss of A_j/√w_j with C = 1."""
    x = scale * normal(1, P)
    root = np.sqrt(plain.reg * np.exp(x[0].numpy()))
    model = LogisticRegression(C=1 / len(plain.b), fit_intercept=False, solver="newton-cg", tol=1e-10, max_iter=10000)
    theirs = model.fit(plain.A / root, plain.b).coef_.T / root[:, None]
    with torch.no_grad():
        ours = Evaluator(instance)._solve_lower(x, instance.y0)
    assert np.linalg.norm(plain.g_y(x[0].numpy(), ours[0].numpy())) < 1e-10
    torch.testing.assert_close(ours.reshape(P, C), torch.from_numpy(theirs), rtol=0, atol=1e-5)


def test_the_hypergradient_is_the_slope_of_phi(instance) -> None:
    evaluator, x, h = Evaluator(instance), normal(1, P), 1e-3
    grad_phi = evaluator.grad_phi(x, instance.y0)
    for seed in (3, 4):
        d = normal(1, P, seed=seed)
        ahead, behind = (evaluator(x + s * h * d, instance.y0).phi for s in (1, -1))
        assert float((ahead - behind) / (2 * h)) == pytest.approx(float((grad_phi * d).sum()), rel=1e-5)


def test_a_method_lowers_phi_and_the_selection_loss() -> None:
    """F2BA with default steps, which come from the constants."""
    results = bilevelbench.run("f2ba[lam=100]", TINY, steps=100, schedule=Schedule(ratio=30))
    first, last = results.curve.iloc[0], results.curve.iloc[-1]
    assert (results.runs.status == "budget").all()
    assert last.phi < first.phi
    assert last.grad_phi < first.grad_phi
    assert {"val_loss", "test_loss", "test_accuracy", "selection_loss"} <= set(results.curve.columns)


# ---------------------------------------------------------------------------------------------- the start


def test_the_start_is_the_best_of_plain_descent(instance, plain: Numpy) -> None:
    Y, seen = np.zeros((P, C)), []
    for _ in range(TINY.pretrain):
        R = softmax(plain.A @ Y, axis=1)
        R[np.arange(len(plain.b)), plain.b] -= 1
        Y = Y - 100 * plain.A.T @ R / len(plain.b)
        seen.append((plain.loss(plain.S, plain.s, Y), Y))
    best = min(seen, key=lambda pair: pair[0])[1]
    close(instance.y0, torch.from_numpy(best).reshape(1, -1), 1e-4)
    assert (instance.x0 == 0).all()


def test_without_pretraining_y0_is_zero() -> None:
    instance = TINY.model_copy(update={"pretrain": 0}).build()
    assert instance.y0.shape == (1, P * C)
    assert (instance.y0 == 0).all()
    assert instance.constants.L_phi > 0


def test_the_default_regulariser_is_half_a_mean_over_all_entries() -> None:
    instance = NewsgroupsSynthetic(documents=300, p=P, classes=C, length=12, pretrain=2).build()
    x, y = normal(1, P), normal(1, P * C, seed=1)
    none = torch.full_like(x, -torch.inf)
    mean = (x.exp().T * y.reshape(P, C).square()).mean()
    close((instance.value_g(x, y) - instance.value_g(none, y)).squeeze(), 0.5 * mean, 1e-12)


# ---------------------------------------------------------------------------------------------- constants


def test_kinds_of_the_constants(instance) -> None:
    kinds = {name: c.kind for name, c in instance.constants.given.items() if not name.startswith("sigma")}
    assert {name for name, kind in kinds.items() if kind == "bound"} == {"C_f", "L_f", "rho_f"}
    assert {name for name, kind in kinds.items() if kind == "estimated"} == kinds.keys() - {"C_f", "L_f", "rho_f"}
    assert instance.points == "loop"
    assert (Newsgroups.embedded, NewsgroupsSynthetic.embedded, Newsgroups.max_lanes) == (False, False, 1)


def test_bounds_hold_everywhere_and_those_at_x0_there(instance) -> None:
    c = instance.constants
    x = torch.zeros(60, 1, P)
    size = torch.logspace(-1, 2, 60).reshape(-1, 1, 1)
    y1, v = size * normal(60, 1, P * C), normal(60, 1, P * C, seed=1)
    y2 = y1 + torch.logspace(-2, 1, 60).flip(0).reshape(-1, 1, 1) * v
    distance = (y2 - y1).norm(dim=-1)
    assert (instance.grad_f_y(x, y1).norm(dim=-1) <= c.C_f).all()
    assert ((instance.grad_f_y(x, y2) - instance.grad_f_y(x, y1)).norm(dim=-1) <= c.L_f * distance).all()
    pull = instance.grad_g_y(x, y2) - instance.grad_g_y(x, y1)
    assert (pull.norm(dim=-1) <= c.L_gy * distance).all()
    assert ((pull * (y2 - y1)).sum(-1) >= c.mu * distance**2 * (1 - 1e-9)).all()


def test_largest_eigenvalues(instance, plain: Numpy) -> None:
    c = instance.constants
    top, top_val = (np.linalg.norm(A, 2) ** 2 / len(A) for A in (plain.A, plain.V))
    assert c.L_gy == pytest.approx(top / 2 + plain.reg, rel=1e-7)
    assert c.L_f == pytest.approx(top_val / 2, rel=1e-7)
    assert c.C_f == pytest.approx(np.sqrt(2 * top_val), rel=1e-7)
    assert c.L_f >= top_val / 2
    assert instance.constants.Delta == pytest.approx(plain.f(instance.y0[0].numpy()), rel=1e-5)


def test_L_phi_is_what_it_says(instance) -> None:
    """∇²φ by autograd, of the φ whose lower Hessian is its diagonal: the derivatives of f and g are dense here."""
    y, reg, n = instance.y0[0], TINY.reg_scale, P * C
    x = torch.zeros(P)

    def g(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return instance._raw["value_g"](x[None], y[None]).squeeze()

    def g_y(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.autograd.functional.jacobian(lambda y: g(x, y), y, create_graph=True)

    jacobian = torch.autograd.functional.jacobian
    H = jacobian(lambda y: g_y(x, y), y).diagonal()
    J = jacobian(lambda x: g_y(x, y), x)  # (p C, p)
    v = jacobian(lambda y: instance._raw["value_f"](x[None], y[None]).squeeze(), y) / H
    f_yy = torch.autograd.functional.hessian(lambda y: instance._raw["value_f"](x[None], y[None]).squeeze(), y)
    bent = torch.autograd.functional.hessian(
        lambda z: (v * g_y(z[:P], z[P:])).sum(), torch.cat([x, y])
    )  # second derivatives of v·g_y in (x, y)
    M = torch.cat([torch.eye(P), -J / H[:, None]])  # d(x, y)/dx
    total = torch.zeros(P + n, P + n)
    total[P:, P:] = f_yy
    hessian = M.T @ (total - bent) @ M
    assert instance.constants.L_phi == pytest.approx(float(torch.linalg.eigvalsh(hessian).abs().max()), rel=0.02)
    assert instance.constants.mu == reg


# ---------------------------------------------------------------------------------------------- data


def shares(labels: np.ndarray, classes: int) -> np.ndarray:
    return np.bincount(labels, minlength=classes)


@pytest.mark.parametrize("data_seed", [0, 1, 7])
def test_halves_are_equal_as_a_whole_and_class_by_class(data_seed: int) -> None:
    problem = TINY.model_copy(update={"documents": 303, "data_seed": data_seed})
    posts, classes = problem._posts()
    parts, _ = _prepared(problem)
    n = posts.n_train
    for (A, a), (_, b), whole in (
        (*parts[:2], posts.labels[:n]),
        (*parts[2:], posts.labels[n:]),
    ):
        assert A.shape[0] == len(a)
        assert len(a) - len(b) in (0, 1)
        assert np.array_equal(shares(a, classes) + shares(b, classes), shares(whole, classes))
        assert np.abs(shares(a, classes) - shares(b, classes)).max() <= 1


def dense_counts(posts: Posts) -> np.ndarray:
    """The words of most training posts first, and of as many in their old order."""
    counts = posts.counts.toarray().astype(float)
    in_posts = (counts[: posts.n_train] > 0).sum(0).tolist()
    return counts[:, sorted(range(counts.shape[1]), key=lambda j: (-in_posts[j], j))]


def test_parts_are_the_rows_of_the_posts_and_no_row_is_in_two() -> None:
    posts, _ = TINY._posts()
    parts, _ = _prepared(TINY)
    counts = dense_counts(posts)
    unit = counts / np.maximum(np.linalg.norm(counts, axis=1, keepdims=True), 1e-300)

    def keys(A: np.ndarray, b: np.ndarray) -> list[tuple]:
        return sorted((*map(float, row), int(label)) for row, label in zip(A.round(12), b, strict=True))

    n = posts.n_train
    for pair, rows in ((parts[:2], slice(None, n)), (parts[2:], slice(n, None))):
        together = [np.concatenate([half[0].toarray() for half in pair]), np.concatenate([half[1] for half in pair])]
        assert keys(*together) == keys(unit[rows], posts.labels[rows])


def test_data_seeds_differ_and_builds_agree() -> None:
    other = TINY.model_copy(update={"data_seed": 1})
    assert not torch.equal(other.build().y0, TINY.build().y0)
    one = TINY.build()
    before = torch.get_rng_state()
    _prepared.cache_clear()
    newsgroups._start.cache_clear()
    assert not first_difference(one, TINY.build())
    assert torch.equal(before, torch.get_rng_state())


def test_tfidf_is_that_of_scikit_learn() -> None:
    """Document frequencies are those of the training part, none of the test part."""
    problem = TINY.model_copy(update={"features": "tfidf"})
    posts, _ = problem._posts()
    counts, n = dense_counts(posts), posts.n_train
    idf = np.log((1 + n) / (1 + (counts[:n] > 0).sum(0))) + 1
    weighted = counts * idf
    unit = weighted / np.maximum(np.linalg.norm(weighted, axis=1, keepdims=True), 1e-300)
    close(torch.from_numpy(TfidfTransformer().fit(counts[:n]).transform(counts).toarray()), torch.from_numpy(unit))
    for (A, _), rows in zip(_prepared(problem)[0], (slice(None, n),) * 2 + (slice(n, None),) * 2, strict=True):
        distance = np.abs(A.toarray()[:, None, :] - unit[None, rows, :]).max(-1).min(1)
        assert distance.max() < 1e-12


def test_synthetic_posts_have_the_size_and_sparsity_of_the_real_ones() -> None:
    problem = NewsgroupsSynthetic()
    posts, classes = problem._posts()
    assert posts.counts.shape == (18_846, 101_631)
    assert (posts.n_train, classes) == (11_314, 20)
    assert posts.counts.nnz == pytest.approx(1_769_365, rel=0.05)
    assert posts.counts.has_canonical_format
    frequencies = np.sort(np.asarray((posts.counts > 0).sum(0)).ravel())[::-1]
    ranks = np.array([10, 100, 1000, 10_000])
    slope = np.polyfit(np.log(ranks), np.log(frequencies[ranks]), 1)[0]
    assert -1.1 < slope < -0.7, "Zipf's law"


def test_synthetic_classes_can_be_told_apart_only_by_their_own_words() -> None:
    told = {}
    for topical in (0.0, 0.9):
        parts, _ = _prepared(TINY.model_copy(update={"topical": topical, "documents": 1000, "length": 100}))
        model = LogisticRegression(C=10, max_iter=1000).fit(*parts[0])
        told[topical] = model.score(*parts[2])
    assert told[0.0] < 0.4
    assert told[0.9] > 0.8


def test_parameters_out_of_range_are_refused() -> None:
    for wrong in ({"classes": 1}, {"documents": 3}, {"topical": 1.5}, {"reg_scale": 0.0}, {"features": "bm25"}):
        with pytest.raises(ValidationError):
            NewsgroupsSynthetic(**wrong)
    with pytest.raises(ValidationError):
        Newsgroups(p=1000)


# ---------------------------------------------------------------------------------------------- files


def small_posts() -> Posts:
    counts = csr_matrix(np.array([[0, 2, 0], [300, 0, 1], [0, 0, 0], [1, 1, 1]]))
    return Posts(counts, np.array([3, 0, 1, 19]), 2)


def published(posts: Posts, path: Path) -> Path:
    """In the layout of the published count matrices."""
    m = posts.counts.tocsc()
    gaps = np.concatenate([np.diff(m.indices[a:b], prepend=0) for a, b in zip(m.indptr, m.indptr[1:], strict=False)])
    arrays = {
        "row_gap_lo": gaps % 256, "row_gap_hi": gaps // 256, "count_lo": m.data % 256, "count_hi": m.data // 256,
        "target": posts.labels,
    }  # fmt: skip
    arrays = {name: array.astype(np.uint8) for name, array in arrays.items()}
    sizes = {"doc_freq": np.diff(m.indptr).astype(np.uint16), "n_train": np.int32(posts.n_train)}
    np.savez_compressed(path, **arrays, **sizes, shape=np.array(m.shape, np.int32), vocabulary=np.zeros(5, np.uint8))
    return path


@pytest.fixture
def small_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """`newsgroups` with four posts of three words, an empty cache, and no other data."""
    sha256 = hashlib.sha256(small_posts().pack()).hexdigest()
    file = newsgroups._file(101_631, sha256, ("headers",))
    monkeypatch.setitem(newsgroups._FILES, 101_631, file)
    monkeypatch.setenv("BILEVELBENCH_DATA", str(tmp_path))
    monkeypatch.setenv("BILEVELBENCH_CACHE", str(tmp_path / "cache"))
    (tmp_path / "20news").mkdir()
    return file, tmp_path / file.path


def same_posts(one: Posts, other: Posts) -> None:
    assert (one.counts != other.counts).nnz == 0
    assert one.counts.shape == other.counts.shape
    assert np.array_equal(one.labels, other.labels)
    assert one.n_train == other.n_train


def test_published_counts_are_read(small_file) -> None:
    published(small_posts(), small_file[1])
    same_posts(Newsgroups()._posts()[0], small_posts())


def test_damaged_counts_are_refused(small_file) -> None:
    file, path = small_file
    whole = published(small_posts(), path).read_bytes()
    for cut in (len(whole) - 1, len(whole) // 2, 10, 0):
        path.write_bytes(whole[:cut])
        with pytest.raises(InvalidInput, match=r"20news_counts_p101631.npz is damaged"):
            Newsgroups()._posts()
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("row_gap_lo.npy", b"no array")
    with pytest.raises(InvalidInput, match="damaged"):
        Newsgroups()._posts()
    other = small_posts()
    other.labels[0] = 4
    published(other, path)
    with pytest.raises(InvalidInput, match=f"damaged or something else.*{file.sha256}"):
        Newsgroups()._posts()


def test_what_scikit_learn_fetches_is_packed_checked_and_kept(small_file, monkeypatch: pytest.MonkeyPatch) -> None:
    posts, asked = small_posts(), []

    def fetch(subset, remove, data_home, normalize, return_X_y):
        asked.append((remove, normalize, return_X_y))
        Path(data_home, "some.pkl").write_bytes(b"a pickle")
        rows = slice(None, posts.n_train) if subset == "train" else slice(None)
        return posts.counts[rows].astype(np.int16), posts.labels[rows]

    monkeypatch.setattr(sklearn.datasets, "fetch_20newsgroups_vectorized", fetch)
    same_posts(Newsgroups()._posts()[0], posts)
    assert set(asked) == {(("headers",), False, True)}
    assert small_file[0].locate().place == "cache"
    assert not list(small_file[1].parent.parent.rglob("*.pkl"))
    monkeypatch.delattr(sklearn.datasets, "fetch_20newsgroups_vectorized")
    same_posts(Newsgroups()._posts()[0], posts)


def test_a_fetch_that_brings_something_else_is_refused(small_file, monkeypatch: pytest.MonkeyPatch) -> None:
    def fetch(subset, **_):
        return csr_matrix(np.ones((3, 3), int)), np.zeros(3, int)

    monkeypatch.setattr(sklearn.datasets, "fetch_20newsgroups_vectorized", fetch)
    with pytest.raises(InvalidInput, match="what the network sent is damaged or something else"):
        Newsgroups()._posts()
    assert small_file[0].locate() is None


def test_without_data_and_network_the_five_places_are_named(small_file, monkeypatch: pytest.MonkeyPatch) -> None:
    def fetch(**_):
        raise OSError("Name or service not known")

    monkeypatch.setattr(sklearn.datasets, "fetch_20newsgroups_vectorized", fetch)
    with pytest.raises(InvalidInput, match=r"six places: .*BILEVELBENCH_DATA.*bundled.*package.*cache.*network failed"):
        Newsgroups().build()
    row = bilevelbench.run("f2ba", "newsgroups", steps=1).runs.iloc[0]
    assert row.status == "error"
    assert "six places" in row.message


# ---------------------------------------------------------------------------------------------- the real posts

#: p, entries, those of the training part, sum, posts without a word in the training and the test part
KNOWN = [(101_631, 1_769_365, 1_103_627, 3_400_387, 311, 224), (130_107, 2_895_521, 1_787_565, 5_397_794, 0, 0)]


def real(p: int) -> Newsgroups:
    folder = os.environ.get("BILEVELBENCH_DATA")
    if not folder:
        pytest.skip("BILEVELBENCH_DATA is not set: the real posts are not looked at")
    if newsgroups._FILES[p]._below(Path(folder)) is None:
        pytest.skip(f"BILEVELBENCH_DATA ({folder}) does not hold {newsgroups._FILES[p].path}")
    return Newsgroups(p=p, pretrain=0)


@pytest.mark.parametrize(("p", "entries", "in_training", "total", "empty_train", "empty_test"), KNOWN)
def test_real_posts(p: int, entries: int, in_training: int, total: int, empty_train: int, empty_test: int) -> None:
    problem = real(p)
    posts, _ = problem._posts()
    counts, n = posts.counts, posts.n_train
    assert counts.shape == (18_846, p)
    assert (n, counts.nnz, counts[:n].nnz, int(counts.sum())) == (11_314, entries, in_training, total)
    assert [int((part.getnnz(1) == 0).sum()) for part in (counts[:n], counts[n:])] == [empty_train, empty_test]
    assert np.bincount(posts.labels[:n]).tolist()[:5] == [480, 584, 591, 590, 578]
    parts, classes = _prepared(problem)
    assert (classes, [A.shape[0] for A, _ in parts]) == (20, [5657, 5657, 3766, 3766])
    for A, b in parts:
        lengths = np.sqrt(A.multiply(A).sum(1))
        assert np.all((np.abs(lengths - 1) < 1e-12) | (lengths == 0))
        assert len(np.unique(b)) == 20
    for one, other in (parts[:2], parts[2:]):
        assert np.abs(shares(one[1], 20) - shares(other[1], 20)).max() <= 1


@functools.cache
def real_instance():
    return real(101_631).build()


def test_gradients_on_real_posts_against_scipy() -> None:
    """float32, as in a run, against float64."""
    torch.set_default_dtype(torch.float32)
    instance = real_instance()
    (A, b), (V, v) = _prepared(real(101_631))[0][:2]
    x, y = normal(1, instance.dx), normal(1, instance.dy, seed=1)
    Y, w = y.double().reshape(-1, 20).numpy(), np.exp(x.double().numpy().T) / (20 * 101_631)
    for (F, labels), ours, rest in ((A, b), instance.grad_g_y(x, y), w * Y), ((V, v), instance.grad_f_y(x, y), 0 * Y):
        R = softmax(F @ Y, axis=1)
        R[np.arange(len(labels)), labels] -= 1
        theirs = F.T @ R / len(labels) + rest
        difference = np.abs(ours.double().reshape(-1, 20).numpy() - theirs)
        assert difference.max() < 1e-5 * np.abs(theirs).max()


def test_pretraining_on_real_posts_learns() -> None:
    """A hundred steps are not the end, but far from the start, log(20) and 1/20."""
    torch.set_default_dtype(torch.float32)
    instance = real_instance()
    y, _ = newsgroups._start(real(101_631))
    metrics = {name: float(metric(instance.x0, y)) for name, metric in instance.metrics.items()}
    assert metrics["test_accuracy"] > 0.45
    assert metrics["test_loss"] < 2.0
    assert metrics["selection_loss"] < 2.0
    assert 1e-6 < instance.constants.L_phi < 1e-2


# ---------------------------------------------------------------------------------------------------- metrics at y*(x)

SOLVED = TINY.model_copy(update={"solved": True})


def minimiser(plain: Numpy, x: np.ndarray) -> np.ndarray:
    """y*(x) by scipy, from zero."""
    found = minimize(
        lambda y: plain.g(x, y),
        np.zeros(P * C),
        jac=lambda y: plain.g_y(x, y),
        method="L-BFGS-B",
        options={"maxiter": 5000, "ftol": 1e-16, "gtol": 1e-10},
    )
    return found.x


def test_metrics_are_also_those_of_the_solution(float64):
    """At x0, then at two other points, each from where the last one ended; the method's own y does not matter."""
    solved, plain = SOLVED.build(), Numpy(TINY)
    for x in (np.zeros(P), np.linspace(-2, 2, P), np.linspace(1, -3, P)):
        y = minimiser(plain, x)
        at = torch.from_numpy(x)[None]
        seen = {name: float(metric(at, normal(1, P * C))) for name, metric in solved.metrics.items()}
        assert seen["val_loss_solved"] == pytest.approx(plain.f(y), abs=1e-4)
        assert seen["test_loss_solved"] == pytest.approx(plain.loss(plain.T, plain.t, y), abs=1e-4)
        assert seen["selection_loss_solved"] == pytest.approx(plain.loss(plain.S, plain.s, y), abs=1e-4)
        right = (plain.T @ y.reshape(P, C)).argmax(1) == plain.t
        assert seen["test_accuracy_solved"] == pytest.approx(right.mean(), abs=1.5 / len(right))
        assert seen["val_loss"] != pytest.approx(seen["val_loss_solved"], abs=1e-2)


def test_one_point_is_solved_for_once(float64, monkeypatch):
    solved, x, y = SOLVED.build(), torch.zeros(1, P), torch.zeros(1, P * C)
    asked = []
    monkeypatch.setattr(Refit, "__call__", lambda self, w: asked.append(w) or self.last)
    for name in ("val_loss_solved", "test_loss_solved", "test_accuracy_solved"):
        solved.metrics[name](x, y)
    assert len(asked) == 1
    assert not [name for name in TINY.build().metrics if name.endswith("_solved")]


def test_rounding_ends_a_refit():
    """In float32 there is a point from which no step leads down."""
    posts, classes = _prepared(TINY)
    refit = Refit(*posts[0], classes, torch.zeros(P, C, dtype=torch.float32))
    w = torch.full((P,), 0.01, dtype=torch.float32)
    first = refit(w)
    again = refit(w)
    assert float((first - again).abs().max()) < 1e-3 * float(first.abs().max())


def test_a_refit_finds_words_of_one_post_and_of_none(float64, monkeypatch):
    """They are merged while it looks; g_y by dense matrices, over mu = 1e-3, bounds how far it is off."""
    monkeypatch.setattr(refit, "ENOUGH", 1e-10)
    problem = NewsgroupsSynthetic(documents=120, p=600, classes=3, length=20, reg_scale=1e-3, pretrain=5, topical=0.3)
    posts, classes = _prepared(problem)
    in_posts = np.bincount(posts[0][0].indices, minlength=problem.p)
    assert min((in_posts == 0).sum(), (in_posts == 1).sum(), (in_posts > 1).sum()) > 50
    plain, fit = Numpy(problem), Refit(*posts[0], classes, normal(problem.p, classes))
    for x in (np.zeros(problem.p), np.linspace(0, 3, problem.p), normal(problem.p).abs().numpy()):
        Y = fit(torch.from_numpy(problem.reg_scale * np.exp(x)))
        assert np.linalg.norm(plain.g_y(x, Y.numpy().ravel())) < 1e-9
        assert (Y[in_posts == 0] == 0).all()


def test_a_refit_bears_weights_of_any_size():
    """float32: words without a regulariser and with an endless one; where a weight is not a number there is no answer."""
    posts, classes = _prepared(TINY)
    fit = Refit(*posts[0], classes, torch.zeros(P, C, dtype=torch.float32))
    w = torch.full((P,), 0.01, dtype=torch.float32)
    usual = fit(w)
    w[0], w[1] = 0.0, torch.inf
    Y = fit(w)
    assert bool(torch.isfinite(Y).all())
    assert float(Y[1].abs().max()) < 1e-6
    assert float(Y[0].norm()) > float(usual[0].norm())
    w[2] = torch.nan
    assert bool(torch.isnan(fit(w)).all())
    assert float((fit(torch.full_like(w, 0.01)) - usual).abs().max()) < 1e-2 * float(usual.abs().max())
