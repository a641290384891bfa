"""The numbers of `draws.py` as operations on tensors, for a step that is traced with its number left open.

The same hash over 64-bit integers, so rows of a mini-batch are the same; a normal is the same but for rounding. Signed
integers stand in for unsigned ones: sums and products wrap around alike, and a shift to the right masks the sign.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bilevelbench.errors import Untraceable
from bilevelbench.oracle.draws import BLOCK_LONGEST, GOLDEN, MASK, MIX, U64, Draws, fold, mix

#: The step, a tensor without axes, and the counters of loops, which are numbers.
Address = tuple[Any, ...]


def _signed(number: int) -> int:
    """The 64 bits of an unsigned integer as a signed one."""
    number &= MASK
    return number - (1 << 64) if number >> 63 else number


def _shifted(h: Tensor, bits: int) -> Tensor:
    return (h >> bits) & ((1 << (64 - bits)) - 1)


def _mix(h: Tensor) -> Tensor:
    (first, by), (second, by_then), last = MIX
    h = (h ^ _shifted(h, first)) * _signed(by)
    h = (h ^ _shifted(h, second)) * _signed(by_then)
    return h ^ _shifted(h, last)


def _constant(numbers: U64) -> Tensor:
    return torch.from_numpy(numbers.view(np.int64))


class TracedDraws(Draws):
    """`Draws` for addresses whose first index, the step, is a tensor without axes; every answer is a tensor."""

    def __init__(self, seeds: Sequence[int]) -> None:
        super().__init__(seeds)
        self._lanes = _constant(mix(self.seeds * np.uint64(GOLDEN) + np.uint64(1)))
        self._neighbours: dict[tuple[object, ...], Tensor] = {}

    def uniform(self, purpose: str, place: tuple[int, ...], indices: Address, count: int, longest: int) -> Any:
        """(count, L)."""
        if purpose != "method":
            raise Untraceable(f"its samples are drawn in an order ({purpose}) that is known only as it goes")
        return self._drawn(purpose, place, indices, count, longest).T

    def normal(self, purpose: str, place: tuple[int, ...], indices: Address, count: int, longest: int) -> Any:
        """(count, L)."""
        return torch.special.ndtri(self._drawn(purpose, place, indices, count, longest)).T

    def normal_vectors(
        self,
        purpose: str,
        place: tuple[int, ...],
        indices: Address,
        width: int,
        longest: int,
        dtype: torch.dtype,
        device: torch.device | None = None,
    ) -> Tensor:
        """(L, width)."""
        vectors: Tensor = torch.special.ndtri(self._drawn(purpose, place, indices, width, longest))
        return vectors.to(dtype)

    def rows(
        self,
        purpose: str,
        place: tuple[int, ...],
        indices: Address,
        shape: tuple[int, int],
        longest: int,
        n: int,
        device: torch.device | None = None,
    ) -> Tensor:
        """Numbers below n, with replacement, for `shape` = (B, points): (points, L, B)."""
        drawn = self._drawn(purpose, place, indices, shape[0] * shape[1], longest)
        number = (drawn * n).long().clamp(max=n - 1)
        return number.reshape(len(self.seeds), *shape).permute(2, 0, 1).contiguous()

    def _drawn(self, purpose: str, place: tuple[int, ...], indices: Address, count: int, longest: int) -> Tensor:
        """Uniforms in (0, 1), (L, count). Neighbours along an inner loop are made together, as `Draws` does."""
        outer, index = indices[:-1], indices[-1]
        if not outer:  # outside of every loop the last index is the step
            key = _signed(fold(purpose, (len(place), *place)))
            return self._numbers(_mix(key + (index + 1) * _signed(GOLDEN)).reshape(1), count)[0]
        first = index - index % min(BLOCK_LONGEST, longest)
        where = (purpose, place, count, outer[1:], first)
        if where not in self._neighbours:
            neighbours = np.arange(first + 1, first + 1 + min(BLOCK_LONGEST, longest), dtype=np.uint64)
            along = _constant(neighbours * np.uint64(GOLDEN))
            self._neighbours[where] = self._numbers(_mix(self._key(purpose, place, outer) + along), count)
        return self._neighbours[where][index - first]

    def _key(self, purpose: str, place: tuple[int, ...], outer: Address) -> Tensor:
        """`fold` of an address that has the step, a tensor, in its midst."""
        step, *inner = outer
        h = _mix(_signed(fold(purpose, (len(place), *place))) + (step + 1) * _signed(GOLDEN))
        for number in inner:
            h = _mix(h + _signed((number + 1) * GOLDEN))
        return h

    def _numbers(self, keys: Tensor, count: int) -> Tensor:
        """(len(keys), L, count)."""
        lanes = _mix(keys.unsqueeze(-1) ^ self._lanes)
        counter = _constant(np.arange(1, count + 1, dtype=np.uint64) * np.uint64(GOLDEN))
        h = _mix(lanes.unsqueeze(-1) + counter)
        return (_shifted(h, 12).double() + 0.5) * 2.0**-52
