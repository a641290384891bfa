"""Checks of what a problem declares about itself: each constant holds at points near and far."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from bilevelbench.engine.evaluator import Evaluator
from bilevelbench.errors import suggestion
from bilevelbench.model.constants import _FORMULAS
from bilevelbench.model.instance import Instance
from bilevelbench.model.lanes import dot, norm
from bilevelbench.model.problem import Problem
from bilevelbench.model.rounding import one_thread
from bilevelbench.testing.outcome import Failure, Skip
from bilevelbench.testing.points import DENSE, ask, declared, instance_of, is_cheap, lanes_of, normal, points_of

_KNOWN = {
    "mu", "L_f", "L_g", "rho_f", "rho_g", "nu_g", "C_f", "Delta", "R", "sigma_f", "sigma_g", "sigma_h", "n_f", "n_g",
    *_FORMULAS,
}  # fmt: skip


def _far_and_near(problem: Problem) -> Iterator[tuple[Tensor, Tensor]]:
    """Points at three scales; those where f or g is not finite are left to other checks."""
    instance = instance_of(problem)
    for seed, scale in enumerate((0.1, 1.0, 5.0)):
        x, y = points_of(problem, scale, seed)
        values = [ask(instance._raw[q], q, x, y, y)[0] for q in ("value_f", "value_g")]
        if all(bool(value.isfinite().all()) for value in values):
            yield x, y


def check_constants(problem: Problem) -> None:
    """Constants have known names and are finite, none below zero, and mu <= L_gy <= L_g."""
    given = instance_of(problem).constants.given
    for name, constant in given.items():
        if name not in _KNOWN and (hint := suggestion(name, _KNOWN)).startswith("; did"):
            hint = "; did you mean 'mu'?" if name == "mu_g" else hint
            raise Failure("known names of constants", repr(name), f"correct it{hint}")
        values = constant.value if isinstance(constant.value, tuple) else (constant.value,)
        if not all(math.isfinite(value) and value >= 0 for value in values):
            raise Failure(
                "finite constants, zero or more", f"{name} = {constant.value}", "leave out what does not exist"
            )
    holds = declared(problem, "mu", "L_gy", "L_g")
    for low, high in (("mu", "L_gy"), ("mu", "L_g"), ("L_gy", "L_g")):
        if low in holds and high in holds and holds[low] > holds[high] * (1 + 1e-9):
            raise Failure(f"{low} <= {high}", f"{holds[low]:.6g} > {holds[high]:.6g}", "correct one of them")


def check_strong_convexity(problem: Problem) -> None:
    """The Hessian of g in y has no eigenvalue below mu, nor below mu_at(x), at points near and far."""
    holds, instance = declared(problem, "mu"), instance_of(problem)
    if not holds and instance.mu_at is None:
        raise Skip("mu is not declared to hold everywhere, and there is no mu_at")
    if holds and not holds["mu"] > 0:
        raise Failure("mu > 0", f"{holds['mu']:g}", "the lower level has to be strongly convex in y")
    for x, y in _far_and_near(problem):
        low, high = _spectrum(instance, x, y)
        if holds:
            _nothing_below("mu", torch.full_like(low, holds["mu"]), low, high, "lower mu, or mark it `estimated(...)`")
        if instance.mu_at is not None:
            _nothing_below("mu_at(x)", _mu_at(instance, x), low, high, "let mu_at return less, or leave it out")


def _nothing_below(name: str, mu: Tensor, low: Tensor, high: Tensor, mend: str) -> None:
    gap = mu - 1e-6 * mu - 1e-12 * high - low
    if bool((gap > 0).any()):
        lane = int(gap.argmax())
        raise Failure(f"no eigenvalue of g_yy below {name} = {float(mu[lane]):.6g}", f"{float(low[lane]):.6g}", mend)


def _mu_at(instance: Instance, x: Tensor) -> Tensor:
    """(L, 1), checked: positive, and the same with an axis of points."""
    assert instance.mu_at is not None
    with torch.no_grad(), one_thread():
        mu, twice = instance.mu_at(x), instance.mu_at(torch.stack([x, x]))
    for got, shape in ((mu, (*x.shape[:-1], 1)), (twice, (2, *x.shape[:-1], 1))):
        if tuple(got.shape) != shape:
            raise Failure(
                f"mu_at(x) of shape {shape}", f"{tuple(got.shape)}", "reduce the last axis, with keepdim=True"
            )
    if not bool((mu > 0).all()):
        raise Failure("mu_at(x) > 0", f"{float(mu.min()):g}", "where g(x, .) is not strongly convex, leave mu_at out")
    return mu


def _spectrum(instance: Instance, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The ends of the lower Hessian's spectrum, (L, 1), or, of a large one, values inside that are close to them."""
    dy = instance.dy

    def H(v: Tensor) -> Tensor:
        return ask(instance._raw["hvp_g_yy"], "hvp_g_yy", x, y, v)[0]

    if dy <= DENSE:
        columns = [H(e.expand(len(x), -1)) for e in torch.eye(dy, dtype=torch.float64)]
        matrix = torch.stack(columns, -1)
        eigenvalues = torch.linalg.eigvalsh((matrix + matrix.mT) / 2)
    else:
        eigenvalues = torch.linalg.eigvalsh(_lanczos(H, normal(len(x), dy, seed=7), 30))
    return eigenvalues[..., :1], eigenvalues[..., -1:]


