"""The conformance kit: what a method or a problem has to keep to, for the authors of plugins.

    from bilevelbench.testing import parametrize_with_checks

    @parametrize_with_checks([MyMethod(), MyMethod(K=3)])
    def test_conformance(plugin, check):
        check(plugin)

`bilevelbench check NAME_OR_FILE` runs the same checks. A rule that a plugin cannot keep to is listed in its class, with the
reason and with words of the failure that is meant; any other failure of that check is still one:

    known_exceptions: ClassVar = {"slope_of_f": KnownFailure(reason="f is not Lipschitz", says="C_f")}

The checks guard against mistakes, not malice.
"""

from bilevelbench.testing.kit import Check, checks_for, parametrize_with_checks, run_checks
from bilevelbench.testing.outcome import Failure, Outcome, Skip

__all__ = ["Check", "Failure", "Outcome", "Skip", "checks_for", "parametrize_with_checks", "run_checks"]
