from __future__ import annotations

import gc
import weakref

import pytest
import torch

from bilevelbench.model.derivatives import derive
from bilevelbench.model.lanes import dot

GRADIENTS = ["grad_f", "grad_f_x", "grad_f_y", "grad_g", "grad_g_x", "grad_g_y"]
PRODUCTS = ["hvp_g_yy", "jvp_g_xy"]


def assert_close(a, b):
    for left, right in zip(a if isinstance(a, tuple) else (a,), b if isinstance(b, tuple) else (b,), strict=True):
        torch.testing.assert_close(left, right.expand_as(left), rtol=1e-12, atol=1e-12)


@pytest.fixture
def point(normal):
    return normal(4, 3), normal(4, 5)


@pytest.mark.parametrize("query", GRADIENTS)
def test_gradient_equals_the_closed_form(bowl, point, query):
    assert_close(bowl(derivatives=False).functions[query](*point), bowl().functions[query](*point))


@pytest.mark.parametrize("query", PRODUCTS)
def test_product_equals_the_closed_form(bowl, point, normal, query):
    v = normal(4, 5)
    assert_close(bowl(derivatives=False).functions[query](*point, v), bowl().functions[query](*point, v))


PAIRS = [((6, 4, 3), (6, 4, 5)), ((4, 3), (6, 4, 5)), ((6, 4, 3), (4, 5)), ((2, 1, 4, 3), (6, 4, 5))]
TRIPLES = [((4, 3), (4, 5), (6, 4, 5)), ((4, 3), (6, 4, 5), (4, 5)), ((6, 4, 3), (4, 5), (4, 5))]


@pytest.mark.parametrize("shapes", PAIRS)
@pytest.mark.parametrize("query", GRADIENTS)
def test_gradient_at_several_points_is_each_points_own(bowl, normal, query, shapes):
    x, y = normal(*shapes[0]), normal(*shapes[1])
    out = bowl(derivatives=False).functions[query](x, y)
    points = torch.broadcast_shapes(x.shape[:-2], y.shape[:-2])
    assert all(block.shape[:-2] == points for block in (out if isinstance(out, tuple) else (out,)))
    assert_close(out, bowl().functions[query](x, y))


@pytest.mark.parametrize("shapes", TRIPLES)
@pytest.mark.parametrize("query", PRODUCTS)
def test_product_at_several_points_is_each_points_own(bowl, normal, query, shapes):
    arguments = [normal(*shape) for shape in shapes]
    out = bowl(derivatives=False).functions[query](*arguments)
    assert out.shape[0] == 6
    assert_close(out, bowl().functions[query](*arguments))


@pytest.mark.parametrize("query", GRADIENTS)
def test_gradient_equals_finite_differences(bowl, point, query):
    instance, h = bowl(derivatives=False), 1e-6
    x, y = point
    value = instance.functions["value_f" if "_f" in query else "value_g"]
    blocks = instance.functions[query](x, y)
    if query.endswith("_y"):
        blocks = (torch.zeros_like(x), blocks)
    elif query.endswith("_x"):
        blocks = (blocks, torch.zeros_like(y))
    for block, which in ((b, i) for i, b in enumerate(blocks) if bool(b.any())):
        for j in range(block.shape[-1]):
            e = torch.zeros(block.shape[-1], dtype=x.dtype)
            e[j] = h
            ahead = value(x + e, y) if which == 0 else value(x, y + e)
            back = value(x - e, y) if which == 0 else value(x, y - e)
            torch.testing.assert_close(block[:, j : j + 1], (ahead - back) / (2 * h), rtol=1e-6, atol=1e-7)


def test_mixed_product_is_the_derivative_in_x_of_the_gradient_in_y(bowl, point, normal):
    instance, h = bowl(derivatives=False), 1e-6
    (x, y), v, u = point, normal(4, 5), normal(4, 3)
    ahead, back = instance.functions["grad_g_y"](x + h * u, y), instance.functions["grad_g_y"](x - h * u, y)
    torch.testing.assert_close(dot(instance.functions["jvp_g_xy"](x, y, v), u), dot((ahead - back) / (2 * h), v))


