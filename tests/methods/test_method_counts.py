"""Every method's counts of one outer iteration are those of its pseudo-code, column by column.

The table's columns FX, FY, GX, GY are blocks; a query for both blocks at one point is *joint*: one call, and one in
each block column. So the block columns equal the table, and the calls (`grad_f`, `grad_g`, the cost) are fewer by the
joint ones. BOME and V-PBGD ask g jointly at (x, y): the K lower steps are GY K, the joint call is GX 1 and GY 1, and
g_x at the end of the lower level is GX 1, in all GX 2 and GY K + 1 with K + 2 calls of g.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import plain
import pytest
import torch
from helpers import alone, packed, trial
from plain_problems import of_quadratic

from bilevelbench.discovery.entry import make
from bilevelbench.discovery.registry import registry
from bilevelbench.model.queries import COLUMNS
from bilevelbench.model.torch_state import default_dtype
from bilevelbench.plan.spec_text import parse_spec

DIM_Y = 7
PROBLEMS = [f"quadratic[dim_x=5,dim_y={DIM_Y}]", "tail_anchor[tails=4,anchors=3,c=0.5]"]


@dataclass(frozen=True)
class Row:
    """One row of the table, and how many of the calls are joint."""

    FX: int
    FY: int
    GX: int
    GY: int
    HV: int = 0
    JV: int = 0
    VAL: int = 0
    joint_f: int = 0
    joint_g: int = 0

    def columns(self) -> dict[str, int]:
        grad_f, grad_g = self.FX + self.FY - self.joint_f, self.GX + self.GY - self.joint_g
        first, second = grad_f + grad_g, self.HV + self.JV
        return {
            "grad_f": grad_f,
            "grad_g": grad_g,
            "grad_f_x": self.FX,
            "grad_f_y": self.FY,
            "grad_g_x": self.GX,
            "grad_g_y": self.GY,
            "hvp": self.HV,
            "jvp": self.JV,
            "value": self.VAL,
            "first_order": first,
            "second_order": second,
            "cost": first + second + self.VAL,
        }


def penalty(K: int) -> Row:
    return Row(FX=1, FY=K, GX=2, GY=2 * K)


def implicit(D: int, HV: int, JV: int = 1) -> Row:
    return Row(FX=1, FY=1, GX=0, GY=D, HV=HV, JV=JV, joint_f=1)


def joint_descent(K: int, VAL: int = 0) -> Row:
    return Row(FX=1, FY=1, GX=2, GY=K + 1, VAL=VAL, joint_f=1, joint_g=1)


def differences(points: int) -> Row:
    """Two shifts with both blocks of g, and g_y between them."""
    return Row(FX=points, FY=points, GX=2 * points, GY=3 * points, joint_f=points, joint_g=2 * points)


def growing(n0: int, step: int) -> int:
    """BA's schedule, n_k with k = step - 1."""
    return n0 * math.ceil(step ** (1 / 4) / 2)


