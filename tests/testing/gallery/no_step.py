"""Forgets its step."""

from bilevelbench import Algorithm


class NoStep(Algorithm):
    name = "no_step"
    uses = frozenset({"grad_f"})
