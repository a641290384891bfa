"""What a problem has to keep to, one property a function. Everything is measured in float64, at points around the start."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from bilevelbench.autograd import derive
from bilevelbench.checks import check_instance
from bilevelbench.constants import _FORMULAS
from bilevelbench.errors import suggestion
from bilevelbench.evaluate import Evaluator
from bilevelbench.lanes import dot, norm
from bilevelbench.noise import Additive, Exact, FiniteSum, Rows
from bilevelbench.oracle import Oracle
from bilevelbench.problem import QUERIES, Instance, Problem
from bilevelbench.runner import default_dtype, one_thread
from bilevelbench.testing.bench import own_randomness, random_states
from bilevelbench.testing.common_checks import check_documented, check_name, check_name_is_free
from bilevelbench.testing.report import Failure, Skip

_KNOWN = {
    "mu", "L_f", "L_g", "rho_f", "rho_g", "nu_g", "C_f", "Delta", "R", "sigma_f", "sigma_g", "sigma_h", *_FORMULAS,
}  # fmt: skip
_STEP = 1e-4  # of finite differences
_DENSE = 60  # the lower Hessian is written out up to this dimension


def _build(problem: Problem, dtype: torch.dtype = torch.float64) -> Instance:
    with default_dtype(dtype), one_thread():
        return problem.build()


@functools.lru_cache(maxsize=2)
def _instance(problem: Problem) -> Instance:
    """One build for all checks of a problem."""
    return _build(problem)


def _is_cheap(instance: Instance) -> bool:
    """Whether phi can be looked at often."""
    return instance.reference is not None or instance.dy <= _DENSE


def _lanes(problem: Problem) -> int:
    return max(1, min(4, problem.max_lanes))


def _normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _points(problem: Problem, scale: float = 1.0, seed: int = 0) -> tuple[Tensor, Tensor]:
    """A point for each lane, around the start and inside of `x_limit`."""
    instance, L = _instance(problem), _lanes(problem)
    x = instance.x0 + scale * _normal(L, instance.dx, seed=2 * seed)
    edge = 0.9 * instance.x_limit
    return x.clamp(-edge, edge), instance.y0 + scale * _normal(L, instance.dy, seed=2 * seed + 1)


def _ask(function: Callable[..., Any], query: str, x: Tensor, y: Tensor, v: Tensor, *rows: Rows) -> tuple[Tensor, ...]:
    arguments = (x, y, v) if "vp_" in query else (x, y)
    with torch.no_grad(), one_thread():
        answer = function(*arguments, *rows)
    return answer if isinstance(answer, tuple) else (answer,)


def _off(ours: Tensor, theirs: Tensor) -> float:
    """The largest difference over the largest value."""
    if ours.shape != theirs.shape:
        return math.inf
    return float((ours - theirs).abs().max() / (theirs.abs().max() + 1e-9))


# ---------------------------------------------------------------------------------------------------- building


def check_builds(problem: Problem) -> None:
    """`build` gives an Instance whose functions answer over lanes, with the right shapes, in both dtypes."""
    for dtype in (torch.float64, torch.float32):
        instance = _build(problem, dtype) if dtype == torch.float32 else _instance(problem)
        if not isinstance(instance, Instance):
            raise Failure("an Instance from `build`", type(instance).__name__, "return Instance(f=..., g=..., ...)")
        for name in ("x0", "y0"):
            if getattr(instance, name).dtype != dtype:
                raise Failure(
                    f"{name} in {dtype} when that is torch's default",
                    f"{getattr(instance, name).dtype}",
                    "make the data in float64 and end with .to(torch.get_default_dtype())",
                )
        with one_thread():
            check_instance(instance)


def check_build_is_deterministic(problem: Problem) -> None:
    """Two builds agree bit for bit, whatever the global random generators say, and leave those alone."""
    with own_randomness(1):
        before = random_states()
        one = _build(problem)
        after = random_states()
    with own_randomness(2):
        other = _build(problem)
    touched = [name for name in before if before[name] != after[name]]
    if touched:
        raise Failure(
            "`build` to leave the global random generators alone",
            f"that of {' and '.join(touched)} moved",
            "draw with generator=self.generator(), which belongs to data_seed",
        )
    x, y = _points(problem)
    v = _normal(len(x), one.dy, seed=9)
    pairs: list[tuple[str, Tensor, Tensor]] = [("x0", one.x0, other.x0), ("y0", one.y0, other.y0)]
    for query in QUERIES:
        ours, theirs = (_ask(built.raw[query], query, x, y, v) for built in (one, other))
        pairs += [(query, a, b) for a, b in zip(ours, theirs, strict=True)]
    for name, a, b in pairs:
        if not torch.equal(torch.nan_to_num(a), torch.nan_to_num(b)):
            raise Failure(
                "two builds with one data_seed to be equal bit for bit",
                f"another {name} the second time",
                "draw with generator=self.generator() and let nothing depend on time or the order of sets",
            )
    if one.constants.given != other.constants.given:
        raise Failure("equal constants in two builds", "other ones", "compute them from the data alone")


# ---------------------------------------------------------------------------------------------------- derivatives


def check_derivatives(problem: Problem) -> None:
    """Each derivative that the problem brings is that of f or g by autograd, also for a mini-batch."""
    instance = _instance(problem)
    if not instance.analytic:
        raise Skip("it brings no derivatives; autograd makes them")
    x, y = _points(problem)
    v = _normal(len(x), instance.dy, seed=9)
    by_autograd = derive(instance.raw["value_f"], instance.raw["value_g"], {})
    for what, rows_of in (("", lambda level: ()), (" of a mini-batch", functools.partial(_some_rows, problem))):
        for query in sorted(instance.analytic):
            rows = rows_of("f" if "_f" in query else "g")
            if rows is None:
                continue
            ours = _ask(instance.raw[query], query, x, y, v, *rows)
            theirs = _ask(by_autograd[query], query, x, y, v, *rows)
            if len(ours) != len(theirs):
                raise Failure(f"{len(theirs)} tensors from {query}", f"{len(ours)}", "a joint gradient is (g_x, g_y)")
            for a, b in zip(ours, theirs, strict=True):
                off = _off(a, b)
                if not off <= 1e-7:
                    opposite = " (it has the opposite sign)" if _off(-a, b) <= 1e-7 else ""
                    raise Failure(
                        f"{query}{what} to be the derivative of {'f' if '_f' in query else 'g'} by autograd",
                        f"a relative difference of {off:.2g}{opposite}"
                        + (f": shape {tuple(a.shape)} for {tuple(b.shape)}" if a.shape != b.shape else ""),
                        f"correct {query}, or leave it out: autograd serves",
                    )


def _some_rows(problem: Problem, level: str) -> tuple[Rows] | None:
    noise = _instance(problem).noise
    if not isinstance(noise, FiniteSum):
        return None
    n, L = (noise.n_f if level == "f" else noise.n_g), _lanes(problem)
    index = torch.randint(n, (L, 3), generator=torch.Generator().manual_seed(5))
    return (Rows(index, torch.full((L, 3), 1 / 3, dtype=torch.float64)),)


def check_finite_differences(problem: Problem) -> None:
    """The gradients of f and g, and the products with H and J, against central differences along random directions."""
    instance = _instance(problem)
    x, y = _points(problem)
    v, dx = _normal(len(x), instance.dy, seed=9), _normal(len(x), instance.dx, seed=8)
    v, dx = v / norm(v), dx / norm(dx)
    ask = {query: functools.partial(_ask, instance.raw[query], query) for query in QUERIES}
    for level in "fg":
        (value,) = ask[f"value_{level}"](x, y, v)
        for block, a, b in (("x", dx, torch.zeros_like(y)), ("y", torch.zeros_like(x), v)):
            high, low = (ask[f"value_{level}"](x + s * a, y + s * b, v)[0] for s in (_STEP, -_STEP))
            (gradient,) = ask[f"grad_{level}_{block}"](x, y, v)
            slope = dot(gradient, dx if block == "x" else v)
            _compare(
                f"grad_{level}_{block}", slope, (high - low) / (2 * _STEP), norm(gradient), value.abs(),
                f"the slope of {level} along a direction of {block}",
            )  # fmt: skip
    g_y = ask["grad_g_y"]
    (size,) = (norm(t) for t in g_y(x, y, v))
    (Hv,), (Jv,) = ask["hvp_g_yy"](x, y, v), ask["jvp_g_xy"](x, y, v)
    along_y = (g_y(x, y + _STEP * v, v)[0] - g_y(x, y - _STEP * v, v)[0]) / (2 * _STEP)
    along_x = (g_y(x + _STEP * dx, y, v)[0] - g_y(x - _STEP * dx, y, v)[0]) / (2 * _STEP)
    _compare("hvp_g_yy", Hv, along_y, norm(Hv), size, "the change of g_y along v")
    _compare("jvp_g_xy", dot(Jv, dx), dot(along_x, v), norm(Jv), size, "the change of <g_y, v> along x")


def _compare(query: str, ours: Tensor, difference: Tensor, scale: Tensor, size: Tensor, what: str) -> None:
    """`scale` is that of the derivative, `size` that of what was subtracted, whose rounding counts."""
    allowed = 1e-5 * (scale + 1e-3) + 100 * torch.finfo(torch.float64).eps * size / _STEP
    off = (ours - difference).abs()
    if not bool((off <= allowed).all()):
        worst = int((off / allowed).amax(-1).reshape(-1).argmax())
        raise Failure(
            f"{query} to be {what}, by central differences",
            f"{float(ours[worst].flatten()[0]):.6g} where differences give {float(difference[worst].flatten()[0]):.6g}",
            "look at its sign and factors, and for .detach() or .item() inside f and g",
        )


def check_lower_solution(problem: Problem) -> None:
    """g_y(x, y*(x)) = 0, by the closed form or, without one, by the evaluator's solver; phi(x) = f(x, y*(x))."""
    instance = _instance(problem)
    x, y = _points(problem)
    with torch.no_grad(), one_thread():
        if instance.reference is not None:
            solution, how = instance.reference.y_star(x), "correct Reference.y_star"
        else:
            solution = Evaluator(instance)._solve_lower(x, y)
            how = "is g strongly convex and twice differentiable in y?"
        left, start = norm(instance.raw["grad_g_y"](x, solution)), norm(instance.raw["grad_g_y"](x, y))
        if not bool((left <= 1e-8 * (1 + start)).all()):
            raise Failure(
                "g_y(x, y*(x)) = 0", f"|g_y| = {float(left.max()):.2g} there, {float(start.max()):.2g} elsewhere", how
            )
        if instance.reference is not None:
            phi, value = instance.reference.phi(x), instance.raw["value_f"](x, solution)
            if not _off(phi, value) <= 1e-8:
                raise Failure(
                    "phi(x) = f(x, y*(x))",
                    f"{float(phi.flatten()[0]):.6g} and {float(value.flatten()[0]):.6g}",
                    "correct Reference.phi",
                )


