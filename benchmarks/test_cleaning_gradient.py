"""The gradient of `cleaning_mnist` over its bare matrix products: 20,000 rows of 785 features, ten classes, float64.

Of a mini-batch the products are those with rows that were gathered for them; four lanes, the smallest pack that is run.
"""

from __future__ import annotations

import pytest
import torch
from bilevelbench_problems.weighted_cross_entropy import Weighted
from torch.nn.functional import embedding
from turns import ratio

from bilevelbench import Rows

N, FEATURES, CLASSES, BATCH, LANES, ROUNDS = 20_000, 785, 10, 64, 4, 30


@pytest.fixture(scope="module")
def loss() -> Weighted:
    rng = torch.Generator().manual_seed(0)
    A = torch.rand(N, FEATURES, generator=rng, dtype=torch.float64)
    b = torch.randint(0, CLASSES, (N,), generator=rng)
    return Weighted(A, b, CLASSES, 1e-3, torch.float64)


@pytest.mark.parametrize("batch", [BATCH, N], ids=["batch64", "full"])
@torch.no_grad()
def test_gradient_over_products(loss, summary, batch):
    rng = torch.Generator().manual_seed(1)
    x = torch.randn(LANES, N, generator=rng, dtype=torch.float64)
    y = torch.randn(LANES, CLASSES * FEATURES, generator=rng, dtype=torch.float64)
    R = torch.rand(LANES, CLASSES, batch, generator=rng, dtype=torch.float64)
    index = torch.randint(0, N, (LANES, batch), generator=rng)
    rows = Rows(index, torch.full((LANES, batch), 1 / batch, dtype=torch.float64)) if batch < N else None

    def products() -> None:
        A = loss.A if rows is None else embedding(index, loss.A)
        loss.matrix(y) @ A.mT
        R @ A

    name = "full" if rows is None else f"batch{batch}"
    summary[f"cleaning_gradient_{name}_ratio"] = ratio(lambda: loss.gradient(x, y, rows), products, ROUNDS)
