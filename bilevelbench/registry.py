"""Who is there: plugins from the entry-point group `bilevelbench`, and loose files.

A plugin that cannot be imported, or that claims a name which is taken, is reported and left out; it never takes the
rest down. Plugins are loaded in the order of their distribution's name, the built-in ones first.
"""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, distributions, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, Literal, TypeVar

import pluggy
from pydantic import BaseModel, ValidationError

from bilevelbench import hookspecs
from bilevelbench.algorithm import Algorithm
from bilevelbench.errors import InvalidInput, UnknownName, suggestion
from bilevelbench.problem import Problem

GROUP = "bilevelbench"
Kind = Literal["algorithm", "problem", "suite"]
T = TypeVar("T")


@dataclass(frozen=True)
class Entry(Generic[T]):
    """Something registered, and whose it is."""

    value: T
    plugin: str
    version: str


@dataclass(frozen=True)
class Failure:
    """A plugin that was left out, and why."""

    plugin: str
    reason: str

    def __str__(self) -> str:
        return f"plugin {self.plugin!r}: {self.reason}"


class Registry:
    """Algorithms, problems and suites by name."""

    def __init__(self) -> None:
        self.algorithms: dict[str, Entry[type[Algorithm]]] = {}
        self.problems: dict[str, Entry[type[Problem]]] = {}
        self.suites: dict[str, Entry[Path]] = {}
        self.failures: list[Failure] = []

    @classmethod
    def from_entry_points(cls, points: Iterable[EntryPoint] | None = None) -> Registry:
        registry = cls()
        found = registry._installed() if points is None else list(points)
        for point in sorted(found, key=_order):
            distribution, version = _distribution(point)
            try:
                module = point.load()
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # a plugin may raise anything, even SystemExit, when imported
                registry.failures.append(Failure(distribution, f"failed to import {point.value}: {_reason(error)}"))
                continue
            registry.add_module(module, distribution, version)
        return registry

    def _installed(self) -> list[EntryPoint]:
        try:
            return list(entry_points(group=GROUP))
        except Exception:  # one distribution's broken metadata: find out whose
            return self._one_by_one()

    def _one_by_one(self) -> list[EntryPoint]:
        found: dict[str, list[EntryPoint]] = {}
        for distribution in distributions():
            try:
                name = distribution.name
                if name not in found:  # the first on the path wins
                    found[name] = list(distribution.entry_points.select(group=GROUP))
            except Exception as error:
                where = getattr(distribution, "_path", "a distribution")
                self.failures.append(
                    Failure(str(where), f"its metadata cannot be read: {_reason(error)}; install it again")
                )
        return [point for points in found.values() for point in points]

    def add_module(self, module: ModuleType, plugin: str, version: str) -> None:
        """Everything that one plugin module offers through its hooks."""
        before = len(self.failures)
        manager = pluggy.PluginManager(GROUP)
        manager.add_hookspecs(hookspecs)
        try:
            manager.register(module, name=plugin)
        except Exception as error:
            self.failures.append(Failure(plugin, f"cannot be registered: {_reason(error)}"))
            return
        offers = False
        for kind, hook, table in (
            ("algorithm", manager.hook.bilevelbench_algorithms, self.algorithms),
            ("problem", manager.hook.bilevelbench_problems, self.problems),
            ("suite", manager.hook.bilevelbench_suites, self.suites),
        ):
            try:
                offered = [item for group in hook() for item in group]
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                self.failures.append(Failure(plugin, f"its hook for {kind}s failed: {_reason(error)}"))
                continue
            for item in offered:
                offers = True
                self._add(kind, item, plugin, version, table)
        if not offers and len(self.failures) == before:
            name = getattr(module, "__name__", repr(module))
            self.failures.append(Failure(plugin, f"{name} offers nothing; does it define a @hookimpl function?"))

    def _add(self, kind: str, item: Any, plugin: str, version: str, table: dict[str, Entry[Any]]) -> None:
        wrong = f"{item!r} is no suite file" if kind == "suite" and not isinstance(item, Path) else None
        if kind != "suite":
            wrong = wrong_class(item, Algorithm if kind == "algorithm" else Problem)
        if wrong:
            self.failures.append(Failure(plugin, wrong))
            return
        name = item.stem if kind == "suite" else item.name
        if name in table:
            owner = table[name].plugin
            self.failures.append(
                Failure(plugin, f"its {kind} {name!r} is left out: plugin {owner!r} has that name already; rename one")
            )
            return
        table[name] = Entry(item, plugin, version)

    def algorithm(self, name: str) -> Entry[type[Algorithm]]:
        """By name, or `FILE.py`, or `FILE.py:Class`."""
        return self._find("algorithm", name, self.algorithms, Algorithm)

    def problem(self, name: str) -> Entry[type[Problem]]:
        """By name, or `FILE.py`, or `FILE.py:Class`."""
        return self._find("problem", name, self.problems, Problem)

    def suite(self, name: str) -> Path:
        """By name, or the path of a TOML file."""
        if name.endswith(".toml"):
            path = Path(name)
            if not path.is_file():
                raise InvalidInput(f"suite file {name!r} does not exist; check the path")
            return path
        if name not in self.suites:
            raise UnknownName("suite", name, self.suites, self._hint())
        return self.suites[name].value

    def _find(self, kind: Kind, name: str, table: dict[str, Entry[Any]], base: type) -> Entry[Any]:
        if is_file(name):
            return _from_file(kind, name, base)
        if name not in table:
            raise UnknownName(kind, name, table, self._hint())
        return table[name]

    def _hint(self) -> str:
        """A name may be unknown because its plugin was left out."""
        return f" ({'; '.join(map(str, self.failures))})" if self.failures else ""


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


