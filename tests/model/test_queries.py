"""One table of queries, and everything that follows from it."""

from __future__ import annotations

from typing import get_type_hints

import pytest
import torch

from bilevelbench.errors import InvalidInput
from bilevelbench.model.derivatives import derive
from bilevelbench.model.queries import COLUMNS, QUERIES, ROW, TOTALS, Query
from bilevelbench.oracle.oracle import Oracle
from bilevelbench.results.schema import COUNT, RUNS
from bilevelbench.testing.points import ask
from bilevelbench.testing.toys import Toy

L, V = 2, 3.0


def oracle_of(*queries: str, sigma: float = 0.0) -> Oracle:
    oracle = Oracle(Toy(sigma=sigma).build(), frozenset(queries), range(L))
    oracle.begin_step(1)
    return oracle


def arguments(query: Query, oracle: Oracle) -> tuple[torch.Tensor, ...]:
    x, y, v = torch.ones(L, oracle.dx), torch.ones(L, oracle.dy), torch.full((L, oracle.dy), V)
    return (x, y, v) if query.takes_vector else (x, y)


def test_the_columns_of_runs_are_those_of_the_table_in_their_order() -> None:
    columns = dict.fromkeys(query.column for query in QUERIES.values())
    assert list(COLUMNS) == [name for name in columns if name not in TOTALS]
    names = list(RUNS)
    first = names.index("steps") + 1
    assert names[first : first + len(COLUMNS) + len(TOTALS)] == [*COLUMNS, *TOTALS]
    assert all(RUNS[name] == COUNT for name in COLUMNS | TOTALS)


def test_a_joint_gradient_counts_in_its_blocks_and_a_block_in_the_joint_one_alone() -> None:
    assert COLUMNS["grad_f"] == ("grad_f", "grad_f_x", "grad_f_y")
    assert COLUMNS["grad_g_y"] == ("grad_g", "grad_g_y")
    assert COLUMNS["value"] == ("value_f", "value_g")
    assert {name for queries in COLUMNS.values() for name in queries} == set(QUERIES) == set(ROW)


def test_a_joint_product_counts_in_both_products_and_once_in_all() -> None:
    assert COLUMNS["hvp"] == ("hvp_g_yy", "vp_g")
    assert COLUMNS["jvp"] == ("jvp_g_xy", "vp_g")
    oracle = oracle_of("vp_g", "hvp_g_yy", "jvp_g_xy")
    x, y, v = arguments(QUERIES["vp_g"], oracle)
    Jv, Hv = oracle.vp_g(x, y, v)
    counts = oracle.meter.columns()
    assert [counts[name][0] for name in ("hvp", "jvp", "second_order", "cost")] == [1, 1, 1, 1]
    assert torch.equal(Jv, oracle.jvp_g_xy(x, y, v))
    assert torch.equal(Hv, oracle.hvp_g_yy(x, y, v))
    assert oracle.meter.columns()["second_order"][0] == 3
    assert oracle.counts_agree


@pytest.mark.parametrize("given", [("vp_g",), ("vp_g", "hvp_g_yy"), ("hvp_g_yy", "jvp_g_xy"), ("jvp_g_xy",), ()])
def test_products_are_the_same_whichever_of_them_a_problem_brings(given: tuple[str, ...]) -> None:
    raw = Toy().build()._raw
    made = derive(raw["value_f"], raw["value_g"], {name: raw[name] for name in given})
    x, y, v = torch.rand(2, L, 3), torch.rand(2, L, 5), torch.rand(2, L, 5)
    expected = raw["jvp_g_xy"](x, y, v), raw["hvp_g_yy"](x, y, v)
    for found in (made["vp_g"](x, y, v), (made["jvp_g_xy"](x, y, v), made["hvp_g_yy"](x, y, v))):
        for ours, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(ours, theirs)


