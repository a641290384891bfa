"""FdeHBO: recursive momentum (STORM) as SRMBA, with differences of gradients in the place of second derivatives.

    d(.) <- the directions of SOBA from one sample of g and one of f, the same at both points, with H v and J v by differences
    D <- d(x, y, v) + (1 - w_k) (D - d(x', y', v'))                    (x', y', v'): the point before; k = 0: D <- d(x, y, v)
    y <- y - a_k D_y,   v <- P(v - a_k D_v),   x <- x - b_k D_x         P onto a ball: `implicit/differences.py`

with a_k = a (k+1)^-power, b_k = b (k+1)^-power and w_k = min(1, w (k+1)^(-2 power)). Yang, Xiao, Ji, "Achieving O(eps^-1.5)
complexity in Hessian/Jacobian-free stochastic bilevel optimization", NeurIPS 2023; where |grad phi| <= eps is wanted that is
eps^-3. The theorem asks for power = 1/3 and mean-squared smooth samples. The estimator and its preset are those of SRMBA. The
difference goes to zero with eps by a power that we have not read: no preset sets it.

Our choices: those of SRMBA, one weight for the three directions and one step for y and v, and those of the differences.
"""

from __future__ import annotations

from typing import ClassVar

from bilevelbench import Claim
from bilevelbench_methods.implicit.differences import Differences
from bilevelbench_methods.implicit.srmba import SRMBA


class FdeHBO(Differences, SRMBA):
    name = "fdehbo"
    title = "FdeHBO"
    paper = "https://arxiv.org/abs/2312.03807"
    claims: ClassVar[tuple[Claim, ...]] = (
        Claim(
            setting="full", oracle="gradient", eps_exp=3, tilde=True, mean_squared_smooth=True, source="other paper",
            reference="Yang, Xiao, Ji 2023",
            footnote="under additive noise the differences are exact, and it does not meet the noise of products",
        ),
    )  # fmt: skip
