"""Few-shot tasks that are dealt out to agents, who share the embedding: f_i and g_i are those of agent i's tasks.

    representation_digits_agents, representation_omniglot_agents

The problems are those of `representation`, without the last tasks if they do not divide evenly. With m agents, f_i is the mean
over agent i's tasks and g_i is m times the sum over them, so that g, the mean of the g_i, is the sum over all. y has the heads
of all tasks, and an agent's derivatives move those of its own tasks alone: g_i is not strongly convex in the others, g is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, cast

from torch import Tensor

from bilevelbench import InvalidInput
from bilevelbench_problems.dealt_out import DealtOut
from bilevelbench_problems.few_shot import Tasks
from bilevelbench_problems.representation import Representation, RepresentationDigits, RepresentationOmniglot


class _RepresentationAgents(DealtOut):
    def _draw(self) -> tuple[Tasks, Tasks, Tensor]:
        training, tests, x0 = cast(Representation, super())._draw()
        tasks = len(training.support)
        if tasks < self.agents:
            raise InvalidInput(f"agents = {self.agents} cannot share {tasks} tasks; take {tasks} agents at most")
        return training.first(tasks - tasks % self.agents), tests, x0


class RepresentationDigitsAgents(_RepresentationAgents, RepresentationDigits):
    name = "representation_digits_agents"


class RepresentationOmniglotAgents(_RepresentationAgents, RepresentationOmniglot):
    name = "representation_omniglot_agents"
    checked_with: ClassVar[Mapping[str, Any]] = {**RepresentationOmniglot.checked_with, "tasks": 4}
