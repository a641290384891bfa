"""What is wrong with functions of one's own, found at the start and said in a sentence, before anything runs."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.modules.dropout import _DropoutNd
from torch.utils._pytree import tree_leaves

from bilevelbench.errors import InvalidInput
from bilevelbench.model.one_lane import OneLane
from bilevelbench.model.own_data import OwnData
from bilevelbench.model.pytrees import Variables

_REPEATED_ROWS = 8
_MIXED = ("dtype", "same device", "scalar type")  # what torch says of tensors that do not go together


def check_modules(*variables: Variables) -> None:
    """Modules whose answer is chance, or depends on what they were asked before."""
    for leaf in (leaf for variable in variables for leaf in variable.leaves if isinstance(leaf.value, nn.Module)):
        assert isinstance(leaf.value, nn.Module)
        for path, module in leaf.value.named_modules():
            trouble = _trouble(module) if module.training else ""
            if trouble:
                place = f" at {path!r}" if path else ""
                raise InvalidInput(
                    f"{leaf.place} has a {type(module).__name__}{place} in training mode, which {trouble}; call .eval() on the "
                    "module first"
                )


def _trouble(module: nn.Module) -> str:
    draws = isinstance(module, _DropoutNd) and module.p > 0
    draws = draws or (isinstance(module, (nn.RNNBase, nn.MultiheadAttention)) and module.dropout > 0)
    if draws:
        return "draws other numbers at each call"
    if isinstance(module, _BatchNorm) or (isinstance(module, _NormBase) and module.track_running_stats):
        return "changes its buffers at each call and lets a row depend on the others of its batch"
    return ""


def check_start(f: OneLane, g: OneLane, x0: Tensor, y0: Tensor) -> None:
    if x0.is_meta:
        raise InvalidInput("x0 and y0 are on the device meta, where tensors have no numbers; give them on cpu or cuda")
    for level in (f, g):
        _check_value(level, x0.clone(), y0.clone())
    _check_paths(f, g, x0, y0)


@torch.no_grad()
def _check_value(level: OneLane, x: Tensor, y: Tensor) -> None:
    name, data = level.name, tree_leaves(level.whole)
    versions = [t._version for t in (x, y, *data)]
    try:
        value = level(x, y, *level.whole)
    except RuntimeError as error:
        if any(sign in str(error) for sign in _MIXED):
            raise _mixed(level, x, error) from error
        raise
    for what, tensor, version in zip(("x", "y", *["batch"] * len(data)), (x, y, *data), versions, strict=True):
        if tensor._version != version:
            raise InvalidInput(
                f"{name} changes its argument {what} in place; make a new tensor: `z = {what} + 1`, not `+= 1` or `add_(1)`"
            )
    if value.dtype != x.dtype or value.device != x.device:
        raise InvalidInput(
            f"{name} returned {value.dtype} on {value.device} for variables that are {x.dtype} on {x.device}; convert the "
            "tensors that it uses to those"
        )
    if not bool(torch.isfinite(value)):
        raise InvalidInput(f"{name} is {value.item()} at (x0, y0); start where it is finite")
    if not torch.allclose(level(x, y, *level.whole), value, rtol=1e-4):
        raise InvalidInput(
            f"{name} gave two values at one point: it draws random numbers; call .eval() on a module that has dropout, and "
            "draw other numbers once, outside of it"
        )
    if level.data is not None:
        _check_mean(level, level.data, x, y)


def _check_mean(level: OneLane, data: OwnData, x: Tensor, y: Tensor) -> None:
    """A mean does not change when every row stands twice."""
    some = torch.arange(min(data.n, _REPEATED_ROWS), device=tree_leaves(data.rows)[0].device)
    once, twice = (level(x, y, data.at(index)) for index in (some, some.repeat(2)))
    if not torch.allclose(once, twice, rtol=1e-3, atol=1e-6):
        raise InvalidInput(
            f"{level.name} is {once.item():.6g} on {len(some)} rows and {twice.item():.6g} when each of them stands twice; it "
            "has to return the mean over its batch, not the sum"
        )


def _mixed(level: OneLane, x: Tensor, error: RuntimeError) -> InvalidInput:
    data = sorted({f"{t.dtype} on {t.device}" for t in tree_leaves(level.whole) if t.is_floating_point()})
    told = f", data_{level.name} {' and '.join(data)}" if data else ""
    return InvalidInput(
        f"{level.name} mixes tensors that do not go together ({str(error).splitlines()[0]}); x0 and y0 are {x.dtype} on "
        f"{x.device}{told}: convert one to the other, as in data.to({x.dtype})"
    )


def _check_paths(f: OneLane, g: OneLane, x0: Tensor, y0: Tensor) -> None:
    """Gradients are there where they are needed, and finite."""
    f_x, f_y = _gradients(f, x0, y0)
    _, g_y = _gradients(g, x0, y0)
    if g_y is None:
        raise InvalidInput(f"g has no gradient path to y: {_CUT}")
    if f_x is None and f_y is None:
        raise InvalidInput(f"f has no gradient path to x or to y: {_CUT}")
    if f_x is None and not _is_coupled(g, x0, y0):
        raise InvalidInput(f"x changes nothing: neither f nor the minimiser of g has a gradient path to it; {_CUT}")


_CUT = "it does not use it, or the path is cut by .detach(), .item(), .data, numpy or torch.no_grad()"


@torch.enable_grad()
def _gradients(level: OneLane, x0: Tensor, y0: Tensor) -> tuple[Tensor | None, Tensor | None]:
    leaves = x0.clone().requires_grad_(True), y0.clone().requires_grad_(True)
    value = level(*leaves, *level.whole)
    if not value.requires_grad:
        return None, None
    x, y = torch.autograd.grad(value, leaves, allow_unused=True)
    for name, gradient in (("x", x), ("y", y)):
        if gradient is not None and not bool(torch.isfinite(gradient).all()):
            raise InvalidInput(
                f"the gradient of {level.name} in {name} is not finite at (x0, y0), as that of a square root at zero is not; "
                "start where it is"
            )
    return x, y


@torch.enable_grad()
def _is_coupled(g: OneLane, x0: Tensor, y0: Tensor) -> bool:
    """Whether x has a path to g_y, and so to the minimiser of g."""
    x, y = x0.clone().requires_grad_(True), y0.clone().requires_grad_(True)
    (g_y,) = torch.autograd.grad(g(x, y, *g.whole), y, create_graph=True)
    return bool(g_y.requires_grad) and torch.autograd.grad(g_y.sum(), x, allow_unused=True)[0] is not None
