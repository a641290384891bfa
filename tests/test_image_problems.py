"""tools/image_problems.py, behind the numbers of docs/problems.md, in a short form."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import matplotlib.image
import pytest
import torch

from bilevelbench.model.torch_state import default_dtype

_SPEC = importlib.util.spec_from_file_location(
    "image_problems", Path(__file__).parents[1] / "tools" / "image_problems.py"
)
image_problems = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(image_problems)


def test_a_few_steps_make_images_worth_more(tmp_path, capsys) -> None:
    with default_dtype(torch.float64):
        image_problems.distill(tmp_path, sizes=(1,), seeds=1, steps=5)
    drawn, learned = map(float, re.findall(r"([\d.]+) ± 0.000", capsys.readouterr().out))
    assert 0.3 < drawn < learned < 1
    assert matplotlib.image.imread(tmp_path / "distill_digits.png").shape == (2 * 48 + 1, 10 * 48 + 9)


def test_the_lower_level_is_solved() -> None:
    with default_dtype(torch.float64):
        instance = image_problems.registry().problem("distill_digits").value().build()
        y = image_problems.trained(instance, instance.x0[0])
        assert float(instance.grad_g_y(instance.x0, y.unsqueeze(0)).norm()) < 1e-4
        assert image_problems.metric(instance, "test_accuracy", instance.x0[0], y) == pytest.approx(0.5, abs=0.15)
