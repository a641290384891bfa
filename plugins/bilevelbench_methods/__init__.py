"""The built-in methods, one file each, in a folder per family."""

from bilevelbench import hookimpl
from bilevelbench_methods.implicit.aid import AID
from bilevelbench_methods.penalty.f2ba import F2BA
from bilevelbench_methods.penalty.f2sa import F2SA
from bilevelbench_methods.unrolled.itd import ITD


@hookimpl
def bilevelbench_algorithms() -> list[type]:
    return [F2BA, F2SA, AID, ITD]
