"""An embedding of images on which few-shot tasks train a linear head each: hyper-representation, or meta-learning by heads.

    f(x, y) = mean_t  mean loss of head Y_t on the queries of task t
    g(x, y) = Σ_t [mean loss of head Y_t on the support of task t + l2/2 ‖Y_t‖²]

x is the embedding, e(x, image) with a constant 1 behind it; y = (Y_1, .., Y_T), a (ways, width + 1) matrix for each of T tasks
that are drawn once. A task has `ways` classes, `shots` images of each as support and `queries` others. The loss of an image is
`squared`, 1/2 ‖Y e - label‖² with the label as a unit vector, or `cross_entropy` of the scores Y e.

    representation_omniglot    characters of 6 alphabets, 14 x 14 pixels, 20 drawings each; test tasks from 2 other alphabets
    representation_digits      digits 0 to 6, 8 x 8 pixels, the first 100 of each; test tasks from 7 to 9

Embeddings: `linear`, images W; `mlp`, tanh(images W + b) V; `cnn`, twice 3 x 3 filters into 8 channels with tanh and means over
2 x 2, and a linear map. x0 is normal over the root of the number of inputs, biases zero; y0 = 0. Tasks and x0 come from the
data seed.

x enters both levels through a nonlinear map, φ is not convex, and H has a block for each task. With squared loss y* is ridge
regression task by task,

    Y_t = (labelsᵀ E/n)(EᵀE/n + l2 I)⁻¹,   E the embedded support, n its size,

and φ, ∇φ are closed forms. With cross-entropy the evaluator solves. f and g are finite sums over tasks (g_t is T times the
term above), so a mini-batch of g moves the heads of its tasks only, T times over: 1/L_gy, right for the sum, is too long a step
for a batch that is much smaller than T. Derivatives in y are formulas, those in x are autograd's,
one backward pass each.

H is at least l2: mu is exact where a task has fewer support images than the head has inputs, and for cross-entropy, along
equal changes of all rows of Y_t; else a bound. Nothing else holds everywhere: L_gy, C_f, L_f, L_g, rho_f, rho_g and L_phi are
estimates at the start, those of joint derivatives by power iterations and second differences, and x may leave their region.
Delta is φ(x0), since φ >= 0.

Metric `test_accuracy`: of fresh heads by ridge regression, trained on the support of test tasks and asked about their queries.
"""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal, Self

import torch
from pydantic import Field, PositiveFloat, PositiveInt, model_validator
from torch import Tensor

from bilevelbench import (
    Agents,
    Constant,
    DataFile,
    FiniteSum,
    Instance,
    Problem,
    Reference,
    Rows,
    bound,
    estimated,
    exact,
    norm,
)
from bilevelbench_problems.cross_entropy import Softmax
from bilevelbench_problems.embeddings import Kind, embedding, start
from bilevelbench_problems.estimates import Levels, bend, measured, steepest
from bilevelbench_problems.few_shot import Heads, Squared, Tasks, accuracy, ridge_heads, solved
from bilevelbench_problems.logreg import from_scikit_learn
from bilevelbench_problems.omniglot import OMNIGLOT, characters