def _lanczos(H: Callable[[Tensor], Tensor], start: Tensor, steps: int) -> Tensor:
    """H on a Krylov space, orthonormalised twice, (L, steps, steps): its eigenvalues lie inside H's spectrum."""
    basis = [start / norm(start)]
    images = []
    for _ in range(steps):
        image = H(basis[-1])
        images.append(image)
        new = image
        for _ in range(2):
            for q in basis:
                new = new - dot(new, q) * q
        if bool((norm(new) <= 1e-9 * norm(image)).any()):
            break
        basis.append(new / norm(new))
    Q = torch.stack(basis[: len(images)], -2)
    T = Q @ torch.stack(images, -1)
    return (T + T.mT) / 2


def check_lipschitz_gradients(problem: Problem) -> None:
    """L_gy, L_g, L_f and L_phi bound the change of the gradients, along directions in which they change most."""
    holds = declared(problem, "L_gy", "L_g", "L_f", "L_phi")
    if not holds:
        raise Skip("none of L_gy, L_g, L_f, L_phi is declared to hold everywhere")
    for name, gradient, z in _gradients(problem):
        if name in holds:
            rate = _steepest(gradient, z, iterations=4 if name == "L_phi" else 15)
            if not rate <= holds[name] * (1 + 1e-5) + 1e-9:
                raise Failure(
                    f"{name} = {holds[name]:.6g} to bound the change of its gradient",
                    f"a change of {rate:.6g} per unit",
                    f"raise {name}, or mark it `estimated(...)`",
                )


def _gradients(problem: Problem) -> Iterator[tuple[str, Callable[[Tensor], Tensor], Tensor]]:
    """The name of a Lipschitz constant, the gradient that it is about, a point."""
    instance = instance_of(problem)
    evaluator, dx = Evaluator(instance), instance.dx

    def joint(level: str, z: Tensor) -> Tensor:
        return torch.cat(instance._raw[f"grad_{level}"](z[:, :dx], z[:, dx:]), -1)

    def lower(x: Tensor, y: Tensor) -> Tensor:
        answer: Tensor = instance._raw["grad_g_y"](x, y)
        return answer

    def upper(y: Tensor, x: Tensor) -> Tensor:
        return evaluator.grad_phi(x, y)

    for x, y in _far_and_near(problem):
        yield "L_f", functools.partial(joint, "f"), torch.cat([x, y], -1)
        yield "L_g", functools.partial(joint, "g"), torch.cat([x, y], -1)
        yield "L_gy", functools.partial(lower, x), y
        if is_cheap(instance):
            yield "L_phi", functools.partial(upper, y), x


@torch.no_grad()
def _steepest(gradient: Callable[[Tensor], Tensor], z: Tensor, iterations: int, h: float = 1e-3) -> float:
    """The largest |grad(z + hd) - grad(z - hd)|/2h over the lanes, d by power iteration."""
    d, most = normal(*z.shape, seed=6), 0.0
    for _ in range(iterations):
        d = d / norm(d).clamp(min=1e-300)
        d = (gradient(z + h * d) - gradient(z - h * d)) / (2 * h)
        most = max(most, float(norm(d).nan_to_num(0.0).max()))
        if most == 0:
            break
    return most


