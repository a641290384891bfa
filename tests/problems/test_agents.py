"""Problems that agents share are the means of what the agents hold, and what is declared of them is true of the mean."""

from __future__ import annotations

import pytest
import torch
from bilevelbench_problems import (
    CleaningCNNDigits,
    CleaningCNNDigitsAgents,
    DistillDigits,
    DistillDigitsAgents,
    LabelCleaningIrisAgents,
    LogRegBreastCancerAgents,
    LogRegWineAgents,
    QuadraticAgents,
    QuadraticSumAgents,
    RepresentationDigits,
    RepresentationDigitsAgents,
)
from helpers import assert_conforms

from bilevelbench import FiniteSum, Instance, InvalidInput, Problem, Rows, Shared
from bilevelbench.discovery.registry import registry
from bilevelbench.engine.evaluator import Evaluator
from bilevelbench.model.queries import QUERIES

FEW_IMAGES = {"n_train": 30, "n_val": 20, "n_test": 20}

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
    DistillDigitsAgents(),
    DistillDigitsAgents(agents=3, per_class=2, data_seed=1),
    RepresentationDigitsAgents(),
    RepresentationDigitsAgents(agents=2, tasks=5, embedding="cnn", loss="cross_entropy", data_seed=1),
    CleaningCNNDigitsAgents(**FEW_IMAGES, agents=3),
]

#: Sizes that divide evenly, beside the problem that nobody divides.
UNDIVIDED = [
    (DistillDigitsAgents(agents=31, per_class=2), DistillDigits(per_class=2)),
    (RepresentationDigitsAgents(), RepresentationDigits()),
    (RepresentationDigitsAgents(loss="cross_entropy"), RepresentationDigits(loss="cross_entropy")),
    (CleaningCNNDigitsAgents(**FEW_IMAGES, agents=5), CleaningCNNDigits(**FEW_IMAGES)),
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


@pytest.mark.parametrize(("problem", "plain"), UNDIVIDED, ids=lambda problem: problem.name)
def test_the_mean_over_agents_is_the_undivided_problem(problem: Shared, plain: Problem) -> None:
    instance, whole = problem.build(), plain.build()
    assert instance.noise == whole.noise
    assert torch.equal(instance.x0, whole.x0)
    local = [instance.agents.local(i) for i in range(problem.agents)]
    x, y, v = point(instance)
    for query in (name for name, query in QUERIES.items() if len(query.outputs) == 1):
        arguments = (x, y, v) if "vp_" in query else (x, y)
        mean = sum(one.functions[query](*arguments) for one in local) / problem.agents
        torch.testing.assert_close(mean, whole.functions[query](*arguments), rtol=1e-12, atol=1e-12)
    if plain.solves_phi:
        ours, theirs = (Evaluator(one)(one.x0, one.y0) for one in (instance, whole))
        assert torch.equal(ours.phi, theirs.phi)
        assert torch.equal(ours.grad_phi, theirs.grad_phi)
    assert all(own.noise.n_f * problem.agents == whole.noise.n_f for own in local)


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
        (RepresentationDigitsAgents(agents=2, tasks=9), 8, 8),
        (CleaningCNNDigitsAgents(**FEW_IMAGES, agents=4), 20, 28),
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


@pytest.mark.parametrize("loss", ["squared", "cross_entropy"])
def test_an_agent_moves_no_head_of_anothers_task(loss: str) -> None:
    problem = RepresentationDigitsAgents(tasks=9, loss=loss)
    instance = problem.build()
    x, y, v = point(instance)
    local = instance.agents.local(2)
    for answer in (local.grad_f_y(x, y), local.grad_g_y(x, y), local.hvp_g_yy(x, y, v)):
        heads = answer.reshape(2, 8, -1)  # of nine tasks the last one is left out
        mine = torch.arange(8) % 4 == 2
        assert (heads[:, ~mine] == 0).all()
        assert (heads[:, mine] != 0).all()


def test_every_agent_holds_all_synthetic_images_and_its_own_real_ones() -> None:
    instance = DistillDigitsAgents(agents=4).build()
    local = instance.agents.local(1)
    assert instance.noise == FiniteSum(n_f=896, n_g=10)
    assert local.noise == FiniteSum(n_f=224, n_g=10)
    x, y, v = point(instance)
    own = Rows(torch.tensor([[0, 2], [1, 3]]), torch.full((2, 2), 0.5))
    dealt = Rows(1 + 4 * own.index, own.weight)
    for query in (name for name, query in QUERIES.items() if len(query.outputs) == 1):
        arguments = (x, y, v) if "vp_" in query else (x, y)
        rows = dealt if QUERIES[query].level == "f" else own
        ours, theirs = local.functions[query](*arguments, own), instance.functions[query](*arguments, rows)
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("problem", "sentence"),
    [
        (LabelCleaningIrisAgents(agents=90), r"agents = 90 cannot share 76 rows; take 76 agents at most"),
        (DistillDigitsAgents(agents=900), r"agents = 900 cannot share 899 rows; take 899 agents at most"),
        (RepresentationDigitsAgents(agents=5), r"agents = 5 cannot share 4 tasks; take 4 agents at most"),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_more_agents_than_rows_are_a_sentence(problem: Shared, sentence: str) -> None:
    with pytest.raises(InvalidInput, match=sentence):
        problem.build()


def test_defaults_are_those_of_the_problem_that_is_shared() -> None:
    """But for the number of agents; `quadratic` alone has other sizes."""
    problems = {name: entry.value for name, entry in registry().problems.items()}
    shared = {name: one for name, one in problems.items() if name.endswith("_agents") and name != "quadratic_agents"}
    assert len(shared) >= 5
    for name, one in shared.items():
        plain = problems[name.removesuffix("_agents")]
        given, own = plain().model_dump(), one().model_dump()
        assert {key: own[key] for key in given} == given, name
