"""Variables: there and back, through autograd and vmap, whatever their owner's shape is."""

from __future__ import annotations

from collections import OrderedDict, namedtuple

import pytest
import torch
from torch import nn
from torch.func import vmap

from bilevelbench import InvalidInput
from bilevelbench.model.pytrees import Call, Variables, placed_tree

Pair = namedtuple("Pair", ["a", "b"])


def numbers(*shape: int) -> torch.Tensor:
    return torch.arange(1.0, 1 + torch.Size(shape).numel(), dtype=torch.float64).reshape(shape)


TREES = {
    "tensor": numbers(2, 3),
    "scalar": numbers(),
    "dict": {"b": numbers(2), "a": numbers(3, 1)},
    "ordered": OrderedDict(z=numbers(2), y=numbers(1)),
    "list": [numbers(2), numbers(1, 1, 4)],
    "tuple": (numbers(2), numbers(3)),
    "named": Pair(numbers(2), numbers(3)),
    "nested": {"layers": [{"w": numbers(2, 2), "b": numbers(2)}, (numbers(), [numbers(3)])], "scale": numbers(1)},
}


def same(a: object, b: object) -> bool:
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and torch.equal(a, b)
    if isinstance(a, dict):
        return type(a) is type(b) and list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    return type(a) is type(b) and len(a) == len(b) and all(same(p, q) for p, q in zip(a, b, strict=True))


@pytest.mark.parametrize("name", TREES)
def test_there_and_back(name):
    variables = Variables("x0", TREES[name])
    assert variables.flat.dim() == 1
    assert same(variables.answer(variables.flat), TREES[name])
    assert same(variables.bound(variables.flat)[0], TREES[name])
    assert not same(variables.answer(variables.flat + 1), TREES[name])


def test_order_of_a_dict_is_its_own():
    assert Variables("x0", {"b": numbers(1), "a": numbers(1) * 9}).flat.tolist() == [1, 9]


def test_answer_is_a_copy():
    variables = Variables("x0", TREES["dict"])
    variables.answer(variables.flat)["b"].fill_(7)
    assert variables.flat[0] == 1


@pytest.mark.parametrize("name", TREES)
def test_differentiable_and_under_vmap(name):
    variables = Variables("x0", TREES[name])

    def total(vector):
        leaves = torch.utils._pytree.tree_leaves(variables.bound(vector)[0])
        return sum((leaf**3).sum() for leaf in leaves)

    lanes = (variables.flat * torch.tensor([[1.0], [-2.0], [0.5]])).requires_grad_()
    (slope,) = torch.autograd.grad(vmap(total)(lanes).sum(), lanes, create_graph=True)
    torch.testing.assert_close(slope, 3 * lanes**2)
    (bend,) = torch.autograd.grad(slope.sum(), lanes)
    torch.testing.assert_close(bend, 6 * lanes)


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1)).double().eval()


def test_function_gets_the_module_with_other_parameters():
    module = net()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    x, y = Variables("x0", numbers(2)), Variables("y0", module)

    def function(x, model, batch):
        assert model is module
        return model(batch).sum() + sum(p.sum() for p in model.parameters()) + model[0].weight[0, 0]

    call = Call(function, x, y)
    batch = numbers(5, 2)
    other = net()
    other.load_state_dict(y.answer(2 * y.flat))
    assert call(x.flat, 2 * y.flat, batch).item() == pytest.approx(function_on(other, batch))
    assert call(x.flat, y.flat, batch).item() == pytest.approx(function_on(module, batch))
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())


def function_on(model: nn.Sequential, batch: torch.Tensor) -> float:
    return (model(batch).sum() + sum(p.sum() for p in model.parameters()) + model[0].weight[0, 0]).item()


def test_answer_of_a_module_loads_in_one_call():
    module = net()
    variables = Variables("y0", module)
    state = variables.answer(torch.zeros_like(variables.flat))
    assert set(state) == set(module.state_dict())
    module.load_state_dict(state)
    assert all((p == 0).all() for p in module.parameters())
    assert (module[1].running_var == 1).all()


def test_modules_among_tensors():
    module = net()
    variables = Variables("x0", {"net": module, "scale": numbers(2)})
    answer = variables.answer(variables.flat)
    module.load_state_dict(answer["net"])
    assert torch.equal(answer["scale"], numbers(2))
    slope = variables.derivative(torch.ones_like(variables.flat))
    assert list(slope["net"]) == [name for name, _ in module.named_parameters()]


