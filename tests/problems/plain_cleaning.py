"""Cleaning problems in numpy, at one point."""

from __future__ import annotations

import numpy as np
from bilevelbench_problems.label_cleaning import Cleaning
from scipy.special import logsumexp, softmax


class PlainCleaning:
    """The training and validation rows, f, g and its derivative in y."""

    def __init__(self, problem: Cleaning) -> None:
        parts = problem._data()
        (self.A, self.b), (self.V, self.v) = ((a.numpy(), b.numpy()) for a, b in parts[:2])
        self.ridge = problem.ridge

    def scores(self, A: np.ndarray, y: np.ndarray) -> np.ndarray:
        return A @ y.reshape(-1, A.shape[1]).T

    def losses(self, A: np.ndarray, b: np.ndarray, y: np.ndarray) -> np.ndarray:
        Z = self.scores(A, y)
        return logsumexp(Z, axis=1) - Z[np.arange(len(b)), b]

    def f(self, y: np.ndarray) -> float:
        return float(self.losses(self.V, self.v, y).mean())

    def g(self, x: np.ndarray, y: np.ndarray) -> float:
        return float(np.mean(self.losses(self.A, self.b, y) / (1 + np.exp(-x))) + 0.5 * self.ridge * y @ y)

    def g_y(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        P = softmax(self.scores(self.A, y), axis=1)
        P[np.arange(len(P)), self.b] -= 1
        return ((P / (1 + np.exp(-x))[:, None]).T @ self.A / len(P)).ravel() + self.ridge * y
