"""A check of declared constants between many pairs of points, near and far apart; `constants.py` looks closely at few."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bilevelbench.model.instance import Instance, Reference
from bilevelbench.model.lanes import dot, norm
from bilevelbench.model.problem import Problem
from bilevelbench.testing.outcome import Failure, Skip
from bilevelbench.testing.points import DENSE, around, ask, declared, instance_of, lanes_of, normal

_BOUNDS = ("mu", "L_gy", "L_g", "L_f", "C_f", "L_phi", "rho_phi", "Delta", "rho_f", "rho_g")
_SCALES = (0.3, 2.0, 30.0)
_NUMBERS = 100_000  # of x and y together, in all pairs of a scale
_ROOM = 1 + 1e-9


def check_bounds(problem: Problem) -> None:
    """What is declared to hold everywhere does so between many pairs of points, near and far apart."""
    if not declared(problem, *_BOUNDS):
        raise Skip(f"none of {', '.join(_BOUNDS)} is declared to hold everywhere")
    for scale in _SCALES:
        bounds_between_pairs(problem, scale)
    bounds_of_hessians(problem)


def bounds_between_pairs(problem: Problem, scale: float) -> None:
    """Pairs of points around the start, `scale` away from it, and 0.01 to 10 from each other in each coordinate."""
    instance, L, holds = instance_of(problem), lanes_of(problem), declared(problem, *_BOUNDS)
    pairs = max(3, min(100, _NUMBERS // (L * (instance.dx + instance.dy))))
    x1, y1 = around(instance, pairs, L, scale=scale, seed=10)
    away = torch.logspace(-2, 1, pairs, dtype=torch.float64).reshape(-1, 1, 1)
    x2, y2 = x1 + away * normal(pairs, L, instance.dx, seed=22), y1 + away * normal(pairs, L, instance.dy, seed=23)
    edge = 0.9 * instance.x_limit
    x2 = x2.clamp(-edge, edge)
    both = norm(torch.cat([x2 - x1, y2 - y1], -1))
    for level in "fg":
        if f"L_{level}" in holds:
            here, there = (torch.cat(_answers(instance, f"grad_{level}", *at), -1) for at in ((x1, y1), (x2, y2)))
            _at_most(holds, f"L_{level}", norm(there - here), both)
    if holds.keys() & {"mu", "L_gy"}:
        here, there = (_answers(instance, "grad_g_y", x1, y)[0] for y in (y1, y2))
        _at_most(holds, "L_gy", norm(there - here), norm(y2 - y1))
        if "mu" in holds:
            _pulls_back(holds["mu"], there - here, y2 - y1, norm(here) + norm(there))
    if "C_f" in holds:
        _at_most(holds, "C_f", norm(_answers(instance, "grad_f_y", x1, y1)[0]), torch.ones_like(both))
    if instance.reference is not None:
        _of_phi(holds, instance, instance.reference, x1, x2)


@torch.no_grad()
def _of_phi(holds: dict[str, float], instance: Instance, reference: Reference, x1: Tensor, x2: Tensor) -> None:
    apart = norm(x2 - x1)
    _at_most(holds, "L_phi", norm(reference.grad_phi(x2) - reference.grad_phi(x1)), apart)
    if reference.hess_phi is not None and "rho_phi" in holds and instance.dx <= DENSE:
        bend = reference.hess_phi(x2) - reference.hess_phi(x1)
        _at_most(holds, "rho_phi", torch.linalg.matrix_norm(bend, 2).unsqueeze(-1), apart)
    drop = reference.phi(instance.x0) - reference.phi(x1)
    _at_most(holds, "Delta", drop, torch.ones_like(drop))


def _answers(instance: Instance, query: str, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    """At all points at once, or one by one where that is how the problem is asked."""
    function = instance._raw[query]
    if instance.points == "stack":
        return ask(function, query, x, y, y)
    each = [ask(function, query, *point, point[1]) for point in zip(x, y, strict=True)]
    return tuple(torch.stack(block) for block in zip(*each, strict=True))


def _at_most(holds: dict[str, float], name: str, size: Tensor, distance: Tensor) -> None:
    """size <= constant distance, wherever that is finite."""
    if name not in holds:
        return
    excess = (size - holds[name] * distance * _ROOM - 1e-9).nan_to_num(-math.inf, posinf=-math.inf)
    if bool((excess > 0).any()):
        worst = int((excess / distance).argmax())
        rate, apart = float((size / distance).flatten()[worst]), float(distance.flatten()[worst])
        raise Failure(
            f"{name} = {holds[name]:.6g} to hold everywhere",
            f"{rate:.6g}" + (f" between two points that are {apart:.2g} apart" if name[0] in "Lr" else ""),
            f"raise {name}, or mark it `estimated(...)`",
        )


def _pulls_back(mu: float, pull: Tensor, apart: Tensor, size: Tensor) -> None:
    """<g_y(x, y2) - g_y(x, y1), y2 - y1> >= mu |y2 - y1|^2, up to the rounding of gradients of that size."""
    distance = norm(apart)
    short = (mu * distance**2 - dot(pull, apart) * _ROOM - 1e-14 * size * distance).nan_to_num(-math.inf)
    if bool((short > 0).any()):
        worst = int((short / distance**2).argmax())
        rate = float((dot(pull, apart) / distance**2).flatten()[worst])
        raise Failure(
            f"g(x, .) to be at least mu = {mu:.6g} convex between any two points",
            f"{rate:.6g} between two that are {float(distance.flatten()[worst]):.2g} apart",
            "lower mu, or mark it `estimated(...)`",
        )


def bounds_of_hessians(problem: Problem) -> None:
    """rho_f and rho_g bound the change of the joint Hessians, where these are small enough to be written out."""
    instance, L, holds = instance_of(problem), lanes_of(problem), declared(problem, "rho_f", "rho_g")
    if instance.dx + instance.dy > DENSE:
        return
    for seed in range(30, 33):
        x, y = around(instance, L, seed=seed)
        dx, dy = (0.3 * normal(L, d, seed=seed + by) for d, by in ((instance.dx, 50), (instance.dy, 60)))
        for level in "fg":
            if f"rho_{level}" in holds:
                change = _joint_hessian(instance, level, x + dx, y + dy) - _joint_hessian(instance, level, x, y)
                size = torch.linalg.matrix_norm(change, 2).unsqueeze(-1)
                _at_most(holds, f"rho_{level}", size, norm(torch.cat([dx, dy], -1)))


@torch.enable_grad()
def _joint_hessian(instance: Instance, level: str, x: Tensor, y: Tensor) -> Tensor:
    """Of f or g in (x, y), (L, dx + dy, dx + dy), by autograd."""
    z = torch.cat([x, y], -1).requires_grad_()
    value = instance._raw[f"value_{level}"](z[:, : instance.dx], z[:, instance.dx :])
    (gradient,) = torch.autograd.grad(value.sum(), z, create_graph=True)
    if not gradient.requires_grad:  # it is constant
        return torch.zeros(*z.shape, z.shape[-1], dtype=z.dtype)
    rows = gradient.sum(0)
    return torch.stack([torch.autograd.grad(row, z, retain_graph=True)[0] for row in rows], -1)
