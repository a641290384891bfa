"""Variables as their owner writes them, and as one vector: tensors, nested dicts, lists and tuples of them, modules.

Of a module the parameters that require a gradient are variables. A function gets the module itself, with its parameters
replaced for the time of the call (`torch.func.functional_call`), so that `model(batch)`, `model.parameters()` and
`model.head(z)` are what they always are. An answer has the module's state dict in its place.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._pytree import keystr, tree_flatten, tree_flatten_with_path, tree_map, tree_unflatten

from bilevelbench.errors import InvalidInput
from bilevelbench.model.torch_state import placed

_DTYPES = (torch.float32, torch.float64)


@dataclass(frozen=True)
class _Place:
    """Where a leaf stands, as its owner would write it: x0['net'][0]. Worked out when somebody reads it, in an error."""

    name: str
    start: Any
    number: int

    def __str__(self) -> str:
        found, _ = tree_flatten_with_path(self.start)
        path, _ = found[self.number]
        return f"{self.name}{keystr(path)}"


@dataclass(frozen=True)
class _Leaf:
    """A tensor, or a module with the names, shapes and lengths of what moves in it."""

    place: _Place
    value: Tensor | nn.Module
    parameters: tuple[tuple[str, Tensor], ...]

    @classmethod
    def of(cls, place: _Place, value: Any) -> _Leaf:
        if isinstance(value, Tensor):
            return cls(place, value, (("", value),))
        if isinstance(value, nn.Module):
            moving = tuple((name, p) for name, p in value.named_parameters() if p.requires_grad)
            if not moving:
                raise InvalidInput(
                    f"{place} is a {type(value).__name__} without a parameter that requires a gradient; "
                    "call .requires_grad_(True) on what is to move"
                )
            return cls(place, value, moving)
        raise InvalidInput(
            f"{place} is {_article(type(value).__name__)}; variables are tensors, nested dicts, lists and tuples of tensors, "
            "or modules: write torch.tensor(...), or keep what is no variable outside"
        )

    def state(self, moved: dict[str, Tensor]) -> dict[str, Any]:
        """The module's state dict with these parameters; one that has several names is the same under each."""
        assert isinstance(self.value, nn.Module)
        first_name = {id(p): name for name, p in self.value.named_parameters()}
        names = {name: first_name[id(p)] for name, p in self.value.named_parameters(remove_duplicate=False)}
        state = {name: moved.get(names.get(name, ""), kept) for name, kept in self.value.state_dict().items()}
        return {name: value.detach().clone() if isinstance(value, Tensor) else value for name, value in state.items()}


@dataclass(frozen=True)
class Parameter:
    """A tensor that moves: a leaf, or a parameter of this name in a leaf that is a module."""

    leaf: _Leaf
    name: str
    tensor: Tensor

    def __str__(self) -> str:
        return f"{self.leaf.place}.{self.name}" if self.name else str(self.leaf.place)


class Variables:
    """x or y: `flat` is the start as one vector, and every vector of that length can be given its owner's shape again."""

    def __init__(self, name: str, start: Any) -> None:
        found, self._spec = tree_flatten(start)
        self.leaves = [_Leaf.of(_Place(name, start, number), value) for number, value in enumerate(found)]
        parameters = [Parameter(leaf, path, tensor) for leaf in self.leaves for path, tensor in leaf.parameters]
        self.shapes = [p.tensor.shape for p in parameters]
        self._lengths = [shape.numel() for shape in self.shapes]
        if sum(self._lengths) == 0:
            raise InvalidInput(f"{name} is {_shown(start)}: there is no number in it to move; give at least one tensor")
        self.name, self.first = name, parameters[0]
        for parameter in parameters:
            _check_dtype(parameter)
            check_alike(self.first, parameter)
        self.flat = torch.cat([p.tensor.detach().reshape(-1) for p in parameters])

    @property
    def modules(self) -> list[nn.Module]:
        return [leaf.value for leaf in self.leaves if isinstance(leaf.value, nn.Module)]

    def split(self, vector: Tensor) -> list[Tensor]:
        """The tensors of a vector, or of some on the axes to the left: views, differentiable, and under vmap."""
        pieces = vector.split(self._lengths, -1) if len(self._lengths) > 1 else (vector,)
        return [piece.reshape((*vector.shape[:-1], *shape)) for piece, shape in zip(pieces, self.shapes, strict=True)]

    def _named_pieces(self, tensors: Sequence[Tensor]) -> Iterator[list[tuple[str, Tensor]]]:
        """For each leaf its tensors by name."""
        left = iter(tensors)
        for leaf in self.leaves:
            yield [(name, piece) for (name, _), piece in zip(leaf.parameters, left, strict=False)]

    def bound(self, given: Tensor | Sequence[Tensor]) -> tuple[Any, list[dict[str, Tensor]]]:
        """What a function gets, modules in their place; and for each module the tensors that it is to have meanwhile.

        Of the vector, or of the tensors that it splits into.
        """
        tensors = self.split(given) if isinstance(given, Tensor) else given
        values: list[Any] = []
        swaps: list[dict[str, Tensor]] = []
        for leaf, pieces in zip(self.leaves, self._named_pieces(tensors), strict=True):
            if isinstance(leaf.value, nn.Module):
                values.append(leaf.value)
                swaps.append(dict(pieces))
            else:
                values.append(pieces[0][1])
        return tree_unflatten(values, self._spec), swaps

    def given(self, vector: Tensor) -> Any:
        """In its owner's shape, for a function that is not differentiated."""
        if self.modules:
            raise InvalidInput(
                f"{self.name} holds a module, and a function of your own would see its old parameters; confine it with "
                "bilevelbench.Box(low, high), Simplex(total) or Ball(radius)"
            )
        return self.bound(vector)[0]

    def answer(self, vector: Tensor) -> Any:
        """Tensors where there were tensors; for a module a state dict, which its `load_state_dict` takes."""
        return self._shaped(vector, lambda leaf, pieces: leaf.state(dict(pieces)))

    def derivative(self, vector: Tensor) -> Any:
        """The same for a gradient: for a module a dict of its moving parameters by name."""
        return self._shaped(vector, lambda leaf, pieces: {name: piece.clone() for name, piece in pieces})

    def vector(self, name: str, given: Any) -> Tensor:
        """What has this shape, as `derivative` gives it, as a vector."""
        try:
            parts = self._spec.flatten_up_to(given)
            tensors = [
                part[parameter] if parameter else part
                for leaf, part in zip(self.leaves, parts, strict=True)
                for parameter, _ in leaf.parameters
            ]
        except (ValueError, KeyError, TypeError) as error:
            raise InvalidInput(f"{name} is built otherwise than {self.name} ({error}); give it in that shape") from None
        for tensor, shape in zip(tensors, self.shapes, strict=True):
            if not isinstance(tensor, Tensor) or tensor.shape != shape:
                seen = tuple(tensor.shape) if isinstance(tensor, Tensor) else type(tensor).__name__
                raise InvalidInput(f"{name} has {seen} where {self.name} has a tensor of shape {tuple(shape)}")
        return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])

    def _shaped(self, vector: Tensor, of_module: Callable[[_Leaf, list[tuple[str, Tensor]]], Any]) -> Any:
        values = [
            of_module(leaf, pieces) if isinstance(leaf.value, nn.Module) else pieces[0][1].clone()
            for leaf, pieces in zip(
                self.leaves, self._named_pieces(self.split(vector.detach().reshape(-1))), strict=True
            )
        ]
        return tree_unflatten(values, self._spec)


