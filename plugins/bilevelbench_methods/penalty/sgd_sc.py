"""SGD for a strongly convex function: epochs of averaged steps, the later ones longer and finer.

Chen, Ma, Zhang, "Near-Optimal Nonconvex-Strongly-Convex Bilevel Optimization with Fully First-Order Oracles", JMLR
2025, appendix, SGD and SGD-SC. For an alpha-strongly convex, beta-smooth function with gradient noise sigma^2 the
result y_out of N base epochs and K further ones has

    E|y_out - y*|^2 <= |y_in - y*|^2 / 2^(N+2K) + sigma^2 / (2^(K-2) alpha beta),

for 4 (beta/alpha) (N + 2^(K+1) - 2) samples where beta/alpha is whole; the paper prints 4 (beta/alpha) (N + 2^K).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from bilevelbench import InvalidInput, Oracle, keep

Slope = Callable[[Tensor], Tensor]


def walk(
    oracle: Oracle, slope: Slope, y: Tensor, total: Tensor, eta: Tensor | float, n: Tensor | int
) -> tuple[Tensor, Tensor]:
    """n times `y <- y - eta slope(y)`; the last point, and `total` with all n points added."""
    for on in oracle.repeat(n):
        y = keep(on, y - eta * slope(y), y)
        total = keep(on, total + y, total)
    return y, total


def sgd_avg(oracle: Oracle, slope: Slope, y: Tensor, eta: Tensor | float, n: Tensor | int) -> Tensor:
    """The mean of the n points after n steps; the start is not part of it."""
    if bool((torch.as_tensor(n) < 1).any()):
        raise InvalidInput(f"sgd_avg: the mean of {torch.as_tensor(n).min().item():g} points; make at least one step")
    return walk(oracle, slope, y, torch.zeros_like(y), eta, n)[1] / n


def epoch(k: int, alpha: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """Step 1/(2^k beta) and length ceil(2^(k+2) beta/alpha); the base is k = 0, with the step of k = 1."""
    ratio = beta / alpha
    exact = 1 - 4 * torch.finfo(ratio.dtype).eps  # where beta/alpha is whole, its rounding does not add a step
    return 1 / (2 ** max(k, 1) * beta), (2 ** (k + 2) * ratio * exact).ceil()


def sgd_sc(
    oracle: Oracle, average: Callable[[Tensor, int], Tensor], y: Tensor, N: Tensor | int, K: Tensor | int
) -> Tensor:
    """N base epochs, then epochs 1..K; `average(y, k)` is `sgd_avg` with the step and length of `epoch(k, ...)`."""
    for on in oracle.repeat(N):
        y = keep(on, average(y, 0), y)
    for k, on in enumerate(oracle.repeat(K), start=1):
        y = keep(on, average(y, k), y)
    return y
