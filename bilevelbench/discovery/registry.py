"""What is installed: plugins from the entry-point group `bilevelbench`, and loose files.

A plugin that cannot be imported, or that claims a name which is taken, is reported and left out; it never takes the
rest down. Plugins are loaded in the order of their distribution's name, the built-in ones first.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from importlib.metadata import EntryPoint, distributions, entry_points
from itertools import chain, islice
from pathlib import Path
from types import ModuleType
from typing import Any

import pluggy

from bilevelbench import __version__
from bilevelbench.discovery import hookspecs
from bilevelbench.discovery.entry import Entry, PluginKind, load_apart, reason_of, wrong_class, wrong_executor
from bilevelbench.discovery.hookspecs import GROUP
from bilevelbench.discovery.loose_files import class_from_file, is_file
from bilevelbench.errors import InvalidInput, UnknownName
from bilevelbench.model.algorithm import Algorithm
from bilevelbench.model.problem import Problem

#: The executors of the core. They are import paths, as those of plugins are: nothing here may know where packs run.
EXECUTORS = {
    "local": "bilevelbench.execute.local:LocalExecutor",
    "dask": "bilevelbench.execute.dask:DaskExecutor",
}

_MOST_OFFERED = 10_000  # of a kind, by one plugin


@dataclass(frozen=True)
class PluginFailure:
    """A plugin that was left out, and why."""

    plugin: str
    reason: str

    def __str__(self) -> str:
        return f"plugin {self.plugin!r}: {self.reason}"


class Registry:
    """Methods, problems, suites and executors by name."""

    def __init__(self) -> None:
        self.algorithms: dict[str, Entry[type[Algorithm]]] = {}
        self.problems: dict[str, Entry[type[Problem]]] = {}
        self.suites: dict[str, Entry[Path]] = {}
        self.executors = {name: Entry(path, "bilevelbench", __version__) for name, path in EXECUTORS.items()}
        self.failures: list[PluginFailure] = []

    @classmethod
    def from_entry_points(cls, points: Iterable[EntryPoint] | None = None) -> Registry:
        registry = cls()
        found = registry._installed() if points is None else list(points)
        for point in sorted(found, key=_order):
            distribution, version = _distribution(point)
            try:
                module = load_apart(point.load)
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # a plugin may raise anything, even SystemExit, when imported
                registry.failures.append(
                    PluginFailure(distribution, f"failed to import {point.value}: {reason_of(error)}")
                )
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
                    PluginFailure(str(where), f"its metadata cannot be read: {reason_of(error)}; install it again")
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
            self.failures.append(PluginFailure(plugin, f"cannot be registered: {reason_of(error)}"))
            return
        offers = False
        for kind, hook, table in (
            ("method", manager.hook.bilevelbench_algorithms, self.algorithms),
            ("problem", manager.hook.bilevelbench_problems, self.problems),
            ("suite", manager.hook.bilevelbench_suites, self.suites),
            ("executor", manager.hook.bilevelbench_executors, self.executors),
        ):
            try:
                for item in load_apart(partial(_offered, hook)):
                    offers = True
                    self._add(kind, item, plugin, version, table)
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # also of a class that cannot be looked at
                self.failures.append(PluginFailure(plugin, f"its hook for {kind}s failed: {reason_of(error)}"))
        if not offers and len(self.failures) == before:
            name = getattr(module, "__name__", repr(module))
            self.failures.append(PluginFailure(plugin, f"{name} offers nothing; does it define a @hookimpl function?"))

    def _add(self, kind: str, item: Any, plugin: str, version: str, table: dict[str, Entry[Any]]) -> None:
        value: Any = item
        if kind == "suite":
            wrong = None if isinstance(item, Path) else f"{item!r} is not the path of a suite"
        elif kind == "executor":
            wrong = wrong_executor(item)
        else:
            wrong = wrong_class(item, Algorithm if kind == "method" else Problem)
        if wrong:
            self.failures.append(PluginFailure(plugin, wrong))
            return
        if kind == "executor":
            name, value = item
        else:
            name = item.stem if kind == "suite" else item.name
        if name in table:
            owner = table[name].plugin
            self.failures.append(
                PluginFailure(
                    plugin, f"its {kind} {name!r} is left out: plugin {owner!r} has that name already; rename one"
                )
            )
            return
        table[name] = Entry(value, plugin, version)

    def algorithm(self, name: str) -> Entry[type[Algorithm]]:
        """By name, or `FILE.py`, or `FILE.py:Class`."""
        return self._find("method", name, self.algorithms, Algorithm)

    def problem(self, name: str) -> Entry[type[Problem]]:
        """By name, or `FILE.py`, or `FILE.py:Class`."""
        return self._find("problem", name, self.problems, Problem)

    def suite(self, name: str) -> Path:
        """By name, or the path of a TOML file."""
        if name.endswith(".toml"):
            if not os.path.isfile(name):  # which is no error for a name that no file can have
                raise InvalidInput(f"suite file {name!r} does not exist; check the path")
            return Path(name)
        if name not in self.suites:
            raise UnknownName("suite", name, self.suites, self._hint())
        return self.suites[name].value

    def executor(self, name: str) -> Entry[str]:
        """By name: the import path of its class."""
        if name not in self.executors:
            raise UnknownName("executor", name, self.executors, self._hint())
        return self.executors[name]

    def _find(self, kind: PluginKind, name: str, table: dict[str, Entry[Any]], base: type) -> Entry[Any]:
        if is_file(name):
            return class_from_file(kind, name, base)
        if name not in table:
            raise UnknownName(kind, name, table, self._hint())
        return table[name]

    def _hint(self) -> str:
        """A name may be unknown because its plugin was left out."""
        return f" ({'; '.join(map(str, self.failures))})" if self.failures else ""


def _offered(hook: Callable[[], list[Any]]) -> list[Any]:
    groups = (group.items() if isinstance(group, Mapping) else group for group in hook())
    offered = list(islice(chain.from_iterable(groups), _MOST_OFFERED + 1))
    if len(offered) > _MOST_OFFERED:  # perhaps without end
        raise InvalidInput(f"it offers more than {_MOST_OFFERED:,}; return a list of them")
    return offered


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


@cache
def registry() -> Registry:
    """The registry of this process, made on first use."""
    return Registry.from_entry_points()


@cache
def registry_of(plugins: frozenset[str]) -> Registry:
    """The built-in plugins and these, for a process that runs their trials: nobody else's code is imported there."""
    made = Registry()
    wanted = {"bilevelbench", *plugins}
    chosen = Registry.from_entry_points([point for point in made._installed() if _distribution(point)[0] in wanted])
    chosen.failures = made.failures + chosen.failures
    return chosen
