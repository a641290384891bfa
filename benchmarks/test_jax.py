"""Stochastic methods against the same in jitted JAX, whole stretches of steps compiled; one thread.

A step of one trial, and of one of many trials in a pack, interpreted and compiled, over a step of the peer. Steps take a
mini-batch or, `full`, the whole sums, for which the peer has the matrices of a quadratic sum as we do. The peer has its own
random numbers, and makes the same step if it gets our rows. Processor time, ratios of minima, taken in turns within one run.
The peer computes in a thread of its own, whose processor time is known to a tick of the kernel only: its rounds are long.
Nothing is asserted about time here: the numbers go to summary.json. Needs `bilevelbench[peers]`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from turns import fastest

from bilevelbench.discovery.entry import make
from bilevelbench.discovery.registry import registry
from bilevelbench.engine.compiled.native import translated
from bilevelbench.engine.compiled.stretch import compiled
from bilevelbench.engine.compiled.trace import leaves_of, rebuilt, trace
from bilevelbench.engine.setup import PreparedPack
from bilevelbench.model.lanes import take
from bilevelbench.model.noise import Exact
from bilevelbench.model.torch_state import default_dtype

os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")
jax = pytest.importorskip("jax", reason="the peers of this benchmark need JAX: pip install 'bilevelbench[peers]'")
jax.config.update("jax_enable_x64", True)
jnp = jax.numpy

STRETCH = 16  # steps of a run between two looks for divergence
ROUND = 0.1  # seconds that a round of the peer takes at least
#: By name: the problem and its parameters, rows of a batch (None: all of them), dtype, lanes of a pack, steps of a round.
SMALL = {"dim_x": 20, "dim_y": 10, "n": 256, "m": 256}
LARGE = {"dim_x": 500, "dim_y": 500, "n": 1024, "m": 1024}
KINDS: dict[str, tuple[str, dict[str, int], int | None, torch.dtype, int, int]] = {
    "quadratic_sum": ("quadratic_sum", SMALL, 64, torch.float64, 36, 16),
    "quadratic_sum_full": ("quadratic_sum", SMALL, None, torch.float64, 36, 16),
    "logreg_digits": ("logreg_digits", {}, 64, torch.float64, 36, 16),
    "logreg_digits_full": ("logreg_digits", {}, None, torch.float64, 36, 4),
    "quadratic_sum_500": ("quadratic_sum", LARGE, 16, torch.float32, 8, 16),
}
SIZES = {"soba": ("batch",), "stocbio": ("batch_g", "batch_f", "batch_j", "batch_h"), "f2sa": ("batch",)}
OTHERS = {"soba": {"power": 0.0}, "stocbio": {"eta_x": 1e-3}, "f2sa": {}}
CASES = [(kind, method) for kind in KINDS for method in OTHERS if (kind, method) != ("quadratic_sum_500", "f2sa")]


def losses(problem: Any, dtype: torch.dtype, full: bool) -> tuple[Callable[..., Any], Callable[..., Any], int, int]:
    """f and g of (x, y, rows) as means, or whole, and how many rows they have."""
    if problem.name == "quadratic_sum":
        g, f, _, _ = problem.draw()
        mean = partial(_quadratic, _whole_quadratic if full else _some_quadratic, dtype)
        return mean(f), mean(g), problem.m, problem.n
    (A, b), (A_val, b_val), _ = ([jnp.asarray(t.numpy()) for t in part] for part in problem._split())

    def entropy(A: Any, b: Any, y: Any) -> Any:
        scores = A @ y.reshape(10, -1).T
        return (jax.nn.logsumexp(scores, axis=-1) - jnp.take_along_axis(scores, b[:, None], -1)[:, 0]).mean()

    def some(data: Any, rows: Any) -> Any:
        return data if full else data[rows]

    def upper(x: Any, y: Any, rows: Any) -> Any:
        return entropy(some(A_val, rows), some(b_val, rows), y)

    def lower(x: Any, y: Any, rows: Any) -> Any:
        decay = 0.5 * problem.reg_scale * (jnp.exp(x) * (y.reshape(10, -1) ** 2).sum(0)).sum()
        return entropy(some(A, rows), some(b, rows), y) + decay

    return upper, lower, len(b_val), len(b)


def _quadratic(function: Callable[..., Any], dtype: torch.dtype, terms: Any) -> Callable[..., Any]:
    whole = function is _whole_quadratic
    given = terms.means() if whole else (terms.a, terms.b, terms.p, terms.q, terms.c, terms.d)
    return partial(function, [jnp.asarray(t.to(dtype).numpy()) for t in given])


def _whole_quadratic(means: Any, x: Any, y: Any, rows: Any) -> Any:
    A, B, C, c, d = means
    return 0.5 * y @ A @ y + 0.5 * x @ B @ x + x @ C @ y + c @ y + d @ x


def _some_quadratic(terms: Any, x: Any, y: Any, rows: Any) -> Any:
    a, b, p, q, c, d = terms
    square = 0.5 * (a[rows] @ y) ** 2 + 0.5 * (b[rows] @ x) ** 2
    return (square + (p[rows] @ x) * (q[rows] @ y) + c[rows] @ y + d[rows] @ x).mean()


def loop(body: Callable[[Any, Any], Any], start: Any, over: Any) -> Any:
    return jax.lax.scan(lambda at, rows: (body(at, rows), None), start, over)[0]


class Peer:
    """A method's step as a pure function of (x, y, third) and of `rows(level, count)`, which draws so many batches."""

    def __init__(self, problem: Any, method: Any, kind: str) -> None:
        _, _, self.batch, dtype, _, _ = KINDS[kind]
        self.f, self.g, n_f, n_g = losses(problem, dtype, full=self.batch is None)
        self.method, self.size = method, {"f": n_f, "g": n_g}
        self.f_x, self.f_y = jax.grad(self.f), jax.grad(self.f, 1)
        self.g_x, self.g_y = jax.grad(self.g), jax.grad(self.g, 1)

    def products(self, x: Any, y: Any, v: Any, rows: Any) -> Any:
        """(J v, H v)."""
        return jax.vjp(lambda x, y: self.g_y(x, y, rows), x, y)[1](v)

    def soba(self, x: Any, y: Any, v: Any, rows: Callable[[str, int], Any]) -> Any:
        m, (xi,), (zeta,) = self.method, rows("g", 1), rows("f", 1)
        f_x, f_y = jax.grad(self.f, (0, 1))(x, y, zeta)
        Jv, Hv = self.products(x, y, v, xi)
        return x - m.b * (f_x - Jv), y - m.a * self.g_y(x, y, xi), v - m.a * (Hv - f_y)

    def stocbio(self, x: Any, y: Any, v: Any, rows: Callable[[str, int], Any]) -> Any:
        m = self.method
        y = loop(lambda y, xi: y - m.a * self.g_y(x, y, xi), y, rows("g", m.D))
        (zeta,), of_H, (of_J,) = rows("f", 1), rows("g", m.Q), rows("g", 1)
        f_x, f_y = jax.grad(self.f, (0, 1))(x, y, zeta)

        def term(sums: Any, xi: Any) -> Any:
            r = sums[0] - m.eta_v * self.products(x, y, sums[0], xi)[1]
            return r, sums[1] + r

        _, s = loop(term, (f_y, f_y), of_H)
        return x - m.eta_x * (f_x - self.products(x, y, m.eta_v * s, of_J)[0]), y, v

    def f2sa(self, x: Any, y: Any, z: Any, rows: Callable[[str, int], Any]) -> Any:
        m, of_g, of_f = self.method, rows("g", 2 * self.method.T_in), rows("f", self.method.T_in)
        y, z = loop(partial(self.pair, x), (y, z), (of_g[::2], of_f, of_g[1::2]))
        d = self.penalty(x, y, z, *rows("f", 1), *rows("g", 2))
        return x - m.xi * (m.a_y / m.lam) * d, y, z

    def pair(self, x: Any, at: Any, rows: Any) -> Any:
        m, (y, z), (s1, s2, s3) = self.method, at, rows
        U = self.f_y(x, y, s2) / m.lam + self.g_y(x, y, s3)
        return y - m.a_y * U, z - m.a_z * self.g_y(x, z, s1)

    def penalty(self, x: Any, y: Any, z: Any, s4: Any, s5: Any, s6: Any) -> Any:
        return self.f_x(x, y, s4) + self.method.lam * (self.g_x(x, y, s5) - self.g_x(x, z, s6))

    def step(self, state: Any, rows: Callable[[str, int], Any]) -> Any:
        return getattr(self, self.method.name)(*state, rows)

    @partial(jax.jit, static_argnums=(0, 3))
    def run(self, state: Any, key: Any, steps: int) -> Any:
        """So many steps in one compiled loop, with rows of its own."""

        def one(state: Any, key: Any) -> Any:
            keys = iter(jax.random.split(key, 8))

            def rows(level: str, count: int) -> Any:
                shape = (count, self.batch or 1)  # rows that a full sum does not look at: the compiler leaves them out
                return jax.random.randint(next(keys), shape, 0, self.size[level])

            return self.step(state, rows), None

        return jax.lax.scan(one, state, jax.random.split(key, steps))[0]


