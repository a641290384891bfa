"""A regulariser for every word of a softmax regression on posts to 20 newsgroups.

    f(x, y) = mean CE over the validation posts
    g(x, y) = mean CE over the training posts + reg_scale/2 Σ_j exp(x_j) Σ_c Y_jc²
    Y = y as a (p, classes) matrix, row after row; no bias

CE of a post with features a and label b is log Σ_c exp(a·Y_c) - a·Y_b. The default reg_scale = 1/(p classes) makes the
regulariser half the mean of exp(x_j) Y_jc² over all entries, as in the code of Chen, Ma, Zhang, "Near-Optimal
Nonconvex-Strongly-Convex Bilevel Optimization with Fully First-Order Oracles", JMLR 2025; their text has a sum there.

    newsgroups              the "bydate" posts, 11,314 for training and 7,532 for tests; p = 101,631 words with headers,
                            footers and quotes removed, or 130,107 with nothing removed
    newsgroups_synthetic    made-up posts of about the same size and sparsity

Words are numbered by the number of their training posts, the largest first, so that frequent ones lie together in memory.
Features are counts scaled to unit length, or TF-IDF (weights from all posts of the training part). The data seed halves
the training part into training and validation, and the test part into test and selection, class by class. x0 = 0. y0 is
the best by selection loss of `pretrain` gradient steps of size 100 on the training loss, without a regulariser; its
scores are the line "without regulariser" of the published plots. With `pretrain=0`, y0 = 0.

A gradient is two products of a sparse and a dense matrix. float32 is the usual precision: products take a tenth of the
time that they take in float64. y has two million entries, so an evaluation of φ, which solves the lower level, takes a
minute or two: let the schedule be coarse (ratio 10), or take metrics at y*(x) instead (`solved`), a second or two each.

mu is reg_scale exp(min x) (`mu_at`); it, L_gy, L_g and rho_g grow or fall with exp(x): declared are estimates at x0 and
y0. C_f, L_f and rho_f hold everywhere. L_phi is an estimate at (x0, y0) with the diagonal of the Hessian of g in place of
the whole; Delta is f(y0). With `pretrain=0` these are taken at 100 steps.

Metrics at the given y: `val_loss`, `test_loss`, `test_accuracy`, and `selection_loss` for choosing among trials. That of a
penalty method minimises f/λ + g and is fitted to the validation posts a little. With `solved=true` also the same at y*(x),
by the name `val_loss_solved`, which is φ, and so on: each evaluation solves the lower level (`refit.py`), from where the last
one ended, to what a figure needs. The schedule's own φ is then best left out (`schedule.phi = false`).
"""

from __future__ import annotations

import functools
import math
import tempfile
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from io import BytesIO
from typing import Any, ClassVar, Literal

import numpy as np
import scipy  # its parts load when they are used
import torch
from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor

from bilevelbench import Constant, DataFile, Instance, Problem
from bilevelbench_problems.common import LastOne, spread
from bilevelbench_problems.refit import Refit
from bilevelbench_problems.sparse_cross_entropy import SparseLoss, measured_constants

_PRETRAIN_STEP = 100.0
_SETTLED = 100  # pretraining steps to where constants are measured if y0 = 0
_SPLITS = 6  # whose starts are kept, 8 MB each: trials of one method go through all splits, and a start takes 15 s


@dataclass(frozen=True)
class Posts:
    """Counts of words, one row per post, those of the training part first; labels."""

    counts: scipy.sparse.csr_matrix
    labels: np.ndarray
    n_train: int

    def pack(self) -> bytes:
        """32-bit integers: rows, columns, entries and training rows; row starts; columns; counts; labels."""
        m = self.counts
        sizes = [*m.shape, m.nnz, self.n_train]
        return np.concatenate([sizes, m.indptr, m.indices, m.data, self.labels]).astype("<i4").tobytes()

    @classmethod
    def unpack(cls, content: bytes) -> Posts:
        numbers = np.frombuffer(content, "<i4")
        rows, columns, entries, n_train = (int(size) for size in numbers[:4])
        start, column, count, labels = np.split(numbers[4:], np.cumsum([rows + 1, entries, entries]))
        return cls(scipy.sparse.csr_matrix((count, column, start), shape=(rows, columns)), labels, n_train)


