from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch
from torch.autograd import forward_ad

from bilevelbench.errors import BudgetExhausted, InvalidInput, MethodError, UndeclaredQuery
from bilevelbench.model.instance import Instance
from bilevelbench.model.lanes import dot, keep
from bilevelbench.model.noise import Additive
from bilevelbench.model.queries import PRODUCTS, QUERIES, ROW

PAIRS = [q for q in QUERIES if q not in PRODUCTS]


@pytest.fixture(autouse=True)
def without_grad():
    """As the runner does."""
    with torch.no_grad():
        yield


@pytest.fixture
def oracle(bowl, door):
    return door(bowl())


@pytest.fixture
def point(normal):
    return normal(4, 3), normal(4, 5)


def ask(oracle, query, x, y, v=None, **rest):
    if query in PRODUCTS:
        return getattr(oracle, query)(x, y, y if v is None else v, **rest)
    return getattr(oracle, query)(x, y, **rest)


def blocks(out):
    return out if isinstance(out, tuple) else (out,)


def mask(*on):
    return torch.tensor(on, dtype=torch.bool).reshape(-1, 1)


def times(*numbers):
    return torch.tensor(numbers).reshape(-1, 1)


def cost(oracle):
    return oracle.meter.columns()["cost"].tolist()


# ---------------------------------------------------------------------------------------------- the door


@pytest.mark.parametrize("query", QUERIES)
def test_undeclared_query_is_refused_by_name(bowl, door, query):
    oracle = door(bowl(), uses=set(QUERIES) - {query})
    with pytest.raises(UndeclaredQuery, match=f"asked for '{query}'"):
        getattr(oracle, query)


def test_refusal_lists_what_is_declared(bowl, door):
    with pytest.raises(UndeclaredQuery, match="declared: grad_f, grad_g_y"):
        _ = door(bowl(), uses={"grad_g_y", "grad_f"}).value_f


def test_unknown_attribute_is_no_query(oracle):
    with pytest.raises(AttributeError, match="'grad_h'"):
        _ = oracle.grad_h


@pytest.mark.parametrize("query", QUERIES)
def test_query_answers_what_the_instance_does(bowl, door, point, query):
    out, expected = ask(door(bowl()), query, *point), ask(bowl(), query, *point)
    assert all(torch.equal(a, b) for a, b in zip(blocks(out), blocks(expected), strict=True))


@pytest.mark.parametrize("query", QUERIES)
def test_query_is_one_call_in_every_lane_and_in_both_books(oracle, point, query):
    ask(oracle, query, *point)
    assert cost(oracle) == [1] * 4
    assert oracle.meter.passes[ROW[query]] == 1
    assert oracle.counts_agree


@pytest.mark.parametrize("query", QUERIES)
def test_charge_comes_before_the_work(normal, door, point, query):
    def never(*arguments):
        raise AssertionError("worked without being paid")

    instance = Instance(f=never, g=never, x0=normal(1, 3), y0=normal(1, 5))
    oracle = door(instance, budgets=[0.0] * 4)
    with pytest.raises(BudgetExhausted):
        ask(oracle, query, *point)
    assert oracle.counts_agree


@pytest.mark.parametrize("derivatives", [True, False], ids=["analytic", "autograd"])
@pytest.mark.parametrize("query", QUERIES)
def test_answers_are_detached_from_inputs_that_require_grad(bowl, door, point, query, derivatives):
    x, y = (t.clone().requires_grad_() for t in point)
    oracle = door(bowl(derivatives=derivatives))
    with torch.enable_grad():
        out = ask(oracle, query, x, y)
    assert not any(block.requires_grad for block in blocks(out))
    assert x.grad is None


@pytest.mark.parametrize("query", QUERIES)
def test_noisy_answers_are_detached_too(bowl, door, point, query):
    x, y = (t.clone().requires_grad_() for t in point)
    oracle = door(bowl(noise=Additive(1.0, 1.0, 1.0)))
    xi = oracle.sample_f(2) if "_f" in query else oracle.sample_g(2)
    with torch.enable_grad():
        out = ask(oracle, query, x, y, xi=xi)
    assert not any(block.requires_grad for block in blocks(out))


