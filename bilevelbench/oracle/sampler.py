"""How a Sample is drawn and what it does to an answer, for each noise model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args, overload

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


class Sampler:
    """The sampling side of an oracle."""

    def __init__(
        self, noise: Noise, dx: int, dy: int, dtype: torch.dtype, meter: Meter, device: torch.device | None = None
    ) -> None:
        self.noise, self.dx, self.dy, self.dtype, self._meter, self.device = noise, dx, dy, dtype, meter, device
        self._exact = {level: is_exact(noise, level) for level in ("f", "g")}
        self._sigma = {name.removeprefix("sigma_"): sigma for name, sigma in levels(noise).items()}
        self._passed = {"f": (0, 0), "g": (0, 0)}  # order="epoch": the pass, and the rows taken of it, in every lane
        self.start: tuple[Tensor, Tensor]  # x0 and y0, around which affine noise grows; the oracle sets them

    def draw(
        self,
        level: Level,
        size: int | Tensor,
        points: int | None,
        order: Order,
        place: tuple[int, ...],
        indices: tuple[int, ...],
        longest: int,
        draws: Draws,
    ) -> Sample:
        _check_size(level, size)
        if order not in get_args(Order):
            raise InvalidInput(f"a sample has no order={order!r}{suggestion(str(order), get_args(Order))}")
        if not isinstance(self.noise, FiniteSum):
            if order != "replacement":
                raise InvalidInput(f"order={order!r} needs a finite sum; this problem's noise is {self.noise}")
            # without noise a sample is the exact answer, and is charged as one
            return Sample(level, 1 if self._exact[level] else size, place, indices, longest, points)
        if order != "replacement" and (not isinstance(size, int) or points is not None):
            raise InvalidInput(f"order={order!r} takes one whole number as size and no points")
        n, size = self._data(level), self._cut(level, size)
        sample = Sample(level, size, place, indices, longest, points)
        if order == "replacement" or not isinstance(size, int):
            return self._with_replacement(sample, n, draws)
        return self._epoch(sample, n, size, draws) if order == "epoch" else self._block(sample, n, size, draws)

    def _data(self, level: Level) -> int:
        return self.noise.n_f if level == "f" else self.noise.n_g

    @overload
    def _cut(self, level: Level, size: int) -> int: ...
    @overload
    def _cut(self, level: Level, size: int | Tensor) -> int | Tensor: ...
    def _cut(self, level: Level, size: int | Tensor) -> int | Tensor:
        """A batch larger than the data is cut to them; the rows of its lanes say so."""
        n = self._data(level)
        if int(size if isinstance(size, int) else size.max()) <= n:
            return size
        self._meter.note_cut(level, size)
        return n if isinstance(size, int) else size.clamp(max=n)

    def _with_replacement(self, sample: Sample, n: int, draws: Draws) -> Sample:
        largest = sample.size if isinstance(sample.size, int) else int(sample.size.max())
        shape = (largest, sample.points or 1)  # a lane's first rows are the same whatever the largest batch of its pack
        u = draws.uniform(f"rows_{sample.level}", sample.place, sample.indices, shape[0] * shape[1], sample.longest)
        drawn = torch.from_numpy(np.minimum((u * n).astype(np.int64), n - 1)).to(self.device)
        index = drawn.reshape(*shape, -1).permute(1, 2, 0)
        if isinstance(sample.size, int):
            weight = torch.full(index.shape, 1.0 / sample.size, dtype=self.dtype, device=self.device)
        else:  # lanes with fewer data than the largest batch: the rest weighs nothing
            on = torch.arange(largest, device=self.device) < sample.size
            weight = (on.to(self.dtype) / sample.size).expand(index.shape)
        if sample.points is None:
            index, weight = index[0], weight[0]
        return _with_rows(sample, Rows(index.contiguous(), weight))

    def _epoch(self, sample: Sample, n: int, size: int, draws: Draws) -> Sample:
        epoch, start = self._passed[sample.level]
        stop = min(start + size, n)
        self._passed[sample.level] = (epoch, stop) if stop < n else (epoch + 1, 0)
        u = draws.uniform(f"epoch_{sample.level}", (), (epoch,), n, 1)
        order = torch.from_numpy(np.argsort(u, axis=0, kind="stable")).T.to(self.device)
        index = order[:, start:stop].contiguous()
        weight = torch.full(index.shape, 1.0 / index.shape[-1], dtype=self.dtype, device=self.device)
        return _with_rows(sample, Rows(index, weight), size=int(index.shape[-1]))

    def _block(self, sample: Sample, n: int, size: int, draws: Draws) -> Sample:
        blocks = -(-n // size)
        u = draws.uniform(f"block_{sample.level}", sample.place, sample.indices, 1, sample.longest)[0]
        block = torch.from_numpy(np.minimum((u * blocks).astype(np.int64), blocks - 1)).to(self.device)
        index = block[:, None] * size + torch.arange(size, device=self.device)
        inside = index < n
        weight = inside.to(self.dtype) * (blocks / n)  # the mean over blocks is the full sum
        sizes: int | Tensor = size if n % size == 0 else inside.sum(-1, keepdim=True)
        return _with_rows(sample, Rows(index.clamp(max=n - 1), weight), size=sizes, block=block)

    def blocks(self, level: Level, size: int, lanes: int) -> list[Sample]:
        if not isinstance(self.noise, FiniteSum):
            raise InvalidInput(f"blocks of {level} need a finite sum; this problem's noise is {self.noise}")
        _check_size(level, size)
        n, size = self._data(level), self._cut(level, size)
        count = -(-n // size)
        out = []
        for number in range(count):
            rows = torch.arange(number * size, min(n, (number + 1) * size), device=self.device)
            index = rows.expand(lanes, -1)
            weight = torch.full(index.shape, count / n, dtype=self.dtype, device=self.device)
            block = torch.full((lanes,), number, device=self.device)
            out.append(Sample(level, index.shape[-1], (), (number,), 1, rows=Rows(index, weight), block=block))
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
            vector = torch.from_numpy(made).reshape(xi.points, width, -1).movedim(-1, -2).to(self.dtype).contiguous()
            vector = vector.to(self.device)
        size = xi.size if isinstance(xi.size, int) else xi.size.to(self.dtype)
        xi.noise[purpose] = vector = vector * (sigma / (width * size) ** 0.5)
        return vector


def _with_rows(sample: Sample, rows: Rows, size: int | Tensor | None = None, block: Tensor | None = None) -> Sample:
    return replace(sample, size=sample.size if size is None else size, rows=rows, block=block, noise={})


def _check_size(level: str, size: int | Tensor) -> None:
    wrong: object = size
    if isinstance(size, Tensor):
        bad = size[~((size >= 1) & (size == size.round()))] if size.is_floating_point() else size[size < 1]
        if len(bad) == 0:
            return
        wrong = bad[0].item()
    elif isinstance(size, int) and size >= 1:
        return
    raise InvalidInput(
        f"a batch of {wrong} of {level}: ask for a whole number of samples, at least one; the exact answer needs no sample"
    )