class Rounds:
    """Rounds of the peer, of as many steps as take long enough."""

    def __init__(self, peer: Peer, state: Any, steps: int) -> None:
        self.peer, self.state, self.steps, self.key = peer, state, steps, jax.random.key(0)
        while (seconds := self._seconds()) < ROUND:
            self.steps *= min(1 + int(ROUND / seconds), 64)

    def __call__(self) -> None:
        jax.block_until_ready(self.peer.run(self.state, self.key, self.steps))

    def _seconds(self) -> float:
        self()  # compiles
        start = time.perf_counter()
        self()
        return time.perf_counter() - start


class Ours:
    """The same steps of as many trials as lanes, padded as in a run."""

    def __init__(self, instance: Any, method: Any, lanes: int, steps: int) -> None:
        self.steps = steps
        self.pack = PreparedPack(instance.apart(), [method] * lanes, [0] * lanes, [1e15] * lanes, wide=True)
        self.state = self.pack.init()

    def __call__(self) -> None:
        state = self.state
        for k in range(1, self.steps + 1):
            state = self.pack.step(k, state)
            self.pack.check_counts()

    def recorded(self) -> tuple[Any, dict[str, list[Any]]]:
        """x after the first step, and the rows that it drew, by level."""
        oracle, drawn = self.pack.oracle, {"f": [], "g": []}
        for level in drawn:
            draw = getattr(oracle, f"sample_{level}")

            def kept(*given: Any, level: str = level, draw: Any = draw, **more: Any) -> Any:
                xi = draw(*given, **more)
                drawn[level].append(np.zeros(1, dtype=int) if xi.rows is None else xi.rows.index[0].numpy())
                return xi

            setattr(oracle, f"sample_{level}", kept)
        x = self.pack.step(1, self.state).x[0]
        for level in drawn:
            delattr(oracle, f"sample_{level}")
        return x, drawn


