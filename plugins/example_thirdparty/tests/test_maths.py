"""What only we can know: the method against plain numpy, the problem against its solution by hand, and both together."""

import numpy as np
import pytest
import torch
from bilevelbench_example import Averaged, Denoise

import bilevelbench

A = torch.diag(torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64))


@pytest.fixture
def float64():
    """What the runner does for a trial in float64: problems are built in torch's default dtype."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def f(x, y):
    return 0.5 * (y - 1).square().sum() + 0.05 * x.square().sum()


def g(x, y):
    return 0.5 * y @ A @ y - x @ y


def test_averaged_is_its_equations():
    """f_x = x/10, f_y = y - 1, g_y = Ay - x, H = A, J = -I; the answer is the mean of the 20 new points."""
    x0, y0 = torch.tensor([[1.0, -2.0, 0.5], [0.3, 0.1, -1.0]], dtype=torch.float64)
    solution = bilevelbench.solve(f, g, x0, y0, algorithm=Averaged(a=0.2, b=0.1), steps=20)
    x, y, v, a = x0.numpy(), y0.numpy(), np.zeros(3), np.diag([1.0, 2.0, 4.0])
    points = []
    for _ in range(20):
        y = y - 0.2 * (a @ y - x)
        v = v - 0.2 * (a @ v - (y - 1))
        x = x - 0.1 * (x / 10 + v)
        points.append((x, y))
    np.testing.assert_allclose(solution.x, np.mean([x for x, _ in points], axis=0), rtol=1e-12)
    np.testing.assert_allclose(solution.y, np.mean([y for _, y in points], axis=0), rtol=1e-12)
    assert solution.counts["first_order"] == 40
    assert solution.counts["second_order"] == 40


def test_two_samples_by_hand(float64):
    """With n = 2 the mean of b is kept and its jump divided by 1 + 2w."""
    instance = Denoise(n=2, smooth=3.0, reg=0.1).build()
    b, x = instance.y0, torch.tensor([[0.4]], dtype=torch.float64)
    w = 3 * (1 + np.tanh(0.4)) / 2
    half = (b[1] - b[0]) / (2 * (1 + 2 * w))
    expected = torch.stack([b.mean() - half, b.mean() + half])
    torch.testing.assert_close(instance.reference.y_star(x)[0], expected, rtol=1e-12, atol=0)
    phi = 0.5 * (expected - torch.tensor([0.0, 2.0])).square().sum() + 0.05 * 0.4**2  # the clean signal is (0, 2)
    torch.testing.assert_close(instance.reference.phi(x)[0, 0], phi, rtol=1e-12, atol=0)


def test_both_together():
    """|grad phi| falls to less than half in 300 steps, with and without noise."""
    result = bilevelbench.run(Averaged(batch=1), [Denoise(), Denoise(sigma=0.01)], steps=300)
    start = result.curve["grad_phi"].iloc[0]
    assert set(result.runs["status"]) == {"budget"}
    assert (result.runs["best_grad_phi"] < 0.5 * start).all()