#: method -> its row at a step, steps numbered from 1
TABLE: dict[str, Callable[[int], Row]] = {
    **{f"f2ba[K={K}]": lambda step, K=K: penalty(K) for K in (1, 4, 11)},
    **{f"f2sa[T_in={K}]": lambda step, K=K: penalty(K) for K in (1, 6)},
    **{f"f2sa[T_in={K},lam_power=0.3,step_power=0.4]": lambda step, K=K: penalty(K) for K in (1, 6)},
    **{f"f2ba_released[K={K}]": lambda step, K=K: Row(FX=1, FY=K, GX=2, GY=K) for K in (1, 5)},
    **{f"ba[n0={n}]": lambda step, n=n: implicit(growing(n, step), HV=DIM_Y) for n in (1, 3)},
    "ba[n0=2,warm_start=true]": lambda step: implicit(growing(2, step), HV=DIM_Y),
    **{f"aid[D={D},N={N},solver=cg]": lambda step, D=D, N=N: implicit(D, N + (step > 1)) for D, N in ((1, 1), (4, 3))},
    **{f"aid[solver=richardson,D={D},N={N}]": lambda step, D=D, N=N: implicit(D, HV=N) for D, N in ((1, 5), (6, 2))},
    **{f"aid[solver=neumann,D={D},N={N}]": lambda step, D=D, N=N: implicit(D, HV=N) for D, N in ((1, 5), (6, 2))},
    **{f"itd[D={D}]": lambda step, D=D: implicit(D, HV=D - 1, JV=D) for D in (1, 2, 9)},
    **{f"itd[D=9,truncate={h}]": lambda step, h=h: implicit(9, HV=h - 1, JV=h) for h in (1, 4, 9)},
    "itd[D=3,truncate=7]": lambda step: implicit(3, HV=2, JV=3),
    "itd[D=3,warm_start=false]": lambda step: implicit(3, HV=2, JV=3),
    **{
        f"pzobo[Q={Q},D={D},warm_start={warm}]": lambda step, Q=Q, D=D: Row(1, 1, 0, (Q + 1) * D, joint_f=1)
        for Q, D, warm in ((1, 1, "true"), (3, 4, "true"), (3, 4, "false"))
    },
    **{f"bome[K={K}]": lambda step, K=K: joint_descent(K) for K in (1, 8)},
    **{f"bome[K={K},barrier=gap]": lambda step, K=K: joint_descent(K, VAL=2) for K in (1, 8)},
    **{f"pbgd[K={K},start={start}]": lambda step, K=K: joint_descent(K) for K in (1, 8) for start in ("y", "warm")},
    **{f"f2ba_plus[K={K}]": lambda step, K=K: penalty(K) for K in (1, 5)},
    **{
        f"f2sa_p[p={p},K={K}]": lambda step, f=p, g=g, K=K: Row(FX=f, FY=f * K, GX=g, GY=g * K)
        for p, g, K in ((1, 2, 3), (2, 2, 1), (3, 4, 2), (4, 4, 3), (5, 6, 2), (6, 6, 1))
    },
    "hjfbio": lambda step: differences(1),
    "fdehbo": lambda step: differences(1 if step == 1 else 2),
    "meha": lambda step: Row(FX=1, FY=1, GX=2, GY=2),
    "g_pbgd": lambda step: Row(FX=1, FY=1, GX=0, GY=1, HV=1, JV=1, joint_f=1),
}  # fmt: skip
FIRST_ORDER = {
    "f2ba",
    "f2sa",
    "f2ba_released",
    "pzobo",
    "bome",
    "pbgd",
    "f2ba_plus",
    "f2sa_p",
    "hjfbio",
    "fdehbo",
    "meha",
}


@functools.cache
def counted(text: str, problem: str, steps: int) -> dict[str, float]:
    """The columns after so many steps of one trial."""
    (row,) = alone([trial(text, problem, steps=steps)]).runs[[*Row(0, 0, 0, 0).columns(), "steps"]].to_dict("records")
    assert row.pop("steps") == steps
    return row


def made(text: str, problem: str, step: int) -> dict[str, float]:
    """What that one step cost."""
    after = counted(text, problem, step)
    before = counted(text, problem, step - 1) if step > 1 else dict.fromkeys(after, 0)
    return {name: after[name] - before[name] for name in after}


def name_of(text: str) -> str:
    return text.partition("[")[0]


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("text", TABLE)
def test_each_step_costs_what_the_table_says(text, problem):
    for step in (1, 2, 3):
        assert made(text, problem, step) == TABLE[text](step).columns()


@pytest.mark.parametrize("text", [text for text in TABLE if name_of(text) in ("ba", "f2ba", "aid")])
def test_many_steps_cost_the_sum_of_the_table(text):
    """BA's schedule bends for the first time at step 17."""
    rows = [TABLE[text](step).columns() for step in range(1, 31)]
    if "solver=cg" in text:  # a lane whose residual has vanished makes fewer; it has not in so few steps
        rows = rows[:5]
    total = {name: sum(row[name] for row in rows) for name in rows[0]}
    assert counted(text, PROBLEMS[0], len(rows)) == total