def test_answers_are_detached_from_data_that_require_grad(normal, door, point):
    weight = normal(3).requires_grad_()
    instance = Instance(
        f=lambda x, y: dot(weight * x, x) + dot(y, y),
        g=lambda x, y: dot(y, y),
        x0=normal(1, 3),
        y0=normal(1, 5),
        grad_f_x=lambda x, y: 2 * weight * x,
    )
    with torch.enable_grad():
        oracle = door(instance)
        assert not oracle.grad_f_x(*point).requires_grad
        assert not oracle.value_f(*point).requires_grad


@pytest.mark.parametrize("query", QUERIES)
def test_autograd_answers_what_the_closed_form_does(bowl, door, point, query):
    derived, analytic = (ask(door(bowl(derivatives=d)), query, *point) for d in (False, True))
    for a, b in zip(blocks(derived), blocks(analytic), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("query", ["grad_g_x", "jvp_g_xy"])
def test_unused_x_has_derivative_zero(normal, door, point, query):
    instance = Instance(f=lambda x, y: dot(y, y), g=lambda x, y: dot(y, y) ** 2, x0=normal(1, 3), y0=normal(1, 5))
    assert torch.equal(ask(door(instance), query, *point), torch.zeros(4, 3, dtype=torch.float64))


def test_unused_y_has_derivative_zero(normal, door, point):
    instance = Instance(f=lambda x, y: dot(x, x), g=lambda x, y: dot(y, y), x0=normal(1, 3), y0=normal(1, 5))
    f_x, f_y = door(instance).grad_f(*point)
    torch.testing.assert_close(f_x, 2 * point[0])
    assert torch.equal(f_y, torch.zeros(4, 5, dtype=torch.float64))


def test_attributes_tell_the_shape_of_the_problem(bowl, door):
    oracle = door(bowl(noise=Additive(n_f=7, n_g=9)))
    assert (oracle.L, oracle.dx, oracle.dy, oracle.n_f, oracle.n_g) == (4, 3, 5, 7, 9)
    assert oracle.dtype == torch.float64


def test_declared_constant_is_given(bowl, door):
    assert door(bowl(constants={"mu": 0.25}), uses={"mu"}).constant("mu") == 0.25


def test_constant_follows_from_a_formula(bowl, door):
    assert door(bowl(constants={"L_g": 3.0}), uses={"L_gy"}).constant("L_gy") == 3.0


def test_undeclared_constant_is_refused_by_name(bowl, door):
    with pytest.raises(UndeclaredQuery, match="'mu'"):
        door(bowl(constants={"mu": 0.25})).constant("mu")


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_an_oracle_cannot_be_copied_or_pickled(oracle, duplicate):
    with pytest.raises(TypeError, match="second, unread meter"):
        duplicate(oracle)


def test_books_disagree_when_the_instance_is_called_past_the_oracle(oracle, point):
    oracle.grad_f(*point)
    oracle._instance.grad_f(*point)
    assert not oracle.counts_agree
    assert oracle.count_differences() == "grad_f: 1 at the door, 2 below it"


def test_uncounted_calls_leave_the_books_in_agreement(oracle, point):
    with oracle._instance.uncounted():
        oracle._instance.grad_f(*point)
    assert oracle.counts_agree
    assert oracle.count_differences() == ""


@pytest.mark.parametrize("query", QUERIES)
def test_the_second_book_counts_the_rows_that_arrive(oracle, point, query):
    """Also where the first would take ten times the lanes for one call."""
    function = oracle._instance.expect(4)[query]
    arguments = [*point, point[1]] if query in PRODUCTS else list(point)
    function(*arguments)
    assert oracle._instance.passes[ROW[query]] == 1
    function(*(a.repeat(10, 1) for a in arguments))
    assert oracle._instance.passes[ROW[query]] == 11
    oracle._instance.functions[query](*(a.repeat(10, 1) for a in arguments))
    assert oracle._instance.passes[ROW[query]] == 21


@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda a: a.repeat(10, 1), r"x has the shape \(40, 3\); \(4, 3\) is wanted, one row per lane"),
        (lambda a: a[0], r"x has the shape \(3,\)"),
        (lambda a: a[:1], r"x has the shape \(1, 3\)"),
        (lambda a: a.T, r"x has the shape \(3, 4\)"),
        (lambda a: a.float(), "x is torch.float32 and the problem torch.float64; convert it"),
        (lambda a: a + 0j, "x is torch.complex128"),
        (lambda a: a.tolist(), "x is list, not a tensor"),
        (lambda a: a.as_subclass(Disguised), "x is a Disguised; hand over a plain torch.Tensor"),
    ],
)
def test_what_is_no_plain_point_is_refused_before_any_charge(oracle, point, query, change, words):
    with pytest.raises(MethodError, match=words):
        ask(oracle, query, *(change(a) for a in point))
    assert oracle.counts_agree
    assert not any(cost(oracle))