def _order(point: EntryPoint) -> tuple[bool, str, str]:
    name, _ = _distribution(point)
    return (name != "bilevelbench", name, point.name)


def _distribution(point: EntryPoint) -> tuple[str, str]:
    try:
        if point.dist is not None:
            return point.dist.name or point.name, point.dist.version or "unknown"
    except Exception:  # metadata without a name or a version
        pass
    return point.name, "unknown"


def _reason(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def is_file(name: str) -> bool:
    return name.partition(".py:")[0].endswith(".py") or ".py:" in name


def _from_file(kind: Kind, name: str, base: type) -> Entry[Any]:
    """A class from a loose file. Its version is a hash of the file, so that an edited file is a new method."""
    file, colon, wanted = name.rpartition(":") if ".py:" in name else (name, "", "")
    path = Path(file).resolve()
    if not path.is_file():
        raise InvalidInput(f"{kind} file {file!r} does not exist; check the path")
    module = load_file(path)
    classes = {
        c.__name__: c
        for c in vars(module).values()
        if inspect.isclass(c) and issubclass(c, base) and c is not base and c.__module__ == module.__name__
    }
    if colon:
        if wanted not in classes:
            raise UnknownName(f"class in {file}", wanted, classes)
        chosen = classes[wanted]
    elif len(classes) == 1:
        (chosen,) = classes.values()
    else:
        there = f"holds {', '.join(sorted(classes))}; name one as {file}:CLASS" if classes else "holds none"
        raise InvalidInput(f"{file} should hold one {base.__name__} class; it {there}")
    wrong = wrong_class(chosen, base)
    if wrong:
        raise InvalidInput(f"{file}: {wrong}")
    return Entry(chosen, path.name, hashlib.sha256(path.read_bytes()).hexdigest()[:12])


@cache
def _load_version(path: Path, digest: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"bilevelbench_file_{digest}", path)
    if spec is None or spec.loader is None:
        raise InvalidInput(f"{path} cannot be loaded as Python")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module.__name__] = module  # dataclasses and pydantic look their module up by name
    try:
        spec.loader.exec_module(module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        del sys.modules[module.__name__]
        raise InvalidInput(f"{path} failed to load: {_reason(error)}; mend the file") from error
    return module


def load_file(path: Path) -> ModuleType:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}") from None
    return _load_version(path, hashlib.sha256(str(path).encode() + content).hexdigest()[:12])


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
        raise InvalidInput(f"{name}: cannot be made from {params}: {_reason(error)}") from error


def faults(error: ValidationError) -> str:
    """A pydantic error as a sentence: where, what was given (a whole table is not repeated), what was wanted."""
    out = []
    for e in error.errors():
        where, said = ".".join(map(str, e["loc"])) or "settings", e["msg"].removeprefix("Value error, ")
        given = "" if e["type"] == "value_error" and isinstance(e["input"], dict) else f" = {e['input']!r}"
        out.append(f"{where}{given}: {said[:1].lower()}{said[1:]}")
    return "; ".join(out)


@cache
def registry() -> Registry:
    """The one of this process, made when first asked for."""
    return Registry.from_entry_points()
