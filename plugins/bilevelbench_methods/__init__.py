"""The built-in methods, one file each, in a folder per family."""

from bilevelbench import Algorithm, hookimpl
from bilevelbench_methods.distributed import (
    DistAccF2BA,
    DistAID,
    DistAIDLocal,
    DistBOME,
    DistF2BA,
    DistF2BSA,
    DistF2SA,
    DistPBGD,
    DistPF2BA,
)
from bilevelbench_methods.implicit.adambo import AdamBO
from bilevelbench_methods.implicit.aid import AID
from bilevelbench_methods.implicit.aid_adgd import AIDAdGD
from bilevelbench_methods.implicit.aid_lbfgs import AIDLBFGS
from bilevelbench_methods.implicit.aid_ls import AIDLS
from bilevelbench_methods.implicit.amigo import AmIGO
from bilevelbench_methods.implicit.ba import BA
from bilevelbench_methods.implicit.bsa import BSA
from bilevelbench_methods.implicit.d_tfbo import DTFBO
from bilevelbench_methods.implicit.fdehbo import FdeHBO
from bilevelbench_methods.implicit.fsla import FSLA
from bilevelbench_methods.implicit.hjfbio import HJFBiO
from bilevelbench_methods.implicit.hoag import HOAG
from bilevelbench_methods.implicit.lancbio import LancBiO
from bilevelbench_methods.implicit.ma_soba import MASOBA
from bilevelbench_methods.implicit.mrbo import MRBO
from bilevelbench_methods.implicit.paid import PAID
from bilevelbench_methods.implicit.prahgd import PRAHGD, RAHGD
from bilevelbench_methods.implicit.qnbo_reuse import QNBOReuse
from bilevelbench_methods.implicit.s_tfbo import STFBO
from bilevelbench_methods.implicit.saba import SABA
from bilevelbench_methods.implicit.slip import SLIP
from bilevelbench_methods.implicit.soba import SOBA
from bilevelbench_methods.implicit.spaba import SPABA
from bilevelbench_methods.implicit.srba import SRBA
from bilevelbench_methods.implicit.srmba import SRMBA
from bilevelbench_methods.implicit.stocbio import StocBiO
from bilevelbench_methods.implicit.sustain import SUSTAIN
from bilevelbench_methods.implicit.ttsa import TTSA
from bilevelbench_methods.implicit.vrbo import VRBO
from bilevelbench_methods.penalty.acc_f2ba import AccF2BA
from bilevelbench_methods.penalty.acc_f2ba_plus import AccF2BAPlus
from bilevelbench_methods.penalty.bome import BOME
from bilevelbench_methods.penalty.f2ba import F2BA
from bilevelbench_methods.penalty.f2ba_plus import F2BAPlus
from bilevelbench_methods.penalty.f2ba_released import F2BAReleased
from bilevelbench_methods.penalty.f2bsa import F2BSA
from bilevelbench_methods.penalty.f2sa import F2SA
from bilevelbench_methods.penalty.f2sa_p import F2SAp
from bilevelbench_methods.penalty.f3bsa import F3BSA
from bilevelbench_methods.penalty.f3sa import F3SA
from bilevelbench_methods.penalty.g_pbgd import GPBGD
from bilevelbench_methods.penalty.meha import MEHA
from bilevelbench_methods.penalty.pbgd import PBGD
from bilevelbench_methods.penalty.pf2ba import PF2BA
from bilevelbench_methods.unrolled.itd import ITD
from bilevelbench_methods.zeroth_order.pzobo import PZOBO
from bilevelbench_methods.zeroth_order.pzobo_s import PZOBOS
from bilevelbench_methods.zeroth_order.random_search import RandomSearch
from bilevelbench_methods.zeroth_order.tpe import TPE


@hookimpl
def bilevelbench_algorithms() -> list[type[Algorithm]]:
    return [
        AID,
        AIDAdGD,
        AIDLBFGS,
        AIDLS,
        AccF2BA,
        AdamBO,
        AmIGO,
        AccF2BAPlus,
        BA,
        BOME,
        BSA,
        DTFBO,
        DistAID,
        DistAIDLocal,
        DistAccF2BA,
        DistBOME,
        DistF2BA,
        DistF2BSA,
        DistF2SA,
        DistPBGD,
        DistPF2BA,
        F2BA,
        F2BAPlus,
        F2BAReleased,
        F2BSA,
        F2SA,
        F2SAp,
        F3BSA,
        F3SA,
        FSLA,
        GPBGD,
        HOAG,
        FdeHBO,
        HJFBiO,
        ITD,
        LancBiO,
        MASOBA,
        MRBO,
        MEHA,
        PAID,
        PBGD,
        PF2BA,
        PRAHGD,
        PZOBO,
        PZOBOS,
        QNBOReuse,
        RAHGD,
        RandomSearch,
        SABA,
        SLIP,
        SOBA,
        SPABA,
        SRBA,
        SRMBA,
        STFBO,
        SUSTAIN,
        StocBiO,
        TPE,
        TTSA,
        VRBO,
    ]