class _Newsgroups(Problem):
    """What both problems share."""

    embedded = False  # a step takes a third of a second, an evaluation minutes
    max_lanes = 1  # sparse products gain nothing from lanes, and y of one lane is 8 MB

    features: Literal["counts", "tfidf"] = "counts"
    """counts of unit length, or TF-IDF"""
    reg_scale: PositiveFloat | None = None
    """regulariser of every word at x = 0; default 1/(p classes)"""
    pretrain: NonNegativeInt = 1000
    """gradient steps without regulariser that make y0; 0: y0 = 0"""
    solved: bool = False
    """also give the metrics at y*(x)"""

    def build(self) -> Instance:
        dtype = torch.get_default_dtype()
        posts, classes = _prepared(self)
        train, val, test, selection = (SparseLoss(*part, classes, dtype) for part in posts)
        p, reg = train.p, self._reg(train.p, classes)
        y0, constants = _start(self)

        def shape(y: Tensor) -> Tensor:
            Y: Tensor = y.unflatten(-1, (p, classes))
            return Y

        weights = LastOne(lambda x: reg * x.exp())

        def coupled(x: Tensor, y: Tensor, v: Tensor) -> Tensor:
            return weights(x) * (shape(y) * shape(v)).sum(-1)

        def g_y(x: Tensor, y: Tensor) -> Tensor:
            return _plus(train.gradient(shape(y)), weights(x).unsqueeze(-1), shape(y)).flatten(-2)

        at_y = {
            "val_loss": val.value,
            "test_loss": test.value,
            "test_accuracy": test.accuracy,
            "selection_loss": selection.value,
        }

        def metric(of: Callable[[Tensor], Tensor]) -> Metric:
            return lambda x, y: of(shape(y))

        metrics = {name: metric(of) for name, of in at_y.items()}
        if self.solved:
            refit = Refit(*posts[0], classes, _first_fit(self).to(dtype))
            solution = LastOne(lambda x: torch.stack([refit(reg * one.exp()) for one in x]))
            metrics |= {f"{name}_solved": _at(solution, of) for name, of in at_y.items()}

        probabilities = LastOne(lambda y: train.probabilities(shape(y)))

        def hvp(x: Tensor, y: Tensor, v: Tensor) -> Tensor:
            bent = train.bend(probabilities(y), shape(v))
            return _plus(bent, weights(x).unsqueeze(-1), shape(v)).flatten(-2)

        return Instance(
            f=lambda x, y: spread(val.value(shape(y)), x),
            g=lambda x, y: train.value(shape(y)) + 0.5 * coupled(x, y, y).sum(-1, keepdim=True),
            grad_f_x=lambda x, y: spread(torch.zeros_like(x), y),
            grad_f_y=lambda x, y: spread(val.gradient(shape(y)).flatten(-2), x),
            grad_g=lambda x, y: (0.5 * coupled(x, y, y), g_y(x, y)),
            grad_g_x=lambda x, y: 0.5 * coupled(x, y, y),
            grad_g_y=g_y,
            hvp_g_yy=hvp,
            jvp_g_xy=lambda x, y, v: coupled(x, y, v),
            x0=torch.zeros(1, p),
            y0=y0.to(dtype) if self.pretrain else torch.zeros(1, p * classes),
            constants=constants,
            points="loop",
            mu_at=lambda x: reg * x.amin(-1, keepdim=True).exp(),
            metrics=metrics,
        )

    @abstractmethod
    def _posts(self) -> tuple[Posts, int]:
        """All posts, and the number of classes."""

    def _reg(self, p: int, classes: int) -> float:
        return 1 / (p * classes) if self.reg_scale is None else self.reg_scale


Metric = Callable[[Tensor, Tensor], Tensor]


def _at(solution: LastOne, of: Callable[[Tensor], Tensor]) -> Metric:
    return lambda x, y: of(solution(x))


