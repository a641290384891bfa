"""The operations of torch that a generated program knows, as values that are computed where they are read."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from bilevelbench.engine.compiled.kernels import Kernels
from bilevelbench.engine.compiled.values import TYPES, Body, Buffered, Lazy, Unknown, Value, made, steps, viewed

aten = torch.ops.aten

#: Expressions with so many operations below each other are stored, so that the text of a loop stays short.
_DEEPEST = 48
#: Products with more multiplications are left to libraries, which are better at them.
_LARGEST = 1 << 22

#: Of operands that have the type of the result.
_ARITHMETIC = {
    aten.add.Tensor: "{0} + {1}",
    aten.sub.Tensor: "{0} - {1}",
    aten.rsub.Scalar: "{1} - {0}",
    aten.mul.Tensor: "{0} * {1}",
    aten.div.Tensor: "{0} / {1}",
    aten.reciprocal.default: "1 / {0}",
    aten.neg.default: "-{0}",
    aten.abs.default: "std::abs({0})",
    aten.exp.default: "exp_of({0})",
    aten.expm1.default: "std::expm1({0})",
    aten.log.default: "log_of({0})",
    aten.log1p.default: "std::log1p({0})",
    aten.sqrt.default: "std::sqrt({0})",
    aten.sin.default: "std::sin({0})",
    aten.cos.default: "std::cos({0})",
    aten.tanh.default: "std::tanh({0})",
    aten.ceil.default: "std::ceil({0})",
    aten.floor.default: "std::floor({0})",
    aten.sigmoid.default: "1 / (1 + exp_of(-{0}))",
    aten.pow.Tensor_Tensor: "std::pow({0}, {1})",
    aten.pow.Tensor_Scalar: "std::pow({0}, {1})",
    aten.pow.Scalar: "std::pow({0}, {1})",
    aten.maximum.default: "({0} > {1} || {0} != {0}) ? {0} : {1}",
    aten.minimum.default: "({0} < {1} || {0} != {0}) ? {0} : {1}",
    aten.bitwise_and.Scalar: "{0} & {1}",
    aten.bitwise_and.Tensor: "{0} & {1}",
    aten.bitwise_or.Tensor: "{0} | {1}",
    aten.bitwise_xor.Tensor: "{0} ^ {1}",
    aten.bitwise_xor.Scalar: "{0} ^ {1}",
    aten.__rshift__.Scalar: "{0} >> {1}",
    aten.logical_and.default: "{0} && {1}",
    aten.logical_or.default: "{0} || {1}",
    aten.logical_not.default: "!{0}",
    aten.zeros_like.default: "0",
    aten.ones_like.default: "1",
    aten.clone.default: "{0}",
    aten._to_copy.default: "{0}",
    aten.special_ndtri.default: "quantile({0})",
}
#: Of operands of a common type, with a bool as the result.
_COMPARISONS = {
    f"{name}.{kind}": sign
    for name, sign in {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}.items()
    for kind in ("Tensor", "Scalar")
}
_SAME = (aten._unsafe_view.default, aten.reshape.default, aten.detach.default, aten.alias.default)


class Operations:
    """The values of a graph's nodes; what is stored on the way is in `kernels`."""

    def __init__(self, kernels: Kernels) -> None:
        self.kernels = kernels

    def __call__(self, function: Any, result: Any, given: Sequence[Any], named: dict[str, Any]) -> Any:
        """The value of a call, whose result looks like `result`, a tensor or several."""
        if function is operator.getitem:
            return given[0][given[1]]
        if function in _SAME or getattr(function, "is_view", False):
            return self._viewed(function, given, named)
        rule = _RULES.get(function)
        if rule is not None:
            return rule(self, result, *given, **named)
        if function in _ARITHMETIC:
            given = [*given[:1], *_scaled(self, given[1:], result, named)]
            return self.pointwise(_ARITHMETIC[function], result, given, result.dtype)
        if (sign := _COMPARISONS.get(str(function).removeprefix("aten."))) is not None:
            common = torch.result_type(*(v.meta if isinstance(v, (Buffered, Lazy)) else v for v in given))
            return self.pointwise(f"{{0}} {sign} {{1}}", result, given, common)
        raise Unknown(str(function))

    def pointwise(self, text: str, result: Tensor, given: Sequence[Any], of: torch.dtype | None) -> Lazy:
        """An expression of the elements of tensors, and of numbers; `of`: the type that they have in it."""
        whole = result.numel()
        operands = [self._operand(value, whole) for value in given]
        spread = [
            _expanded(value, result.shape) if isinstance(value, (Buffered, Lazy)) else _number(value, of)
            for value in operands
        ]

        def read(body: Body, index: Sequence[str]) -> str:
            parts = [v if isinstance(v, str) else _cast(body.at(v, index), v.meta.dtype, of) for v in spread]
            return text.format(*parts)

        values = [v for v in spread if not isinstance(v, str)]
        along = max((steps(v) for v in values), key=lambda of: sum(map(bool, of)))  # of one that is not broadcast
        depth = 1 + max((v.depth for v in values if isinstance(v, Lazy)), default=0)
        return made(result, read, along, depth=depth)

    def _operand(self, value: Any, whole: int) -> Any:
        """An operand as it may be read in an expression: once for each element, or from where it is stored."""
        if not isinstance(value, Lazy) or value.is_cheap:
            return value
        again = value.meta.numel() < whole and value.depth > 0
        return self.kernels.stored(value) if value.over or again or value.depth > _DEEPEST else value

    def _viewed(self, function: Any, given: Sequence[Any], named: dict[str, Any]) -> Any:
        value, *rest = given
        change = aten.view.default if function in _SAME[:2] else function

        def view(meta: Tensor) -> Any:
            return change(meta, *rest, **named)

        out = viewed(value, view)
        if out is None or (isinstance(value, Lazy) and not value.is_cheap and _grows(value, out)):
            out = viewed(self.kernels.stored(value), view)
        if out is None:
            raise Unknown(str(function))
        return out

    def product(self, result: Tensor, a: Value, b: Value) -> Lazy:
        """(.., m, k) with (.., k, n); each element is a sum that is taken when it is stored."""
        (m, k), n = a.meta.shape[-2:], b.meta.shape[-1]
        if result.numel() * k > _LARGEST:
            raise Unknown("a large product")
        a, b = self._factor(a, n), self._factor(b, m)

        def read(body: Body, index: Sequence[str]) -> str:
            *lanes, i, j, along = index
            return f"{body.at(a, [*lanes, i, along])} * {body.at(b, [*lanes, along, j])}"

        of_a, of_b = steps(a), steps(b)
        along = (*of_a[:-2], of_a[-2], 0, of_a[-1]) if m > n else (*of_b[:-2], 0, of_b[-1], of_b[-2])
        return made(result, read, along, over=k, product=True)

    def _factor(self, value: Value, times: int) -> Value:
        """A factor of a product whose elements are read so many times."""
        if isinstance(value, Lazy) and not value.is_cheap and (value.over or times > 1):
            return self.kernels.stored(value)
        return value

    def reduced(self, result: Tensor, value: Value, axis: int, keep: bool, maximum: bool = False) -> Lazy:
        """The sum, or the maximum, along an axis."""
        axis %= value.meta.dim()
        source = self._operand(value, value.meta.numel())
        n, shape = source.meta.shape[axis], list(source.meta.shape)

        def read(body: Body, index: Sequence[str]) -> str:
            *here, along = index
            return body.at(source, [*here[:axis], along, *here[axis + keep :]])

        of = list(steps(source))
        along = (*of[:axis], *([0] if keep else []), *of[axis + 1 :], of[axis])
        shape[axis : axis + 1] = [1] if keep else []
        like = torch.empty(shape, dtype=result.dtype, device="meta")
        return made(like, read, along, over=n, maximum=maximum)


