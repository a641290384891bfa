"""How g bends in y at the start: what methods take their lower-level steps from, and whether it is convex there."""

from __future__ import annotations

import math
import time

import numpy as np
import torch

from bilevelbench.errors import InvalidInput
from bilevelbench.model.constants import Constants, estimated
from bilevelbench.model.instance import Instance


def estimate_curvature(instance: Instance, until: float = math.inf) -> None:
    """Unless L_g or L_gy is known: L_gy, as an estimate. Not counted, and over when the clock says `until`."""
    known = instance.constants
    if "L_g" in known or "L_gy" in known:
        return
    smallest, largest = lower_curvatures(instance, until)
    size = max(largest, -smallest)
    if not size > 0:
        raise InvalidInput("g shows no curvature in y at (x0, y0); the lower level has to be strongly convex")
    instance.is_bent = smallest < -(torch.finfo(instance.y0.dtype).eps ** 0.5) * largest
    instance.constants = Constants({**known.given, "L_gy": estimated(size)}, known.problem)


def lower_curvatures(instance: Instance, until: float = math.inf, iterations: int = 30) -> tuple[float, float]:
    """Extreme eigenvalues of the lower Hessian at the start, from within: Lanczos, with two vectors kept."""
    x, y = instance.x0.reshape(-1, instance.dx)[:1], instance.y0.reshape(-1, instance.dy)[:1]
    start = torch.randn(y.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    q = (start / start.norm()).to(y.dtype).to(y.device)
    before, beta = torch.zeros_like(q), 0.0
    diagonal: list[float] = []
    beside: list[float] = []
    with torch.no_grad(), instance.uncounted():
        for _ in range(min(iterations, instance.dy)):
            w = instance.hvp_g_yy(x, y, q) - beta * before
            alpha = float((q * w).sum())
            w = w - alpha * q
            diagonal.append(alpha)
            beta = float(w.norm())
            if not beta > torch.finfo(y.dtype).eps * max(map(abs, diagonal)) or time.perf_counter() > until:
                break
            beside.append(beta)
            before, q = q, w / beta
    size = len(diagonal)
    matrix = np.diag(diagonal) + np.diag(beside[: size - 1], 1) + np.diag(beside[: size - 1], -1)
    if not np.isfinite(matrix).all():
        return math.nan, math.nan
    values = np.linalg.eigvalsh(matrix)
    return float(values[0]), float(values[-1])
