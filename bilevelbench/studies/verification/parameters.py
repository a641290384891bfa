"""Parameters that a plugin has been given since a trial was stored."""

from __future__ import annotations

import json
from typing import Any

from bilevelbench.results.schema import Tables
from bilevelbench.untrusted import parameters


def on_common_parameters(a: Tables, b: Tables) -> tuple[Tables, Tables]:
    """One trial on two sides, with the parameters that both name.

    One that a plugin was given later has a default that leaves older trials as they are. If it does not, the numbers
    tell: they are compared in any case.
    """
    ours, theirs = (parameters(runs["algorithm_params"].iloc[0]) or {} for runs, _ in (a, b))
    common = ours.keys() & theirs.keys()

    def cut(side: Tables, given: dict[str, Any]) -> Tables:
        text = json.dumps({name: given[name] for name in sorted(common)})
        return side[0].assign(algorithm_params=text), side[1]

    return cut(a, ours), cut(b, theirs)
