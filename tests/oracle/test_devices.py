"""No tensor is made on another device than x: tried on the `meta` device, and by whoever makes a tensor at all."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from bilevelbench import Additive, Ball, Box, FiniteSum, Instance, Schedule, Simplex, Table, dot, keep, solve
from bilevelbench.engine.setup import pack_algorithm
from bilevelbench.model.constants import Constant, Constants
from bilevelbench.model.lanes import take
from bilevelbench.model.noise import Rows
from bilevelbench.model.queries import QUERIES
from bilevelbench.oracle.oracle import Oracle

META = torch.device("meta")


def loss(x: Tensor, y: Tensor, rows: Rows | None = None) -> Tensor:
    value = dot(y, y) * (1 + dot(x, x))
    return value if rows is None else value * (rows.weight * (rows.index + 1)).sum(-1, keepdim=True)


def on_meta(noise: Any) -> Oracle:
    start = torch.zeros(1, 3, dtype=torch.float32, device=META)
    return Oracle(Instance(f=loss, g=loss, x0=start, y0=start, noise=noise), frozenset(QUERIES), [0, 1, 2, 3])


@pytest.mark.parametrize("noise", [Additive(0.1, 0.2, 0.3), FiniteSum(7, 9)], ids=["additive", "finite sum"])
def test_answers_draws_and_samples_are_where_the_problem_is(noise):
    oracle = on_meta(noise)
    oracle.begin_step(1)
    x = y = torch.zeros(4, 3, dtype=torch.float32, device=META)
    assert oracle.normal(2, 3).device == oracle.uniform(5).device == META
    with torch.no_grad():
        for name, query in QUERIES.items():
            sample = oracle.sample_f(2) if query.level == "f" else oracle.sample_g(2)
            for xi in (None, sample):
                answer = getattr(oracle, name)(*((x, y, y) if query.takes_vector else (x, y)), xi)
                assert all(block.device == META for block in (answer if isinstance(answer, tuple) else (answer,)))


@pytest.mark.parametrize("order", ["replacement", "epoch", "block"])
def test_rows_are_where_the_problem_is(order):
    oracle = on_meta(FiniteSum(7, 9))
    oracle.begin_step(1)
    samples = [oracle.sample_f(2, order=order), *oracle.blocks_g(4)]
    assert {t.device for s in samples for t in (s.rows.index, s.rows.weight)} == {META}


def test_helpers_go_where_their_input_is():
    a = torch.zeros(4, 3, device=META)
    assert keep(torch.ones(4, 1, dtype=torch.bool), a, a).device == META
    assert take(a, torch.tensor([0, 2])).device == META
    for kind in (Box(0, 1), Simplex(), Ball(1.0)):
        assert kind(a).device == META
    assert Constants({"mu": Constant((1.0, 2.0))}).of_lanes("mu", a).device == META
    assert Table(torch.zeros(5, 4, 3, device=META)).take(torch.tensor([1])).rows.device == META


def test_parameters_of_a_pack_are_where_it_is():
    from bilevelbench.discovery.entry import make
    from bilevelbench.discovery.registry import registry

    method = make(registry().algorithm("f2ba"), {"eta_x": 0.1, "a_y": 0.1, "a_z": 0.1})
    packed = pack_algorithm([method] * 4, torch.float32, META)
    assert {packed.eta_x.device, packed.K.device} == {META}


FACTORIES = {
    torch.zeros,
    torch.ones,
    torch.full,
    torch.empty,
    torch.tensor,
    torch.arange,
    torch.eye,
    torch.randn,
    torch.rand,
}

#: They make an index, which `take` moves to where it is used, or seeded numbers, which are the same on every device.
FREE = {"narrow", "some", "take", "check_state", "lower_curvatures", "check_projection"}


class Factories(TorchFunctionMode):
    """Who makes a tensor of more than one number without saying where."""

    def __init__(self) -> None:
        super().__init__()
        self.silent: set[str] = set()

    def __torch_function__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        if func in FACTORIES and "device" not in (kwargs or {}) and made.dim() > 0:
            frame = sys._getframe(1)
            while frame is not None and "torch" in frame.f_globals.get("__name__", "").split("."):
                frame = frame.f_back
            module = frame.f_globals.get("__name__", "") if frame is not None else ""
            if module.startswith("bilevelbench") and frame.f_code.co_name not in FREE:
                self.silent.add(f"{module}:{frame.f_code.co_name}")
        return made


KNOWN = {"mu": 1.0, "L_g": 3.0, "L_gy": 3.0, "L_f": 2.0, "L_phi": 4.0, "rho_g": 1.0, "C_f": 2.0, "rho_phi": 1.0,
         "rho_f": 1.0, "nu_g": 1.0, "Delta": 1.0, "R": 1.0}  # fmt: skip


def silent_factories(method: str) -> set[str]:
    zero = torch.zeros(2)
    with Factories() as seen:
        solve(
            lambda x, y: 0.5 * (y - 1).square().sum() + 0.5 * x.square().sum(),
            lambda x, y: 0.5 * (y - x).square().sum(),
            zero, zero, method, steps=3, constants=KNOWN, evaluate=Schedule(second_order=True),
        )  # fmt: skip
    return seen.silent


@pytest.mark.parametrize("method", ["f2ba", "f2sa", "aid", "ba", "itd", "pbgd", "bome", "pf2ba", "stocbio", "pzobo"])
def test_who_makes_a_tensor_says_where(method):
    assert silent_factories(method) == set()


def test_that_test_would_see_it(monkeypatch):
    from bilevelbench.engine import evaluator

    real = evaluator.norm

    def careless(a: Tensor) -> Tensor:
        return real(a) + torch.zeros(1)

    careless.__globals__["__name__"] = "bilevelbench.careless"
    monkeypatch.setattr(evaluator, "norm", careless)
    try:
        assert silent_factories("aid") == {"bilevelbench.careless:careless"}
    finally:
        careless.__globals__["__name__"] = __name__
