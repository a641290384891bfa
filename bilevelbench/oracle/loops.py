"""Loops and masks over lanes, and the address of a draw, which is its place in them."""

from __future__ import annotations

import operator
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from bilevelbench.errors import InvalidInput
from bilevelbench.oracle.meter import Meter


class _Frame:
    """Where a draw happens: a loop's number in its parent, the present index, how many draws and loops it has seen."""

    __slots__ = ("bound", "index", "number", "per_lane", "seen")

    def __init__(self, number: int, bound: int, per_lane: bool = False) -> None:
        self.number, self.bound, self.per_lane, self.index, self.seen = number, bound, per_lane, 0, 0


class Loops:
    """The part of an oracle that knows which lanes are on, and where in the loops of a step a method is."""

    def __init__(self, meter: Meter, lanes: int) -> None:
        self.meter, self.L = meter, lanes
        self._fixed_bounds: dict[int, tuple[Tensor, int, int]] = {}
        self._frames = [_Frame(0, 1 << 30)]

    def repeat(self, times: int | Tensor) -> Generator[Tensor | bool]:
        """`for on in oracle.repeat(K)`: K times, an int or an (L, 1) tensor; `on` is True, or the lanes still at it."""
        outer = self.meter.mask
        fixed = self._fixed_bounds.get(id(times))
        if fixed is not None:
            _, low, high = fixed
        elif isinstance(times, Tensor):
            self._check_lanes("repeat: a loop length", times)
            if times.is_floating_point():  # a diverged lane does not hold up the others
                times = torch.nan_to_num(times, nan=0.0, posinf=0.0)
            low, high = self._bounds(times)
        else:
            low = high = times = _whole("repeat: a loop length", times)
        here = self._frames[-1]
        here.seen += 1
        depth = len(self._frames)
        frame = _Frame(here.seen, max(high, 1), not isinstance(times, int))
        self._frames.append(frame)
        try:
            if low == high and outer is None:  # the usual case: every lane is on throughout
                for frame.index in range(high):
                    frame.seen = 0
                    yield True
                return
            mask = outer
            for index in range(high):
                frame.index, frame.seen = index, 0
                if index >= low:
                    mask = _both(outer, torch.as_tensor(times) > index)
                    self.meter.switch(mask)
                yield True if mask is None else mask.clone()  # the meter's own is nobody's to change
        finally:
            del self._frames[depth:]
            if self.meter.mask is not outer:
                self.meter.switch(outer)

    def until(self, most: int | Tensor, going: Tensor) -> Iterator[Tensor | bool]:
        """`for on in oracle.until(n, going)`: at most n rounds, and none once no lane goes on.

        The mask is the method's own, and read before each round: `going &= norm(g_y) > tol` in the body. A lane that has
        left stays out, and is not charged.
        """
        self._check_lanes("until: a mask", going)
        still = torch.ones(self.L, 1, dtype=torch.bool, device=going.device)
        rounds = self.repeat(most)
        try:
            for on in rounds:
                self._frames[-1].per_lane = True  # how many rounds there are depends on each lane's data
                still = still & going
                now = still if on is True else still & on
                if not bool((now & self._with_budget()).any()):
                    return
                with self.only(now):
                    yield True if bool(now.all()) else now.clone()
        finally:
            rounds.close()

    def when(self, mask: Tensor) -> Iterator[Tensor | bool]:
        """`for on in oracle.when(mask)`: an `if` for lanes. The body runs once if any lane is on, never otherwise.

        A Python `if bool(mask.any())` around draws would make a lane's numbers depend on its pack; this does not.
        """
        return self.repeat(mask)

    @contextmanager
    def only(self, mask: Tensor) -> Iterator[None]:
        """`with oracle.only(mask)`: the other lanes are not charged and get NaN."""
        self._check_lanes("only: a mask", mask)
        outer = self.meter.mask
        mask = mask.bool().clone()  # what the method does to its own later changes nothing here
        if bool(mask.all()):
            yield
            return
        self.meter.switch(_both(outer, mask))
        try:
            yield
        finally:
            self.meter.switch(outer)

    def _check_lanes(self, what: str, value: Tensor) -> None:
        if value.shape != (self.L, 1):
            raise InvalidInput(
                f"{what} is ({self.L}, 1), one number per lane; got a tensor of shape {tuple(value.shape)}"
            )

    def _bounds(self, times: Tensor) -> tuple[int, int]:
        """Iterations that every lane makes, and the most that any lane with budget makes."""
        finite = torch.nan_to_num(
            times.cpu().double(), nan=0.0, posinf=0.0
        )  # a diverged lane does not hold up the others
        low = int(finite.min().clamp(min=0))
        alive = self._with_budget()
        if self.meter.mask is not None:
            alive = alive & self.meter.mask.cpu()
        high = max(low, int(torch.where(alive, finite, torch.zeros_like(finite)).max().ceil()))
        return low, high

    def _with_budget(self) -> Tensor:
        """(L, 1): the lanes that are not ghosts."""
        return torch.from_numpy(~self.meter.ghost).reshape(-1, 1)

    def _address(self) -> tuple[tuple[int, ...], tuple[int, ...], int]:
        frames = self._frames
        here = frames[-1]
        here.seen += 1
        place = (*[frame.number for frame in frames[1:]], here.seen)
        return place, tuple([frame.index for frame in frames]), here.bound  # lists: a generator takes twice as long

    @property
    def _is_in_lane_loop(self) -> bool:
        return any(frame.per_lane for frame in self._frames)

    # ------------------------------------------------------------------------------------------------ for the runner

    def begin_step(self, step: Any) -> None:
        """Draws of this step are addressed by its number, a tensor in an oracle that is traced."""
        root = self._frames[0]
        del self._frames[1:]
        root.index, root.seen = step, 0
        if self.meter.mask is not None:
            self.meter.switch(None)

    def remember(self, times: Tensor) -> None:
        """A parameter that is the same at every step: its bounds as a loop length are looked up, not computed."""
        low, high = int(times.min()), int(times.max())
        self._fixed_bounds[id(times)] = (times, low, high)

    def _narrow(self, lanes: int) -> None:
        self.L = lanes
        self._fixed_bounds.clear()


def _whole(what: str, value: object) -> int:
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise InvalidInput(f"{what} is a whole number or an (L, 1) tensor; got {value!r}") from None


def _both(outer: Tensor | None, mask: Tensor) -> Tensor:
    return mask if outer is None else outer & mask
