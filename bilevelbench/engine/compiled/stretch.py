"""Many steps in one call: a traced step in a loop, interpreted by torch.fx or compiled to C++ by torch's inductor."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch._higher_order_ops.while_loop import while_loop_op

from bilevelbench.engine.compiled.native import Program, native
from bilevelbench.engine.compiled.trace import Traced
from bilevelbench.engine.compiled.values import Unknown

#: The leaves of a state after steps `first` + 1 to `last`, from those after step `first`.
Stretch = Callable[[int, int, Sequence[Tensor]], Sequence[Tensor]]

aten = torch.ops.aten

#: The loop in C++; nothing in processes of the compiler's own; vectors left to g++, which makes better ones of gathered rows
#: and saves inductor most of its time (docs/decisions/024-compiled-steps.md).
_OPTIONS = {"cpp_wrapper": True, "compile_threads": 1, "cpp.simdlen": 1}


def replayed(traced: Traced) -> Stretch:
    """The graph as Python: nothing has to be compiled, and every operation is still called one by one."""

    def run(first: int, last: int, leaves: Sequence[Tensor]) -> Sequence[Tensor]:
        for number in range(first + 1, last + 1):
            leaves = traced.graph(torch.tensor(number), *leaves, *traced.constants)
        return leaves

    return run


def compiled(traced: Traced, leaves: Sequence[Tensor], program: Program | None) -> Stretch:
    """One C++ function with the loop inside of it, for any number of steps: our own program, or else torch's."""
    if program is None:
        return by_inductor(traced, leaves)
    try:
        return native(program)
    except Unknown:
        return by_inductor(traced, leaves)


def by_inductor(traced: Traced, leaves: Sequence[Tensor]) -> Stretch:
    """By torch's own compiler, which knows all operations."""
    constants = _apart([constant.contiguous() for constant in traced.constants])
    inputs = [torch.tensor(0), torch.tensor(1), *_apart(leaves), *constants]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a compiler that looks at itself
        function = _compiled(_loop(traced, len(leaves)), inputs)

    def run(first: int, last: int, leaves: Sequence[Tensor]) -> Sequence[Tensor]:
        _, *after = function(torch.tensor(first), torch.tensor(last), *_apart(leaves), *constants)
        return after

    return run


def _compiled(graph: fx.GraphModule, inputs: Sequence[Tensor]) -> Callable[..., Sequence[Tensor]]:
    from torch._inductor.compile_fx import compile_fx
    from torch._inductor.decomposition import select_decomp_table
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    shapes = FakeTensorMode(shape_env=ShapeEnv())
    made: Any = compile_fx(
        graph,
        [shapes.from_tensor(tensor, static_shapes=True) for tensor in inputs],
        config_patches=_OPTIONS,
        decompositions={**select_decomp_table(), aten.bmm.default: _thin_product},
    )
    return made  # type: ignore[no-any-return]


def _apart(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The same numbers, in no memory that two of them share."""
    seen: set[int] = set()
    out = []
    for tensor in tensors:
        place = tensor.untyped_storage().data_ptr()
        out.append(tensor.clone() if place in seen else tensor)
        seen.add(place)
    return out


def _thin_product(a: Tensor, b: Tensor) -> Any:
    """A product with one vector for each lane as a sum: it joins the gathering of the rows before it in one loop."""
    if a.shape[1] == 1:
        return (a.squeeze(1).unsqueeze(-1) * b).sum(1, keepdim=True)
    if b.shape[2] == 1:
        return (a * b.squeeze(-1).unsqueeze(1)).sum(-1, keepdim=True)
    return NotImplemented


def _loop(traced: Traced, leaves: int) -> fx.GraphModule:
    """`(number, last, *leaves, *constants) -> (number, *leaves)`: steps for as long as number < last."""
    state = [f"leaf_{i}" for i in range(leaves)]
    fixed = [f"constant_{i}" for i in range(len(traced.constants))]

    goes_on, (number, *_), (last, *_) = _begun(["number", *state], ["last", *fixed])
    goes_on.output(goes_on.call_function(aten.lt.Tensor, (number, last)))

    body, (number, *given), (_, *constants) = _begun(["number", *state], ["last", *fixed])
    number = body.call_function(aten.add.Tensor, (number, 1))
    inputs = [node for node in traced.graph.graph.nodes if node.op == "placeholder"]
    after: Any = body.graph_copy(traced.graph.graph, dict(zip(inputs, (number, *given, *constants), strict=True)))
    body.output((number, *after))

    whole, (number, last, *given), constants = _begun(["number", "last", *state], fixed)
    functions = [whole.get_attr(name) for name in ("goes_on", "body")]
    loop = whole.call_function(while_loop_op, (*functions, (number, *given), (last, *constants)))
    whole.output(tuple(whole.call_function(operator.getitem, (loop, i)) for i in range(1 + leaves)))
    parts = {"goes_on": _module(goes_on), "body": _module(body)}
    return _module(whole, parts)


def _begun(*names: list[str]) -> tuple[Any, ...]:
    """A graph, and its inputs of these names."""
    graph = fx.Graph()
    return graph, *([graph.placeholder(name) for name in some] for some in names)


def _module(graph: fx.Graph, parts: dict[str, fx.GraphModule] | None = None) -> fx.GraphModule:
    return fx.GraphModule(torch.nn.ModuleDict(parts or {}), graph)
