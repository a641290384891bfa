"""A method and a problem for bilevelbench; the two functions below tell it what is here."""

from bilevelbench import Algorithm, Problem, hookimpl
from bilevelbench_example.denoise import Denoise
from bilevelbench_example.soba import SOBA


@hookimpl
def bilevelbench_algorithms() -> list[type[Algorithm]]:
    return [SOBA]


@hookimpl
def bilevelbench_problems() -> list[type[Problem]]:
    return [Denoise]
