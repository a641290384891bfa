"""How g bends in y at the start, for functions about which nothing else is known."""

from __future__ import annotations

import math
import time

import numpy as np
import torch

from bilevelbench.model.instance import Instance


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