def check_hypergradient(problem: Problem) -> None:
    """grad phi against central differences of phi along random directions, and f_x - J H^-1 f_y where both are known."""
    instance = _instance(problem)
    evaluator, L = Evaluator(instance), _lanes(problem)
    x, y = (t[:1].expand(L, -1) for t in _points(problem, 0.5))
    d = _normal(L, instance.dx, seed=8)
    d = d / norm(d)
    with torch.no_grad(), one_thread():
        gradient = evaluator.grad_phi(x, y)
        high, low = (evaluator(x + s * d, y).phi for s in (_STEP, -_STEP))
        solved = 1e-10 if instance.reference is None else 0.0
        _compare(
            "grad phi", dot(gradient, d), (high - low) / (2 * _STEP), norm(gradient) + solved / _STEP,
            high.abs(), "the slope of phi",
        )  # fmt: skip
        if instance.reference is not None:
            by_solver, given = _implicit(instance, x), instance.reference.grad_phi(x)
            if not _off(given, by_solver) <= 1e-6:
                raise Failure(
                    "Reference.grad_phi = f_x - J H^-1 f_y",
                    f"a relative difference of {_off(given, by_solver):.2g}",
                    "correct one of them",
                )


def _implicit(instance: Instance, x: Tensor) -> Tensor:
    """f_x - J H^-1 f_y at y*(x)."""
    assert instance.reference is not None
    y = instance.reference.y_star(x)
    f_x, f_y = instance.raw["grad_f"](x, y)
    v, _ = Evaluator(instance)._solve_linear(x, y, f_y)
    out: Tensor = f_x - instance.raw["jvp_g_xy"](x, y, v)
    return out


