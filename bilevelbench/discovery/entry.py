"""Something registered, and the object that it makes."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ValidationError

from bilevelbench.errors import InvalidInput, faults, suggestion
from bilevelbench.model.algorithm import Algorithm

Kind = Literal["algorithm", "problem", "suite"]
T = TypeVar("T")


@dataclass(frozen=True)
class Entry(Generic[T]):
    """Something registered, and whose it is."""

    value: T
    plugin: str
    version: str


def wrong_class(item: Any, base: type[Any]) -> str | None:
    if not (inspect.isclass(item) and issubclass(item, base)):
        return f"{item!r} is no subclass of {base.__name__}"
    cls: Any = item
    if not isinstance(getattr(cls, "name", None), str) or not cls.name:
        return f'class {cls.__name__} has no `name`; give it one: name = "..."'
    if not cls.name.isprintable() or any(c in cls.name for c in "[]=,:/\\ "):
        return f"{cls.name!r} is no good name: it may not hold blanks or any of []=,:/\\"
    lacking = sorted(getattr(cls, "__abstractmethods__", ()))
    if lacking:
        return f"class {cls.__name__} has no {' and no '.join(f'`{name}`' for name in lacking)}"
    if issubclass(cls, Algorithm) and not isinstance(getattr(cls, "uses", None), frozenset):
        return f"class {cls.__name__} declares no `uses = frozenset({{...}})`"
    return None


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
