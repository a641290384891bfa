"""Who takes part in a search: methods with what is set of them, and the settings that they are tried with.

The x-step multiplies an estimate of grad phi, whatever the method: it is looked for once, and each method is then tried at
this step and around it. A penalty is in units of f over g, and is tried over decades of 1/L_gy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bilevelbench.discovery.entry import make
from bilevelbench.discovery.registry import registry
from bilevelbench.errors import InvalidInput, MissingConstant, suggestion
from bilevelbench.model.algorithm import Algorithm
from bilevelbench.model.constants import Constants
from bilevelbench.model.noise import Exact, Noise
from bilevelbench.plan.trial import Spec

#: Around the x-step that was found, the first one first: for methods of the portfolio whose step stays as it is and for those
#: that adapt it, and where one method is given, whose step may have another unit.
FACTORS, ADAPTS, ALONE = (1.0, 3.0, 0.3), (1.0,), (1.0, 3.0, 0.3, 0.1, 0.01, 0.001)
PENALTIES = (100.0, 10.0, 1000.0)

_BATCH = 64  # rows, where nobody says
_FEW = 16  # batches: up to so many data, methods that take the whole sum at every call are tried too
_MANY = 4  # batches: from so many data on, methods that sample are tried


@dataclass(frozen=True)
class Member:
    """A method of the portfolio; `factors` are its x-steps."""

    name: str
    params: Mapping[str, Any] = field(default_factory=dict)
    factors: tuple[float, ...] = FACTORS


WHOLE = (
    Member("aid_adgd", {"D": 3, "N": 3}, factors=ADAPTS),
    Member("aid_adgd", {"D": 10, "N": 10}, factors=ADAPTS),
    Member("f2ba", {"K": 5}, factors=(1.0,)),
)
SAMPLED = (
    Member("stocbio", {"D": 5, "Q": 5}),
    Member("soba"),
    Member("f2bsa", {"K": 5, "coupled_lower": True}),
)


@dataclass(frozen=True)
class Candidate:
    """A method with all of its parameters, what a table calls it, and which of them are x-steps that were found."""

    method: Algorithm
    title: str
    steps: tuple[str, ...]


@dataclass(frozen=True)
class Contender:
    """A method, what is given of it, and the parameters that are to be found: x-steps, and penalties."""

    cls: type[Algorithm]
    params: Mapping[str, Any]
    steps: tuple[str, ...]
    penalties: tuple[str, ...] = ()
    factors: tuple[float, ...] = FACTORS

    def settings(self, step: float, constants: Constants) -> list[Candidate]:
        """A cross: at most one of step and penalty is not the first of its list."""
        factors = self.factors if self.steps else (1.0,)
        penalties = PENALTIES if self.penalties else (1.0,)
        pairs = [(factor, penalties[0]) for factor in factors] + [(factors[0], penalty) for penalty in penalties[1:]]
        return [self.setting(step * factor, penalty / constants.L_gy, constants) for factor, penalty in pairs]

    def setting(self, step: float, penalty: float, constants: Constants) -> Candidate:
        found = {**dict.fromkeys(self.steps, _short(step)), **dict.fromkeys(self.penalties, _short(penalty))}
        title = str(Spec(name=self.cls.name, params={**self.params, **found}))
        return Candidate(self.cls.model_validate({**self.params, **found}).resolve(constants), title, self.steps)


def portfolio(params: Mapping[str, Any], batch: int | None, noise: Noise) -> list[Contender]:
    """The methods that fit the data and have all parameters that are given, as far as they are installed."""
    known = registry().algorithms
    entries = [entry for entry in _entries(batch, noise) if entry.name in known]
    fitting = [entry for entry in entries if params.keys() <= known[entry.name].value.model_fields.keys()]
    if not fitting:
        fields = {name for entry in entries for name in known[entry.name].value.model_fields}
        wrong = next((name for name in params if name not in fields), None)
        said = f"none of its methods has {', '.join(params)} together" if wrong is None else (
            f"none of its methods has {wrong!r}{suggestion(wrong, fields)}"
        )  # fmt: skip
        raise InvalidInput(f'algorithm="auto": {said}; name a method with algorithm=')
    contenders = []
    for entry in fitting:
        found = known[entry.name]
        sizes = dict.fromkeys(batch_sizes(found.value), batch or _BATCH)
        given = {**entry.params, **sizes, **params}
        make(found, given)  # a wrong value is a sentence
        contenders.append(Contender(found.value, given, *_searched(found.value, params), entry.factors))
    return list({(one.cls, repr(sorted(one.params.items()))): one for one in contenders}.values())


def batch_sizes(method: type[Algorithm]) -> list[str]:
    """Its parameters that are sizes of mini-batches, by their names: batch, batch_f, batch_g, ..., B_in, B_out."""
    return [name for name in method.model_fields if name == "batch" or name.startswith(("batch_", "B_"))]


def alone(method: Algorithm, constants: Constants) -> Contender | None:
    """One method that was asked for, if it lacks an x-step; None if it has all that it needs."""
    cls = type(method)
    try:
        method.resolve(constants)
    except MissingConstant as missing:
        steps = tuple(
            name for name, role in cls.tuned.items() if role == "upper_step" and getattr(method, name) is None
        )
        if not steps:
            raise
        params = {name: getattr(method, name) for name in method.model_fields_set if getattr(method, name) is not None}
        try:
            cls.model_validate({**params, **dict.fromkeys(steps, 1.0)}).resolve(constants)
        except MissingConstant:
            raise missing from None
        return Contender(cls, params, steps, factors=ALONE)
    return None


def _entries(batch: int | None, noise: Noise) -> Sequence[Member]:
    data, size = noise.n_f + noise.n_g, batch or _BATCH
    if isinstance(noise, Exact):
        return WHOLE
    whole = WHOLE if data <= _FEW * size else ()
    return (*whole, *(SAMPLED if batch is not None or data >= _MANY * size else ()))


def _searched(cls: type[Algorithm], params: Mapping[str, Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of its x-steps and penalties that are not given."""
    free = {name: role for name, role in cls.tuned.items() if name not in params}
    steps, penalties = (tuple(n for n, role in free.items() if role == wanted) for wanted in ("upper_step", "penalty"))
    return steps, penalties


def _short(value: float) -> float:
    """To be read by people; a fourth digit decides nothing."""
    return float(f"{value:.3g}")
