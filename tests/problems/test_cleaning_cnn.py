"""The network whose labels are cleaned, against torch's own modules, and its sums in parts against the whole."""

from __future__ import annotations

import bilevelbench_problems.cleaning_cnn as cleaning_cnn
import pytest
import torch
from bilevelbench_problems import CleaningCNN, CleaningCNNDigits
from tensors import call, close, normal, some_rows
from test_images import made_up
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import vector_to_parameters

import bilevelbench
from bilevelbench import FiniteSum
from bilevelbench.model.derivatives import derive

pytestmark = pytest.mark.whole  # networks that learn

FEW = {"n_train": 30, "n_val": 20, "n_test": 25}


class Turned(nn.Module):
    """A linear map that holds its weights as (inputs, outputs), without a bias."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.W = nn.Parameter(torch.zeros(inputs, outputs))

    def forward(self, z: Tensor) -> Tensor:
        return z @ self.W


def network(side: int, c: int, d: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Unflatten(-1, (1, side, side)),
        nn.Conv2d(1, c, 3, padding=1), nn.Tanh(), nn.AvgPool2d(2),
        nn.Conv2d(c, d, 3, padding=1), nn.Tanh(), nn.AvgPool2d(2),
        nn.Flatten(), Turned(d * (side // 4) ** 2, 10),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("problem", "dims", "channels"),
    [(CleaningCNN(**FEW), (28, 20_480), (16, 32)), (CleaningCNNDigits(**FEW), (8, 1888), (8, 16))],
    ids=["28 x 28", "8 x 8"],
)
def test_values_are_those_of_torchs_modules(problem, dims, channels, monkeypatch) -> None:
    monkeypatch.setattr(cleaning_cnn, "mnist_5k", made_up)
    side, dy = dims
    instance, module = problem.build(), network(side, *channels)
    assert (instance.dx, instance.dy) == (30, dy)
    assert instance.noise == FiniteSum(n_f=20, n_g=30)
    (A, b), (V, v), (T, t), _ = problem._data()
    assert A.shape == (30, side**2)
    assert float(A.max()) == 1.0
    x, y = normal(1, 30), instance.y0 + 0.1 * normal(1, dy, seed=1)
    vector_to_parameters(y[0], module.parameters())
    weights = torch.sigmoid(x[0])
    losses = cross_entropy(module(A), b, reduction="none")
    with torch.no_grad():
        wanted = (weights * losses).mean() + 0.5 * problem.ridge * y.square().sum()
        assert float(instance.value_g(x, y)) == pytest.approx(float(wanted), rel=1e-12)
        assert float(instance.value_f(x, y)) == pytest.approx(float(cross_entropy(module(V), v)), rel=1e-12)
        assert float(instance.metrics["test_loss"](x, y)) == pytest.approx(float(cross_entropy(module(T), t)))
        right = (module(T).argmax(-1) == t).double().mean()
        assert float(instance.metrics["test_accuracy"](x, y)) == pytest.approx(float(right))


def test_parts_add_up(monkeypatch) -> None:
    """Values and derivatives in parts of seven rows are autograd's of the whole sum, and of some rows."""
    instance = CleaningCNNDigits(**FEW).build()
    whole = derive(instance._raw["value_f"], instance._raw["value_g"], {})
    x, y, v = normal(1, 30), instance.y0 + 0.1 * normal(1, 1888, seed=1), normal(1, 1888, seed=2)
    for rows in ((), (some_rows(instance, 1, 16),)):
        wanted = {query: call(whole[query], *arguments(query, x, y, v), *rows) for query in whole}
        with monkeypatch.context() as patch:
            patch.setattr(cleaning_cnn, "_PART", 7)
            for query, answer in wanted.items():
                ours = call(instance.functions[query], *arguments(query, x, y, v), *rows)
                for one, other in zip(ours, answer, strict=True):
                    close(one, other, 1e-12)


def arguments(query: str, x: Tensor, y: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    return (x, y, v) if "vp" in query else (x, y)


def test_pixels_of_the_digits_and_which_labels_are_wrong() -> None:
    problem = CleaningCNNDigits(**FEW, corruption=0.3)
    (A, given), *_, wrong = problem._data()
    assert set((16 * A).unique().tolist()) <= set(map(float, range(17)))
    assert int(wrong.sum()) == 9
    images = problem._images()
    train, *_ = images.split(problem.generator(), *FEW.values())
    assert torch.equal(wrong, given != images.labels[train])


def test_a_method_with_steps_learns_and_phi_is_not_claimed() -> None:
    results = bilevelbench.run("soba[a=0.3,b=10,power=0,batch=32]", CleaningCNNDigits(corruption=0.5), steps=60)
    (run,) = results.runs.to_dict("records")
    assert (run["status"], run["certificate"]) == ("budget", "none")
    first, last = (results.curve["test_loss"].iloc[i] for i in (0, -1))
    assert last < first
    assert results.curve["phi"].isna().all()
    assert results.curve["f1"].iloc[-1] > 0.5