# ---------------------------------------------------------------------------------------------------- lanes


def check_lanes(problem: Problem) -> None:
    """A lane's answers do not depend on the other lanes, and points stacked in front are answered one by one."""
    instance, L = _instance(problem), _lanes(problem)
    if L == 1:
        raise Skip("it declares max_lanes = 1")
    x, y = _points(problem)
    v = _normal(L, instance.dy, seed=9)
    for query in sorted(
        QUERIES, key=lambda query: not query.startswith("value")
    ):  # a wrong value spoils its derivatives
        together = _ask(instance.raw[query], query, x, y, v)
        for lane in range(L):
            alone = _ask(instance.raw[query], query, x[lane : lane + 1], y[lane : lane + 1], v[lane : lane + 1])
            for a, b in zip(together, alone, strict=True):
                if not _off(a[lane : lane + 1], b) <= 1e-9:
                    raise Failure(
                        f"{query} of a lane to be the same in any company",
                        f"another answer for lane {lane} of {L} than for it alone",
                        "reduce the last axis only, `(...).sum(-1, keepdim=True)` or dot(a, b): the axis before it is the lane",
                    )
    for name, metric in instance.metrics.items():
        with torch.no_grad(), one_thread():
            shape = tuple(metric(x, y).shape)
        if shape != (L, 1):
            raise Failure(f"metric {name!r} of shape ({L}, 1)", f"{shape}", "one number a lane, the last axis kept")


