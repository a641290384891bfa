"""SOBA in JAX, jitted, 1,024 steps between two looks; twelve lengths of the upper step."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from benchopt import BaseSolver
from benchopt.stopping_criterion import NoCriterion

jax.config.update("jax_enable_x64", True)
STRETCH, STRETCHES, BATCH = 1024, 20, 64


class Solver(BaseSolver):
    name = "soba"
    sampling_strategy = "callback"
    stopping_criterion = NoCriterion(strategy="callback")
    parameters = {"b": [1e-3 * 1.3**i for i in range(12)]}

    def set_objective(self, lower, upper, x0, y0):
        data = [tuple(map(jnp.asarray, terms)) for terms in (lower, upper)]
        self.start = tuple(map(jnp.asarray, (x0, y0, np.zeros_like(y0))))
        self.go_on = jax.jit(partial(stretch, *data, 0.1, self.b))
        self.go_on(self.start, jax.random.key(0))  # compiling is on nobody's clock in benchopt

    def run(self, callback):
        state, key = self.start, jax.random.key(0)
        self.x, self.steps = np.asarray(state[0]), 0
        while self.steps < STRETCH * STRETCHES and callback():
            key, now = jax.random.split(key)
            state = self.go_on(state, now)
            self.x, self.steps = np.asarray(state[0]), self.steps + STRETCH

    def get_result(self):
        return {"x": self.x, "steps": self.steps}


def loss(terms, x, y, rows):
    a, b, p, q, c, d = (t[rows] for t in terms)
    return (0.5 * (a @ y) ** 2 + 0.5 * (b @ x) ** 2 + (p @ x) * (q @ y) + c @ y + d @ x).mean()


def stretch(lower, upper, a, b, state, key):
    f, g = partial(loss, upper), partial(loss, lower)
    g_y = jax.grad(g, 1)

    def step(state, key):
        x, y, v = state
        of_g, of_f = jax.random.randint(key, (2, BATCH), 0, 256)
        f_x, f_y = jax.grad(f, (0, 1))(x, y, of_f)
        slope, pull = jax.vjp(lambda x, y: g_y(x, y, of_g), x, y)
        Jv, Hv = pull(v)
        return (x - b * (f_x - Jv), y - a * slope, v - a * (Hv - f_y)), None

    return jax.lax.scan(step, state, jax.random.split(key, STRETCH))[0]
