"""Which methods meet which problems where nobody has named both."""

from __future__ import annotations

from importlib.util import find_spec

from bilevelbench.model.algorithm import Algorithm, Distributed
from bilevelbench.model.problem import Problem, Shared


def obstacle(method: type[Algorithm], problem: type[Problem]) -> str | None:
    """Why this method cannot be run on this problem, as the end of a sentence that begins with its name; None: it can."""
    for module in method.needs_modules:
        if find_spec(module) is None:
            return f"needs {module}, which is not installed"
    if issubclass(method, Distributed) and not issubclass(problem, Shared):
        return "is run by agents"
    return "needs a finite sum" if method.finite_sum_only and not problem.finite_sum else None


def told(left_out: dict[str, dict[str, set[str]]]) -> str:
    """`left out: saba (needs a finite sum: 20 problems), ...`, from the problems by reason and method; "" if there are none."""
    parts = [
        f"{method} ({reason}: {len(problems)} problem{'s' if len(problems) > 1 else ''})"
        for reason, methods in left_out.items()
        for method, problems in methods.items()
    ]
    return f"left out: {', '.join(parts)}" if parts else ""