def check_points(problem: Problem) -> None:
    """With points="stack" each function takes points in front, also of one argument only; closed forms always do."""
    instance, L = _instance(problem), _lanes(problem)
    x, y = _points(problem)
    v = _normal(L, instance.dy, seed=9)
    X, Y = (torch.stack([t, 0.5 * t, -t]) for t in (x, y))
    if instance.points == "stack":
        for query in QUERIES:
            single = [_ask(instance.raw[query], query, X[p], Y[p], v) for p in range(3)]
            mixed = [_ask(instance.raw[query], query, x, Y[p], v) for p in range(3)]
            for what, parts, answer in (
                ("x and y", single, _ask(instance.raw[query], query, X, Y, v.expand(3, -1, -1))),
                ("y alone", mixed, _ask(instance.raw[query], query, x, Y, v)),
            ):
                for block, a in enumerate(answer):
                    wanted = torch.stack([part[block] for part in parts])
                    if not _off(a, wanted) <= 1e-9:
                        raise Failure(
                            f"{query} at three stacked points of {what} to be {tuple(wanted.shape)}, point by point",
                            f"{tuple(a.shape)}" if a.shape != wanted.shape else "other values",
                            'let it broadcast over axes on the left, or say points="loop"',
                        )
    if instance.reference is not None:
        for name, width in (("y_star", instance.dy), ("phi", 1), ("grad_phi", instance.dx)):
            with torch.no_grad(), one_thread():
                shape = tuple(getattr(instance.reference, name)(X).shape)
            if shape != (3, L, width):
                raise Failure(
                    f"Reference.{name} of shape (3, {L}, {width}) at 3 points", f"{shape}", "let it broadcast"
                )
    elif instance.points != "stack":
        raise Skip('points="loop" and no closed forms: it is asked point by point')


def check_stacked_data(problem: Problem) -> None:
    """`build_lanes` puts data sets side by side as `build` makes them one by one; `take` picks some."""
    if not problem.stackable():
        raise Skip("it has no `build_lanes`")
    seeds = list(problem.data_sets[:2])
    order = [seeds[0], seeds[1], seeds[0], seeds[1]]
    with default_dtype(torch.float64), one_thread():
        stacked = problem.build_lanes(order)
        single = [type(problem).model_validate({**dict(problem), "data_seed": seed}).build() for seed in order]
        picked = stacked.take(torch.tensor([1, 1]))
    x, y = (t[:1].expand(4, -1) for t in _points(problem))
    v = _normal(1, stacked.dy, seed=9).expand(4, -1)
    for query in QUERIES:
        answers = _ask(stacked.raw[query], query, x, y, v)
        of_pick = _ask(picked.raw[query], query, x[:2], y[:2], v[:2])
        for lane, one in enumerate(single):
            for a, b in zip(answers, _ask(one.raw[query], query, x[:1], y[:1], v[:1]), strict=True):
                if not _off(a[lane : lane + 1], b) <= 1e-9:
                    raise Failure(
                        f"{query} of data set {order[lane]} in a stack to be what `build` gives for it",
                        "another answer",
                        "stack the data along the lane axis in the order of data_seeds",
                    )
        for a, b in zip(of_pick, answers, strict=True):
            if not _off(a[:1], b[1:2]) <= 1e-9:
                raise Failure(f"take(lanes) to keep the data of those lanes for {query}", "others", "index_select them")


