"""The counts of one outer iteration are those of the pseudo-code, exactly."""

from __future__ import annotations

import itertools

import pytest
from helpers import packed, trial

from bilevelbench.discovery.entry import make
from bilevelbench.discovery.registry import registry
from bilevelbench.model.queries import COLUMNS
from bilevelbench.plan.trial import Trial

STEPS = 4
SIZES = [1, 3, 10]
FIRST_ORDER_METHODS = ["f2ba", "f2sa"]
LOOP = {"f2ba": "K", "f2sa": "T_in"}


def counts(some: list[Trial]) -> list[dict[str, float]]:
    runs = packed(some).runs
    assert (runs.steps == some[0].budget.steps).all()
    return runs[[*COLUMNS, "first_order", "second_order", "cost"]].to_dict("records")


def totals(
    grad_f: int, grad_f_x: int, grad_f_y: int, grad_g_x: int, grad_g_y: int, hvp: int, jvp: int
) -> dict[str, float]:
    """All columns of a method that never asks for g_x and g_y together, nor for values."""
    first, second = grad_f + grad_g_x + grad_g_y, hvp + jvp
    return {
        "grad_f": grad_f,
        "grad_g": grad_g_x + grad_g_y,
        "grad_f_x": grad_f_x,
        "grad_f_y": grad_f_y,
        "grad_g_x": grad_g_x,
        "grad_g_y": grad_g_y,
        "hvp": hvp,
        "jvp": jvp,
        "value": 0,
        "first_order": first,
        "second_order": second,
        "cost": first + second,
    }


@pytest.mark.parametrize("method", FIRST_ORDER_METHODS)
def test_penalty_methods_make_3K_plus_3_calls_a_step(method):
    got = counts([trial(f"{method}[{LOOP[method]}={K}]", "quadratic", steps=STEPS) for K in SIZES])
    T = STEPS
    assert got == [
        totals(grad_f=T * (1 + K), grad_f_x=T, grad_f_y=T * K, grad_g_x=2 * T, grad_g_y=2 * T * K, hvp=0, jvp=0)
        for K in SIZES
    ]


def test_aid_with_cg_makes_one_more_product_when_it_starts_warm():
    sizes = list(itertools.product(SIZES, SIZES))
    got = counts([trial(f"aid[solver=cg,tol=0,D={D},N={N}]", "quadratic[dim_y=30]", steps=STEPS) for D, N in sizes])
    T = STEPS
    assert got == [
        totals(grad_f=T, grad_f_x=T, grad_f_y=T, grad_g_x=0, grad_g_y=T * D, hvp=N + (T - 1) * (N + 1), jvp=T)
        for D, N in sizes
    ]


def test_first_step_of_aid_with_cg_starts_from_zero_and_needs_no_residual():
    got = counts([trial(f"aid[solver=cg,D=1,N={N}]", "quadratic", steps=1) for N in SIZES])
    assert [row["hvp"] for row in got] == SIZES


def test_aid_with_richardson_makes_N_products_every_step():
    sizes = list(itertools.product(SIZES, SIZES))
    got = counts([trial(f"aid[solver=richardson,D={D},N={N}]", "quadratic", steps=STEPS) for D, N in sizes])
    T = STEPS
    assert got == [
        totals(grad_f=T, grad_f_x=T, grad_f_y=T, grad_g_x=0, grad_g_y=T * D, hvp=T * N, jvp=T) for D, N in sizes
    ]


@pytest.mark.parametrize("D", SIZES)
def test_itd_makes_D_mixed_and_D_minus_1_hessian_products(D):
    (got,) = counts([trial(f"itd[D={D}]", "quadratic", steps=STEPS)])
    T = STEPS
    assert got == totals(
        grad_f=T, grad_f_x=T, grad_f_y=T, grad_g_x=0, grad_g_y=T * D, hvp=T * (D - 1), jvp=T * D
    )  # fmt: skip


@pytest.mark.parametrize("problem", ["quadratic", "tail_anchor[c=0.5]", "power_tail", "ridge_abalone"])
@pytest.mark.parametrize("method", FIRST_ORDER_METHODS)
def test_first_order_methods_show_no_second_order_products(method, problem):
    (got,) = counts([trial(method, problem, steps=3)])
    assert (got["hvp"], got["jvp"], got["second_order"]) == (0, 0, 0)


@pytest.mark.parametrize("problem", ["tail_anchor[c=0.5]", "ridge_abalone"])
@pytest.mark.parametrize("method", ["f2ba[K=3]", "f2sa[T_in=3]", "aid[solver=richardson,D=3,N=2]", "itd[D=3]"])
def test_counts_do_not_depend_on_the_problem(method, problem):
    assert counts([trial(method, problem, steps=3)]) == counts([trial(method, "quadratic", steps=3)])


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    "text",
    ["f2ba[K={}]", "f2sa[T_in={}]", "aid[solver=richardson,D={},N=7]", "aid[solver=richardson,D=7,N={}]", "itd[D={}]"],
)
def test_declared_calls_are_what_the_meter_counts_in_each_step(text, size):
    spec = trial(text.format(size), "quadratic", steps=1).algorithm
    method = make(registry().algorithm(spec.name), spec.params)
    books = [dict.fromkeys(COLUMNS, 0)] + [
        counts([trial(text.format(size), "quadratic", steps=n)])[0] for n in range(1, STEPS + 1)
    ]
    for step in range(1, STEPS + 1):
        declared = method.calls(step)
        assert declared is not None
        made = {name: books[step][name] - books[step - 1][name] for name in COLUMNS}
        assert made == {name: sum(declared.get(q, 0) for q in queries) for name, queries in COLUMNS.items()}


def test_aid_with_cg_declares_no_calls_since_they_depend_on_the_residual():
    assert make(registry().algorithm("aid"), {"solver": "cg"}).calls(1) is None


def test_a_converged_lane_of_cg_pays_for_no_more_products():
    loose, exact = (trial(f"aid[D=1,N=10,tol={tol}]", "quadratic", steps=3) for tol in (1e9, 0))
    got = counts([loose, exact])
    assert got[0]["hvp"] == 2  # the residual of each warm start
    assert got[1]["hvp"] == 10 + 11 + 11
