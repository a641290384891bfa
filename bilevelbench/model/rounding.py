"""Rounding: what a trial's last bits depend on, and what they do not depend on.

A number is the same in every pack and for every number of threads, because

- a pack and a trial alone have a multiple of `lanes.PAD` rows,
- MKL is in its strict mode, in which a row of a product does not depend on the other rows (`bilevelbench/__init__.py`),
- the oracle writes points out, since MKL's strict mode leaves out the batched product that torch takes for expanded ones,
- everything, from building the data on, is done in one thread.

Where torch has no MKL, or has used it before bilevelbench was imported, a library decides: `keeps_bits` finds out by
trying. What is promised there is that after `STEPS` steps a trial in a pack and the same trial alone agree to `TOLERANCE`.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from threadpoolctl import ThreadpoolController
from torch import Tensor
from torch.nn.functional import logsigmoid

from bilevelbench.model.lanes import PAD, dot, norm

#: Where bits are not kept: after this many steps, relative to the larger of a number and one.
STEPS, TOLERANCE = 6, 1e-6

_WIDTHS = (2 * PAD, 9 * PAD)
#: Each of them fails with some processor in some mode of MKL other than the strict one.
_MATRICES = ((5, 9), (8, 8), (9, 5), (20, 3), (20, 5), (30, 20), (57, 2), (100, 37))
_FUNCTIONS: tuple[Callable[[Tensor], Tensor], ...] = (
    torch.exp, torch.tanh, torch.erf, torch.sin, torch.reciprocal, logsigmoid,
    lambda t: t.abs().log(), lambda t: t.abs().log1p(), lambda t: t.abs().sqrt(), lambda t: t / (1 + t * t),
    lambda t: torch.softmax(t, -1), lambda t: torch.logsumexp(t, -1, keepdim=True),
    lambda t: dot(t, t), norm,
)  # fmt: skip


@contextmanager
def one_thread() -> Iterator[None]:
    """For torch, and for what numpy and scipy compute with: more threads round by the shape of the whole."""
    before = torch.get_num_threads()
    with _pools(len(sys.modules)).limit(limits=1):
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(before)


@functools.lru_cache(maxsize=1)
def _pools(modules: int) -> ThreadpoolController:
    """The pools of the loaded libraries: finding them takes milliseconds, and a new library comes with new modules."""
    return ThreadpoolController()


@functools.cache
def keeps_bits(*dtypes: torch.dtype) -> bool:
    """Whether a row has the same bits in every pack: tried, with products and functions like those of our problems.

    In these types of numbers; without one, in both that a trial may have.
    """
    with torch.no_grad(), one_thread():
        tried = dtypes or (torch.float64, torch.float32)
        return all(_kept_by_products(dtype) and _kept_by_functions(dtype) for dtype in tried)


def _kept_by_products(dtype: torch.dtype) -> bool:
    return all(
        _kept(product, _normal(width, rows, dtype=dtype))
        for rows, columns in _MATRICES
        for matrix in (_normal(rows, columns, dtype=dtype), _normal(columns, rows, dtype=dtype).mT)
        for product in _products(matrix)
        for width in _WIDTHS
    )


def _products(matrix: Tensor) -> tuple[Callable[[Tensor], Tensor], ...]:
    """With one matrix for all lanes, at several points, and with a matrix for each lane."""
    own = matrix.expand(max(_WIDTHS), *matrix.shape).contiguous()
    return (
        lambda x: x @ matrix,
        lambda x: torch.stack([x, -x, x]) @ matrix,
        lambda x: (x.unsqueeze(-2) @ own[: len(x)]).squeeze(-2),
    )


def _kept_by_functions(dtype: torch.dtype) -> bool:
    return all(
        _kept(function, 2 * _normal(width, columns, dtype=dtype))
        for function in _FUNCTIONS
        for columns in (1, 13)
        for width in _WIDTHS
    )


def _kept(function: Callable[[Tensor], Tensor], rows: Tensor) -> bool:
    """Whether each row gets the same bits among the others and among copies of itself."""
    together = function(rows)
    return all(
        torch.equal(together[..., i, :], function(rows[i : i + 1].repeat(PAD, 1))[..., 0, :]) for i in range(len(rows))
    )


def _normal(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=dtype)