def _npz_or_packed(file: bytes) -> bytes:
    """The published count matrices are npz files, column-compressed, with gaps between rows in two bytes."""
    if not file.startswith(b"PK"):
        return file
    with np.load(BytesIO(file), allow_pickle=False) as arrays:
        wide = {name: arrays[name].astype(np.int64) for name in arrays.files if name != "vocabulary"}
    ends = np.cumsum(wide["row_gap_lo"] + 256 * wide["row_gap_hi"])
    start = np.concatenate([[0], np.cumsum(wide["doc_freq"])])
    row = ends - np.repeat(np.concatenate([[0], ends])[start[:-1]], wide["doc_freq"])
    counts = scipy.sparse.csc_matrix(
        (wide["count_lo"] + 256 * wide["count_hi"], row, start), shape=tuple(wide["shape"])
    ).tocsr()
    return Posts(counts, wide["target"], int(wide["n_train"])).pack()


def _from_scikit_learn(remove: tuple[str, ...]) -> bytes:
    """Its own copies are pickles: they are made in a folder of ours, and go with it."""
    from sklearn.datasets import fetch_20newsgroups_vectorized

    with tempfile.TemporaryDirectory() as folder:
        parts = [
            fetch_20newsgroups_vectorized(
                subset=subset, remove=remove, data_home=folder, normalize=False, return_X_y=True
            )
            for subset in ("train", "all")
        ]
    counts, labels = parts[1]
    counts = scipy.sparse.csr_matrix(counts)
    counts.sort_indices()
    return Posts(counts, labels, parts[0][0].shape[0]).pack()


def _file(p: int, sha256: str, remove: tuple[str, ...]) -> DataFile:
    return DataFile(
        name=f"newsgroups_{p}",
        path=f"20news/20news_counts_p{p}.npz",
        sha256=sha256,
        licence="none stated; for research, never bundled",
        download=functools.partial(_from_scikit_learn, remove),
        unpack=_npz_or_packed,
    )


_FILES = {
    101_631: _file(
        101_631,
        "cf1a44284df8d6f9fea43468aa25965fc8ac84a546a3a99c4d6a82cee66c9020",
        ("headers", "footers", "quotes"),
    ),
    130_107: _file(130_107, "bc9b5ebf904adfab0c25d0af9d7008eb21f09bedd344eca76a36896be7c00d12", ()),
}


class Newsgroups(_Newsgroups):
    name = "newsgroups"
    # The lower level with the usual regulariser takes a quarter of an hour in float64.
    checked_with: ClassVar[Mapping[str, Any]] = {"reg_scale": 1e-3, "pretrain": 20}
    data_files: ClassVar[tuple[DataFile, ...]] = tuple(_FILES.values())

    p: Literal[101_631, 130_107] = 101_631
    """words: with headers, footers and quotes removed, or all"""

    def _posts(self) -> tuple[Posts, int]:
        return Posts.unpack(_FILES[self.p].read()), 20


class NewsgroupsSynthetic(_Newsgroups):
    """Words are drawn by Zipf's law, a share of them by one that belongs to the class, its ranks shifted.

    The length of a post is log-normal. Words of real posts come in bursts, which these do not: with the same number of
    distinct words, made-up posts are shorter.
    """

    name = "newsgroups_synthetic"
    checked_with: ClassVar[Mapping[str, Any]] = {"documents": 400, "p": 150, "classes": 4, "pretrain": 20}

    documents: PositiveInt = Field(default=18_846, ge=40)
    """posts, six of ten for training"""
    p: PositiveInt = Field(default=101_631, ge=2)
    """words"""
    classes: PositiveInt = Field(default=20, ge=2)
    """newsgroups"""
    length: PositiveFloat = 109.0
    """mean number of words of a post"""
    topical: float = Field(default=0.1, ge=0, le=1)
    """share of the words that tell the class"""

    def _posts(self) -> tuple[Posts, int]:
        rng, n, p = self.generator(), self.documents, self.p
        labels = torch.arange(n) % self.classes
        labels = labels[torch.randperm(n, generator=rng)]
        longer = torch.exp(1.1 * torch.randn(n, generator=rng, dtype=torch.float64) - 1.1**2 / 2)
        post = torch.repeat_interleave(torch.arange(n), (self.length * longer).round().clamp(min=1).long())
        law = (torch.arange(p, dtype=torch.float64) + 3.7).reciprocal().cumsum(0)
        draws = torch.rand(2, len(post), generator=rng, dtype=torch.float64)
        rank = torch.searchsorted(law, draws[0] * law[-1]).clamp(max=p - 1)
        shift = (labels + 1) * p // (self.classes + 1)
        word = torch.where(draws[1] < self.topical, (rank + shift[post]) % p, rank)
        entries, counts = torch.unique(post * p + word, return_counts=True)
        start = torch.searchsorted(entries, torch.arange(n + 1) * p)
        matrix = scipy.sparse.csr_matrix((counts.numpy(), (entries % p).numpy(), start.numpy()), shape=(n, p))
        return Posts(matrix, labels.numpy(), round(n * 11_314 / 18_846)), self.classes


