"""Noise models: what one sample of f or g is, and what a call without a sample costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from torch import Tensor

from bilevelbench.errors import InvalidInput, suggestion
from bilevelbench.model.queries import PRODUCTS, QUERIES

PassOrder = Literal["replacement", "epoch"]


@dataclass(frozen=True)
class Exact:
    """Every answer is exact; a call is one sample."""

    n_f: int = 1
    n_g: int = 1


@dataclass(frozen=True)
class Gaussian:
    """Levels of noise of one sample: of the gradients of f, of those of g, and of second derivatives."""

    sigma_f: float = 0.0
    sigma_g: float = 0.0
    sigma_h: float = 0.0
    n_f: int = 1
    n_g: int = 1

    def __post_init__(self) -> None:
        for name in ("sigma_f", "sigma_g", "sigma_h"):
            value = getattr(self, name)
            if not 0 <= value < float("inf"):
                raise InvalidInput(f"{name} = {value}: a noise level is a finite number, zero or more")


@dataclass(frozen=True)
class Additive(Gaussian):
    """Gaussian noise added to each sampled answer: E|noise|^2 = sigma^2 by block for one sample, sigma^2/B for the mean of B.

    Second order: H + sigma_h s I and J + sigma_h s' E with scalar normals s, s' and E the rectangular identity. The noise
    does not depend on the point, so the difference of a sample's gradients at two points is exact.
    """


@dataclass(frozen=True)
class Affine(Gaussian):
    """Noise whose sample is a function: f(x, y) + <n, z> + 1/2 z.S z with z = (x - x0, y - y0), and the same for g.

    n is normal, in each block with E|n|^2 = sigma^2; S = sigma_h s u u^T with s a scalar normal and u uniform on the sphere,
    so E|S|^2 = sigma_h^2, in the samples of f as in those of g. All answers of one sample are derivatives of that one
    function: the difference of its gradients at two points is Lipschitz, unbiased and not exact. The noise of a gradient
    has the variance sigma^2 at the start and grows with |z| from there, by at most sigma_h^2 |z|^2. The mean of B samples is
    one draw whose n and S are smaller by sqrt(B).
    """


@dataclass(frozen=True)
class FiniteSum:
    """f and g are means over n_f and n_g rows; the instance's functions take a last argument `rows`.

    `order`: how rows are drawn for a method that does not say; "epoch" is in shuffled passes, without replacement.
    """

    n_f: int
    n_g: int
    order: PassOrder = "replacement"

    def __post_init__(self) -> None:
        if self.order not in get_args(PassOrder):
            raise InvalidInput(f"order={self.order!r}{suggestion(str(self.order), get_args(PassOrder))}")
        for name in ("n_f", "n_g"):
            if getattr(self, name) < 1:
                raise InvalidInput(f"{name} = {getattr(self, name)}: a finite sum has at least one term")


Noise = Exact | Additive | Affine | FiniteSum


def levels(noise: Noise) -> dict[str, float]:
    """The noise of one sample as constants of the problem; that of a finite sum depends on the point."""
    names = ("sigma_f", "sigma_g", "sigma_h")
    return {} if isinstance(noise, FiniteSum) else {name: getattr(noise, name, 0.0) for name in names}


def sizes(noise: Noise) -> dict[str, int]:
    """How many data the levels of a finite sum have, as constants of the problem."""
    return {"n_f": noise.n_f, "n_g": noise.n_g} if isinstance(noise, FiniteSum) else {}


def is_exact(noise: Noise, level: str) -> bool:
    """Whether a sample of f or g is the exact answer; where there are products with second derivatives it serves them too."""
    if isinstance(noise, Affine):  # a sample function of f is curved as well
        return (noise.sigma_f if level == "f" else noise.sigma_g) == noise.sigma_h == 0
    if isinstance(noise, Additive):
        has_products = any(QUERIES[name].level == level for name in PRODUCTS)
        sigma = noise.sigma_f if level == "f" else noise.sigma_g
        return sigma == 0 and (noise.sigma_h == 0 or not has_products)
    return isinstance(noise, Exact)


@dataclass(frozen=True)
class Rows:
    """The rows of a mini-batch and their weights, both (*points, L, B): f is `sum_b weight_b loss(index_b)`."""

    index: Tensor
    weight: Tensor

    def at(self, point: int, points: int) -> Rows:
        """The rows of one of several points; shared ones serve every point."""
        if self.index.dim() == 2:
            return self
        if self.index[..., 0, 0].numel() != points:
            raise InvalidInput(f"a sample for {self.index[..., 0, 0].numel()} points used at {points}")
        shape = self.index.shape[-2:]
        return Rows(self.index.reshape(-1, *shape)[point], self.weight.reshape(-1, *shape)[point])
