# %% [markdown]
# # A strength of weight decay for every column
# Is a tumour malignant? There are sixty training rows with ninety columns, and sixty of the columns are worthless: they
# are the thirty measurements again, twice, with their rows shuffled. Nobody tells the network which. Instead of one
# strength of weight decay there is one per column and one for the second layer, and all of them are learned:
#
# - x holds the logarithms of the strengths.
# - y is an MLP. The lower level g is its loss on the training rows plus the weight decay, the upper level f is its loss
#   on two hundred validation rows, plus a term that keeps x near the best single strength: ninety-one strengths would
#   fit the validation rows too well.

# %%
import math
from dataclasses import dataclass

import torch
from matplotlib.figure import Figure
from sklearn.datasets import load_breast_cancer
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

import bilevelbench


@dataclass(frozen=True)
class Outcome:
    """Losses and accuracies on the test rows, and the mean strengths (geometric) of measured and of shuffled columns."""

    ours: float
    baseline: float
    accuracy: float
    baseline_accuracy: float
    measured: float
    shuffled: float

    def sentence(self) -> str:
        verdict = "better" if self.ours < self.baseline else "no better"
        numbers = f"a test loss of {self.ours:.3f} against {self.baseline:.3f}"
        return f"A strength per column is {verdict} than the best single strength of the grid: {numbers}."


def network(seed, columns):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(columns, 8), nn.Tanh(), nn.Linear(8, 1))


def loss(net, rows):
    return binary_cross_entropy_with_logits(net(rows[0]).squeeze(-1), rows[1])


def decay(x, net):
    columns, last = x[:-1].exp(), x[-1].exp()
    return columns @ net[0].weight.square().sum(0) + last * net[2].weight.square().sum()


def trained(net, x, rows, epochs):
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    for _ in range(epochs):
        optimizer.zero_grad()
        (loss(net, rows) + decay(x, net)).backward()
        optimizer.step()
    return net


@torch.no_grad()
def tested(net, rows):
    return float(loss(net, rows)), float(((net(rows[0]).squeeze(-1) > 0) == (rows[1] > 0)).float().mean())


# %% [markdown]
# ## The comparison
# The baseline is the single strength, of nine, that is best on the same validation rows. The search for x starts there,
# and a network is then trained with what was found exactly as those of the grid were. `Box` keeps the strengths where
# gradient descent on the network converges with the step that `solve` has found at the start.


# %%
def main(seed=0, rows=60, validation_rows=200, steps=40, epochs=300):
    torch.manual_seed(seed)
    data = load_breast_cancer()
    order = torch.randperm(len(data.target))
    measured, labels = torch.tensor(data.data[order], dtype=torch.float32), torch.tensor(data.target[order]).float()
    measured = (measured - measured.mean(0)) / measured.std(0)
    shuffled = [column[torch.randperm(len(column))] for _ in range(2) for column in measured.T]
    inputs = torch.cat([measured, torch.stack(shuffled, dim=1)], dim=1)
    sizes = [rows, validation_rows, len(labels) - rows - validation_rows]
    train, valid, test = zip(inputs.split(sizes), labels.split(sizes), strict=True)
    count, size = inputs.shape[1], measured.shape[1]

    grid = {}
    for strength in (10 ** (k / 2) for k in range(-8, 1)):
        net = trained(network(seed, count), torch.full((count + 1,), math.log(strength)), train, epochs)
        grid[strength] = tested(net, valid)[0], *tested(net, test), net
    best = min(grid, key=lambda strength: grid[strength][0])
    _, baseline, baseline_accuracy, net = grid[best]
    start = torch.full((count + 1,), math.log(best))

    solution = bilevelbench.solve(
        lambda x, net: loss(net, valid) + 0.1 * (x - start).square().mean(),
        lambda x, net: loss(net, train) + decay(x, net),
        start, net, "aid", solver="richardson", steps=steps, evaluate="never",
        outer_optimizer=lambda x: torch.optim.Adam(x, lr=0.1), project=bilevelbench.Box(math.log(1e-4), math.log(0.1)),
    )  # fmt: skip
    ours, accuracy = tested(trained(network(seed, count), solution.x, train, epochs), test)
    means = (float(part.mean().exp()) for part in (solution.x[:size], solution.x[size:-1]))
    outcome = Outcome(ours, baseline, accuracy, baseline_accuracy, *means)
    print(f"{'weight decay':<34}{'test loss':>10}{'accuracy':>10}")
    print(f"{f'one strength, {best:.2g}':<34}{baseline:10.3f}{baseline_accuracy:10.1%}")
    print(f"{'one strength per column':<34}{ours:10.3f}{accuracy:10.1%}")
    print(outcome.sentence())
    draw(grid, solution.x.exp(), outcome, size)
    return outcome


# %%
def draw(grid, strengths, outcome, size):
    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.semilogx(list(grid), [test for _, test, *_ in grid.values()], "o-", label="one strength")
    left.axhline(outcome.ours, color="tab:orange", label="one per column, learned")
    left.set(xlabel="strength of weight decay", ylabel="test loss")
    left.legend()
    right.semilogy(strengths[:size], "o", color="tab:blue", label="measured")
    right.semilogy(range(size, len(strengths) - 1), strengths[size:-1], "o", color="tab:red", label="shuffled")
    right.set(xlabel="column", ylabel="learned strength")
    right.legend()
    figure.savefig("learned_regulariser.png", dpi=120)
    return figure


# %%
if __name__ == "__main__":
    torch.set_num_threads(1)  # everything here is small, and the same on every machine this way
    main()
