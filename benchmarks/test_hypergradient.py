"""Hypergradients of functions of one's own, ours over a plain script in torch that does the same; float64, one thread.

The peers are what one would write by hand, on lists of tensors as their owner has them: conjugate gradients and the fixed
point on the transposed Jacobian of a gradient step, one graph for all products (Grazzi, Franceschi, Pontil, Salzo, ICML 2020),
backwards through a stored trajectory, and backwards through the graph of the whole trajectory. Processor time, ratios of
minima, taken in turns within one run. Nothing is asserted about time here: the numbers go to summary.json.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from turns import ratio

from bilevelbench.torch_hypergradient import implicit, unrolled

STEPS = 10

Tensors = list[Tensor]
Loss = Callable[[Tensors, Tensors], Tensor]


@dataclass(frozen=True)
class Case:
    """f and g of (x, y), two lists of tensors, a point and the length of a lower step."""

    f: Loss
    g: Loss
    x: Tensors
    y: Tensors
    step: float


def ridge() -> Case:
    """A weight for each of 20 features: everything is overhead."""
    rng = torch.Generator().manual_seed(0)
    A, b = (torch.randn(*shape, generator=rng, dtype=torch.float64) for shape in ((200, 20), (200,)))

    def g(x: Tensors, y: Tensors) -> Tensor:
        return (A[:100] @ y[0] - b[:100]).square().mean() + (x[0].exp() * y[0].square()).sum()

    def f(x: Tensors, y: Tensors) -> Tensor:
        return (A[100:] @ y[0] - b[100:]).square().mean()

    return Case(f, g, [torch.zeros(20, dtype=torch.float64)], [0.1 * torch.ones(20, dtype=torch.float64)], 0.1)


def network(inputs: int = 10, hidden: int = 16, samples: int = 60) -> Case:
    """Weights of samples for two layers, in four tensors."""
    rng = torch.Generator().manual_seed(0)
    A = torch.randn(2 * samples, inputs, generator=rng, dtype=torch.float64)
    b = torch.randint(3, (2 * samples,), generator=rng)
    shapes = ((hidden, inputs), (hidden,), (3, hidden), (3,))
    y = [torch.randn(*shape, generator=rng, dtype=torch.float64) / inputs**0.5 for shape in shapes]

    def scores(y: Tensors, inputs: Tensor) -> Tensor:
        return torch.tanh(inputs @ y[0].T + y[1]) @ y[2].T + y[3]

    def g(x: Tensors, y: Tensors) -> Tensor:
        losses = cross_entropy(scores(y, A[:samples]), b[:samples], reduction="none")
        return (x[0].sigmoid() * losses).mean() + 0.5 * sum(t.square().sum() for t in y)

    def f(x: Tensors, y: Tensors) -> Tensor:
        return cross_entropy(scores(y, A[samples:]), b[samples:])

    return Case(f, g, [torch.zeros(samples, dtype=torch.float64)], y, 0.1)


def large_network() -> Case:
    """The same with some arithmetic in it."""
    return network(inputs=100, hidden=100, samples=400)


CASES = (ridge, network, large_network)


def by_hand_cg(case: Case) -> Tensors:
    """(I - T')ᵀ v = f_y by conjugate gradients, T the gradient step; f_x + (dT/dx)ᵀ v."""
    x, w, moved, f_x, f_w = _linearised(case)
    v = [torch.zeros_like(t) for t in f_w]
    r = p = f_w
    rr = _dot(r, r)
    for _ in range(STEPS):
        Ap = [a - b for a, b in zip(p, torch.autograd.grad(moved, w, p, retain_graph=True), strict=True)]
        alpha = rr / _dot(p, Ap)
        v = [a + alpha * b for a, b in zip(v, p, strict=True)]
        r = [a - alpha * b for a, b in zip(r, Ap, strict=True)]
        new = _dot(r, r)
        if float(new) < 1e-40:
            break
        p = [a + (new / rr) * b for a, b in zip(r, p, strict=True)]
        rr = new
    return _sum(f_x, torch.autograd.grad(moved, x, v))


def by_hand_fixed_point(case: Case) -> Tensors:
    """v <- T'ᵀ v + f_y; f_x + (dT/dx)ᵀ v."""
    x, w, moved, f_x, f_w = _linearised(case)
    v = [torch.zeros_like(t) for t in f_w]
    for _ in range(STEPS):
        v = _sum(torch.autograd.grad(moved, w, v, retain_graph=True), f_w)
    return _sum(f_x, torch.autograd.grad(moved, x, v))


def by_hand_reverse(case: Case) -> Tensors:
    """A trajectory without a graph, then one step after the other, from the last one back."""
    x = _leaves(case.x)
    history = [_leaves(case.y)]
    for _ in range(STEPS):
        history.append(_leaves(_moved(case, x, history[-1])))
    f_x, alpha = _outer(case, x, history[-1])
    for w in reversed(history[:-1]):
        moved = _moved(case, x, w, create_graph=True)
        f_x = _sum(f_x, torch.autograd.grad(moved, x, alpha, retain_graph=True))
        alpha = torch.autograd.grad(moved, w, alpha)
    return f_x


def by_hand_unrolled(case: Case) -> Tensors:
    """One graph of all steps."""
    x, w = _leaves(case.x), _leaves(case.y)
    for _ in range(STEPS):
        w = _moved(case, x, w, create_graph=True)
    return list(torch.autograd.grad(case.f(x, w), x))


def _leaves(tensors: Tensors) -> Tensors:
    return [t.detach().requires_grad_(True) for t in tensors]


def _moved(case: Case, x: Tensors, w: Tensors, create_graph: bool = False) -> Tensors:
    slopes = torch.autograd.grad(case.g(x, w), w, create_graph=create_graph)
    return [t - case.step * slope for t, slope in zip(w, slopes, strict=True)]


def _outer(case: Case, x: Tensors, w: Tensors) -> tuple[Tensors, Tensors]:
    grads = torch.autograd.grad(case.f(x, w), [*x, *w], allow_unused=True)
    f_x = [torch.zeros_like(t) if g is None else g for t, g in zip(x, grads, strict=False)]
    return f_x, list(grads[len(x) :])


def _linearised(case: Case) -> tuple[Tensors, Tensors, Tensors, Tensors, Tensors]:
    x, w = _leaves(case.x), _leaves(case.y)
    return x, w, _moved(case, x, w, create_graph=True), *_outer(case, x, w)


def _dot(a: Tensors, b: Tensors) -> Tensor:
    return sum((u * v).sum() for u, v in zip(a, b, strict=True))


def _sum(a: Tensors, b: Tensors) -> Tensors:
    return [u + v for u, v in zip(a, b, strict=True)]


def ours_cg(case: Case) -> Tensors:
    return implicit(case.f, case.g, case.x, case.y, solver="cg", steps=STEPS).grad


def ours_richardson(case: Case) -> Tensors:
    return implicit(case.f, case.g, case.x, case.y, solver="richardson", steps=STEPS, step=case.step).grad


def ours_reverse(case: Case) -> Tensors:
    return unrolled(case.f, case.g, case.x, case.y, steps=STEPS, step=case.step).grad


def ours_unrolled(case: Case) -> Tensors:
    return unrolled(case.f, case.g, case.x, case.y, steps=STEPS, step=case.step, one_graph=True).grad


PAIRS = {
    "cg": (ours_cg, by_hand_cg),
    "fixed_point": (ours_richardson, by_hand_fixed_point),
    "reverse": (ours_reverse, by_hand_reverse),
    "unrolled": (ours_unrolled, by_hand_unrolled),
}


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("make", CASES, ids=lambda make: make.__name__)
@torch.enable_grad()
def test_hypergradient(benchmark, summary, make, pair):
    case, (ours, by_hand) = make(), PAIRS[pair]
    for a, b in zip(ours(case), by_hand(case), strict=True):
        torch.testing.assert_close(a, b)  # both estimate the same
    found = benchmark.pedantic(ratio, args=(lambda: ours(case), lambda: by_hand(case), 60), rounds=1)
    summary[f"hypergradient_ratio_{make.__name__}_{pair}"] = found
