"""Checks of a problem's samples: unbiased, of the stated variance, and counted the same on both sides of the oracle."""

from __future__ import annotations

import torch
from torch import Tensor

from bilevelbench.model.instance import Instance
from bilevelbench.model.noise import Additive, Exact, FiniteSum, Rows
from bilevelbench.model.problem import Problem
from bilevelbench.model.queries import QUERIES
from bilevelbench.oracle.oracle import Oracle
from bilevelbench.testing.outcome import Failure, Skip
from bilevelbench.testing.points import ask, build, instance_of, lanes_of, normal, off_by, points_of

_NUMBERS = 4_000_000  # of x and y together that are looked at in one call


def check_noise(problem: Problem) -> None:
    """Samples are unbiased: additive noise has mean zero and the declared variance, blocks of a finite sum have its mean.

    A problem with fields sigma_f, sigma_g, sigma_h, all zero, is tried with others.
    """
    noise = instance_of(problem).noise
    levels = {"sigma_f": 0.1, "sigma_g": 0.2, "sigma_h": 0.3}
    if isinstance(noise, Exact) and levels.keys() <= type(problem).model_fields.keys():
        problem = type(problem).model_validate({**dict(problem), **levels})
        noise = instance_of(problem).noise
    if isinstance(noise, Exact):
        raise Skip("it is exact with these parameters")
    if isinstance(noise, Additive):
        _check_additive(problem)
    else:
        _check_finite_sum(problem, noise)


def _check_additive(problem: Problem) -> None:
    instance, L = instance_of(problem), lanes_of(problem)
    count = max(50, min(1000, 2_000_000 // (L * (instance.dx + instance.dy))))
    oracle = Oracle(instance, frozenset(QUERIES), range(L))
    oracle.begin_step(1)
    x, y = instance.x0.expand(L, -1), instance.y0.expand(L, -1)
    for level, draw in (("f", oracle.sample_f), ("g", oracle.sample_g)):
        sigma = instance.constants[f"sigma_{level}"]
        for block, exactly, noisy in zip(
            "xy",
            getattr(oracle, f"grad_{level}")(x, y),
            getattr(oracle, f"grad_{level}")(x, y, draw(1, points=count)),
            strict=True,
        ):
            error, n = noisy - exactly, count * L
            width = error.shape[-1]
            mean, variance = float(error.mean((0, 1)).norm()), float(error.square().sum(-1).mean())
            if not mean <= 6 * sigma / n**0.5:
                raise Failure(
                    f"noise of grad_{level}_{block} with mean 0", f"a mean of {mean:.3g}", "use Additive(...)"
                )
            if not abs(variance - sigma**2) <= 6 * sigma**2 * (2 / (width * n)) ** 0.5:
                raise Failure(
                    f"noise of grad_{level}_{block} with E|noise|^2 = sigma_{level}^2 = {sigma**2:.4g}",
                    f"{variance:.4g} over {n} samples",
                    f"let the constant sigma_{level} be that of Additive(...): leave it out of `constants`",
                )


def _check_finite_sum(problem: Problem, noise: FiniteSum) -> None:
    instance = instance_of(problem)
    x, y = (t[:1] for t in points_of(problem, 0.5))
    v = normal(1, instance.dy, seed=9)
    single = sorted((query for query in QUERIES.values() if len(query.outputs) == 1), key=lambda query: query.order)
    for level, n in (("f", noise.n_f), ("g", noise.n_g)):
        size = max(1, min(200, n // 2))
        starts = range(0, n, size)
        for query in (one.name for one in single if one.level == level):
            (whole,) = ask(instance._raw[query], query, x, y, v)
            total = torch.zeros_like(whole)
            for start in starts:
                index = torch.arange(start, min(n, start + size)).reshape(1, -1)
                rows = Rows(index, torch.full(index.shape, len(starts) / n, dtype=torch.float64))
                total = total + ask(instance._raw[query], query, x, y, v, rows)[0] / len(starts)
            means = {"blocks of rows": total}
            if instance.points == "stack" and n * (instance.dx + instance.dy) <= _NUMBERS:
                means["single rows"] = _mean_of_single_rows(instance, query, x, y, v, n)
            for parts, mean in means.items():
                if not off_by(mean, whole) <= 1e-9:
                    raise Failure(
                        f"the mean of {query} over all {parts} to be that of the whole sum",
                        f"a relative difference of {off_by(mean, whole):.2g}",
                        f"sum rows.weight * loss[rows.index]; rows=None is the mean over the {n} rows",
                    )


def _mean_of_single_rows(instance: Instance, query: str, x: Tensor, y: Tensor, v: Tensor, n: int) -> Tensor:
    """Each row at a point of its own."""
    each = Rows(torch.arange(n).reshape(n, 1, 1), torch.ones(n, 1, 1, dtype=torch.float64))
    x, y, v = (t.expand(n, 1, -1) for t in (x, y, v))
    (singles,) = ask(instance._raw[query], query, x, y, v, each)
    return singles.mean(0)


def check_oracle(problem: Problem) -> None:
    """Every query passes the oracle, exact and sampled, at one point and at two, and both counts agree."""
    instance, L = build(problem), lanes_of(problem)
    oracle = Oracle(instance, frozenset(QUERIES), range(L))
    oracle.begin_step(1)
    x, y = points_of(problem, 0.1)
    v = normal(L, instance.dy, seed=9)
    with torch.no_grad():
        for query, kind in QUERIES.items():
            sample = oracle.sample_f(1) if kind.level == "f" else oracle.sample_g(1)
            for points in ((), (2,)):
                X, Y = x.expand(*points, -1, -1), y.expand(*points, -1, -1)
                arguments = (X, Y, v) if kind.takes_vector else (X, Y)
                for xi in (None, sample):
                    answer = getattr(oracle, query)(*arguments, xi)
                    widths = kind.widths(instance.dx, instance.dy)
                    for width, a in zip(widths, answer if isinstance(answer, tuple) else (answer,), strict=True):
                        wanted = (*points, L, width)
                        if tuple(a.shape) != wanted or a.requires_grad:
                            raise Failure(
                                f"{query} of shape {wanted} through the oracle", f"{tuple(a.shape)}", "keep all axes"
                            )
    if not oracle.books_agree:
        raise Failure(
            "the meter and the instance's own count to agree",
            oracle.books(),
            "a derivative must not call the instance's other functions: call f, g and your own formulas",
        )
