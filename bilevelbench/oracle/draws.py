"""Random numbers by address: a pure function of (seed, purpose, place in the program), never of what was drawn before.

So lanes that differ only in hyper-parameters share their noise, a lane's numbers do not depend on its pack, and
nothing has to be saved when lanes leave. The function is a vectorised counter hash: the finaliser of splitmix64
over 64-bit integers, then 52 bits to a uniform in (0, 1), then the inverse normal distribution.
"""

from __future__ import annotations

import functools
import itertools
import zlib
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

U64 = npt.NDArray[np.uint64]
F64 = npt.NDArray[np.float64]

#: The law, the purpose, the place and how many numbers are drawn at once.
_Where = tuple[str, str, tuple[int, ...], int]

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15
#: The finaliser: shift, xor and multiply, twice, and a last shift and xor.
MIX = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), 31)
_BLOCK_NUMBERS = 1 << 15  # draws made at once
BLOCK_LONGEST = 32


def mix(h: U64) -> U64:
    (first, by), (second, by_then), last = MIX
    h = (h ^ (h >> np.uint64(first))) * np.uint64(by)
    h = (h ^ (h >> np.uint64(second))) * np.uint64(by_then)
    return h ^ (h >> np.uint64(last))


def _mix_int(h: int) -> int:
    (first, by), (second, by_then), last = MIX
    h = ((h ^ (h >> first)) * by) & MASK
    h = ((h ^ (h >> second)) * by_then) & MASK
    return h ^ (h >> last)


def fold(purpose: str, address: Sequence[int]) -> int:
    """One 64-bit key for a purpose and a place."""
    h = zlib.crc32(purpose.encode()) + GOLDEN
    for number in address:
        h = _mix_int((h + GOLDEN * (number + 1)) & MASK)
    return h


def numbers(seeds: U64, keys: U64, count: int) -> F64:
    """Uniforms in (0, 1) of shape (len(keys), count, len(seeds))."""
    lane = mix(keys[:, None] ^ mix(seeds * np.uint64(GOLDEN) + np.uint64(1))[None, :])
    counter = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(GOLDEN)
    h = mix(lane[:, None, :] + counter[None, :, None])
    return ((h >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52  # with 53 bits the largest would round to 1


@functools.cache
def normal_quantile() -> Callable[[F64], F64]:
    """Loaded by need: it takes a quarter of a second. Whoever knows beforehand asks for it while no clock runs."""
    from scipy.special import ndtri

    quantile: Callable[[F64], F64] = ndtri
    return quantile


class Draws:
    """The numbers of one pack: one seed per lane. `uniform` and `normal` return (count, L) arrays.

    An address is a *place* in the program (numbers of the enclosing loops, ordinal of the draw) and the *indices* there
    (the step, then the loops' counters, innermost last).
    """

    def __init__(self, seeds: Sequence[int]) -> None:
        self.seeds: U64 = np.array([seed & MASK for seed in seeds], dtype=np.uint64)
        # Lanes of one seed have the same numbers, which are made once: those of lane i are number `which[i]` of the different.
        self._different, self._which = np.unique(self.seeds, return_inverse=True)
        self._blocks: dict[_Where, tuple[dict[tuple[int, ...], int], F64]] = {}
        self._tensors: dict[tuple[object, ...], dict[tuple[int, ...], Tensor]] = {}

    def uniform(self, purpose: str, place: tuple[int, ...], indices: tuple[int, ...], count: int, longest: int) -> F64:
        return self._draw("uniform", purpose, place, indices, count, longest)

    def normal(self, purpose: str, place: tuple[int, ...], indices: tuple[int, ...], count: int, longest: int) -> F64:
        return self._draw("normal", purpose, place, indices, count, longest)

    def normal_vectors(
        self,
        purpose: str,
        place: tuple[int, ...],
        indices: tuple[int, ...],
        width: int,
        longest: int,
        dtype: torch.dtype,
        device: torch.device | None = None,
    ) -> Tensor:
        """The same as (L, width) tensors."""

        def vectors(block: F64) -> Tensor:
            return torch.from_numpy(block).movedim(-1, -2).to(dtype).contiguous().to(device)

        return self._tensor(("normal", purpose, place, width), indices, longest, (dtype, device), vectors)

    def rows(
        self,
        purpose: str,
        place: tuple[int, ...],
        indices: tuple[int, ...],
        shape: tuple[int, int],
        longest: int,
        n: int,
        device: torch.device | None = None,
    ) -> Tensor:
        """Numbers below n, with replacement, for `shape` = (B, points): (points, L, B)."""

        def numbered(block: F64) -> Tensor:
            drawn = torch.from_numpy(np.minimum((block * n).astype(np.int64), n - 1)).to(device)
            return drawn.reshape(len(block), *shape, -1).permute(0, 2, 3, 1).contiguous()

        where = ("uniform", purpose, place, shape[0] * shape[1])
        return self._tensor(where, indices, longest, (shape, n, device), numbered)

    def _tensor(
        self,
        where: _Where,
        indices: tuple[int, ...],
        longest: int,
        kind: tuple[object, ...],
        made: Callable[[F64], Tensor],
    ) -> Tensor:
        """A whole block is turned into tensors at once, which is most of their cost."""
        held = self._tensors.get((where, kind))
        if held is None or indices not in held:
            at, block = self._block(where, indices, longest)
            held = self._tensors[where, kind] = dict(zip(at, made(block).unbind(0), strict=True))
        return held[indices]

    def _draw(
        self, law: str, purpose: str, place: tuple[int, ...], indices: tuple[int, ...], count: int, longest: int
    ) -> F64:
        at, block = self._block((law, purpose, place, count), indices, longest)
        drawn: F64 = block[at[indices]]
        return drawn

    def _block(self, where: _Where, indices: tuple[int, ...], longest: int) -> tuple[dict[tuple[int, ...], int], F64]:
        """The numbers at these indices and at those that follow, made in one go and kept; and where each of them is."""
        held = self._blocks.get(where)
        if held is None or indices not in held[0]:
            law, purpose, place, count = where
            room = max(1, min(BLOCK_LONGEST, _BLOCK_NUMBERS // max(1, count * len(self.seeds))))
            rounds, inner = _neighbours(indices, longest, room)
            along = np.arange(inner.start + 1, inner.stop + 1, dtype=np.uint64) * np.uint64(GOLDEN)
            keys = [mix(np.uint64(fold(purpose, (len(place), *place, *outer))) + along) for outer in rounds]
            made = numbers(self._different, np.concatenate(keys), count)
            if law == "normal":
                made = normal_quantile()(made)
            at = {(*outer, index): i for i, (outer, index) in enumerate(itertools.product(rounds, inner))}
            held = self._blocks[where] = at, made[..., self._which]
        return held


def _neighbours(indices: tuple[int, ...], longest: int, room: int) -> tuple[list[tuple[int, ...]], range]:
    """At most so many indices around these: those of the innermost loop, and of its next rounds, if it is short."""
    outer, index = indices[:-1], indices[-1]
    block = min(longest, room)
    first = index - index % block
    if not outer or block < longest:
        return [outer], range(first, first + block)
    rounds = room // block
    start = outer[-1] - outer[-1] % rounds
    return [(*outer[:-1], j) for j in range(start, start + rounds)], range(first, first + block)
