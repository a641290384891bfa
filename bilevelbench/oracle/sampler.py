"""How a Sample is drawn and what it does to an answer, for each noise model."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor

from bilevelbench.errors import InvalidInput, suggestion
from bilevelbench.model.lanes import dot, norm
from bilevelbench.model.noise import Affine, FiniteSum, Noise, Rows, is_exact, levels
from bilevelbench.model.queries import Level, Output, Query
from bilevelbench.oracle.draws import Draws
from bilevelbench.oracle.meter import Meter
from bilevelbench.oracle.sample import Order, Sample

_ORDERS = get_args(Order)

#: The place, the indices and the length of the innermost loop, as `Loops` gives them.
Where = tuple[tuple[int, ...], tuple[int, ...], int]


class Sampler:
    """The sampling side of an oracle."""

    def __init__(
        self, noise: Noise, dx: int, dy: int, dtype: torch.dtype, meter: Meter, device: torch.device | None = None
    ) -> None:
        self.noise, self.dx, self.dy, self.dtype, self._meter, self.device = noise, dx, dy, dtype, meter, device
        self._exact = {level: is_exact(noise, level) for level in ("f", "g")}
        self._sigma = {name.removeprefix("sigma_"): sigma for name, sigma in levels(noise).items()}
        self._passed = {"f": (0, 0), "g": (0, 0)}  # order="epoch": the pass, and the rows taken of it, in every lane
        self._equal: dict[Level, Tensor] = {}  # the weights of the last batch, which are mostly those of the next one
        self.start: tuple[Tensor, Tensor]  # x0 and y0, around which affine noise grows; the oracle sets them

    def draw(
        self,
        level: Level,
        size: int | Tensor,
        bounds: tuple[int, int],
        points: int | None,
        order: Order,
        place: tuple[int, ...],
        indices: tuple[int, ...],
        longest: int,
        draws: Draws,
    ) -> Sample:
        """`bounds` are the smallest and the largest size of a lane, see `bounds_of`."""
        if order not in _ORDERS:
            raise InvalidInput(f"a sample has no order={order!r}{suggestion(str(order), _ORDERS)}")
        low, high = bounds
        each = low if low == high else None
        if not isinstance(self.noise, FiniteSum):
            if order != "replacement":
                raise InvalidInput(f"order={order!r} needs a finite sum; this problem's noise is {self.noise}")
            if self._exact[level]:  # without noise a sample is the exact answer, and is charged as one
                size = each = 1
            return Sample(level, size, place, indices, longest, each, points)
        if order != "replacement" and (not isinstance(size, int) or points is not None):
            raise InvalidInput(f"order={order!r} takes one whole number as size and no points")
        n, where = self._data(level), (place, indices, longest)
        if high > n:  # a batch larger than the data is cut to them; the rows of its lanes say so
            self._meter.note_cut(level, size)
            low, high = min(low, n), n
            size = size.clamp(max=n) if isinstance(size, Tensor) else n
        if order == "epoch":
            return self._epoch(level, where, n, high, draws)
        if order == "block":
            return self._block(level, where, n, high, draws)
        return self._with_replacement(level, where, n, high if low == high else size, high, points, draws)

    def _data(self, level: Level) -> int:
        return self.noise.n_f if level == "f" else self.noise.n_g

    def _with_replacement(
        self, level: Level, where: Where, n: int, size: int | Tensor, largest: int, points: int | None, draws: Draws
    ) -> Sample:
        place, indices, longest = where
        shape = (largest, points or 1)  # a lane's first rows are the same whatever the largest batch of its pack
        index = draws.rows(f"rows_{level}", place, indices, shape, longest, n, self.device)
        if points is None:
            index = index[0]
        if isinstance(size, int):
            rows, each = Rows(index, self._equal_weights(level, index.shape)), size
        else:  # lanes with fewer data than the largest batch: the rest weighs nothing
            on = torch.arange(largest, device=self.device) < size
            rows, each = Rows(index, (on.to(self.dtype) / size).expand(index.shape)), None
        return Sample(level, size, place, indices, longest, each, points, rows)

    def _equal_weights(self, level: Level, shape: torch.Size) -> Tensor:
        weight = self._equal.get(level)
        if weight is None or weight.shape != shape:
            weight = torch.full(shape, 1.0 / shape[-1], dtype=self.dtype, device=self.device)
            self._equal[level] = weight
        return weight

    def _epoch(self, level: Level, where: Where, n: int, size: int, draws: Draws) -> Sample:
        epoch, start = self._passed[level]
        stop = min(start + size, n)
        self._passed[level] = (epoch, stop) if stop < n else (epoch + 1, 0)
        u = draws.uniform(f"epoch_{level}", (), (epoch,), n, 1)
        order = torch.from_numpy(np.argsort(u, axis=0, kind="stable")).T.to(self.device)
        index = order[:, start:stop].contiguous()
        taken = int(index.shape[-1])
        return Sample(level, taken, *where, taken, rows=Rows(index, self._equal_weights(level, index.shape)))

    def _block(self, level: Level, where: Where, n: int, size: int, draws: Draws) -> Sample:
        blocks, (place, indices, longest) = -(-n // size), where
        u = draws.uniform(f"block_{level}", place, indices, 1, longest)[0]
        block = torch.from_numpy(np.minimum((u * blocks).astype(np.int64), blocks - 1)).to(self.device)
        index = block[:, None] * size + torch.arange(size, device=self.device)
        inside = index < n
        weight = inside.to(self.dtype) * (blocks / n)  # the mean over blocks is the full sum
        rows = Rows(index.clamp(max=n - 1), weight)
        if n % size == 0:
            return Sample(level, size, *where, size, rows=rows, block=block)
        return Sample(level, inside.sum(-1, keepdim=True), *where, rows=rows, block=block)

    def blocks(self, level: Level, size: int, lanes: int) -> list[Sample]:
        if not isinstance(self.noise, FiniteSum):
            raise InvalidInput(f"blocks of {level} need a finite sum; this problem's noise is {self.noise}")
        bounds_of(level, size)
        n = self._data(level)
        if size > n:
            self._meter.note_cut(level, size)
            size = n
        count = -(-n // size)
        out = []
        for number in range(count):
            rows = torch.arange(number * size, min(n, (number + 1) * size), device=self.device)
            index = rows.expand(lanes, -1)
            weight = torch.full(index.shape, count / n, dtype=self.dtype, device=self.device)
            block = torch.full((lanes,), number, device=self.device)
            taken = index.shape[-1]
            out.append(Sample(level, taken, (), (number,), 1, taken, rows=Rows(index, weight), block=block))
        return out

    def spread(self, query: Query, arguments: tuple[Tensor, ...], xi: Sample) -> tuple[Tensor, ...]:
        """The arguments with the points of an independent-per-point Sample written out."""
        if xi.level != query.level:
            raise InvalidInput(
                f"{query.name} was given a sample of {xi.level}; draw it with oracle.sample_{query.level}(...)"
            )
        if xi.points is None:
            return arguments
        shapes = [a.shape[:-2] for a in arguments]
        if all(
            shape in ((), (xi.points,)) for shape in shapes
        ):  # the usual case; torch's broadcasting of shapes is slow
            return tuple(a.expand(xi.points, *a.shape[-2:]) for a in arguments)
        try:
            shape = torch.broadcast_shapes((xi.points,), *shapes)
        except RuntimeError:
            asked = torch.broadcast_shapes(*shapes)
            raise InvalidInput(f"{query.name}: a sample for {xi.points} points used at points {tuple(asked)}") from None
        return tuple(a.expand(*shape, *a.shape[-2:]) for a in arguments)

    def add_noise(self, query: Query, out: Any, arguments: tuple[Tensor, ...], xi: Sample, draws: Draws) -> Any:
        """Gaussian noise: the mean of B samples is one draw of variance sigma^2/B."""
        if self._exact[xi.level]:
            return out
        noise = self._affine if isinstance(self.noise, Affine) else self._additive
        if not isinstance(out, tuple):
            return out + noise(query, query.outputs[0], arguments, xi, draws)
        blocks = zip(out, query.outputs, strict=True)
        return tuple(block + noise(query, output, arguments, xi, draws) for block, output in blocks)

    def _additive(
        self, query: Query, output: Output, arguments: tuple[Tensor, ...], xi: Sample, draws: Draws
    ) -> Tensor:
        if query.order == 1:
            return self._slope(output, xi, draws)
        if query.order == 0:  # of the function whose gradient carries that noise
            return dot(self._slope("x", xi, draws), arguments[0]) + dot(self._slope("y", xi, draws), arguments[1])
        scale = self._noise_vector("jvp" if output == "x" else "hvp", 1, self._sigma["h"], xi, draws)
        v = arguments[2]
        if output == "x":  # E is the rectangular identity
            v = torch.nn.functional.pad(v, (0, max(0, self.dx - self.dy)))[..., : self.dx]
        return scale * v

    def _affine(self, query: Query, output: Output, arguments: tuple[Tensor, ...], xi: Sample, draws: Draws) -> Tensor:
        """Of the function <n, z> + s/2 <u, z>^2: a gradient n + s <u, z> u, and the products s <u_y, v> u."""
        s, u = self._curvature(xi, draws)
        if query.order == 2:
            return s * dot(u["y"], arguments[2]) * u[output]
        z = {"x": arguments[0] - self.start[0], "y": arguments[1] - self.start[1]}
        along = dot(u["x"], z["x"]) + dot(u["y"], z["y"])
        if query.order == 1:
            return self._slope(output, xi, draws) + s * along * u[output]
        linear = dot(self._slope("x", xi, draws), z["x"]) + dot(self._slope("y", xi, draws), z["y"])
        return linear + 0.5 * s * along * along

    def _slope(self, output: Output, xi: Sample, draws: Draws) -> Tensor:
        """n in x or in y."""
        width = self.dx if output == "x" else self.dy
        return self._noise_vector(f"{xi.level}_{output}", width, self._sigma[xi.level], xi, draws)

    def _curvature(self, xi: Sample, draws: Draws) -> tuple[Tensor, dict[str, Tensor]]:
        """s and u of S = s u u^T, u in its two blocks."""
        s = self._noise_vector(f"{xi.level}_s", 1, self._sigma["h"], xi, draws)
        u = self._noise_vector(f"{xi.level}_u", self.dx + self.dy, 1.0, xi, draws)
        u = u / norm(u)
        return s, {"x": u[..., : self.dx], "y": u[..., self.dx :]}

    def _noise_vector(self, purpose: str, width: int, sigma: float, xi: Sample, draws: Draws) -> Tensor:
        held = xi.noise.get(purpose)
        if held is not None:
            return held
        if xi.points is None:
            vector = draws.normal_vectors(purpose, xi.place, xi.indices, width, xi.longest, self.dtype, self.device)
        else:
            made = draws.normal(purpose, xi.place, xi.indices, xi.points * width, xi.longest)
            vector = torch.as_tensor(made).reshape(xi.points, width, -1).movedim(-1, -2).to(self.dtype).contiguous()
            vector = vector.to(self.device)
        size = xi.size if isinstance(xi.size, int) else xi.size.to(self.dtype)
        xi.noise[purpose] = vector = vector * (sigma / (width * size) ** 0.5)
        return vector


def bounds_of(level: str, size: int | Tensor) -> tuple[int, int]:
    """The smallest and the largest size of a lane; one that is not a whole number from one on is refused."""
    wrong: object = size
    if isinstance(size, Tensor):
        bad = size[~((size >= 1) & (size == size.round()))] if size.is_floating_point() else size[size < 1]
        if len(bad) == 0:
            low, high = size.aminmax()
            return int(low), int(high)
        wrong = bad[0].item()
    elif isinstance(size, int) and size >= 1:
        return size, size
    raise InvalidInput(
        f"a batch of {wrong} of {level}: ask for a whole number of samples, at least one; the exact answer needs no sample"
    )