def check_lipschitz_hessians(problem: Problem) -> None:
    """rho_f, rho_g, rho_phi bound second differences of gradients: |grad(z+d) - 2 grad(z) + grad(z-d)| <= rho |d|^2."""
    holds = {name.replace("rho", "L"): value for name, value in declared(problem, "rho_f", "rho_g", "rho_phi").items()}
    if not holds:
        raise Skip("none of rho_f, rho_g, rho_phi is declared to hold everywhere")
    for name, gradient, z in _gradients(problem):
        if name not in holds:
            continue
        for length in (0.1, 1.0):
            d = normal(*z.shape, seed=5)
            d = length * d / norm(d)
            with torch.no_grad():
                middle = gradient(z)
                bend = norm(gradient(z + d) - 2 * middle + gradient(z - d))
            rate = float((bend / length**2).max())
            rounding = 1e-12 * float(norm(middle).max() + norm(z).max() + 1) / length**2
            solved = 1e-8 if name == "L_phi" and instance_of(problem).reference is None else 0.0
            if not rate <= holds[name] * (1 + 1e-6) + rounding + solved / length**2:
                rho = name.replace("L", "rho")
                raise Failure(
                    f"{rho} = {holds[name]:.6g} to bound the change of its Hessian",
                    f"a second difference of {rate:.6g} per unit",
                    f"raise {rho}, or mark it `estimated(...)`",
                )


def check_slope_of_f(problem: Problem) -> None:
    """|f_y| <= C_f at points near and far."""
    holds = declared(problem, "C_f")
    if not holds:
        raise Skip("C_f is not declared to hold everywhere")
    for x, y in _far_and_near(problem):
        size = float(norm(ask(instance_of(problem)._raw["grad_f_y"], "grad_f_y", x, y, y)[0]).max())
        if not size <= holds["C_f"] * (1 + 1e-9):
            raise Failure(
                f"|f_y| <= C_f = {holds['C_f']:.6g}",
                f"{size:.6g}",
                "raise C_f, or mark it `estimated(...)`: f may have no such bound",
            )


def check_start(problem: Problem) -> None:
    """phi(x0) - phi(x) <= Delta, and |y0 - y*(x0)|^2 <= R."""
    holds, instance = declared(problem, "Delta", "R"), instance_of(problem)
    if not holds:
        raise Skip("neither Delta nor R is declared to hold")
    evaluator, L = Evaluator(instance), lanes_of(problem)
    x0, y0 = instance.x0.expand(L, -1), instance.y0.expand(L, -1)
    with torch.no_grad():
        if "R" in holds:
            reference = instance.reference
            solution = evaluator._solve_lower(x0, y0) if reference is None else reference.y_star(x0)
            distance = float((norm(y0 - solution) ** 2).max())
            if not distance <= holds["R"] * (1 + 1e-6) + 1e-9:
                raise Failure(f"|y0 - y*(x0)|^2 <= R = {holds['R']:.6g}", f"{distance:.6g}", "correct R")
        if "Delta" in holds:
            phi0 = evaluator(x0, y0).phi
            points = [points_of(problem, 0.1)]
            if is_cheap(instance):
                points += [*_far_and_near(problem), _downhill(evaluator, x0, y0)]
            for x, y in points:
                drop = float((phi0 - evaluator(x, y).phi).nan_to_num(-math.inf).max())
                if not drop <= holds["Delta"] * (1 + 1e-6) + 1e-9:
                    raise Failure(
                        f"phi(x0) - phi(x) <= Delta = {holds['Delta']:.6g} for every x", f"{drop:.6g}", "raise Delta"
                    )


def _downhill(evaluator: Evaluator, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Some steps of descent on phi, each lane with a step of its own."""
    limit = 0.9 * evaluator.instance.x_limit
    rates = torch.logspace(-2, 1, len(x), dtype=torch.float64).reshape(-1, 1)
    for _ in range(20 if evaluator.instance.reference is not None else 5):
        x = (x - rates * evaluator.grad_phi(x, y)).clamp(-limit, limit).nan_to_num(0.0)
    return x, y
