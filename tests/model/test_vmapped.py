"""Functions of one lane over many: by vmap, with the same numbers as a loop, and by a loop where vmap cannot."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from torch.nn.functional import dropout

from bilevelbench.model.derivatives import derive
from bilevelbench.model.queries import QUERIES
from bilevelbench.model.vmapped import OverLanes

W = torch.linspace(-1, 1, 15, dtype=torch.float64).reshape(5, 3)


def f(x, y):
    return torch.tanh(W @ x).square().sum() + (x.sum() * y).square().mean()


def g(x, y):
    return 0.5 * (y - W @ x).square().sum() + 0.1 * (y**4).sum() * x.exp().sum()


def test_every_query_is_that_of_each_lane_alone(normal):
    x, y, v = normal(6, 3), normal(6, 5), normal(6, 5)
    table = derive(OverLanes("f", f), OverLanes("g", g), {})
    for name, query in table.items():
        arguments = (x, y, v) if QUERIES[name].takes_vector else (x, y)
        together = query(*arguments)
        alone = [query(*(t[i : i + 1] for t in arguments)) for i in range(6)]
        for block in range(2) if isinstance(together, tuple) else (None,):
            pick = (lambda out: out) if block is None else (lambda out, block=block: out[block])
            torch.testing.assert_close(pick(together), torch.cat([pick(a) for a in alone]), rtol=1e-12, atol=1e-12)


def test_a_tree_with_lanes_and_what_all_share(normal):
    over = OverLanes("f", lambda x, batch, data: (x * batch["a"]).sum() + data[0].sum())
    x, a, data = normal(4, 3), normal(4, 3), (normal(7),)
    torch.testing.assert_close(over(x, {"a": a}, shared=(data,)), (x * a).sum(-1, keepdim=True) + data[0].sum())


def branches(y):
    return y.sum() if y.sum() > 0 else -y.sum()


def item(y):
    return y.square().sum() * y.detach()[0].item()


def mask(y):
    return y[y > 0].sum()


def to_numpy(y):
    return y.sum() * float(np.sum(y.detach().numpy()))


def in_place(y):
    return torch.zeros(3, dtype=torch.float64).add_(y).sum()


def inner_gradient(y):
    with torch.enable_grad():
        y = y if y.requires_grad else y.detach().requires_grad_()
        return torch.autograd.grad((y**3).sum(), y, create_graph=True)[0].sum()


class Square(torch.autograd.Function):  # without a rule for vmap
    @staticmethod
    def forward(ctx, y):
        ctx.save_for_backward(y)
        return y * y

    @staticmethod
    def backward(ctx, slope):
        return 2 * ctx.saved_tensors[0] * slope


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (branches, "it branches on the value of a tensor; torch.where does not"),
        (item, "it makes a Python number of a tensor"),
        (mask, "the shape of a tensor depends on values"),
        (to_numpy, "it takes a tensor to numpy"),
        (in_place, "in place"),
        (inner_gradient, r"it calls torch\.autograd\.grad"),
        (lambda y: Square.apply(y).sum(), "autograd.Function"),
    ],
)
def test_where_vmap_cannot_lanes_are_run_one_after_another(normal, function, reason):
    y, over = normal(4, 3), OverLanes("f", function)
    with pytest.warns(
        UserWarning, match=rf"^f cannot be run over several lanes at once: .*{reason}.*one after another"
    ):
        got = over(y)
    torch.testing.assert_close(got, torch.stack([function(lane).detach() for lane in y]).reshape(-1, 1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it is said once
        over(y)


def test_a_loop_has_gradients_too(normal):
    y = normal(4, 3).requires_grad_()
    with pytest.warns(UserWarning, match="branches"):
        (slope,) = torch.autograd.grad(OverLanes("f", branches)(y).sum(), y)
    torch.testing.assert_close(slope, y.detach().sum(-1, keepdim=True).sign().expand(4, 3))


def test_what_the_function_raises_is_raised_and_nothing_is_said(normal):
    def broken(y):
        raise ArithmeticError("nobody knows this point")

    with pytest.raises(ArithmeticError, match="nobody"):
        OverLanes("f", broken)(normal(4, 3))


def test_one_lane_needs_no_vmap(normal):
    assert OverLanes("f", branches)(normal(1, 3)).shape == (1, 1)


def test_chance_is_refused_by_vmap(normal):
    with pytest.warns(UserWarning, match="it draws random numbers; draw them once"):
        OverLanes("f", lambda y: dropout(y, 0.5).sum())(normal(4, 3))


def test_many_lanes_are_one_call(normal):
    calls = 0

    def counted(y):
        nonlocal calls
        calls += 1
        return y.square().sum()

    OverLanes("f", counted)(normal(36, 3))
    assert calls == 1
