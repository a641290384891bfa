"""A third count, by torch's own dispatcher: what a step computes with the tensors of a problem, and where it does so.

The meter counts at the door and the instance behind it, and both are lists in the process of the plugin. Torch is asked here
instead, operation by operation, which costs too much for a trial: `bilevelbench check --deep` does it for a few steps.

The problem's are the tensors that its instance reaches, and all that was computed in a query and not answered. A method that
computes with one of them past the oracle is named with the operations, whichever way it has found it. In a query the
products of matrices are counted, and held against those that the same calls take when nobody else is about.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from types import BuiltinFunctionType, CellType, CodeType, FrameType, FunctionType, ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from bilevelbench.discovery.entry import make
from bilevelbench.discovery.registry import registry
from bilevelbench.errors import BudgetExhausted, InvalidInput
from bilevelbench.model.algorithm import Algorithm
from bilevelbench.model.instance import Instance
from bilevelbench.model.problem import Problem
from bilevelbench.model.queries import QUERIES, ROW
from bilevelbench.plan.pairing import obstacle
from bilevelbench.testing.checks.common import STEPS, usual_parameters
from bilevelbench.testing.outcome import Failure
from bilevelbench.testing.stepper import EXACT, Bench, toys
from bilevelbench.testing.toys import ToyByAutograd

#: Products of matrices and vectors, by their names in torch.
_PRODUCTS = frozenset(
    {
        "mm", "mv", "bmm", "dot", "vdot", "addmm", "addmv", "addbmm", "baddbmm", "addr", "convolution",
        "convolution_backward", "_sparse_mm", "_sparse_addmm", "sspaddmm", "_scaled_dot_product_flash_attention_for_cpu",
    }
)  # fmt: skip
#: Ways out of torch, behind which nobody counts.
_EXITS = frozenset(
    {
        "numpy", "tolist", "data_ptr", "untyped_storage", "storage", "__array__", "__dlpack__", "__deepcopy__",
        "__reduce_ex__",
    }
)  # fmt: skip
#: Calls of a method on a problem, and as many are enough: some make thousands in a step.
_CALLS = 300
_CLOSED = (ModuleType, type, CodeType, FrameType, BuiltinFunctionType, str, bytes, int, float)


class ThirdCount:
    """What is computed while a method is at work: `products` in queries, by query, and `past` the oracle, by operation."""

    def __init__(self, instance: Instance) -> None:
        self.products: Counter[str] = Counter()
        self.past: Counter[str] = Counter()
        self._reached = list(tensors_within(instance))
        self._owned = {storage._cdata for tensor in self._reached for storage in _storages(tensor)}
        self._made: dict[int, StorageWeakRef] = {}  # in queries; as long as a number is here, no other storage gets it
        self._answered: set[tuple[int, int]] = set()  # places in what the instance reaches
        self._here = threading.local()

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Around the code of a method, in this thread and in those that it starts."""
        begin = threading.Thread._bootstrap_inner  # type: ignore[attr-defined]

        def watched(thread: threading.Thread) -> None:
            with self._modes():
                begin(thread)

        threading.Thread._bootstrap_inner = watched  # type: ignore[attr-defined]
        try:
            with self._modes():
                yield
        finally:
            threading.Thread._bootstrap_inner = begin  # type: ignore[attr-defined]

    def door(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function of the oracle: what it computes is in a query, and what it answers is the method's."""

        def asked(*arguments: Any, **options: Any) -> Any:
            before, self._here.query = self._query, name
            try:
                answer = function(*arguments, **options)
            finally:
                self._here.query = before
            with torch._C.DisableTorchFunction():
                for tensor in tree_leaves(answer):
                    if isinstance(tensor, Tensor):
                        self._answer(tensor)
            self._made = {number: made for number, made in self._made.items() if not made.expired()}
            return answer

        return asked

    def operation(self, name: str, given: Iterable[Any], made: Iterable[Any]) -> None:
        """Torch has computed this, or it hands a tensor over to somebody else."""
        before, after = ([t for t in ts if isinstance(t, Tensor)] for ts in (given, made))
        with torch._C.DisableTorchFunction():
            if self._query is not None:
                self.products[self._query] += name in _PRODUCTS
                known = {storage._cdata for tensor in before for storage in _storages(tensor)}
                new = [storage for tensor in after for storage in _storages(tensor) if storage._cdata not in known]
                self._made |= {storage._cdata: StorageWeakRef(storage) for storage in new}
            elif any(map(self._is_problems, before)):
                self.past[name] += 1

    @property
    def _query(self) -> str | None:
        return getattr(self._here, "query", None)

    @contextmanager
    def _modes(self) -> Iterator[None]:
        with ExitStack() as stack:
            stack.enter_context(_Operations(self))
            stack.enter_context(_Exits(self))
            yield

    def _answer(self, tensor: Tensor) -> None:
        for storage in _storages(tensor):
            self._made.pop(storage._cdata, None)
            if storage._cdata in self._owned:
                self._answered.add(_place(tensor))

    def _is_answered(self, tensor: Tensor) -> bool:
        """It is an answer, or a part of one."""
        first, last = _place(tensor)
        return any(low <= first and last <= high for low, high in self._answered)

    def _is_problems(self, tensor: Tensor) -> bool:
        numbers = {storage._cdata for storage in _storages(tensor)}
        if numbers.isdisjoint(self._owned):
            return not numbers.isdisjoint(self._made)
        return not self._is_answered(tensor)


class _Operations(TorchDispatchMode):
    def __init__(self, watch: ThirdCount) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has no annotation there
        self.watch = watch

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        self.watch.operation(func.overloadpacket.__name__, tree_leaves((args, kwargs)), tree_leaves(made))
        return made


class _Exits(TorchFunctionMode):
    def __init__(self, watch: ThirdCount) -> None:
        super().__init__()
        self.watch = watch

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in _EXITS:
            self.watch.operation(name, args, ())
        return func(*args, **(kwargs or {}))


def tensors_within(root: object) -> Iterator[Tensor]:
    """Every tensor that an object reaches, also through closures; not through modules and classes, which are everybody's."""
    seen: dict[int, Any] = {}  # alive, or another one might have its number
    level: list[Any] = [root]
    while level:
        fresh = {id(item): item for item in level if not isinstance(item, _CLOSED) and id(item) not in seen}
        seen |= fresh
        level = []
        for item in fresh.values():
            if isinstance(item, Tensor):
                yield item
            level += _held(item)


def _held(item: Any) -> list[Any]:
    if isinstance(item, FunctionType):  # not its globals
        return [item.__closure__, item.__defaults__, item.__kwdefaults__, item.__dict__]
    if isinstance(item, CellType):
        try:
            return [item.cell_contents]
        except ValueError:  # nothing is in it yet
            return []
    return gc.get_referents(item)


def _place(tensor: Tensor) -> tuple[int, int]:
    """The addresses of the first and the last of its numbers; of a sparse one, none."""
    if tensor.layout is not torch.strided:
        return -1, -1
    first = tensor.data_ptr()
    far = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    return first, first + far * tensor.element_size()


def _storages(tensor: Tensor) -> list[Any]:
    if tensor.layout is torch.strided:
        return [tensor.untyped_storage()]
    values = tensor._values() if tensor.layout is torch.sparse_coo else tensor.values()
    return [values.untyped_storage()]


def check_third_count(method: Algorithm) -> None:
    """What is computed with the tensors of a problem is computed in queries of the oracle: as torch counts, on any problem."""
    small = toys(method)
    for problem in (*small, *([ToyByAutograd()] if small[0] is EXACT else [])):
        _count(method, problem)
    for entry in registry().problems.values():
        if entry.value.embedded and obstacle(type(method), entry.value) is None:
            try:
                _count(method, make(entry, usual_parameters(entry.value)))
            except Failure:
                raise
            except Exception:  # whether it runs there is not asked here
                continue


def _count(method: Algorithm, problem: Problem) -> None:
    bench = Bench(method, problem)
    watch = _watched(bench)
    start, number = bench.start(), 0
    with contextlib.suppress(BudgetExhausted), watch.at_work():
        state = bench.init(*start)
        for number in bench.numbers(STEPS):
            state = bench.step(number, state)
    where = f"{f'step {number}' if number else '`init`'} on {problem.name!r}"
    if watch.past:
        first = sorted(watch.past, key=lambda name: (name not in _PRODUCTS, -watch.past[name]))[:4]
        told = ", ".join(f"{name} {watch.past[name]}" for name in first)
        raise Failure(
            "nothing to be computed with the tensors of the problem past the oracle",
            f"{watch.past.total()} operations on them up to {where} ({told})",
            "ask the oracle for everything: it is the only door to f and g",
        )
    calls, most = bench.oracle.meter.passes, _products(method, problem)
    for query, made in watch.products.items():
        if query in QUERIES and made > calls[ROW[query]] * most[query]:
            raise Failure(
                f"at most {most[query]} products of matrices in a call of {query}",
                f"{made} in {calls[ROW[query]]} calls up to {where}",
                "leave the calls of the oracle alone: what else is computed while one is answered is not on the meter",
            )


def _watched(bench: Bench) -> ThirdCount:
    """All doors of a pack are watched, and close after enough calls."""
    watch, oracle, calls = ThirdCount(bench.instance), bench.oracle, itertools.count(1)

    def limited(function: Callable[..., Any]) -> Callable[..., Any]:
        def ask(*arguments: Any, **options: Any) -> Any:
            if next(calls) > _CALLS:
                raise BudgetExhausted
            return function(*arguments, **options)

        return ask

    for query in bench.resolved.uses & QUERIES.keys():
        setattr(oracle, query, watch.door(query, limited(getattr(oracle, query))))
    oracle.constant = watch.door("constant", oracle.constant)  # type: ignore[method-assign]
    if bench.instance.project is not None:
        bench.instance.project = watch.door("project", bench.instance.project)
    return watch


@torch.no_grad()
def _products(method: Algorithm, problem: Problem) -> dict[str, int]:
    """The products that one call takes, by query: the more of an exact one and one with a sample."""
    bench = Bench(method, problem)
    watch, oracle, (x, y) = _watched(bench), bench.oracle, bench.start()
    most = dict.fromkeys(QUERIES, 0)
    oracle.begin_step(1)
    with watch.at_work():
        for query in bench.resolved.uses & QUERIES.keys():
            draw = oracle.sample_f if QUERIES[query].level == "f" else oracle.sample_g
            given = (x, y, y)[: 3 if QUERIES[query].takes_vector else 2]
            for sampled in (False, True):
                before = watch.products[query]
                with contextlib.suppress(InvalidInput):  # there is nothing to draw from
                    getattr(oracle, query)(*(t.clone() for t in given), draw(1) if sampled else None)
                most[query] = max(most[query], watch.products[query] - before)
    return most