class Representation(Problem):
    finite_sum = True

    side: ClassVar[int]
    classes: ClassVar[int]  # to draw a test task from; there are more for training
    drawings: ClassVar[int]  # of each class

    tasks: PositiveInt = 50
    """training tasks, each with a head of its own"""
    test_tasks: PositiveInt = 50
    """tasks for the metric"""
    ways: int = Field(default=5, ge=2)
    """classes of a task"""
    shots: PositiveInt = 1
    """support images of each class"""
    queries: PositiveInt = 15
    """query images of each class"""
    embedding: Kind = "linear"
    """what x is"""
    width: PositiveInt = 32
    """numbers that an image is embedded as"""
    loss: Literal["squared", "cross_entropy"] = "squared"
    """of an image"""
    l2: PositiveFloat = 0.1
    """regulariser of the heads"""

    @model_validator(mode="after")
    def _enough(self) -> Self:
        taken = self.shots + self.queries
        if taken > self.drawings:
            raise ValueError(
                f"shots = {self.shots} and queries = {self.queries} take {taken} images of a class, and it has "
                f"{self.drawings}; take fewer shots or queries"
            )
        if self.ways > self.classes:
            raise ValueError(
                f"ways = {self.ways}: there are only {self.classes} classes to draw a test task from; take fewer ways"
            )
        return self

    def build(self) -> Instance:
        training, tests, x0 = self._draw()
        dtype = torch.get_default_dtype()
        f, g = self._levels(training, dtype)
        support, query, targets = (part.to(dtype) for part in (tests.support, tests.query, tests.support_targets))

        def test_accuracy(x: Tensor, y: Tensor) -> Tensor:
            E, asked = f.features(x, support), f.features(x, query)
            return accuracy(E, asked, targets, tests.query_targets, self.l2)

        functions: dict[str, Any] = {
            "f": f.value,
            "g": g.value,
            "grad_f_y": f.in_y,
            "grad_g_y": g.in_y,
            "hvp_g_yy": g.hvp,
            "jvp_g_xy": functools.partial(_mixed, g),
        }
        noise, x0, y0 = FiniteSum(n_f=f.T, n_g=g.T), x0.to(dtype), self._y0(g)
        return Instance(
            **functions,
            x0=x0,
            y0=y0,
            constants=_constants(self),
            noise=noise,
            reference=_closed_forms(f, g) if self.loss == "squared" else None,
            points="stack",
            agents=self._agents(functions, noise, x0=x0, y0=y0, points="stack"),
            metrics={"test_accuracy": test_accuracy},
        )

    def _draw(self) -> tuple[Tasks, Tasks, Tensor]:
        """Training and test tasks and x0."""
        classes, unseen = self._classes()
        rng = self.generator()
        x0 = start(embedding(self.embedding, self.side, self.width), rng)
        sizes = (self.ways, self.shots, self.queries)
        return Tasks.draw(classes, *sizes, self.tasks, rng), Tasks.draw(unseen, *sizes, self.test_tasks, rng), x0

    def _levels(self, tasks: Tasks, dtype: torch.dtype) -> tuple[Heads, Heads]:
        """f and g."""
        made = embedding(self.embedding, self.side, self.width)
        link = Squared() if self.loss == "squared" else Softmax(self.ways)
        g = Heads(made, link, tasks.support, tasks.support_targets, dtype, float(len(tasks.support)), self.l2)
        return Heads(made, link, tasks.query, tasks.query_targets, dtype), g

    def _y0(self, g: Heads) -> Tensor:
        return torch.zeros(1, g.T * self.ways * (self.width + 1), dtype=g.images.dtype)

    def _agents(self, functions: Mapping[str, Callable[..., Any]], noise: FiniteSum, **rest: Any) -> Agents | None:
        return None

    @abstractmethod
    def _classes(self) -> tuple[Tensor, Tensor]:
        """Images for training and for tests, (classes, drawings, pixels) in float64."""


class RepresentationOmniglot(Representation):
    name = "representation_omniglot"
    embedded = False  # needs drawings
    max_lanes = 8  # embeddings of 4,000 images are a megabyte a lane
    side = 14
    classes = 43
    drawings = 20
    data_files: ClassVar[tuple[DataFile, ...]] = OMNIGLOT
    checked_with: ClassVar[Mapping[str, Any]] = {"tasks": 3, "test_tasks": 2, "width": 4, "queries": 3}

    def _classes(self) -> tuple[Tensor, Tensor]:
        return characters(self.side)


