"""Who stands on a board under which name: a method is its plugin, its version and its own name.

Whoever comes first keeps the plain name. So rows that a stranger calls `f2ba` are not counted as those of f2ba: they stand
beside it as `f2ba (acme 1.0)`, or as `f2ba (their folder)` if they claim to be of the same plugin and version.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import pandas as pd

from bilevelbench.report.analysis.summary import titled
from bilevelbench.report.text import printable


class _Owner(NamedTuple):
    plugin: str
    version: str
    algorithm: str
    folder: str  # empty for all official ones together


class Names:
    """The names that are taken, and by whom."""

    def __init__(self) -> None:
        self._methods: dict[str, _Owner] = {}
        self._problems: dict[str, str] = {}  # the plugin of each
        self._plugins: set[str] = set()
        self.foreign: set[str] = set()  # names of methods of plugins that no official folder has

    def official(self, runs: pd.DataFrame) -> pd.DataFrame:
        """Rows of an official folder, with labels under which each method is alone."""
        if not set(runs.columns) >= _KEYS:  # its reader says what it lacks
            return runs
        self._plugins |= set(runs["plugin"])
        for problem, plugin in zip(runs["problem"], runs["problem_plugin"], strict=True):
            self._problems.setdefault(problem, plugin)
        return self._labelled(runs, "")

    def sent(self, folder: str, runs: pd.DataFrame) -> pd.DataFrame:
        """Rows of a folder that was sent in, whose trials no other folder holds."""
        labelled = self._labelled(runs, folder)
        self.foreign |= set(titled(labelled)["method"][~labelled["plugin"].isin(self._plugins)])
        problems = [
            name if self._problems.setdefault(name, plugin) == plugin else f"{name} ({plugin})"
            for name, plugin in zip(runs["problem"], runs["problem_plugin"], strict=True)
        ]
        return labelled.assign(problem=pd.Series(problems, index=runs.index, dtype=runs["problem"].dtype))

    def _labelled(self, runs: pd.DataFrame, folder: str) -> pd.DataFrame:
        shown = titled(runs)["method"]
        keys = zip(shown, runs["plugin"], runs["plugin_version"], runs["algorithm"], strict=True)
        names = [self._name(name, _Owner(plugin, version, own, folder)) for name, plugin, version, own in keys]
        labels = [old if new == was else new for new, was, old in zip(names, shown, runs["label"], strict=True)]
        return runs.assign(label=pd.Series(labels, index=runs.index, dtype=runs["label"].dtype))

    def _name(self, name: str, owner: _Owner) -> str:
        """The first of these names that is free, or the owner's own."""
        told = f"{name} ({owner.plugin} {owner.version})"
        same = self._methods.get(name, owner)[:3] == owner[:3]
        choices = (name, f"{name} ({owner.folder})", told) if same else (name, told, f"{told[:-1]}, {owner.folder})")
        for choice in choices:
            if self._methods.setdefault(choice, owner) == owner:
                return choice
        return f"{told[:-1]}, {owner.algorithm}, {owner.folder})"


def paper_name(method: str, algorithm: str, title: str) -> str:
    """A method under the name that its paper gives it: `F²BA`, or `F²BA[lam=10]`; a label of its own stays."""
    rest = method.removeprefix(algorithm)
    return f"{title}{rest}" if title and method == algorithm + rest and rest[:1] in ("", "[", " ", ",") else method


def paper_facts(fact: Mapping[str, Any]) -> dict[str, str]:
    """Year, address and reference of the paper of a method, as far as they are known; an address is one of the web."""
    cited = [printable(reference) for reference in fact["references"]]
    years = [found[0] for reference in cited[:1] if (found := re.search(r"\d{4}$", reference))]
    paper = str(fact["paper"])
    return {
        "year": years[0] if years else "",
        "paper": paper if re.fullmatch(r"https://[\w./-]+", paper) else "",
        "reference": cited[0] if cited else "",
    }


_KEYS = {"plugin", "plugin_version", "algorithm", "label", "problem", "problem_plugin", "problem_params"}
