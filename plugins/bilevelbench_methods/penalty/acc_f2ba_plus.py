"""AccF2BA+: AccF2BA whose lower level is solved by Nesterov's method.

    w <- x + (1 - theta)(x - x_prev)
    K_t times:  q <- z + beta_z (z - z_prev);   z_prev <- z;   z <- q - a_z g_y(w, q)
                q <- y + beta_y (y - y_prev);   y_prev <- y;   y <- q - a_y (f_y(w, q)/lam + g_y(w, q))
    d <- f_x(w, y) + lam (g_x(w, y) - g_x(w, z));   x <- w - eta_x d, then the test for a restart: `restarted.py`

from z_prev = z and y_prev = y in every outer step. It is `acc_f2ba[momentum=nesterov]`, with the steps and weights of
`penalty/lower_pair.py`. Chen, Zhang, "On the condition number dependency in bilevel optimization", 2025. The power of eps is
that of AccF2BA, since only the lower level changes; no power of kappa is shown, as we have not read the theorem's.

With `zeta`, k = 4 L_g/mu: K_t = max(K, sqrt(k) (2 log(4 lam L_g sqrt(delta)/zeta) + log(1 + k))). Our choices: that number,
from Nesterov's (1 + k)(1 - 1/sqrt(k))^n; momentum is lost at every outer step, where the authors' program keeps it.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from bilevelbench import Claim
from bilevelbench_methods.penalty.acc_f2ba import AccF2BA


class AccF2BAPlus(AccF2BA):
    name = "acc_f2ba_plus"
    title = "AccF²BA⁺"
    paper = "https://arxiv.org/abs/2511.22331"
    claims: ClassVar[tuple[Claim, ...]] = (
        Claim(
            setting="deterministic", oracle="gradient", eps_exp=1.75, tilde=True, source="other paper",
            reference="Chen, Zhang 2025",
        ),
    )  # fmt: skip

    momentum: Literal["off", "nesterov"] = "nesterov"
    """of the lower-level steps; off: acc_f2ba"""
