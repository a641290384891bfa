"""An instance: the two functions of a built problem, with their derivatives and what is known about them."""

from __future__ import annotations

import copy
import functools
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from bilevelbench.errors import InvalidInput, Peeked, suggestion
from bilevelbench.model.agents import Agents
from bilevelbench.model.constants import Constant, Constants, exact
from bilevelbench.model.constraints import Projection
from bilevelbench.model.derivatives import derive
from bilevelbench.model.noise import Exact, Noise, levels, sizes
from bilevelbench.model.queries import QUERIES, ROW

FAR = 1e6  # sizes of the start: farther away x has run away, whatever the problem
_ANALYTIC = frozenset(query.name for query in QUERIES.values() if query.order > 0)


class _Hidden(threading.local):
    now = False

    def __enter__(self) -> None:
        self.now = True

    def __exit__(self, *_: object) -> None:
        self.now = False


#: A context around the code of a method, which may have found the instance on some way past the oracle; one for each thread.
closed_forms_hidden = _Hidden()


@dataclass(frozen=True)
class Reference:
    """Closed forms over (*points, L, .): exact, so the evaluator needs no solve. A method that asks for one is `invalid`."""

    y_star: Callable[[Tensor], Tensor]
    phi: Callable[[Tensor], Tensor]
    grad_phi: Callable[[Tensor], Tensor]
    hess_phi: Callable[[Tensor], Tensor] | None = None

    def __post_init__(self) -> None:
        for name in ("y_star", "phi", "grad_phi", "hess_phi"):
            if (function := getattr(self, name)) is not None:
                object.__setattr__(self, name, _for_evaluators(name, function))


