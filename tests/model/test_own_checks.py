"""What is wrong with functions of one's own is a sentence with the culprit and the way out; what is unusual is not."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.functional import dropout

from bilevelbench import InvalidInput, from_functions


def zero(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype)


def f(x, y):
    return (y - 1).square().sum()


def g(x, y):
    return (y - x).square().sum()


def build(f=f, g=g, x0=None, y0=None, **rest):
    return from_functions(f, g, zero(2) if x0 is None else x0, zero(2) if y0 is None else y0, **rest)


def changes_in_place(x, y):
    y += 1
    return (y - x).square().sum()


def changes_its_view(x, y):
    y.reshape(-1)[0] = 5.0
    return (y - x).square().sum()


LEVELS = {
    "nan": (lambda x, y: torch.log(y - 1).sum(), r"is nan at \(x0, y0\); start where it is finite"),
    "infinite": (lambda x, y: (1 / y).sum(), r"is inf at \(x0, y0\)"),
    "vector": (lambda x, y: x + y, r"returned a tensor of shape \(2,\); it has to return one number"),
    "nothing": (lambda x, y: None, r"returned NoneType; it has to return a torch tensor"),
    "number": (lambda x, y: 1.0, r"returned float; it has to return a torch tensor"),
    "integer": (lambda x, y: (y > x).sum(), r"returned torch.int64 on cpu for variables that are torch.float64"),
    "other dtype": (lambda x, y: (y - x).square().sum().float(), r"returned torch.float32 on cpu"),
    "in place": (changes_in_place, r"changes its argument y in place; make a new tensor: `z = y \+ 1`"),
    "in place by a view": (changes_its_view, r"changes its argument y in place"),
    "chance": (lambda x, y: (y - x + torch.rand(2)).square().sum(), r"gave two values at one point: it draws random numbers"),
    "dropout": (lambda x, y: dropout(y - x + 1, 0.5).square().sum(), r"two values at one point.*\.eval\(\)"),
    "slope": (lambda x, y: (y - x).square().sum().sqrt(), r"the gradient of [fg] in [xy] is not finite at \(x0, y0\)"),
    "mixed dtypes": (lambda x, y: zero(3, 2, dtype=torch.float32) @ (y - x), r"mixes tensors that do not go.*float64"),
}  # fmt: skip


@pytest.mark.parametrize("level", ["f", "g"])
@pytest.mark.parametrize("case", LEVELS)
def test_of_f_and_of_g(level, case):
    function, message = LEVELS[case]
    if case == "chance":  # may give the same twice
        torch.manual_seed(0)
    with pytest.raises(InvalidInput, match=message) as caught:
        build(**{level: function})
    assert str(caught.value).startswith((f"{level} ", f"the gradient of {level} "))


@pytest.mark.parametrize(
    ("functions", "message"),
    [
        ({"g": lambda x, y: x.square().sum()}, "g has no gradient path to y: it does not use it, or the path is cut"),
        ({"g": lambda x, y: (y.detach() - x).square().sum()}, "g has no gradient path to y"),
        ({"g": lambda x, y: torch.tensor((y - x).square().sum().item(), dtype=torch.float64)}, "g has no gradient path to y"),
        ({"f": lambda x, y: y.detach().sum()}, "f has no gradient path to x or to y"),
        ({"g": lambda x, y: y.square().sum()}, "x changes nothing: neither f nor the minimiser of g"),
        ({"g": lambda x, y: y.square().sum() + x.square().sum()}, "x changes nothing"),
    ],
)  # fmt: skip
def test_no_gradient_path(functions, message):
    with pytest.raises(InvalidInput, match=message):
        build(**functions)


@pytest.mark.parametrize(
    "functions",
    [
        {"f": lambda x, y: y.square().sum()},
        {"f": lambda x, y: x.square().sum()},
        {"f": lambda x, y: (x * y).sum(), "g": lambda x, y: y.square().sum()},
        {"g": lambda x, y: y.square().sum() + (x * y).sum()},
    ],
)
def test_unusual_and_right(functions):
    build(**functions)


@pytest.mark.parametrize(
    ("start", "message"),
    [
        ({"x0": zero(2, dtype=torch.float32)}, "x0 is torch.float32 and y0 torch.float64; give both as float64"),
        (
            {"y0": torch.zeros(2, dtype=torch.float64, device="meta")},
            "x0 is on cpu and y0 on meta; move them to one device",
        ),
        ({"x0": torch.arange(2)}, "x0 is torch.int64"),
        ({"y0": {}}, "y0 is an empty dict"),
        ({"x0": [0.5, 1.0]}, r"x0\[0\] is a float"),
    ],
)
def test_of_the_start(start, message):
    with pytest.raises(InvalidInput, match=message):
        build(**start)


def test_a_start_without_numbers():
    with pytest.raises(InvalidInput, match="x0 and y0 are on the device meta, where tensors have no numbers"):
        build(x0=torch.zeros(2, device="meta"), y0=torch.zeros(2, device="meta"))


# ---- modules


def net(*layers: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 2), *layers).double()


def on_net(x, model):
    z = torch.linspace(-1, 1, 8, dtype=torch.float64).reshape(4, 2)
    return model(z).square().sum() + x.square().sum() + sum(p.square().sum() for p in model.parameters())


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (nn.Dropout(0.5), r"y0 has a Dropout at '1' in training mode, which draws other numbers.*call \.eval\(\)"),
        (nn.Sequential(nn.AlphaDropout(0.1)), r"y0 has a AlphaDropout at '1\.0'"),
        (nn.BatchNorm1d(2), r"y0 has a BatchNorm1d at '1' in training mode, which changes its buffers"),
    ],
)
def test_modules_in_training_mode(layer, message):
    with pytest.raises(InvalidInput, match=message):
        build(on_net, on_net, y0=net(layer))
    build(on_net, on_net, y0=net(layer).eval())


@pytest.mark.parametrize("layer", [nn.Dropout(0.0), nn.LayerNorm(2), nn.GELU()])
def test_layers_that_may_be_in_training_mode(layer):
    build(on_net, on_net, y0=net(layer))


def test_module_of_another_dtype():
    with pytest.raises(InvalidInput, match=r"x0 is torch.float64 and y0\.0\.weight torch.float32"):
        build(on_net, on_net, y0=net().float())


# ---- batches


def mean_on(x, y, batch):
    return (batch @ y - x.sum()).square().mean() + y.square().sum()


ROWS = torch.linspace(-1, 1, 40, dtype=torch.float64).reshape(20, 2)


def test_the_mean_over_a_batch():
    build(g=mean_on, data_g=ROWS)
    build(f=mean_on, data_f=ROWS)


def test_the_sum_over_a_batch():
    def sum_on(x, y, batch):
        return (batch @ y - x.sum()).square().sum() + y.square().sum()

    with pytest.raises(
        InvalidInput, match=r"g is \S+ on 8 rows and \S+ when each of them stands twice.*the mean over its"
    ):
        build(g=sum_on, data_g=ROWS, x0=torch.ones(2, dtype=torch.float64))


def test_data_of_another_dtype():
    with pytest.raises(InvalidInput, match=r"g mixes tensors.*float64 on cpu, data_g torch.float32 on cpu: convert"):
        build(g=mean_on, data_g=ROWS.float())


def test_a_batch_that_is_changed_in_place():
    def changes(x, y, batch):
        batch *= 2
        return mean_on(x, y, batch)

    with pytest.raises(InvalidInput, match="g changes its argument batch in place"):
        build(g=changes, data_g=ROWS.clone())


def test_what_a_function_raises_is_raised():
    def broken(x, y):
        raise ArithmeticError("nobody knows this point")

    with pytest.raises(ArithmeticError, match="nobody knows"):
        build(f=broken)
