# %% [markdown]
# # An embedding that makes new tasks easy
# A task shows twenty images of digits with labels, +1 or -1, and asks for the labels of sixty others. The rule behind
# the labels differs from task to task: five of the ten digits, chosen at random, are +1. Nobody says which five, nor
# which digit an image shows.
#
# - x is a small network that embeds images. All tasks share it.
# - y has one linear head per task. The lower level g is the ridge regression of the labels on the twenty embedded
#   images, the upper level f is the loss of these heads on the sixty others.
#
# So the embedding is learned such that a head from few images does well. Each step draws new tasks, so this is a
# training loop of our own, which asks `torch_hypergradient` for the gradient of phi(x) = f(x, y*(x)).

# %%
from dataclasses import dataclass

import torch
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from torch import nn

from bilevelbench import torch_hypergradient

SHOWN, ASKED, RIDGE = 20, 60, 0.1


@dataclass(frozen=True)
class Outcome:
    """The share of right labels in new tasks with new images."""

    ours: float
    baselines: dict[str, float]

    def sentence(self) -> str:
        name, best = max(self.baselines.items(), key=lambda item: item[1])
        verdict = "better" if self.ours > best else "no better"
        return f"Heads on the learned embedding are {verdict} than on {name}: {self.ours:.1%} against {best:.1%}."


def tasks_of(images, digits, count):
    """The images (count, 20, 64) and labels (count, 20) that are shown, and those that are asked for, (count, 60, ...)."""
    rows = torch.stack([torch.randperm(len(images))[: SHOWN + ASKED] for _ in range(count)])
    positive = torch.stack([torch.randperm(10)[:5] for _ in range(count)])
    labels = 2.0 * (digits[rows][..., None] == positive[:, None]).any(-1) - 1
    return images[rows][:, :SHOWN], labels[:, :SHOWN], images[rows][:, SHOWN:], labels[:, SHOWN:]


# %% [markdown]
# ## Heads
# The heads that minimise g have a closed form. With a lower level that has none you would train the heads here.


# %%
def scores(embedded, heads):
    """One number per image; the last entry of a head is its constant."""
    return (embedded @ heads[:, :-1, None]).squeeze(-1) + heads[:, -1:]


def best_heads(embedded, labels, ridge):
    rows = torch.cat([embedded, torch.ones_like(embedded[..., :1])], dim=-1)
    hessian = rows.mT @ rows / SHOWN + ridge * torch.eye(rows.shape[-1])
    return torch.linalg.solve(hessian, (rows.mT @ labels[..., None]).squeeze(-1) / SHOWN)


@torch.no_grad()
def accuracy(embed, tasks, ridge):
    shown, labels, asked, answers = tasks
    heads = best_heads(embed(shown), labels, ridge)
    return float((scores(embed(asked), heads).sign() == answers).float().mean())


# %% [markdown]
# ## The comparison
# The embedding is learned from tasks on one half of the images and tried on new tasks from the other half. Heads on raw
# pixels, and heads on the embedding as it was before training, get the ridge that is best for them, of nine, on tasks
# from the first half; ours keep the ridge that is written above.


# %%
def main(seed=0, steps=100, tasks_per_step=16, new_tasks=100):
    torch.manual_seed(seed)
    data = load_digits()
    order = torch.randperm(len(data.target))
    images, digits = torch.tensor(data.data, dtype=torch.float32)[order] / 16, torch.tensor(data.target)[order]
    half = len(images) // 2
    old, new = (images[:half], digits[:half]), (images[half:], digits[half:])
    known, unknown = tasks_of(*old, new_tasks), tasks_of(*new, new_tasks)
    net = nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 16), nn.Tanh())
    baselines = {}
    for name, embed in (("raw pixels", nn.Identity()), ("a random embedding", net)):
        _, ridge = max((accuracy(embed, known, 10 ** (k / 2)), 10 ** (k / 2)) for k in range(-6, 3))
        baselines[name] = accuracy(embed, unknown, ridge)

    optimizer, curve = torch.optim.Adam(net.parameters(), lr=0.01), []
    for step in range(steps):
        shown, labels, asked, answers = tasks_of(*old, tasks_per_step)

        def g(net, heads, shown=shown, labels=labels):
            return (scores(net(shown), heads) - labels).square().mean() + RIDGE * heads.square().sum(1).mean()

        def f(net, heads, asked=asked, answers=answers):
            return (scores(net(asked), heads) - answers).square().mean()

        heads = best_heads(net(shown).detach(), labels, RIDGE)
        estimate = torch_hypergradient.implicit(f, g, net, heads, steps=20, tolerance=1e-3)
        for name, parameter in net.named_parameters():
            parameter.grad = estimate.grad[name]
        optimizer.step()
        if step % 5 == 4:
            curve.append((step + 1, accuracy(net, unknown, RIDGE)))

    outcome = Outcome(accuracy(net, unknown, RIDGE), baselines)
    for name, value in {**baselines, "the learned embedding": outcome.ours}.items():
        print(f"heads on {name:<24}{value:7.1%} of the labels in new tasks")
    print(outcome.sentence())
    draw(curve, baselines, net, *new)
    return outcome


# %% [markdown]
# ## The picture
# The way there, and the new images in the plane of the two main directions of the embedding, by the digit that they show.


# %%
def draw(curve, baselines, net, images, digits):
    figure = Figure(figsize=(10, 4.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.plot(*zip(*curve, strict=True), label="the learned embedding")
    for (name, value), style in zip(baselines.items(), ("--", ":"), strict=True):
        left.axhline(value, color="black", linestyle=style, label=name)
    left.set(xlabel="steps of the embedding", ylabel="right labels in new tasks", title="Heads from 20 images")
    left.legend()
    embedded = net(images).detach()
    centred = embedded - embedded.mean(0)
    plane = centred @ torch.linalg.svd(centred, full_matrices=False).Vh[:2].T
    points = right.scatter(*plane.T, c=digits, cmap="tab10", s=8)
    figure.colorbar(points, ax=right, label="digit (never told)", ticks=range(10))
    right.set(title="New images, embedded", xticks=[], yticks=[])
    figure.savefig("few_shot_heads.png", dpi=120)
    return figure


# %%
if __name__ == "__main__":
    torch.set_num_threads(1)  # everything here is small, and the same on every machine this way
    main()