class Disguised(torch.Tensor):
    """Could listen to everything that a problem does with it."""


def test_a_parameter_of_a_module_is_a_plain_tensor(oracle, point):
    x, y = (torch.nn.Parameter(a) for a in point)
    torch.testing.assert_close(oracle.grad_g_y(x, y), oracle.grad_g_y(*point))


@pytest.mark.parametrize("query", QUERIES)
def test_transforms_of_torch_func_are_refused(oracle, point, query):
    x, y = point
    with pytest.raises(MethodError, match=r"asked inside a transform of torch\.func"):
        torch.vmap(lambda w: ask(oracle, query, x, w))(torch.stack([y] * 10))
    with pytest.raises(MethodError, match=r"asked inside a transform of torch\.func"):
        torch.func.jvp(lambda w: ask(oracle, query, x, w), (y,), (y,))
    assert not any(cost(oracle))


@pytest.mark.parametrize("query", QUERIES)
def test_tangents_are_refused_and_plain_tensors_beside_them_are_not(oracle, point, query):
    x, y = point
    with forward_ad.dual_level():
        with pytest.raises(MethodError, match=f"{query}: y carries a tangent"):
            ask(oracle, query, x, forward_ad.make_dual(y, y))
        ask(oracle, query, x, y)
    assert cost(oracle) == [1.0] * 4


def test_a_mask_that_is_changed_in_place_changes_nothing(oracle, point):
    on = mask(False, True, True, True)
    with oracle.only(on):
        on.fill_(False)
        out = oracle.grad_g_y(*point)
        on.fill_(True)
        assert oracle.grad_g_y(*point)[0].isnan().all()
    assert out[1:].isfinite().all()
    assert cost(oracle) == [0.0, 2.0, 2.0, 2.0]
    for given in oracle.repeat(times(1, 2, 2, 2)):
        if given is not True:
            given.fill_(False)
        oracle.grad_g_y(*point)
    assert cost(oracle) == [1.0, 4.0, 4.0, 4.0]


def test_mean_is_the_identity_on_one_machine(oracle, normal):
    a, b = normal(4, 3), normal(4, 5)
    assert oracle.mean(a) is a
    first, second = oracle.mean(a, b)
    assert first is a
    assert second is b
    assert oracle.meter.columns()["rounds"].tolist() == [0] * oracle.L


# ---------------------------------------------------------------------------------------------- several points

SHAPES = [
    ((6, 4, 3), (6, 4, 5)),
    ((4, 3), (6, 4, 5)),
    ((6, 4, 3), (4, 5)),
    ((2, 3, 4, 3), (3, 4, 5)),
    ((1, 4, 3), (1, 4, 5)),
]


