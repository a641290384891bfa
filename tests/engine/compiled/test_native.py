"""The program of C++ that a traced step becomes: each operation against torch, and what is left to torch's own compiler."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor
from torch.nn.functional import embedding

from bilevelbench.engine.compiled import native as native_module
from bilevelbench.engine.compiled import stretch
from bilevelbench.engine.compiled.native import Program, native, translated
from bilevelbench.engine.compiled.stretch import replayed
from bilevelbench.engine.compiled.tape import Tape
from bilevelbench.engine.compiled.trace import Traced
from bilevelbench.engine.compiled.values import Unknown
from bilevelbench.oracle.meter import Tally
from bilevelbench.oracle.traced_draws import TracedDraws

Step = Callable[..., Sequence[Tensor]]


def traced(step: Step, *leaves: Tensor) -> Traced:
    """`step(number, *leaves)` as a graph."""
    number, inputs = torch.tensor(1), [leaf.clone() for leaf in leaves]
    tape = Tape([number, *inputs])
    with tape:
        after = step(number, *inputs)
    nothing = torch.zeros(0, 1).numpy()
    return Traced(tape.end(after), tuple(tape.constants), Tally((), nothing, nothing))


def compiled(graph: Traced, leaves: list[Tensor]) -> stretch.Stretch:
    return stretch.compiled(graph, leaves, translated(graph, leaves))


def both(step: Step, *leaves: Tensor, steps: int = 3) -> list[tuple[Tensor, Tensor]]:
    """What the program makes of these leaves, and what torch does."""
    graph = traced(step, *leaves)
    ours, theirs = (way(7, 7 + steps, leaves) for way in (native(Program(graph, leaves)), replayed(graph)))
    return list(zip(ours, theirs, strict=True))


def numbers(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


A, ROWS = numbers(20, 12, seed=1), torch.arange(14).reshape(2, 7) % 20
M = numbers(2, 130, 4, seed=2)

#: y (2, 12) -> y, whatever the numbers mean.
STEPS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "arithmetic": lambda k, y: (y * 0.5 - y.exp() / (1 + y.abs()) + 0.1 * k).clamp(-3, 3),
    "alpha": lambda k, y: torch.sub(y, y.sigmoid(), alpha=0.3),
    "functions": lambda k, y: (
        y.abs().sqrt() + y.sin() * y.cos() + y.tanh() + (y * y + 1).log() + (y * y).log1p() - y.clamp(max=1).expm1()
    ),
    "powers": lambda k, y: (1 + y.abs()) ** -0.3 + torch.log1p(k.double()) ** 0.5 + y.abs().floor() - y.ceil(),
    "choice": lambda k, y: torch.where((y > 0.1) & ~(y >= 2.0), torch.maximum(y, -y) * 0.5, torch.minimum(y, y * 2)),
    "broadcast": lambda k, y: y * 0.1 + y.sum(-1, keepdim=True) * 0.01 + y.mean(0),
    "norm": lambda k, y: y / (1 + torch.linalg.vector_norm(y, dim=-1, keepdim=True)),
    "softmax": lambda k, y: torch.softmax(y.reshape(2, 3, 4), -2).reshape(2, 12) + torch.softmax(y, -1),
    "products": lambda k, y: (y @ A.T @ A) * 0.01,
    "tall product": lambda k, y: ((y.reshape(8, 3) @ A[:3, :5]) @ A[:5, :3]).reshape(2, 12) * 0.1,
    "many results": lambda k, y: torch.bmm(torch.bmm(M, y.reshape(2, 4, 3)).mT, M).mT.reshape(2, 12) * 1e-3,
    "rows": lambda k, y: (y.unsqueeze(1) @ embedding(ROWS, A).mT @ embedding(ROWS, A)).squeeze(1) * 1e-2,
    "split rows": lambda k, y: (
        embedding(ROWS, A).reshape(2, 21, 4).sum(1).unsqueeze(1) * y.unflatten(-1, (3, 4))
    ).flatten(-2),
    "stack": lambda k, y: torch.stack([y[:, :6], 2 * y[:, 6:]], -1).flatten(-2) * 0.4,
    "cat": lambda k, y: torch.cat([y[:, 3:], y[:, :3].exp() * 0.1], 1),
    "views": lambda k, y: (y.T.reshape(4, 6).T.contiguous().reshape(2, 12) + y.flip(-1)[:, ::1]) * 0.3,
    "parts": lambda k, y: sum((y @ A.T).unflatten(-1, (-1, 4)).unbind(-1)[:2])[:, :1] * y * 0.01,
    "masks": lambda k, y: y * (y < y.mean()).double() + torch.zeros_like(y) + (k == 8),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("name", STEPS)
def test_operations_are_those_of_torch(name, dtype, monkeypatch):
    for data in ("A", "M"):
        monkeypatch.setitem(globals(), data, globals()[data].to(dtype))

    def step(k: Tensor, y: Tensor) -> list[Tensor]:
        return [STEPS[name](k, y).to(dtype)]

    if name == "views":  # flip copies, and is not among those that are known
        with pytest.raises(Unknown, match="flip"):
            both(step, numbers(2, 12, dtype=dtype))
        return
    for ours, theirs in both(step, numbers(2, 12, dtype=dtype)):
        exact = dtype == torch.float64
        torch.testing.assert_close(ours, theirs, rtol=1e-12 if exact else 1e-4, atol=1e-13 if exact else 1e-5)


@pytest.mark.parametrize("sizes", [(1, 5, 7), (9, 4, 1), (3, 4, 9), (5, 9, 2), (7, 13, 11), (10, 6, 17), (6, 1, 23)])
def test_products_of_any_size_in_any_order_of_memory(sizes):
    """Blocks of elements that do not come out even, with factors and results along either of their axes."""
    m, k, n = sizes
    a, b, rows = numbers(2, m, k), numbers(2, k, n, seed=1), torch.arange(2 * m).reshape(2, m) % 20
    table = numbers(20, k, seed=2)

    def step(number: Tensor, a: Tensor, b: Tensor, *more: Tensor) -> list[Tensor]:
        b_turned = b.mT.contiguous().mT
        a_turned = a.mT.contiguous().mT
        return [
            a,
            b,
            a @ b,
            a @ b_turned,
            (a_turned @ b).mT.contiguous(),
            embedding(rows, table) @ b_turned,
            a_turned @ b_turned,
        ]

    made = step(torch.tensor(1), a, b)
    for ours, theirs in both(step, *made, steps=1):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-13)


def test_views_that_run_along_several_axes_are_stored_first():
    def step(k: Tensor, y: Tensor) -> list[Tensor]:
        return [((y + 1).T.reshape(4, 6).T.reshape(12, 2).unsqueeze(0).expand(3, 12, 2).sum(0).mT * 0.3).contiguous()]

    ((ours, theirs),) = both(step, numbers(2, 12))
    torch.testing.assert_close(ours, theirs, rtol=1e-13, atol=0)


@pytest.mark.parametrize("n", [256, 899, 1_000_003])
def test_rows_are_drawn_to_the_bit(n):
    draws = TracedDraws([0, 3, 12345])

    def step(k: Tensor, rows: Tensor, inner: Tensor) -> list[Tensor]:
        outside = draws.rows("method", (1,), (k,), (64, 1), 1 << 30, n)
        return [outside, draws.rows("method", (1, 2), (k, 3), (33, 2), 5, n)]

    for ours, theirs in both(step, torch.zeros(1, 3, 64, dtype=torch.int64), torch.zeros(2, 3, 33, dtype=torch.int64)):
        assert torch.equal(ours, theirs)


def test_normals_agree_to_the_last_digits_in_the_tails_too():
    p = torch.cat(
        [torch.logspace(-15, -1, 200, dtype=torch.float64), torch.linspace(0.1, 1 - 1e-12, 500, dtype=torch.float64)]
    )

    def step(k: Tensor, p: Tensor, x: Tensor) -> list[Tensor]:
        return [p, torch.special.ndtri(p)]

    _, (ours, theirs) = both(step, p, p)
    torch.testing.assert_close(ours, theirs, rtol=2e-14, atol=1e-15)


def test_what_is_not_finite_stays_so():
    y = torch.tensor([[1.0, torch.nan, torch.inf, -torch.inf]], dtype=torch.float64)

    def step(k: Tensor, y: Tensor) -> list[Tensor]:
        return [torch.where(y > 2, y, torch.maximum(y, 0 * y)).clamp(max=5.0) + torch.minimum(y, y - y)]

    ((ours, theirs),) = both(step, y, steps=1)
    torch.testing.assert_close(ours, theirs, equal_nan=True)


def test_leaves_that_change_places():
    def step(k: Tensor, a: Tensor, b: Tensor) -> list[Tensor]:
        return [b, a]

    a, b = numbers(2, 3), numbers(2, 3, seed=1)
    (first, _), (second, _) = both(step, a, b, steps=3)
    assert torch.equal(first, b)
    assert torch.equal(second, a)


def test_rounds_of_a_loop_are_one_function_and_use_the_same_memory():
    def made(rounds: int) -> Program:
        def step(k: Tensor, y: Tensor) -> list[Tensor]:
            for _ in range(rounds):
                y = y - 0.1 * (y @ A.T).tanh() @ A
            return [y]

        y = numbers(2, 12)
        return Program(traced(step, y), [y])

    few, many = made(3), made(30)
    assert set(few.kernels.functions) == set(many.kernels.functions)
    assert few.room == many.room


def test_what_has_no_words_is_left_to_torch(monkeypatch):
    monkeypatch.setattr(stretch, "by_inductor", lambda traced, leaves: "by inductor")
    y = numbers(2, 12)
    assert compiled(traced(lambda k, y: [y.cumsum(-1)], y), [y]) == "by inductor"
    large = numbers(300, 300)
    assert compiled(traced(lambda k, y: [y @ y], large), [large]) == "by inductor"
    assert callable(compiled(traced(lambda k, y: [y + 1], y), [y]))


def test_without_a_compiler_it_is_left_to_torch(monkeypatch):
    monkeypatch.setattr(native_module, "_functions", {})
    monkeypatch.setenv("CXX", "no-such-compiler")
    y = numbers(2, 12)
    with pytest.raises(Unknown, match="compiler"):
        native(Program(traced(lambda k, y: [y + 1], y), [y]))


@pytest.mark.slow
def test_inductor_still_compiles():
    y = numbers(2, 12)
    graph = traced(lambda k, y: [y.cumsum(-1) * 0.1 + k], y)
    (ours,), (theirs,) = (way(0, 5, [y]) for way in (compiled(graph, [y]), replayed(graph)))
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=0)


def test_what_is_computed_twice_is_on_the_tape_once():
    def step(k: Tensor, y: Tensor) -> list[Tensor]:
        return [torch.softmax(y @ A.T, -1) @ A * 0.1 + (torch.softmax(y @ A.T, -1) - 0.1) @ A * 0.1]

    y = numbers(2, 12)
    graph = traced(step, y).graph.graph
    assert sum(node.target is torch.ops.aten._softmax.default for node in graph.nodes) == 1
    ((ours, theirs),) = both(step, y)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-13)
