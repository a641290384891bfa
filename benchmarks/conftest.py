"""Speed benchmarks write their ratios, each measured in one run, to benchmarks/summary.json."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

SUMMARY = Path(__file__).parent / "summary.json"


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.no_grad():
        yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def summary():
    ratios: dict[str, float] = {}
    yield ratios
    old = json.loads(SUMMARY.read_text()) if SUMMARY.exists() else {}
    SUMMARY.write_text(json.dumps({**old, **ratios}, indent=2, sort_keys=True) + "\n")
