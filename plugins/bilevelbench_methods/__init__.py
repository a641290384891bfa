"""The built-in methods, one file each, in a folder per family."""

from bilevelbench import Algorithm, hookimpl
from bilevelbench_methods.implicit.aid import AID
from bilevelbench_methods.implicit.ba import BA
from bilevelbench_methods.penalty.bome import BOME
from bilevelbench_methods.penalty.f2ba import F2BA
from bilevelbench_methods.penalty.f2ba_released import F2BAReleased
from bilevelbench_methods.penalty.f2sa import F2SA
from bilevelbench_methods.penalty.g_pbgd import GPBGD
from bilevelbench_methods.penalty.pbgd import PBGD
from bilevelbench_methods.unrolled.itd import ITD
from bilevelbench_methods.zeroth_order.pzobo import PZOBO


@hookimpl
def bilevelbench_algorithms() -> list[type[Algorithm]]:
    return [AID, BA, BOME, F2BA, F2BAReleased, F2SA, GPBGD, ITD, PBGD, PZOBO]
