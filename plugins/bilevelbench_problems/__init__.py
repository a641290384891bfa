"""The built-in problems."""

from __future__ import annotations

from bilevelbench import Problem, hookimpl
from bilevelbench_problems.chain import Chain
from bilevelbench_problems.label_cleaning import LabelCleaningDigits
from bilevelbench_problems.logcosh import LogCosh
from bilevelbench_problems.logreg import LogRegBreastCancer, LogRegDigits
from bilevelbench_problems.newsgroups import Newsgroups, NewsgroupsSynthetic
from bilevelbench_problems.power_tail import PowerTail
from bilevelbench_problems.quadratic import Quadratic
from bilevelbench_problems.ridge_abalone import RidgeAbalone
from bilevelbench_problems.saddle import Saddle, SaddleChain
from bilevelbench_problems.tail_anchor import TailAnchor


@hookimpl
def bilevelbench_problems() -> list[type[Problem]]:
    return [
        Chain,
        LabelCleaningDigits,
        LogCosh,
        LogRegBreastCancer,
        LogRegDigits,
        Newsgroups,
        NewsgroupsSynthetic,
        PowerTail,
        Quadratic,
        RidgeAbalone,
        Saddle,
        SaddleChain,
        TailAnchor,
    ]
