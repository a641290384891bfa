"""Logistic regressions whose training and validation rows are dealt out to agents: f_i and g_i are means over agent i's.

    logreg_digits_agents, logreg_breast_cancer_agents, logreg_wine_agents, logreg_covtype_agents

The problems are those of `logreg` and `logreg_covtype`. Rows that do not divide evenly are left out (of 285 and 142 tumours
with four agents: one and two). Every agent holds the whole regulariser. Constants and metrics are those of the mean problem.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from torch import Tensor

from bilevelbench import Agents, Instance, Shared
from bilevelbench_problems.common import evenly
from bilevelbench_problems.logreg import LogReg, LogRegBreastCancer, LogRegDigits, LogRegWine
from bilevelbench_problems.logreg_covtype import LogRegCovtype


class _LogRegAgents(Shared):
    """Before a problem of `logreg`; not made from one, since its defaults would win over that problem's."""

    embedded = False  # every distributed method would start processes in `run --all`

    def _agents(self, split: Sequence[tuple[Tensor, Tensor]]) -> Agents:
        *dealt, test = split

        def local(i: int) -> Instance:
            return cast(LogReg, self)._instance([(A[i :: self.agents], b[i :: self.agents]) for A, b in dealt] + [test])

        return Agents(self.agents, local)

    def _split(self) -> list[tuple[Tensor, Tensor]]:
        train, val, test = cast(LogReg, super())._split()
        return [evenly(train, self.agents), evenly(val, self.agents), test]


class LogRegDigitsAgents(_LogRegAgents, LogRegDigits):
    name = "logreg_digits_agents"


class LogRegBreastCancerAgents(_LogRegAgents, LogRegBreastCancer):
    name = "logreg_breast_cancer_agents"


class LogRegWineAgents(_LogRegAgents, LogRegWine):
    name = "logreg_wine_agents"


class LogRegCovtypeAgents(_LogRegAgents, LogRegCovtype):
    name = "logreg_covtype_agents"
