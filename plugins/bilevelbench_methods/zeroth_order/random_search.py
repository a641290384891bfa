"""Random search: values of phi at points that are drawn evenly from a box.

    x_try <- uniform in [lower, upper]^dx,  x0 in the first step
    y_try <- L-BFGS on g(x_try, .) from y0 until |g_y| <= tol
    if f(x_try, y_try) is the smallest value so far:  x, y <- x_try, y_try

A baseline without gradients of phi, to be compared with TPE: Bergstra, Bengio, "Random search for hyper-parameter
optimization", JMLR 2012. It has no rate in dx > 1 that one would want: the share of the box where phi is near its minimum falls
with the power dx. The box, the first try and the lower level from y0 with at most 500 steps to 1e-3 are those that
benchmark_bilevel gives to Optuna; that makes five tries per step, and here it is one.
"""

from __future__ import annotations

from torch import Tensor

from bilevelbench import Oracle
from bilevelbench_methods.zeroth_order.box_search import BoxSearch, State


class RandomSearch(BoxSearch):
    name = "random_search"
    title = "Random search"
    paper = "https://www.jmlr.org/papers/v13/bergstra12a.html"

    def ask(self, s: State, oracle: Oracle) -> Tensor:
        return self.lower + (self.upper - self.lower) * oracle.uniform(oracle.dx)