def _halves(labels: np.ndarray, rng: torch.Generator) -> list[np.ndarray]:
    """Row numbers of two halves, equal up to one row as a whole and in each class."""
    order = torch.randperm(len(labels), generator=rng)
    order = order[torch.from_numpy(labels.astype(np.int64))[order].argsort(stable=True)]
    return [order[first::2].sort().values.numpy() for first in (0, 1)]


def _by_frequency(posts: Posts) -> np.ndarray:
    """All words, those of most training posts first: their rows of Y then lie together, and stay in the cache."""
    in_posts = np.bincount(posts.counts[: posts.n_train].indices, minlength=posts.counts.shape[1])
    return np.argsort(-in_posts, kind="stable")


@functools.lru_cache(maxsize=2)
def _prepared(problem: _Newsgroups) -> tuple[list[tuple[scipy.sparse.csr_matrix, np.ndarray]], int]:
    """Training, validation, test and selection posts, (n, p) in float64 with their labels; the number of classes."""
    from sklearn.feature_extraction.text import TfidfTransformer  # not at the top: a second, in each worker process
    from sklearn.preprocessing import normalize

    posts, classes = problem._posts()
    counts, n = posts.counts[:, _by_frequency(posts)].astype(np.float64), posts.n_train
    counts.sort_indices()
    A = TfidfTransformer().fit(counts[:n]).transform(counts) if problem.features == "tfidf" else normalize(counts)
    rng = problem.generator()
    rows = [*_halves(posts.labels[:n], rng), *(n + half for half in _halves(posts.labels[n:], rng))]
    return [(A[half], posts.labels[half]) for half in rows], classes


def _plus(G: Tensor, w: Tensor, V: Tensor) -> Tensor:
    """G + w V, in place if it fits: G is fresh, and another matrix of this size costs as much as the sum."""
    fits = G.shape[:-2] == torch.broadcast_shapes(G.shape[:-2], w.shape[:-2], V.shape[:-2])
    return G.addcmul_(w, V) if fits else torch.addcmul(G, w, V)


@functools.lru_cache(maxsize=_SPLITS)
def _start(problem: _Newsgroups) -> tuple[Tensor, dict[str, Constant]]:
    """The pretrained y, (1, p C), and what is measured there; in float32 whatever the trial's precision."""
    posts, classes = _prepared(problem)
    train, val, selection = (SparseLoss(*posts[part], classes, torch.float32) for part in (0, 1, 3))
    with torch.no_grad():
        Y = _pretrained(train, selection, classes, problem.pretrain or _SETTLED)
        return Y.reshape(1, -1), measured_constants(posts, train, val, Y, problem._reg(train.p, classes))


@functools.lru_cache(maxsize=_SPLITS)
def _first_fit(problem: _Newsgroups) -> Tensor:
    """Y*(x0), (p, C) in float32, where every trial begins."""
    posts, classes = _prepared(problem)
    start = _start(problem)[0].reshape(-1, classes)
    p = len(start)
    with torch.no_grad():
        return Refit(*posts[0], classes, start)(torch.full((p,), problem._reg(p, classes), dtype=start.dtype))


def _pretrained(train: SparseLoss, selection: SparseLoss, classes: int, steps: int) -> Tensor:
    Y = torch.zeros(train.p, classes, dtype=torch.float32)
    best, least = Y, math.inf
    for _ in range(steps):
        Y = Y - _PRETRAIN_STEP * train.gradient(Y)
        loss = float(selection.value(Y))
        if loss < least:
            best, least = Y, loss
    return best