def test_lanes_do_not_touch_each_other(bowl, point):
    x, y = point
    moved = x.clone()
    moved[2] += 1
    gradient = bowl(derivatives=False).functions["grad_g"]
    before, after = gradient(x, y), gradient(moved, y)
    for a, b in zip(before, after, strict=True):
        assert torch.equal(a[[0, 1, 3]], b[[0, 1, 3]])
        assert not torch.equal(a[2], b[2])


@pytest.mark.parametrize(
    ("f", "zero"), [(lambda x, y: dot(y, y), 0), (lambda x, y: dot(x, x), 1)], ids=["no x", "no y"]
)
def test_unused_input_has_gradient_zero(point, f, zero):
    table = derive(f, f, {})
    for query, block in (("grad_f_x", 0), ("grad_f_y", 1)):
        assert bool(table[query](*point).any()) == (block != zero)
    joint = table["grad_f"](*point)
    assert [bool(block.any()) for block in joint] == [i != zero for i in range(2)]
    assert joint[zero].shape == point[zero].shape


def test_function_of_neither_input_has_gradient_zero(point):
    table = derive(lambda x, y: torch.ones(4, 1), lambda x, y: torch.ones(4, 1), {})
    assert not any(block.any() for block in table["grad_f"](*point))


@pytest.mark.parametrize(
    "g",
    [lambda x, y: dot(y, torch.ones_like(y)), lambda x, y: dot(x, x), lambda x, y: dot(x, x) + y.sum(-1, keepdim=True)],
    ids=["linear in y", "no y", "linear in y, and x"],
)
def test_second_derivative_of_what_is_linear_in_y_is_zero(point, normal, g):
    table, v = derive(g, g, {}), normal(4, 5)
    assert torch.equal(table["hvp_g_yy"](*point, v), torch.zeros(4, 5, dtype=v.dtype))
    assert torch.equal(table["jvp_g_xy"](*point, v), torch.zeros(4, 3, dtype=v.dtype))


@pytest.mark.parametrize("query", GRADIENTS)
def test_answer_carries_no_graph(bowl, point, query):
    x, y = (t.clone().requires_grad_() for t in point)
    out = bowl(derivatives=False).functions[query](x, y)
    assert not any(block.requires_grad for block in (out if isinstance(out, tuple) else (out,)))


@pytest.mark.parametrize("query", PRODUCTS)
def test_answer_of_a_product_carries_no_graph(bowl, point, normal, query):
    x, y, v = (t.clone().requires_grad_() for t in (*point, normal(4, 5)))
    assert not bowl(derivatives=False).functions[query](x, y, v).requires_grad


def test_inputs_are_left_as_they_were(bowl, point):
    x, y = point
    bowl(derivatives=False).functions["grad_g"](x, y)
    assert not x.requires_grad
    assert x.grad is None
    assert y.grad is None


def test_blocks_of_a_given_joint_gradient_are_taken_from_it(point):
    x, y = point
    table = derive(dot, dot, {"grad_f": lambda x, y: (x + 7, y + 8)})
    assert torch.equal(table["grad_f_x"](x, y), x + 7)
    assert torch.equal(table["grad_f_y"](x, y), y + 8)


def test_given_blocks_make_the_joint_gradient(point):
    x, y = point
    table = derive(dot, dot, {"grad_g_x": lambda x, y: x + 7, "grad_g_y": lambda x, y: y + 8})
    joint = table["grad_g"](x, y)
    assert torch.equal(joint[0], x + 7)
    assert torch.equal(joint[1], y + 8)


def test_one_given_block_leaves_the_other_to_autograd(point):
    x, y = point

    def f(x, y):
        return dot(x, x) + 2 * dot(y, y)

    table = derive(f, f, {"grad_f_x": lambda x, y: 2 * x})
    assert_close(table["grad_f_y"](x, y), 4 * y)
    assert_close(table["grad_f"](x, y), (2 * x, 4 * y))


