"""F2BA+: F2BA whose lower level is solved by Nesterov's method.

    K times:  q <- z + beta_z (z - z_prev);   z_prev <- z;   z <- q - a_z g_y(x, q)
              q <- y + beta_y (y - y_prev);   y_prev <- y;   y <- q - a_y (f_y(x, q)/lam + g_y(x, q))
    d <- f_x(x, y) + lam (g_x(x, y) - g_x(x, z));   x <- x - eta_x d

from z_prev = z and y_prev = y in every outer step. It is `f2ba[momentum=nesterov]`, with the steps and weights of
`penalty/lower_pair.py`. Chen, Zhang, "On the condition number dependency in bilevel optimization", 2025: the lower level takes
sqrt(kappa) log(lam kappa) steps instead of kappa log(lam kappa), so that kappa^4 becomes kappa^(7/2). The weights ask for mu.

Our choices: momentum is lost at every outer step, where the authors' program keeps it; y and z have the same steps and weights,
without which the default K diverges; the number of lower-level steps in the presets, from (1 + k)(1 - 1/sqrt(k))^n,
k = 4 L_g/mu, in place of F2BA's (1 - 1/k)^n; the answer is that of F2BA.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from bilevelbench import Claim
from bilevelbench_methods.penalty.f2ba import F2BA


class F2BAPlus(F2BA):
    name = "f2ba_plus"
    title = "F²BA⁺"
    paper = "https://arxiv.org/abs/2511.22331"
    claims: ClassVar[tuple[Claim, ...]] = (
        Claim(
            setting="deterministic", oracle="gradient", eps_exp=2, tilde=True, kappa_exp=3.5, source="other paper",
            kappa_source="other paper", reference="Chen, Zhang 2025",
        ),
    )  # fmt: skip

    momentum: Literal["off", "nesterov"] = "nesterov"
    """of the lower-level steps; off: f2ba"""
