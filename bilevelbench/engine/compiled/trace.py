"""One step of a pack as a graph, and what it costs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from bilevelbench.engine.compiled.tape import Tape, tensors_in_math
from bilevelbench.engine.setup import PreparedPack
from bilevelbench.errors import Untraceable
from bilevelbench.model.lanes import take
from bilevelbench.oracle.meter import Tally


@dataclass(frozen=True)
class Traced:
    """`graph(number, *leaves, *constants)` makes step `number`, an integer tensor, of a state with these leaves.

    A Python number of a state is a tensor without axes there: of double precision, whatever it counts.
    """

    graph: fx.GraphModule
    constants: tuple[Tensor, ...]
    cost: Tally


def trace(pack: PreparedPack, lanes: int, states: Sequence[Any], numbers: Sequence[int]) -> Traced:
    """The step that leads on from these states, which are those before these numbers; the same graph for all of them."""
    index = torch.arange(lanes)
    first, *others = (_one(pack, lanes, take(state, index), k) for state, k in zip(states, numbers, strict=True))
    for other in others:
        if not _same(first, other):
            raise Untraceable("two of its steps are not made of the same operations and constants")
    return first


def leaves_of(state: Any) -> list[Tensor]:
    """The tensors of a state, with its numbers among them."""
    found: list[Tensor] = []

    def note(leaf: Tensor | float) -> Tensor | float:
        found.append(leaf.contiguous() if isinstance(leaf, Tensor) else torch.tensor(leaf, dtype=torch.float64))
        return leaf

    _changed(state, note)
    return found


def rebuilt(state: Any, leaves: Sequence[Tensor], open_numbers: bool = False) -> Any:
    """A state like this one with these leaves; its numbers are numbers again, unless they are to stay `open_numbers`."""
    given: Iterator[Tensor] = iter(leaves)

    def put(leaf: Tensor | float) -> Tensor | float:
        new = next(given)
        return new if isinstance(leaf, Tensor) or open_numbers else type(leaf)(new.item())

    return _changed(state, put)


def _one(pack: PreparedPack, lanes: int, state: Any, number: int) -> Traced:
    apart = pack.apart(range(lanes))
    apart.oracle.trace()
    open_number: Any = torch.tensor(number)
    leaves = [leaf.clone() for leaf in leaves_of(state)]
    tape = Tape([open_number, *leaves])
    with tape, tensors_in_math():
        new = apart.step(open_number, rebuilt(state, leaves, open_numbers=True))
    after = leaves_of(new)
    if [(leaf.shape, leaf.dtype) for leaf in after] != [(leaf.shape, leaf.dtype) for leaf in leaves]:
        raise Untraceable("its state changes its form from one step to the next")
    if not apart.oracle.counts_agree:
        raise Untraceable(f"its two counts differ ({apart.oracle.count_differences()})")
    return Traced(tape.end(after), tuple(tape.constants), apart.oracle.meter.tally(lanes))


def _same(one: Traced, other: Traced) -> bool:
    return (
        one.graph.code == other.graph.code
        and one.cost.is_same(other.cost)
        and len(one.constants) == len(other.constants)
        and all(a is b or torch.equal(a, b) for a, b in zip(one.constants, other.constants, strict=True))
    )


def _changed(value: Any, change: Callable[[Tensor | float], Tensor | float]) -> Any:
    """`value` with its tensors and numbers changed; other things that a state may hold are refused."""
    if isinstance(value, Tensor) or (isinstance(value, (int, float)) and not isinstance(value, bool)):
        return change(value)
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, tuple):
        items = [_changed(item, change) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        return dataclasses.replace(value, **{name: _changed(getattr(value, name), change) for name in names})
    raise Untraceable(f"its state holds a {type(value).__name__}")
