"""A trial's numbers do not depend on its pack, for every method: packed and alone, the same bits in every column."""

from __future__ import annotations

import functools

import pytest
from helpers import alone, assert_same, of, packed, trial

from bilevelbench.plan.trial import Schedule, Trial
from bilevelbench.results.schema import Results

#: what is per lane differs between the trials; what is structural is written out
METHODS = {
    "ba": "ba[n0=2,eta_x={eta},a={a}]",
    "ba_warm": "ba[n0=2,warm_start=true,eta_x={eta},a={a}]",
    "ba_cg": "ba[n0=2,dense=0,eta_x={eta},a={a}]",
    "aid_cg": "aid[solver=cg,D={n},N={m},eta_x={eta},tol={tol}]",
    "aid_richardson": "aid[solver=richardson,D={n},N={m},eta_x={eta},a={a}]",
    "aid_neumann": "aid[solver=neumann,D={n},N={m},eta_x={eta},a={a}]",
    "itd": "itd[D=4,eta_x={eta},a={a}]",
    "itd_truncated": "itd[D=5,truncate=2,eta_x={eta},a={a}]",
    "itd_cold": "itd[D=4,eta_x={eta},a={a},warm_start=false]",
    "pzobo": "pzobo[Q=3,D={n},h={h},eta_x={eta},a={a}]",
    "pzobo_cold": "pzobo[Q=2,D={n},h={h},eta_x={eta},warm_start=false]",
    "bome": "bome[K={n},eta={barrier},xi_x={eta}]",
    "bome_gap": "bome[K={n},eta={barrier},xi_x={eta},barrier=gap]",
    "pbgd": "pbgd[gam={gam},K={n}]",
    "pbgd_warm": "pbgd[gam={gam},K={n},start=warm]",
    "g_pbgd": "g_pbgd[gam={gam}]",
    "f2sa": "f2sa[lam={gam},T_in={n},lam_power={power},step_power={decay},k0={k0},xi={xi}]",
    "f2ba": "f2ba[lam={gam},K={n},eta_x={eta}]",
    "f2ba_released": "f2ba_released[lam={gam},K={n},eta_x={eta}]",
    "f2ba_plus": "f2ba_plus[lam={gam},K={n},eta_x={eta}]",
    "acc_f2ba_plus": "acc_f2ba_plus[lam={gam},K={n},eta_x={eta},theta={barrier}]",
    "f2sa_p": "f2sa_p[p=3,lam={gam},K={n},eta_x={eta},a={a},B_in={n},B_out={m}]",
    "f2sa_p_normalised": "f2sa_p[p=4,lam={gam},K={n},eta_x={eta},normalise=true,B_in=none,B_out=none]",
    "hjfbio": "hjfbio[a={a},b={eta},difference={h},radius={xi}]",
    "fdehbo": "fdehbo[a={a},b={eta},difference={h},w={barrier},power={decay}]",
    "meha": "meha[c0={gam},power={power},alpha={eta},gam={xi}]",
}
#: with a value of |grad phi| that most methods reach on the way
PROBLEMS = {
    "quadratic": ("quadratic[dim_x=5,dim_y=9]", 4.0),
    "tail_anchor": ("tail_anchor[tails=3,anchors=2,c=0.5,data_seed={data}]", 1.7),
}
WIDTHS = [5, 12]


@functools.cache
def trials(method: str, problem: str) -> tuple[Trial, ...]:
    text, target = PROBLEMS[problem]
    return tuple(
        trial(
            METHODS[method].format(
                n=1 + i % 4,
                m=1 + i % 3,
                eta=[0.1, 0.03, 0.3, 0.011][i % 4],
                a=[0.3, 0.2, 0.11][i % 3],
                tol=[0.0, 1e-2, 1e-5][i % 3],
                h=[1e-2, 1e-4, 0.3][i % 3],
                gam=[10, 50.5, 3, 1e3][i % 4],
                barrier=[0.5, 0.1, 0.9][i % 3],
                power=[0, 1 / 3][i % 2],
                decay=[0, 0.4, 0.2][i % 3],
                k0=[1, 7.5][i % 2],
                xi=[1, 3.3, 10][i % 3],
            ),
            text.format(data=i % 3),
            cost=[None, 97, 63, 150.5, None][i % 5],
            steps=[12, 9, 15, 6, 14][i % 5],
            targets=[(), (target,), (0.9 * target, target)][i % 3],
            seed=i % 5,
            schedule=Schedule(ratio=1.4),
        )
        for i in range(12)
    )


@functools.cache
def each_alone(method: str, problem: str) -> Results:
    return alone(trials(method, problem))


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.quick_cases(40)
def test_packed_equals_alone(method, problem, width):
    chosen = trials(method, problem)[-width:]
    assert_same(packed(chosen), of(each_alone(method, problem), chosen))


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("method", METHODS)
def test_lanes_of_these_packs_leave_at_different_times(method, problem):
    runs = each_alone(method, problem).runs
    assert runs.steps.nunique() >= 4
    assert set(runs.status) <= {"budget", "target"}


@pytest.mark.whole
def test_some_of_these_lanes_reach_their_target():
    assert sum((each_alone(method, "tail_anchor").runs.status == "target").any() for method in METHODS) >= 5


@pytest.mark.parametrize("method", ["pzobo", "pzobo_cold"])
def test_directions_are_those_of_the_trials_seed(method):
    """Two lanes that differ in their seed alone differ; two that differ in a step see the same directions."""
    text = METHODS[method].format(n=3, h=1e-2, eta=0.1, a=0.2)
    runs = packed([trial(text, PROBLEMS["quadratic"][0], steps=5, seed=seed) for seed in (0, 1)]).runs
    assert runs.grad_phi[0] != runs.grad_phi[1]