def _expanded(value: Value, shape: Sequence[int]) -> Value:
    out = value if tuple(value.meta.shape) == tuple(shape) else viewed(value, lambda meta: meta.expand(tuple(shape)))
    if out is None:
        raise Unknown("a broadcast")
    return out


def _grows(value: Lazy, out: Any) -> bool:
    """Whether a view has more elements than what it is a view of."""
    return not isinstance(out, list) and out.meta.numel() > value.meta.numel()


def _cast(text: str, has: torch.dtype, wanted: torch.dtype | None) -> str:
    return text if wanted is None or has == wanted else f"({TYPES[wanted]})({text})"


def _number(value: Any, of: torch.dtype | None) -> str:
    if not isinstance(value, (bool, int, float)) or (isinstance(value, float) and not math.isfinite(value)):
        raise Unknown(f"a constant {value!r}")
    if of is None or (not of.is_floating_point and (value != int(value) or int(value) == -(1 << 63))):
        raise Unknown(f"a constant {value!r}")
    return f"({TYPES[of]})({float(value)!r})" if of.is_floating_point else f"({TYPES[of]})({int(value)}LL)"


def _scaled(of: Operations, given: Sequence[Any], result: Tensor, named: dict[str, Any]) -> list[Any]:
    """The further operands of a sum; `alpha` times the second. Other options say nothing that the result does not say."""
    alpha = named.get("alpha", 1)
    if alpha == 1 or not given:
        return list(given)
    if isinstance(given[0], (int, float)):
        return [given[0] * alpha]
    return [of.pointwise("{0} * {1}", given[0].meta, [given[0], alpha], result.dtype)]


