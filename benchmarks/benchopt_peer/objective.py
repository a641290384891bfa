"""A finite sum of quadratics as an objective of benchopt: the norm of the hypergradient, in closed form."""

import numpy as np
from benchopt import BaseObjective


class Objective(BaseObjective):
    name = "bilevel quadratic sum"

    def set_data(self, lower, upper, x0, y0):
        self.lower, self.upper, self.x0, self.y0 = lower, upper, x0, y0
        (A, _, C, c, _), (A_f, B_f, C_f, c_f, d_f) = (means(terms) for terms in (lower, upper))
        P, r = -np.linalg.solve(A, C.T).T, -np.linalg.solve(A, c)
        cross = C_f @ P.T
        self.hess = B_f + P @ A_f @ P.T + cross + cross.T
        self.slope = C_f @ r + d_f + P @ (A_f @ r + c_f)

    def evaluate_result(self, x, steps):
        return {"value": float(np.linalg.norm(self.hess @ x + self.slope)), "steps": steps}

    def get_one_result(self):
        return {"x": self.x0, "steps": 0}

    def get_objective(self):
        return {"lower": self.lower, "upper": self.upper, "x0": self.x0, "y0": self.y0}


def means(terms):
    a, b, p, q, c, d = terms
    n = len(a)
    return a.T @ a / n, b.T @ b / n, p.T @ q / n, c.mean(0), d.mean(0)