# ---------------------------------------------------------------------------------------------------- constants


def _holds(problem: Problem, *names: str) -> dict[str, float]:
    """The values of those constants that are declared to hold."""
    given = _instance(problem).constants.given
    return {name: given[name].most for name in names if name in given and given[name].kind != "estimated"}


def _far_and_near(problem: Problem) -> Iterator[tuple[Tensor, Tensor]]:
    """Points at three scales; those where f or g is not finite are somebody else's affair."""
    instance = _instance(problem)
    for seed, scale in enumerate((0.1, 1.0, 5.0)):
        x, y = _points(problem, scale, seed)
        values = [_ask(instance.raw[q], q, x, y, y)[0] for q in ("value_f", "value_g")]
        if all(bool(value.isfinite().all()) for value in values):
            yield x, y


def check_constants(problem: Problem) -> None:
    """Constants have known names and are finite, none below zero, and mu <= L_gy <= L_g."""
    given = _instance(problem).constants.given
    for name, constant in given.items():
        if name not in _KNOWN and (hint := suggestion(name, _KNOWN)).startswith("; did"):
            hint = "; did you mean 'mu'?" if name == "mu_g" else hint
            raise Failure("known names of constants", repr(name), f"correct it{hint}")
        values = constant.value if isinstance(constant.value, tuple) else (constant.value,)
        if not all(math.isfinite(value) and value >= 0 for value in values):
            raise Failure(
                "finite constants, zero or more", f"{name} = {constant.value}", "leave out what does not exist"
            )
    holds = _holds(problem, "mu", "L_gy", "L_g")
    for low, high in (("mu", "L_gy"), ("mu", "L_g"), ("L_gy", "L_g")):
        if low in holds and high in holds and holds[low] > holds[high] * (1 + 1e-9):
            raise Failure(f"{low} <= {high}", f"{holds[low]:.6g} > {holds[high]:.6g}", "correct one of them")


def check_strong_convexity(problem: Problem) -> None:
    """The Hessian of g in y has no eigenvalue below mu, at points near and far."""
    holds = _holds(problem, "mu")
    if not holds:
        raise Skip("mu is not declared to hold everywhere")
    instance, mu = _instance(problem), holds["mu"]
    if not mu > 0:
        raise Failure("mu > 0", f"{mu:g}", "the lower level has to be strongly convex in y")
    for x, y in _far_and_near(problem):
        low, high = _spectrum(instance, x, y)
        if low < mu - 1e-6 * mu - 1e-12 * high:
            raise Failure(
                f"no eigenvalue of g_yy below mu = {mu:.6g}", f"{low:.6g}", "lower mu, or mark it `estimated(...)`"
            )


def _spectrum(instance: Instance, x: Tensor, y: Tensor) -> tuple[float, float]:
    """The ends of the lower Hessian's spectrum over the lanes, or, of a large one, values inside that are close to them."""
    dy = instance.dy

    def H(v: Tensor) -> Tensor:
        return _ask(instance.raw["hvp_g_yy"], "hvp_g_yy", x, y, v)[0]

    if dy <= _DENSE:
        columns = [H(e.expand(len(x), -1)) for e in torch.eye(dy, dtype=torch.float64)]
        matrix = torch.stack(columns, -1)
        eigenvalues = torch.linalg.eigvalsh((matrix + matrix.mT) / 2)
    else:
        eigenvalues = torch.linalg.eigvalsh(_lanczos(H, _normal(len(x), dy, seed=7), 30))
    return float(eigenvalues.min()), float(eigenvalues.max())


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
    holds = _holds(problem, "L_gy", "L_g", "L_f", "L_phi")
    if not holds:
        raise Skip("none of L_gy, L_g, L_f, L_phi is declared to hold everywhere")
    for name, gradient, z in _gradients(problem):
        if name in holds:
            rate = _steepest(gradient, z, iterations=4 if name == "L_phi" else 15)
            if not rate <= holds[name] * (1 + 1e-5) + 1e-9:
                raise Failure(
                    f"{name} = {holds[name]:.6g} to bound the change of its gradient",
                    f"a change of {rate:.6g} a unit",
                    f"raise {name}, or mark it `estimated(...)`",
                )


