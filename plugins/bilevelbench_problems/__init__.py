"""The built-in problems."""

from __future__ import annotations

from bilevelbench import Problem, hookimpl
from bilevelbench_problems.chain import Chain
from bilevelbench_problems.cleaning_cnn import CleaningCNN, CleaningCNNDigits
from bilevelbench_problems.cleaning_images import CleaningFashion, CleaningMNIST
from bilevelbench_problems.convex_toy import ConvexToy
from bilevelbench_problems.cosine_kappa import CosineKappa
from bilevelbench_problems.distill import DistillDigits, DistillMNIST
from bilevelbench_problems.distill_agents import DistillDigitsAgents, DistillMNISTAgents
from bilevelbench_problems.gpt2_cleaning import GPT2Cleaning
from bilevelbench_problems.label_cleaning import LabelCleaningDigits, LabelCleaningIris
from bilevelbench_problems.label_cleaning_agents import (
    CleaningCNNAgents,
    CleaningCNNDigitsAgents,
    CleaningFashionAgents,
    CleaningMNISTAgents,
    LabelCleaningDigitsAgents,
    LabelCleaningIrisAgents,
)
from bilevelbench_problems.logcosh import LogCosh
from bilevelbench_problems.logreg import LogRegBreastCancer, LogRegDigits, LogRegWine
from bilevelbench_problems.logreg_agents import (
    LogRegBreastCancerAgents,
    LogRegCovtypeAgents,
    LogRegDigitsAgents,
    LogRegWineAgents,
)
from bilevelbench_problems.logreg_covtype import LogRegCovtype
from bilevelbench_problems.newsgroups import Newsgroups, NewsgroupsSynthetic
from bilevelbench_problems.power_tail import PowerTail
from bilevelbench_problems.quadratic import Quadratic
from bilevelbench_problems.quadratic_agents import QuadraticAgents
from bilevelbench_problems.quadratic_sum import QuadraticSum, QuadraticSumAgents
from bilevelbench_problems.representation import RepresentationDigits, RepresentationOmniglot
from bilevelbench_problems.representation_agents import RepresentationDigitsAgents, RepresentationOmniglotAgents
from bilevelbench_problems.ridge_abalone import RidgeAbalone
from bilevelbench_problems.saddle import Saddle, SaddleChain
from bilevelbench_problems.source_cleaning import SourceCleaningLinear
from bilevelbench_problems.tail_anchor import TailAnchor
from bilevelbench_problems.washboard import Washboard, WashboardA3


@hookimpl
def bilevelbench_problems() -> list[type[Problem]]:
    return [
        Chain,
        CleaningCNN,
        CleaningCNNAgents,
        CleaningCNNDigits,
        CleaningCNNDigitsAgents,
        CleaningFashion,
        CleaningFashionAgents,
        CleaningMNIST,
        CleaningMNISTAgents,
        ConvexToy,
        CosineKappa,
        DistillDigits,
        DistillDigitsAgents,
        DistillMNIST,
        DistillMNISTAgents,
        GPT2Cleaning,
        LabelCleaningDigits,
        LabelCleaningDigitsAgents,
        LabelCleaningIris,
        LabelCleaningIrisAgents,
        LogCosh,
        LogRegBreastCancer,
        LogRegBreastCancerAgents,
        LogRegCovtype,
        LogRegCovtypeAgents,
        LogRegDigits,
        LogRegDigitsAgents,
        LogRegWine,
        LogRegWineAgents,
        Newsgroups,
        NewsgroupsSynthetic,
        PowerTail,
        Quadratic,
        QuadraticAgents,
        QuadraticSum,
        QuadraticSumAgents,
        RepresentationDigits,
        RepresentationDigitsAgents,
        RepresentationOmniglot,
        RepresentationOmniglotAgents,
        RidgeAbalone,
        Saddle,
        SaddleChain,
        SourceCleaningLinear,
        TailAnchor,
        Washboard,
        WashboardA3,
    ]
