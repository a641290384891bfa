"""A gradient of 20 newsgroups over its two sparse products, and a step against plain autograd; float32, one thread.

On the real posts where they are, on `newsgroups_synthetic` of the same size where not. Ratios are of minima, taken in
turns within one run. Nothing is asserted about time here: the numbers go to summary.json. Beside the ratios: seconds of y*
at one point, from the pretrained y and from the y* of another x near by, and the most memory of a trial of F2BA. All seconds
are those of the processor.
"""

from __future__ import annotations

import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from bilevelbench_methods.penalty.f2ba import F2BA
from bilevelbench_problems import Newsgroups, NewsgroupsSynthetic
from bilevelbench_problems.csr import CSR
from bilevelbench_problems.newsgroups import _by_frequency, _first_fit, _prepared, _start
from torch import Tensor
from torch.nn.functional import cross_entropy
from turns import ratio

from bilevelbench.engine.setup import PreparedPack
from bilevelbench.model.torch_state import default_dtype
from bilevelbench.results.tables import load_results

LAM, STEP, X_STEP = 10.0, 5.0, 1000.0


@pytest.fixture(scope="module")
def problem():
    real = Newsgroups(pretrain=0)
    return real if Newsgroups.data_files[0].locate() is not None else NewsgroupsSynthetic(pretrain=0)


@pytest.fixture(scope="module")
def instance(problem):
    with default_dtype(torch.float32):
        return problem.build()


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def test_gradient_over_products(benchmark, summary, problem, instance):
    """g_y over A Y and Aᵀ R alone."""
    A = CSR(_prepared(problem)[0][0][0], torch.float32)
    x, y, R = normal(1, instance.dx), normal(1, instance.dy), normal(5657, 20)
    Y = y.reshape(-1, 20)
    found = benchmark.pedantic(
        ratio, args=(lambda: instance._raw["grad_g_y"](x, y), lambda: (A @ Y, A.T @ R), 60), rounds=1
    )
    benchmark.extra_info["problem"] = problem.name
    summary["news_gradient_over_spmm"] = found


class Ours:
    """One metered step of F2BA, K = 10."""

    def __init__(self, instance) -> None:
        method = F2BA(lam=LAM, K=10, eta_x=X_STEP, a_y=STEP, a_z=STEP)
        self.pack = PreparedPack(instance, [method], [0])
        self.state = self.pack.init()

    def __call__(self) -> Tensor:
        return self.pack.step(1, self.state).x


class Plain:
    """The same step as a script would have it: COO matrices, words in the order of the published files, autograd, no bench."""

    def __init__(self, problem) -> None:
        self.data = []
        self.ours = _by_frequency(problem._posts()[0])  # word by word, which of theirs it is
        for A, b in _prepared(problem)[0][:2]:
            entries = A[:, np.argsort(self.ours)].tocoo()
            index = torch.stack([torch.from_numpy(entries.row).long(), torch.from_numpy(entries.col).long()])
            matrix = torch.sparse_coo_tensor(
                index, torch.from_numpy(entries.data).float(), A.shape, check_invariants=True
            )
            self.data.append((matrix.coalesce(), torch.from_numpy(b).long()))
        self.p = A.shape[1]

    def f(self, y: Tensor) -> Tensor:
        A, b = self.data[1]
        return cross_entropy(torch.sparse.mm(A, y), b)

    def g(self, x: Tensor, y: Tensor) -> Tensor:
        A, b = self.data[0]
        return cross_entropy(torch.sparse.mm(A, y), b) + 0.5 * (x.exp().unsqueeze(-1) * y.square()).mean()

    @torch.enable_grad()
    def __call__(self) -> Tensor:
        grad = torch.autograd.grad
        x = torch.zeros(self.p, requires_grad=True)
        y = torch.zeros(self.p, 20, requires_grad=True)
        z = torch.zeros(self.p, 20, requires_grad=True)
        for _ in range(10):
            V, U = grad(self.g(x, z), z)[0], grad(self.f(y) / LAM + self.g(x, y), y)[0]
            z = (z - STEP * V).detach().requires_grad_(True)
            y = (y - STEP * U).detach().requires_grad_(True)
        d = LAM * (grad(self.g(x, y), x)[0] - grad(self.g(x, z), x)[0])
        return (x - X_STEP * d).detach()


def test_step_over_autograd(benchmark, summary, problem, instance):
    ours, plain = Ours(instance), Plain(problem)
    x, expected = ours()[0], plain()[plain.ours]
    assert expected.abs().max() > 0
    assert (x - expected).norm() < 1e-3 * expected.norm(), "both make the same step"
    summary["news_step_speedup"] = benchmark.pedantic(ratio, args=(plain, ours, 3), rounds=1)
    benchmark.extra_info["problem"] = problem.name


@torch.no_grad()
def test_solve(summary, problem, capsys):
    """The metric that solves for y*, as figures have it: at x0 from the pretrained y, then near by from where that ended."""
    problem = type(problem)(solved=True)
    _start(problem)
    seconds = [_seconds(lambda: _first_fit(problem))]
    with default_dtype(torch.float32):
        instance = problem.build()
    x = instance.x0 + 0.01 * normal(1, instance.dx)
    seconds.append(_seconds(lambda: instance.metrics["val_loss_solved"](x, instance.y0)))
    summary["news_solve_cold_seconds"], summary["news_solve_warm_seconds"] = seconds
    with capsys.disabled():
        print(f"\ny* from the pretrained y {seconds[0]:.1f} s, from one near by {seconds[1]:.1f} s")


def _seconds(work) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def test_memory(summary, problem, tmp_path, capsys):
    """Ten steps of F2BA in a worker of its own, with the metrics of the figures and without phi."""
    command = ["run", "-a", "f2ba[lam=10]", "-p", problem.name, "--steps", "10", "--no-phi", "--dtype", "float32"]
    command = [sys.executable, "-m", "bilevelbench", *command, "--jobs", "1", "-o", str(tmp_path)]
    subprocess.run(command, check=True, capture_output=True)
    (peak,) = load_results(tmp_path).runs["peak_memory"]
    summary["news_peak_mib"] = peak / 2**20
    with capsys.disabled():
        print(f"\nF2BA on {problem.name}: {peak / 2**20:.0f} MiB at most")
