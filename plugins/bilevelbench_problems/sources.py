"""Training rows that come from several sources, whose mean losses are weighted by softmax(x).

    g(x, y) = Σ_i w_i s_i(y),   w = softmax(x),   s_i(y) = mean loss of the rows of source i

A mini-batch has to estimate each s_i from those of its B rows that belong to source i:

    "unbiased"    their sum over the number that is expected, B n_i/n: then g is a finite sum over rows, and a mini-batch
                  has its mean; a source that is absent from the batch contributes nothing
    "ratio"       their sum over the number that there is; absent sources contribute nothing, so that rare sources weigh
                  less than they should: biased where B n_i/n is small
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from bilevelbench import InvalidInput, Rows, dot

Estimator = Literal["unbiased", "ratio"]


class Sources:
    """`source` is the source of each row, (n,); losses of rows are (*points, L, B), or (*points, L, n) without rows."""

    def __init__(self, source: Tensor, m: int, estimator: Estimator, dtype: torch.dtype) -> None:
        self.counts = torch.bincount(source, minlength=m)
        self.member = one_hot(source, m).to(dtype)
        self.whole = self.member / self.counts
        self.estimator, self.n = estimator, len(source)

    def shares(self, rows: Rows | None) -> Tensor:
        """What each row is of each s_i: (n, m), or (*points, L, B, m) for a mini-batch."""
        if rows is None:
            return self.whole
        weight = rows.weight.unsqueeze(-1)
        if self.estimator == "unbiased":
            return weight * self.n * self.whole[rows.index]
        mine = weight * self.member[rows.index]
        return mine / mine.sum(-2, keepdim=True).clamp(min=torch.finfo(mine.dtype).tiny)


def means(shares: Tensor, losses: Tensor) -> Tensor:
    """s_i, (*points, L, m)."""
    return losses @ shares if shares.dim() == 2 else (losses.unsqueeze(-2) @ shares).squeeze(-2)


def of_rows(shares: Tensor, w: Tensor) -> Tensor:
    """The weight of each row's loss in Σ_i w_i s_i, (*points, L, B)."""
    return w @ shares.mT if shares.dim() == 2 else (shares @ w.unsqueeze(-1)).squeeze(-1)


def turn(w: Tensor, s: Tensor) -> Tensor:
    """The derivative of Σ_i w_i s_i in x."""
    return w * (s - dot(w, s))


def garbage_weight(x: Tensor) -> Tensor:
    """The weight of all sources but the first."""
    return torch.softmax(x, -1)[..., 1:].sum(-1, keepdim=True)


def dealt(n: int, corruption: float, m: int) -> Tensor:
    """The source of each of n rows: the useful ones first, source 0; garbage is dealt out to the others in turn."""
    garbage = round(corruption * n)
    if not m - 1 <= garbage < n:
        raise InvalidInput(
            f"{n} training rows, {garbage} of them garbage (corruption = {corruption:g}), leave one of {m} sources without "
            "rows; take more rows or fewer sources"
        )
    return torch.cat([torch.zeros(n - garbage, dtype=torch.long), 1 + torch.arange(garbage) % (m - 1)])