def test_a_joint_product_has_the_noise_of_the_products_of_its_sample() -> None:
    oracle = oracle_of("vp_g", "hvp_g_yy", "jvp_g_xy", sigma=1.0)
    x, y, v = arguments(QUERIES["vp_g"], oracle)
    xi = oracle.sample_g(3)
    Jv, Hv = oracle.vp_g(x, y, v, xi)
    assert torch.equal(Jv, oracle.jvp_g_xy(x, y, v, xi))
    assert torch.equal(Hv, oracle.hvp_g_yy(x, y, v, xi))
    assert not torch.equal(Hv, oracle.hvp_g_yy(x, y, v))
    assert oracle.meter.columns()["cost"][0] == 3 + 3 + 3 + 1


def test_gradients_and_products_are_each_in_one_total() -> None:
    for name, query in QUERIES.items():
        assert [total for total, queries in TOTALS.items() if name in queries] == (
            [["first_order"], ["second_order"]][query.order - 1] if query.order else []
        )


@pytest.mark.parametrize("query", QUERIES.values(), ids=QUERIES)
class TestOfEachQuery:
    def test_the_meter_counts_a_call_in_the_columns_of_the_table(self, query: Query) -> None:
        oracle = oracle_of(query.name)
        getattr(oracle, query.name)(*arguments(query, oracle))
        made = {name for name, count in oracle.meter.columns().items() if name in COLUMNS | TOTALS and count[0] == 1}
        assert made == {name for name, queries in (COLUMNS | TOTALS).items() if query.name in queries}

    def test_the_oracle_and_autograd_answer_with_its_outputs(self, query: Query) -> None:
        oracle = oracle_of(query.name)
        given = arguments(query, oracle)
        instance = Toy().build()
        wanted = [(L, width) for width in query.widths(oracle.dx, oracle.dy)]
        by_autograd = derive(instance._raw["value_f"], instance._raw["value_g"], {})[query.name]
        for function in (getattr(oracle, query.name), by_autograd):
            answer = function(*given)
            blocks = answer if isinstance(answer, tuple) else (answer,)
            assert [tuple(block.shape) for block in blocks] == wanted

    def test_lanes_that_are_off_get_the_same_shapes(self, query: Query) -> None:
        oracle = oracle_of(query.name)
        with oracle.only(torch.zeros(L, 1, dtype=torch.bool)):
            answer = getattr(oracle, query.name)(*arguments(query, oracle))
        blocks = answer if isinstance(answer, tuple) else (answer,)
        assert [tuple(block.shape) for block in blocks] == [(L, w) for w in query.widths(oracle.dx, oracle.dy)]
        assert all(block.isnan().all() for block in blocks)
        assert not oracle.meter.columns()["cost"].any()

    def test_a_sample_has_to_be_of_its_level(self, query: Query) -> None:
        oracle = oracle_of(query.name, sigma=1.0)
        ours, theirs = oracle.sample_f(1), oracle.sample_g(1)
        if query.level == "g":
            ours, theirs = theirs, ours
        exact, *noisy = (getattr(oracle, query.name)(*arguments(query, oracle), xi) for xi in (None, ours))
        pairs = zip(*(a if isinstance(a, tuple) else (a,) for a in (exact, *noisy)), strict=True)
        assert all(not torch.equal(a, b) for a, b in pairs)
        with pytest.raises(InvalidInput, match=f"{query.name} was given a sample of {theirs.level}"):
            getattr(oracle, query.name)(*arguments(query, oracle), theirs)

    def test_the_kit_hands_over_its_arguments(self, query: Query) -> None:
        given: list[int] = []

        def function(*arguments: torch.Tensor) -> torch.Tensor:
            given.append(len(arguments))
            return arguments[0]

        x = y = v = torch.ones(1, 1)
        ask(function, query.name, x, y, v)
        assert given == [3 if query.takes_vector else 2]

    def test_the_oracle_declares_it_for_the_type_checker(self, query: Query) -> None:
        one, both = {0: ("BlockQuery", ""), 1: ("BlockQuery", "JointQuery"), 2: ("ProductQuery", "JointProductQuery")}[
            query.order
        ]
        assert get_type_hints(Oracle)[query.name].__name__ == (both if len(query.outputs) > 1 else one)


def test_a_table_with_a_new_product_counts_it_in_the_old_columns() -> None:
    new = Query("hvp_f_yy", "f", 2, ("y",), "hvp")
    assert {query.column for query in QUERIES.values() if new.counts_in(query)} == {"hvp"}
