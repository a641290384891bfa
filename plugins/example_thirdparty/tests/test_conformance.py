"""The conformance kit: each check is a test. `bilevelbench check averaged` and `bilevelbench check denoise` run the same."""

from bilevelbench_example import Averaged, Denoise

from bilevelbench.testing import parametrize_with_checks


@parametrize_with_checks([Averaged(), Averaged(batch=1), Denoise(), Denoise(n=7, sigma=0.1)])
def test_conformance(plugin, check):
    check(plugin)
