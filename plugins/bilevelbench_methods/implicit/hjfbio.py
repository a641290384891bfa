"""HJFBiO: single-loop implicit differentiation without Hessians and Jacobians, by differences of gradients.

    y <- y - a g_y(x, y)
    v <- P(v - a (H v - f_y(x, y)))             H v and J v by differences, P onto a ball: `implicit/differences.py`
    x <- x - b (f_x(x, y) - J v)                all at the old (x, y, v), all exact

Huang, "Optimal Hessian/Jacobian-free nonconvex-PL bilevel optimization", ICML 2024: eps^-2 where g only satisfies a
Polyak-Lojasiewicz inequality in y. The difference goes to zero with eps by a power that we have not read: no preset sets it.

Our choices: v starts at zero; y and v have one step; the default steps are constants, those of SOBA; its answer is the last x.
"""

from __future__ import annotations

from typing import ClassVar, Self

from bilevelbench import Claim, Constants, Oracle
from bilevelbench_methods.implicit.differences import Differences
from bilevelbench_methods.implicit.single_loop import State, Triple


class HJFBiO(Differences):
    name = "hjfbio"
    title = "HJFBiO"
    paper = "https://arxiv.org/abs/2407.17823"
    claims: ClassVar[tuple[Claim, ...]] = (
        Claim(
            setting="deterministic", oracle="gradient", eps_exp=2, source="other paper", reference="Huang 2024",
            footnote="also where g is not convex but satisfies a Polyak-Lojasiewicz inequality in y",
        ),
    )  # fmt: skip

    def estimate(self, s: State, oracle: Oracle) -> tuple[Triple, None]:
        return self.directions(oracle, s.at, None, None), None

    @classmethod
    def from_rate(cls, constants: Constants, eps: float, scale: float = 1.0) -> Self:
        """Constant steps; nothing depends on eps. `scale` is that of the x-step."""
        return cls(a=1 / constants.L_gy, b=0.2 * scale / constants.L_phi).resolve(constants)
