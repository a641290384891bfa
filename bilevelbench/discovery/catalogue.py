"""What is registered, in words and as data."""

from __future__ import annotations

import inspect
import re
import sys
from dataclasses import asdict, dataclass
from typing import Any, get_args

from bilevelbench.discovery.entry import Entry
from bilevelbench.discovery.registry import Registry
from bilevelbench.errors import InvalidInput, UnknownName
from bilevelbench.model.algorithm import Algorithm, Distributed
from bilevelbench.model.claim import ClaimedSetting
from bilevelbench.model.field_texts import field_texts

#: `Ji, Yang, Liang, "Bilevel optimization: convergence analysis and enhanced design", ICML 2021` in running text.
_NAME = r"[A-Z][\w'’-]*(?: [A-Z][\w'’-]*)*"
_CITED = re.compile(rf'(?:{_NAME},? (?:and )?)+"[^"]+", [^;:()"]*?\d{{4}}')


def catalogue(registry: Registry) -> dict[str, list[dict[str, Any]]]:
    """The rows of `bilevelbench list`."""
    return {
        "methods": [
            {
                "name": name,
                "family": entry.value.family,
                "settings": _settings(entry.value),
                "oracle": "gradient" if entry.value.first_order() else "HVP",
                "what": _headline(entry.value),
                "plugin": f"{entry.plugin} {entry.version}",
            }
            for name, entry in sorted(registry.algorithms.items())
        ],
        "problems": [
            {"name": name, "what": _headline(entry.value), "plugin": f"{entry.plugin} {entry.version}"}
            for name, entry in sorted(registry.problems.items())
        ],
        "suites": [
            {"name": name, "file": str(entry.value), "plugin": f"{entry.plugin} {entry.version}"}
            for name, entry in sorted(registry.suites.items())
        ],
        "executors": [
            {"name": name, "class": entry.value, "plugin": f"{entry.plugin} {entry.version}"}
            for name, entry in sorted(registry.executors.items())
        ],
    }


def _settings(cls: type[Algorithm]) -> list[str]:
    """Those of its claims, in the order in which they are defined; `agents` for a method that is run by agents."""
    if issubclass(cls, Distributed):
        return ["agents"]
    claimed = {claim.setting for claim in cls.claims}
    return [setting for setting in get_args(ClaimedSetting) if setting in claimed]


@dataclass(frozen=True)
class Facts:
    """What `bilevelbench info` says."""

    kind: str
    name: str
    title: str
    paper: str
    plugin: str
    version: str
    text: str
    parameters: list[dict[str, Any]]
    uses: list[str]
    claims: list[dict[str, Any]]
    references: list[str]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def as_text(self) -> str:
        title = f"{self.title}, " if self.title else ""
        lines = [
            f"{self.name} ({title}{self.kind}, from {self.plugin} {self.version})",
            "",
            self.text,
            "",
            "Parameters:",
        ]
        width = max((len(p["name"]) for p in self.parameters), default=0)
        lines += [f"  {p['name']:<{width}}  default {p['default']}  {p['what']}".rstrip() for p in self.parameters]
        if self.uses:
            lines += ["", f"Asks for: {', '.join(self.uses)}"]
        for claim in self.claims:
            place = claim["setting"] if claim["table"] is None else f"table {claim['table']}, {claim['setting']}"
            lines += ["", f"Claims ({place}): {_numbers(claim)}"]
            lines[-1] += f"; {claim['reference']}" if claim["reference"] else ""
            lines += [f"  note: {claim['footnote']}"] if claim["footnote"] else []
        if self.references:
            lines += ["", "References:", *(f"  {reference}" for reference in self.references)]
            lines += [f"  {self.paper}"] if self.paper else []
        return "\n".join(lines)


def _numbers(claim: dict[str, Any]) -> str:
    """`n^0.5 eps^-2 (paper), kappa^4 (paper), log^1 (derived)`: each number with its source."""
    data = "" if claim["n_exp"] is None else f"n^{claim['n_exp']:.3g} "
    said = [f"{data}eps^-{claim['eps_exp']:g} ({claim['source']})"]
    if claim["kappa_exp"] is not None:
        said.append(f"kappa^{claim['kappa_exp']:g} ({claim['kappa_source']})")
    if claim["log_power"]:
        said.append(f"log^{claim['log_power']} ({claim['log_source']})")
    if claim["mean_squared_smooth"]:
        said.append("for mean-squared smooth samples")
    return ", ".join(said)


def describe(registry: Registry, name: str) -> Facts:
    """A method or a problem by name or file."""
    entry: Entry[Any]
    if name in registry.algorithms:
        entry = registry.algorithms[name]
    elif name in registry.problems:
        entry = registry.problems[name]
    elif ".py" in name:
        try:
            entry = registry.algorithm(name)
        except InvalidInput:
            entry = registry.problem(name)
    else:
        raise UnknownName("method or problem", name, [*registry.algorithms, *registry.problems])
    cls: Any = entry.value
    method, texts = issubclass(cls, Algorithm), field_texts(cls)
    return Facts(
        kind="method" if method else "problem",
        name=cls.name,
        title=vars(cls).get("title", "")
        if method
        else "",  # its own: that of a class it is made from is another method's
        paper=cls.paper if method else "",
        plugin=entry.plugin,
        version=entry.version,
        text=_text(cls),
        parameters=[
            {
                "name": key,
                "default": _plain(field.get_default(call_default_factory=True)),
                "what": texts[key],
            }
            for key, field in cls.model_fields.items()
        ],
        uses=sorted(cls.uses) if method else [],
        claims=[asdict(claim) for claim in cls.claims] if method else [],
        references=_references(cls) if method else [],
    )


def _references(cls: type[Algorithm]) -> list[str]:
    """What its text cites, or that of the class it is made from; what its claims name if neither cites anything."""
    for one in cls.__mro__:
        if issubclass(one, Algorithm):
            prose = " ".join(line for line in _text(one).splitlines() if not line.startswith(" "))  # no equations
            if cited := _CITED.findall(prose):
                return list(dict.fromkeys(cited))
    return list(dict.fromkeys(claim.reference for claim in cls.claims))


def _plain(value: Any) -> Any:
    """A value that JSON can hold."""
    return value if isinstance(value, bool | int | float | str | None) else str(value)


def _text(cls: type) -> str:
    """The class's own docstring, or that of its module, where a method keeps its equations."""
    own = cls.__dict__.get("__doc__")
    module = sys.modules.get(cls.__module__)
    return inspect.cleandoc(own or (module.__doc__ if module else "") or "")


def _headline(cls: type) -> str:
    text = _text(cls)
    return text.splitlines()[0].rstrip(".") if text else ""
