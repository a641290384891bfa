"""Whether what counts and judges is still what was loaded.

A plugin runs in the process that counts its calls, so Python lets it replace a function of the meter or of the evaluator.
That is found by comparing the functions of these modules, and the code inside them, with what they were when this module was
imported, which is before any plugin of others is. What is found is put back. docs/what-the-meter-cannot-see.md has the rest.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import Any

#: The modules between a method's step and its row.
_MODULES = (
    *(
        f"bilevelbench.oracle.{name}"
        for name in ("draws", "fast_path", "loops", "meter", "oracle", "sample", "sampler")
    ),
    *(
        f"bilevelbench.model.{name}"
        for name in ("constants", "derivatives", "instance", "lanes", "linear_solvers", "noise", "queries", "rounding")
    ),
    *(
        f"bilevelbench.engine.{name}"
        for name in ("curvature", "endings", "evaluator", "lane", "record", "sanity", "setup")
    ),
    "bilevelbench.results.reached",
)

#: Where a name was found, the name, and what it stood for.
_Found = tuple[Any, str, Any]

#: What a function is made of, and may be changed in place.
_PARTS = ("__code__", "__defaults__", "__kwdefaults__")


def _functions_of(owner: Any) -> Iterator[_Found]:
    for name, value in list(vars(owner).items()):
        if isinstance(value, (FunctionType, type, classmethod, staticmethod, property)):
            yield owner, name, value


def _found() -> Iterator[_Found]:
    for path in _MODULES:
        module = importlib.import_module(path)
        for owner, name, value in _functions_of(module):
            yield owner, name, value
            if isinstance(value, type) and value.__module__ == path:
                yield from _functions_of(value)
    yield time, "perf_counter", time.perf_counter


_KNOWN = [(owner, name, value, tuple(getattr(value, part, None) for part in _PARTS)) for owner, name, value in _found()]


def replaced(*objects: Any) -> list[str]:
    """The functions that are not what they were, and those of classes that these objects have in a version of their own."""
    names = [
        _named(owner, name)
        for owner, name, value, parts in _KNOWN
        if vars(owner).get(name) is not value or tuple(getattr(value, part, None) for part in _PARTS) != parts
    ]
    for item in objects:
        cls = type(item)
        names += [_named(cls, name) for name in vars(item) if isinstance(getattr(cls, name, None), FunctionType)]
    return sorted(set(names))


def restore() -> None:
    """Put back what was replaced, for the trials that follow in this process."""
    for owner, name, value, parts in _KNOWN:
        if vars(owner).get(name) is not value:
            setattr(owner, name, value)
        if isinstance(value, FunctionType):
            for part, was in zip(_PARTS, parts, strict=True):
                if getattr(value, part) != was:
                    setattr(value, part, was)


def _named(owner: Any, name: str) -> str:
    of = owner.__name__.rpartition(".")[2] if isinstance(owner, ModuleType) else owner.__qualname__
    return f"{of}.{name}"