def test_rows_reach_the_function(point):
    seen = []

    def g(x, y, rows=None):
        seen.append(rows)
        return dot(y, y)

    table = derive(g, g, {})
    for query in ("grad_g", "grad_g_y", "value_g"):
        table[query](*point, "rows")
    table["hvp_g_yy"](*point, point[1], "rows")
    table["grad_g"](*point)
    assert seen == ["rows"] * 4 + [None]


class Counted:
    """A function that notes how often it is run."""

    def __init__(self, function):
        self.function, self.runs = function, 0

    def __call__(self, x, y, *rows):
        self.runs += 1
        return self.function(x, y, *rows)


def quartic(x, y):
    return dot(y.square(), y.square()) + dot(x.tanh() * y, y) + dot(x, y)


@pytest.fixture
def quartics(normal):
    """g that counts its runs, all queries of it, and a point."""
    g = Counted(quartic)
    return g, derive(quartic, g, {}), normal(4, 3), normal(4, 3)


def fresh(query, x, y, *v):
    """The answer of a table that has seen no other point."""
    return derive(quartic, quartic, {})[query](x, y, *v)


def test_products_at_one_point_share_one_run_of_the_function(quartics, normal):
    g, table, x, y = quartics
    for query in ("hvp_g_yy", "jvp_g_xy", "hvp_g_yy", "vp_g"):
        v = normal(4, 3)
        assert_same_bits(table[query](x, y, v), fresh(query, x, y, v))
    assert g.runs == 1
    table["hvp_g_yy"](x, y.clone(), v)
    table["hvp_g_yy"](x, y, v)
    assert g.runs == 3


def test_a_point_that_was_changed_in_place_is_another_point(quartics, normal):
    g, table, x, y = quartics
    v = normal(4, 3)
    for changed in (y, x):
        table["vp_g"](x, y, v)
        changed.mul_(2)
        assert_same_bits(table["vp_g"](x, y, v), fresh("vp_g", x, y, v))
    assert g.runs == 3  # the second round begins at the point of the first one's end


def test_other_rows_are_another_point(normal):
    g = Counted(lambda x, y, rows=None: (1.0 if rows is None else rows.factor) * quartic(x, y))
    table, x, y, v = derive(quartic, g, {}), normal(4, 3), normal(4, 3), normal(4, 3)

    class Rows:
        def __init__(self, factor):
            self.factor = factor

    once, twice = Rows(1.0), Rows(2.0)
    answers = [table["hvp_g_yy"](x, y, v, *rows) for rows in ((), (once,), (once,), (twice,))]
    assert g.runs == 3
    torch.testing.assert_close(answers[3], 2 * answers[0])


class Saved:
    """What a graph holds of a tensor."""

    def __init__(self, tensor):
        self.tensor = tensor.detach()


def test_the_graph_goes_with_its_point(normal):
    held = weakref.WeakSet()

    def pack(tensor):
        saved = Saved(tensor)
        held.add(saved)
        return saved

    def g(x, y):
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved.tensor):
            return dot(y.sin(), y.sin())

    table, x, y, v = derive(g, g, {}), normal(4, 3), normal(4, 3), normal(4, 3)
    table["hvp_g_yy"](x, y, v)
    assert held
    del y
    gc.collect()
    assert not held


def test_an_answer_is_nobody_elses_tensor(normal):
    """Of a bilinear g the product is v itself; whoever changes the answer in place must not change v."""
    table = derive(dot, lambda x, y: dot(x, y) + 0.5 * dot(y, y), {})
    x, y, v = normal(4, 3), normal(4, 3), normal(4, 3)
    before = v.clone()
    for query in ("jvp_g_xy", "hvp_g_yy"):
        table[query](x, y, v).add_(1.0)
    assert torch.equal(v, before)


def assert_same_bits(a, b):
    for left, right in zip(a if isinstance(a, tuple) else (a,), b if isinstance(b, tuple) else (b,), strict=True):
        assert torch.equal(left, right)
