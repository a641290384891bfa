"""A hypergradient of a small network, ours over that of other libraries, at the same numbers; float64, one thread.

torchopt and higher record the graph of all steps, as `unrolled` does here; torchopt's implicit gradient solves the normal
equations by conjugate gradients, beside our `implicit`. All by autograd, of the same functions. Processor time, ratios of
minima, taken in turns within one run. Nothing is asserted about time here: the numbers go to summary.json. Needs
`bilevelbench[peers]`.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from test_hypergradient import STEPS, Case, Tensors, network, ours_cg, ours_unrolled
from torch import nn
from turns import ratio


class Holder(nn.Module):
    """y as the parameters of a module, which both libraries want."""

    def __init__(self, y: Tensors) -> None:
        super().__init__()
        self.y = nn.ParameterList([nn.Parameter(t.clone()) for t in y])

    def forward(self, loss: Callable[[Tensors], torch.Tensor]) -> torch.Tensor:
        return loss(list(self.y))


def leaves(tensors: Tensors) -> Tensors:
    return [t.detach().requires_grad_(True) for t in tensors]


def by_torchopt(case: Case) -> Tensors:
    torchopt = pytest.importorskip("torchopt", reason="this peer needs torchopt: pip install 'bilevelbench[peers]'")
    x, net = leaves(case.x), Holder(case.y)
    optimiser = torchopt.MetaSGD(net, lr=case.step)
    for _ in range(STEPS):
        optimiser.step(net(lambda y: case.g(x, y)))
    return list(torch.autograd.grad(net(lambda y: case.f(x, y)), x))


def by_higher(case: Case) -> Tensors:
    higher = pytest.importorskip("higher", reason="this peer needs higher: pip install 'bilevelbench[peers]'")
    x, net = leaves(case.x), Holder(case.y)
    optimiser = torch.optim.SGD(net.parameters(), lr=case.step)
    with higher.innerloop_ctx(net, optimiser) as (moving, differentiable):
        for _ in range(STEPS):
            differentiable.step(moving(lambda y: case.g(x, y)))
        return list(torch.autograd.grad(moving(lambda y: case.f(x, y)), x))


def by_torchopt_cg(case: Case) -> Tensors:
    torchopt = pytest.importorskip("torchopt", reason="this peer needs torchopt: pip install 'bilevelbench[peers]'")

    def slope(y: tuple[torch.Tensor, ...], x: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        return torch.func.grad(lambda y, x: case.g(list(x), list(y)))(y, x)

    solver = torchopt.linear_solve.solve_normal_cg(maxiter=STEPS, atol=0)

    @torchopt.diff.implicit.custom_root(slope, argnums=1, solve=solver)
    def minimiser(y: tuple[torch.Tensor, ...], x: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        return y

    x = tuple(leaves(case.x))
    y = minimiser(tuple(leaves(case.y)), x)
    return list(torch.autograd.grad(case.f(list(x), list(y)), x))


PEERS = {
    "torchopt_unrolled": (by_torchopt, ours_unrolled, 1e-9),
    "higher_unrolled": (by_higher, ours_unrolled, 1e-9),
    "torchopt_cg": (by_torchopt_cg, ours_cg, 1e-4),  # other equations: as far as ten products get
}


@pytest.mark.parametrize("peer", PEERS)
@pytest.mark.filterwarnings("ignore")  # theirs
@torch.enable_grad()
def test_library(benchmark, summary, peer):
    case, (theirs, ours, close) = network(), PEERS[peer]
    for a, b in zip(ours(case), theirs(case), strict=True):
        assert (a - b).norm() <= close * b.norm()
    found = benchmark.pedantic(ratio, args=(lambda: ours(case), lambda: theirs(case), 60), rounds=1)
    summary[f"library_ratio_{peer}"] = found
