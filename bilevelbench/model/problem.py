"""A problem: two scalar functions, and what is known about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from pydantic import BaseModel, ConfigDict, NonNegativeInt, PositiveInt

from bilevelbench.errors import InvalidInput, suggestion
from bilevelbench.model.data_file import DataFile
from bilevelbench.model.instance import Instance
from bilevelbench.model.known import KnownFailure


class Problem(BaseModel):
    """The validated description of a problem; `build` makes the instance, drawing its data from `data_seed`.

    A problem that can put several data sets side by side in one instance implements `build_lanes` instead of `build`;
    trials that differ in `data_seed` then share a pack. Tensors are made in torch's default dtype, which the runner
    sets to the trial's.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: ClassVar[str]
    max_lanes: ClassVar[int] = 256
    finite_sum: ClassVar[bool] = False  # its noise is a FiniteSum; what `run --all` goes by, without building it
    embedded: ClassVar[bool] = True  # needs no download and no long computation: part of `run --all`
    data_sets: ClassVar[Sequence[int]] = range(1 << 31)  # data seeds, in the order in which suites take them
    known_exceptions: ClassVar[Mapping[str, KnownFailure]] = {}  # checks of the conformance kit that it fails, and why
    checked_with: ClassVar[Mapping[str, Any]] = {}  # parameters for that kit, where the usual ones would take it hours
    solves_phi: ClassVar[bool] = True  # False: the lower level is not solved, as it is not convex or takes too long
    data_files: ClassVar[tuple[DataFile, ...]] = ()  # what it reads; `bilevelbench data` fetches and checks them

    data_seed: NonNegativeInt = 0
    """seed of the data"""

    def build(self) -> Instance:
        if type(self).build_lanes is Problem.build_lanes:
            raise InvalidInput(f"problem {self.name!r} implements neither `build` nor `build_lanes`")
        return self.build_lanes((self.data_seed,))

    def build_lanes(self, data_seeds: Sequence[int]) -> Instance:
        raise InvalidInput(f"problem {self.name!r} cannot stack data sets; it has no `build_lanes`")

    @classmethod
    def stackable(cls) -> bool:
        return cls.build_lanes is not Problem.build_lanes

    def sweep(self, over: str, value: float) -> dict[str, Any]:
        """The parameters that make this problem's `over` equal to `value`: what `bilevelbench rates --over` asks for.

        A number among the parameters can be swept as it is. A problem overrides this for what is none of them: a condition
        number that is a quotient, or a number of data that two levels share.
        """
        now = getattr(self, over, None) if over in type(self).model_fields else None
        if over == "data_seed" or isinstance(now, bool) or not isinstance(now, int | float):
            numbers = [
                k for k, v in self if isinstance(v, int | float) and not isinstance(v, bool) and k != "data_seed"
            ]
            raise InvalidInput(
                f"problem {self.name!r} cannot be swept over {over!r}{suggestion(over, numbers)}; a problem says how in its "
                "method `sweep(over, value)`"
            )
        return {over: round(value) if isinstance(now, int) else value}

    def drift_exponent(self) -> float | None:
        """q, where |grad phi| falls as u^-q with the way u that is gone: a fixed step then takes eps^-(1 + 1/q) steps."""
        return None

    def generator(self, data_seed: int | None = None) -> torch.Generator:
        """The only source of randomness in `build`."""
        return torch.Generator().manual_seed(self.data_seed if data_seed is None else data_seed)


class Shared(Problem):
    """A problem that is the mean over agents: its instances have `agents`, and distributed methods can be run on it."""

    agents: PositiveInt = 4
    """how many own a part of it"""
