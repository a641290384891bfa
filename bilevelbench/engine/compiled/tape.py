"""A tape of what a step does to tensors: a graph of operations, with the number of the step and the state left open.

Operations that neither of them reaches are not on the tape: their results are constants. A step that looks at the value of
an open tensor, to decide what to do next, cannot be taped.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from bilevelbench.errors import Untraceable

#: Functions of a number, such as the step, that methods call.
_OF_NUMBERS = ("ceil", "cos", "exp", "expm1", "floor", "log", "log10", "log1p", "log2", "pow", "sin", "sqrt", "tanh")
_LOOKS = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)


class Tape(TorchDispatchMode):
    """Records while it is entered. `constants` are further inputs of the graph, in their order."""

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's
        self.graph, self.constants = fx.Graph(), list[Tensor]()
        self._nodes: dict[int, fx.Node] = {}  # of open tensors
        self._constants: dict[
            tuple[object, ...], fx.Node
        ] = {}  # by their place, which is theirs for as long as they are held
        self._held: list[Tensor] = []  # an id is that of one tensor for as long as the tensor lives
        self._last: fx.Node | None = None
        for tensor in inputs:
            self._know(tensor, self._input())

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if not any(id(t) in self._nodes for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)):
            return func(*args, **kwargs)
        if any(tag in func.tags for tag in _LOOKS):
            raise Untraceable("what a step does depends on a number that it has computed")
        if func._schema.is_mutable:
            raise Untraceable(f"a step changes a tensor in place ({func})")
        out = func(*args, **kwargs)
        node = self.graph.call_function(func, *tree_map(self._argument, (args, kwargs)))
        if isinstance(out, Tensor):
            self._know(out, node)
        else:
            for place, one in enumerate(out):
                if isinstance(one, Tensor):
                    self._know(one, self.graph.call_function(operator.getitem, (node, place)))
        return out

    def end(self, outputs: Sequence[Tensor]) -> fx.GraphModule:
        """The graph with these outputs, each a tensor of its own."""
        nodes = [self._argument(tensor) for tensor in outputs]
        own = [self.graph.call_function(torch.ops.aten.clone.default, (node,)) for node in nodes]
        self.graph.output(tuple(own))
        _once(self.graph)
        self.graph.eliminate_dead_code()
        return fx.GraphModule(torch.nn.Module(), self.graph)

    def _input(self) -> fx.Node:
        """A new input, after those that there are."""
        name = f"input_{len(self._nodes) + len(self._constants)}"
        if self._last is None:
            self._last = self.graph.placeholder(name)
        else:
            with self.graph.inserting_after(self._last):
                self._last = self.graph.placeholder(name)
        return self._last

    def _know(self, tensor: Tensor, node: fx.Node) -> None:
        self._nodes[id(tensor)] = node
        self._held.append(tensor)

    def _argument(self, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        if (node := self._nodes.get(id(value))) is not None:
            return node
        place = value.data_ptr(), value.shape, value.stride(), value.dtype
        known = self._constants.get(place)
        if known is None:
            known = self._constants[place] = self._input()
            self.constants.append(value)
        return known


def _once(graph: fx.Graph) -> None:
    """What is computed twice, say probabilities at a point by two derivatives, is computed once: nothing changes in place."""
    seen: dict[str, fx.Node] = {}
    for node in list(graph.nodes):
        if node.op == "call_function" and node.target is not torch.ops.aten.clone.default:
            same = seen.setdefault(f"{node.target} {node.args} {node.kwargs}", node)
            if same is not node:
                node.replace_all_uses_with(same)
                graph.erase_node(node)


@contextmanager
def tensors_in_math() -> Iterator[None]:
    """Functions of `math` take tensors: a method may write `math.log1p(k)`, where k counts its steps."""
    before = {name: getattr(math, name) for name in _OF_NUMBERS}

    def either(name: str) -> Callable[..., Any]:
        def function(*given: Any) -> Any:
            if any(isinstance(one, Tensor) for one in given):
                return getattr(torch, name)(*given)
            return before[name](*given)

        return function

    try:
        for name in _OF_NUMBERS:
            setattr(math, name, either(name))
        yield
    finally:
        for name, function in before.items():
            setattr(math, name, function)
