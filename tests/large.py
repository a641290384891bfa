"""A lower level of any size without a closed form: log cosh in a chain of neighbours, with sources of data as x.

g(x, y) = Σ_i log cosh(y_i) + y_i²/20 + (y_i - y_{i+1})²/2 - Σ_i x_{i mod 20} b_i y_i
f(x, y) = mean_i (y_i - t_i)² + |x|²/100
"""

from __future__ import annotations

import resource
import sys
import time
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import softplus

from bilevelbench import solve

SOURCES = 20


def chain(size: int) -> tuple[Any, Any, Tensor, Tensor]:
    """f, g, x0 and y0 with `size` numbers in y."""
    rng = torch.Generator().manual_seed(0)
    b, t = (torch.randn(size // SOURCES, SOURCES, generator=rng, dtype=torch.float64) for _ in range(2))

    def g(x: Tensor, y: Tensor) -> Tensor:
        own = (y + softplus(-2 * y)).sum() + y.square().sum() / 20
        beside = (y[1:] - y[:-1]).square().sum() / 2
        return own + beside - (x * b).reshape(-1) @ y

    def f(x: Tensor, y: Tensor) -> Tensor:
        return (y - t.reshape(-1)).square().mean() + x.square().sum() / 100

    return f, g, torch.zeros(SOURCES, dtype=torch.float64), torch.zeros(size, dtype=torch.float64)


def main(size: int) -> None:
    began = time.process_time()  # on one thread, what an idle machine takes
    got = solve(*chain(size), "f2ba", eta_x=0.5, steps=20, evaluate="end")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"{time.process_time() - began:.3f} {peak:.3f} {got.phi!r} {got.grad_phi!r} {got.status} {got.steps}")


if __name__ == "__main__":
    main(int(sys.argv[1]))
