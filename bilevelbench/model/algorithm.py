"""An algorithm: frozen parameters and a pure step over a state."""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, Self, Union

from pydantic import BaseModel, ConfigDict, PositiveFloat, PositiveInt
from pydantic.fields import FieldInfo
from torch import Tensor

from bilevelbench.errors import InvalidInput, MissingConstant
from bilevelbench.model.claim import Claim
from bilevelbench.model.constants import Constants
from bilevelbench.model.family import Family
from bilevelbench.model.known import KnownFailure
from bilevelbench.model.lanes import PerLaneMarker
from bilevelbench.model.queries import PRODUCTS

if TYPE_CHECKING:
    from bilevelbench.oracle.oracle import Oracle

#: What a parameter is to a method; `bilevelbench tune` has a grid for each, and parameters of one role move together.
Role = Literal["upper_step", "lower_step", "penalty", "batch"]


class State(Protocol):
    """A frozen dataclass. Tensors have the lane on axis -2; a Python number is the same for all lanes; nothing else."""

    @property
    def x(self) -> Tensor: ...
    @property
    def y(self) -> Tensor: ...


class Algorithm(BaseModel):
    """The base class of a method. Its fields are its parameters; `init` and `step` are its pseudo-code.

    A float field, and an integer annotated `PerLane[int]`, may differ between the lanes of a pack and is then an
    (L, 1) tensor inside `init` and `step`: no `if`, `int()` or `math.*` on it. Everything else is structural. A field
    `float | None` is filled from the problem's constants by `resolve`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: ClassVar[str]
    title: ClassVar[str] = ""  # as its paper writes it; a method that is made from another one has its own
    paper: ClassVar[str] = ""  # the address of its paper
    uses: ClassVar[frozenset[str]]
    family: ClassVar[Family] = "other"
    lanes: ClassVar[bool] = True
    claims: ClassVar[tuple[Claim, ...]] = ()
    reports: ClassVar[Literal["own", "last", "random"]] = "last"
    tuned: ClassVar[Mapping[str, Role]] = {}  # the parameters that are tuned
    finite_sum_only: ClassVar[bool] = False  # it asks for data by number: `run --all` pairs it with finite sums only
    needs_modules: ClassVar[tuple[str, ...]] = ()  # that an extra installs; `run --all` leaves it out without them
    known_exceptions: ClassVar[Mapping[str, KnownFailure]] = {}  # checks of the conformance kit that it fails, and why

    def resolve(self, constants: Constants) -> Self:
        """Fill what is None from the problem's constants; a missing constant is an error that names it."""
        return self

    def fill(self, constants: Constants, **rules: Callable[[Constants], float]) -> Self:
        """For `resolve`: each rule is asked only if its field is None."""
        update = {}
        for field, rule in rules.items():
            if getattr(self, field) is None:
                try:
                    update[field] = rule(constants)
                except MissingConstant as missing:
                    wanted = f"{self.name}'s default {field}"
                    raise MissingConstant(missing.constant, constants.problem, wanted) from None
        return type(self).model_validate({**self.given(), **update}) if update else self

    def given(self) -> dict[str, Any]:
        """The fields as they are, without copying."""
        return {field: getattr(self, field) for field in type(self).model_fields}

    @abstractmethod
    def init(self, x0: Tensor, y0: Tensor, oracle: Oracle) -> Any:
        """The state before the first step. May query, and pays for it."""

    @abstractmethod
    def step(self, state: Any, oracle: Oracle) -> Any:
        """One outer iteration."""

    def point(self, state: Any) -> tuple[Tensor, Tensor]:
        """Where the evaluator looks after a step."""
        return state.x, state.y

    def moved(self, state: Any, move: Callable[[Tensor], Tensor]) -> Any:
        """The state with its upper iterates moved, as the projection onto a constraint moves them after each step."""
        return dataclasses.replace(state, x=move(state.x))

    def answer(self, state: Any) -> tuple[Tensor, Tensor]:
        """The final answer, asked only if `reports == "own"`; NaN in a lane that has none yet: `point` serves there."""
        return self.point(state)

    def stopped(self, state: Any) -> Tensor | None:
        """(L, 1) bool: lanes that have come to the method's own end."""
        return None

    def calls(self, step: int) -> dict[str, int] | None:
        """What step number `step` costs, by query; None if that depends on data or chance."""
        return None

    def extras(self, state: Any) -> dict[str, Tensor]:
        """(L, 1) columns for the curve."""
        return {}

    @classmethod
    def from_theory(cls, constants: Constants, eps: float) -> Self:
        """The theorem's parameters for accuracy eps, with its constants."""
        raise InvalidInput(f"{cls.name} has no theory preset")

    @classmethod
    def from_rate(cls, constants: Constants, eps: float, scale: float = 1.0) -> Self:
        """The theorem's powers of eps, with constants of order one."""
        raise InvalidInput(f"{cls.name} has no rate preset")

    @classmethod
    def from_horizon(cls, constants: Constants, steps: int, scale: float = 1.0) -> Self:
        """For a method whose parameters are set by the number of steps: the theorem's powers of it."""
        raise InvalidInput(f"{cls.name} has no preset for a horizon")

    def x_step(self) -> float | None:
        """The length of an x-step over its hypergradient, if that is a constant: what `rates` predicts slopes from."""
        return None

    def largest_eps(self, eps: float) -> float | None:
        """For a preset made for eps: above which accuracy it does not do what its theorem has it do; None: it always does.

        A theorem that speaks of small eps only is not tested above them, and `rates` says so.
        """
        return None

    @classmethod
    def per_lane(cls) -> frozenset[str]:
        """The fields that may differ between the lanes of a pack."""
        return _per_lane(cls)

    @classmethod
    def first_order(cls) -> bool:
        """A checked fact: the oracle refuses what is not declared."""
        return cls.uses.isdisjoint(PRODUCTS)


class Distributed(Algorithm):
    """A method that is run by agents, each of which answers only for what it holds: `class DistF2BA(Distributed, F2BA)`.

    Every agent makes the same steps on the same iterates; `oracle.mean` is what they exchange. So a query's answer has to
    pass it before it may move what they share, and what a step asks for may not depend on an answer that has not.
    """

    lanes = False
    claims: ClassVar[tuple[Claim, ...]] = ()

    agents: PositiveInt | None = None
    """number of agents, one process each; default: as many as the problem has"""
    timeout: PositiveFloat = 60.0
    """seconds that the others may take to answer before the trial is given up"""


@functools.cache
def _per_lane(cls: type[Algorithm]) -> frozenset[str]:
    return frozenset(name for name, field in cls.model_fields.items() if _is_per_lane(field))


def _is_per_lane(field: FieldInfo) -> bool:
    marked = any(isinstance(m, PerLaneMarker) for m in field.metadata)
    return marked or _lane_type(field.annotation)


def _lane_type(annotation: Any) -> bool:
    """True for float and what is marked, alone, annotated or with None."""
    if annotation is float:
        return True
    arguments = typing.get_args(annotation)
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        return any(isinstance(m, PerLaneMarker) for m in arguments[1:]) or _lane_type(arguments[0])
    if origin in (Union, types.UnionType):
        return all(_lane_type(a) for a in arguments if a is not type(None))
    return False