def _gradients(problem: Problem) -> Iterator[tuple[str, Callable[[Tensor], Tensor], Tensor]]:
    """The name of a Lipschitz constant, the gradient that it is about, a point."""
    instance = _instance(problem)
    evaluator, dx = Evaluator(instance), instance.dx

    def joint(level: str, z: Tensor) -> Tensor:
        return torch.cat(instance.raw[f"grad_{level}"](z[:, :dx], z[:, dx:]), -1)

    def lower(x: Tensor, y: Tensor) -> Tensor:
        answer: Tensor = instance.raw["grad_g_y"](x, y)
        return answer

    def upper(y: Tensor, x: Tensor) -> Tensor:
        return evaluator.grad_phi(x, y)

    for x, y in _far_and_near(problem):
        yield "L_f", functools.partial(joint, "f"), torch.cat([x, y], -1)
        yield "L_g", functools.partial(joint, "g"), torch.cat([x, y], -1)
        yield "L_gy", functools.partial(lower, x), y
        if _is_cheap(instance):
            yield "L_phi", functools.partial(upper, y), x


@torch.no_grad()
def _steepest(gradient: Callable[[Tensor], Tensor], z: Tensor, iterations: int, h: float = 1e-3) -> float:
    """The largest |grad(z + hd) - grad(z - hd)|/2h over the lanes, d by power iteration."""
    d, most = _normal(*z.shape, seed=6), 0.0
    with one_thread():
        for _ in range(iterations):
            d = d / norm(d).clamp(min=1e-300)
            d = (gradient(z + h * d) - gradient(z - h * d)) / (2 * h)
            most = max(most, float(norm(d).nan_to_num(0.0).max()))
            if most == 0:
                break
    return most


def check_lipschitz_hessians(problem: Problem) -> None:
    """rho_f, rho_g, rho_phi bound second differences of gradients: |grad(z+d) - 2 grad(z) + grad(z-d)| <= rho |d|^2."""
    holds = {name.replace("rho", "L"): value for name, value in _holds(problem, "rho_f", "rho_g", "rho_phi").items()}
    if not holds:
        raise Skip("none of rho_f, rho_g, rho_phi is declared to hold everywhere")
    for name, gradient, z in _gradients(problem):
        if name not in holds:
            continue
        for length in (0.1, 1.0):
            d = _normal(*z.shape, seed=5)
            d = length * d / norm(d)
            with torch.no_grad(), one_thread():
                middle = gradient(z)
                bend = norm(gradient(z + d) - 2 * middle + gradient(z - d))
            rate = float((bend / length**2).max())
            rounding = 1e-12 * float(norm(middle).max() + norm(z).max() + 1) / length**2
            solved = 1e-8 if name == "L_phi" and _instance(problem).reference is None else 0.0
            if not rate <= holds[name] * (1 + 1e-6) + rounding + solved / length**2:
                rho = name.replace("L", "rho")
                raise Failure(
                    f"{rho} = {holds[name]:.6g} to bound the change of its Hessian",
                    f"a second difference of {rate:.6g} a unit",
                    f"raise {rho}, or mark it `estimated(...)`",
                )


def check_slope_of_f(problem: Problem) -> None:
    """|f_y| <= C_f at points near and far."""
    holds = _holds(problem, "C_f")
    if not holds:
        raise Skip("C_f is not declared to hold everywhere")
    for x, y in _far_and_near(problem):
        size = float(norm(_ask(_instance(problem).raw["grad_f_y"], "grad_f_y", x, y, y)[0]).max())
        if not size <= holds["C_f"] * (1 + 1e-9):
            raise Failure(
                f"|f_y| <= C_f = {holds['C_f']:.6g}",
                f"{size:.6g}",
                "raise C_f, or mark it `estimated(...)`: f may have no such bound",
            )


def check_start(problem: Problem) -> None:
    """phi(x0) - phi(x) <= Delta, and |y0 - y*(x0)|^2 <= R."""
    holds, instance = _holds(problem, "Delta", "R"), _instance(problem)
    if not holds:
        raise Skip("neither Delta nor R is declared to hold")
    evaluator, L = Evaluator(instance), _lanes(problem)
    x0, y0 = instance.x0.expand(L, -1), instance.y0.expand(L, -1)
    with torch.no_grad(), one_thread():
        if "R" in holds:
            reference = instance.reference
            solution = evaluator._solve_lower(x0, y0) if reference is None else reference.y_star(x0)
            distance = float((norm(y0 - solution) ** 2).max())
            if not distance <= holds["R"] * (1 + 1e-6) + 1e-9:
                raise Failure(f"|y0 - y*(x0)|^2 <= R = {holds['R']:.6g}", f"{distance:.6g}", "correct R")
        if "Delta" in holds:
            phi0 = evaluator(x0, y0).phi
            points = [_points(problem, 0.1)]
            if _is_cheap(instance):
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


