"""The inverse of the lower Hessian by one random term of its Neumann series, with fresh data in every product."""

from __future__ import annotations

import torch
from torch import Tensor

from bilevelbench import Oracle, keep

#: What the stochastic methods with Hessian products ask for beyond unbiased gradients: a footnote of their claims.
SECOND_DERIVATIVES = "needs unbiased, bounded-variance stochastic second derivatives, hence not directly comparable"


def neumann_random(
    oracle: Oracle, x: Tensor, y: Tensor, b: Tensor, Q: int | Tensor, a: float | Tensor, batch: int | Tensor
) -> Tensor:
    """`Q a (I - a H_p) ... (I - a H_1) b` with p uniform in 0..Q-1: its mean is `a sum_{q<Q} (I - aH)^q b`.

    p is drawn for each lane, which pays for its own p products only.
    """
    p = torch.minimum((Q * oracle.uniform(1)).long(), torch.as_tensor(Q - 1))  # Q u may round up to Q
    r = b
    for on in oracle.repeat(p):
        r = keep(on, r - a * oracle.hvp_g_yy(x, y, r, oracle.sample_g(batch)), r)
    return Q * a * r
