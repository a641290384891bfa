"""A traced step as a program of C++, with the loop over the steps in it, compiled by the machine's compiler.

Torch's inductor, which does the same for any graph, computes a hash again for each number that is read with it, cannot add
up along the memory of the results, and takes ten times as long to compile (docs/decisions/024-compiled-steps.md).
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils._pytree import tree_map

from bilevelbench.engine.compiled.head import HEAD
from bilevelbench.engine.compiled.kernels import Kernels
from bilevelbench.engine.compiled.operations import Operations
from bilevelbench.engine.compiled.trace import Traced
from bilevelbench.engine.compiled.values import TYPES, Lazy, Unknown

#: Sums may be taken in another order, and integers wrap around as torch's do; infinities and NaN are those of the machine.
_FLAGS = (
    *("-std=c++17", "-O3", "-march=native", "-shared", "-fPIC"),
    *(
        "-fwrapv",
        "-fassociative-math",
        "-fno-signed-zeros",
        "-fno-trapping-math",
        "-fno-math-errno",
        "-ffp-contract=fast",
    ),
)
_ALIGNED = 64

_functions: dict[str, Any] = {}  # compiled in this process, by their source


def native(program: Program) -> Callable[[int, int, Sequence[Tensor]], list[Tensor]]:
    """The steps of a stretch as one function; `Unknown` is raised where no compiler makes one of the program."""
    function, arena = _function(program.source), torch.empty(program.room, dtype=torch.uint8)
    held = program.given  # for as long as their places are known
    places = (ctypes.c_void_p * len(held))(*(tensor.data_ptr() for tensor in held))

    def run(first: int, last: int, leaves: Sequence[Tensor]) -> list[Tensor]:
        out = [leaf.clone(memory_format=torch.contiguous_format) for leaf in leaves]
        places[1 : 1 + len(out)] = [leaf.data_ptr() for leaf in out]
        function(first, last, places, arena.data_ptr())
        assert held
        return out

    return run


def translated(traced: Traced, leaves: Sequence[Tensor]) -> Program | None:
    """A traced step in C++; None for a graph with an operation that this has no words for."""
    try:
        return Program(traced, leaves)
    except Unknown:
        return None


class Program:
    """The source, and how many bytes it needs for what lies between the first operation of a step and the last."""

    def __init__(self, traced: Traced, leaves: Sequence[Tensor]) -> None:
        self.kernels = Kernels()
        self.given = [torch.zeros((), dtype=torch.int64), *leaves, *traced.constants]
        look = _Look(traced.graph)
        look.run(*self.given)
        with torch.no_grad():
            self._translate(traced.graph.graph, look.seen, len(leaves))
        places, self.room = _places(self.kernels, len(self.given))
        self.source = self._text(places)

    def _translate(self, graph: fx.Graph, seen: dict[fx.Node, Any], leaves: int) -> None:
        operations, kernels = Operations(self.kernels), self.kernels
        inputs = [kernels.new(_form(tensor)) for tensor in self.given]
        values: dict[fx.Node, Any] = dict(
            zip((node for node in graph.nodes if node.op == "placeholder"), inputs, strict=True)
        )
        for node in graph.nodes:
            if node.op == "call_function":
                given, named = tree_map(
                    lambda a: values.get(a, a) if isinstance(a, fx.Node) else a, (node.args, node.kwargs)
                )
                value = operations(node.target, seen[node], given, named)
                values[node] = kernels.stored(value) if _is_kept(node, value) else value
            elif node.op == "output":
                ends = [kernels.stored(values[one]) for one in node.args[0]]
                for leaf, end in zip(inputs[1 : 1 + leaves], ends, strict=True):
                    kernels.store(end, leaf)

    def _text(self, places: Sequence[str]) -> str:
        functions = [f"static void {name}{text}" for text, name in self.kernels.functions.items()]
        calls = [
            f"    {name}({', '.join(f'{places[buffer]} + {offset}' for buffer, offset in given)});"
            for name, given in self.kernels.calls
        ]
        return "\n".join([
            HEAD, *functions,
            'extern "C" void steps(int64_t first, int64_t last, char** given, char* arena) {',
            "  for (int64_t number = first + 1; number <= last; ++number) {",
            "    *(int64_t*)given[0] = number;", *calls, "  }", "}", "",
        ])  # fmt: skip


class _Look(fx.Interpreter):
    """What each operation gives: shapes and types."""

    def __init__(self, graph: fx.GraphModule) -> None:
        super().__init__(graph)
        self.seen: dict[fx.Node, Any] = {}

    def run_node(self, n: fx.Node) -> Any:
        out = super().run_node(n)
        self.seen[n] = tree_map(lambda t: _form(t) if isinstance(t, Tensor) else t, out)
        return out


def _form(tensor: Tensor) -> Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


def _is_kept(node: fx.Node, value: Any) -> bool:
    """Whether a value is stored since several operations read it. Integers, those of hashes, are computed in place."""
    if not isinstance(value, Lazy) or value.is_cheap or len(node.users) < 2:
        return False
    return value.over > 0 or value.meta.dtype != torch.int64


def _places(kernels: Kernels, given: int) -> tuple[list[str], int]:
    """Where each buffer lies, as an expression, and how many bytes are needed: memory is used again after its last reader."""
    last = {buffer: i for i, (_, buffers) in enumerate(kernels.calls) for buffer, _ in buffers}
    free: dict[int, list[int]] = {}
    offsets: dict[int, int] = {}
    room = 0
    for i, (_, buffers) in enumerate(kernels.calls):
        for buffer in dict.fromkeys(buffer for buffer, _ in buffers if buffer >= given and buffer not in offsets):
            size = _bytes(kernels.buffers[buffer])
            if free.get(size):
                offsets[buffer] = free[size].pop()
            else:
                offsets[buffer], room = room, room + size
        for buffer in dict.fromkeys(b for b, _ in buffers if b >= given and last[b] == i):
            free.setdefault(_bytes(kernels.buffers[buffer]), []).append(offsets[buffer])
    types = [TYPES[buffer.dtype] for buffer in kernels.buffers]
    inputs = [f"({types[i]}*)given[{i}]" for i in range(given)]
    return [
        *inputs,
        *(f"({types[b]}*)(arena + {offsets.get(b, 0)})" for b in range(given, len(types))),
    ], room + _ALIGNED


def _bytes(buffer: Tensor) -> int:
    return -(-max(buffer.numel(), 1) * buffer.element_size() // _ALIGNED) * _ALIGNED


def _function(source: str) -> Any:
    if source not in _functions:
        with tempfile.TemporaryDirectory() as folder:  # what is loaded stays when its file goes
            text, library = Path(folder) / "steps.cpp", Path(folder) / "steps.so"
            text.write_text(source)
            command = [os.environ.get("CXX") or "g++", *_FLAGS, str(text), "-o", str(library), "-lm"]
            try:
                subprocess.run(command, check=True, capture_output=True)
            except (OSError, subprocess.CalledProcessError) as error:
                raise Unknown("a program for this compiler") from error
            _functions[source] = ctypes.CDLL(str(library)).steps
            _functions[source].argtypes = [ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p]
            _functions[source].restype = None
    return _functions[source]
