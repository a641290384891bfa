"""Label cleaning whose training and validation rows are dealt out to agents: f_i and g_i are means over agent i's.

    label_cleaning_digits_agents, label_cleaning_iris_agents, cleaning_mnist_agents, cleaning_fashion_agents,
    cleaning_cnn_agents, cleaning_cnn_digits_agents

The problems are those of `label_cleaning`, `cleaning_images` and `cleaning_cnn`. Rows that do not divide evenly are left out. x
has a weight for every row, and an agent's g_i moves those of its own rows alone; it holds the whole ridge. Constants and
metrics are those of the mean problem.
"""

from __future__ import annotations

from typing import cast

from bilevelbench_problems.cleaning_cnn import CleaningCNN, CleaningCNNDigits
from bilevelbench_problems.cleaning_images import CleaningFashion, CleaningMNIST
from bilevelbench_problems.common import evenly
from bilevelbench_problems.dealt_out import DealtOut
from bilevelbench_problems.label_cleaning import Cleaning, LabelCleaningDigits, LabelCleaningIris, Parts


class _CleaningAgents(DealtOut):
    def _data(self) -> Parts:
        train, val, test, wrong = cast(Cleaning, super())._data()
        train = evenly(train, self.agents)
        return train, evenly(val, self.agents), test, wrong[: len(train[1])]


class LabelCleaningDigitsAgents(_CleaningAgents, LabelCleaningDigits):
    name = "label_cleaning_digits_agents"


class LabelCleaningIrisAgents(_CleaningAgents, LabelCleaningIris):
    name = "label_cleaning_iris_agents"


class CleaningMNISTAgents(_CleaningAgents, CleaningMNIST):
    name = "cleaning_mnist_agents"


class CleaningFashionAgents(_CleaningAgents, CleaningFashion):
    name = "cleaning_fashion_agents"


class CleaningCNNAgents(_CleaningAgents, CleaningCNN):
    name = "cleaning_cnn_agents"


class CleaningCNNDigitsAgents(_CleaningAgents, CleaningCNNDigits):
    name = "cleaning_cnn_digits_agents"