# ---------------------------------------------------------------------------------------------------- noise


def check_noise(problem: Problem) -> None:
    """Samples are unbiased: additive noise has mean zero and the declared variance, blocks of a finite sum have its mean.

    A problem with fields sigma_f, sigma_g, sigma_h, all zero, is tried with others.
    """
    noise = _instance(problem).noise
    levels = {"sigma_f": 0.1, "sigma_g": 0.2, "sigma_h": 0.3}
    if isinstance(noise, Exact) and levels.keys() <= type(problem).model_fields.keys():
        problem = type(problem).model_validate({**dict(problem), **levels})
        noise = _instance(problem).noise
    if isinstance(noise, Exact):
        raise Skip("it is exact with these parameters")
    if isinstance(noise, Additive):
        _check_additive(problem)
    else:
        _check_finite_sum(problem, noise)


def _check_additive(problem: Problem) -> None:
    instance, L = _instance(problem), _lanes(problem)
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
    instance = _instance(problem)
    x, y = (t[:1] for t in _points(problem, 0.5))
    v = _normal(1, instance.dy, seed=9)
    queries = {
        "f": ("value_f", "grad_f_x", "grad_f_y"),
        "g": ("value_g", "grad_g_x", "grad_g_y", "hvp_g_yy", "jvp_g_xy"),
    }
    for level, n in (("f", noise.n_f), ("g", noise.n_g)):
        size = max(1, min(200, n // 2))
        starts = range(0, n, size)
        for query in queries[level]:
            (whole,) = _ask(instance.raw[query], query, x, y, v)
            total = torch.zeros_like(whole)
            for start in starts:
                index = torch.arange(start, min(n, start + size)).reshape(1, -1)
                rows = Rows(index, torch.full(index.shape, len(starts) / n, dtype=torch.float64))
                total = total + _ask(instance.raw[query], query, x, y, v, rows)[0] / len(starts)
            if not _off(total, whole) <= 1e-7:
                raise Failure(
                    f"the mean of {query} over all blocks of rows to be that of the whole sum",
                    f"a relative difference of {_off(total, whole):.2g}",
                    f"sum rows.weight * loss[rows.index]; rows=None is the mean over the {n} rows",
                )


def check_oracle(problem: Problem) -> None:
    """Every query passes the oracle, exact and sampled, at one point and at two, and both counts agree."""
    instance, L = _build(problem), _lanes(problem)
    oracle = Oracle(instance, frozenset(QUERIES), range(L))
    oracle.begin_step(1)
    x, y = _points(problem, 0.1)
    v = _normal(L, instance.dy, seed=9)
    widths = {"x": instance.dx, "y": instance.dy, "f": 1, "g": 1}
    with torch.no_grad(), one_thread():
        for query in QUERIES:
            sample = oracle.sample_f(1) if "_f" in query else oracle.sample_g(1)
            for points in ((), (2,)):
                X, Y = x.expand(*points, -1, -1), y.expand(*points, -1, -1)
                arguments = (X, Y, v) if "vp_" in query else (X, Y)
                for xi in (None, sample):
                    answer = getattr(oracle, query)(*arguments, xi)
                    ends = ("x", "y") if query in ("grad_f", "grad_g") else ("x" if query == "jvp_g_xy" else query[-1],)
                    for end, a in zip(ends, answer if isinstance(answer, tuple) else (answer,), strict=True):
                        wanted = (*points, L, widths[end])
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


#: In this order; `builds` first, since a problem that cannot be built fails everywhere.
PROBLEM_CHECKS = (
    check_name,
    check_name_is_free,
    check_documented,
    check_builds,
    check_build_is_deterministic,
    check_derivatives,
    check_finite_differences,
    check_lower_solution,
    check_hypergradient,
    check_lanes,
    check_points,
    check_stacked_data,
    check_constants,
    check_strong_convexity,
    check_lipschitz_gradients,
    check_lipschitz_hessians,
    check_slope_of_f,
    check_start,
    check_noise,
    check_oracle,
)