def test_frozen_parameters_do_not_move():
    module = net()
    module[0].requires_grad_(False)
    variables = Variables("y0", module)
    assert variables.flat.numel() == sum(p.numel() for p in module[1:].parameters())
    state = variables.answer(torch.zeros_like(variables.flat))
    assert torch.equal(state["0.weight"], module[0].weight)
    assert (state["2.weight"] == 0).all()


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(2, 2, bias=False, dtype=torch.float64)
        self.b = nn.Linear(2, 2, bias=False, dtype=torch.float64)
        self.b.weight = self.a.weight

    def forward(self, z):
        return self.b(self.a(z))


def test_tied_weights_are_one_variable():
    module = Tied()
    variables = Variables("y0", module)
    assert variables.flat.numel() == 4
    call = Call(lambda model, z: model(z).sum(), variables)
    double = call(2 * variables.flat, numbers(3, 2))
    torch.testing.assert_close(double, 4 * module(numbers(3, 2)).sum())
    state = variables.answer(2 * variables.flat)
    assert torch.equal(state["a.weight"], state["b.weight"])
    module.load_state_dict(state)
    torch.testing.assert_close(module(numbers(3, 2)).sum(), double)


def test_one_module_in_two_places():
    module = net()
    with pytest.raises(InvalidInput, match="one module stands twice among x0 and y0"):
        Call(lambda x, y: x, Variables("x0", module), Variables("y0", [module]))


@pytest.mark.parametrize(
    ("start", "message"),
    [
        ({}, r"x0 is an empty dict: there is no number in it"),
        ([], r"x0 is an empty list"),
        ({"a": torch.zeros(0)}, r"x0 is a dict of empty tensors"),
        (torch.zeros(0, 3), r"x0 is a tensor of shape \(0, 3\): there is no number in it"),
        ([1.0, 2.0], r"x0\[0\] is a float; variables are tensors"),
        ({"w": [torch.zeros(2), None]}, r"x0\['w'\]\[1\] is a NoneType"),
        ({"n": torch.arange(3)}, r"x0\['n'\] is torch.int64; give both as float64.*keep integers"),
        ([torch.zeros(2), torch.zeros(2).double()], r"x0\[0\] is torch.float32 and x0\[1\] torch.float64"),
        ([torch.zeros(2), torch.zeros(2, device="meta")], r"x0\[0\] is on cpu and x0\[1\] on meta; move them to one device"),
        (nn.ReLU(), r"x0 is a ReLU without a parameter that requires a gradient"),
        (nn.Linear(1, 1).half(), r"x0\.weight is torch.float16"),
    ],
)  # fmt: skip
def test_what_is_no_variable(start, message):
    with pytest.raises(InvalidInput, match=message):
        Variables("x0", start)


def test_vector_of_what_has_the_shape():
    module = net()
    variables = Variables("x0", {"net": module, "scale": [numbers(2)]})
    given = variables.derivative(3 * variables.flat)
    assert torch.equal(variables.vector("v", given), 3 * variables.flat)
    for wrong in (
        {"net": given["net"]},
        {"net": {}, "scale": given["scale"]},
        {**given, "scale": given["scale"][0]},
        3,
    ):
        with pytest.raises(InvalidInput, match="v is built otherwise than x0"):
            variables.vector("v", wrong)
    with pytest.raises(InvalidInput, match=r"v has \(3,\) where x0 has a tensor of shape \(2,\)"):
        variables.vector("v", {**given, "scale": [numbers(3)]})


def test_moved_to_a_dtype_and_a_device():
    module = net()
    moved = placed_tree({"net": module, "labels": torch.arange(3), "w": [numbers(2)]}, "meta", "float32")
    assert moved["net"][0].weight.dtype == torch.float32
    assert moved["net"][1].num_batches_tracked.dtype == torch.int64
    assert moved["labels"].dtype == torch.int64
    assert {moved["net"][0].weight.device.type, moved["labels"].device.type, moved["w"][0].device.type} == {"meta"}
    assert module[0].weight.dtype == torch.float64  # one's own module stays where it is
    assert placed_tree(module, None, None) is module
