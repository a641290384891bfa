"""One site that the tests of this folder look at, and none of them changes."""

from __future__ import annotations

import pytest
from leaderboard_data import material

from bilevelbench.leaderboard.build import write_site


@pytest.fixture(scope="session")
def everything(tmp_path_factory):
    """Everything at once, and the folder of its site."""
    folder = tmp_path_factory.mktemp("everything")
    data = material(folder)
    return data, write_site(data, folder / "out").parent


@pytest.fixture(scope="session")
def site(everything):
    return everything[1]