# ------------------------------------------------------------------------------------------------ rules of their own


def _product(of: Operations, result: Tensor, a: Value, b: Value) -> Value:
    return of.product(result, a, b)


def _embedding(of: Operations, result: Tensor, table: Value, rows: Value, *more: Any) -> Value:
    """Rows of a table. They stay where they are: to read them there costs no more than to read a copy."""
    index, table = of.kernels.stored(rows), of.kernels.stored(table)

    def read(body: Body, place: Sequence[str]) -> str:
        *where, along = place
        return table.at([f"{index.at(where)}", along])

    row, one = table.meta.stride()
    return made(result, read, (*[row] * index.meta.dim(), one), depth=0)


def _sum(of: Operations, result: Tensor, value: Value, axes: Any = None, keep: bool = False, **_: Any) -> Value:
    for axis in sorted((a % value.meta.dim() for a in (axes or range(value.meta.dim()))), reverse=True):
        value = of.reduced(result, value, axis, keep)
    return value


def _mean(of: Operations, result: Tensor, value: Value, axes: Any = None, keep: bool = False, **_: Any) -> Value:
    whole = _sum(of, result, value, axes, keep)
    return of.pointwise("{0} / {1}", result, [whole, value.meta.numel() // max(result.numel(), 1)], result.dtype)


def _norm(
    of: Operations, result: Tensor, value: Value, order: float = 2, axes: Any = None, keep: bool = False
) -> Value:
    if order != 2:
        raise Unknown("a norm")
    value = of.kernels.stored(value)
    square = of.pointwise("{0} * {1}", value.meta, [value, value], result.dtype)
    return of.pointwise("std::sqrt({0})", result, [_sum(of, result, square, axes, keep)], result.dtype)


def _softmax(of: Operations, result: Tensor, value: Value, axis: int, half: bool) -> Value:
    value = of.kernels.stored(value)
    largest = of.reduced(result, value, axis, True, maximum=True)
    grown = of.kernels.stored(of.pointwise("exp_of({0} - {1})", result, [value, largest], result.dtype))
    whole = of.reduced(result, grown, axis, True)
    inverse = of.pointwise("1 / {0}", torch.empty(whole.meta.shape, dtype=result.dtype, device="meta"), [whole], None)
    return of.pointwise("{0} * {1}", result, [grown, inverse], result.dtype)


def _clamp(of: Operations, result: Tensor, value: Value, low: Any = None, high: Any = None) -> Value:
    for bound, sign in ((low, "<"), (high, ">")):
        if bound is not None:
            value = of.pointwise(f"{{0}} {sign} {{1}} ? {{1}} : {{0}}", result, [value, bound], result.dtype)
    return value


def _where(of: Operations, result: Tensor, mask: Value, one: Value, other: Value) -> Value:
    if any(isinstance(v, (Buffered, Lazy)) and v.meta.dtype != result.dtype for v in (one, other)):
        raise Unknown("a choice of two types")
    return of.pointwise("{0} ? {1} : {2}", result, [mask, one, other], None)


def _not(of: Operations, result: Tensor, value: Value) -> Value:
    return of.pointwise("!{0}" if result.dtype == torch.bool else "~{0}", result, [value], result.dtype)


def _stack(of: Operations, result: Tensor, parts: Sequence[Value], axis: int = 0) -> Value:
    out = of.kernels.new(torch.empty(result.shape, dtype=result.dtype, device="meta"))
    for i, part in enumerate(parts):
        of.kernels.store(part, Buffered(out.meta.select(axis, i), out.buffer))
    return out


def _cat(of: Operations, result: Tensor, parts: Sequence[Value], axis: int = 0) -> Value:
    out, start = of.kernels.new(torch.empty(result.shape, dtype=result.dtype, device="meta")), 0
    for part in parts:
        n = part.meta.shape[axis]
        of.kernels.store(part, Buffered(out.meta.narrow(axis, start, n), out.buffer))
        start += n
    return out


def _pad(of: Operations, result: Tensor, value: Value, by: Sequence[int], *_: Any) -> Value:
    if any(by):
        raise Unknown("a padding")
    return value


_RULES: dict[Any, Callable[..., Value]] = {
    aten.mm.default: _product,
    aten.bmm.default: _product,
    aten.embedding.default: _embedding,
    aten.sum.dim_IntList: _sum,
    aten.sum.default: _sum,
    aten.mean.dim: _mean,
    aten.mean.default: _mean,
    aten.linalg_vector_norm.default: _norm,
    aten._softmax.default: _softmax,
    aten.clamp.default: _clamp,
    aten.where.self: _where,
    aten.bitwise_not.default: _not,
    aten.stack.default: _stack,
    aten.cat.default: _cat,
    aten.constant_pad_nd.default: _pad,
}