def _for_evaluators(name: str, function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    @functools.wraps(function)
    def asked(x: Tensor) -> Tensor:
        if closed_forms_hidden.now:
            raise Peeked(
                f"the method asked for {name} of the problem's Reference, which is for evaluations alone; ask the oracle"
            )
        return function(x)

    return asked


class Instance:
    """A problem that is built: f and g over lanes, `(*P, L, dx), (*P, L, dy) -> (*P, L, 1)`.

    Derivatives that the problem does not bring come from autograd, the same way for everyone. Under `FiniteSum` every
    function takes a last argument `rows`, None for the whole sum. `points="stack"` promises that the functions take a
    point axis fast (dense data); with "loop" the oracle calls point by point. An instance whose data carry the lane
    axis gives `take`. One that is a mean over `agents` says what each of them holds; only a distributed method asks
    them. Beyond `x_limit` in some coordinate x has run away to where phi is flat and a small gradient says nothing:
    the trial counts as diverged. A problem that does not say where that is has it at `FAR` (1 + |x0|), with the
    largest coordinate of its start. `mu_at(x)`, `(*P, L, dx) -> (*P, L, 1)`, is the strong convexity of g(x, .) at
    this x, where it depends on x: with it, or with a constant mu, the evaluator can say how far off a hypergradient is
    that it had to solve for. `pictures(x, y)`, of one lane, (dx,) and (dy,), are images of the answer for reports: by
    title (k, height, width), from 0, black, to 1, white. `project(x)` confines x to a set: `Box`, `Simplex`, `Ball`,
    or a function of (L, dx) that returns the nearest points. Its functions count their own passes: a second count,
    which has to agree with the oracle's meter.
    """

    def __init__(
        self,
        f: Callable[..., Tensor],
        g: Callable[..., Tensor],
        x0: Tensor,
        y0: Tensor,
        constants: Mapping[str, Constant | float] | Constants = Constants({}),  # noqa: B008 (immutable)
        noise: Noise = Exact(),  # noqa: B008 (immutable)
        reference: Reference | None = None,
        points: Literal["loop", "stack"] = "loop",
        metrics: Mapping[str, Callable[[Tensor, Tensor], Tensor]] | None = None,
        pictures: Callable[[Tensor, Tensor], Mapping[str, Tensor]] | None = None,
        take: Callable[[Tensor], Instance] | None = None,
        agents: Agents | None = None,
        x_limit: float | None = None,
        mu_at: Callable[[Tensor], Tensor] | None = None,
        project: Projection | None = None,
        **derivatives: Callable[..., Any],
    ) -> None:
        for name in derivatives:
            if name not in _ANALYTIC:
                raise InvalidInput(f"an instance has no derivative {name!r}{suggestion(name, _ANALYTIC)}")
        self.x0, self.y0 = x0.detach(), y0.detach()
        self.dx, self.dy = x0.shape[-1], y0.shape[-1]
        given = constants.given if isinstance(constants, Constants) else constants
        of_noise = {name: exact(value) for name, value in {**levels(noise), **sizes(noise)}.items()}
        self.constants = Constants({**of_noise, **given}, dim_x=x0.shape[-1])
        self.noise, self.reference, self.points = noise, reference, points
        self.metrics, self.pictures = dict(metrics or {}), pictures
        self.agents, self.mu_at, self.project = agents, mu_at, project
        self.is_flat_beyond = x_limit is not None
        self.is_bent = False  # g was seen to have negative curvature in y: there is no phi to claim
        usual = FAR * (1 + self.x0.abs().amax(-1, keepdim=True))  # of each lane, if the starts differ
        self.x_limit = usual if x_limit is None else torch.full_like(usual, x_limit)
        self.analytic = frozenset(derivatives)
        self.passes = [0] * len(QUERIES)
        self._take = take
        self._lanes: int | None = None
        self._raw = derive(f, g, derivatives)  # without a count
        self.functions = {query: self._counted(query, self._raw[query]) for query in QUERIES}

    def expect(self, lanes: int) -> dict[str, Callable[..., Any]]:
        """Start to count for an oracle of this many lanes: one call is then `lanes` rows, whatever the oracle counts.

        Returns the functions for its usual call, at one point; they count the rows that arrive.
        """
        self._lanes = lanes
        return {
            name: (self._counted_product if query.takes_vector else self._counted_gradient)(
                name, self._raw[name], lanes
            )
            for name, query in QUERIES.items()
        }

    def _counted(self, query: str, function: Callable[..., Any]) -> Callable[..., Any]:
        passes, row = self.passes, ROW[query]

        def counted(x: Tensor, y: Tensor, *rest: Any) -> Any:
            passes[row] += self._count(x, y, *rest)
            return function(x, y, *rest)

        return counted

    def _counted_gradient(self, query: str, function: Callable[..., Any], lanes: int) -> Callable[..., Any]:
        passes, row, numbers_x, numbers_y = self.passes, ROW[query], lanes * self.dx, lanes * self.dy

        def counted(x: Tensor, y: Tensor, *rows: Any) -> Any:
            passes[row] += 1 if x.numel() == numbers_x and y.numel() == numbers_y else self._count(x, y)
            return function(x, y, *rows)

        return counted

    def _counted_product(self, query: str, function: Callable[..., Any], lanes: int) -> Callable[..., Any]:
        passes, row, numbers_x, numbers_y = self.passes, ROW[query], lanes * self.dx, lanes * self.dy

        def counted(x: Tensor, y: Tensor, v: Tensor, *rows: Any) -> Any:
            one = x.numel() == numbers_x and y.numel() == v.numel() == numbers_y
            passes[row] += 1 if one else self._count(x, y, v)
            return function(x, y, v, *rows)

        return counted

    def _count(self, *arguments: Any) -> int:
        """Calls that these arguments are worth, by the rows that arrive."""
        shapes = {a.shape[:-1] for a in arguments if isinstance(a, Tensor)}
        shape = shapes.pop() if len(shapes) == 1 else torch.broadcast_shapes(*shapes)
        return -(-shape.numel() // (self._lanes or shape[-1]))

    def __getattr__(self, name: str) -> Callable[..., Any]:
        try:
            return self.__dict__["functions"][name]  # type: ignore[no-any-return]
        except KeyError:
            raise AttributeError(f"Instance has no attribute {name!r}") from None

    def away(self, x: Tensor) -> Tensor:
        """(L, 1): where x has run away, or is not finite."""
        return ~(x.abs() <= self.x_limit).all(-1, keepdim=True)

    @contextmanager
    def uncounted(self) -> Iterator[None]:
        """The evaluator's passes are left out of this count."""
        before = list(self.passes)
        try:
            yield
        finally:
            self.passes[:] = before

    def apart(self) -> Instance:
        """The same functions with a count of their own, for another oracle."""
        other = copy.copy(self)
        other.passes, other._lanes = [0] * len(QUERIES), None
        other.functions = {query: other._counted(query, other._raw[query]) for query in QUERIES}
        return other

    def take(self, lanes: Tensor) -> Instance:
        """Only these lanes. Data without a lane axis serve any lanes."""
        return self if self._take is None else self._take(lanes)


def count_points(*arguments: Any) -> int:
    """How many points a call carries: the axes left of the lane, broadcast."""
    shapes = {a.shape[:-2] for a in arguments if isinstance(a, Tensor) and a.ndim > 2}
    if len(shapes) == 1:  # the usual case; torch's broadcasting of shapes is slow
        return int(shapes.pop().numel())
    return int(torch.broadcast_shapes(*shapes).numel()) if shapes else 1
