"""`solve` for people with a network and data: variables of any shape, batches, and what it says."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch
from helpers import Shrink
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.utils.data import DataLoader, TensorDataset

import bilevelbench
from bilevelbench import InvalidInput
from bilevelbench.engine.setup import PreparedPack
from bilevelbench.model.torch_state import default_dtype
from bilevelbench.studies.auto.search import Search


def network(dtype: torch.dtype = torch.float64) -> nn.Sequential:
    """57 weights."""
    with torch.random.fork_rng(devices=[]), default_dtype(torch.float64):
        torch.default_generator.manual_seed(0)
        return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1)).to(dtype)


def flip(labels: torch.Tensor) -> torch.Tensor:
    """A third of the first 60 is wrong."""
    return torch.cat([1 - labels[:20], labels[20:]])


with torch.random.fork_rng(devices=[]):
    torch.default_generator.manual_seed(1)
    A = torch.randn(100, 5, dtype=torch.float64)
b = flip((A[:, 0] + A[:, 1] > 0).double())
TRAIN, VALID = (A[:60], b[:60], torch.arange(60)), (A[60:], b[60:])


def loss(scores: torch.Tensor, labels: torch.Tensor, **how: str) -> torch.Tensor:
    return binary_cross_entropy_with_logits(scores.squeeze(-1), labels, **how)


def module_g(x, model, batch):
    a, b, which = batch
    decay = sum(p.square().sum() for p in model.parameters())
    return (x["weights"][which].sigmoid() * loss(model(a), b, reduction="none")).mean() + 0.02 * decay


def module_f(x, model, batch):
    return loss(model(batch[0]), batch[1])


def forward(y, a):
    return torch.tanh(a @ y[0]["w"].T + y[0]["b"]) @ y[1]["w"].T + y[1]["b"]


def tree_g(x, y, batch):
    a, b, which = batch
    decay = sum(p.square().sum() for layer in y for p in layer.values())
    return (x[0][which].sigmoid() * loss(forward(y, a), b, reduction="none")).mean() + 0.02 * decay


def tree_f(x, y, batch):
    return loss(forward(y, batch[0]), batch[1])


def layers(net: nn.Sequential) -> list[dict[str, torch.Tensor]]:
    return [{"b": net[i].bias.detach(), "w": net[i].weight.detach()} for i in (0, 2)]


ZERO = torch.zeros(60, dtype=torch.float64)
SETTINGS = {"algorithm": "aid", "eta_x": 40.0, "D": 10, "N": 5, "steps": 3, "data_f": VALID, "data_g": TRAIN}


def solve_module(**more):
    return bilevelbench.solve(module_f, module_g, {"weights": ZERO}, network(), **{**SETTINGS, **more})


@pytest.fixture(scope="module")
def by_module():
    return solve_module()


def test_a_network_and_sample_weights(by_module):
    """57 weights of a module and 60 in a dict."""
    net, got = network(), by_module
    assert sum(p.numel() for p in net.parameters()) == 57
    assert got.status == "budget"
    weights = got.x["weights"].sigmoid()
    assert weights.shape == (60,)
    assert weights[:20].mean() + 0.05 < weights[20:].mean()
    assert (got.certificate, np.isnan(got.phi)) == ("not convex", True)  # a network: phi is not claimed
    net.load_state_dict(got.y)
    assert loss(net(VALID[0]), VALID[1]).item() < loss(network()(VALID[0]), VALID[1]).item()


def test_lists_and_dicts_give_what_a_module_gives(by_module):
    by_tree = bilevelbench.solve(tree_f, tree_g, [ZERO], layers(network()), **SETTINGS)
    assert isinstance(by_tree.x, list)
    assert [list(layer) for layer in by_tree.y] == [["b", "w"], ["b", "w"]]
    torch.testing.assert_close(by_tree.x[0], by_module.x["weights"], rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(by_tree.y[1]["w"], by_module.y["2.weight"], rtol=1e-8, atol=1e-8)
    assert by_tree.counts == by_module.counts


def test_without_data_it_is_the_same_problem_at_other_costs(by_module):
    without = bilevelbench.solve(
        lambda x, m: module_f(x, m, VALID), lambda x, m: module_g(x, m, TRAIN), {"weights": ZERO}, network(),
        **{name: value for name, value in SETTINGS.items() if not name.startswith("data")},
    )  # fmt: skip
    torch.testing.assert_close(without.x["weights"], by_module.x["weights"], rtol=1e-9, atol=1e-9)
    assert by_module.counts == without.counts
    cost = by_module.curve.cost.iloc[-1]
    assert cost == 40 * by_module.counts["grad_f"] + 60 * (
        by_module.counts["grad_g"] + by_module.counts["second_order"]
    )
    assert without.curve.cost.iloc[-1] == by_module.counts["first_order"] + by_module.counts["second_order"]


def test_the_module_itself_is_left_alone():
    net = network()
    bilevelbench.solve(module_f, module_g, {"weights": ZERO}, net, **{**SETTINGS, "steps": 1})
    assert all(torch.equal(value, network().state_dict()[name]) for name, value in net.state_dict().items())


def test_answer_is_the_start():
    got = solve_module(budget=1, steps=None)
    assert "the answer is the start: x is x0" in got.message
    assert torch.equal(got.x["weights"], ZERO)
    assert all(torch.equal(got.y[name], value) for name, value in network().state_dict().items())


# ---- nothing but functions, starts and data


def trained(weights: torch.Tensor) -> float:
    """The validation loss of a network that is trained with these weights: what x is worth, whatever y is."""
    net = network()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    for _ in range(200):
        optimizer.zero_grad()
        module_g({"weights": weights}, net, TRAIN).backward()
        optimizer.step()
    return float(loss(net(VALID[0]), VALID[1]).detach())


FREE = {"data_f": VALID, "data_g": TRAIN, "steps": 12, "evaluate": "never"}


@pytest.mark.parametrize(
    ("f", "g", "x0", "y0", "weights"),
    [
        (tree_f, tree_g, [ZERO], lambda: layers(network()), lambda x: x[0]),
        (module_f, module_g, {"weights": ZERO}, network, lambda x: x["weights"]),
    ],
    ids=["list and dicts", "dict and module"],
)
def test_a_network_without_steps_or_constants(f, g, x0, y0, weights):
    got = bilevelbench.solve(f, g, x0, y0(), **FREE)
    start = trained(ZERO)
    assert got.f < 0.8 * start
    assert trained(weights(got.x)) < 0.8 * start
    learned = weights(got.x).sigmoid()
    assert learned[:20].mean() + 0.05 < learned[20:].mean()
    tried = got.search[got.search["round"] > 1]["setting"]
    assert {setting.partition("[")[0] for setting in tried} == {"aid_adgd", "f2ba"}


@pytest.mark.slow  # its quick form is the test above
def test_a_network_with_all_the_defaults_takes_seconds_and_little_beside_the_method(monkeypatch):
    """Seconds of the processor: on a machine that others use as well the clock says more of them."""
    spent, inside = [0.0], []

    def timed(owner, name):
        work = getattr(owner, name)

        def call(*arguments):
            if inside:  # the steps of the search are the search's
                return work(*arguments)
            inside.append(name)
            began = time.process_time()
            try:
                return work(*arguments)
            finally:
                spent[0] += time.process_time() - began
                inside.pop()

        monkeypatch.setattr(owner, name, call)

    timed(Search, "__call__")
    timed(PreparedPack, "step")
    busy = time.process_time()
    got = bilevelbench.solve(module_f, module_g, {"weights": ZERO}, network(), data_f=VALID, data_g=TRAIN)
    worked = time.process_time() - busy
    assert got.steps == 1000
    assert got.f < 0.5 * trained(ZERO)
    assert worked < 30
    assert worked - spent[0] < 0.1 * worked


def test_a_search_among_methods_that_sample():
    got = bilevelbench.solve(module_f, module_g, {"weights": ZERO}, line_at_zero(), batch=5, **FREE)
    names = {setting.partition("[")[0] for setting in got.search[got.search["round"] > 1]["setting"]}
    assert names == {"stocbio", "soba", "f2bsa"}
    assert got.f < float(module_f(None, line_at_zero(), VALID).detach())
    again = bilevelbench.solve(module_f, module_g, {"weights": ZERO}, line_at_zero(), batch=5, **FREE)
    assert torch.equal(again.x["weights"], got.x["weights"])


# ---- mini-batches

SAMPLED = {"algorithm": "stocbio", "eta_x": 5.0, "steps": 3, "data_f": VALID, "data_g": TRAIN}


def line_at_zero(dtype: torch.dtype = torch.float64) -> nn.Linear:
    """A lower level that is convex, and so quickly solved by the evaluator."""
    line = nn.utils.skip_init(nn.Linear, 5, 1, dtype=dtype)
    for parameter in line.parameters():
        nn.init.zeros_(parameter)
    return line


def solve_sampled(**more):
    settings = {name: value for name, value in {**SAMPLED, **more}.items() if value is not None}
    return bilevelbench.solve(module_f, module_g, {"weights": ZERO}, line_at_zero(), **settings)


def test_batches_are_counted_in_samples():
    small, large = solve_sampled(batch=5), solve_sampled(batch=20)
    assert {small.params[name] for name in ("batch_f", "batch_g", "batch_j", "batch_h")} == {5}
    assert small.counts == large.counts
    assert large.curve.cost.iloc[-1] > 3 * small.curve.cost.iloc[-1]


@pytest.mark.parametrize(
    ("method", "sizes"), [("f2bsa", {"B_in", "B_out"}), ("soba", {"batch"}), ("pzobo_s", {"batch_f", "batch_g"})]
)
def test_a_batch_reaches_every_size_that_a_method_has(method, sizes):
    got = solve_sampled(
        algorithm=method, eta_x=None if method == "soba" else 1.0, batch=7, b=0.1 if method == "soba" else None
    )
    assert {got.params[name] for name in sizes} == {7}
    assert got.status == "budget"


def test_a_bound_that_is_called_B_is_not_a_batch():
    with pytest.raises(InvalidInput, match="acc_f2ba draws no mini-batches"):
        solve_sampled(algorithm="acc_f2ba", batch=7)


def test_same_seed_same_bits():
    first, again, other = solve_sampled(batch=5, seed=3), solve_sampled(batch=5, seed=3), solve_sampled(batch=5, seed=4)
    assert torch.equal(first.x["weights"], again.x["weights"])
    assert not torch.equal(first.x["weights"], other.x["weights"])


def test_torch_generator_is_left_alone():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    solve_sampled(data_g=DataLoader(TensorDataset(*TRAIN), batch_size=5, shuffle=True))
    assert torch.equal(torch.get_rng_state(), before)


def test_a_loader_is_its_data_set_and_its_batch_size():
    by_loader = solve_sampled(data_g=DataLoader(TensorDataset(*TRAIN), batch_size=5, shuffle=True))
    by_tensors = solve_sampled(batch=5)
    by_data_set = solve_sampled(batch=5, data_g=TensorDataset(*TRAIN))
    assert torch.equal(by_loader.x["weights"], by_tensors.x["weights"])
    assert torch.equal(by_data_set.x["weights"], by_tensors.x["weights"])
    assert solve_sampled(data_g=DataLoader(TensorDataset(*TRAIN), batch_size=5), batch_g=7).params["batch_g"] == 7


def test_f_may_do_without_data():
    got = bilevelbench.solve(
        lambda x, m: module_f(x, m, VALID), module_g, {"weights": ZERO}, line_at_zero(), "stocbio", eta_x=5.0, steps=3,
        data_g=TRAIN, batch_g=5, batch_j=5, batch_h=5, batch_f=1,
    )  # fmt: skip
    assert got.status == "budget"
    assert got.counts["grad_f"] == 3
    assert got.curve.cost.iloc[-1] == 3 + 5 * (got.counts["grad_g_y"] + got.counts["second_order"])


def test_float32():
    net = line_at_zero(torch.float32)
    train, valid = [(A[:60].float(), b[:60].float(), torch.arange(60)), (A[60:].float(), b[60:].float())]
    got = bilevelbench.solve(
        module_f, module_g, {"weights": ZERO.float()}, net, **{**SETTINGS, "data_f": valid, "data_g": train}
    )
    assert got.x["weights"].dtype == torch.float32
    assert np.isfinite(got.phi)
    net.load_state_dict(got.y)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch": 5}, r"batch=5: aid draws no mini-batches; leave it out, or take one of .*f2bsa.*stocbio"),
        ({"algorithm": Shrink(), "batch": 5, "eta_x": None}, "shrink is given as an object"),
        ({"data_g": DataLoader(TensorDataset(A[:0]))}, "data_g is empty"),
        ({"data_f": (A, b[:3])}, r"data_f\[0\] has 100, data_f\[1\] has 3 rows"),
    ],
)
def test_mistakes_are_sentences(arguments, message):
    settings = {name: value for name, value in {**SETTINGS, **arguments}.items() if value is not None}
    with pytest.raises(InvalidInput, match=message):
        bilevelbench.solve(module_f, module_g, {"weights": ZERO}, line_at_zero(), **settings)


def test_a_batch_without_data():
    with pytest.raises(InvalidInput, match="batch=5: there are no data to draw from; give data_f or data_g"):
        bilevelbench.solve(
            lambda x, m: module_f(x, m, VALID), lambda x, m: module_g(x, m, TRAIN), {"weights": ZERO}, line_at_zero(),
            "stocbio", batch=5, eta_x=1.0, steps=1,
        )  # fmt: skip
