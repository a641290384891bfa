"""Methods over agents, in real processes: their iterates are those of the method on the mean problem, their rounds and bytes
those of the pseudo-code; and averaging local hypergradients ends at the wrong point, by as much as the closed form says."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from helpers import alone, iterates, trial

from bilevelbench.discovery.entry import make
from bilevelbench.discovery.registry import registry
from bilevelbench.engine.agents import leader
from bilevelbench.model.torch_state import default_dtype
from bilevelbench.plan.spec_text import parse_spec

pytestmark = pytest.mark.whole

DX, DY, K = 4, 6, 3
STEPS = 50
F2BA = f"K={K},lam=10,eta_x=0.1,a_y=0.3,a_z=0.4"

#: Parameters, rounds of a step, and numbers that an agent sends in it.
METHODS = {
    f"dist_f2ba[{F2BA}]": (K + 1, 2 * K * DY + DX),
    f"dist_f2bsa[{F2BA},B_in=2,B_out=3]": (K + 1, 2 * K * DY + DX),
    f"dist_pf2ba[{F2BA},eps=10,T_p=3,r=5]": (K + 1, 2 * K * DY + DX),
    f"dist_acc_f2ba[{F2BA},B=0.01,B0=0.01,r=0.1]": (K + 1, 2 * K * DY + DX),
    f"dist_f2sa[T_in={K},lam=10]": (K + 1, 2 * K * DY + DX),
    f"dist_pbgd[K={K}]": (K + 1, (K + 1) * DY + DX),
    f"dist_bome[K={K}]": (K + 1, (K + 2) * DY + 2 * DX),
    f"dist_bome[K={K},barrier=gap]": (K + 2, (K + 2) * DY + 2 * DX + 1),
    "dist_aid[D=3,N=4,solver=richardson]": (3 + 4 + 2, (3 + 4 + 1) * DY + DX),
    "dist_aid_local[D=3,N=4]": (3 + 1, 3 * DY + DX),
}
SAME = [text for text in METHODS if "local" not in text]


def shared(agents: int) -> str:
    return f"quadratic_agents[dim_x={DX},dim_y={DY},agents={agents}]"


@pytest.fixture(autouse=True, scope="module")
def _nobody_stays():
    yield
    leader.dismiss()


def both(text: str, problem: str, steps: int) -> tuple[list[tuple[np.ndarray, np.ndarray]], ...]:
    """Iterates of a distributed method, and of the same one on the mean problem."""
    (spec,), (where,) = parse_spec(text), parse_spec(problem)
    method = make(registry().algorithm(spec.name), spec.params)
    twin = make(registry().algorithm(spec.name.removeprefix("dist_")), spec.params)
    with default_dtype(torch.float64):
        instance = make(registry().problem(where.name), where.params).build()
        part = leader.join(method, instance, trial(text, problem, steps=steps))
    try:
        over_agents = iterates(method, instance, steps, part)
    finally:
        part.network.end()
    return over_agents, iterates(twin, instance, steps)


def assert_equal(ours, theirs) -> None:
    for (x, y), (twin_x, twin_y) in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(x, twin_x, rtol=0, atol=1e-10)
        np.testing.assert_allclose(y, twin_y, rtol=0, atol=1e-10)
    assert np.abs(theirs[-1][0] - theirs[0][0]).max() > 1e-3  # they went somewhere


@pytest.mark.parametrize("agents", [2, 1, pytest.param(4, marks=pytest.mark.slow)])
def test_f2ba_over_agents_is_f2ba_on_the_mean(agents):
    assert_equal(*both(f"dist_f2ba[{F2BA}]", shared(agents), STEPS))


@pytest.mark.parametrize("text", SAME)
def test_first_order_methods_and_aid_with_means_are_themselves(text):
    assert_equal(*both(text, shared(2), 20))


@pytest.mark.parametrize(
    ("problem", "steps_of", "n_f", "n_g"),
    [
        ("logreg_breast_cancer_agents[agents=2]", "eta_x=1", 71, 142),
        ("distill_digits_agents[agents=2]", "eta_x=1", 449, 10),  # all synthetic images
        ("representation_digits_agents[agents=2]", "eta_x=0.1", 2, 2),
        (
            "cleaning_cnn_digits_agents[agents=2,n_train=30,n_val=20,n_test=20]",
            "eta_x=10,a_y=0.1,a_z=0.1",
            10,
            15,
        ),
    ],
)
@pytest.mark.quick_cases(2)
def test_rows_that_are_dealt_out(problem, steps_of, n_f, n_g):
    """On a finite sum an agent pays for its own rows only."""
    method = f"dist_f2ba[K=2,lam=10,{steps_of}]"
    assert_equal(*both(method, problem, 10))
    row = alone([trial(method, problem, steps=3)]).runs.iloc[0]
    assert row.cost == 3 * (3 * n_f + 6 * n_g)


@pytest.mark.parametrize("text", METHODS)
def test_rounds_and_bytes(text):
    rounds, floats = METHODS[text]
    row = alone([trial(text, shared(2), steps=5)]).runs.iloc[0]
    assert (row.status, row.steps) == ("budget", 5)
    assert row.rounds == 5 * rounds
    assert row.bytes == 5 * floats * 8


def test_conjugate_gradients_cost_a_round_a_product():
    row = alone([trial("dist_aid[D=3,N=4]", shared(2), steps=5)]).runs.iloc[0]
    assert row.hvp == 5 * 4 + 4  # no first residual in the first step
    assert row.rounds == 5 * (3 + 1 + 1) + row.hvp


@pytest.mark.parametrize("text", METHODS)
def test_an_agent_asks_as_much_as_the_method_alone(text):
    (spec,) = parse_spec(text)
    over_agents = alone([trial(text, shared(2), steps=5)]).runs.iloc[0]
    name = "aid" if "local" in spec.name else spec.name.removeprefix("dist_")
    params = {**spec.params, "solver": "richardson"} if "local" in spec.name else spec.params
    inside = ",".join(f"{key}={value}" for key, value in params.items())
    twin = alone([trial(f"{name}[{inside}]", shared(2), steps=5)]).runs.iloc[0]
    for column in ("grad_f", "grad_g", "hvp", "jvp", "value", "cost"):
        assert over_agents[column] == twin[column]


# ---------------------------------------------------------------------------------------------------- the wrong point


def wrong_and_right(problem: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Where the mean of local hypergradients vanishes, where grad phi does, and grad phi at the first, in plain numpy."""
    (spec,) = parse_spec(problem)
    made = make(registry().problem(spec.name), spec.params)
    held = [(q.A.numpy(), q.B.numpy(), q.c.numpy()) for q in made.held()]
    A, B, c = (np.mean([h[i] for h in held], axis=0) for i in range(3))
    M, reg = B @ np.linalg.inv(A), made.reg * np.eye(len(B))
    own = [(B_i @ np.linalg.inv(A_i), c_i) for A_i, B_i, c_i in held]
    wrong = np.linalg.solve(np.mean([m @ M.T for m, _ in own], axis=0) + reg, np.mean([m @ v for m, v in own], axis=0))
    right = np.linalg.solve(M @ M.T + reg, M @ c)
    return wrong, right, M @ (M.T @ wrong - c) + made.reg * wrong


