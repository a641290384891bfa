"""Instances from functions of one's own: against closed forms, over lanes, on rows; modules that are built by a seed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers import alone, assert_same, packed, plugins, trial
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.utils.data import DataLoader, TensorDataset

from bilevelbench import FiniteSum, Oracle, Problem, from_functions, seeded_module
from bilevelbench.engine.sanity import check_instance
from bilevelbench.model.noise import Rows
from bilevelbench.model.queries import QUERIES
from bilevelbench.model.torch_state import default_dtype
from bilevelbench.plan.trial import Schedule

USES = frozenset(QUERIES)
NO_PHI = Schedule(phi=False)


@pytest.fixture
def data(normal):
    return {"A": normal(17, 3), "b": normal(17)}, {"A": normal(11, 3), "b": normal(11)}


def g(x, y, batch):
    return 0.5 * (batch["A"] @ y["w"] - batch["b"]).square().mean() + 0.5 * (x.exp() * y["w"] ** 2).sum()


def f(x, y, batch):
    return 0.5 * (batch["A"] @ y["w"] - batch["b"]).square().mean() + 0.01 * x.square().sum()


@pytest.fixture
def instance(data, normal):
    return from_functions(f, g, normal(3), {"w": normal(3)}, data_g=data[0], data_f=data[1])


def test_data_are_a_finite_sum(instance):
    assert instance.noise == FiniteSum(n_f=11, n_g=17)
    check_instance(instance)


def test_whole_sum_against_the_closed_form(instance, data, normal):
    x, y, v = normal(5, 3), normal(5, 3), normal(5, 3)
    A, b = data[0]["A"], data[0]["b"]
    slope = (y @ A.T - b) @ A / 17 + x.exp() * y
    torch.testing.assert_close(instance.grad_g_y(x, y), slope)
    torch.testing.assert_close(instance.hvp_g_yy(x, y, v), v @ A.T @ A / 17 + x.exp() * v)
    torch.testing.assert_close(instance.jvp_g_xy(x, y, v), x.exp() * y * v)
    torch.testing.assert_close(instance.grad_g_x(x, y), 0.5 * x.exp() * y**2)


def test_rows_are_each_lanes_own(instance, data, normal):
    x, y = normal(4, 3), normal(4, 3)
    index = torch.tensor([[0, 3], [16, 16], [2, 1], [5, 9]])
    got = instance.value_g(x, y, Rows(index, torch.full((4, 2), 0.5, dtype=torch.float64)))
    for lane in range(4):
        batch = {name: t[index[lane]] for name, t in data[0].items()}
        torch.testing.assert_close(got[lane, 0], g(x[lane], {"w": y[lane]}, batch))


def test_lanes_with_batches_of_their_own_size(instance, data, normal):
    x, y = normal(4, 3), normal(4, 3)
    oracle = Oracle(instance, USES, [0, 1, 2, 3])
    oracle.begin_step(1)
    sizes = torch.tensor([[2], [5], [2], [17]])
    xi = oracle.sample_g(sizes)
    got = oracle.grad_g_y(x, y, xi)
    for lane in range(4):
        rows = xi.rows.index[lane, : sizes[lane]]
        A, b = data[0]["A"][rows], data[0]["b"][rows]
        want = (A @ y[lane] - b) @ A / len(rows) + x[lane].exp() * y[lane]
        torch.testing.assert_close(got[lane], want)
    assert oracle.meter.cost().tolist() == [2, 5, 2, 17]
    assert oracle.counts_agree


def test_blocks_and_an_epoch_make_the_whole(instance, normal):
    x, y = normal(2, 3), normal(2, 3)
    oracle = Oracle(instance, USES, [0, 1])
    oracle.begin_step(1)
    whole = instance.grad_g_y(x, y)
    blocks = [oracle.grad_g_y(x, y, xi) for xi in oracle.blocks_g(5)]
    torch.testing.assert_close(sum(blocks) / len(blocks), whole)
    parts = [oracle.sample_g(5, order="epoch") for _ in range(4)]
    assert [xi.size for xi in parts] == [5, 5, 5, 2]
    weighted = sum(xi.size / 17 * oracle.grad_g_y(x, y, xi) for xi in parts)
    torch.testing.assert_close(weighted, whole)


def test_points_are_asked_one_by_one(instance, normal):
    oracle = Oracle(instance, USES, [0, 1])
    oracle.begin_step(1)
    x, y = normal(2, 3), normal(6, 2, 3)
    got = oracle.grad_g_y(x, y, oracle.sample_g(4, points=6))
    assert got.shape == (6, 2, 3)
    oracle.meter.flush()
    assert oracle.meter.cost().tolist() == [24, 24]


def test_data_of_one_level_only(data, normal):
    instance = from_functions(
        lambda x, y: (x**2).sum() + (y["w"] ** 2).sum(), g, normal(3), {"w": normal(3)}, data_g=data[0]
    )
    assert instance.noise == FiniteSum(n_f=1, n_g=17)
    check_instance(instance)


def test_a_data_set_is_its_tensors(normal):
    A, b, x0, y0 = normal(17, 3), normal(17), normal(3), normal(3)

    def lower(x, y, batch):
        A, b = batch
        return (A @ y - b).square().mean() + (x - y).square().sum()

    def upper(x, y):
        return y.square().sum()

    one = from_functions(upper, lower, x0, y0, data_g=(A, b))
    other = from_functions(upper, lower, x0, y0, data_g=TensorDataset(A, b))
    assert torch.equal(one.grad_g_y(x0[None], y0[None]), other.grad_g_y(x0[None], y0[None]))
    assert one.constants.given == other.constants.given


def test_metrics_and_mu_over_lanes(data, normal):
    instance = from_functions(
        f, g, normal(3), {"w": normal(3)}, data_g=data[0], data_f=data[1], constants={"L_gy": 9.0}, x_limit=8.0,
        metrics={"size": lambda x, y: y["w"].abs().max()}, mu_at=lambda x: x.exp().min(),
    )  # fmt: skip
    x, y = normal(4, 3), normal(4, 3)
    torch.testing.assert_close(instance.metrics["size"](x, y), y.abs().amax(-1, keepdim=True))
    torch.testing.assert_close(instance.mu_at(x), x.exp().amin(-1, keepdim=True))
    assert instance.constants.L_gy == 9.0
    assert instance.is_flat_beyond


def test_curvature_is_estimated_at_the_start(instance, data):
    A = data[0]["A"]
    H = A.T @ A / 17 + instance.x0.exp().diag()
    assert instance.constants.given["L_gy"].kind == "estimated"
    assert instance.constants.L_gy == pytest.approx(float(torch.linalg.eigvalsh(H).max()), rel=1e-3)
    assert instance.passes == [0] * len(QUERIES)


# ---- a problem whose lower level is a network


class Weighted(Problem):
    """Sample weights for a network: g = mean sigmoid(x_i) CE_i + weight decay;  f = CE on other data."""

    name = "weighted"

    def build(self):
        rng, dtype = self.generator(), torch.get_default_dtype()
        A = torch.randn(90, 5, generator=rng, dtype=torch.float64).to(dtype)
        b = (A[:, :2].prod(-1) > 0).to(dtype)
        net = seeded_module(lambda: nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1)), rng)

        def lower(x, model, batch):
            A, b, i = batch
            losses = binary_cross_entropy_with_logits(model(A).squeeze(-1), b, reduction="none")
            return (x[i].sigmoid() * losses).mean() + 0.05 * sum(p.square().sum() for p in model.parameters())

        def upper(x, model, batch):
            A, b = batch
            return binary_cross_entropy_with_logits(model(A).squeeze(-1), b)

        return from_functions(
            upper, lower, torch.zeros(60), net, data_f=(A[60:], b[60:]), data_g=(A[:60], b[:60], torch.arange(60)),
            constants={"L_gy": 2.0}, metrics={"val_loss": lambda x, model: upper(x, model, (A[60:], b[60:]))},
        )  # fmt: skip


def built(dtype=torch.float64):
    with default_dtype(dtype):
        return Weighted().build()


def test_module_by_a_seed():
    torch.manual_seed(3)
    before = torch.get_rng_state()
    one = built()
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(4)
    assert torch.equal(built().y0, one.y0)
    assert one.y0.shape == (57,)
    assert torch.equal(built(torch.float32).y0, one.y0.float())


def test_seeded_module_follows_its_generator():
    first, second, third = (
        seeded_module(lambda: nn.Linear(3, 1), torch.Generator().manual_seed(seed)) for seed in (0, 0, 1)
    )
    assert torch.equal(first.weight, second.weight)
    assert not torch.equal(first.weight, third.weight)


@pytest.mark.parametrize("method", ["f2ba[eta_x={}]", "aid[eta_x={}]", "stocbio[eta_x={},batch_g=16]"])
@pytest.mark.quick_cases(1)
def test_a_grid_on_a_network_is_one_pack_with_the_numbers_of_each_alone(method):
    among = plugins(Weighted)
    trials = [
        trial(method.format(eta), "weighted", steps=4, among=among, schedule=NO_PHI)
        for eta in (0.1, 0.3, 1.0, 3.0, 10.0)
    ]  # fmt: skip
    together, apart = packed(trials, among), alone(trials, among)
    assert together.runs.status.tolist() == ["budget"] * 5
    assert together.runs.cost.tolist() == apart.runs.cost.tolist()
    assert together.curve.val_loss.nunique() > 5
    np.testing.assert_allclose(together.curve.val_loss, apart.curve.val_loss, rtol=1e-9)


def test_the_same_seed_gives_the_same_bits():
    among = plugins(Weighted)
    drawn = [
        trial("f2sa[batch=16,xi=1.0]", "weighted", steps=4, among=among, seed=seed, schedule=NO_PHI) for seed in (0, 1)
    ]
    once, again = alone(drawn, among), alone(drawn, among)
    assert_same(once, again)
    assert once.runs.seed.tolist() == [0, 1]
    assert once.curve.groupby("trial_id").val_loss.last().nunique() == 2


@pytest.mark.parametrize(
    "wrapped", [tuple, lambda rows: TensorDataset(*rows), lambda rows: DataLoader(TensorDataset(*rows))]
)
def test_variables_and_data_are_moved_to_a_dtype(normal, wrapped):
    def lower(x, y, batch):
        a, b, which = batch
        assert which.dtype == torch.int64
        return (a @ y["w"] - b).square().mean() + (x - y["w"]).square().sum()

    rows = normal(17, 3), normal(17), torch.arange(17)
    instance = from_functions(
        lambda x, y: y["w"].square().sum(), lower, normal(3), {"w": normal(3)}, data_g=wrapped(rows), dtype="float32"
    )
    x, y = normal(4, 3).float(), normal(4, 3).float()
    assert instance.x0.dtype == instance.grad_g_y(x, y).dtype == torch.float32
