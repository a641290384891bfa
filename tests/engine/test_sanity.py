"""Mistakes of newcomers: each ends in a sentence that says what is wrong and what to write instead."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
from pydantic import PositiveInt
from torch import Tensor

import bilevelbench
from bilevelbench import Algorithm, Instance, Oracle, PerLane, Problem, dot
from bilevelbench.engine.lane import SEEN
from bilevelbench.plan.trial import Schedule


@dataclass(frozen=True)
class State:
    x: Tensor
    y: Tensor


@dataclass(frozen=True)
class Odd:
    x: Tensor
    y: Tensor
    odd: object


class Naive(Algorithm):
    name = "naive"
    uses = frozenset({"grad_f", "grad_g"})
    eta: float = 0.1
    K: PerLane[PositiveInt] = 2
    mistake: str = ""

    def init(self, x0: Tensor, y0: Tensor, oracle: Oracle) -> object:
        match self.mistake:
            case "none":
                return None
            case "dict":
                return {"x": x0, "y": y0}
            case "list":
                return Odd(x0, y0, [1])
            case "flat":
                return Odd(x0, y0, torch.zeros(oracle.L))
            case "narrow":
                return State(x0[:, :2], y0)
        return State(x0, y0)

    def step(self, s: State, oracle: Oracle) -> object:
        match self.mistake:
            case "range":
                list(range(self.K))
            case "int":
                int(self.K)
            case "if":
                if self.eta > 0:
                    pass
            case "math":
                math.sqrt(self.eta)
            case "step_none":
                return None
            case "repeat":
                list(oracle.repeat(2.5))
            case "mask":
                list(oracle.repeat(torch.ones(oracle.L)))
        f_x, f_y = oracle.grad_f(s.x, s.y)
        return State(s.x - self.eta * f_x, s.y - self.eta * f_y)

    def extras(self, s: State) -> dict[str, Tensor]:
        one = torch.ones(len(s.x), 1, dtype=s.x.dtype)
        return EXTRAS.get(self.mistake, lambda *_: {})(one, s.x)


#: What a method may not put on its curve.
EXTRAS = {
    "extras": lambda one, x: {"n": 1.0},
    "measured": lambda one, x: {"grad_phi": 0 * one},
    "counted": lambda one, x: {"cost": 0 * one},
    "control": lambda one, x: {"a\x1b[31m": one},
    "half": lambda one, x: {"\udcff": one},
    "number": lambda one, x: {3: one},
    "long": lambda one, x: {"n" * 61: one},
    "many": lambda one, x: {f"n{i}": one for i in range(101)},
}


@pytest.mark.parametrize(
    ("mistake", "said"),
    [
        ("range", "oracle.repeat(self.K)"),
        ("int", "is an (L, 1) tensor inside `step`"),
        ("if", "`torch.where`"),
        ("math", "`torch.sqrt`"),
        ("none", "`init` returned None"),
        ("step_none", "`step` returned None"),
        ("dict", "cannot be split into lanes"),
        ("list", "not list"),
        ("flat", "keep it as (L, 1)"),
        ("narrow", "x is (4, 2); (4, 5) is wanted"),
        ("repeat", "a loop length is a whole number or an (L, 1) tensor; got 2.5"),
        ("mask", "a loop length is (4, 1), one number per lane; got a tensor of shape (4,)"),
        ("extras", "`n` of the method has to be a tensor of shape (4, 1)"),
        ("measured", "`extras` of the method has the column 'grad_phi', which is measured and not told"),
        ("counted", "`extras` of the method has the column 'cost', which is measured and not told"),
        ("control", "has the column 'a\\x1b[31m'; name it with at most 60 letters, digits and _"),
        ("half", "has the column '\\udcff'; name it with"),
        ("number", "has the column '3'; name it with"),
        ("long", "name it with at most 60 letters"),
        ("many", "has 101 columns; at most 100 are kept"),
    ],
)
def test_mistake_in_a_method_is_explained(mistake, said):
    row = bilevelbench.run(Naive(mistake=mistake), "quadratic[dim_x=5]", steps=2).runs.iloc[0]
    assert row["status"] == "error"
    assert said in row["message"]


def test_error_names_the_line_of_the_plugin():
    row = bilevelbench.run(Naive(mistake="range"), "quadratic[dim_x=5]", steps=2).runs.iloc[0]
    assert "(test_sanity.py:" in row["message"]


class Careless(Problem):
    name = "careless"
    mistake: str = ""

    def build(self) -> Instance:
        x0, y0 = torch.ones(2), torch.ones(3)
        f, extra = (lambda x, y: 0.5 * dot(y, y) + 0.5 * dot(x, x)), {}
        g = lambda x, y: 0.5 * dot(y, y) - dot(x, y[..., :2])  # noqa: E731
        match self.mistake:
            case "nothing":
                return None
            case "scalar":
                f = lambda x, y: 0.5 * (y * y).sum()  # noqa: E731
            case "flat":
                g = lambda x, y: (y * y).sum(-1)  # noqa: E731
            case "derivative":
                extra = {"grad_g_y": lambda x, y: dot(y, y)}
            case "numpy":
                f = lambda x, y: 1.0  # noqa: E731
            case "dtype":
                f = lambda x, y: dot(y, y).float()  # noqa: E731
            case "start":
                x0 = [1.0, 2.0]
            case "measured":
                extra = {"metrics": {"phi": lambda x, y: 0 * dot(x, x)}}
        return Instance(
            f=f, g=g, x0=torch.as_tensor(x0), y0=y0, constants={"L_g": 1.0, "mu": 1.0, "L_phi": 1.0}, **extra
        )


@pytest.mark.parametrize(
    ("mistake", "said"),
    [
        ("nothing", "`build` returned NoneType, not an Instance"),
        ("scalar", "f returned shape () for 3 lanes; (3, 1) is wanted"),
        ("flat", "g returned shape (3,) for 3 lanes"),
        ("derivative", "grad_g_y returned shape (3, 1) for 3 lanes; (3, 3) is wanted"),
        ("numpy", "f returned float, not a tensor"),
        ("dtype", "f returned torch.float32 for inputs of torch.float64"),
        ("measured", "`metrics` of the problem has the column 'phi', which is measured and not told"),
    ],
)
def test_mistake_in_a_problem_is_explained(mistake, said):
    row = bilevelbench.run("f2ba", Careless(mistake=mistake), steps=2).runs.iloc[0]
    assert row["status"] == "error"
    assert said in row["message"]


def test_careful_problem_runs():
    assert bilevelbench.run("f2ba", Careless(), steps=2).runs.iloc[0]["status"] == "budget"


class Kicked(Algorithm):
    """A kick in the lanes whose x is small: an `if` for lanes."""

    name = "kicked"
    uses = frozenset({"grad_f"})
    eta: float = 0.1
    limit: float = 1.0
    python_if: bool = False

    def init(self, x0: Tensor, y0: Tensor, oracle: Oracle) -> State:
        return State(x0, y0)

    def step(self, s: State, oracle: Oracle) -> State:
        x, small = s.x, bilevelbench.norm(s.x) < self.limit
        if self.python_if:
            if bool(small.any()):
                x = bilevelbench.keep(small, x + oracle.normal(oracle.dx), x)
        else:
            for on in oracle.when(small):
                x = bilevelbench.keep(on, x + oracle.normal(oracle.dx), x)
        f_x, f_y = oracle.grad_f(x, s.y)
        return State(x - self.eta * f_x + 0.01 * oracle.normal(oracle.dx), s.y - self.eta * f_y)


@pytest.mark.parametrize("python_if", [False, True])
def test_when_keeps_a_lane_apart_from_its_pack_and_a_python_if_does_not(python_if):
    methods = [Kicked(limit=limit, python_if=python_if) for limit in (1e-9, 4.0)]
    packed = bilevelbench.run(methods, "quadratic[dim_x=3]", steps=8).runs["last_grad_phi"].tolist()
    alone = [bilevelbench.run(m, "quadratic[dim_x=3]", steps=8).runs["last_grad_phi"].item() for m in methods]
    assert (packed == alone) is not python_if


@pytest.mark.parametrize(
    "wrong", [{"grad_phi": torch.zeros(4, 1)}, {"n": torch.zeros(0, 1)}], ids=["measured", "shape"]
)
def test_extras_are_looked_at_every_time(monkeypatch, wrong):
    """A method may answer differently when the first step is over."""
    asked = []
    monkeypatch.setitem(EXTRAS, "late", lambda *_: wrong if len(asked) > 6 else asked.append(1) or {})
    row = bilevelbench.run(Naive(mistake="late"), "quadratic[dim_x=5]", steps=20).runs.iloc[0]
    assert (row["status"], len(asked)) == ("error", 7)
    assert f"`{next(iter(wrong))}`" in row["message"].replace("'", "`")


def test_every_measured_column_is_known_as_such():
    """`ba` has no extras of its own; all that can be measured is."""
    schedule = Schedule(mean=True, second_order=True)
    for problem, metrics in (("saddle", {"escaped"}), ("quadratic_sum", {"distance"})):
        curve = bilevelbench.run("ba", problem, steps=1, schedule=schedule).curve
        assert set(curve.columns) - metrics <= SEEN
        assert len(curve.columns) > 12