def placed_tree(start: Any, device: str | torch.device | None, dtype: str | torch.dtype | None) -> Any:
    """A tree of variables or data where it was asked for; a module is copied, and integers keep their dtype."""
    if device is None and dtype is None:
        return start

    def move(leaf: Any) -> Any:
        if isinstance(leaf, nn.Module):
            return copy.deepcopy(leaf)._apply(move)
        if not isinstance(leaf, Tensor):
            return leaf
        return placed(leaf, device, dtype if leaf.is_floating_point() else None)

    return tree_map(move, start)


def check_alike(one: Parameter, other: Parameter) -> None:
    """One dtype and one device for all variables."""
    first, second = one.tensor, other.tensor
    if first.dtype != second.dtype:
        raise InvalidInput(
            f"{one} is {first.dtype} and {other} {second.dtype}; give both as float64, or both as float32"
        )
    if first.device != second.device:
        raise InvalidInput(f"{one} is on {first.device} and {other} on {second.device}; move them to one device")


def _check_dtype(parameter: Parameter) -> None:
    if parameter.tensor.dtype not in _DTYPES:
        raise InvalidInput(
            f"{parameter} is {parameter.tensor.dtype}; give both as float64, or both as float32, and keep integers and "
            "other constants outside the variables"
        )


Function = Callable[..., Any]


class Call:
    """A function of variables in their owner's shapes, and perhaps of a batch, as one of vectors and that batch."""

    def __init__(self, function: Function, *variables: Variables) -> None:
        self._function, self.variables = function, variables
        modules = [module for variable in variables for module in variable.modules]
        if len({id(module) for module in modules}) < len(modules):
            raise InvalidInput(
                "one module stands twice among x0 and y0; give each its own, say copy.deepcopy(module), or let the function "
                "use the one twice"
            )
        self._holder = _Holder(function, modules) if modules else None

    def __call__(self, *arguments: Any) -> Any:
        """Of each variable the vector, or the tensors that it splits into; then the batch."""
        given, batch = arguments[: len(self.variables)], arguments[len(self.variables) :]
        bound = [variable.bound(value) for variable, value in zip(self.variables, given, strict=True)]
        values = [value for value, _ in bound]
        if self._holder is None:
            return self._function(*values, *batch)
        swaps = [swap for _, of_one in bound for swap in of_one]
        tensors = {f"held.{i}.{name}": tensor for i, swap in enumerate(swaps) for name, tensor in swap.items()}
        return functional_call(self._holder, tensors, (*values, *batch))


class _Holder(nn.Module):
    """A module only for `functional_call`, which replaces the parameters of everything below it."""

    def __init__(self, function: Function, modules: list[nn.Module]) -> None:
        super().__init__()
        self.function, self.held = function, nn.ModuleList(modules)

    def forward(self, *arguments: Any) -> Any:
        return self.function(*arguments)


def _shown(start: Any) -> str:
    if isinstance(start, Tensor):
        return f"a tensor of shape {tuple(start.shape)}"
    return f"an empty {type(start).__name__}" if not start else f"{_article(type(start).__name__)} of empty tensors"


def _article(noun: str) -> str:
    return f"{'an' if noun[:1].lower() in 'aeiou' else 'a'} {noun}"