class RepresentationDigits(Representation):
    name = "representation_digits"
    max_lanes = 64
    side = 8
    classes = 3
    drawings = 100

    tasks: PositiveInt = 4
    """training tasks, each with a head of its own"""
    test_tasks: PositiveInt = 20
    """tasks for the metric"""
    ways: int = Field(default=3, ge=2)
    """classes of a task"""
    shots: PositiveInt = 2
    """support images of each class"""
    queries: PositiveInt = 5
    """query images of each class"""
    width: PositiveInt = 4
    """numbers that an image is embedded as"""

    def _classes(self) -> tuple[Tensor, Tensor]:
        A, b = from_scikit_learn("digits")
        digits = torch.stack([A[b == c][: self.drawings] / 16 for c in range(10)])
        return digits[:7], digits[7:]


def _by_x(value: Callable[[Tensor], Tensor], x: Tensor, *others: Tensor) -> Tensor:
    """The derivative in x of a sum over lanes and points, over all points of all arguments."""
    axes = torch.broadcast_shapes(x.shape[:-1], *(other.shape[:-1] for other in others))
    with torch.enable_grad():
        x = x.detach().expand(*axes, -1).contiguous().requires_grad_(True)
        (gradient,) = torch.autograd.grad(value(x).sum(), x)
    return gradient


def _mixed(g: Heads, x: Tensor, y: Tensor, v: Tensor, rows: Rows | None = None) -> Tensor:
    """J v: one backward pass through the embedding."""
    y, v = y.detach(), v.detach()
    return _by_x(lambda x: g.along(x, y, v, rows), x, y, v)


def _closed_forms(f: Heads, g: Heads) -> Reference:
    """For squared loss."""

    def solve(x: Tensor) -> tuple[Tensor, Tensor]:
        return ridge_heads(g.embedded(x), g.targets, g.l2)

    def grad_phi(x: Tensor) -> Tensor:
        heads, gram = solve(x)
        y = heads.flatten(-3)
        # f is a mean over tasks and g a sum, so each block of H is its gram matrix
        v = solved(gram, g.matrices(f.in_y(x, y))).flatten(-3)
        return _by_x(lambda x: f.value(x, y) - g.along(x, y, v), x)

    return Reference(
        y_star=lambda x: solve(x)[0].flatten(-3),
        phi=lambda x: f.value(x, solve(x)[0].flatten(-3)),
        grad_phi=grad_phi,
    )


@functools.lru_cache(maxsize=32)
def _constants(problem: Representation) -> dict[str, Constant]:
    """Power iterations through the embedding, so it is kept."""
    tasks, _, x = problem._draw()
    f, g = problem._levels(tasks, torch.float64)
    levels = Levels(
        g_y=g.in_y,
        hvp=g.hvp,
        jvp=functools.partial(_mixed, g),
        grad_f=lambda x, y: (_by_x(lambda x: f.value(x, y), x), f.in_y(x, y)),
    )
    y0 = problem._y0(g)
    found = measured(levels, x, y0, problem.l2, h=0.1)
    y, dx = found.y, x.shape[-1]
    E = g.embedded(x)
    top = torch.linalg.matrix_norm(E, 2).max() ** 2 / g.n
    fewer = problem.loss == "cross_entropy" or g.n < problem.width + 1
    z = torch.cat([x, y], -1)

    def joint(level: Heads) -> Callable[[Tensor], Tensor]:
        def gradient(z: Tensor) -> Tensor:
            x, y = z[:, :dx], z[:, dx:]
            return torch.cat([_by_x(lambda x: level.value(x, y), x), level.in_y(x, y)], -1)

        return gradient

    return {
        "mu": exact(problem.l2) if fewer else bound(problem.l2),
        "L_gy": estimated(g.link.curvature * top + problem.l2),
        "L_g": estimated(steepest(joint(g), z)),
        "rho_g": estimated(bend(joint(g), z)),
        "L_f": estimated(steepest(joint(f), z)),
        "rho_f": estimated(bend(joint(f), z)),
        "C_f": estimated(norm(f.in_y(x, y0))),
        "L_phi": estimated(found.L_phi),
        "Delta": bound(float(f.value(x, y)) + 2 * float(norm(f.in_y(x, y))) * found.away),
        "R": bound((float(norm(y)) + found.away) ** 2),
    }
