"""A method and a problem for bilevelbench; the two functions below tell it what is here."""

from bilevelbench import Algorithm, Problem, hookimpl
from bilevelbench_example.averaged import Averaged
from bilevelbench_example.denoise import Denoise


@hookimpl
def bilevelbench_algorithms() -> list[type[Algorithm]]:
    return [Averaged]


@hookimpl
def bilevelbench_problems() -> list[type[Problem]]:
    return [Denoise]
