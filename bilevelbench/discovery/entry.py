"""Something registered, and the object that it makes."""

from __future__ import annotations

import contextlib
import inspect
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ValidationError

from bilevelbench.errors import InvalidInput, faults, suggestion
from bilevelbench.model.algorithm import Algorithm
from bilevelbench.processes import noticing_ctrl_c

PluginKind = Literal["method", "problem", "suite", "executor"]
T = TypeVar("T")
M = TypeVar("M")


@dataclass(frozen=True)
class Entry(Generic[T]):
    """Something registered, and the plugin that it comes from."""

    value: T
    plugin: str
    version: str


def wrong_class(item: Any, base: type[Any]) -> str | None:
    if not (inspect.isclass(item) and issubclass(item, base)):
        return f"{item!r} is not a subclass of {base.__name__}"
    cls: Any = item
    if not isinstance(getattr(cls, "name", None), str) or not cls.name:
        return f'class {cls.__name__} has no `name`; give it one: name = "..."'
    if wrong := wrong_name(cls.name):
        return wrong
    lacking = sorted(getattr(cls, "__abstractmethods__", ()))
    if lacking:
        return f"class {cls.__name__} has no {' and no '.join(f'`{name}`' for name in lacking)}"
    if issubclass(cls, Algorithm) and not isinstance(getattr(cls, "uses", None), frozenset):
        return f"class {cls.__name__} declares no `uses = frozenset({{...}})`"
    return None


def wrong_name(name: str) -> str | None:
    if not name or not name.isprintable() or any(c in name for c in "[]=,:/\\ "):
        return f"{name!r} is not a valid name: it may not be empty, nor contain blanks or any of []=,:/\\"
    return None


def wrong_executor(item: Any) -> str | None:
    """`item` should be a name with the import path of a class; the class is looked at when it is chosen."""
    if not (isinstance(item, tuple) and len(item) == 2 and all(isinstance(part, str) for part in item)):
        return f'{item!r} is not an executor; give each as {{"name": "package.module:Class"}}'
    name, path = item
    module, _, cls = path.partition(":")
    if not cls.isidentifier() or not all(part.isidentifier() for part in module.split(".")):
        return f'executor {name!r} has the import path {path!r}; give one such as "package.module:Class"'
    return wrong_name(name)


def load_apart(load: Callable[[], M]) -> M:
    """What `load` imports. A plugin that goes to another folder meanwhile goes alone, and its KeyboardInterrupt is its own.

    What it prints is not mixed with an answer that another program reads, such as that of `list --json`.
    """
    here = None
    with contextlib.suppress(OSError):  # a folder that somebody has removed
        here = os.getcwd()
    with noticing_ctrl_c() as pressed, contextlib.redirect_stdout(sys.stderr):
        try:
            return load()
        except KeyboardInterrupt as error:
            if pressed():
                raise
            raise ImportError("it raised KeyboardInterrupt, which nobody had pressed") from error
        finally:
            if here is not None:
                os.chdir(here)


def reason_of(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def make(entry: Entry[type[Any]], params: dict[str, Any]) -> Any:
    """An Algorithm or Problem from its parameters, with errors in sentences."""
    cls: type[BaseModel] = entry.value
    name = cls.name  # type: ignore[attr-defined]
    for key in params:
        if key not in cls.model_fields:
            raise InvalidInput(f"{name} has no parameter {key!r}{suggestion(key, cls.model_fields)}")
    try:
        return cls.model_validate(params)
    except ValidationError as error:
        raise InvalidInput(f"{name}: {faults(error)}") from None
    except Exception as error:  # a validator of the plugin's own
        raise InvalidInput(f"{name}: cannot be made from {params}: {reason_of(error)}") from error
