"""The oracle: the only door between a method and a problem, and everything that passes it is on the meter."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, Protocol, overload

import numpy as np
import torch
from torch import Tensor

from bilevelbench.errors import InvalidInput, UndeclaredQuery
from bilevelbench.model.agents import Part
from bilevelbench.model.instance import Instance, count_points
from bilevelbench.model.noise import FiniteSum, Gaussian
from bilevelbench.model.queries import QUERIES, Level, Query
from bilevelbench.oracle.draws import Draws, fold, normal_quantile
from bilevelbench.oracle.fast_path import gradient_query, plain, product_query
from bilevelbench.oracle.loops import Loops
from bilevelbench.oracle.meter import Meter, Tally
from bilevelbench.oracle.sample import Order, Sample
from bilevelbench.oracle.sampler import Sampler, bounds_of
from bilevelbench.oracle.traced_draws import TracedDraws


class BlockQuery(Protocol):
    def __call__(self, x: Tensor, y: Tensor, xi: Sample | None = None) -> Tensor: ...


class JointQuery(Protocol):
    def __call__(self, x: Tensor, y: Tensor, xi: Sample | None = None) -> tuple[Tensor, Tensor]: ...


class ProductQuery(Protocol):
    def __call__(self, x: Tensor, y: Tensor, v: Tensor, xi: Sample | None = None) -> Tensor: ...


class JointProductQuery(Protocol):
    def __call__(self, x: Tensor, y: Tensor, v: Tensor, xi: Sample | None = None) -> tuple[Tensor, Tensor]: ...


class Oracle(Loops):
    """Derivatives, samples, constants and random numbers for one pack of lanes.

    A query takes x, `(*P, L, dx)`, and y, `(*P, L, dy)`, charges each lane that is on, and answers with detached tensors.
    `xi` is a Sample, or None for the exact answer. What a method does not declare in `uses` is refused. An agent's oracle
    has a `part`: it asks what the agent holds, with samples of its own, while the method's own draws are the same for all.
    """

    def __init__(
        self,
        instance: Instance,
        uses: frozenset[str],
        seeds: Sequence[int],
        budgets: Sequence[float] | None = None,
        real: Sequence[bool] | None = None,
        part: Part | None = None,
    ) -> None:
        self._uses, self._part = uses, part
        noise = instance.noise if part is None else part.local.noise
        self.dx, self.dy = instance.dx, instance.dy
        self.dtype, self.device = instance.x0.dtype, instance.x0.device
        self.n_f, self.n_g = noise.n_f, noise.n_g
        whole = {name: self.n_f if query.level == "f" else self.n_g for name, query in QUERIES.items()}
        lanes = len(seeds)
        super().__init__(Meter(whole, budgets or [float("inf")] * lanes, real or [True] * lanes), lanes)
        self.network = part.network if part else None
        self._seed(seeds)
        if isinstance(noise, Gaussian):
            normal_quantile()  # now, and not on the clock of the first sample
        self._sampler = Sampler(noise, self.dx, self.dy, self.dtype, self.meter, self.device)
        self._plug(instance)

    # ------------------------------------------------------------------------------------------------ queries
    # Attributes, made by `_plug` for the declared queries; the others are not there, and `__getattr__` says so.

    grad_f: JointQuery  # (f_x, f_y) at one point: one call
    grad_f_x: BlockQuery
    grad_f_y: BlockQuery
    grad_g: JointQuery  # (g_x, g_y) at one point: one call
    grad_g_x: BlockQuery
    grad_g_y: BlockQuery
    hvp_g_yy: ProductQuery  # H v, the product with the lower Hessian
    jvp_g_xy: ProductQuery  # J v in R^dx, the product with the mixed derivative
    vp_g: JointProductQuery  # (J v, H v) at one point: one call
    value_f: BlockQuery
    value_g: BlockQuery

    def __getattr__(self, name: str) -> NoReturn:
        if name in QUERIES:
            raise UndeclaredQuery(name, self._uses)
        raise AttributeError(f"an oracle has no {name!r}")

    def constant(self, name: str) -> float | Tensor:
        """A constant of the problem, declared in `uses` like a query; (L, 1) where lanes have data sets of their own."""
        if name not in self._uses:
            raise UndeclaredQuery(name, self._uses)
        return self._instance.constants.of_lanes(name, self._instance.x0)

    def _plug(self, instance: Instance) -> None:
        self._instance = instance
        self._asked = asked = self._part.local if self._part else instance
        self._sampler.start = asked.x0, asked.y0
        one_point = asked.expect(self.L)
        shapes = torch.Size((self.L, self.dx)), torch.Size((self.L, self.dy))
        for name, query in QUERIES.items():
            if name not in self._uses:
                continue
            general = functools.partial(self._ask_general, query, asked.functions[name])
            make = product_query if query.takes_vector else gradient_query
            sampled = self._sampled(query, one_point[name])
            setattr(self, name, make(name, self.meter, shapes, self.dtype, one_point[name], sampled, general))

    def _sampled(self, query: Query, one_point: Callable[..., Any]) -> Callable[..., Any]:
        """One point with a sample that is equally large in every lane; None: the general way."""
        name, level, gaussian = query.name, query.level, isinstance(self._instance.noise, Gaussian)

        def answer(xi: Sample, *given: Tensor) -> Any:
            if xi.points is not None or xi.level != level or xi.each is None:
                return None
            self.meter.charge(name, 1, xi.each)
            arguments = tuple(a.contiguous() for a in given)
            if xi.rows is not None:
                return one_point(*arguments, xi.rows)
            out = one_point(*arguments)
            return self._sampler.add_noise(query, out, arguments, xi, self._sample_draws) if gaussian else out

        return answer

    def _ask_general(self, query: Query, function: Callable[..., Any], xi: Sample | None, *given: Tensor) -> Any:
        arguments = tuple(plain(query.name, given, self.L, (self.dx, self.dy, self.dy), self.dtype))
        if xi is not None:
            arguments = self._sampler.spread(query, arguments, xi)
        points = count_points(*arguments)
        if not self.meter.any_on():
            return self._nothing(query, arguments)
        if xi is None:
            self.meter.charge(query.name, points, self.meter.whole[query.name])
        elif xi.each is not None:
            self.meter.charge(query.name, points, xi.each)
        else:
            sizes = torch.as_tensor(xi.size).cpu().double().numpy().reshape(-1)
            self.meter.charge_lanes(query.name, points, sizes)
        rows = () if xi is None or xi.rows is None else (xi.rows,)
        with torch.no_grad():
            out = self._evaluate(function, arguments, rows, points)
        if xi is not None and isinstance(self._instance.noise, Gaussian):
            out = self._sampler.add_noise(query, out, arguments, xi, self._sample_draws)
        return self._masked(out)

    def _evaluate(
        self, function: Callable[..., Any], arguments: tuple[Tensor, ...], rows: tuple[Any, ...], points: int
    ) -> Any:
        if self._asked.points == "stack" or all(a.dim() == 2 for a in arguments):
            # of points that are written out torch makes rows of one product; for others rounding.py promises nothing
            return function(*(a.contiguous() for a in arguments), *rows)
        shape = torch.broadcast_shapes(*(a.shape[:-2] for a in arguments))
        flat = [a.expand(*shape, *a.shape[-2:]).reshape(-1, *a.shape[-2:]) for a in arguments]
        answers = [function(*(a[p] for a in flat), *(r.at(p, points) for r in rows)) for p in range(points)]
        if isinstance(answers[0], tuple):
            return tuple(torch.stack(block).reshape(*shape, *block[0].shape) for block in zip(*answers, strict=True))
        return torch.stack(answers).reshape(*shape, *answers[0].shape)

    def _masked(self, out: Any) -> Any:
        """NaN in the lanes that are off: a method cannot use what it did not pay for."""
        mask = self.meter.mask
        if mask is None:
            return out
        if isinstance(out, tuple):
            return tuple(self._masked(block) for block in out)
        return out.masked_fill(~mask, torch.nan)

    def _nothing(self, query: Query, arguments: tuple[Tensor, ...]) -> Any:
        """Every lane is off: no charge, no work."""
        points = torch.broadcast_shapes(*(a.shape[:-2] for a in arguments))
        widths = query.widths(self.dx, self.dy)
        blocks = tuple(
            torch.full((*points, self.L, width), torch.nan, dtype=self.dtype, device=self.device) for width in widths
        )
        return blocks if len(blocks) > 1 else blocks[0]

    # ------------------------------------------------------------------------------------------------ samples

    def sample_f(self, size: int | Tensor, points: int | None = None, order: Order = "replacement") -> Sample:
        """`size` fresh data of f; `points=p` draws an independent Sample for each of p points."""
        return self._sample("f", size, points, order)

    def sample_g(self, size: int | Tensor, points: int | None = None, order: Order = "replacement") -> Sample:
        """`size` fresh data of g; `points=p` draws an independent Sample for each of p points."""
        return self._sample("g", size, points, order)

    def blocks_f(self, size: int) -> list[Sample]:
        """A fixed partition of f's data into blocks of `size`, the last one smaller."""
        return self._sampler.blocks("f", size, self.L)

    def blocks_g(self, size: int) -> list[Sample]:
        """A fixed partition of g's data into blocks of `size`, the last one smaller."""
        return self._sampler.blocks("g", size, self.L)

    def _sample(self, level: Level, size: int | Tensor, points: int | None, order: Order) -> Sample:
        noise = self._sampler.noise
        strict = order == "epoch" and self._is_in_lane_loop
        if order == "replacement" and isinstance(noise, FiniteSum) and noise.order == "epoch":
            # lanes whose batches and loops are as long as each other's keep step in any loop
            order, size = "epoch", _common(size)
        if strict or (order == "epoch" and self.meter.mask is not None):
            raise InvalidInput('order="epoch" in a loop of per-lane length: lanes would lose step with their passes')
        fixed = self._fixed_bounds.get(id(size))  # a parameter: its sizes were looked at when the pack was made
        bounds = bounds_of(level, size) if fixed is None or fixed[1] < 1 else fixed[1:]
        return self._sampler.draw(level, size, bounds, points, order, *self._address(), self._sample_draws)

    # ------------------------------------------------------------------------------------------------ draws

    def _seed(self, seeds: Sequence[int]) -> None:
        self._draws = self._sample_draws = Draws(seeds)
        if self._part is not None and self._part.rank > 0:
            self._sample_draws = Draws([seed ^ fold("agent", (self._part.rank,)) for seed in seeds])

    def normal(self, *shape: int) -> Tensor:
        """Standard normals: `normal(*points, d)` is (*points, L, d)."""
        return self._draw(self._draws.normal, shape)

    def uniform(self, *shape: int) -> Tensor:
        """Uniforms in (0, 1): `uniform(*points, d)` is (*points, L, d)."""
        made = self._draw(self._draws.uniform, shape)
        return made if self.dtype == torch.float64 else made.clamp(max=1 - torch.finfo(self.dtype).eps / 2)

    def _draw(self, law: Callable[..., Any], shape: tuple[int, ...]) -> Tensor:
        if not shape or min(shape) < 1:
            raise InvalidInput(f"a draw needs the size of its last axis, 1 or more; got shape {shape}")
        place, indices, longest = self._address()
        made = law("method", place, indices, int(np.prod(shape)), longest)
        drawn = torch.as_tensor(made).reshape(*shape, self.L).movedim(-1, -2)
        return drawn.to(self.dtype).contiguous().to(self.device)

    # ------------------------------------------------------------------------------------------------ agents

    @overload
    def mean(self, first: Tensor, /) -> Tensor: ...
    @overload
    def mean(self, first: Tensor, /, *rest: Tensor) -> tuple[Tensor, ...]: ...
    def mean(self, first: Tensor, /, *rest: Tensor) -> Tensor | tuple[Tensor, ...]:
        """The mean over agents, one round for all tensors together; on one machine, the tensors themselves."""
        if self.network is None:
            return (first, *rest) if rest else first
        self.meter.message(sum(t.shape[-1] * t.element_size() for t in (first, *rest)))
        first, *others = self.network.mean((first, *rest))
        return (first, *others) if others else first

    # ------------------------------------------------------------------------------------------------ for the runner

    def take(self, lanes: Sequence[int], real: Sequence[bool]) -> Instance:
        """Only these lanes, and the instance that serves them. Draws are addressed, so nothing of theirs has to be kept."""
        index = torch.tensor(lanes)
        self.meter.take(lanes, real)
        self._seed([self.seeds[lane] for lane in lanes])
        self._narrow(len(lanes))
        instance = self._instance.take(index)
        if instance is not self._instance:
            self.meter.restart_passes()
        self._plug(instance)
        return instance

    def charge_steps(self, spent: Tally) -> None:
        """Steps that were made past the door, compiled: on the meter and in the count below it, as asking puts them there."""
        self.meter.charge_steps(spent)
        self._asked.passes[:] = [a + b for a, b in zip(self._asked.passes, spent.passes, strict=True)]

    def trace(self) -> None:
        """From now on a step is given as a tensor, and what is drawn in it follows from that."""
        self._draws = self._sample_draws = TracedDraws(self.seeds)

    @property
    def seeds(self) -> list[int]:
        return [int(seed) for seed in self._draws.seeds]

    @property
    def counts_agree(self) -> bool:
        return self.meter.passes == self._asked.passes

    def count_differences(self) -> str:
        """Where the two counts differ, in words."""
        counts = zip(QUERIES, self.meter.passes, self._asked.passes, strict=True)
        return ", ".join(
            f"{query}: {above} at the door, {below} below it" for query, above, below in counts if above != below
        )

    def _refuse_copy(self, *_: object) -> NoReturn:
        raise TypeError("an oracle cannot be copied or pickled: a copy would be a second, unread meter")

    __copy__ = __deepcopy__ = __reduce__ = __reduce_ex__ = _refuse_copy


def _common(size: int | Tensor) -> int | Tensor:
    """One number for all lanes, if it is the same for all."""
    if isinstance(size, int) or not bool((size == size.reshape(-1)[0]).all()):
        return size
    return int(size.reshape(-1)[0])
