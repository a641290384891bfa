"""Problems that agents share are the means of what the agents hold, and what is declared of them is true of the mean."""

from __future__ import annotations

import pytest
import torch
from bilevelbench_problems import (
    LabelCleaningIrisAgents,
    LogRegBreastCancerAgents,
    LogRegWineAgents,
    QuadraticAgents,
    QuadraticSumAgents,
)
from helpers import assert_conforms

from bilevelbench import FiniteSum, Instance, InvalidInput, Rows, Shared
from bilevelbench.discovery.registry import registry
from bilevelbench.model.queries import QUERIES

SHARED = [
    QuadraticAgents(),
    QuadraticAgents(agents=3, dim_x=2, dim_y=5, difference=0.3, data_seed=4),
    QuadraticAgents(agents=1),
    LogRegBreastCancerAgents(),
    LogRegBreastCancerAgents(agents=3, data_seed=2),
    LogRegWineAgents(agents=5),
    QuadraticSumAgents(n=70, m=31, dim_x=2, dim_y=5),
    LabelCleaningIrisAgents(),
    LabelCleaningIrisAgents(agents=7, data_seed=1),
]


def point(instance: Instance) -> tuple[torch.Tensor, ...]:
    rng = torch.Generator().manual_seed(3)
    return tuple(torch.randn(2, d, generator=rng) for d in (instance.dx, instance.dy, instance.dy))


@pytest.mark.parametrize("problem", SHARED, ids=str)
@pytest.mark.parametrize("query", [name for name, query in QUERIES.items() if len(query.outputs) == 1])
def test_the_instance_is_the_mean_over_its_agents(problem: Shared, query: str) -> None:
    instance = problem.build()
    assert instance.agents is not None
    assert instance.agents.count == problem.agents
    x, y, v = point(instance)
    arguments = (x, y, v) if "vp_" in query else (x, y)
    local = [instance.agents.local(i).functions[query](*arguments) for i in range(problem.agents)]
    torch.testing.assert_close(sum(local) / len(local), instance.functions[query](*arguments), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("sigma", [0.0, 0.5])
def test_conformance(sigma: float) -> None:
    assert_conforms(QuadraticAgents(dim_x=3, dim_y=4, sigma_f=sigma, sigma_g=sigma))


def test_more_agents_do_not_change_those_that_are_there() -> None:
    few, many = QuadraticAgents(agents=2).held(), QuadraticAgents(agents=5).held()
    for ours, theirs in zip(few, many, strict=False):
        assert torch.equal(ours.A, theirs.A)
        assert torch.equal(ours.c, theirs.c)


def test_agents_without_difference_are_alike() -> None:
    first, *others = QuadraticAgents(difference=0).held()
    for other in others:
        assert torch.equal(first.A, other.A)
        assert torch.equal(first.B, other.B)
    apart = QuadraticAgents(difference=1).held()
    assert (apart[0].A - apart[1].A).abs().max() > 0.1


def test_the_distance_is_zero_where_the_gradient_is() -> None:
    instance = QuadraticAgents().build()
    reference, x0 = instance.reference, instance.x0
    x_min = x0 - torch.linalg.solve(reference.hess_phi(x0)[0], reference.grad_phi(x0)[0])
    assert instance.metrics["distance"](x_min, instance.y0).item() == pytest.approx(0, abs=1e-10)
    assert instance.metrics["distance"](x_min + 1, instance.y0).item() == pytest.approx(instance.dx**0.5)


def test_noise_of_the_mean_is_that_of_independent_agents() -> None:
    instance = QuadraticAgents(agents=4, sigma_f=0.6, sigma_g=0.2).build()
    assert (instance.noise.sigma_f, instance.noise.sigma_g) == (0.3, 0.1)
    assert (instance.agents.local(0).noise.sigma_f, instance.agents.local(0).noise.sigma_g) == (0.6, 0.2)


@pytest.mark.parametrize("agents", [1, 2, 3, 4, 7])
def test_rows_are_dealt_out_evenly(agents: int) -> None:
    instance = LogRegBreastCancerAgents(agents=agents).build()
    whole = instance.noise
    assert isinstance(whole, FiniteSum)
    assert 142 - agents < whole.n_f <= 142
    assert 285 - agents < whole.n_g <= 285
    for i in range(agents):
        own = instance.agents.local(i).noise
        assert (own.n_f * agents, own.n_g * agents) == (whole.n_f, whole.n_g)


@pytest.mark.parametrize(
    ("problem", "n_f", "n_g"),
    [
        (QuadraticSumAgents(agents=3, n=70, m=32, dim_x=2, dim_y=5), 30, 69),
        (LabelCleaningIrisAgents(agents=5), 35, 75),
        (LogRegWineAgents(agents=4), 44, 88),
    ],
    ids=str,
)
def test_an_agents_rows_are_every_nth_of_the_whole(problem: Shared, n_f: int, n_g: int) -> None:
    """A mini-batch of an agent is the mini-batch of the mean problem that has the same rows."""
    instance = problem.build()
    assert instance.noise == FiniteSum(n_f=n_f, n_g=n_g)
    x, y, v = point(instance)
    k, i = problem.agents, 1
    own = Rows(torch.tensor([[0, 2], [1, 3]]), torch.full((2, 2), 0.5))
    whole = Rows(i + k * own.index, own.weight)
    local = instance.agents.local(i)
    assert local.noise == FiniteSum(n_f=n_f // k, n_g=n_g // k)
    for query in (name for name, query in QUERIES.items() if len(query.outputs) == 1):
        arguments = (x, y, v) if "vp_" in query else (x, y)
        ours, theirs = local.functions[query](*arguments, own), instance.functions[query](*arguments, whole)
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def test_an_agent_moves_no_weight_of_another() -> None:
    instance = LabelCleaningIrisAgents().build()
    x, y, v = point(instance)
    local = instance.agents.local(2)
    for answer in (local.grad_g_x(x, y), local.jvp_g_xy(x, y, v)):
        mine = torch.arange(instance.dx) % 4 == 2
        assert (answer[:, ~mine] == 0).all()
        assert (answer[:, mine] != 0).all()


def test_more_agents_than_rows_are_a_sentence() -> None:
    with pytest.raises(InvalidInput, match=r"agents = 90 cannot share 76 rows; take 76 agents at most"):
        LabelCleaningIrisAgents(agents=90).build()


def test_defaults_are_those_of_the_problem_that_is_shared() -> None:
    """But for the number of agents; `quadratic` alone has other sizes."""
    problems = {name: entry.value for name, entry in registry().problems.items()}
    shared = {name: one for name, one in problems.items() if name.endswith("_agents") and name != "quadratic_agents"}
    assert len(shared) >= 5
    for name, one in shared.items():
        plain = problems[name.removesuffix("_agents")]
        given, own = plain().model_dump(), one().model_dump()
        assert {key: own[key] for key in given} == given, name
