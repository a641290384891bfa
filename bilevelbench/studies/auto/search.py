"""The search before `solve` goes on with one method: a line search for the x-step, and a race with successive halving.

    1. The lower level is solved for a little at x0, and d is the hypergradient there. Points x0 - eta d, with eta over decades
       of (1 + |x0|)/|d| (root mean squares), are judged (`judge.py`); the best of them is where everyone starts.
    2. Every setting gets the same cost, a few steps of the first method; the best third goes on from its own state with
       `_FACTOR` times as much; the best of these is chosen and goes on from its own state.

The lanes of one method are one pack. A setting's own steps are at most `SHARE` of the steps of the whole run, and the search
takes at most `SHARE` of its budget and of its seconds.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from bilevelbench.engine.loop import Begun
from bilevelbench.engine.setup import PreparedPack
from bilevelbench.errors import BudgetExhausted
from bilevelbench.model.algorithm import Algorithm
from bilevelbench.model.instance import Instance
from bilevelbench.model.lanes import take
from bilevelbench.oracle.meter import Spent
from bilevelbench.plan.trial import Budget
from bilevelbench.studies.auto.contenders import Candidate, Contender
from bilevelbench.studies.auto.judge import Judge

SHARE = 0.25

_MOVES = (1.0, 0.1, 0.01, 0.001)  # of x, in its own size: how far the first step goes
_LOWER = 3  # products of each of the two lower-level steps before f is looked at
_LONGER = (4, 8, 16, 32)  # of them at x0, until f has settled
_STEPS = 2  # of the first method, before the settings are judged for the first time
_FACTOR = 3  # times as much in the next round, for one setting in so many
_ROWS = 1024  # data of a call of the judge, at most

Tell = Callable[[float | None, str], None]


@dataclass(frozen=True)
class Winner:
    """The chosen method, where it has come to, what the search has spent, what it has tried, and a sentence on it.

    `steps` are the method's x-steps that were found by the search.
    """

    method: Algorithm
    begun: Begun
    spent: Spent
    table: pd.DataFrame
    message: str
    steps: tuple[str, ...]
    is_interrupted: bool = False


@dataclass(eq=False)
class _Runner:
    """The settings of one method: a lane each."""

    settings: list[Candidate]
    pack: PreparedPack
    state: Any
    step: int = 0
    last: float = 0.0  # the cost of its last step
    gone: Spent = field(default_factory=Spent)  # by lanes that have left
    told: list[float] = field(default_factory=list)  # the cost of each lane when it was last asked for

    def __post_init__(self) -> None:
        self.told = [0.0] * len(self.settings)

    @property
    def costs(self) -> list[float]:
        meter = self.pack.oracle.meter
        meter.flush()
        return [float(cost) for cost in meter.cost()]

    @property
    def spent(self) -> Spent:
        return self.gone + self.pack.oracle.meter.spent()

    def advance(self, most: float, steps: int, until: float) -> None:
        """Up to a cost and a number of steps, as far as whole steps fit; one step at least, if the budget covers it."""
        while self.step < steps and time.perf_counter() < until:
            before = max(self.costs)
            if self.step and before + self.last > most:
                return
            try:
                state = self.pack.step(self.step + 1, self.state)
            except BudgetExhausted:
                return
            if self.pack.oracle.meter.has_ghosts:
                return
            self.state, self.step, self.last = state, self.step + 1, max(self.costs) - before

    def news(self) -> list[float]:
        """What each lane has spent since this was asked last."""
        before, self.told = self.told, self.costs
        return [now - then for now, then in zip(self.told, before, strict=True)]

    def keep(self, stay: Sequence[int]) -> None:
        """Only these lanes go on."""
        before = self.spent
        index = self.pack.narrow(stay)
        left = self.pack.oracle.meter.spent()
        self.gone = Spent(before.calls - left.calls, before.samples - left.samples)
        self.state = take(self.state, index)
        self.settings, self.told = [self.settings[i] for i in stay], [self.told[i] for i in stay]


_Best = tuple[_Runner, Candidate, float]


class Search:
    """`limits` are those of the whole run, which began at `began`."""

    def __init__(self, instance: Instance, seed: int, limits: Budget, began: float, tell: Tell) -> None:
        self._instance, self._seed, self._limits, self._tell = instance, seed, limits, tell
        self._until = began + SHARE * (limits.seconds or math.inf)
        self._judge = Judge(instance, seed, _ROWS)
        self._runners: list[_Runner] = []  # also those that have left
        self._rows: list[dict[str, Any]] = []
        self._start = math.nan  # the score of x0
        self._best: _Best | None = None  # after the last round

    @torch.no_grad()
    def __call__(self, contenders: Sequence[Contender]) -> Winner:
        """Ctrl-C ends it with what there is."""
        try:
            return self._found(*self._searched(contenders))
        except KeyboardInterrupt:
            found = self.unsearched(contenders) if self._best is None else self._found(*self._best)
            return dataclasses.replace(found, is_interrupted=True)

    @torch.no_grad()
    def unsearched(self, contenders: Sequence[Contender]) -> Winner:
        """The first setting at the start, with a short step."""
        x, y = self._given_start()
        settings = contenders[0].settings(_size(x) * _MOVES[-2], self._instance.constants)
        runner = self._runner(settings[:1], x, y, math.inf)
        return self._found(runner, settings[0], math.nan)

    @torch.no_grad()
    def gentler(self, found: Winner, spent: Spent) -> Winner:
        """From where the search has ended with a tenth of the x-step, after a run that has diverged and cost `spent`."""
        steps = {name: getattr(found.method, name) / 10 for name in found.steps}
        method = type(found.method).model_validate({**found.method.given(), **steps})
        pack = PreparedPack(self._instance.apart(), [method], [self._seed])
        state = pack.init(*method.point(found.begun.state))
        told = ", ".join(f"{name}={value:.3g}" for name, value in steps.items())
        return dataclasses.replace(
            found, method=method, begun=Begun(state, found.begun.step), spent=spent + pack.oracle.meter.spent(),
            message=f"{found.message}; it diverged from there, and was run again with {told}",
        )  # fmt: skip

    def _searched(self, contenders: Sequence[Contender]) -> _Best:
        x, y = self._given_start()
        step = 1.0
        if any(one.steps for one in contenders):
            self._tell(None, "looking for an x-step")
            x, y, step = self._line_search(x, y)
        groups = [one.settings(step, self._instance.constants) for one in contenders]
        lanes = sum(map(len, groups))
        room = self._left / lanes - self._judge.price(_LOWER)
        if lanes == 1 or self._is_over or room < self._judge.price(_LOWER):  # a step costs about as much
            groups, lanes, room = [groups[0][:1]], 1, math.inf
        runners = [self._runner(one, x, y, room) for one in groups]
        return (runners[0], groups[0][0], math.nan) if lanes == 1 else self._race(runners)

    @property
    def _spent(self) -> Spent:
        return sum((one.spent for one in self._runners), self._judge.spent)

    @property
    def _left(self) -> float:
        """What the search may still cost."""
        return SHARE * self._limits.most - self._spent.cost

    @property
    def _is_over(self) -> bool:
        return time.perf_counter() >= self._until

    # ------------------------------------------------------------------------------------------------ the x-step

    def _given_start(self) -> tuple[Tensor, Tensor]:
        instance = self._instance
        x, y = instance.x0.reshape(1, -1), instance.y0.reshape(1, -1)
        return (x if instance.project is None else instance.project(x)), y

    def _line_search(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, float]:
        """The best point along the hypergradient, its y, and the step that leads there; x itself if none is better."""
        size = _size(x)
        if self._left < (4 + len(_MOVES)) * self._judge.price(_LOWER):
            return x, y, size * _MOVES[-2]
        for products in _LONGER:  # what starts far from y*(x0) would say more of the lower level than of x
            seen = self._judge(x, y, products)
            self._start, y = seen.scores[0], seen.y
            if seen.is_settled or self._left < 2 * len(_MOVES) * self._judge.price(2 * products):
                break
        d = self._judge.hypergradient(x, y)
        self._row(0, "x0", 0, self._judge.spent.cost, self._start)
        length = float(torch.linalg.vector_norm(d))
        if not 0 < length < math.inf:
            return x, y, size * _MOVES[-2]
        etas = [move * size / length for move in _MOVES]
        points = torch.cat([x - eta * d for eta in etas])
        if self._instance.project is not None:
            points = self._instance.project(points)
        seen = self._judge(points, y.expand(len(etas), -1).contiguous(), _LOWER)
        for eta, score in zip(etas, seen.scores, strict=True):
            self._row(1, f"x0 - {eta:.3g} d", 0, seen.cost, score)
        best = min(range(len(etas)), key=seen.scores.__getitem__)
        if not seen.scores[best] < self._start:
            return x, y, etas[-1]
        self._rows[1 + best]["goes_on"] = True
        return points[best : best + 1], seen.y[best : best + 1], etas[best]

    # ------------------------------------------------------------------------------------------------ the race

    def _runner(self, settings: list[Candidate], x: Tensor, y: Tensor, budget: float) -> _Runner:
        lanes = len(settings)
        methods = [setting.method for setting in settings]
        pack = PreparedPack(self._instance.apart(), methods, [self._seed] * lanes, [budget] * lanes)
        runner = _Runner(settings, pack, pack.init(x.expand(lanes, -1).clone(), y.expand(lanes, -1).clone()))
        self._runners.append(runner)
        return runner

    def _race(self, runners: list[_Runner]) -> _Best:
        first = runners[0]
        few, many = self._own_steps
        first.advance(math.inf, min(_STEPS, few), self._until)
        most = max(first.costs)  # for everyone
        ranks = self._round(2, runners, most, few)
        going = ranks[: max(2, len(ranks) // _FACTOR)]
        price = len(going) * (_FACTOR * most + self._judge.price(_LOWER))
        if not self._is_over and many > few and price <= self._left:
            runners = self._halved(runners, {(n, i) for _, n, i in going})
            self._round(3, runners, (1 + _FACTOR) * most, many)
        assert self._best is not None  # there was a round
        return self._best

    @property
    def _own_steps(self) -> tuple[int, int]:
        """How many steps a setting may have made after each of the two rounds."""
        if self._limits.steps is None:
            return 2**31, 2**31 + 1
        many = max(1, int(SHARE * self._limits.steps))
        return max(1, many // (1 + _FACTOR)), many

    def _round(self, number: int, runners: Sequence[_Runner], most: float, steps: int) -> list[tuple[float, int, int]]:
        """The scores after it, each with its runner and lane, the best first."""
        for one in runners:
            self._tell(None, f"round {number - 1}: {len(one.settings)} settings of {one.settings[0].method.name}")
            one.advance(most, steps, self._until)
        points = [one.pack.algorithm.point(one.state) for one in runners]
        seen = self._judge(torch.cat([x for x, _ in points]), torch.cat([y for _, y in points]), _LOWER)
        ranks, scores = [], iter(seen.scores)
        for n, one in enumerate(runners):
            for i, (setting, cost) in enumerate(zip(one.settings, one.news(), strict=True)):
                score = next(scores)
                ranks.append((score if one.step else math.inf, n, i))
                self._row(number, setting.title, one.step, cost + seen.cost, score)
        ranks.sort()
        score, n, i = ranks[0]
        self._best = runners[n], runners[n].settings[i], score
        return ranks

    def _halved(self, runners: Sequence[_Runner], going: Collection[tuple[int, int]]) -> list[_Runner]:
        stay = [[i for i in range(len(one.settings)) if (n, i) in going] for n, one in enumerate(runners)]
        kept = [(one, lanes) for one, lanes in zip(runners, stay, strict=True) if lanes]
        for one, lanes in kept:
            one.keep(lanes)
        self._mark([setting.title for one, _ in kept for setting in one.settings])
        return [one for one, _ in kept]

    # ------------------------------------------------------------------------------------------------ what is told

    def _row(self, number: int, setting: str, steps: int, cost: float, score: float) -> None:
        row = {"round": number, "setting": setting, "steps": steps, "cost": cost, "score": score, "goes_on": False}
        self._rows.append(row)

    def _mark(self, titles: Collection[str]) -> None:
        """In the last round."""
        for row in self._rows:
            if row["round"] == self._rows[-1]["round"] and row["setting"] in titles:
                row["goes_on"] = True

    def _found(self, runner: _Runner, setting: Candidate, score: float) -> Winner:
        spent = self._spent
        if self._rows:
            self._mark([setting.title])
        state = take(runner.state, torch.tensor([runner.settings.index(setting)]))
        table = pd.DataFrame(self._rows, columns=["round", "setting", "steps", "cost", "score", "goes_on"])
        said = self._sentence(setting, score, spent)
        return Winner(setting.method, Begun(state, runner.step), spent, table, said, setting.steps)

    def _sentence(self, setting: Candidate, score: float, spent: Spent) -> str:
        tried = len({row["setting"] for row in self._rows if row["round"] > 1})
        if not tried:
            why = (
                "there was room for no search"
                if self._left < math.inf or self._is_over
                else "there was nothing to search"
            )
            return f"{setting.title} was taken, as {why}"
        said = f"{setting.title} was the best of {tried} settings: f was {score:.4g} after further lower-level steps"
        if not math.isnan(self._start):
            said += f", {self._start:.4g} at x0" + ("" if score < self._start else ", so none was better than x0")
        return f"{said}; the search cost {spent.cost:,.0f}"


def _size(x: Tensor) -> float:
    """1 + |x|, as a root mean square, for a vector of that many numbers."""
    return (1 + float(x.square().mean().sqrt())) * math.sqrt(x.numel())