def test_ba_makes_one_lower_step_for_sixteen_steps_and_then_two():
    lower = [made("ba[n0=1]", PROBLEMS[0], step)["grad_g_y"] for step in (1, 16, 17, 18)]
    assert lower == [1, 1, 2, 2]


def test_ba_without_factorisation_pays_for_the_products_of_cg():
    """The table says dy (dense) or the CG count; that is counted by the plain version, to a residual of 1e-10."""
    with default_dtype(torch.float64):
        instance = make(registry().problem("quadratic"), {"dim_x": 5, "dim_y": DIM_Y}).build()
    products: list[int] = []
    steps = 4
    list(itertools.islice(plain.ba(of_quadratic(instance), 0.05, 0.4, dense=False, products=products), steps + 1))
    text = "ba[dense=0,a=0.4,eta_x=0.05]"
    assert [made(text, PROBLEMS[0], step)["hvp"] for step in range(1, steps + 1)] == products
    expected = implicit(1, HV=products[0]).columns()
    assert made(text, PROBLEMS[0], 1) == expected


@pytest.mark.parametrize("text", TABLE)
def test_declared_calls_agree_with_the_meter(text):
    (spec,) = parse_spec(text)
    method = make(registry().algorithm(spec.name), spec.params)
    if spec.name == "ba" or "solver=cg" in text:
        assert method.calls(1) is None  # depends on the problem's dimension, or on the residual
        return
    for step in (1, 2, 3):
        declared = method.calls(step)
        assert declared is not None
        assert set(declared) <= type(method).uses
        columns = {name: sum(declared.get(query, 0) for query in queries) for name, queries in COLUMNS.items()}
        got = made(text, PROBLEMS[0], step)
        assert columns == {name: got[name] for name in COLUMNS}


@pytest.mark.parametrize("text", TABLE)
def test_first_order_methods_make_no_second_order_products_and_the_others_do(text):
    row = counted(text, PROBLEMS[1], 3)
    is_first = name_of(text) in FIRST_ORDER
    assert registry().algorithm(name_of(text)).value.first_order() is is_first
    assert (row["hvp"] == 0 and row["jvp"] == 0 and row["second_order"] == 0) is is_first


def test_every_built_in_method_of_this_family_is_in_the_table():
    assert {name_of(text) for text in TABLE} == {
        "aid", "ba", "bome", "f2ba", "f2ba_released", "f2sa", "g_pbgd", "itd", "pbgd", "pzobo",
        "f2ba_plus", "f2sa_p", "fdehbo", "hjfbio", "meha",
    }  # fmt: skip


@pytest.mark.parametrize(("text", "calls_of_g"), [("bome[K=8]", 8 + 2), ("pbgd[K=8,start=y]", 8 + 2)])
def test_joint_question_at_x_y_serves_both_blocks_with_one_call(text, calls_of_g):
    got = made(text, PROBLEMS[0], 1)
    assert (got["grad_g_x"], got["grad_g_y"]) == (2, 8 + 1)
    assert got["grad_g"] == calls_of_g == got["grad_g_x"] + got["grad_g_y"] - 1


def test_lanes_of_one_pack_with_different_loops_have_the_counts_of_the_table_each():
    for name, loop in (("f2ba", "K"), ("f2sa", "T_in"), ("bome", "K"), ("pbgd", "K"), ("f2ba_released", "K")):
        sizes = [1, 7, 3, 12, 2]
        some = [trial(f"{name}[{loop}={size}]", PROBLEMS[0], steps=3) for size in sizes]
        runs = packed(some).runs
        own = {"f2ba_released": lambda K: K, "bome": lambda K: K + 1, "pbgd": lambda K: K + 1}.get(
            name, lambda K: 2 * K
        )
        assert list(runs.grad_g_y) == [3 * own(size) for size in sizes]