@pytest.mark.parametrize("derivatives", [True, False], ids=["analytic", "autograd"])
@pytest.mark.parametrize("kind", ["stack", "loop"])
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
@pytest.mark.parametrize("query", PAIRS)
def test_answer_at_several_points_is_that_at_each(bowl, door, normal, query, shapes, kind, derivatives):
    x, y = normal(*shapes[0]), normal(*shapes[1])
    points = torch.broadcast_shapes(x.shape[:-2], y.shape[:-2])
    oracle = door(bowl(points=kind, derivatives=derivatives))
    out = blocks(getattr(oracle, query)(x, y))
    flat_x, flat_y = x.expand(*points, 4, 3).reshape(-1, 4, 3), y.expand(*points, 4, 5).reshape(-1, 4, 5)
    each = [blocks(getattr(bowl(), query)(a, b)) for a, b in zip(flat_x, flat_y, strict=True)]
    for i, block in enumerate(out):
        expected = torch.stack([e[i] for e in each]).reshape(*points, 4, -1)
        torch.testing.assert_close(block, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", ["stack", "loop"])
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
@pytest.mark.parametrize("query", PAIRS)
def test_a_query_at_p_points_is_p_calls_in_both_books(bowl, door, normal, query, shapes, kind):
    x, y = normal(*shapes[0]), normal(*shapes[1])
    p = torch.broadcast_shapes(x.shape[:-2], y.shape[:-2]).numel()
    oracle = door(bowl(points=kind))
    getattr(oracle, query)(x, y)
    assert cost(oracle) == [p] * 4
    assert oracle.meter.passes[ROW[query]] == p
    assert oracle.counts_agree


TRIPLES = [((6, 4, 3), (4, 5), (4, 5)), ((4, 3), (6, 4, 5), (6, 4, 5)), ((4, 3), (4, 5), (6, 4, 5))]


@pytest.mark.parametrize("kind", ["stack", "loop"])
@pytest.mark.parametrize("shapes", TRIPLES, ids=str)
@pytest.mark.parametrize("query", PRODUCTS)
def test_a_product_at_p_points_is_p_calls_in_both_books(bowl, door, normal, query, shapes, kind):
    x, y, v = (normal(*shape) for shape in shapes)
    oracle = door(bowl(points=kind))
    out = getattr(oracle, query)(x, y, v)
    torch.testing.assert_close(out, getattr(bowl(), query)(x, y, v))
    assert cost(oracle) == [6] * 4
    assert oracle.counts_agree


def test_budget_of_a_query_at_several_points_is_all_or_nothing(bowl, door, normal):
    oracle = door(bowl(), budgets=[5.0] * 4)
    with pytest.raises(BudgetExhausted):
        oracle.grad_f(normal(6, 4, 3), normal(6, 4, 5))
    assert cost(oracle) == [0] * 4
    assert oracle.counts_agree


# ---------------------------------------------------------------------------------------------- repeat


def test_repeat_with_an_int_yields_true_that_often(oracle):
    assert list(oracle.repeat(3)) == [True] * 3
    assert list(oracle.repeat(0)) == []


def test_repeat_yields_true_while_every_lane_is_on(oracle):
    on = list(oracle.repeat(times(2, 3, 2, 4)))
    assert on[:2] == [True, True]
    assert [o.flatten().tolist() for o in on[2:]] == [[False, True, False, True], [False, False, False, True]]


@pytest.mark.parametrize("K", [(0, 1, 2, 5), (3, 3, 3, 3), (0, 0, 0, 0), (7, 0, 0, 0)])
def test_each_lane_pays_for_its_own_iterations(oracle, point, K):
    for _ in oracle.repeat(times(*K)):
        oracle.grad_g_y(*point)
    assert cost(oracle) == list(K)
    assert oracle.counts_agree


def test_remembered_lengths_pay_the_same(oracle, point):
    K = times(0, 1, 2, 5)
    oracle.remember(K)
    for _ in range(2):
        for _ in oracle.repeat(K):
            oracle.grad_g_y(*point)
    assert cost(oracle) == [0, 2, 4, 10]


def test_fractional_length_is_rounded_up(oracle, point):
    for _ in oracle.repeat(times(0.5, 1.0, 2.25, 3.0)):
        oracle.grad_g_y(*point)
    assert cost(oracle) == [1, 1, 3, 3]


def test_lane_whose_length_is_not_a_number_makes_no_iteration(oracle, point):
    for _ in oracle.repeat(times(torch.nan, 1.0, 2.0, 3.0)):
        oracle.grad_g_y(*point)
    assert cost(oracle) == [0, 1, 2, 3]


def test_kept_iterates_are_those_of_each_lane_alone(bowl, door, point):
    def descend(oracle, x, y, K):
        for on in oracle.repeat(K):
            y = keep(on, y - 0.1 * oracle.grad_g_y(x, y), y)
        return y

    x, y = point
    together = descend(door(bowl()), x, y, times(0, 1, 4, 9))
    for lane, K in enumerate((0, 1, 4, 9)):
        torch.testing.assert_close(together[lane], descend(door(bowl()), x, y, K)[lane], rtol=1e-14, atol=0)


@pytest.mark.parametrize("query", QUERIES)
def test_lanes_that_are_off_get_nan_and_the_others_their_answer(bowl, oracle, point, query):
    on = mask(1, 0, 0, 1)
    with oracle.only(on):
        out = blocks(ask(oracle, query, *point))
    for a, b in zip(out, blocks(ask(bowl(), query, *point)), strict=True):
        assert torch.equal(a[[0, 3]], b[[0, 3]])
        assert bool(a[[1, 2]].isnan().all())


def test_nan_reaches_every_point_of_a_lane_that_is_off(oracle, normal):
    with oracle.only(mask(1, 0, 1, 1)):
        g_x, g_y = oracle.grad_g(normal(6, 4, 3), normal(4, 5))
    for block in (g_x, g_y):
        assert bool(block[:, 1].isnan().all())
        assert not bool(block[:, [0, 2, 3]].isnan().any())


def test_only_charges_the_lanes_that_are_on(oracle, point):
    with oracle.only(mask(1, 0, 0, 1)):
        oracle.grad_f(*point)
    oracle.grad_f(*point)
    assert cost(oracle) == [2, 1, 1, 2]
    assert oracle.counts_agree


def test_only_with_every_lane_leaves_the_mask_alone(oracle, point):
    with oracle.only(mask(1, 1, 1, 1)):
        assert oracle.meter.mask is None
        assert not oracle.grad_f_x(*point).isnan().any()


def test_nested_masks_intersect(oracle, point):
    with oracle.only(mask(1, 1, 0, 0)):
        oracle.grad_f(*point)
        with oracle.only(mask(0, 1, 1, 0)):
            oracle.grad_f(*point)
        oracle.grad_f(*point)
    assert cost(oracle) == [2, 3, 0, 0]


def test_only_with_every_lane_inside_another_mask_does_not_lift_it(oracle, point):
    with oracle.only(mask(1, 0, 0, 0)), oracle.only(mask(1, 1, 1, 1)):
        oracle.grad_f(*point)
    assert cost(oracle) == [1, 0, 0, 0]


def test_repeat_inside_only_and_only_inside_repeat(oracle, point):
    with oracle.only(mask(1, 1, 1, 0)):
        for _ in oracle.repeat(times(0, 1, 2, 9)):
            oracle.grad_f(*point)
            with oracle.only(mask(0, 0, 1, 1)):
                oracle.grad_f(*point)
    assert cost(oracle) == [0, 1, 4, 0]


def test_nested_repeats_multiply(oracle, point):
    for _ in oracle.repeat(times(1, 2, 0, 3)):
        for _ in oracle.repeat(times(4, 3, 2, 1)):
            oracle.grad_f(*point)
    assert cost(oracle) == [4, 6, 0, 3]
    assert oracle.counts_agree


def test_repeat_with_an_int_inside_a_mask_yields_the_mask(oracle):
    with oracle.only(mask(1, 0, 1, 0)):
        assert [on.flatten().tolist() for on in oracle.repeat(2)] == [[True, False, True, False]] * 2


@pytest.mark.parametrize("query", QUERIES)
def test_with_every_lane_off_there_is_no_charge_no_work_and_only_nan(bowl, oracle, normal, query):
    x, y = normal(6, 4, 3), normal(4, 5)
    with oracle.only(mask(0, 0, 0, 0)):
        out = blocks(ask(oracle, query, x, y))
    assert cost(oracle) == [0] * 4
    assert oracle._instance.passes[ROW[query]] == oracle.meter.passes[ROW[query]] == 0
    for a, b in zip(out, blocks(ask(bowl(), query, x, y)), strict=True):
        assert bool(a.isnan().all())
        assert a.shape == torch.broadcast_shapes(b.shape, (6, 1, 1))


def test_break_restores_the_mask(oracle, point):
    for on in oracle.repeat(times(1, 2, 3, 4)):
        if on is not True:
            break
    assert oracle.meter.mask is None
    oracle.grad_f(*point)
    assert cost(oracle) == [1] * 4


def test_break_restores_an_outer_mask(oracle, point):
    with oracle.only(mask(1, 1, 0, 0)):
        for _ in oracle.repeat(times(0, 2, 3, 4)):
            break
        oracle.grad_f(*point)
    assert cost(oracle) == [1, 1, 0, 0]


@pytest.mark.parametrize("error", [ValueError, BudgetExhausted])
def test_an_error_inside_a_loop_or_a_mask_restores_the_mask(oracle, error):
    def broken():
        for _ in oracle.repeat(times(0, 1, 2, 3)):
            with oracle.only(mask(0, 0, 1, 1)):
                raise error

    with pytest.raises(error):
        broken()
    assert oracle.meter.mask is None
    assert len(oracle._frames) == 1


def test_begin_step_lifts_a_mask_that_was_left_behind(oracle, point):
    loop = oracle.repeat(times(0, 1, 2, 3))
    next(loop)
    oracle.begin_step(2)
    oracle.grad_f(*point)
    assert cost(oracle) == [1] * 4


# ---------------------------------------------------------------------------------------------- budgets


def test_lane_out_of_budget_goes_on_as_a_ghost(bowl, door, point):
    oracle = door(bowl(), budgets=[2.0, 9.0, 9.0, 9.0])
    for _ in range(3):
        out = oracle.grad_f_x(*point)
    assert cost(oracle) == [2, 3, 3, 3]
    assert oracle.meter.ghost.tolist() == [True, False, False, False]
    assert not out.isnan().any()
    assert oracle.counts_agree


def test_padding_is_computed_and_never_charged(bowl, door, point):
    oracle = door(bowl(), real=[True, False, False, False])
    assert not oracle.grad_f_x(*point).isnan().any()
    assert cost(oracle) == [1, 0, 0, 0]


def test_ghost_does_not_hold_up_a_loop(bowl, door, point):
    """Its trial is over: the loop ends with the longest lane that still has a budget."""
    oracle = door(bowl(), budgets=[1.0, 99.0, 99.0, 99.0])
    oracle.grad_f(*point)
    oracle.grad_f(*point)
    assert len(list(oracle.repeat(times(1000, 2, 1, 3)))) == 3


def test_take_keeps_the_lanes_their_bills_and_their_numbers(bowl, door, point, normal):
    oracle, twin = door(bowl()), door(bowl())
    for _ in oracle.repeat(times(1, 2, 3, 4)):
        oracle.grad_f(*point)
    oracle.take([3, 1], [True, True])
    oracle.begin_step(2)
    twin.begin_step(2)
    assert oracle.L == 2
    assert cost(oracle) == [4, 2]
    assert torch.equal(oracle.normal(5), twin.normal(5)[[3, 1]])
    assert torch.equal(oracle.grad_f_x(point[0][[3, 1]], point[1][[3, 1]]), bowl().grad_f_x(*point)[[3, 1]])
    assert oracle.counts_agree


def test_take_of_an_instance_with_lane_data_restarts_both_books(normal, door):
    def build(centre):
        return Instance(
            f=lambda x, y: dot(x - centre, x - centre),
            g=lambda x, y: dot(y, y),
            x0=torch.zeros(1, 3, dtype=torch.float64),
            y0=torch.zeros(1, 5, dtype=torch.float64),
            take=lambda lanes: build(centre[lanes]),
        )

    centre, x, y = normal(4, 3), normal(4, 3), normal(4, 5)
    oracle = door(build(centre))
    oracle.grad_f_x(x, y)
    oracle.take([2, 0], [True, True])
    torch.testing.assert_close(oracle.grad_f_x(x[:2], y[:2]), 2 * (x[:2] - centre[[2, 0]]))
    assert oracle.counts_agree
    assert cost(oracle) == [2, 2]


# ---------------------------------------------------------------------------------------------- draws


@pytest.mark.parametrize("law", ["normal", "uniform"])
def test_draw_has_points_before_lanes(oracle, law):
    assert getattr(oracle, law)(5).shape == (4, 5)
    assert getattr(oracle, law)(2, 3, 5).shape == (2, 3, 4, 5)
    assert getattr(oracle, law)(5).dtype == torch.float64


def test_draw_is_contiguous_so_that_sums_round_alike(oracle):
    assert oracle.normal(2, 5).is_contiguous()


@pytest.mark.parametrize("shape", [(), (0,), (3, -1)])
def test_draw_without_a_size_is_refused(oracle, shape):
    with pytest.raises(InvalidInput, match="needs the size of its last axis"):
        oracle.normal(*shape)


def test_two_draws_in_a_step_differ(oracle):
    assert not torch.equal(oracle.normal(5), oracle.normal(5))


def test_a_step_draws_the_same_when_it_is_made_again(oracle):
    first = oracle.normal(5)
    oracle.begin_step(2)
    second = oracle.normal(5)
    oracle.begin_step(1)
    assert torch.equal(oracle.normal(5), first)
    assert not torch.equal(first, second)


def test_draws_depend_on_the_seed_of_the_lane_alone(bowl, door):
    pack, single = door(bowl(), seeds=[7, 8, 9, 7]), door(bowl(), seeds=[7])
    out = pack.normal(3, 5)
    assert torch.equal(out[:, 0], out[:, 3])
    assert not torch.equal(out[:, 0], out[:, 1])
    assert torch.equal(out[:, :1], single.normal(3, 5))


def test_queries_do_not_shift_draws(oracle, door, bowl, point):
    twin = door(bowl())
    oracle.grad_f(*point)
    assert torch.equal(oracle.normal(5), twin.normal(5))


def draws_in_loop(oracle, K):
    """What each iteration drew, and what came after the loop."""
    inside = [oracle.normal(2) for _ in oracle.repeat(K)]
    return inside, oracle.normal(2)


def test_lanes_with_different_lengths_see_common_random_numbers(bowl, door):
    """Also after the loop: the place counts, not how many draws came before."""
    mixed, after = draws_in_loop(door(bowl()), times(1, 2, 5, 9))
    for K in (1, 2, 5, 9):
        inside, then = draws_in_loop(door(bowl()), K)
        assert all(torch.equal(a, b) for a, b in zip(mixed, inside, strict=False))
        assert torch.equal(then, after)


def test_iterations_of_a_loop_draw_different_numbers(oracle):
    inside, after = draws_in_loop(oracle, 40)
    assert len(torch.unique(torch.cat([*inside, after]))) == 41 * 8


def test_two_loops_at_different_places_draw_different_numbers(oracle):
    first, _ = draws_in_loop(oracle, 3)
    second, _ = draws_in_loop(oracle, 3)
    assert not any(torch.equal(a, b) for a in first for b in second)


def test_nested_loops_draw_different_numbers_everywhere(oracle):
    seen = [oracle.normal(1) for _ in oracle.repeat(3) for _ in oracle.repeat(4)]
    assert len(torch.unique(torch.cat(seen))) == 12 * 4


def test_break_out_of_a_loop_does_not_shift_later_draws(bowl, door):
    whole, broken = door(bowl()), door(bowl())
    for _ in whole.repeat(5):
        whole.normal(2)
    for _ in broken.repeat(5):
        broken.normal(2)
        break
    assert torch.equal(whole.normal(2), broken.normal(2))


def test_uniform_stays_below_one_in_single_precision(normal, door, monkeypatch):
    instance = Instance(f=dot, g=dot, x0=normal(1, 2).float(), y0=normal(1, 2).float())
    oracle = door(instance, lanes=1)
    monkeypatch.setattr(oracle._draws, "_draw", lambda *_: np.array([[1 - 2.0**-53]]))
    assert oracle.uniform(1).item() == 1 - 2.0**-24