SETTING = "D=6,N=6,solver=richardson"
TAME = shared(2).replace("]", ",kappa=2,reg=4]")


def test_averaging_local_hypergradients_ends_at_the_wrong_point():
    wrong, right, gradient = wrong_and_right(TAME)
    results = alone([trial(f"dist_aid_local[{SETTING}]", TAME, steps=120)])
    row, last = results.runs.iloc[0], results.curve.iloc[-1]
    assert np.linalg.norm(gradient) > 0.3
    assert row.grad_phi == pytest.approx(np.linalg.norm(gradient), rel=1e-7)
    assert last.distance == pytest.approx(np.linalg.norm(wrong - right), rel=1e-7)


def test_a_distributed_solver_ends_at_the_right_one():
    results = alone([trial(f"dist_aid[{SETTING}]", TAME, steps=120)])
    assert results.runs.grad_phi[0] < 1e-8
    assert results.curve.distance.iloc[-1] < 1e-8


def test_agents_who_are_alike_do_no_harm():
    problem = TAME.replace("]", ",difference=0]")
    assert alone([trial(f"dist_aid_local[{SETTING}]", problem, steps=120)]).runs.grad_phi[0] < 1e-8


# ---------------------------------------------------------------------------------------------------- the rules


def test_claims_are_those_of_the_method_alone():
    for name, entry in registry().algorithms.items():
        if name.startswith("dist_"):
            assert entry.value.claims == ()


def test_parameters_are_in_the_table():
    row = alone([trial("dist_f2ba[agents=1]", shared(1), steps=1)]).runs.iloc[0]
    assert json.loads(row.algorithm_params)["agents"] == 1