class Compiled(Ours):
    """The same steps, compiled, and charged and padded after each stretch as in a run."""

    def __init__(self, instance: Any, method: Any, lanes: int, steps: int) -> None:
        super().__init__(instance, method, lanes, steps)
        states = [self.state, self.pack.step(1, self.state)]
        self.traced = trace(self.pack, lanes, states, (1, 2))
        self.leaves, self.padding = leaves_of(take(self.state, torch.arange(lanes))), self.pack.padding(lanes)
        self.stretch = compiled(self.traced, self.leaves, translated(self.traced, self.leaves))

    def __call__(self) -> None:
        leaves = self.leaves
        for first in range(0, self.steps, STRETCH):
            last = min(first + STRETCH, self.steps)
            leaves = self.stretch(first, last, leaves)
            self.pack.oracle.charge_steps(self.traced.cost.times(last - first))
            take(rebuilt(self.state, leaves), self.padding)
            self.pack.check_counts()


def sides(kind: str, method: str) -> tuple[Any, Any, Rounds]:
    """The instance, the method and the peer's rounds, after both have made the same step on the same rows."""
    name, params, batch, dtype, _, steps = KINDS[kind]
    built = make(registry().problem(name), params)
    with default_dtype(dtype):
        instance = built.build()
    if batch is None:
        instance.noise = Exact()  # a sample is then the whole sum
    sizes = {} if method == "f2sa" and batch is None else dict.fromkeys(SIZES[method], batch or 1)
    settings = make(registry().algorithm(method), OTHERS[method] | sizes).resolve(instance.constants)
    peer, one = Peer(built, settings, kind), Ours(instance, settings, 1, steps)
    x0, y0 = (jnp.asarray(t.reshape(-1).numpy()) for t in (instance.x0, instance.y0))
    state = (x0, y0, y0 if method == "f2sa" else jnp.zeros_like(y0))
    x, drawn = one.recorded()

    def recorded(level: str, count: int) -> Any:
        if batch is None:
            return jnp.zeros((count, 1), int)
        return jnp.asarray(np.stack([drawn[level].pop(0) for _ in range(count)]))

    theirs, _, _ = jax.jit(lambda state: peer.step(state, recorded))(state)
    exact = dtype == torch.float64
    np.testing.assert_allclose(x.numpy(), theirs, rtol=1e-8 if exact else 1e-3, atol=0 if exact else 1e-4)
    return instance, settings, Rounds(peer, state, steps)


def a_step(*works: Any, rounds: int) -> list[float]:
    """Seconds of a step of each."""
    return [seconds / work.steps for seconds, work in zip(fastest(*works, rounds=rounds), works, strict=True)]


@pytest.mark.parametrize(("kind", "method"), CASES, ids=["-".join(case) for case in CASES])
def test_interpreted(benchmark, summary, kind, method):
    *_, lanes, steps = KINDS[kind]
    instance, settings, peer = sides(kind, method)
    works = Ours(instance, settings, 1, steps), Ours(instance, settings, lanes, steps), peer
    alone, packed, jitted = benchmark.pedantic(a_step, args=works, kwargs={"rounds": 12}, rounds=1)
    summary[f"jax_ratio_{kind}_{method}"] = alone / jitted
    summary[f"jax_ratio_{kind}_{method}_lane_of_{lanes}"] = packed / lanes / jitted


@pytest.mark.parametrize(("kind", "method"), CASES, ids=["-".join(case) for case in CASES])
def test_compiled(benchmark, summary, kind, method):
    """Compiling, some seconds, is on nobody's clock."""
    *_, lanes, steps = KINDS[kind]
    instance, settings, peer = sides(kind, method)
    few, many = 16 * steps, 4 * steps  # whole stretches
    works = Compiled(instance, settings, 1, few), Compiled(instance, settings, lanes, many), peer
    alone, packed, jitted = benchmark.pedantic(a_step, args=works, kwargs={"rounds": 12}, rounds=1)
    summary[f"jax_ratio_{kind}_{method}_compiled"] = alone / jitted
    summary[f"jax_ratio_{kind}_{method}_compiled_lane_of_{lanes}"] = packed / lanes / jitted
