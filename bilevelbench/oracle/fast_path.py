"""The usual case of a query, first: one point, every lane on, plain tensors. The hottest lines of the project.

A charge is then two sums of Python numbers in the meter's own lists. Whatever is unusual goes the general way, which
refuses what is not a plain tensor of the right shape. What this costs is `meter_overhead_ratio` of
benchmarks/test_meter_and_lanes.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from bilevelbench.errors import MethodError
from bilevelbench.model.queries import PRODUCTS, ROW
from bilevelbench.oracle.meter import Meter
from bilevelbench.oracle.sample import Sample

#: The transform of torch.func (vmap, jvp, grad) that is at work, or None. Its tensors look plain and are not.
transform: Callable[[], object | None] = torch._C._functorch.peek_interpreter_stack

QueryFunction = Callable[..., Any]


def gradient_query(
    query: str,
    meter: Meter,
    shapes: Sequence[torch.Size],
    dtype: torch.dtype,
    one_point: QueryFunction,
    sampled: QueryFunction,
    general: QueryFunction,
) -> QueryFunction:
    """`one_point(x, y)` answers the usual exact call, `sampled(xi, x, y)` one with a sample, None if it cannot."""
    passes, left, row, whole = meter.passes, meter.left, ROW[query], float(meter.whole[query])
    shape_x, shape_y = shapes
    grad_enabled = torch.is_grad_enabled
    known = None  # the x of the last call: an inner loop asks again and again at the same one

    def ask(x: Tensor, y: Tensor, xi: Sample | None = None) -> Any:
        nonlocal known
        if (
            meter.mask is None
            and (x is known or (type(x) is Tensor and x.shape == shape_x and x.dtype is dtype))
            and type(y) is Tensor
            and y.shape == shape_y
            and y.dtype is dtype
            and transform() is None
            and forward_ad._current_level < 0
            and not grad_enabled()
        ):
            known = x
            if xi is None:
                left[0] = rest = left[0] - whole
                if rest < 0.0:
                    meter.refuse(whole)
                passes[row] += 1
                return one_point(x, y)
            answer = sampled(xi, x, y)
            if answer is not None:
                return answer
        return general(xi, x, y)

    return ask


def product_query(
    query: str,
    meter: Meter,
    shapes: Sequence[torch.Size],
    dtype: torch.dtype,
    one_point: QueryFunction,
    sampled: QueryFunction,
    general: QueryFunction,
) -> QueryFunction:
    """The same with a vector of y's shape; the meter's general way, since a product is not a cheap call."""
    shape_x, shape_y = shapes
    whole, grad_enabled = meter.whole[query], torch.is_grad_enabled

    def ask(x: Tensor, y: Tensor, v: Tensor, xi: Sample | None = None) -> Any:
        usual = (
            meter.mask is None
            and all(type(a) is Tensor and a.dtype is dtype for a in (x, y, v))
            and x.shape == shape_x
            and y.shape == v.shape == shape_y
            and transform() is None
            and forward_ad._current_level < 0
            and not grad_enabled()
        )
        if usual and xi is None:
            meter.charge(query, 1, whole)
            return one_point(x, y, v)
        answer = sampled(xi, x, y, v) if usual else None
        return general(xi, x, y, v) if answer is None else answer

    return ask


def plain(query: str, given: Sequence[Tensor], lanes: int, widths: Sequence[int], dtype: torch.dtype) -> list[Tensor]:
    """The arguments of any query, detached, after checking that they are what they seem: `(*points, L, d)`, plain."""
    if transform() is not None:
        raise MethodError(
            f"{query} was asked inside a transform of torch.func (vmap, jvp, grad), which would make many calls of one; "
            f"put several points on an axis to the left of the lane, and ask for products with {' and '.join(PRODUCTS)}"
        )
    arguments = []
    for name, value, width in zip("xyv", given, widths, strict=False):
        if not isinstance(value, Tensor):
            raise MethodError(f"{query}: {name} is {type(value).__name__}, not a tensor")
        if forward_ad._current_level >= 0 and forward_ad.unpack_dual(value).tangent is not None:
            raise MethodError(
                f"{query}: {name} carries a tangent of forward-mode differentiation, which would make a product of a "
                f"gradient; ask for products with {' and '.join(PRODUCTS)}, and declare them in `uses`"
            )
        # itself where it can be: derivatives.py knows by its identity that a point is still the same
        argument = value if type(value) is Tensor and not value.requires_grad else value.detach()
        if type(argument) is not Tensor:
            raise MethodError(f"{query}: {name} is a {type(value).__name__}; hand over a plain torch.Tensor")
        if argument.ndim < 2 or argument.shape[-2:] != (lanes, width):
            raise MethodError(
                f"{query}: {name} has the shape {tuple(argument.shape)}; ({lanes}, {width}) is wanted, one row per lane, and "
                f"several points on axes to the left: (points, {lanes}, {width})"
            )
        if argument.dtype != dtype:
            raise MethodError(f"{query}: {name} is {argument.dtype} and the problem {dtype}; convert it")
        arguments.append(argument)
    return arguments
