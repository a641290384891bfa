"""Small instances and oracles for the tests of the core. One thread: a product over two rounds with their split."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from bilevelbench.model.instance import Instance
from bilevelbench.model.lanes import dot
from bilevelbench.model.noise import Exact, FiniteSum, Noise, Rows
from bilevelbench.model.queries import QUERIES
from bilevelbench.oracle.oracle import Oracle
from bilevelbench.results.schema import Results
from bilevelbench.results.tables import load_results

torch.set_num_threads(1)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--one-case", action="store_true", help="only the first case of each parametrised test")


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Bytes name no case: those of an archive hold the time, and the workers of one run would collect other cases."""
    if isinstance(val, bytes) and not val.isascii():
        raise pytest.UsageError(f"Give the cases of {argname!r} names with ids=; this one is {val!r}.")
    return None


def pytest_collection_finish(session: pytest.Session) -> None:
    """Thousands of tests and the modules behind them stay: the collector need not look through them again and again."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)  # before marks are looked at
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    _put_off_cases(items)
    if not config.getoption("--one-case"):
        return
    first: dict[str, pytest.Item] = {}
    for item in items:
        first.setdefault(item.nodeid.split("[")[0], item)
    kept = set(map(id, first.values()))
    config.hook.pytest_deselected(items=[item for item in items if id(item) not in kept])
    items[:] = first.values()


def _put_off_cases(items: list[pytest.Item]) -> None:
    """Of a test with `quick_cases(n)` the first n cases always run, and the others are slow."""
    seen: Counter[str] = Counter()
    for item in items:
        for mark in item.iter_markers("quick_cases"):
            test = item.nodeid.split("[")[0]
            seen[test] += 1
            if seen[test] > mark.args[0]:
                item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """What the command of the kill tests gives when nobody kills it."""
    from test_kill import here

    folder = tmp_path_factory.mktemp("undisturbed")
    here(folder)
    return load_results(folder)


@pytest.fixture
def normal() -> Callable[..., Tensor]:
    """`normal(3, 4)`: standard normals, float64, the same in every run of a test."""
    generator = torch.Generator().manual_seed(1)
    return lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)


@pytest.fixture
def bowl(normal: Callable[..., Tensor]) -> Callable[..., Instance]:
    """f = |y - c|²/2 + |x|²/2 + xBy and g = yAy/2 - xBy + |x|²|y|²/20, dx = 3, dy = 5; no derivative is constant."""
    W, B, c = normal(5, 5), normal(3, 5), normal(5)
    A, Bt = W @ W.T / 5 + torch.eye(5, dtype=torch.float64), B.T.contiguous()
    x0, y0 = normal(1, 3), normal(1, 5)

    def with_points(out: Tensor, *others: Tensor) -> Tensor:
        points = torch.broadcast_shapes(out.shape[:-2], *(t.shape[:-2] for t in others))
        return out.expand(*points, *out.shape[-2:])

    analytic: dict[str, Callable[..., Any]] = {
        "grad_f_x": lambda x, y: x + y @ Bt,
        "grad_f_y": lambda x, y: y - c + x @ B,
        "grad_g_x": lambda x, y: 0.1 * dot(y, y) * x - y @ Bt,
        "grad_g_y": lambda x, y: y @ A - x @ B + 0.1 * dot(x, x) * y,
        "hvp_g_yy": lambda x, y, v: with_points(v @ A + 0.1 * dot(x, x) * v, y),
        "jvp_g_xy": lambda x, y, v: 0.2 * dot(y, v) * x - v @ Bt,
    }

    def build(points: Any = "stack", derivatives: bool = True, noise: Noise | None = None, **more: Any) -> Instance:
        return Instance(
            f=lambda x, y: 0.5 * dot(y - c, y - c) + 0.5 * dot(x, x) + dot(x @ B, y),
            g=lambda x, y: 0.5 * dot(y @ A, y) - dot(x @ B, y) + 0.05 * dot(x, x) * dot(y, y),
            x0=x0,
            y0=y0,
            points=points,
            noise=noise or Exact(),
            **(analytic if derivatives else {}),
            **more,
        )

    return build


@pytest.fixture
def least_squares(normal: Callable[..., Tensor]) -> Callable[..., Instance]:
    """Finite sums: loss_i = (a_i y - e_i x - b_i)^2/2, with 11 rows in f and 17 in g; dx = 2, dy = 3."""
    rows_f, rows_g = normal(11, 6), normal(17, 6)
    x0, y0 = normal(1, 2), normal(1, 3)

    def mean_loss(data: Tensor) -> Callable[..., Tensor]:
        def loss(x: Tensor, y: Tensor, rows: Rows | None = None) -> Tensor:
            at = data if rows is None else data[rows.index]
            e, a, b = at[..., :2], at[..., 2:5], at[..., 5]
            r = (a * y.unsqueeze(-2)).sum(-1) - (e * x.unsqueeze(-2)).sum(-1) - b
            weight = 1 / len(data) if rows is None else rows.weight
            return (weight * 0.5 * r**2).sum(-1, keepdim=True)

        return loss

    def build(points: Any = "stack") -> Instance:
        noise = FiniteSum(n_f=11, n_g=17)
        return Instance(f=mean_loss(rows_f), g=mean_loss(rows_g), x0=x0, y0=y0, noise=noise, points=points)

    return build


@pytest.fixture
def door() -> Callable[..., Oracle]:
    """An oracle that may be asked everything, for lanes with the seeds 0, 1, 2, ... unless told."""

    def build(
        instance: Instance,
        lanes: int = 4,
        seeds: Sequence[int] | None = None,
        uses: Iterable[str] = QUERIES,
        **rest: Any,
    ) -> Oracle:
        oracle = Oracle(instance, frozenset(uses), range(lanes) if seeds is None else seeds, **rest)
        oracle.begin_step(1)
        return oracle

    return build
